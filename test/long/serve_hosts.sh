#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Random fronts of ds_serve over hosts (addresses of this machine, through a real sshd), whose servers and connections are killed and
# stopped under load, for TEST_SECONDS (default 3600): serve_hosts.py. Usage: serve_hosts.sh BUILD
set -u
build=$(realpath "$1")
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
source=$(cd "$(dirname "$0")/../.." && pwd)
# shellcheck source=test/common/tiny_llama.sh
. "$source/test/common/tiny_llama.sh" 2 32 2 2048
trap 'sshd_end; rm -rf "$scratch"' EXIT
# shellcheck source=test/common/sshd_hosts.sh
. "$source/test/common/sshd_hosts.sh"
head -c 20000 "$source/data/tinyshakespeare.txt" > data.txt
"$build/ds_train" --model_config llama.json --tokenizer bytes --data data.txt --seq_length 64 --micro_batch 8 --max_steps 20 \
    --learning_rate 1e-2 --output out > log 2>&1 || fail "training"
python3 "$source/test/long/serve_hosts.py" "$build/ds_serve" out "$port" "${SEED:-$RANDOM}" "${TEST_SECONDS:-3600}"
