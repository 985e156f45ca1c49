#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
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
exit $failed
