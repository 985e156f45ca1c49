#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The accelerator cuda over the stand-in of its driver, all of it: both models in fp32 and bf16 (test_cuda_accel), every kernel over the large
# cases too (test_cuda_kernels), and each CUDA_WAITS-th wait taken out (default 1: every one; hours). Usage: cuda_standin.sh BUILD
set -euo pipefail
export DS_CUDA_ALL=1
"$1/test_cuda_accel"
"$1/test_cuda_kernels"
TMPDIR=/dev/shm "$1/sim_events" "${CUDA_WAITS:-1}" 12 cuda
