#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Benchmarks use the instructions that this machine has, and say which. Usage: test_bench.sh BUILD
# labels: slow
set -euo pipefail
build=$1
fail() {
    echo "FAILED: $1"
    exit 1
}
runs() { # COMMAND…: its output in $text
    text=$("$@" 2>&1) || fail "$*: exit status $?: $text"
}
isa=$("$build/ds_report" | sed -n 's/^instruction set in use \.* //p')
case $isa in
ref) sums="plain C" vectors=ref ;;
avx2) sums=AVX2 vectors=avx2 ;;
*) sums=AVX-512 vectors=avx512 ;; # what has no products of bf16 is the same on all of these
esac

runs "$build/bench_adamw" 1 1 1
[[ $text == *"$vectors"* ]] || fail "bench_adamw does not use $vectors: $text"
runs "$build/bench_kernels" 1 sum_last
[[ $text == *"$vectors"* ]] || fail "bench_kernels does not use $vectors: $text"
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
(cd "$scratch" && runs "$build/bench_decode" 1 1 1)

[ -x "$build/bench_gemm" ] || { echo "bench_gemm: not built here"; exit 0; }
product=("$build/bench_gemm" --filter "qkv fwd" --repeats 1 --threads 1 --dtype)
runs "${product[@]}" f32
[[ $text == *"f32: peak of 1 threads "*", $sums fp32 multiply-adds"* ]] || fail "the peak of f32 is not of $sums: $text"
runs "${product[@]}" bf16
[[ $isa == avx512_bf16 || $isa == amx || $text == *"bf16: peak of 1 threads "*", $sums fp32 multiply-adds"* ]] ||
    fail "the peak of bf16 is not of $sums: $text"
# bench.sh reads the peer's dtype; where it is not ours, a line says so.
[[ $text =~ $'\nstep: ours '[0-9.]+' ms, oneDNN '(bf16|f32)' '[0-9.]+' ms' ]] || fail "no step of bf16: $text"
[[ ${BASH_REMATCH[1]} == bf16 || $text == *"bf16: oneDNN has no such product here"*"f32"* ]] || fail "f32 stands in unnamed: $text"
runs env DS_CPU_ISA=ref "$build/bench_gemm" --dtype f32 --filter none --threads 1
[[ $text == *"f32: peak of 1 threads "*", plain C fp32 multiply-adds"* ]] || fail "the peak does not follow DS_CPU_ISA: $text"
