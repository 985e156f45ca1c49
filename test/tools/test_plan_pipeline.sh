#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# "auto" of pipeline.stages and pipeline.schedule: what is chosen is the fastest of what fits when each is planned by itself, ds_plan says
# why, --fit writes it down, and ds_train trains with it as if it had been given.
set -u
bin=$1
. "$(dirname "$0")/../common/tool_check.sh"
cat > "$dir/model.json" << 'END'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64, "intermediate_size": 160,
"num_hidden_layers": 8, "num_attention_heads": 4, "num_key_value_heads": 4, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
"hidden_act": "silu", "tie_word_embeddings": false}
END
cat > "$dir/check.py" << 'END'
import json, subprocess, sys
bin, dir = sys.argv[1:]
RANKS, BATCH = 4, {"train_micro_batch_size_per_gpu": 1, "gradient_accumulation_steps": 8}
bad = []
def plan(pipeline, *flags, batch=BATCH):
    json.dump({**batch, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}, "pipeline": pipeline}, open(f"{dir}/ds.json", "w"))
    words = [f"{bin}/ds_plan", "--model_config", f"{dir}/model.json", "--deepspeed_config", f"{dir}/ds.json", "--seq_length", "128",
             "--world_size", str(RANKS), "--threads", "1", "--overwrite", "--json", f"{dir}/out.json", *flags]
    done = subprocess.run(words, capture_output=True, text=True)
    return (json.load(open(f"{dir}/out.json")) if done.returncode in (0, 3) else None), done.stdout + done.stderr
ways = [(n, kind, v) for n in (1, 2, 4) for kind, v in ((("1f1b", 1),) if n == 1 else (("1f1b", 1), ("zb-h1", 1), ("zb-v", 2), ("interleaved", 2),
        ("interleaved", 3), ("interleaved", 4)))]
def each(memory, *flags):
    """Seconds or operations of a row, bytes, and whether it fits, by way: the memory policy keeps what there is room for."""
    found = {}
    for n, kind, v in ways:
        report, said = plan({"stages": n, "schedule": kind, "chunks": v}, "--memory", memory, *flags)
        if report is not None and n * v <= 8:
            step = report["pipeline"]["step"] if n > 1 else report["timeline"]["step"]["seconds"] if "timeline" in report else report["operations"]["computed"]
            found[n, kind, v] = step / (8 * RANKS / n), report["memory"]["need"], report["memory"]["fits"]
    return found
for flags in ((), ("--device", "h100-sxm")):
    free = each("1TB", *flags)
    if len(free) != 11:
        bad.append(f"{len(free)} ways can be planned, expected 11")
    needs = sorted(need for _, need, _ in free.values())
    for memory in ("1TB", str(needs[len(needs) // 2]), str(needs[0] // 2)):
        found = each(memory, *flags)
        for stages in ("auto", 2, 4):
            report, said = plan({"stages": stages, "schedule": "auto"}, "--memory", memory, *flags)
            if report is None:
                bad.append(f"{stages} in {memory}: {said[-300:]}")
                continue
            got = report["pipeline"]
            way = got["stages"], got["schedule"], got["chunks"]
            own = {w: f for w, f in found.items() if stages in ("auto", w[0])}
            fit = {w: cost for w, (cost, _, fits) in own.items() if fits}
            if fit and (way not in fit or fit[way] > min(fit.values()) * (1 + 1e-5)):
                bad.append(f"{flags} {stages} in {memory}: {way}, of {fit}")
            if not fit and (report["memory"]["fits"] or own[way][1] != min(need for _, need, _ in own.values())):
                bad.append(f"{flags} {stages} in {memory}: {way}, which does not need least of {own}")
            if not got["chosen"].startswith(f'pipeline "auto": {way[0]} stage') or str(len(own)) + " that were planned" not in got["chosen"]:
                bad.append(f"{stages}: the choice is not said: {got['chosen']}")
report, said = plan({"stages": 4, "schedule": "auto"}, "--memory", "1TB", "--html", f"{dir}/plan.html")
if 'zb-v (' not in said + open(f"{dir}/plan.html").read():
    bad.append("the report does not say the choice")
report, said = plan({"stages": 4, "schedule": "auto"}, "--memory", "1TB", "--fit", "--output", f"{dir}/fit.json")
text = open(f"{dir}/fit.json").read()
if '"auto"' in text or '"chunks": 2' not in text or '"train_micro_batch_size_per_gpu": 1' not in text:
    bad.append(f"--fit leaves a choice open, or takes fewer micro-batches, of which stages would wait longer: {text}")
report, said = plan({"stages": 4, "schedule": "auto", "chunks": 3}, "--memory", "1TB")
if report is not None or "no choice can be planned" not in said:
    bad.append(f"chunks 3 of 4 stages have too few layers: {said[-300:]}")
# A file that says nothing of how ranks share: --fit tries layers, sequences, stages and domino, says what stood beside, and leaves alone what is said.
def fit(config, memory, device="h100-sxm"):
    json.dump({**config, "optimizer": {"type": "AdamW", "params": {"lr": 1e-4}}}, open(f"{dir}/silent.json", "w"))
    done = subprocess.run([f"{bin}/ds_plan", "--model_config", f"{dir}/model.json", "--deepspeed_config", f"{dir}/silent.json", "--seq_length", "128",
                           "--world_size", "4", "--nodes", "2", "--threads", "1", "--memory", memory, "--fit", "--output", f"{dir}/fit.json",
                           "--overwrite", *(["--device", device] if device else [])], capture_output=True, text=True)
    rows = [line.split() for line in done.stdout.splitlines() if line[:5].strip().isdigit()]
    chosen = next((line for line in done.stdout.splitlines() if line.startswith("chosen: ")), "")
    return rows, chosen, done.stdout
rows, chosen, said = fit({"train_batch_size": 64}, "1TB")
words = ("domino", "1f1b", "zb-h1", "zb-v", "interleaved")
tried = {(row[1], row[2], row[3], *(word for word in row if word in words)) for row in rows}
for want in (("2", "1", "1", "domino"), ("1", "1", "2", "1f1b"), ("1", "1", "2", "zb-v"), ("1", "2", "1")):
    if want not in tried:
        bad.append(f"--fit does not try tp, sp, pp {want}: {sorted(tried)}")
if "beside it, for each row: " not in said or "stages alone takes" not in said:
    bad.append(f"--fit does not say what stood beside its choice: {said[-600:]}")
rows, chosen, said = fit({"train_batch_size": 64, "pipeline": {"stages": 2}, "tensor_parallel": {"autotp_size": 1, "domino": False}, "sequence_parallel_size": 1}, "1TB")
if {(row[1], row[2], row[3]) for row in rows} != {("1", "1", "2")} or "domino" in said:
    bad.append(f"--fit changes what the file says: {said[:600]}")
print("\n".join("FAILED: " + b for b in bad))
sys.exit(bool(bad))
END
python3 "$dir/check.py" "$bin" "$dir" || failed=1
head -c 20000 "$(dirname "$0")/../../data/tinyshakespeare.txt" > "$dir/text.txt"
train() { # NAME, PIPELINE
    printf '{"train_micro_batch_size_per_gpu": 1, "not_a_key": 1, "gradient_accumulation_steps": 4, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}},
"pipeline": %s}' "$2" > "$dir/$1.json"
    "$bin/deepspeed" --num_gpus 2 "$bin/ds_train" --model_config "$dir/model.json" --tokenizer bytes --data "$dir/text.txt" --threads 1 \
        --seq_length 32 --steps 2 --seed 7 --lr_scheduler_type none --deepspeed_config "$dir/$1.json" --output "$dir/$1" \
        --metrics "$dir/$1.jsonl" > "$dir/$1.log" 2>&1 || { echo "FAILED: $1"; tail -n 5 "$dir/$1.log"; failed=1; }
}
train auto '{"stages": 2, "schedule": "auto"}'
train given '{"stages": 2, "schedule": "zb-v"}'
losses() { sed -nE 's/.*"(loss":[0-9.]+).*/\1/p' "$dir/$1.jsonl"; }
grep -q 'pipeline "auto": 2 stages, zb-v' "$dir/auto.log" || { echo "FAILED: ds_train does not say its choice"; cat "$dir/auto.log"; failed=1; }
[ -n "$(losses auto)" ] && [ "$(losses auto)" = "$(losses given)" ] || { echo "FAILED: other losses than with the schedule given"; failed=1; }
for name in auto given; do # each notice once, with its place in the file
    grep -o "$name.json:1:39: not_a_key: unknown key" "$dir/$name.log" | wc -l | grep -qx 1 ||
        { echo "FAILED: the notices with $name"; grep "$name.json" "$dir/$name.log"; failed=1; }
done
exit $failed
