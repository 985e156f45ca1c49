#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: waits slow
# Offload to disk when something is wrong: a folder that is missing, full, shared by two jobs, a job killed in the middle, a
# disk that is slow or does not answer.
# Usage: test_offload_faults.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
scratch=$(mktemp -d)
mounted=""
slow=""
clean() {
    [ -z "$slow" ] || limit 0 || true
    [ -z "$slow" ] || rmdir "$slow" 2> /dev/null || true
    [ -z "$mounted" ] || umount "$mounted" 2> /dev/null || true
    rm -rf "$scratch"
}
trap clean EXIT
cd "$scratch"
fail() {
    echo "FAIL: $1"
    [ ! -e log ] || cat log
    exit 1
}

mkdir swap
cat > gpt.json << END
{"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 2, "n_head": 4,
 "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1}
END
config() { # FOLDER: prints a configuration that offloads to it
    cat << END
{"train_micro_batch_size_per_gpu": 2, "bf16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
 "steps_per_print": 1000, "zero_optimization": {"stage": 3, "sub_group_size": 8192, "stage3_param_persistence_threshold": 100,
  "offload_optimizer": {"device": "nvme", "nvme_path": "$1"}, "offload_param": {"device": "nvme", "nvme_path": "$1", "max_in_cpu": 0}}}
END
}
for i in $(seq 400); do echo "line $i: the quick brown fox jumps over the lazy dog"; done > text.txt
train() { # CONFIG, then flags
    local file=$1
    shift
    "$build/ds_train" --model_config gpt.json --tokenizer bytes --data text.txt --deepspeed_config "$file" --threads 1 "$@"
}
losses() { sed -nE 's/.*"loss":([0-9.]+).*/\1/p' "$1"; }

# the run to compare with, in memory
sed 's/"nvme"/"none"/g' <(config "$scratch/swap") > memory.json
train memory.json --steps 12 --metrics memory.jsonl > log 2>&1 || fail "the run in memory"
config "$scratch/swap" > disk.json

config "$scratch/none" > missing_states.json
sed "s|$scratch/none|$scratch/swap|" missing_states.json > missing_params.json # the first is the optimizer's
sed -i "s|\(offload_param.*nvme_path\": \"\)[^\"]*|\1$scratch/none|" missing_params.json
sed "s|\"bf16\"|\"activation_checkpointing\": {\"nvme_path\": \"$scratch/none\"}, &|" disk.json > missing_kept.json
for missing in states:offload_optimizer.nvme_path params:offload_param.nvme_path kept:activation_checkpointing.nvme_path; do
    ! train "missing_${missing%:*}.json" --steps 2 > log 2>&1 || fail "a missing folder was accepted ($missing)"
    grep -q "${missing#*:}: cannot write in folder $scratch/none: No such" log || fail "$missing: the missing folder is not named"
done

# two jobs share a folder: neither sees the other
train disk.json --steps 12 --metrics a.jsonl > log.a 2>&1 &
train disk.json --steps 12 --metrics b.jsonl > log 2>&1 || fail "the second of two jobs"
wait $! || { cp log.a log; fail "the first of two jobs"; }
for run in a b; do
    [ "$(losses $run.jsonl)" = "$(losses memory.jsonl)" ] || fail "job $run has other losses than in memory"
done
[ -z "$(ls -A swap)" ] || fail "files were left in the folder"

# killed in the middle: nothing is left, the last checkpoint is whole, and resuming gives the same run
# (the job itself is killed, not a shell around it)
(
    exec "$build/ds_train" --model_config gpt.json --tokenizer bytes --data text.txt --deepspeed_config disk.json --threads 1 \
        --steps 100000 --lr_scheduler_type none --save_interval 6 --keep_last 1 --output out --metrics killed.jsonl
) > log 2>&1 &
job=$!
for _ in $(seq 600); do
    [ "$(cat killed.jsonl 2> /dev/null | wc -l)" -lt 9 ] || break
    sleep 0.1
done
kill -9 $job
wait $job 2> /dev/null || true
[ -z "$(ls -A swap)" ] || fail "a killed job left files in the folder"
"$build/ds_checkpoint" verify out > log 2>&1 || fail "the checkpoint of a killed job"
step=$(sed -E 's/[^0-9]*//' out/latest)
train disk.json --steps $((step + 3)) --lr_scheduler_type none --output out --resume --metrics resumed.jsonl > log 2>&1 || fail "resuming after a kill"
train memory.json --steps $((step + 3)) --lr_scheduler_type none --metrics whole.jsonl > log 2>&1 || fail "the whole run"
[ "$(losses resumed.jsonl)" = "$(losses whole.jsonl | tail -n 3)" ] || fail "the resumed run has other losses"

# a full disk is said before anything starts
mkdir small
if mount -t tmpfs -o size=256k tmpfs small 2> /dev/null; then
    mounted=$scratch/small
    config "$scratch/small" > full.json
    ! train full.json --steps 2 > log 2>&1 || fail "a full disk was accepted"
    grep -qi "free\|space" log || fail "the full disk is not named"
else
    echo "the full disk was not tried: no file system can be mounted here"
fi
# a slow disk: a control group that may move so many bytes a second (root)
source=$(df --output=source "$scratch" | tail -n 1)
device=$(lsblk -dno MAJ:MIN "$source" 2> /dev/null | tr -d ' ' || true)
limit() { # BYTES a second; 0: none
    if [ -e "$slow/io.max" ]; then
        local n=$1
        [ "$n" != 0 ] || n=max
        echo "$device rbps=$n wbps=$n" > "$slow/io.max"
    else
        echo "$device $1" > "$slow/blkio.throttle.read_bps_device" && echo "$device $1" > "$slow/blkio.throttle.write_bps_device"
    fi
}
for group in /sys/fs/cgroup/blkio /sys/fs/cgroup; do
    if [ -n "$device" ] && [ -z "$slow" ] && mkdir "$group/ds_$$" 2> /dev/null; then
        slow=$group/ds_$$
        limit 4000000 2> /dev/null || { rmdir "$slow"; slow=""; }
    fi
done
if [ -n "$slow" ]; then
    for kind in slow stuck; do
        (
            echo "$BASHPID" > "$slow/cgroup.procs"
            [ $kind = slow ] || limit 0
            DEEPSPEED_TIMEOUT=$([ $kind = slow ] && echo 5 || echo 0.05) exec "$build/ds_train" --model_config gpt.json --tokenizer bytes \
                --data text.txt --deepspeed_config disk.json --threads 1 --steps "$([ $kind = slow ] && echo 12 || echo 1000000)" \
                --metrics $kind.jsonl
        ) > log 2>&1 &
        job=$!
        if [ $kind = slow ]; then
            wait $job || fail "the run on a slow disk"
            [ "$(losses slow.jsonl)" = "$(losses memory.jsonl)" ] || fail "a slow disk changes losses"
            tail -n 1 slow.jsonl | grep -qE '"disk_wait_s":(0\.[1-9]|[1-9])' || fail "a slow disk is not in the metrics"
            continue
        fi
        for _ in $(seq 300); do
            [ "$(cat stuck.jsonl 2> /dev/null | wc -l)" -lt 3 ] || break
            sleep 0.1
        done
        limit 1
        for _ in $(seq 100); do
            ! grep -q "does not answer" log || break
            sleep 0.1
        done
        limit 0 # the system keeps the process until the disk has answered
        ! wait $job || fail "a disk that does not answer is no error"
        grep -qE 'slow disk: waiting for .* s for the (read|write) of [0-9]+ bytes at offset [0-9]+ of .*/swap/.*; nothing' log ||
            fail "a disk that does not answer is not warned of"
        grep -qE 'in training step [0-9]+: step [0-9]+ \(swap_(in|out) of [a-z_]+ [a-z].*\): the disk does not answer' log ||
            fail "a disk that does not answer is not named"
    done
    [ -z "$(ls -A swap)" ] || fail "files were left in the folder"
else
    echo "the slow disk was not tried: no control group can limit $source here"
fi
echo "offload faults: passed"
