#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: tree
# Every C file is formatted.
cd "$DS_SOURCE_DIR" || exit 1
files=$(git ls-files '*.c' '*.h' 2> /dev/null)
[ -n "$files" ] || files=$(find src include models tools test bench examples -name '*.[ch]')
# shellcheck disable=SC2086
exec clang-format --dry-run --Werror $files
