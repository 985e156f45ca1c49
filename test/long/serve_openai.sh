#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ds_serve as openai's own client uses it, and against transformers' greedy texts. Usage: serve_openai.sh BUILD. Needs DS_ORACLE_PYTHON (a
# Python with openai, torch and transformers); without it it is skipped (77). DS_SERVE_MODEL: a folder of a chat model; default: one
# of random weights with a tokenizer of bytes.
set -euo pipefail
[ -n "${DS_ORACLE_PYTHON:-}" ] || { echo "skipped: DS_ORACLE_PYTHON"; exit 77; }
[ -x "$1/ds_serve" ] || { echo "skipped: ds_serve is not built"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$DS_ORACLE_PYTHON" "$(dirname "$0")/serve_openai.py" "$(realpath "$1")/ds_serve" "$scratch" "${DS_SERVE_MODEL:-}"
