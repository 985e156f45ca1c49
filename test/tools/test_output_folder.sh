#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# What ds_train does to an --output that is not empty: an earlier run's checkpoints and model are replaced only with
# --overwrite, and removed only after the new run's first save; one process at a time writes there; a kill at any moment
# needs no work by hand. DS_OUTPUT_ROUNDS: kills tried (default 3), DS_OUTPUT_SEED.
set -euo pipefail
bin=$(realpath "$1")
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/output_folder.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() {
    echo "FAILED: $*"
    exit 1
}
head -c 3000 "$root/data/tinyshakespeare.txt" > text.txt
echo '{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}' > ds.json
sed 's/1e-3/0.002/' ds.json > new.json
base=(--model_config "$root/test/common/gpt2.json" --tokenizer bytes --seq_length 16 --threads 1 --data text.txt --deepspeed_config ds.json)
train() { # code, text, flags
    local want=$1 text=$2 code=0
    shift 2
    "$bin/ds_train" "${base[@]}" "$@" > log.txt 2>&1 || code=$?
    [ $code = "$want" ] || fail "exit $code, expected $want: $* $(tail -n 5 log.txt)"
    grep -qF -- "$text" log.txt || fail "expected '$text' with $*: $(tail -n 5 log.txt)"
}
# appears FILE PROCESS: waits for what the process makes, however busy the machine is.
appears() {
    for _ in $(seq 1200); do
        [ ! -f "$1" ] || return 0
        kill -0 "$2" 2> /dev/null || break
        sleep 0.05
    done
    fail "no $1 after a minute, or process $2 ended: $(tail -n 5 first.log kill.log 2> /dev/null)"
}
sums() { (cd "$1" && find . -type f | sort | xargs sha256sum); }
tags() { (cd "$1" && ls -d global_step* | tr '\n' ' '); }

# An earlier run is not replaced by accident, whatever it left: checkpoints, a model folder, either alone.
train 0 'model folder' --steps 4 --save_interval 2 --output out
[ "$(tags out)" = 'global_step2 global_step4 ' ] || fail "tags $(tags out)"
[ -z "$(find out -name '.*' -type f)" ] || fail "left: $(find out -name '.*')"
echo mine > out/notes.txt
sums out > before
train 1 '--output out holds checkpoints of an earlier run (global_step4)' --steps 1 --output out
grep -q -- '--resume' log.txt && grep -q -- '--overwrite' log.txt || fail "no way out: $(cat log.txt)"
train 1 'holds checkpoints' --steps 1 --keep_last 1 --output out/
mkdir model && cp out/config.json out/model.safetensors model
train 1 'holds a model folder (config.json)' --steps 1 --output model
mkdir other && : > other/pytorch_model.bin && echo theirs > other/readme
train 1 'holds a model folder (pytorch_model.bin)' --steps 1 --output other
train 2 '--resume and --overwrite exclude each other' --steps 9 --output out --resume --overwrite
train 2 '--overwrite needs --output' --steps 9 --overwrite
# A restart by the launcher goes on from its own checkpoints only.
DS_RESTART_COUNT=1 train 1 'holds checkpoints' --steps 1 --output out
sums out | cmp - before || fail "a refused run changed its folder"

# A run that ends before its first save removes nothing, and the one after it is told the same.
train 1 'none.txt' --steps 1 --output out --overwrite --data none.txt
sums out | cmp - before || fail "a run that failed to start changed the folder"
# The new run's checkpoints alone, and what others put there.
train 0 'model folder' --steps 1 --keep_last 3 --output out --overwrite
[ "$(tags out)" = 'global_step1 ' ] && [ "$(cat out/latest)" = global_step1 ] || fail "mixed: $(tags out)"
[ "$(cat out/notes.txt)" = mine ] || fail "a file of the user's is gone"
train 0 'resumed after step 1' --steps 2 --output out --resume
train 0 'model folder' --steps 1 --output other --overwrite
[ "$(cat other/readme)" = theirs ] || fail "a file of the user's is gone"

# Saves behind the first one are the new run's, whatever tag and inode the old ones had.
rm -rf again && train 0 'model folder' --steps 2 --save_interval 2 --output again
train 0 'model folder' --steps 2 --save_interval 1 --output again --overwrite
[ "$(tags again)" = 'global_step1 global_step2 ' ] && [ "$(cat again/latest)" = global_step2 ] || fail "lost its own: $(tags again)"
# A killed run's record is no reason for the restart of another run to go on from its checkpoints.
rm -rf dead && train 0 'model folder' --steps 2 --save_interval 1 --output dead
: > dead/.ds_begun
train 1 'holds checkpoints' --steps 1 --output dead
DS_RESTART_COUNT=1 train 1 'holds checkpoints' --steps 1 --output dead

# Two at once: the second is refused with the first's process; a killed one leaves no lock.
"$bin/ds_train" "${base[@]}" --steps 100000000 --save_interval 50 --keep_last 2 --output busy > first.log 2>&1 &
first=$!
appears busy/latest $first
train 1 "process $first on host $(hostname)" --steps 1 --output busy --resume
train 1 "process $first on host $(hostname)" --steps 1 --output busy --overwrite
kill -9 $first
wait $first 2> /dev/null || true # its lock ends with it
train 0 'resumed after step' --steps 1 --output busy --resume
grep -q 'flock' log.txt && fail "$(cat log.txt)"

# Killed at any moment of --overwrite: the folder is the old run's, or the new one's, and goes on.
seed=${DS_OUTPUT_SEED:-11}
RANDOM=$seed
old=0 new=0
train 0 'model folder' --steps 6 --save_interval 2 --output kill
for round in $(seq "${DS_OUTPUT_ROUNDS:-3}"); do
    rm -rf try && cp -a kill try
    "$bin/ds_train" "${base[@]}" --deepspeed_config new.json --steps 100000000 --save_interval 3 --keep_last 2 --output try --overwrite > kill.log 2>&1 &
    pid=$!
    sleep "0.$(printf %03d $((RANDOM % 250)))"
    kill -9 $pid
    wait $pid 2> /dev/null || true
    train 0 'resumed after step' --steps 1 --output try --resume
    if cmp -s kill/global_step2/ds_manifest.json try/global_step2/ds_manifest.json; then
        [ "$(tags try)" = "$(tags kill)" ] || fail "round $round, seed $seed: mixed: $(tags try)"
        sums kill | grep -E ' \./(global_step|latest)' > a
        sums try | grep -E ' \./(global_step|latest)' > b
        diff a b || fail "round $round, seed $seed: the old run was changed"
        old=$((old + 1))
    else
        for tag in $(tags try); do
            grep -q '0[.]002' "try/$tag/ds_manifest.json" || fail "round $round, seed $seed: $tag is of the old run"
        done
        new=$((new + 1))
    fi
    [ ! -e try/.ds_begun ] && [ ! -e try/.ds_lock ] || fail "round $round, seed $seed: left $(ls -A try)"
done
echo "killed during --overwrite: $old times the old run, $new times the new one, seed $seed"
# The launcher's restart after such a kill: the new run again, or from its own checkpoint.
rm -rf try && cp -a kill try
"$bin/ds_train" "${base[@]}" --deepspeed_config new.json --steps 100000000 --save_interval 3 --output try --overwrite > kill.log 2>&1 &
pid=$!
appears try/global_step9/ds_manifest.json $pid
kill -9 $pid
wait $pid 2> /dev/null || true
DS_RESTART_COUNT=1 train 0 'resumed after step' --steps 1 --output try --overwrite
