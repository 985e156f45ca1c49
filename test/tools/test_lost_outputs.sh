#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# What is written of a run costs no training: with --metrics, a monitor or the trace on a full disk the run goes on, saves, writes its
# model folder, with the bits of a run without them, says at its end what is not whole, and exits with 1. What was written before the
# disk was full can be read to its last whole record. Readers see each step when it is done, and so does a run that is killed.
# Usage: test_lost_outputs.sh BUILD
set -euo pipefail
bin=$(realpath "$1")
# shellcheck source=test/common/tiny_llama.sh
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 1 8 1 32
seq 1 3000 > text.txt
config() { # FILE REST
    echo "{\"train_micro_batch_size_per_gpu\": 1, \"steps_per_print\": 1000000$2}" > "$1"
}
base=("$bin/ds_train" --model_config llama.json --tokenizer bytes --data text.txt --seq_length 8 --learning_rate 1e-3 --threads 1
    --lr_scheduler_type constant)
train() { # OUTPUT CONFIG FLAGS…
    "${launch[@]}" "${base[@]}" --output "$1" --deepspeed_config "$2" "${@:3}" > log 2>&1
}
launch=()
config plain.json ''
train right plain.json --steps 40 --report none || fail "a plain run"
whole() { # OUTPUT TEXT…: it failed, with these words, and lost nothing else
    [ "$code" = 1 ] || fail "$1: exit code $code"
    for text in "${@:2}"; do grep -q -- "$text" log || fail "$1: no '$text'"; done
    [ -e "$1/global_step40" ] || fail "$1: no checkpoint of the last step"
    cmp right/model.safetensors "$1/model.safetensors" || fail "$1: another model"
}
full() { # OUTPUT CONFIG FLAGS…
    code=0
    train "$1" "$2" --steps 40 --report none "${@:3}" || code=$?
}
full metrics plain.json --metrics /dev/full
whole metrics 'the run ended well, but cannot write --metrics /dev/full: No space left on device'
mkdir csv csv/j
ln -s /dev/full csv/j/Train_Samples_lr.csv
config csv.json ', "csv_monitor": {"enabled": true, "output_path": "csv", "job_name": "j"}'
full csvs csv.json
whole csvs 'the run ended well, but cannot write csv/j/Train_Samples_lr.csv: No space left on device; free some space, or set csv_monitor.enabled to false'
[ "$(grep -c 'cannot write csv/j' log)" = 2 ] || fail "the loss is said more than once and at the end"
[ "$(wc -l < csv/j/Train_Samples_train_loss.csv)" = 41 ] || fail "the other CSV files ended, too"
# Two ranks: rank 0 alone writes, and the others are not left.
launch=("$bin/deepspeed" --num_gpus 2 -q)
train right2 plain.json --steps 40 --report none || fail "a plain run of two ranks"
full metrics2 plain.json --metrics /dev/full
[ "$code" = 1 ] && cmp right2/model.safetensors metrics2/model.safetensors || fail "two ranks: code $code, or another model"
launch=()
# The trace: its place is taken once the run has begun.
train trace plain.json --steps 400 --metrics begun --trace taken --trace_steps 399 &
until [ -s begun ] || ! kill -0 $! 2> /dev/null; do sleep 0.01; done
mkdir taken
code=0
wait $! || code=$?
[ "$code" = 1 ] && [ -e trace/model.safetensors ] || fail "without its trace the run has no model folder, or code $code"
# Files that may not grow: each of them is readable to its last whole record.
config all.json ', "csv_monitor": {"enabled": true, "output_path": "small", "job_name": "j"}, "tensorboard": {"enabled": true, "output_path":
    "small", "job_name": "j"}, "wandb": {"enabled": true}, "comet": {"enabled": true, "samples_log_interval": 1}'
code=0
(ulimit -f 100 && train small plain.json --steps 1) || fail "the model alone is too large for this test"
(ulimit -f 100 && WANDB_DIR=. COMET_OFFLINE_DIRECTORY=comet train grown all.json --steps 4000 --report none --metrics grown.jsonl) || code=$?
[ "$code" = 1 ] && [ -e grown/model.safetensors ] || fail "files that may not grow: exit code $code"
python3 - << 'END'
import glob, json, struct, zipfile, csv
data = open(glob.glob("small/j/events*")[0], "rb").read()
at = n = 0
while at < len(data):
    (length,) = struct.unpack_from("<Q", data, at)
    at += 8 + 4 + length + 4
    n += 1
assert at == len(data) and n > 500, ("TensorBoard", at, len(data), n)
for name in glob.glob("small/j/*.csv"):
    rows = list(csv.reader(open(name)))
    assert all(len(r) == 2 for r in rows) and open(name).read().endswith("\n"), name
(archive,) = glob.glob("comet/*.zip")
lines = zipfile.ZipFile(archive).read("messages.json").decode().splitlines()
assert len([json.loads(line) for line in lines]) > 100
END
# Killed: what the steps wrote is there.
config tb.json ', "csv_monitor": {"enabled": true, "output_path": "dead", "job_name": "j"}, "tensorboard": {"enabled": true, "output_path":
    "dead", "job_name": "j"}'
train dead tb.json --steps 100000000 --metrics dead.jsonl --report none &
until [ -s dead.jsonl ] && [ "$(wc -l < dead.jsonl)" -ge 3 ]; do sleep 0.01; done
pid=$(pgrep -P $! ds_train || echo $!)
kill -9 "$pid"
wait $! 2> /dev/null || true
python3 - << 'END'
import glob
steps = sum(1 for line in open("dead.jsonl") if '"loss":' in line)
rows = len(open("dead/j/Train_Samples_train_loss.csv").read().splitlines()) - 1
events = open(glob.glob("dead/j/events*")[0], "rb").read().count(b"Train/Samples/train_loss")
assert steps - 1 <= rows <= steps and steps - 1 <= events <= steps, (steps, rows, events)
END
echo "what is written of a run costs no training"
