#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# The sections "wandb" and "comet": a run of W&B and an experiment of Comet kept offline, read back by test/tools/offline_runs.py,
# which shares no code with them, and compared with --metrics. test/long/offline_runs.sh reads them with the packages themselves.
# Ends of runs, names, environment, what is refused; the API key is in no file.
set -euo pipefail
bin=$(realpath "$1")
read=$DS_SOURCE_DIR/test/tools/offline_runs.py
work=$(mktemp -d "$1/offline_runs.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
unset WANDB_DIR WANDB_MODE WANDB_NAME WANDB_RUN_ID COMET_OFFLINE_DIRECTORY
fail() {
    echo "FAILED: $*"
    exit 1
}
head -c 4000 "$DS_SOURCE_DIR/data/tinyshakespeare.txt" > text.txt
secret=Zq7TopSecretKey
config() { # FILE SECTIONS
    echo "{\"train_batch_size\": 2, \"fp16\": {\"enabled\": true, \"initial_scale_power\": 18}, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}},
        \"scheduler\": {\"type\": \"WarmupLR\", \"params\": {\"warmup_num_steps\": 5}}, $2}" > "$1"
}
config ds.json "\"wandb\": {\"enabled\": true, \"group\": \"g é\", \"team\": \"t\", \"project\": \"p\"}, \"comet\": {\"enabled\": true, \"samples_log_interval\": 4,
    \"project\": \"cp\", \"workspace\": \"cw\", \"api_key\": \"$secret\", \"experiment_name\": \"en\"}"
train() { # CONFIG FLAGS…
    "$bin/ds_train" --model_config "$DS_SOURCE_DIR/test/common/gpt2.json" --tokenizer bytes --data text.txt --seq_length 16 --threads 1 \
        --deepspeed_config "$1" "${@:2}" > log.txt 2>&1
}
ok() { train "$@" || fail "$*: $(tail -n 5 log.txt)"; }
refused() { # TEXT SECTIONS
    config bad.json "$2"
    if train bad.json --steps 1; then fail "taken: $2"; fi
    grep -qF -- "$1" log.txt || fail "expected '$1' with $2: $(cat log.txt)"
}

ok ds.json --steps 12 --eval_fraction 0.2 --eval_interval 5 --save_interval 6 --output out --metrics m.jsonl
run=$(echo wandb/offline-run-*)
[[ $run =~ ^wandb/offline-run-[0-9]{8}_[0-9]{6}-([0-9a-z]{8})$ ]] || fail "the folder: $run"
python3 "$read" wandb "$run/run-${BASH_REMATCH[1]}.wandb" > wandb.json
[ "$(find .cometml-runs -type f | wc -l)" = 1 ] || fail "left behind: $(find .cometml-runs)"
python3 "$read" comet .cometml-runs/*.zip > comet.json
grep -q "wandb: kept offline in ./$run; \"wandb sync ./$run\" sends it" log.txt || fail "$(cat log.txt)"
grep -q 'comet: kept offline in .cometml-runs/[0-9a-f]*.zip; "comet upload .cometml-runs/[0-9a-f]*.zip" sends it' log.txt || fail "$(cat log.txt)"
cat > check.py << 'END'
import json, sys
w, c = json.load(open("wandb.json")), json.load(open("comet.json"))
rows = [json.loads(line) for line in open("m.jsonl")]
T = "Train/Samples/"
want = {}  # by samples: tags and values, as DeepSpeed's monitors get them
for r in rows:
    at = want.setdefault(2 * r["step"], {})
    if "loss" in r:
        at |= {T + "train_loss": r["loss"], T + "lr": r["lr"], T + "loss_scale": r["loss_scale"]}
    elif "eval_loss" in r:
        at[T + "eval_loss"] = r["eval_loss"]
    else:
        at |= {T + "checkpoint_stall_ms": 1e3 * r["save_stall_s"], T + "checkpoint_write_ms": 1e3 * r["save_write_s"]}
def near(a, b, tag):  # --metrics has nine digits, and microseconds
    return a == b or abs(a - b) <= (1e-3 if tag.endswith("_ms") else 1e-8 * abs(b))
assert [h["_step"] for h in w["history"]] == sorted(want) == list(range(2, 26, 2))
for h in w["history"]:
    values = {k: v for k, v in h.items() if not k.startswith("_")}
    assert values.keys() == want[h["_step"]].keys(), (h, want[h["_step"]])
    assert all(near(values[k], v, k) for k, v in want[h["_step"]].items()), (values, want[h["_step"]])
assert all(a["_timestamp"] <= b["_timestamp"] and a["_runtime"] <= b["_runtime"] for a, b in zip(w["history"], w["history"][1:]))
newest = {}
for h in w["history"]:
    newest |= h
assert w["summary"] == newest
assert (w["exit_code"], w["project"], w["entity"], w["group"], w["name"]) == (0, "p", "t", "g é", None)
assert w["config"]["train_batch_size"] == 2 and w["config"]["scheduler"]["params"]["warmup_num_steps"] == 5 and w["config"]["_wandb"] == {}
e = c["experiment"]
assert (e["project_name"], e["workspace"], e["resume_strategy"], e["tags"]) == ("cp", "cw", "create", []) and len(e["offline_id"]) == 32
assert not e["customer_error_reported"] and not e["user_provided_experiment_key"]
assert c["others"] == {"offline_experiment": True, "Name": "en"}
assert c["parameters"]["fp16|enabled"] is True and c["parameters"]["optimizer|params|lr"] == 1e-3
kept, last = [], {}
for x in sorted(want):  # DeepSpeed's rule: the first of a tag, then one when samples_log_interval samples are past
    for tag, value in want[x].items():
        if tag not in last or x - last[tag] >= 4:
            last[tag] = x
            kept.append([tag, value, x])
key = lambda m: (m[2], m[0])
assert len(c["metrics"]) == len(kept) and all(a[0] == b[0] and a[2] == b[2] and near(a[1], b[1], a[0]) for a, b in
                                              zip(sorted(c["metrics"], key=key), sorted(kept, key=key))), (c["metrics"], kept)
assert sum(m[0] == T + "train_loss" for m in c["metrics"]) == 6
END
python3 check.py || fail "the files beside --metrics"

# The key is in no file that the run wrote, in no output; the sections' other keys are in the page.
if grep -rlF "$secret" . --exclude=ds.json; then fail "the API key is written"; fi
for command in check resolve 'resolve --values'; do
    # shellcheck disable=SC2086
    "$bin/ds_config" $command ds.json > shown 2>&1 || fail "$command: $(cat shown)"
    if grep -qF "$secret" shown; then fail "$command shows the API key"; fi
done
grep -q 'api_key.*(not shown)' shown || fail "$(cat shown)"
python3 -c 'import sys, zipfile; assert sys.argv[1].encode() not in zipfile.ZipFile(sys.argv[2]).read("messages.json")' \
    "$secret" .cometml-runs/*.zip || fail "the API key is in the archive"
grep -q 'api_key: no effect: nothing is sent, and the key is written nowhere' log.txt || fail "$(cat log.txt)"

# What the environment says. A run that fails or is killed.
export WANDB_DIR=elsewhere WANDB_NAME='my run' WANDB_RUN_ID=Some-id_1 COMET_OFFLINE_DIRECTORY=comet
config cw.json '"wandb": {"enabled": true}, "comet": {"enabled": true, "mode": "get", "experiment_key": "0123456789abcdefABCDEF0123456789xyz"}'
ok cw.json --steps 2
python3 "$read" wandb elsewhere/wandb/offline-run-*-Some-id_1/run-Some-id_1.wandb > wandb.json
python3 "$read" comet comet/0123456789abcdefABCDEF0123456789xyz-??????.zip > comet.json
python3 - << 'END'
import json
w, e = json.load(open("wandb.json")), json.load(open("comet.json"))["experiment"]
assert (w["id"], w["name"], w["project"], w["entity"], w["group"], w["exit_code"]) == ("Some-id_1", "my run", "deepspeed", None, None, 0), w
assert e["resume_strategy"] == "get" and e["user_provided_experiment_key"] and e["project_name"] is None, e
END
unset WANDB_DIR WANDB_NAME WANDB_RUN_ID COMET_OFFLINE_DIRECTORY
rm -rf wandb .cometml-runs
config inf.json '"gradient_clipping": 1, "wandb": {"enabled": true}, "comet": {"enabled": true}'
sed -i 's/"initial_scale_power": 18/"loss_scale": 1e38/' inf.json
train inf.json --steps 8 --max_skipped_steps 3 && fail "a run that should fail"
python3 "$read" wandb wandb/*/*.wandb > wandb.json
python3 "$read" comet .cometml-runs/*.zip > comet.json
python3 - << 'END'
import json
w, e = json.load(open("wandb.json")), json.load(open("comet.json"))["experiment"]
assert w["exit_code"] == 1 and len(w["history"]) == 3, w
assert e["customer_error_reported"] and "gradients of 3 steps" in e["customer_error_message"], e
END
rm -rf wandb .cometml-runs
"$bin/ds_train" --model_config "$DS_SOURCE_DIR/test/common/gpt2.json" --tokenizer bytes --data text.txt --seq_length 16 --threads 1 \
    --deepspeed_config ds.json --steps 1000000 --metrics killed.jsonl > killed.log 2>&1 &
for _ in $(seq 1000); do
    [ "$(cat killed.jsonl 2> /dev/null | wc -l)" -lt 20 ] || break
    sleep 0.02
done
kill -KILL $!
wait $! 2> /dev/null || true
python3 "$read" wandb wandb/*/*.wandb > wandb.json
python3 -c 'import json; w = json.load(open("wandb.json")); assert w["exit_code"] is None and len(w["history"]) >= 18, w' ||
    fail "a run that was killed lost its rows"
(cd .cometml-runs/*/ && python3 -m zipfile -c ../packed.zip experiment.json messages.json)
python3 -B -c 'import sys; sys.path.insert(0, sys.argv[1]); import offline_runs; offline_runs.comet(sys.argv[2], False)' \
    "$DS_SOURCE_DIR/test/tools" .cometml-runs/packed.zip || fail "the folder of a run that was killed"

rm -rf wandb .cometml-runs
WANDB_MODE=disabled ok cw.json --steps 1
[ ! -e wandb ] || fail "WANDB_MODE=disabled wrote"
grep -q 'wandb: WANDB_MODE is disabled, nothing is kept' log.txt || fail "$(cat log.txt)"
export WANDB_MODE=none
refused 'WANDB_MODE is "none", expected offline or disabled' '"wandb": {"enabled": true}'
unset WANDB_MODE
WANDB_RUN_ID=a/b refused 'WANDB_RUN_ID is "a/b"' '"wandb": {"enabled": true}'
refused 'comet.online: not available, found true: experiments are kept offline' '"comet": {"enabled": true, "online": true}'
refused 'comet.experiment_key: expected 32 to 50 letters and digits' '"comet": {"enabled": true, "experiment_key": "../../x"}'
mkdir -p .cometml-runs && echo mine > .cometml-runs/0123456789abcdef0123456789abcdef.zip
refused 'is there, and would be lost' '"comet": {"enabled": true, "mode": "create", "experiment_key": "0123456789abcdef0123456789abcdef"}'
[ "$(cat .cometml-runs/0123456789abcdef0123456789abcdef.zip)" = mine ] || fail "another file was replaced"
