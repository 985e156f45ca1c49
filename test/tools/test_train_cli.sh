#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_train and ds_generate as a user runs them: metrics and monitors are written; a run that SIGINT ends in
# the middle goes on with --resume to the same model, byte for byte; folder and checkpoint generate the same.
set -euo pipefail
bin=$1
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/train_cli.XXXXXX")
trap 'rm -rf "$work"' EXIT
steps=20

fail() {
    echo "FAILED: $*"
    exit 1
}

cat > "$work/ds.json" << END
{
  "train_batch_size": 4, "gradient_accumulation_steps": 2, "steps_per_print": 5,
  "optimizer": {"type": "AdamW", "params": {"lr": 2e-3}},
  "bf16": {"enabled": true}, "gradient_clipping": 1.0,
  "csv_monitor": {"enabled": true, "output_path": "$work/csv", "job_name": "job"},
  "tensorboard": {"enabled": true, "output_path": "$work/tb", "job_name": "job"}
}
END
head -c 100000 "$root/data/tinyshakespeare.txt" > "$work/text.txt"

command_of() { # output folder, metrics file
    command=("$bin/ds_train" --model_config "$root/test/common/gpt2.json" --tokenizer bytes
        --data "$work/text.txt" --eval_fraction 0.1 --deepspeed_config "$work/ds.json" --steps $steps
        --threads 2 --output "$work/$1" --metrics "$work/$2")
}

command_of whole whole.jsonl
"${command[@]}" > "$work/whole.log" 2>&1 || fail "training: $(cat "$work/whole.log")"
[ "$(grep -c '"loss":' "$work/whole.jsonl")" = $steps ] || fail "metrics: $(cat "$work/whole.jsonl")"
grep -q '"eval_loss":' "$work/whole.jsonl" || fail "no evaluation in the metrics"
[ -n "$(find "$work/csv/job" -name '*loss*.csv' -size +0)" ] || fail "no CSV of the loss"
[ -n "$(find "$work/tb/job" -name 'events.out.tfevents.*' -size +0)" ] || fail "no TensorBoard file"

# Ended after a few steps: exit code 130 and a way to go on.
command_of parts parts.jsonl
"${command[@]}" > "$work/parts.log" 2>&1 &
pid=$!
for _ in $(seq 600); do
    [ "$(grep -c '"loss":' "$work/parts.jsonl" 2> /dev/null || true)" -ge 3 ] 2> /dev/null && break
    sleep 0.02
done
kill -INT $pid
code=0
wait $pid || code=$?
[ $code = 130 ] || fail "interrupted: exit $code: $(cat "$work/parts.log")"
grep -q 'interrupted after step .*--resume' "$work/parts.log" || fail "interrupted: $(cat "$work/parts.log")"
[ ! -e "$work/parts/model.safetensors" ] || fail "an interrupted run wrote the final model"
"${command[@]}" --resume > "$work/resumed.log" 2>&1 || fail "resume: $(cat "$work/resumed.log")"
grep -q 'resumed after step' "$work/resumed.log" || fail "resume: $(cat "$work/resumed.log")"
cmp "$work/whole/model.safetensors" "$work/parts/model.safetensors" || fail "the resumed run differs"

generate() {
    "$bin/ds_generate" "$@" --prompt "ROMEO:" --max_new_tokens 40 --threads 2 2> "$work/generate.log" ||
        fail "ds_generate $*: $(cat "$work/generate.log")"
    grep -q "accelerator: cpu (auto)$" "$work/generate.log" || fail "ds_generate does not say what computes"
}
generate --model "$work/whole" > "$work/a.txt"
generate --checkpoint "$work/whole" > "$work/b.txt"
grep -q 'ROMEO:' "$work/a.txt" || fail "no text: $(cat "$work/a.txt")"
cmp "$work/a.txt" "$work/b.txt" || fail "folder and checkpoint give other texts"

# What is not finite is null in the metrics: JSON has no word for it.
cat > "$work/diverges.json" << END
{
  "train_batch_size": 4, "optimizer": {"type": "SGD", "params": {"lr": 1e30}},
  "bf16": {"enabled": true, "check_grad_overflow": false}
}
END
"$bin/ds_train" --model_config "$root/test/common/gpt2.json" --tokenizer bytes --data "$work/text.txt" \
    --deepspeed_config "$work/diverges.json" --steps 3 --threads 2 --output "$work/diverges" \
    --metrics "$work/diverges.jsonl" > "$work/diverges.log" 2>&1 || true
python3 -c 'import json, sys
steps = [line for line in map(json.loads, open(sys.argv[1])) if "loss" in line]
assert len(steps) == 3 and steps[-1]["loss"] is None and steps[-1]["grad_norm"] == -1, steps' "$work/diverges.jsonl" ||
    fail "metrics of what is not finite: $(cat "$work/diverges.jsonl")"
