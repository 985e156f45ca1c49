#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# A rank that dies, hangs, leaves or differs is named within ten seconds (the watchdog set to five), no process and no
# shared memory is left over, and the last checkpoint is whole. Usage: test_ranks_fail.sh BUILD
set -euo pipefail
# A /dev/shm of its own, where the system lets it: what is left there is then this test's, whatever others do meanwhile.
if [ -z "${DS_TEST_SHM:-}" ] && unshare --mount mount -t tmpfs tmpfs /dev/shm 2> /dev/null; then
    DS_TEST_SHM=own exec unshare --mount bash -c 'mount -t tmpfs tmpfs /dev/shm && exec bash "$0" "$@"' "$0" "$@"
fi
build=$1
root=${DS_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"; pkill -KILL -f "$scratch" 2> /dev/null || true' EXIT
export DEEPSPEED_TIMEOUT=0.0833 # minutes: five seconds
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE

cat > "$scratch/config.json" <<'JSON'
{"train_batch_size": 32, "steps_per_print": 20, "optimizer": {"type": "AdamW", "params": {"lr": 2e-3}},
 "bf16": {"enabled": true}, "zero_optimization": {"stage": 2}}
JSON
sed 's/2e-3/3e-3/' "$scratch/config.json" > "$scratch/other.json"
train=(--model_config "$root/test/common/gpt2.json" --tokenizer bytes --data "$root/data/tinyshakespeare.txt"
    --seq_length 64 --steps 1000000 --output "$scratch/out" --save_interval 10 --threads 1)

fail() {
    echo "FAILED: $1"
    cat "$scratch/log"
    exit 1
}
has() { grep -qE -- "$1" "$scratch/log" || fail "$case: no line with \"$1\""; }

# Starts a job in the background; waits for its first checkpoint.
start() { # PROGRAM…
    rm -rf "$scratch/out"
    : > "$scratch/log"
    "$build/deepspeed" --num_gpus 2 "$@" > "$scratch/log" 2>&1 &
    job=$!
    for ((i = 0; i < 600; ++i)); do
        [ ! -e "$scratch/out/latest" ] || return 0
        kill -0 "$job" 2> /dev/null || return 0
        sleep 0.1
    done
    fail "$case: no checkpoint after a minute"
}
rank_pid() { # RANK
    local pid
    for pid in $(pgrep -f "ds_train.* --output $scratch/out"); do
        if tr '\0' '\n' < "/proc/$pid/environ" 2> /dev/null | grep -qx "RANK=$1"; then
            echo "$pid"
            return
        fi
    done
}
# Waits for the end of the job: at most SECONDS from now, with a failure; then nothing may be left.
ends() { # SECONDS; DS_KEEP_LOGS=FOLDER keeps what was printed, for docs/when-it-hangs.md
    local begin=$SECONDS code=0
    wait "$job" || code=$?
    [ "$code" -ne 0 ] || fail "$case: the job's exit code is 0"
    [ $((SECONDS - begin)) -le "$1" ] || fail "$case: it took $((SECONDS - begin)) s to end"
    [ -z "${DS_KEEP_LOGS:-}" ] || cp "$scratch/log" "$DS_KEEP_LOGS/${case// /_}.log"
    sleep 0.2
    [ -z "$(pgrep -f -- "--output $scratch/out" || true)" ] || fail "$case: a process is left over"
    echo "$case: ended with code $code within $((SECONDS - begin)) s"
}
whole() {
    "$build/ds_checkpoint" verify "$scratch/out" > "$scratch/verify" 2>&1 ||
        { cat "$scratch/verify"; fail "$case: the last checkpoint is not whole"; }
}
shared() { # else only the names that this library could give
    if [ "${DS_TEST_SHM:-}" = own ]; then ls -A /dev/shm; else ls /dev/shm | grep -E '^(ds|deepspeed)' | grep -v '^ds_test_' || true; fi
}
shm_before=$(shared)

case="kill -9"
start "$build/ds_train" "${train[@]}" --deepspeed_config "$scratch/config.json"
kill -KILL "$(rank_pid 1)"
ends 10
has 'rank 1 .*killed by SIGKILL' # the launcher; rank 0 may be ended before it has said the same
has 'what +it was killed by SIGKILL'
whole

case="SIGSTOP"
start "$build/ds_train" "${train[@]}" --deepspeed_config "$scratch/config.json"
kill -STOP "$(rank_pid 1)"
ends 10
has 'rank 1 .*stopped by (a signal|SIGSTOP)'
has '(in training|after) step [0-9]+: .*rank 1 ' # missing, or stopped after it had arrived
has 'reduce_scatter|all_gather'
whole

case="an exit in the middle"
cat > "$scratch/leave.sh" <<'SH'
#!/bin/sh
[ "$RANK" = 1 ] || exec "$@"
"$@" &
child=$!
while [ ! -e "$OUT/latest" ]; do sleep 0.05; done
kill -KILL $child
exit 3
SH
chmod +x "$scratch/leave.sh"
OUT="$scratch/out" start "$scratch/leave.sh" "$build/ds_train" "${train[@]}" --deepspeed_config "$scratch/config.json"
ends 10
has 'rank 1'
has 'exit code 3|missing: rank 1'
whole

case="a rank with another configuration"
cat > "$scratch/differ.sh" <<SH
#!/bin/sh
[ "\$RANK" = 1 ] && exec "$build/ds_train" "\$@" --deepspeed_config "$scratch/other.json"
exec "$build/ds_train" "\$@" --deepspeed_config "$scratch/config.json"
SH
chmod +x "$scratch/differ.sh"
start "$scratch/differ.sh" "${train[@]}"
ends 10
has 'rank 1 has another configuration than rank 0: rank 0 has "optimizer.params.lr: 0.002", rank 1 has "optimizer.params.lr: 0.003"'

case="a rank with another binary"
head -c 36 /dev/zero > "$scratch/id"
if objcopy --dump-section .note.gnu.build-id="$scratch/id" "$build/ds_train" "$scratch/none" 2> /dev/null; then
    printf '\377' | dd of="$scratch/id" bs=1 seek=20 conv=notrunc 2> /dev/null
    objcopy --update-section .note.gnu.build-id="$scratch/id" "$build/ds_train" "$scratch/ds_train_other"
    cat > "$scratch/differ.sh" <<SH
#!/bin/sh
[ "\$RANK" = 1 ] && exec "$scratch/ds_train_other" "\$@"
exec "$build/ds_train" "\$@"
SH
    start "$scratch/differ.sh" "${train[@]}" --deepspeed_config "$scratch/config.json"
    ends 10
    has 'rank 1 has another model or configuration than rank 0: rank 0 has "program: [0-9a-f]*'
else
    fail "$case: the program has no build id"
fi

case="a full disk during a save"
cat > "$scratch/small.sh" <<'SH'
#!/bin/sh
[ "$RANK" != 1 ] || ulimit -f 2000 # blocks of 512 bytes or of 1 KiB: less than a shard
exec "$@"
SH
chmod +x "$scratch/small.sh"
start "$build/ds_train" "${train[@]}" --deepspeed_config "$scratch/config.json"
kill -INT "$job"
wait "$job" || true
whole
saved=$(cat "$scratch/out/latest")
"$build/deepspeed" --num_gpus 2 "$scratch/small.sh" "$build/ds_train" "${train[@]}" --deepspeed_config "$scratch/config.json" \
    --resume > "$scratch/log" 2>&1 &
job=$!
ends 60
has 'File too large'
[ "$(cat "$scratch/out/latest")" = "$saved" ] || fail "$case: latest moved"
whole

case="a closed terminal" # the shell and the kernel both send a SIGHUP, to the launcher; a rank may have both, too
start "$build/ds_train" "${train[@]}" --deepspeed_config "$scratch/config.json"
kill -HUP "$job"
for ((i = 0; i < 100; ++i)); do
    grep -q 'ends after this step' "$scratch/log" && break
    sleep 0.1
done
kill -HUP "$job"
kill -HUP "$(rank_pid 0)"
ends 30
has 'interrupted after step [0-9]*; go on with the same command and --resume'
whole

[ "$(shared)" = "$shm_before" ] || fail "shared memory is left over: $(shared)"
