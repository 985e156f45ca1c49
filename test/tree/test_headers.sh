#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: tree
# Public headers: all are in deepspeed.h, structs have room to grow, each compiles alone as C11 and C++17.
set -euo pipefail
python3 "$DS_SOURCE_DIR/scripts/headers.py"
for header in "$DS_SOURCE_DIR"/include/deepspeed/*.h; do
    cc -std=c11 -Wall -Wextra -Wpedantic -Werror -I "$DS_SOURCE_DIR/include" -fsyntax-only -x c - <<< "#include <deepspeed/${header##*/}>"
done
c++ -std=c++17 -Wall -Wextra -Wpedantic -Werror -I "$DS_SOURCE_DIR/include" -fsyntax-only -x c++ - <<< "#include <deepspeed/deepspeed.h>"
