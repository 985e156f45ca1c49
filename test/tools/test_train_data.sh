#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_train's data: folders, patterns and weights; a resume on other data is refused, and begins it anew where that is asked.
# Usage: test_train_data.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 1 16 2 64
echo '{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}' > ds.json
mkdir -p set/more
for i in $(seq 200); do echo "{\"text\": \"number $i\"}"; done > set/a.jsonl
for i in $(seq 100); do echo "{\"text\": \"letter $i\"}"; done > set/more/b.jsonl
echo '{}' > set/dataset_info.json
seq 1 500 > other.txt

train() {
    "$build/ds_train" --model_config llama.json --deepspeed_config ds.json --tokenizer bytes --seq_length 16 --threads 1 \
        --lr_scheduler_type none "$@" > log 2>&1
}
# bad CODE TEXT FLAGS…
bad() {
    local code=0
    train "${@:3}" || code=$?
    [ "$code" = "$1" ] && grep -qF -- "$2" log || fail "exit $code, want $1 and \"$2\""
}

train --data set --steps 2 --output one || fail "a folder"
grep -q 'set: 2 data files; 1 other files are left out: dataset_info.json' log || fail "what is left out"
grep -q 'in 300 documents' log || fail "documents of a folder"
train --data set/a.jsonl set/more/b.jsonl --steps 2 --output two || fail "two files"
cmp one/model.safetensors two/model.safetensors || fail "a folder is its files"
train --data 'set/*/*.jsonl' --steps 1 || fail "a pattern"
grep -q 'in 100 documents' log || fail "documents of a pattern"

train --data set other.txt --data_weights 3 1 --eval_fraction 0.1 --steps 2 --output mixed || fail "weights"
train --data set other.txt --data_weights 3 1 --eval_fraction 0.1 --steps 4 --output whole || fail "weights, whole"
train --data set other.txt --data_weights 3 1 --eval_fraction 0.1 --steps 4 --output mixed --resume || fail "weights, resumed"
cmp whole/model.safetensors mixed/model.safetensors || fail "the resumed run differs"

bad 2 '--data_weights has 1 numbers for the 2 paths' --data set other.txt --data_weights 1 --steps 1
bad 2 'expected a number above 0, got "0"' --data set other.txt --data_weights 1 0 --steps 1
bad 2 '--restart_data needs --resume' --data set --restart_data --steps 1 --output new
bad 1 'no-such*: no file has this name, nor matches it' --data 'no-such*' --steps 1

bad 1 'other data or settings: n_tokens was' --data other.txt --steps 4 --output one --resume
grep -q -- '--restart_data keeps model and optimizer' log || fail "the way out is named"
train --data other.txt --steps 4 --output one --resume --restart_data || fail "other data"
grep -q 'the data begins anew' log && grep -q 'resumed after step 2' log || fail "what it says"
# started again by the launcher: it goes on within the new data
train --data other.txt --steps 8 --output two --resume --restart_data || fail "other data, whole"
DS_RESTART_COUNT=1 train --data other.txt --steps 8 --output one --resume --restart_data || fail "started again"
cmp one/model.safetensors two/model.safetensors || fail "started again, it goes on where it was"

# the cache: the same model as without it, from any number of ranks; the second run reads nothing
ranks() { "$build/deepspeed" --num_gpus 2 "$build/ds_train" --model_config llama.json --deepspeed_config ds.json --tokenizer bytes \
    --seq_length 16 --threads 1 --lr_scheduler_type none "$@" > log 2>&1; }
train --data set other.txt --data_weights 3 1 --eval_fraction 0.1 --steps 4 --output cached --data_cache cache || fail "cached"
cmp whole/model.safetensors cached/model.safetensors || fail "the cached run differs"
[ "$(grep -c 'tokenized once, into cache' log)" = 2 ] || fail "tokenized once"
train --data set other.txt --data_weights 3 1 --eval_fraction 0.1 --steps 6 --output cached --resume --data_cache none || fail "none"
! grep -q 'tokens of cache' log || fail "--data_cache none"
ranks --data set --steps 2 --output two_ranks --data_cache new || fail "two ranks"
[ "$(grep -c 'tokenized once' log)" = 1 ] || fail "one rank tokenizes"
ranks --data set --steps 2 --output two_again --data_cache new || fail "two ranks again"
grep -q 'tokens of new' log && ! grep -q 'tokenized once' log || fail "the second run finds it"
cmp two_ranks/model.safetensors two_again/model.safetensors || fail "two ranks, cached"
XDG_CACHE_HOME=$scratch/xdg train --data other.txt --steps 1 || fail "a default"
[ ! -e xdg ] || fail "small data is not cached"
: > in_the_way
bad 1 '--data_cache DIR puts it elsewhere' --data other.txt --steps 1 --data_cache in_the_way/cache
