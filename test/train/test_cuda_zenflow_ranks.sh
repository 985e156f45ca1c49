#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ZenFlow over two ranks on stand-ins of the driver, cuBLASLt and NCCL, updated by the processor beside the device, the rest in the step and
# concurrent with the next ones: the weights of updates on the device, cpu's losses. Usage: test_cuda_zenflow_ranks.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
data=text.txt
length=24
# shellcheck source=test/common/train_runs.sh
. "$DS_SOURCE_DIR/test/common/train_runs.sh"
awk 'BEGIN {for (i = 0; i < 400; ++i) printf "%d and %d make %d. ", i % 17, i % 5, i % 17 + i % 5}' > text.txt
cat > model.json << 'END'
{"model_type": "gpt2", "vocab_size": 257, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2,
 "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
END
own=(--model_config model.json --steps 4)
zenflow() { # FILE STAGE OVERLAP SHARE
    config "$1.json" "\"train_micro_batch_size_per_gpu\": 4, \"zero_optimization\": {\"stage\": $2, \"stage3_param_persistence_threshold\": 0, \"offload_optimizer\": {
        \"device\": \"cpu\", \"cpuadam_cores_perc\": $4}, \"zenflow\": {\"select_strategy\": \"step\", \"select_interval\": 4, \"update_interval\": 2,
        \"full_warm_up_rounds\": 0, \"topk_ratio\": 0.25, \"overlap_step\": $3}}"
}
for late in false true; do
    zenflow zhost 1 "$late" 1
    zenflow zdevice 3 "$late" 0
    sed 's/, "cpuadam_cores_perc": 1//' zhost.json > zcpu.json
    train 2 zcpu.json "zcpu-$late" "${own[@]}" || fail "ZenFlow on cpu" "zcpu-$late.log"
    host=zhost-$late
    on_cuda 8 2 zhost.json "$host" "${own[@]}" --print_plan || fail "ZenFlow on the host" "$host.log"
    grep -Eq "^ *[0-9]+ postpone +host " "$host.log" || fail "no gradient waits by the host"
    where=host
    [ "$late" = false ] || where="side host"
    grep -Eq "^ *[0-9]+ rest +$where " "$host.log" || fail "the rest is not the host's"
    on_cuda 9 2 zdevice.json "zdevice-$late" "${own[@]}" || fail "ZenFlow on the device" "zdevice-$late.log"
    [ "$(weights "$host")" = "$(weights "zdevice-$late")" ] || fail "ZenFlow on the host gives other weights"
    near "zcpu-$late" "$host" || fail "ZenFlow: other losses than cpu" "$host.log"
done
echo "ZenFlow on the host over ranks: one result"
