#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Whole tokenizer folders, random changes away from seven families', against transformers' AutoTokenizer: no difference, and at
# most 5 % refused of what it accepts, each reason with its count. FOLDERS (default 6000) of seed SEED (default: of the day).
# Also whether the table of classes is that of the installed transformers.
# Usage: tokenizer_folder.sh BUILD. Needs DS_ORACLE_PYTHON, a Python with transformers and sentencepiece. Some three minutes.
set -euo pipefail
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
if [ -z "${DS_ORACLE_PYTHON:-}" ]; then
    echo "tokenizer_folder: not run: DS_ORACLE_PYTHON is not set"
    exit 77
fi
scratch=$(mktemp -d "$build/tokenizer_folder.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
seed=${SEED:-$(date -u +%Y%m%d)}
echo "tokenizer_folder: ${FOLDERS:=6000} folders, seed $seed"
"$DS_ORACLE_PYTHON" "$root/test/golden/data/make_tokenizer_folders.py" --count "$FOLDERS" --seed "$seed" \
    --out "$scratch/folders.jsonl" 2> "$scratch/log" > /dev/null || { tail -n 20 "$scratch/log"; exit 1; }
DS_TOKENIZER_FOLDERS=$scratch/folders.jsonl "$build/test_tokenizer_folder"
"$DS_ORACLE_PYTHON" "$root/test/golden/data/make_tokenizer_folders.py" --bert --count $((FOLDERS / 4)) --seed "$seed" \
    --out "$scratch/bert.jsonl" 2> "$scratch/log" > /dev/null || { tail -n 20 "$scratch/log"; exit 1; }
DS_TOKENIZER_FOLDERS=$scratch/bert.jsonl "$build/test_tokenizer_folder"
"$DS_ORACLE_PYTHON" "$root/test/golden/data/make_tokenizer_folders.py" --roberta --count $((FOLDERS / 4)) --seed "$seed" \
    --out "$scratch/roberta.jsonl" 2> "$scratch/log" > /dev/null || { tail -n 20 "$scratch/log"; exit 1; }
DS_TOKENIZER_FOLDERS=$scratch/roberta.jsonl "$build/test_tokenizer_folder"
"$DS_ORACLE_PYTHON" "$root/test/golden/data/make_tokenizer_folders.py" --t5 --count $((FOLDERS / 4)) --seed "$seed" \
    --out "$scratch/t5.jsonl" 2> "$scratch/log" > /dev/null || { tail -n 20 "$scratch/log"; exit 1; }
DS_TOKENIZER_FOLDERS=$scratch/t5.jsonl "$build/test_tokenizer_folder"
"$DS_ORACLE_PYTHON" "$root/test/golden/data/make_tokenizer_folders.py" --t5 --nfkc --count 100 --texts $((FOLDERS / 30)) --seed "$seed" \
    --out "$scratch/nfkc.jsonl" 2> "$scratch/log" > /dev/null || { tail -n 20 "$scratch/log"; exit 1; }
DS_TOKENIZER_FOLDERS=$scratch/nfkc.jsonl "$build/test_tokenizer_folder"
"$DS_ORACLE_PYTHON" "$root/scripts/make_tokenizer_classes.py" "$scratch/table.c" 2> /dev/null
cmp "$scratch/table.c" "$root/src/data/tokenizer_class_table.c" ||
    echo "tokenizer_folder: the table of classes is of another transformers: run scripts/make_tokenizer_classes.py"
