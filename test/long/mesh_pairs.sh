#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every ordered pair of 16 meshes: what one saves, the other resumes (MESHES: the first so many). Usage: mesh_pairs.sh BUILD
set -euo pipefail
build=$1
exec bash "$(dirname "$0")/../train/test_mesh_pairs.sh" "$build" "${MESHES:-16}"
