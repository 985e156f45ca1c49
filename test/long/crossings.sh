#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every family on stages, shared layers, sequences and experts, whole and with adapters (crossings.py).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/crossings.py" "$1" "$here/../.."
