#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# W&B's and Comet's own packages read what ds_train keeps for them: the same history, configuration, summary and end as
# test/tools/offline_runs.py finds. Nothing leaves this host. Usage: offline_runs.sh BUILD. Needs DS_ORACLE_PYTHON: a Python with
# wandb and comet_ml. Half a minute.
set -euo pipefail
build=$(cd "$1" && pwd)
here=$(cd "$(dirname "$0")" && pwd)
root=$(cd "$here/../.." && pwd)
if [ -z "${DS_ORACLE_PYTHON:-}" ]; then
    echo "not run: DS_ORACLE_PYTHON names no Python with wandb and comet_ml"
    exit 77
fi
work=$(mktemp -d "$build/offline_runs.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
unset WANDB_DIR WANDB_MODE WANDB_NAME WANDB_RUN_ID COMET_OFFLINE_DIRECTORY
head -c 9000 "$root/data/tinyshakespeare.txt" > text.txt
cat > ds.json << 'END'
{"train_batch_size": 2, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
 "wandb": {"enabled": true, "group": "g é", "team": "t", "project": "p"},
 "comet": {"enabled": true, "samples_log_interval": 1, "project": "cp", "workspace": "cw", "experiment_name": "en", "api_key": "secret"}}
END
"$build/ds_train" --model_config "$root/test/common/gpt2.json" --tokenizer bytes --data text.txt --seq_length 16 --threads 1 \
    --deepspeed_config ds.json --steps 400 --eval_fraction 0.2 --eval_interval 50 > log.txt 2>&1 || { cat log.txt; exit 1; }
python3 "$root/test/tools/offline_runs.py" wandb wandb/*/*.wandb > wandb.json
python3 "$root/test/tools/offline_runs.py" comet .cometml-runs/*.zip > comet.json
"$DS_ORACLE_PYTHON" -B "$here/offline_runs_packages.py" wandb/* .cometml-runs/*.zip 2> errors.txt > theirs.json || { cat errors.txt; exit 1; }
python3 - << 'END'
import json
w, c, t = (json.load(open(name + ".json")) for name in ("wandb", "comet", "theirs"))
r, s, m = t["records"], t["sync"], t["comet"]
run = [w[key] for key in ("id", "entity", "project", "group")]
assert len(w["history"]) == 400 and r["history"] == w["history"] == s["history"]
assert r["run"] == run == s["run"], (r["run"], s["run"])
assert r["summary"] == w["summary"] == {k: v for k, v in s["summary"].items() if k != "_wandb"}, (w["summary"], s["summary"])
assert r["exit_code"] == w["exit_code"] == s["exit_code"] == 0 and s["synced"]
assert r["config"] == w["config"]
assert {k: v for k, v in s["config"].items() if k != "_wandb"} == {k: v for k, v in w["config"].items() if k != "_wandb"}
assert m["parameters"] == c["parameters"] and m["others"] == c["others"]
e = c["experiment"]
assert m["experiment"] == [e["offline_id"], "cp", "cw", "create"]
order = lambda rows: sorted(rows, key=lambda row: (row[2], row[0]))
assert len(c["metrics"]) > 800 and order(m["metrics"]) == order(c["metrics"]), (m["metrics"][:3], c["metrics"][:3])
print(f"wandb: {len(s['history'])} rows synced; comet: {len(m['metrics'])} values")
END
