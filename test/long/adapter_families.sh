#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random adapters of every family against PEFT's logits, beside the model and merged: adapter_families.sh BUILD. Needs DS_ORACLE_PYTHON, a
# Python with torch, transformers and peft; without it it is skipped (77). DS_ADAPTER_CASES (200), DS_ADAPTER_SEED (the day),
# DS_ADAPTER_SECONDS.
set -euo pipefail
[ -n "${DS_ORACLE_PYTHON:-}" ] || { echo "skipped: DS_ORACLE_PYTHON"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$DS_ORACLE_PYTHON" "$(dirname "$0")/adapter_families.py" "$(realpath "$1")" "$scratch" "${DS_ADAPTER_CASES:-200}" \
    "${DS_ADAPTER_SEED:-$(date +%Y%m%d)}" "${DS_ADAPTER_SECONDS:-1e9}"
