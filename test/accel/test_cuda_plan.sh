#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# What ds_plan --device plans is what the accelerator cuda executes over the stand-in of its driver, step by step, for random
# configurations. Usage: test_cuda_plan.sh BUILD [SEED [COUNT]]
set -euo pipefail
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
cat > model.json << 'END'
{"model_type": "gpt2", "vocab_size": 257, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2}
END
disk() { # KEY
    echo "{\"train_micro_batch_size_per_gpu\": 1, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}, $1 \"zero_optimization\": {
        \"stage\": 1, \"stage3_param_persistence_threshold\": 0, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"$work\"}}}" > ds.json
    "$build/ds_plan" --model_config model.json --deepspeed_config ds.json --device h200 > plan.txt || { echo "FAIL: ds_plan"; exit 1; }
    grep -c 'cuda refuses that without aio.use_gds true' plan.txt || true
}
[ "$(disk '')" = 1 ] || { echo "FAIL: nothing is said of a disk that cuda does not reach"; exit 1; }
[ "$(disk '"aio": {"use_gds": true},')" = 0 ] || { echo "FAIL: aio.use_gds is not seen"; exit 1; }
python3 "$DS_SOURCE_DIR/test/accel/plan_device.py" "$build" "${2:-1}" "${3:-4}"
