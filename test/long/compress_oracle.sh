#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Loss and gradient norm of compressed models against torch with DeepSpeed's own quantizers and masks. Usage: compress_oracle.sh
# BUILD. Needs DS_ORACLE_PYTHON (a Python with torch and transformers) and DS_ORACLE_DEEPSPEED (the folder `deepspeed` of
# DeepSpeed 0.17.5's source archive); without them it is skipped (77).
set -euo pipefail
[ -n "${DS_ORACLE_PYTHON:-}" ] && [ -n "${DS_ORACLE_DEEPSPEED:-}" ] || { echo "skipped: DS_ORACLE_PYTHON, DS_ORACLE_DEEPSPEED"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$DS_ORACLE_PYTHON" "$(dirname "$0")/compress_oracle.py" "$(realpath "$1")" "$DS_ORACLE_DEEPSPEED" "$scratch"
