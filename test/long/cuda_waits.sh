#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each wait of the twenty-five plans of cuda_waits taken out over the stand-ins of the driver and of NCCL, one at a time: some order must give
# other bits (20 minutes on two cores). Then every tenth of those that are not needed: none may. CUDA_WAITS=N: each N-th, and each 10·N-th;
# CUDA_WAITS_PLANS: their numbers, else all. Usage: cuda_waits.sh BUILD
set -euo pipefail
export TMPDIR=/dev/shm
every=${CUDA_WAITS:-1}
read -ra plans <<< "${CUDA_WAITS_PLANS:-}"
"$1/cuda_waits" "$every" "${plans[@]}"
CUDA_WAITS_REDUNDANT=1 "$1/cuda_waits" $((10 * every)) "${plans[@]}"
