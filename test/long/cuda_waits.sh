#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Each wait of the twenty-five plans of cuda_waits taken out over the stand-ins of the driver and of NCCL, one at a time: some order must give
# other bits. CUDA_WAITS=N: each N-th; CUDA_WAITS_PLANS: their numbers, else all (hours on two cores). Usage: cuda_waits.sh BUILD
set -euo pipefail
export TMPDIR=/dev/shm
# shellcheck disable=SC2086
exec "$1/cuda_waits" "${CUDA_WAITS:-1}" ${CUDA_WAITS_PLANS:-}
