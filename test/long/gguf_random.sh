#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random models as GGUF files against transformers' reading of the same files. Usage: gguf_random.sh BUILD. Needs DS_ORACLE_PYTHON (a
# Python with torch, transformers and gguf); without it it is skipped (77). DS_GGUF_CASES: how many, 300; DS_GGUF_SEED.
set -euo pipefail
[ -n "${DS_ORACLE_PYTHON:-}" ] || { echo "skipped: DS_ORACLE_PYTHON"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$DS_ORACLE_PYTHON" "$(dirname "$0")/gguf_random.py" "$(realpath "$1")" "$scratch" "${DS_GGUF_CASES:-300}" "${DS_GGUF_SEED:-1}" 2> "$scratch/log" ||
    { tail -n 20 "$scratch/log" >&2; exit 1; }
