#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The families in bf16 and their exports against transformers (families.py). DS_ORACLE_PYTHON names a Python with torch
# and transformers 5. Run by `make check-long`. Usage: families.sh BUILD
set -euo pipefail
if [ -z "${DS_ORACLE_PYTHON:-}" ]; then
    echo "families: not run: DS_ORACLE_PYTHON is not set"
    exit 77
fi
exec "$DS_ORACLE_PYTHON" "$(dirname "$0")/families.py" "$1"
