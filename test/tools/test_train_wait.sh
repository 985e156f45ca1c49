#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Ranks that wait for data longer than the watchdog's time are not taken for lost: here another process holds the lock of the
# cache's entry. Usage: test_train_wait.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 1 16 2 64
echo '{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}' > ds.json
seq 1 500 > a.txt
train() {
    DEEPSPEED_TIMEOUT=0.1 "$build/deepspeed" --num_gpus 2 "$build/ds_train" --model_config llama.json --deepspeed_config ds.json \
        --tokenizer bytes --seq_length 16 --threads 1 --data a.txt --steps 1 --data_cache cache > log 2>&1
}
train || { cat log; exit 1; }
entry=$(basename "$(find cache -mindepth 1 -type d)")
rm -r "cache/$entry"
flock "cache/$entry.lock" sleep 9 &
sleep 0.5
begin=$SECONDS
train || { cat log; echo "FAILED: waiting was taken for a loss"; exit 1; }
[ $((SECONDS - begin)) -ge 7 ] || { cat log; echo "FAILED: nobody waited"; exit 1; }
grep -q 'another process tokenizes this data' log || { cat log; echo "FAILED: nothing is said"; exit 1; }
wait
