#!/usr/bin/env bash
# Builds and runs every benchmark; called by `make bench`. Installs what is missing. Leave the machine alone meanwhile.
# DS_BENCH_PYTHON=/path/to/python (with torch, tokenizers) adds the comparisons with PyTorch.
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
    (cd "$scratch" && "$@")
}
run "$build/bench_adamw" 134 11 "$threads"
run "$build/bench_kernels"
if [ -x "$build/bench_gemm" ]; then
    run "$build/bench_gemm"
else
    echo "bench_gemm: left out, oneDNN with OpenMP was not found"
fi
run "$build/bench_attention"
run "$build/bench_train" --dtype bf16 --threads "$threads" --profile
run "$build/bench_train" --dtype fp32 --threads "$threads" --steps 3 --profile
run "$build/bench_decode" 64 7 "$threads"
run "$root/bench/bench_startup.sh" "$build"
if command -v fio > /dev/null; then
    run "$root/bench/bench_checkpoint.sh" "$build" "$build"
else
    echo "bench_checkpoint: left out, fio is not installed"
fi

python=${DS_BENCH_PYTHON:-}
if [ -z "$python" ]; then
    echo "PyTorch: left out; name a python that has it in DS_BENCH_PYTHON"
    exit 0
fi
"$python" -c 'import torch; print("torch", torch.__version__)'
export CUDA_VISIBLE_DEVICES="" OMP_NUM_THREADS="$threads"
peer="'$python' '$root/bench/peer_gpt2_torch.py' --stepwise --threads $threads"
failed=0
against() { # a peer that fails does not keep the others from running
    run "$build/bench_train" --dtype "$1" --threads "$threads" --peer "$peer --dtype $*" || { echo "FAILED: $*"; failed=1; }
}
against bf16
against bf16 --compile
against fp32
exit "$failed"
