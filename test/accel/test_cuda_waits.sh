#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Waits of plans taken out over the stand-ins of the driver and of NCCL: some of six plans of cuda_waits; each of all twenty-five:
# test/long/cuda_waits.sh. Usage: test_cuda_waits.sh BUILD
set -euo pipefail
export TMPDIR=/dev/shm
"$1/cuda_waits" 12 9 10
"$1/cuda_waits" 9 20 21
"$1/cuda_waits" 8 1 4
