#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ds_serve and ds_generate give the same greedy text, family by family (serve_families.py).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/serve_families.py" "$1" "$here/../.."
