#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The kernels of src/accel/cuda on the host layer over all cases of the harness, the large ones too; more draws of
# numbers that are not finite in attention.
set -euo pipefail
DS_CUDA_ALL=1 "$1/test_cuda_kernels"
DS_CUDA_TRIALS=12 "$1/test_cuda_odd"
