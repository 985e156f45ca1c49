#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds and runs every benchmark; called by `make bench`. Installs what is missing. Leave the machine alone meanwhile.
# DS_BENCH_PYTHON=/path/to/python (with torch, tokenizers, deepspeed) adds the comparisons with these.
# DS_BENCH_LONG=1 adds predictions against runs, and offload against its parts: some half an hour more.
# BUILD names the build folder (default: build), DS_BENCH_THREADS the threads (default: 2).
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(realpath -m "${BUILD:-build}")
threads=${DS_BENCH_THREADS:-2}
root=$PWD

scripts/setup.sh bench
cmake -S . -B "$build" -G Ninja > "$build.log" 2>&1 || { cat "$build.log"; exit 1; }
cmake --build "$build" -j "$(nproc)" --target all bench

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
run() { # the benches write their model files into the working folder
    echo
    echo "== $*"
    (cd "$scratch" && "$@") | tee "$scratch/last"
}
run "$build/bench_adamw" 134 11 "$threads"
run "$build/bench_kernels"
run "$build/bench_op" --dtype bf16 --threads "$threads"
run "$build/bench_attention"
# The step's forward and backward pass against oneDNN's times of its products, taken right before.
peer_ms='' peer_dtype=''
products() {
    if [ ! -x "$build/bench_gemm" ]; then
        echo "bench_gemm: left out, oneDNN with OpenMP was not found"
        return
    fi
    run "$build/bench_gemm" --dtype "$1" --repeats "$2" --threads "$threads"
    read -r peer_dtype peer_ms < <(sed -n 's/^step: .*oneDNN \([a-z0-9]*\) \([0-9.]*\) ms.*/\1 \2/p' "$scratch/last")
}
steps() {
    run "$build/bench_train" --dtype "$1" --threads "$threads" --steps "$2" --profile
    [ -n "$peer_ms" ] || return 0
    sed -n 's/^forward \([0-9.]*\) s, backward \([0-9.]*\) s.*/\1 \2/p' "$scratch/last" |
        awk -v peer="$peer_ms" -v dtype="$peer_dtype" '{
            printf "forward and backward: %.2f times the sum of oneDNN'"'"'s %s products (bf16 target: at most 2.00)\n",
                ($1 + $2) * 1e3 / peer, dtype }'
}
products bf16 7
steps bf16 5
products f32 3
steps fp32 3
run "$build/bench_decode" 64 7 "$threads"
run "$build/bench_memory" --batch 1 --model_config "$root/bench/gpt2_124m.json"
run "$build/bench_guide" "$root/data/gpt2"
run "$build/bench_tokenizer" "$root/data/gpt2" "$root/data/tinyshakespeare.txt"
run "$root/bench/bench_startup.sh" "$build"
run "$root/bench/bench_recompute.sh" "$build"
if command -v fio > /dev/null; then
    run "$root/bench/bench_checkpoint.sh" "$build" "$build"
    run "$root/bench/bench_aio.sh" "$build" "$build"
else
    echo "bench_checkpoint, bench_aio: left out, fio is not installed"
fi
# Two ranks of one host: against the bound, and against Open MPI where there is one.
ranks=("$build/deepspeed" --num_gpus 2)
if command -v mpirun > /dev/null; then
    ranks=(mpirun -n 2)
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 # in a container
fi
for operands in symmetric private; do
    collectives=("${ranks[@]}" "$build/ds_bench" --bound --operands "$operands")
    run "${collectives[@]}" --step 4 --max_size 8M --trials 15
    run "${collectives[@]}" --all_reduce --reduce_scatter --min_size 64M --max_size 64M --trials 9
    run "${collectives[@]}" --all_gather --min_size 32M --max_size 32M --trials 9 # 64 MiB in all
    run "${collectives[@]}" --all_reduce --reduce_scatter --min_size 1G --max_size 1G --trials 3 --warmups 1
    run "${collectives[@]}" --all_gather --min_size 512M --max_size 512M --trials 3 --warmups 1
done
run "$root/bench/bench_zero.sh" "$build"
run "$root/bench/bench_axes.sh" "$build" 1 4
run "$root/bench/bench_launch.sh" "$build"
if [ -n "${DS_BENCH_LONG:-}" ]; then
    run "$root/bench/bench_plan_time.sh" "$build"
    run "$root/bench/bench_plan_memory.sh" "$build"
    run "$root/bench/bench_offload.sh" "$build" "$build"
    run "$root/bench/bench_offload_xl.sh" "$build" "$build"
fi

python=${DS_BENCH_PYTHON:-}
if [ -z "$python" ]; then
    echo "PyTorch, tokenizers, DeepSpeed's CPUAdam: left out; name a python that has them in DS_BENCH_PYTHON"
    exit 0
fi
"$python" -c 'import torch; print("torch", torch.__version__)'
export CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS="$threads"
peer="'$python' '$root/bench/peer_gpt2_torch.py' --stepwise --warm 1 --threads $threads"
failed=0
run "$python" "$root/bench/bench_tokenizer.py" "$build/libdeepspeed.so" "$root/data/tinyshakespeare.txt" "$root/data/gpt2" || failed=1
if "$python" -c 'import deepspeed' 2> "$scratch/why"; then
    run "$build/bench_adamw" 134 7 "$threads" --peer "'$python' '$root/bench/peer_cpu_adam.py' --millions 134 --threads $threads 2> '$scratch/why'" ||
        { tail -5 "$scratch/why"; failed=1; }
else
    echo "AdamW against DeepSpeed's CPUAdam: left out, $python has no deepspeed"
fi
against() { # a peer that fails does not keep the others from running
    run "$build/bench_train" --dtype "$1" --threads "$threads" --peer "$peer --dtype $*" || { echo "FAILED: $*"; failed=1; }
}
against bf16
against bf16 --compile
against fp32
exit "$failed"
