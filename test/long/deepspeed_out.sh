#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Folders for DeepSpeed for Python: it loads them and goes on; the order of parameters is that of transformers' modules. Usage:
# deepspeed_out.sh BUILD. Needs DS_ORACLE_PYTHON (a Python with torch, transformers and deepspeed); without it it is skipped (77).
# DS_DEEPSPEED_CASES: numbers and model types of deepspeed_out.py, SOURCE:OTHER of a folder like another, and "like" for all of those; all.
set -euo pipefail
[ -n "${DS_ORACLE_PYTHON:-}" ] || { echo "skipped: DS_ORACLE_PYTHON"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
# shellcheck disable=SC2086
"$DS_ORACLE_PYTHON" "$(dirname "$0")/deepspeed_out.py" "$(dirname "$0")/../golden/deepspeed" "$(realpath "$1")" "$scratch" ${DS_DEEPSPEED_CASES:-}
