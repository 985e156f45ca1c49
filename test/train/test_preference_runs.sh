#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Preference training by ds_train: it learns (held-out pairs), the same bits in every ZeRO stage, under offload and after a resume,
# what it logs, and what it refuses. Usage: test_preference_runs.sh BUILD
set -euo pipefail
build=$1
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 2 32 4 64
for i in $(seq 200); do # chosen answers are of other letters than rejected ones, in words of any order
    a=$(echo abcde fghij klmno | cut -d' ' -f$((i % 3 + 1)))
    b=$(echo vwxyz uvwxy pqrst | cut -d' ' -f$((i / 2 % 3 + 1)))
    a=${a:i % 4:2}${a:i / 3 % 4:1}
    b=${b:i / 5 % 4:2}${b:i % 4:1}
    printf '{"prompt": "q%d", "chosen": " %s %s", "rejected": " %s %s"}\n' "$i" "$a" "$a" "$b" "$b"
done > pairs.jsonl
sed -n 's/"chosen": \(".*"\), "rejected".*/"completion": \1, "label": true}/p;n;s/"chosen": .*"rejected": \(".*"\)}/"completion": \1, "label": false}/p' \
    pairs.jsonl > labelled.jsonl
config() { # STAGE MORE
    printf '{"train_batch_size": 8, "train_micro_batch_size_per_gpu": 2, "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}},
             "gradient_clipping": 1.0, "deterministic": true, "zero_optimization": {"stage": %s, "stage3_gather_16bit_weights_on_model_save": true%s}}' "$1" "${2-}" > "ds$1.json"
}
for stage in 0 1 2 3; do config $stage; done
train() { # FLAGS…
    "$build/ds_train" --model_config llama.json --tokenizer bytes --seq_length 32 --threads 1 --overwrite --lr_scheduler_type constant "$@" > log 2>&1
}
last() { # NAME: of the last evaluation in m.jsonl
    grep '"eval_loss"' m.jsonl | tail -1 | grep -o "\"$1\":[^,}]*" | cut -d: -f2
}
least() { # NAME BOUND
    awk -v x="$(last "$1")" -v y="$2" 'BEGIN { exit !(x > y) }' || fail "$1 is $(last "$1"), not above $2"
}

# It learns. The reference's own accuracy is none: its rewards are 0.
for objective in dpo orpo simpo reward "dpo --loss_type ipo" "dpo --label_smoothing 0.1" "dpo --loss_type hinge" "dpo --reference_free"; do
    name=eval_rewards/accuracies
    [ "$objective" = reward ] && name=eval_accuracy
    train --objective $objective --data pairs.jsonl --deepspeed_config ds0.json --eval_fraction 0.2 --steps 20 --metrics m.jsonl || fail "$objective"
    least $name 0.9
done
grep -q '"eval_samples":40' m.jsonl || fail "the pairs of an evaluation"
grep -q 'accuracies 1.000  margins' log || fail "the line of an evaluation"
for loss in kto apo_zero_unpaired; do
    train --objective kto --loss_type $loss --data labelled.jsonl --deepspeed_config ds0.json --eval_fraction 0.2 --steps 20 --metrics m.jsonl ||
        fail "$loss"
    least eval_rewards/margins 0.2
done
train --objective kto --data pairs.jsonl --deepspeed_config ds0.json --eval_fraction 0.2 --steps 20 --metrics m.jsonl || fail "kto of pairs"
least eval_rewards/margins 0.2
grep -q '"eval_samples":80' m.jsonl || fail "the answers of pairs"

# The same bits: stages on two ranks, offload, a resume.
ranks() { # NAME CONFIG FLAGS…
    local name=$1 config=$2
    shift 2
    "$build/deepspeed" --num_gpus 2 "$build/ds_train" --model_config llama.json --tokenizer bytes --seq_length 32 --threads 1 --overwrite --lr_scheduler_type constant \
        --deepspeed_config "$config" --steps 6 --output "$name" "$@" > log 2>&1 || fail "$name"
}
same() { cmp "$1/model.safetensors" "$2/model.safetensors" || fail "$1 and $2 differ"; }
for objective in "dpo --data pairs.jsonl" "kto --data labelled.jsonl"; do
    for stage in 0 1 2 3; do
        ranks "z$stage" "ds$stage.json" --objective $objective
        same z0 "z$stage"
    done
    config 2 ', "offload_optimizer": {"device": "cpu"}'
    ranks offload ds2.json --objective $objective
    same z0 offload
    config 2
    ranks half ds3.json --objective $objective --steps 3
    "$build/deepspeed" --num_gpus 2 "$build/ds_train" --model_config llama.json --tokenizer bytes --seq_length 32 --threads 1 --resume --lr_scheduler_type constant \
        --deepspeed_config ds1.json --steps 6 --output half --objective $objective > log 2>&1 || fail "a resume"
    same z0 half
    [ -e z0d ] || mv z0 z0d
done

# The reference in the data cache: found by the next run, one result; another model's is another; a damaged one is made anew.
cached() { # NAME NUMBER FLAGS…
    local name=$1 number=$2
    shift 2
    train --objective dpo --data pairs.jsonl --deepspeed_config ds0.json --steps 4 --data_cache cache --output "$name" "$@" || fail "$name"
    grep -q 'reference: log-probabilities of 200 samples' log || fail "$name: no reference"
    if [ "$number" = 0 ]; then ! grep -q 'from the data cache' log; else grep -qF "start, $number of them from the data cache" log; fi ||
        fail "$name: the reference of the cache"
}
train --objective dpo --data pairs.jsonl --deepspeed_config ds0.json --steps 4 --output plain || fail "no cache"
cached made 0
cached found 200
same plain made
same plain found
cached other 0 --seed 7
ranks cached_ranks ds2.json --objective dpo --data pairs.jsonl --data_cache cache
ranks found_ranks ds2.json --objective dpo --data pairs.jsonl --data_cache cache
grep -qF '200 of them from the data cache' log || fail "the reference of ranks"
same cached_ranks found_ranks
same z0d cached_ranks
for file in cache/reference-*; do printf 'x' | dd of="$file" bs=1 seek=30 conv=notrunc status=none; done
cached damaged 0
grep -qF 'is damaged; it is made anew' log || fail "a damaged reference"
same plain damaged

# Numbers of the reference as columns: zeros are no reference.
sed 's/}$/, "ref_chosen_logps": 0, "ref_rejected_logps": -0.0}/' pairs.jsonl > columns.jsonl
train --objective dpo --data columns.jsonl --deepspeed_config ds0.json --steps 4 --eval_fraction 0.2 --output columns || fail "columns of the reference"
! grep -q 'reference: ' log || fail "columns were computed again"
train --objective dpo --reference_free --data pairs.jsonl --deepspeed_config ds0.json --steps 4 --eval_fraction 0.2 --output free || fail "no reference"
same columns free
sed '5s/"ref_chosen_logps": 0/"ref_chosen_logps": -3.5/' columns.jsonl > moved.jsonl
train --objective dpo --data moved.jsonl --deepspeed_config ds0.json --epochs 1 --output moved || fail "other columns"
train --objective dpo --data columns.jsonl --deepspeed_config ds0.json --epochs 1 --output whole || fail "columns"
! cmp -s moved/model.safetensors whole/model.safetensors || fail "a column that nobody reads"

# Refusals.
refuses() { # WORDS FLAGS…
    local words=$1
    shift
    ! train --deepspeed_config ds0.json --steps 1 --metrics m.jsonl "$@" || fail "not refused: $words"
    grep -qF -- "$words" log || fail "not said: $words"
}
refuses "--beta is not of --objective sft" --data pairs.jsonl --beta 0.2
refuses "pairs.jsonl:1: a row of the schema preference, which is for preference training" --data pairs.jsonl
refuses "labelled.jsonl:1: a row of the schema unpaired preference, but this objective needs pairs" --data labelled.jsonl --objective dpo
refuses "--loss_type kto is not of --objective dpo" --data pairs.jsonl --objective dpo --loss_type kto
refuses "--loss_type is of --objective dpo and kto, not of orpo" --data pairs.jsonl --objective orpo --loss_type ipo
refuses "label_smoothing is 0.2" --data pairs.jsonl --objective dpo --loss_type ipo --label_smoothing 0.2
refuses "--reference_free is not of --objective kto" --data labelled.jsonl --objective kto --reference_free
refuses "must be above 1" --data labelled.jsonl --objective kto --micro_batch 1 --deepspeed_config <(echo '{"train_batch_size": 4,
    "train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW"}}')
refuses "no sample is left" --data pairs.jsonl --objective dpo --seq_length 2
sed '3s/, "ref_chosen.*/}/' columns.jsonl > some.jsonl
refuses "some have \"ref_chosen_logps\"" --data some.jsonl --objective dpo
sed '4s/: 0, "ref_rej/: "a", "ref_rej/' columns.jsonl > words.jsonl
refuses 'words.jsonl:4: "ref_chosen_logps" and "ref_rejected_logps" must both be numbers' --data words.jsonl --objective dpo
refuses "the data cache has no place" --data columns.jsonl --objective dpo --data_cache cache
refuses "kto reads its data in order" --data labelled.jsonl --objective kto --data_weights 1
seq 1 400 > plain.txt
refuses "plain.txt: plain text has no preferences" --data plain.txt --objective dpo
cat > experts.json << 'JSON'
{"model_type": "mixtral", "architectures": ["MixtralForCausalLM"], "vocab_size": 258, "hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1,
"num_attention_heads": 2, "num_key_value_heads": 2, "num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": true, "max_position_embeddings": 64}
JSON
refuses '"output_router_logits" is true: the loss that balances routers is not built beside a preference loss' --data pairs.jsonl --objective dpo --model_config experts.json
train --objective dpo --data pairs.jsonl --deepspeed_config ds0.json --steps 2 --output kept || fail "a run"
! "$build/ds_train" --model_config llama.json --tokenizer bytes --seq_length 32 --threads 1 --resume --deepspeed_config ds0.json --steps 4 \
    --output kept --objective dpo --beta 0.5 --data pairs.jsonl > log 2>&1 || fail "resumed with another beta"
grep -qF 'this run has {"loss": "sigmoid", "reference_free": false, "beta": 0.5' log || fail "the loss that differs"
