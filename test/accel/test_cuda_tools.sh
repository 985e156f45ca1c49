#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The tools with the accelerator cuda over the stand-in of its driver: the conformance checks, auto, the report; and without a
# driver, or without the module, what is said. Usage: test_cuda_tools.sh BUILD
# labels: slow
set -euo pipefail
build=$(cd "$1" && pwd)
cd "$build"
check() { # CODE PATTERN COMMAND…
    local code=0 want=$1 pattern=$2 text
    shift 2
    text=$("$@" 2>&1) || code=$?
    [ "$code" = "$want" ] || { echo "$*: exit $code, expected $want: $text" >&2; exit 1; }
    grep -qE "$pattern" <<< "$text" || { echo "$*: no \"$pattern\" in: $text" >&2; exit 1; }
}
nowhere=$(mktemp -d)
trap 'rm -rf "$nowhere"' EXIT
with=(env DS_MODULE_PATH="$build/standin" LD_LIBRARY_PATH="$build/standin")
check 0 "^graphs: .* passed$" "${with[@]}" DS_CUDA_STANDIN=seed=3,turn=100 ./ds_accel_test cuda --rounds 1
check 0 "^graphs: .* passed$" "${with[@]}" DS_CUBLASLT_STANDIN=none ./ds_accel_test cuda --rounds 1
check 0 "^accelerator cuda \.+ \[OKAY\] driver: CUDA 13.0, driver 580.65.06; kernels ahead of time: the host layer \(CUDA 13.0\); custom operators: compiled at first use by NVRTC 13.0, cached in .*/deepspeed_native/cuda \([0-9]+ entries, [0-9]+ KiB\); products: cuBLASLt 13.0.0; collectives: NCCL 2.28.9; disks: cuFile 1.14; device 0: stand-in.*, 35 °C, ECC errors 0 corrected, 7 not" "${with[@]}" DS_NVML_STANDIN=ecc=7 ./ds_report
check 0 "^disks: .* passed$" "${with[@]}" DS_CUFILE_STANDIN=short=1 ./ds_accel_test cuda --rounds 1
mkdir "$nowhere/without_cufile" # all stand-ins but that one
ln -s "$build"/standin/*.so* "$nowhere/without_cufile/"
rm "$nowhere"/without_cufile/libcufile.so*
if ! ldconfig -p | grep -q libcufile.so.0; then
    with_less=(env DS_MODULE_PATH="$nowhere/without_cufile" LD_LIBRARY_PATH="$nowhere/without_cufile")
    check 0 "^disks: .* not checked: aio.use_gds: there is no cuFile .*the package libcufile of NVIDIA's CUDA toolkit" "${with_less[@]}" ./ds_accel_test cuda --rounds 1
    check 0 "; disks: none \(aio.use_gds\); there is no cuFile " "${with_less[@]}" ./ds_report
fi
# Custom operators: what is compiled at first use, where it is kept, and what is missing.
mkdir "$nowhere/without_nvrtc"
ln -s "$build"/standin/*.so* "$nowhere/without_nvrtc/"
rm "$nowhere"/without_nvrtc/libnvrtc.so*
: > "$nowhere/without_nvrtc/libnvrtc.so.13" # nothing, ahead of the system's
: > "$nowhere/without_nvrtc/libnvrtc.so.12"
cache=(env DS_CUDA_CACHE="$nowhere/cache")
check 0 "^step 100  loss" "${with[@]}" "${cache[@]}" ./10_cuda_operator cuda
check 0 "cached in $nowhere/cache \(2 entries, [1-9][0-9]* KiB\)" "${with[@]}" "${cache[@]}" ./ds_report
check 0 "^step 100  loss" ./10_cuda_operator cpu
with_less=(env DS_MODULE_PATH="$nowhere/without_nvrtc" LD_LIBRARY_PATH="$nowhere/without_nvrtc")
check 0 "; custom operators: not those with CUDA source; there is no NVRTC .*nvidia-cuda-nvrtc of PyPI, has libnvrtc.so.13; " "${with_less[@]}" ./ds_report
check 1 "operator softplus: its kernel plain for cuda is source that NVRTC compiles: there is no NVRTC" "${with_less[@]}" ./10_cuda_operator cuda
cat > "$nowhere/config.json" << 'CONFIG'
{"model_type":"gpt2","vocab_size":97,"n_positions":64,"n_embd":32,"n_layer":2,"n_head":4}
CONFIG
echo '{"train_micro_batch_size_per_gpu":1,"optimizer":{"type":"AdamW","params":{"lr":0.001}}}' > "$nowhere/ds.json"
plan=(./ds_plan --model_config "$nowhere/config.json" --deepspeed_config "$nowhere/ds.json" --seq_length 32)
check 0 "^accelerator: cuda \(auto\)$" "${with[@]}" "${plan[@]}"
check 0 "^accelerator: cpu \(auto\)$" "${plan[@]}"
# Keys and values that a file wants away stay on the device, whoever chose it.
echo '{"state_manager":{"offload":true,"max_context":32}}' > "$nowhere/away.json"
for name in auto cuda; do
    check 1 "state_manager.offload: keys and values of cuda" "${with[@]}" ./ds_plan serve --model_config "$nowhere/config.json" --deepspeed_config "$nowhere/away.json" --accelerator $name
done
# The autotuner takes the profile of the device's name, and its memory; of a device without one it says so.
echo '{"train_micro_batch_size_per_gpu":"auto","optimizer":{"type":"AdamW","params":{"lr":0.001}},"autotuning":{"enabled":true}}' > "$nowhere/tune.json"
for i in $(seq 60); do echo "line $i of a text"; done > "$nowhere/text.txt"
sed 's/"vocab_size":97/"vocab_size":257/' "$nowhere/config.json" > "$nowhere/bytes.json"
tune=(-C "$nowhere" "$build/deepspeed" --dry_run --num_gpus 1 --autotuning tune "$build/ds_train" --model_config bytes.json --tokenizer bytes --data "$nowhere/text.txt" --steps 3
    --seq_length 32 --accelerator cuda --deepspeed_config "$nowhere/tune.json")
check 0 "device: NVIDIA GeForce RTX 4090, by the profile rtx-4090" "${with[@]}" DS_CUDA_STANDIN="mib=24200,name=NVIDIA GeForce RTX 4090" env "${tune[@]}"
check 0 " fit into 23.00 GiB a rank \(the device's\)" "${with[@]}" DS_CUDA_STANDIN="mib=24200,name=NVIDIA GeForce RTX 4090" env "${tune[@]}"
check 0 "there is no profile of NVIDIA L40S: times and memory are this processor's" "${with[@]}" DS_CUDA_STANDIN="name=NVIDIA L40S" env "${tune[@]}"
# A device that is there and cannot be used is no reason to compute elsewhere without a word; none at all is.
broken=("${with[@]}" DS_CUDA_STANDIN=init=802 "${plan[@]}")
check 0 "cuda is not used: .*cuInit: .*SYSTEM_NOT_READY.*nvidia-fabricmanager" "${broken[@]}"
check 0 "^accelerator: cpu \(auto\)$" "${broken[@]}"
if "${with[@]}" DS_CUDA_STANDIN=init=100 "${plan[@]}" 2>&1 | grep "is not used"; then exit 1; fi
if "${plan[@]}" 2>&1 | grep "is not used"; then exit 1; fi
# The number of a rank that mpirun or srun has started.
for name in LOCAL_RANK OMPI_COMM_WORLD_LOCAL_RANK MPI_LOCALRANKID SLURM_LOCALID; do
    check 1 "rank 5 of this node has no device of its own, there are 4" "${with[@]}" DS_CUDA_STANDIN=devices=4 $name=5 ./ds_accel_test cuda
done
# Plans are made for the device's memory, whatever the machine has.
check 0 "^fits: .* of 1.00 GiB \(the device's memory\)" "${with[@]}" "${plan[@]}"
# A driver that is older than the kernels.
check 1 "compiled by CUDA 13.0, the driver is of CUDA 12.4" "${with[@]}" DS_CUDA_STANDIN=version=12040 ./ds_accel_test cuda
check 0 "driver: CUDA 12.4.*products: kernels of its own; there is no cuBLASLt .*libcublasLt.so.12" "${with[@]}" DS_CUDA_STANDIN=version=12040 ./ds_report
elsewhere=("${plan[@]}" --device rtx-4090 --accelerator cuda)
check 0 "^accelerator: cuda$" env DS_MODULE_PATH="$build/standin" "${elsewhere[@]}"
# Options that there are not are refused without a device too; which devices are here is of no matter to a plan for elsewhere.
for options in junk=1 junk graphs=2 device=x; do
    check 1 "accelerator cuda: (there is no option \"junk\"|(graphs|device)=.*expected a whole number)" env DS_MODULE_PATH="$build/standin" "${elsewhere[@]}" --accelerator cuda:$options
    check 1 "accelerator cuda: (there is no option \"junk\"|(graphs|device)=.*expected a whole number)" "${with[@]}" "${plan[@]}" --accelerator cuda:$options
done
check 0 "^accelerator: cuda:device=7$" "${with[@]}" "${elsewhere[@]}" --accelerator cuda:device=7
check 1 "there is no device 7; there are 1" "${with[@]}" ./ds_accel_test cuda:device=7
if ! ldconfig -p | grep -q libcuda.so.1; then # what is planned without a driver is what would run, but for cuBLASLt's products
    env DS_MODULE_PATH="$build/standin" "${elsewhere[@]}" | grep -v "^planned in" > "$nowhere/without"
    "${with[@]}" DS_CUBLASLT_STANDIN=none "${elsewhere[@]}" | grep -v "^planned in" | cmp - "$nowhere/without"
fi
sed 's/"n_embd":32,"n_layer":2,"n_head":4/"n_embd":516,"n_layer":2,"n_head":2/' "$nowhere/config.json" > "$nowhere/wide.json"
check 1 "no kernel of attention" env DS_MODULE_PATH="$build/standin" "${elsewhere[@]}" --model_config "$nowhere/wide.json"
if ! ldconfig -p | grep -q libcuda.so.1; then
    check 1 "no CUDA driver .*NVIDIA's driver package has libcuda.so.1" env DS_MODULE_PATH="$build/standin" ./ds_accel_test cuda
    check 0 "^accelerator cuda \.+ \[NO\] .*no CUDA driver .*NVIDIA's driver package has libcuda.so.1; kernels ahead of time: the host layer \(CUDA 13.0\); custom operators: .*; products: .*; collectives: .*; disks: " env DS_MODULE_PATH="$build/standin" ./ds_report
fi
# Files that are cut off: loading them would end the process without a word.
mkdir "$nowhere/cut" "$nowhere/module"
for name in libcublasLt.so.13 libnvidia-ml.so.1 libnccl.so.2 libcufile.so.0 libnvrtc.so.13; do
    head -c 12000 "standin/$name" > "$nowhere/cut/$name"
    check 0 "$name: the file is cut off: it has 12000 bytes of [0-9]+" env DS_MODULE_PATH="$build/standin" LD_LIBRARY_PATH="$nowhere/cut:$build/standin" ./ds_report
    rm "$nowhere/cut/$name"
done
: > "$nowhere/cut/libcublasLt.so.13" # a damaged newer one is the error, not a missing older one
check 0 "there is no cuBLASLt \([^ ]*/libcublasLt.so.13: file too short\)" env DS_MODULE_PATH="$build/standin" LD_LIBRARY_PATH="$nowhere/cut:$build/standin" ./ds_report
rm "$nowhere/cut/libcublasLt.so.13"
head -c 12000 standin/libcuda.so.1 > "$nowhere/cut/libcuda.so.1"
cut=(env DS_MODULE_PATH="$build/standin" LD_LIBRARY_PATH="$nowhere/cut:$build/standin")
check 1 "libcuda.so.1: the file is cut off: it has 12000 bytes of [0-9]+" "${cut[@]}" ./ds_accel_test cuda
check 0 "^accelerator cuda \.+ \[NO\] the probe was killed by signal 7" "${cut[@]}" ./ds_report # other stand-ins are linked against it
rm "$nowhere/cut/libcuda.so.1"
head -c 200000 standin/libdeepspeed_cuda.so > "$nowhere/module/libdeepspeed_cuda.so"
check 1 "module/libdeepspeed_cuda.so: the file is cut off: it has 200000 bytes of [0-9]+" env DS_MODULE_PATH="$nowhere/module" ./ds_accel_test cuda
check 0 "^accelerator cuda \.+ \[NO\] .*module/libdeepspeed_cuda.so: the file is cut off" env DS_MODULE_PATH="$nowhere/module" ./ds_report
# What DS_MODULE_PATH has is what counts, and it is no other accelerator.
asked=(env DS_MODULE_PATH="$nowhere/module" LD_LIBRARY_PATH="$build/standin" ./ds_accel_test cuda --rounds 1)
: > "$nowhere/module/libdeepspeed_cuda.so"
check 1 "libdeepspeed_cuda.so of DS_MODULE_PATH cannot be loaded \(.*file too short" "${asked[@]}"
cp own_accel_0.so "$nowhere/module/libdeepspeed_cuda.so"
check 1 "libdeepspeed_cuda.so is the accelerator \"own[^\"]*\", expected \"cuda\"" "${asked[@]}"
rm "$nowhere/module/libdeepspeed_cuda.so"
mkdir "$nowhere/module/libdeepspeed_cuda.so"
check 1 "libdeepspeed_cuda.so of DS_MODULE_PATH cannot be loaded" "${asked[@]}"
cp ds_accel_test "$nowhere/"
check 1 "libdeepspeed_cuda.so cannot be loaded .*; the package libdeepspeed-cuda has it" "$nowhere/ds_accel_test" cuda
echo "cuda and the tools agree"
