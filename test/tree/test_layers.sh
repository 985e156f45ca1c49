#!/usr/bin/env bash
# labels: tree
# The order of folders holds.
exec python3 "$DS_SOURCE_DIR/scripts/layers.py"
