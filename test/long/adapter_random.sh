#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random adapter configurations against PEFT's merge_and_unload. Usage: adapter_random.sh BUILD. Needs DS_ORACLE_PYTHON (a Python
# with torch, transformers and peft); without it it is skipped (77). DS_ADAPTER_CASES: how many, 1000; DS_ADAPTER_SEED;
# DS_ADAPTER_SECONDS: at most so long.
set -euo pipefail
[ -n "${DS_ORACLE_PYTHON:-}" ] || { echo "skipped: DS_ORACLE_PYTHON"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$DS_ORACLE_PYTHON" "$(dirname "$0")/adapter_random.py" "$(realpath "$1")" "$scratch" "${DS_ADAPTER_CASES:-1000}" "${DS_ADAPTER_SEED:-1}" \
    "${DS_ADAPTER_SECONDS:-1000000}"
