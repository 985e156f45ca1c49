#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random JSON schemas, texts that guides make of them, and the package jsonschema as the judge. Usage: guide_schemas.sh BUILD [N]. Needs
# DS_SCHEMA_PYTHON or DS_ORACLE_PYTHON (a Python with jsonschema; with rfc3339-validator it looks at dates, too); without it it is skipped (77).
set -euo pipefail
python=${DS_SCHEMA_PYTHON:-${DS_ORACLE_PYTHON:-}}
[ -n "$python" ] && "$python" -c "import jsonschema" 2> /dev/null || { echo "skipped: no Python with jsonschema"; exit 77; }
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$1/guide_random" "${2:-500}" 3 > "$scratch/texts"
"$python" "$(dirname "$0")/guide_schemas.py" "$scratch/texts"
