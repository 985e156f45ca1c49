#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Rows of matrix products alone, in runs and in the whole: many random products more than make check.
set -euo pipefail
DS_GEMM_BITS_CASES=${GEMM_BITS_CASES:-20000} "$1/test_gemm_bits" > "$1/gemm_bits.log" 2>&1 || { tail -n 30 "$1/gemm_bits.log"; exit 1; }
echo "gemm_bits: ${GEMM_BITS_CASES:-20000} products, no difference"
