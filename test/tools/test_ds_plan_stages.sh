#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_plan of a pipeline: the stage that needs most is planned, of few stages and of many; what a stage waits is in the step's time.
set -u
bin=$1
. "$(dirname "$0")/../common/tool_check.sh"
cat > "$dir/model.json" << 'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 4000, "hidden_size": 64, "intermediate_size": 160,
"num_hidden_layers": 12, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
"hidden_act": "silu", "tie_word_embeddings": false}
END
need() { sed -n 's/.*"need": \([0-9]*\), "available".*/\1/p' "$dir/out.json"; }
plan() { # STAGES MORE…
    printf '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8, "pipeline": {"stages": %s},
"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}' "$1" > "$dir/ds.json"
    "$bin/ds_plan" --model_config "$dir/model.json" --deepspeed_config "$dir/ds.json" --seq_length 128 --world_size "$1" --threads 1 \
        --memory 1TB --overwrite --json "$dir/out.json" "${@:2}" || { echo "FAILED: stages $*"; failed=1; }
}
for stages in 2 3 6; do
    most=0
    for ((s = 0; s < stages; ++s)); do
        plan "$stages" --pipeline_stage "$s"
        [ "$(need)" -le "$most" ] || most=$(need)
    done
    plan "$stages"
    [ "$(need)" = "$most" ] || { echo "FAILED: $stages stages: need $(need), the largest is $most"; failed=1; }
done
# 8 micro-batches in 4 stages: 3 of 11 parts of their time are waited
plan 4 --pipeline_stage 0 --device h100-sxm
python3 - "$dir/out.json" << 'END' || failed=1
import json, sys
time = json.load(open(sys.argv[1]))["timeline"]
busy = sum(p["repeats"] * p["seconds"] for p in time["phases"] if p["repeats"] == 8)
waited = time["step"]["bubble"]
if busy <= 0 or abs(waited / busy - 3 / 8) > 1e-3 or time["step"]["seconds"] < busy + waited:
    sys.exit(f"FAILED: a step waits {waited} s beside {busy} s of micro-batches, expected 3 of 11 parts")
END
# zb-v of 8 micro-batches in 4 ranks: 3 halves of a forward phase are waited, 1 of 17 parts
printf '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8, "pipeline": {"stages": 4, "schedule": "zb-v"}}' > "$dir/v.json"
"$bin/ds_plan" --model_config "$dir/model.json" --deepspeed_config "$dir/v.json" --seq_length 128 --world_size 4 --threads 1 --memory 1TB \
    > "$dir/v.txt" 2>&1 || { echo "FAILED: zb-v"; failed=1; }
grep -q 'of 4, zb-v: .* a stage idles 6 % of a step' "$dir/v.txt" || { echo "FAILED: zb-v idles"; cat "$dir/v.txt"; failed=1; }
# of 2 stages by operations the last has the output projection, of 512000 a token where a layer has some 120000: 4 of the 12 layers; by
# parameters both have 6, since the first has the embedding
for row in 'profile 59' 'parameters 50' 'uniform 50'; do
    read -r partition share <<< "$row"
    printf '{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 8, "pipeline": {"stages": 2, "partition": "%s"}}' "$partition" > "$dir/p.json"
    "$bin/ds_plan" --model_config "$dir/model.json" --deepspeed_config "$dir/p.json" --seq_length 128 --world_size 2 --threads 1 --memory 1TB \
        --pipeline_stage 0 > "$dir/p.txt" 2>&1
    grep -q "stage 0 of 2, 1f1b: $share % of the parameters" "$dir/p.txt" || { echo "FAILED: partition $row"; grep 'ds_plan:\|^stage' "$dir/p.txt"; failed=1; }
done
# Llama-3 405B, tp 8 x pp 16 x dp 64: a plan for each of the stages that may be the largest
cat > "$dir/405.json" << 'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 128256, "hidden_size": 16384, "intermediate_size": 53248,
"num_hidden_layers": 126, "num_attention_heads": 128, "num_key_value_heads": 8, "max_position_embeddings": 131072, "rms_norm_eps": 1e-5,
"hidden_act": "silu", "rope_theta": 500000.0, "tie_word_embeddings": false}
END
cat > "$dir/405ds.json" << 'END'
{"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 32, "bf16": {"enabled": true}, "zero_optimization": {"stage": 1},
"optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "tensor_parallel": {"autotp_size": 8}, "pipeline": {"stages": 16},
"activation_checkpointing": {"recompute": "full"}}
END
TIMEFORMAT='%U'
used=$({ time "$bin/ds_plan" --model_config "$dir/405.json" --deepspeed_config "$dir/405ds.json" --seq_length 8192 --world_size 8192 \
    --nodes 1024 --device h100-sxm > "$dir/405.txt" 2>&1; } 2>&1)
grep -q 'of 16, 1f1b' "$dir/405.txt" || { echo "FAILED: 405B"; tail -n 5 "$dir/405.txt"; failed=1; }
echo "405B: planned in $used s of a processor (docs/measurements/plan.md)"
exit $failed
