#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Folders of GPTQ, AWQ and compressed-tensors of random sizes, groups and orders: every bit of every weight as the packages' formulas
# give it, and of the matrices of the GGUF files that ds_quantize makes of them as PyPI's gguf reads and rounds.
# Usage: int4_random.sh BUILD. Needs DS_ORACLE_PYTHON (torch, safetensors, compressed-tensors, gguf); without it it is skipped (77).
# DS_INT4_CASES: how many seeds, 100; DS_INT4_SEED: the first.
set -euo pipefail
[ -n "${DS_ORACLE_PYTHON:-}" ] || { echo "skipped: DS_ORACLE_PYTHON"; exit 77; }
build=$(realpath "$1")
make=$(realpath "$(dirname "$0")/../golden/int4/make.py")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
first=${DS_INT4_SEED:-1}
same=0
refused=0
for ((seed = first; seed < first + ${DS_INT4_CASES:-100}; ++seed)); do
    rm -rf -- *
    "$DS_ORACLE_PYTHON" "$make" "$seed"
    files=()
    for folder in gptq gptq_v2 awq packed packed_zero fp8 fp8_whole fbgemm float_row float_block int_row int_group packed8 packed8_zero; do
        if "$build/test_int4" "$folder" > log 2>&1; then
            same=$((same + 1))
            for type in f32 q4_0 q8_0; do
                "$build/ds_quantize" --no_tokenizer --type $type "$folder" "$folder.$type.gguf" || { echo "FAIL: $folder of seed $seed"; exit 1; }
                files+=("$folder.$type.gguf" "$folder/plain")
            done
        elif grep -q ERR_UNSUPPORTED log; then
            refused=$((refused + 1))
            grep ERR_UNSUPPORTED log | head -n 1
        else
            echo "FAIL: $folder of seed $seed"
            tail -n 5 log
            exit 1
        fi
    done
    "$DS_ORACLE_PYTHON" "$(dirname "$make")/../../long/gguf_of_folder.py" "${files[@]}" || { echo "FAIL: seed $seed"; exit 1; }
done
echo "$same folders the same, $refused refused"
[ "$refused" -le $((same / 20)) ]
