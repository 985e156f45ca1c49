#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# /v1/embeddings of ds_serve by openai's own client against transformers' hidden states. Usage: serve_embeddings.sh BUILD. Needs
# DS_ORACLE_PYTHON (a Python with openai, torch and transformers); without it it is skipped (77).
set -euo pipefail
[ -n "${DS_ORACLE_PYTHON:-}" ] || { echo "skipped: DS_ORACLE_PYTHON"; exit 77; }
[ -x "$1/ds_serve" ] || { echo "skipped: ds_serve is not built"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$DS_ORACLE_PYTHON" "$(dirname "$0")/serve_embeddings.py" "$(realpath "$1")" "$scratch"
