#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random adapters trained beside PEFT: heads, routers, experts, classes, T5. Usage: adapter_train.sh BUILD. Needs DS_ORACLE_PYTHON (a
# Python with torch, transformers and peft); without it it is skipped (77). DS_ADAPTER_CASES: how many, 200; DS_ADAPTER_SEED;
# DS_ADAPTER_FIRST: the first one, for a run in pieces; DS_ADAPTER_SECONDS: at most so long.
set -euo pipefail
[ -n "${DS_ORACLE_PYTHON:-}" ] || { echo "skipped: DS_ORACLE_PYTHON"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$DS_ORACLE_PYTHON" "$(dirname "$0")/adapter_train.py" "$(realpath "$1")" "$scratch" "${DS_ADAPTER_CASES:-200}" "${DS_ADAPTER_SEED:-1}" "${DS_ADAPTER_FIRST:-0}" \
    "${DS_ADAPTER_SECONDS:-1000000}"
