#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# T5 on pairs by ds_train over two ranks: the same weights whatever the ZeRO stage, offload and recompute, and resumed at another
# stage; gradients gathered over micro-batches; planned; its encoder by ds_encode; what does not go with it is refused by name.
# Usage: test_t5_cli.sh BUILD
set -euo pipefail
build=$1
data=pairs.jsonl
length=48
# shellcheck source=test/common/train_runs.sh
. "$DS_SOURCE_DIR/test/common/train_runs.sh"
model() { # FILE, FEED-FORWARD, TIED
    cat > "$1" <<END
{"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 257, "d_model": 32, "d_kv": 8, "d_ff": 48,
 "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "dropout_rate": 0.1, "feed_forward_proj": "$2",
 "tie_word_embeddings": $3, "pad_token_id": 0, "eos_token_id": 256, "decoder_start_token_id": 0}
END
}
awk 'BEGIN {for (i = 0; i < 160; ++i) {
    n = 3 + (i * 7) % 23; text = ""; back = ""
    for (j = 0; j < n; ++j) {c = substr("abcdefghijklmnop", 1 + (i * 5 + j * j) % 16, 1); text = text c; back = c back}
    printf "{\"prompt\": \"turn: %s\", \"completion\": \"%s\"}\n", text, back}}' > pairs.jsonl

for kind in "plain relu true" "gated gated-gelu false"; do
    read -r name mlp tied <<< "$kind"
    model "$name.json" "$mlp" "$tied"
    own=(--model_config "$name.json")
    config z0.json '"zero_optimization": {"stage": 0}'
    train 2 z0.json "$name" "${own[@]}" --steps 4 || fail "$name: ZeRO 0" "$name.log"
    want=$(weights "$name")
    for stage in 1 2 3; do
        config "z$stage.json" "\"zero_optimization\": {\"stage\": $stage}"
        train 2 "z$stage.json" "$name$stage" "${own[@]}" --steps 4 || fail "$name: ZeRO $stage" "$name$stage.log"
        [ "$(weights "$name$stage")" = "$want" ] || fail "$name: ZeRO $stage gives other weights"
    done
    config off.json '"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}},
        "activation_checkpointing": {"recompute": "full"}'
    train 2 off.json "$name.off" "${own[@]}" --steps 2 || fail "$name: offload" "$name.off.log"
    train 2 z2.json "$name.off" "${own[@]}" --steps 4 --resume || fail "$name: resume at another stage" "$name.off.log"
    [ "$(weights "$name.off")" = "$want" ] || fail "$name: offload, recompute and resume give other weights"
    # stages: the source, the tied table and the table of distances go from one to the next
    for ranks in 1 2; do
        config micro.json '"gradient_accumulation_steps": 2'
        train "$ranks" micro.json "$name.micro$ranks" "${own[@]}" --steps 4 || fail "$name: micro-batches" "$name.micro$ranks.log"
        config pipe.json '"gradient_accumulation_steps": 2, "zero_optimization": {"stage": 1}, "pipeline": {"stages": 2}'
        train "$((2 * ranks))" pipe.json "$name.pipe$ranks" "${own[@]}" --steps 4 || fail "$name: stages" "$name.pipe$ranks.log"
        grep -q 'pipeline: 2 stages' "$name.pipe$ranks.log" || fail "$name: no stages" "$name.pipe$ranks.log"
        [ "$(weights "$name.micro$ranks")" = "$(weights "$name.pipe$ranks")" ] || fail "$name: 2 stages give other weights"
    done
done

# without dropout, averaged over targets: ranks and micro-batches are rows of the same batch
model flat.json gated-gelu true
sed -i 's/"dropout_rate": 0.1/"dropout_rate": 0/' flat.json
train 1 z0.json flat1 --model_config flat.json --steps 4 --loss_average targets || fail "one rank" flat1.log
train 2 micro.json flat2 --model_config flat.json --steps 4 --loss_average targets || fail "two ranks and micro-batches" flat2.log
near flat1 flat2 || fail "other losses: $(losses flat1 | tr '\n' ' ') $(losses flat2 | tr '\n' ' ')"

refused() { # TEXT, CONFIG, FLAGS
    local text=$1 config=$2
    shift 2
    rm -rf no
    if train 2 "$config" no --steps 1 "$@"; then fail "taken: $config $*"; fi
    grep -q "$text" no.log || fail "refused without \"$text\": $config $*" no.log
}
config tp.json '"tensor_parallel": {"autotp_size": 2}'
config sp.json '"sequence_parallel_size": 2'
config ep.json '"expert_parallel": {"enabled": true, "autoep_size": 2}'
config fp16.json '"fp16": {"enabled": true}'
refused "not built for t5: tensor parallelism" tp.json --model_config plain.json
refused "not built for t5: sequence parallelism" sp.json --model_config plain.json
refused "autoep_size is 2, but the model has no experts" ep.json --model_config plain.json
refused "not built for t5: fp16" fp16.json --model_config plain.json
refused "which encoder and decoder share" z0.json --model plain.model --lora 2 --lora_targets shared
refused "distillation beside an encoder is not built" z0.json --model_config plain.json --teacher plain.model
refused "t5 learns targets of sources" z0.json --model_config plain.json --objective mlm

# an adapter: the same weights at each stage, and merged it makes the same text
for stage in 0 3; do
    train 2 "z$stage.json" "lora$stage" --model plain.model --lora 2 --lora_dropout 0.1 --steps 4 || fail "an adapter at stage $stage" "lora$stage.log"
done
grep -q SEQ_2_SEQ_LM lora0/adapter_config.json || fail "the task of an adapter" lora0/adapter_config.json
cmp lora0/adapter_model.safetensors lora3/adapter_model.safetensors || fail "an adapter has other weights at stage 3"
"$build/ds_checkpoint" merge plain.model lora0 merged > merge.log 2>&1 || fail "merging" merge.log
for what in "--model plain.model --adapter lora0" "--model merged"; do
    # shellcheck disable=SC2086
    "$build/ds_generate" $what --tokenizer bytes --max_length 48 --max_new_tokens 12 --temperature 0 --prompt "turn: abc" 2> generate.log || fail "generation: $what" generate.log
done > texts
[ "$(sed -n 1p texts)" = "$(sed -n 2p texts)" ] || fail "another text beside the adapter than merged" texts

for stage in 0 3; do
    "$build/ds_plan" --model_config plain.json --deepspeed_config "z$stage.json" --world_size 2 --seq_length 48 > plan.txt || fail "ds_plan" plan.txt
    grep -q "^fits: " plan.txt || fail "no plan" plan.txt
done
! "$build/ds_plan" --model_config plain.json --deepspeed_config tp.json --world_size 2 --seq_length 48 > plan.txt 2>&1 || fail "a plan of tp"
grep -q "not built for t5: tensor parallelism" plan.txt || fail "a plan of tp" plan.txt

# the encoder alone
sed 's/"vocab_size": 257/"vocab_size": 955/' plain.json > words.json
train 1 z0.json words --model_config words.json --steps 1 || fail "a model of words" words.log
weights words > words.hash
cp "$DS_SOURCE_DIR/test/golden/data/tokenizer-unigram.json" words.model/tokenizer.json
"$build/ds_encode" --model words.model --max_length 32 "some words" "others" > vectors.jsonl 2> encode.log || fail "ds_encode" encode.log
[ "$(grep -c '"embedding"' vectors.jsonl)" = 2 ] || fail "no vectors" vectors.jsonl
! "$build/ds_encode" --model words.model "some words" > encode.log 2>&1 || fail "no most positions"
grep -q "give --max_length" encode.log || fail "no most positions" encode.log
! "$build/ds_encode" --model words.model --max_length 32 --task classes "some words" > encode.log 2>&1 || fail "classes of t5"
grep -q "not built for t5: a task with classes" encode.log || fail "classes of t5" encode.log
"$build/ds_encode" --help | grep -q "that of T5" || fail "--help"
echo PASS
