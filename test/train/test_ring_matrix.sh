#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# The determinism law where keys and values travel between two ranks, in halves: rows of the covering matrix of test_zero_matrix.sh. Usage:
# test_ring_matrix.sh BUILD
DS_MATRIX_WITH="sp=2 ring=2" DS_MATRIX_ROWS=${DS_MATRIX_ROWS:-8} DS_MATRIX_SEED=${DS_MATRIX_SEED:-6} exec bash "$(dirname "$0")/test_zero_matrix.sh" "$1"
