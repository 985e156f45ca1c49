#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_train --accelerator cuda over several ranks, on stand-ins of the driver, cuBLASLt and NCCL: the same weights in every ZeRO stage,
# with states on the host, in every order; cpu's losses; a rank whose devices fail or hang is named. Usage: test_cuda_ranks.sh BUILD
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
own=(--model_config model.json --steps 2)
stage() { config "$1.json" "\"train_micro_batch_size_per_gpu\": $3, $4 \"zero_optimization\": {\"stage\": $2}"; }
stage z0 0 4 ''
train 2 z0.json cpu "${own[@]}" || fail "cpu" cpu.log
for n in 0 1 2 3; do
    stage "z$n" "$n" 4 ''
    on_cuda "$n" 2 "z$n.json" "cuda$n" "${own[@]}" || fail "ZeRO $n" "cuda$n.log"
    near cpu "cuda$n" || fail "ZeRO $n: other losses than cpu" "cuda$n.log"
    [ "$n" = 0 ] || [ "$(weights "cuda$n")" = "$(weights cuda0)" ] || fail "ZeRO $n gives other weights"
done
config off.json '"train_micro_batch_size_per_gpu": 4, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0, "offload_param": {"device": "cpu"},
    "offload_optimizer": {"device": "cpu"}}'
on_cuda 5 2 off.json off "${own[@]}" || fail "offload" off.log
[ "$(weights off)" = "$(weights cuda0)" ] || fail "offload gives other weights"
grep -Eq 'offloaded: 0 MiB to disk, [0-9]+ MiB to host memory' off.log || fail "offload without device_memory" off.log

# Updated there: ahead of the norm, too; by nobody but the device where the share of the threads is 0; refused where there is no device.
super() { # FILE KEYS
    config "$1.json" "\"train_micro_batch_size_per_gpu\": 4, \"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0,
        \"offload_optimizer\": {\"device\": \"cpu\", $2}}"
}
super ahead '"super_offload": true'
super part '"super_offload": true, "ratio": 0.4'
super device '"cpuadam_cores_perc": 0'
for how in ahead part device; do
    on_cuda 7 2 "$how.json" "$how" "${own[@]}" --print_plan || fail "$how" "$how.log"
    [ "$(weights "$how")" = "$(weights cuda0)" ] || fail "$how gives other weights"
done
grep -q "super_offload: all optimizer states are in host memory.*ds_plan --device says" ahead.log || fail "where states are" ahead.log
# The device that a profile is found for by its driver's name: the split of ds_plan --device, whatever that is the same weights; ranks
# whose drivers report others have other plans.
DS_CUDA_NAME="NVIDIA H100 80GB HBM3" on_cuda 7 2 ahead.json named "${own[@]}" --print_plan || fail "a device with a profile" named.log
[ "$(weights named)" = "$(weights cuda0)" ] || fail "a device with a profile gives other weights"
split() { sed -nE 's/.*(super_offload: optimizer states of .* offload_optimizer.ratio [0-9.e-]+).*/\1/p' "$1" | sort -u; }
"$build/ds_plan" --model_config model.json --deepspeed_config ahead.json --seq_length 24 --world_size 2 --device h100-sxm > planned.log || fail "ds_plan --device" planned.log
[ -n "$(split named.log)" ] && [ "$(split named.log)" = "$(split planned.log)" ] || fail "the split of ds_plan --device" named.log
grep -q "(device: NVIDIA H100 80GB HBM3, by the profile h100-sxm)" named.log || fail "which profile" named.log
grep -q "nothing is known of the device (there is no profile of stand-in on the processor)" ahead.log || fail "a device without a profile" ahead.log
updates() { grep -Ec '^ *[0-9]+ backward +host ' "$1.log" || true; }
[ "$(updates part)" -gt 0 ] && [ "$(updates part)" -lt "$(updates ahead)" ] || fail "a part of the updates on the host" part.log
grep -Eq '^ *[0-9]+ backward +host ' ahead.log || fail "no update on the host in the backward phase"
if grep -Eq '^ *[0-9]+ [a-z]+ +host ' device.log; then fail "an update on the host by none of the threads"; fi
if train 2 ahead.json oncpu "${own[@]}"; then fail "super_offload without a device is not refused" oncpu.log; fi
grep -q "super_offload: the accelerator cpu has no memory apart from the host's" oncpu.log || fail "super_offload on cpu" oncpu.log

# On disk, where the devices themselves move it; without that, and without a device, refused by the key's name.
nvme() { # FILE KEY
    config "$1.json" "\"train_micro_batch_size_per_gpu\": 4, $2 \"zero_optimization\": {\"stage\": 3, \"stage3_param_persistence_threshold\": 0, \"offload_param\": {
        \"device\": \"nvme\", \"nvme_path\": \"$PWD\", \"max_in_cpu\": 0}, \"offload_optimizer\": {\"device\": \"nvme\", \"nvme_path\": \"$PWD\"}}"
}
nvme gds '"aio": {"use_gds": true},'
DS_CUFILE_STANDIN=short=1 on_cuda 6 2 gds.json gds "${own[@]}" || fail "use_gds" gds.log
[ "$(weights gds)" = "$(weights cuda0)" ] || fail "use_gds gives other weights"
nvme nogds ''
if on_cuda 6 2 nogds.json nogds "${own[@]}"; then fail "a disk without use_gds is not refused" nogds.log; fi
grep -q "the host moves nothing between a disk and the accelerator cuda; set aio.use_gds to true" nogds.log || fail "which key" nogds.log
if train 2 gds.json oncpu "${own[@]}"; then fail "use_gds without a device is not refused" oncpu.log; fi
grep -q "aio.use_gds: the accelerator cpu moves nothing between disk and device by itself" oncpu.log || fail "use_gds on cpu" oncpu.log

# Slices that are not equal; bf16 on the way.
for n in 0 2 3; do
    config "b$n.json" "\"train_batch_size\": 6, \"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true},
        \"zero_optimization\": {\"stage\": $n}"
    sed -i 's/"train_batch_size": 8, //' "b$n.json"
    on_cuda "1$n" 3 "b$n.json" "three$n" "${own[@]}" || fail "three ranks, ZeRO $n" "three$n.log"
    [ "$n" = 0 ] || [ "$(weights "three$n")" = "$(weights three0)" ] || fail "three ranks: ZeRO $n gives other weights"
done

if DS_NCCL_STANDIN=rank=1,fail=5 on_cuda 1 2 z2.json broken "${own[@]}"; then fail "an asynchronous error is not seen" broken.log; fi
grep -q "NCCL says internal error (3): Call to ibv_reg_mr failed" broken.log || fail "an asynchronous error is not named" broken.log
if DEEPSPEED_TIMEOUT=0.1 DS_NCCL_STANDIN=rank=1,hang=5 on_cuda 1 2 z2.json hung "${own[@]}"; then fail "a hang is not seen" hung.log; fi
grep -Eq "collective [0-9]+ of the devices \(.*\) is not done after 6 s: every rank waits for it: the devices hang" hung.log ||
    fail "a hang is not named" hung.log
echo "cuda over ranks: one result"
