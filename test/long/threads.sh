#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The number of threads and the bits of a row, more cases than make check: training on each instruction set that the machine has (a
# higher one is the machine's own), rows of matrix products and queries of attention. Usage: threads.sh BUILD
set -euo pipefail
for isa in ref avx2 avx512 avx512_vnni avx512_bf16 amx; do
    echo "$isa: $(DS_CPU_ISA=$isa DS_THREADS_LONG=1 bash "$(dirname "$0")/../train/test_threads.sh" "$1")"
done
DS_ATTENTION_BITS_CASES=${ATTENTION_BITS_CASES:-10000} "$1/test_attention_bits" > "$1/attention_bits.log" 2>&1 || { tail -n 30 "$1/attention_bits.log"; exit 1; }
echo "attention_bits: ${ATTENTION_BITS_CASES:-10000} prompts, no difference"
