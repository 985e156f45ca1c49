#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# A pipeline of two stages has the bits of the same samples without one, on half of the ranks, whatever the law names: rows of the covering
# matrix of test_zero_matrix.sh. Usage: test_pipe_matrix.sh BUILD
DS_MATRIX_WITH=${DS_MATRIX_WITH:-pp=2 zenflow=0} DS_MATRIX_AGAINST=flat=1 DS_MATRIX_ROWS=${DS_MATRIX_ROWS:-12} DS_MATRIX_SEED=${DS_MATRIX_SEED:-9} \
    exec bash "$(dirname "$0")/test_zero_matrix.sh" "$1"
