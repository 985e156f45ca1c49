#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The whole covering matrix of options where layers are shared by two ranks, and by four: the same bits whatever the ZeRO stage,
# bucket, overlap, transport, residency, recomputation, threads, resume. Usage: tensor_matrix.sh BUILD
set -euo pipefail
for tp in 2 4; do
    DS_MATRIX_WITH=tp=$tp DS_MATRIX_SEED=${SEED:-$tp} bash "$(dirname "$0")/../train/test_zero_matrix.sh" "$1"
done
