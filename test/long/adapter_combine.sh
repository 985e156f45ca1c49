#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random adapters that are made one, beside PEFT. Usage: adapter_combine.sh BUILD. Needs DS_ORACLE_PYTHON (a Python with torch,
# transformers and peft); without it it is skipped (77). DS_ADAPTER_CASES: how many, 100; DS_ADAPTER_SEED; DS_ADAPTER_FIRST.
set -euo pipefail
[ -n "${DS_ORACLE_PYTHON:-}" ] || { echo "skipped: DS_ORACLE_PYTHON"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$DS_ORACLE_PYTHON" "$(dirname "$0")/adapter_combine.py" "$(realpath "$1")" "$scratch" "${DS_ADAPTER_CASES:-100}" "${DS_ADAPTER_SEED:-1}" "${DS_ADAPTER_FIRST:-0}"
