#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# --column_map and --skip_bad of ds_train: what is read, counted and said; a resume or a rank with other columns is another run.
# Usage: test_data_columns.sh BUILD
set -euo pipefail
build=$1
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 1 32 4 256
echo '{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}' > ds.json
for i in $(seq 40); do
    printf '{"question": "q%d", "better": "an answer %d", "worse": "no answer %d"}\n' "$i" "$i" "$i"
done > data.jsonl
sed -i '7s/.*/{"question": 7, "better": "b"}/; 9s/.*/{"question": /' data.jsonl
train() { # FLAGS…
    "$build/ds_train" --model_config llama.json --deepspeed_config ds.json --tokenizer bytes --data data.jsonl --seq_length 64 --threads 1 "$@" > log 2>&1
}
better=(--column_map prompt=question,completion=better)
worse=(--column_map prompt=question,completion=worse)

! train --steps 2 || fail "rows of no schema were trained on"
grep -qF 'data.jsonl:1: expected "text", "messages"' log || fail "no schema"
! train "${better[@]}" --steps 2 --skip_bad 1 || fail "two bad rows where one may be"
grep -qF 'data.jsonl:9: column 12: ' log || fail "the second bad row"
grep -qF '(and 1 bad rows before, as many as may be)' log || fail "the first bad row"
train "${better[@]}" --steps 2 --skip_bad 2 --output out || fail "a run that leaves two rows out"
grep -qF 'data.jsonl:7: left out: "question" and "better" must both be strings' log || fail "the reason"
grep -qF 'data: 2 bad rows were left out' log || fail "the count"

! train "${worse[@]}" --steps 4 --skip_bad 2 --output out --resume || fail "resumed with other columns"
grep -qF 'the saved data cursor is of other data' log || fail "what differs in a resume"
train "${better[@]}" --steps 4 --skip_bad 5 --output out --resume || fail "resumed with the same rows"

! train --column_map text=content --data ds.json --steps 2 || fail "a column that no row has"
seq 1 400 > data.txt
! "$build/ds_train" --model_config llama.json --deepspeed_config ds.json --tokenizer bytes --data data.txt --column_map text=a --steps 1 > log 2>&1 ||
    fail "columns of a text"
grep -qF -- '--column_map: no file of --data has rows' log || fail "columns of a text"

cat > rank.sh <<SH
#!/bin/sh
[ "\$RANK" = 1 ] && columns=worse || columns=better
exec "$build/ds_train" --model_config llama.json --deepspeed_config ds.json --tokenizer bytes --data data.jsonl --seq_length 64 --threads 1 \\
    --column_map prompt=question,completion=\$columns --skip_bad 2 --steps 2
SH
chmod +x rank.sh
! "$build/deepspeed" --num_gpus 2 ./rank.sh > log 2>&1 || fail "ranks with other columns"
grep -qF 'column_map: prompt=question,completion=worse' log || fail "the rank that differs"
