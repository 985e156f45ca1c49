#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Models by their names in random Hugging Face caches, as another implementation finds them (hub_caches.py). Usage: test_hub.sh BUILD
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
exec python3 "$here/hub_caches.py" "$1/hub_find" "${HUB_CACHES:-100}" "${HUB_SEED:-1}"
