#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# The determinism law where experts are shared by two ranks: rows of the covering matrix of test_zero_matrix.sh. Usage:
# test_expert_matrix.sh BUILD
DS_MATRIX_WITH="ep=2 model=mixtral8" DS_MATRIX_ROWS=${DS_MATRIX_ROWS:-8} DS_MATRIX_SEED=${DS_MATRIX_SEED:-4} exec bash "$(dirname "$0")/test_zero_matrix.sh" "$1"
