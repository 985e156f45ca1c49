#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_train --objective mlm: a small BERT from nothing, whose loss falls; the same weights at every ZeRO stage, on any number of ranks'
# threads, and after a resume; its folder trained on; what does not go together is refused by name. Usage: test_mlm_cli.sh BUILD
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
. "$DS_SOURCE_DIR/test/tools/bert_folder.sh"
cd "$scratch"
fail() {
    echo "FAIL: $1"
    [ ! -e "${2:-}" ] || tail -n 20 "$2"
    exit 1
}
head -c 30000 "$DS_SOURCE_DIR/data/tinyshakespeare.txt" > text.txt
bert_folder bert text.txt
config() { # FILE STAGE
    cat > "$1" <<JSON
{"train_batch_size": 8, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
 "zero_optimization": {"stage": $2}}
JSON
}
train() { # RANKS CONFIG OUTPUT FLAGS
    local ranks=$1 config=$2 output=$3
    shift 3
    "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --model_config bert/config.json --tokenizer bert --data text.txt --threads 1 \
        --seq_length 32 --seed 7 --lr_scheduler_type none --objective mlm --deepspeed_config "$config" --output "$output" \
        --metrics "$output.jsonl" "$@" > "$output.log" 2>&1
}
weights() { # OUTPUT
    "$build/ds_checkpoint" export "$1" "$1.model" --overwrite > /dev/null
    sha256sum < "$1.model/model.safetensors"
}
losses() { sed -nE 's/.*"eval_loss":([0-9.]+).*/\1/p' "$1.jsonl"; }

for stage in 0 1 2 3; do
    config $stage.json $stage
    train 2 $stage.json run$stage --steps 6 --eval_interval 3 --eval_fraction 0.1 || fail "stage $stage" run$stage.log
    [ "$(weights run$stage)" = "$(weights run0)" ] || fail "stage $stage differs from 0" run$stage.log
    [ "$(losses run$stage)" = "$(losses run0)" ] || fail "stage $stage evaluates otherwise than 0" run$stage.log
done
train 2 0.json threads --steps 6 --eval_interval 3 --eval_fraction 0.1 --threads 2 || fail "threads" threads.log
[ "$(weights threads)" = "$(weights run0)" ] || fail "two threads differ from one"
train 2 3.json half --steps 3 --eval_fraction 0.1 || fail "half" half.log
train 2 3.json half --steps 6 --eval_fraction 0.1 --resume || fail "resume" half.log
[ "$(weights half)" = "$(weights run0)" ] || fail "a resumed run differs"
# Shared layers, shared sequences: one rank's losses.
train 1 0.json alone --steps 4 --eval_interval 2 --eval_fraction 0.1 || fail "alone" alone.log
for axis in '"tensor_parallel": {"autotp_size": 2}' '"sequence_parallel_size": 2' \
    '"sequence_parallel_size": 2, "sequence_parallel": {"attention": "ring", "load_balance": false}'; do
    sed "s/\"zero_optimization\"/$axis, &/" 2.json > axis.json
    rm -rf axis axis.jsonl
    train 2 axis.json axis --steps 4 --eval_interval 2 --eval_fraction 0.1 || fail "$axis" axis.log
    paste <(losses alone) <(losses axis) | awk '{n++; d = $1 / $2 - 1; if (d > 2e-5 || d < -2e-5) bad = 1} END {exit !(n == 2 && !bad)}' ||
        fail "$axis: losses $(losses axis | xargs), alone $(losses alone | xargs)"
done
# Of a word between two of its kind: which it was can be seen on either side. Guessing among 40 words costs 3.7 nats.
awk 'BEGIN {srand(3); for (i = 0; i < 3000; ++i) {w = substr("abcdefghijklmnopqrst", 1 + int(rand() * 20), 1); if (rand() < 0.5) w = w w; printf "{\"text\": \"%s %s %s\"}\n", w, w, w}}' > rule.jsonl
sed 's/.*: "//; s/".*//' rule.jsonl > words.txt
bert_folder rule words.txt
"$build/ds_train" --model_config rule/config.json --tokenizer rule --data rule.jsonl --seq_length 32 --seed 7 --objective mlm --steps 400 \
    --learning_rate 3e-3 --micro_batch 8 --eval_interval 200 --eval_fraction 0.1 --output one --metrics one.jsonl > one.log 2>&1 || fail "one rank" one.log
losses one | awk '{last = $1} END {exit !(NR >= 2 && last < 1.0)}' || fail "the rule is not learnt: $(losses one | xargs)" one.log

# The folder of a run is one to go on from, with the norms' names of BERT's first folders too.
"$build/ds_train" --model one --data rule.jsonl --seq_length 32 --objective mlm --steps 2 --mlm_probability 0.4 --output on > on.log 2>&1 ||
    fail "a trained folder" on.log
cmp one/tokenizer.json rule/tokenizer.json || fail "the tokenizer is not beside the model"

refused() { # WORDS FLAGS
    local words=$1
    shift
    if "$build/ds_train" --data rule.jsonl --seq_length 32 --steps 1 "$@" > refused.log 2>&1; then
        fail "accepted: $*"
    fi
    grep -q -- "$words" refused.log || fail "refused without \"$words\": $*" refused.log
}
refused "bert is an encoder: --objective mlm, classes, tags or embeddings" --model one
refused "bert is an encoder: --objective mlm, classes, tags or embeddings" --model one --objective dpo
refused "gpt2 is no encoder" --model_config "$DS_SOURCE_DIR/test/programs/zero_gpt2.json" --tokenizer bytes --objective mlm
refused "an adapter of an encoder with its head for masked tokens is not built" --model one --objective mlm --lora 2 --lora_targets query
refused "mlm_probability is of --objective mlm" --model one --mlm_probability 0.3
if "$build/ds_generate" --model one --prompt hello > generate.log 2>&1; then
    fail "ds_generate takes an encoder"
fi
grep -q "is an encoder" generate.log || fail "ds_generate does not say what is wrong" generate.log
echo "mlm: stages, threads and resume give the same weights; loss $(losses one | xargs)"
