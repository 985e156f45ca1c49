#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# comms_logger in a run of two ranks: rank 0 prints the tables at the end, what was logged fits the configuration, and
# the weights are those of a run without it. Usage: test_comms_logger.sh BUILD
set -euo pipefail
build=$1
root=$DS_SOURCE_DIR
work=$(mktemp -d "$build/comms_logger.XXXXXX")
trap 'rm -rf "$work"' EXIT
fail() {
    echo "FAILED: $1"
    exit 1
}
head -c 8000 "$root/README.md" > "$work/text.txt"
run() { # NAME SECTION: 3 steps of 2 micro-batches on 2 ranks
    echo "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 2, \"optimizer\": {\"type\": \"AdamW\"},
        \"steps_per_print\": 1, \"zero_optimization\": {\"stage\": 2, \"reduce_bucket_size\": 1e8} $2}" > "$work/$1.json"
    "$build/deepspeed" --num_gpus 2 "$build/ds_train" --model_config "$root/test/common/gpt2.json" \
        --tokenizer bytes --data "$work/text.txt" --seq_length 32 --steps 3 --deepspeed_config "$work/$1.json" \
        --metrics "$work/$1.jsonl" > "$work/$1.out" 2> "$work/$1.err" || fail "$1: $(cat "$work/$1.err")"
    grep -oE '"(loss|grad_norm)": ?[^,}]*' "$work/$1.jsonl" > "$work/$1.losses"
}
run off ''
run all ', "comms_logger": {"enabled": true}'
run some ', "comms_logger": {"enabled": true, "prof_all": false, "prof_ops": ["reduce_scatter_tensor"], "verbose": true, "debug": true}'
for name in all some; do
    [ "$(wc -l < "$work/$name.losses")" = 6 ] || fail "no losses in the metrics: $(cat "$work/$name.jsonl")"
    diff "$work/off.losses" "$work/$name.losses" || fail "the log changes the training"
done
if grep -q 'Comm. Op\|comm op:' "$work/off.out" "$work/off.err"; then fail "a log that was not asked for"; fi
table=$(cat "$work/all.out")
[ "$(grep -c '^Comm. Op            Message Size        Count               Total ' <<< "$table")" = 2 ] || fail "two tables: $table"
grep -q '^Breakdown with straggler effect$' <<< "$table" || fail "no straggler table: $table"
grep -qE '^Rank [01] waited least for the others \([0-9.]+ ms in all\), rank [01] most' <<< "$table" || fail "no verdict: $table"
# One bucket: a reduce_scatter of all gradients for each of 6 micro-batches.
reduced() { awk '/^[a-z]/ { op = $1 } /^ / && op == "reduce_scatter" { print $3; exit }'; }
[ "$(reduced <<< "$table")" = 6 ] || fail "expected 6 reduce_scatters: $table"
[ "$(grep -c '^all_gather' <<< "$table")" = 2 ] || fail "no all_gather: $table"
some=$(cat "$work/some.out")
if grep -q '^all_gather' <<< "$some"; then fail "only reduce_scatter was asked for: $some"; fi
grep -qE '^reduce_scatter \| \[Caller Func: backward: reduce_scatter of ' <<< "$some" || fail "no caller: $some"
[ "$(grep -cE 'comm op: reduce_scatter \| .* \| time \(ms\): [0-9.]+ \| msg size: .* \| algbw \(Gbps\): .* \| busbw \(Gbps\): ' "$work/some.err")" = 6 ] ||
    fail "not a line a call of rank 0: $(cat "$work/some.err")"
