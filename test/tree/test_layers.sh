#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: tree
# The order of folders holds, by includes and by the symbols of the objects that were built.
set -euo pipefail
layers=$DS_SOURCE_DIR/scripts/layers.py
python3 "$layers" "$1"
# what it is to find, in objects of our making: a call to the right, a secret of the library in models/, functions without a caller
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
object() { # SOURCE, its text from stdin
    mkdir -p "$dir/CMakeFiles/x.dir/$(dirname "$1")"
    cc -x c -c -o "$dir/CMakeFiles/x.dir/$1.o" -
}
object src/base/pool.c <<< 'void dsi_probe(void); void dsi_lonely(void) { dsi_probe(); }'
object src/train/engine_run.c <<< 'void dsi_probe(void) {} void dsi_tested(void) {}'
object models/gpt2.c <<< 'void dsi_probe(void); void ds_family_gpt2(void) { dsi_probe(); }'
object models/families.c <<< 'void ds_family_gpt2(void); void ds_model_trace(void) { ds_family_gpt2(); }'
object test/train/test_engine.c <<< 'void dsi_tested(void); int main(void) { dsi_tested(); return 0; }'
object tools/ds_train.c <<< 'void dsi_probe(void); void ds_family_gpt2(void); int main(void) { dsi_probe(); ds_family_gpt2(); return 0; }'
if found=$(python3 "$layers" "$dir"); then echo "objects out of order were not found"; exit 1; fi
want="models/gpt2.c: models must not use dsi_probe of src/train/engine_run.c
src/base/pool.c: base must not use dsi_probe of src/train/engine_run.c
src/base/pool.c: dsi_lonely: no other file uses it: make it static, or delete it
src/train/engine_run.c: dsi_tested: only tests use it: move it to test/, or delete it
tools/ds_train.c: uses ds_family_gpt2 of models/gpt2.c, which is not public"
[ "$(LC_ALL=C sort <<< "$found")" = "$want" ] || { diff <(echo "$want") <(LC_ALL=C sort <<< "$found"); exit 1; }
