#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Log-probabilities of prompts by ds_serve: serve_prompt_logprobs.py, which needs Python's own library alone.
set -u
build=$1
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
golden=$DS_SOURCE_DIR/test/golden
python3 "$DS_SOURCE_DIR/test/tools/serve_prompt_logprobs.py" "$build/ds_serve" "$golden/adapter/models/llama" "$golden/serve/prompt_logprobs.json"
