#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_plan serve --quantize file beside the process that it plans: plan_serve_blocks.py. What it refuses.
set -u
build=$(realpath "$1")
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
source=$(cd "$(dirname "$0")/../.." && pwd)
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
refuse() { # what the message says, words of the command
    local says=$1 got
    shift
    got=$("$build/ds_plan" serve "$@" 2>&1) && { echo "FAILED: ds_plan serve $* was not refused"; exit 1; }
    [[ $got == *"$says"* ]] || { echo "FAILED: ds_plan serve $*: $got"; exit 1; }
}
golden=$source/test/golden
refuse "of --model_config it is not planned" --model_config "$golden/int4/gptq_run/config.json" --quantize file
refuse "none.gguf" --model none.gguf --quantize file
refuse "is a file: --model_revision" --model none.gguf --model_revision a
refuse "could stay as they are" --model "$golden/adapter/models/llama" --quantize file
python3 "$source/test/tools/plan_serve_blocks.py" "$build" "$dir"
