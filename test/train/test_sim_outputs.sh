#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# All that ds_train leaves behind on the accelerator sim, whose memory the host cannot see, is what cpu leaves: model folder, losses,
# samples; for each stage, two ranks, offload, the best step and a resume. null, which computes nothing, is refused where it would
# leave a model. Usage: test_sim_outputs.sh BUILD
set -euo pipefail
bin=$(realpath "$1")
# shellcheck source=test/common/tiny_llama.sh
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 2 32 2 64
python3 - << 'END'
import json, random
rng = random.Random(3)
with open("rows.jsonl", "w") as out:
    for _ in range(60):
        out.write(json.dumps({"text": "".join(rng.choice("abcdef ") for _ in range(60))}) + "\n")
END
config() { # FILE ZERO REST
    echo "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-2}}$3,
      \"zero_optimization\": {\"stage3_gather_16bit_weights_on_model_save\": true, $2}}" > "$1"
}
config stage0.json '"stage": 0' ''
config stage2.json '"stage": 2, "overlap_comm": true' ', "bf16": {"enabled": true}'
config stage3.json '"stage": 3, "stage3_param_persistence_threshold": 10' ', "fp16": {"enabled": true, "initial_scale_power": 4}'
config host.json '"stage": 3, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}' ', "bf16": {"enabled": true}'
train() { # RANKS OUTPUT ACCELERATOR FLAGS…
    local launch=()
    [ "$1" = 1 ] || launch=("$bin/deepspeed" --num_gpus "$1" -q)
    "${launch[@]}" "$bin/ds_train" --model_config llama.json --tokenizer bytes --data rows.jsonl --seq_length 32 --threads 2 --steps 4 \
        --report none --eval_fraction 0.1 --output "$2" --metrics "$2.metrics" --accelerator "$3" "${@:4}" > log 2>&1 || fail "$*"
    grep -oE '"(loss|grad_norm|eval_loss)":[^,}]*' "$2.metrics" > "$2.losses"
}
seed=0
while read -r ranks file flags; do
    seed=$((seed + 1))
    for accelerator in cpu "sim:seed=$seed"; do
        out=${accelerator%%:*}_$seed
        # shellcheck disable=SC2086
        train "$ranks" "$out" "$accelerator" --deepspeed_config "$file" $flags
    done
    cmp "cpu_$seed/model.safetensors" "sim_$seed/model.safetensors" || fail "$ranks $file $flags: other weights on sim"
    diff "cpu_$seed.losses" "sim_$seed.losses" || fail "$ranks $file $flags: other losses on sim"
done << 'ROWS'
1 stage0.json
1 stage2.json --eval_interval 1 --load_best_model_at_end --save_interval 2
2 stage2.json --eval_interval 2
2 stage3.json --sample a --sample_length 4
1 host.json
2 host.json --save_interval 1 --keep_last 1
ROWS
# Saved on one, resumed on the other: the bits of a run on one.
base=(--deepspeed_config stage2.json --lr_scheduler_type constant --save_interval 2)
train 1 whole cpu "${base[@]}"
train 1 half sim "${base[@]}" --steps 2
rm half.metrics
train 1 half cpu "${base[@]}" --resume
cmp whole/model.safetensors half/model.safetensors || fail "half on sim, half on cpu: other weights"
# null would leave weights that nothing trained.
for flags in "--output none" "--sample a"; do
    # shellcheck disable=SC2086
    if "$bin/ds_train" --model_config llama.json --tokenizer bytes --data rows.jsonl --seq_length 32 --steps 2 --accelerator null $flags > log 2>&1; then
        fail "null is taken with $flags"
    fi
    grep -q "accelerator null computes nothing.*leave out ${flags%% *}" log || fail "null with $flags says something else"
    [ ! -e none ] || fail "a refused run wrote"
done
"$bin/ds_train" --model_config llama.json --tokenizer bytes --data rows.jsonl --seq_length 32 --steps 2 --accelerator null > log 2>&1 || fail "null alone"
echo "$seed rows: sim leaves what cpu leaves"
