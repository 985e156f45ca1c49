#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Where the lines of a run go: those that stay to standard output, plain; the live line and the curve to a terminal.
set -eu
bin=$1
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/train_terminal.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "$1" >&2; exit 1; }

head -c 9000 "$root/docs/config.md" > text.txt
echo '{"train_batch_size": 2, "steps_per_print": 2, "optimizer": {"type": "AdamW"}}' > ds.json
train=("$bin/ds_train" --model_config "$root/test/common/gpt2.json" --tokenizer bytes --data text.txt --seq_length 16
    --threads 1 --steps 5 --deepspeed_config ds.json --eval_fraction 0.1)

# No terminal: a line every steps_per_print steps and at the end, nothing that moves a cursor, none on standard error.
"${train[@]}" > out 2> err
[ "$(grep -o '^step [0-9]*/5' out | tr '\n' ' ')" = 'step 2/5 step 4/5 step 5/5 ' ] || fail "lines: $(cat out)"
grep -q '^step 5  validation loss' out || fail "evaluation: $(cat out)"
grep -q '^summary: 5 steps in .* tok/s; loss .* from .*; validation loss .*; memory .* planned.*; 0 skipped; 0 saved$' out ||
    fail "summary: $(cat out)"
! grep -q $'\r\|\x1b\|┤' out || fail "control characters: $(cat -A out)"
! grep -q '^step [0-9]' err || fail "on standard error: $(cat err)"

# JSON on standard output stays alone there.
"${train[@]}" --metrics /dev/stdout > out 2> err
! grep -v '^{"step":.*}$' out || fail "metrics: $(cat out)"
grep -q '^step 4/5' err && grep -q '^summary: ' err || fail "lines beside metrics: $(cat err)"

# A terminal: the live line, lines that stay, the curve.
python3 - "${train[@]}" << 'END'
import os, pty, sys
said = b""
pid, end = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], sys.argv[1:])
while True:
    try:
        data = os.read(end, 65536)
    except OSError:
        break
    if not data:
        break
    said += data
assert os.waitpid(pid, 0)[1] == 0, said
lines = said.decode().split("\r\n")
shown = [line.split("\r\x1b[K")[-1] for line in lines]
for start in ("step 2/5  loss", "step 4/5  loss", "step 5/5  loss", "loss by step", "summary: 5 steps"):
    assert any(line.startswith(start) for line in shown), (start, shown)
assert "\r\x1b[Kstep 1/5" in said.decode(), said
assert any("┤" in line and ("▀" in line or "▄" in line) for line in shown), shown
assert not any(line.startswith("step 1/5") or line.startswith("step 3/5") for line in shown), shown
END
