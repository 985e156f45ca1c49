#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Folders of embeddings that ds_train writes, read by sentence-transformers: see sentence_folders.py. Usage: sentence_folders.sh BUILD.
# Needs DS_ORACLE_PYTHON (a Python with sentence-transformers); without it it is skipped (77).
set -euo pipefail
[ -n "${DS_ORACLE_PYTHON:-}" ] || { echo "skipped: DS_ORACLE_PYTHON"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$DS_ORACLE_PYTHON" "$(dirname "$0")/sentence_folders.py" "$(realpath "$1")" "$scratch"
