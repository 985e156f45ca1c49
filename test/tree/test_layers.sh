#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: tree
# The order of folders holds.
exec python3 "$DS_SOURCE_DIR/scripts/layers.py"
