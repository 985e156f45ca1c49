#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow waits
# SIGINT, SIGTERM and SIGHUP at random moments of every tool's long work, and pipes that nobody writes to: said after a second.
# DS_SIGNAL_CASES (18) and DS_SIGNAL_SEED (1) choose how many and which.
set -u
bin=$(realpath "$1")
export root=$DS_SOURCE_DIR bin
work=$(mktemp -d "$1/signals.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
head -c 60000 "$root/data/tinyshakespeare.txt" > text.txt
for _ in $(seq 400); do cat text.txt; done > big.txt
mkfifo pipe
echo '{"train_batch_size": 8, "steps_per_print": 1000, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}' > ds.json
"$bin/ds_train" --model_config "$root/test/common/gpt2.json" --tokenizer bytes --seq_length 16 --threads 1 --data text.txt \
    --deepspeed_config ds.json --steps 1 --output saved > setup.txt 2>&1 || { cat setup.txt; exit 1; }
failed=0
# waits TOOL ARGS…: it says which pipe it waits for.
waits() {
    timeout 2.5 "$bin/$1" "${@:2}" > said.txt 2>&1 < /dev/null
    [ $? = 124 ] && grep -q 'waits for a process to write to the pipe pipe' said.txt || { echo "FAILED: $*: silent"; cat said.txt; touch wrong; }
}
model=(--model_config "$root/test/common/gpt2.json" --tokenizer bytes --seq_length 16)
waits ds_config check pipe &
waits ds_train "${model[@]}" --data text.txt --deepspeed_config pipe --steps 1 &
waits ds_plan --model_config "$root/test/common/gpt2.json" --deepspeed_config pipe &
waits deepspeed --hostfile pipe true &
waits ds_generate --model saved --tokenizer bytes --prompt_file pipe &
waits ds_elastic --config pipe &
wait
[ ! -e wrong ] || failed=1
# One with a writer is read to its end, and so is a pipe whose writer has gone before it is opened.
(sleep 0.3; cat text.txt) > pipe &
timeout 10 "$bin/ds_generate" --model saved --tokenizer bytes --max_new_tokens 1 --prompt_file pipe > said.txt 2>&1 < /dev/null
grep -q 'tokens' said.txt || { echo "FAILED: a pipe with a writer"; cat said.txt; failed=1; }
wait
echo 'To be' | (sleep 0.2; timeout 10 "$bin/ds_generate" --model saved --tokenizer bytes --max_new_tokens 1 --prompt_file /dev/stdin) > said.txt 2>&1
[ "${PIPESTATUS[1]}" = 0 ] || { echo "FAILED: a pipe whose writer has gone"; cat said.txt; failed=1; }
# Pipes as data, model or checkpoint are refused at once, by name.
for try in "ds_train ${model[*]} --data pipe --deepspeed_config ds.json --steps 1" "ds_data tokenize pipe --tokenizer bytes --output x" \
    "ds_data inspect pipe" "ds_checkpoint verify pipe"; do
    # shellcheck disable=SC2086
    timeout 5 "$bin/"$try > said.txt 2>&1 < /dev/null
    code=$?
    { [ $code != 0 ] && [ $code != 124 ] && grep -q pipe said.txt; } || { echo "FAILED: $try: exit $code"; cat said.txt; failed=1; }
done
# An output that cannot be written ends the run before its work.
for try in "ds_bench --profile /nonexistent/x" "ds_nvme_tune --nvme_dir . --output /nonexistent/x" \
    "ds_plan --model_config $root/test/common/gpt2.json --deepspeed_config pipe --json /nonexistent/x" \
    "ds_plan --model_config $root/test/common/gpt2.json --deepspeed_config pipe --html /nonexistent/x" \
    "ds_plan --model_config $root/test/common/gpt2.json --deepspeed_config pipe --trace /nonexistent/x"; do
    # shellcheck disable=SC2086
    timeout 5 "$bin/"$try > said.txt 2>&1 < /dev/null
    code=$?
    { [ $code != 0 ] && [ $code != 124 ] && grep -q '/nonexistent' said.txt; } || { echo "FAILED: $try: exit $code"; cat said.txt; failed=1; }
done
python3 "$root/test/tools/signals.py" || failed=1
exit $failed
