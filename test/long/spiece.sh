#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Folders with models of SentencePiece, trained here, random changes away from twelve kinds, against transformers and sentencepiece
# (make_spiece_folders.py): no difference. FOLDERS (default 3000) of seed SEED (default: of the day), and a tenth of them with the
# map nmt_nfkc and more texts.
# Usage: spiece.sh BUILD. Needs DS_ORACLE_PYTHON, a Python with transformers and sentencepiece. Some five minutes.
set -euo pipefail
build=$(cd "$1" && pwd)
root=$(cd "$(dirname "$0")/../.." && pwd)
if [ -z "${DS_ORACLE_PYTHON:-}" ]; then
    echo "spiece: not run: DS_ORACLE_PYTHON is not set"
    exit 77
fi
scratch=$(mktemp -d "$build/spiece.XXXXXX")
trap 'rm -rf "$scratch"' EXIT
seed=${SEED:-$(date -u +%Y%m%d)}
echo "spiece: ${FOLDERS:=3000} folders, seed $seed"
make() { # NAME OPTIONS…
    "$DS_ORACLE_PYTHON" "$root/test/golden/data/make_spiece_folders.py" --seed "$seed" --out "$scratch/$1.jsonl" "${@:2}" \
        2> "$scratch/log" || { tail -n 20 "$scratch/log"; exit 1; }
    DS_TOKENIZER_FOLDERS=$scratch/$1.jsonl "$build/test_tokenizer_folder"
}
make small --count "$FOLDERS"
make nfkc --nfkc --count $((FOLDERS < 1000 ? 100 : FOLDERS / 10)) --texts 40
