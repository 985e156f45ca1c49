#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The same random caches as test_hub.sh, more of them, and what huggingface_hub itself finds in them. Usage: hub_caches.sh BUILD.
# Needs DS_ORACLE_PYTHON, an interpreter with huggingface_hub. HUB_CACHES: how many (3000). HUB_SEED.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
if [ -z "${DS_ORACLE_PYTHON:-}" ]; then
    echo "hub_caches: not run: DS_ORACLE_PYTHON is not set"
    exit 77
fi
exec "$DS_ORACLE_PYTHON" "$here/../io/hub_caches.py" "$1/hub_find" "${HUB_CACHES:-3000}" "${HUB_SEED:-$RANDOM}" --oracle
