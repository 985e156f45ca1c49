#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Every output path of every tool, at every kind of place: see output_places.py.
exec python3 "$(dirname "$0")/output_places.py" "$1"
