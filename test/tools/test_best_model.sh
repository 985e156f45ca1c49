#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# --load_best_model_at_end and early stopping. Beside Hugging Face's Trainer (test/golden/trainer/best_model.json): the losses of
# the evaluations, the best step, the step of the end. The model folder has the bits of a run that ends at the best step, for
# each ZeRO stage, two ranks, offload, saves behind training, after resumes and a restart. What is kept of
# checkpoints, what is said of it, runs without a best step, what is refused.
set -euo pipefail
bin=$(realpath "$1")
golden=$DS_SOURCE_DIR/test/golden/trainer
work=$(mktemp -d "$1/best_model.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() {
    echo "FAILED: $*"
    exit 1
}
config() { # FILE REST
    echo "{\"train_micro_batch_size_per_gpu\": 2, \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-2, \"weight_decay\": 0}}, \"gradient_clipping\": 1.0$2}" > "$1"
}
config ds.json ''
base=(--model "$golden/model" --tokenizer bytes --data "$golden/best_train.jsonl" --eval_data "$golden/best_eval.jsonl"
    --seq_length 48 --loss_average targets --threads 1 --lr_scheduler_type none)
run() { # OUTPUT FLAGS…
    "$bin/ds_train" "${base[@]}" --deepspeed_config "${config:-ds.json}" --output "$1" --metrics "$1.jsonl" "${@:2}" > "$1.log" 2>&1
}
ok() { run "$@" || fail "$*: $(tail -n 5 "$1.log")"; }
refused() { # TEXT FLAGS…
    if run refused "${@:2}"; then fail "taken: ${*:2}"; fi
    grep -qF -- "$1" refused.log || fail "expected '$1' with ${*:2}: $(cat refused.log)"
    [ ! -e refused ] || fail "a refused run wrote: ${*:2}"
}
same() { cmp "$1/model.safetensors" "$2/model.safetensors" || fail "$1 has other weights than $2"; }
tags() { (cd "$1" && echo global_step*); }

# As the Trainer. Where its save_steps is no divisor of the best step, it loads an older model; here the best one is saved.
best=(--load_best_model_at_end --steps 60)
ok patient "${best[@]}" --eval_interval 2 --save_interval 2 --early_stopping_patience 3 --keep_last 1
ok threshold "${best[@]}" --eval_interval 2 --save_interval 4 --early_stopping_patience 2 --early_stopping_threshold 0.02
ok to_the_end "${best[@]}" --eval_interval 5 --early_stopping_patience 100
ok greater "${best[@]}" --eval_interval 3 --save_interval 3 --early_stopping_patience 2 --greater_is_better true --metric_for_best_model eval_loss
python3 - "$golden/best_model.json" << 'END'
import json, sys
for name, want in json.load(open(sys.argv[1])).items():
    rows = [json.loads(line) for line in open(name + ".jsonl")]
    evals = [[r["step"], r["eval_loss"]] for r in rows if "eval_loss" in r]
    end = rows[-1]
    assert [e[0] for e in evals] == [e[0] for e in want["evals"]], (name, evals)
    off = max(abs(a[1] - b[1]) for a, b in zip(evals, want["evals"]))
    assert off < 2e-4, (name, off)
    assert (end["best_step"], end["step"]) == (want["best"], want["end"]), (name, end, want["best"], want["end"])
    assert end["model_step"] == want["best"] and end["stopped_early"] == (want["end"] < 60), (name, end)
    pick = max if name == "greater" else min
    assert end["best_eval_loss"] == pick(e[1] for e in evals), (name, end)
END
# A run that ends there has the same weights: 48, 34 and 3 are the best steps.
for pair in patient:48 threshold:34 greater:3; do
    ok "at_${pair#*:}" --steps "${pair#*:}"
    same "${pair%:*}" "at_${pair#*:}"
done
[ "$(tags patient)" = 'global_step48 global_step54' ] || fail "kept: $(tags patient)"
[ "$(cat patient/latest)" = global_step54 ] || fail "latest: $(cat patient/latest)"
[[ " $(tags threshold) " = *' global_step34 '* ]] || fail "the best step was not saved: $(tags threshold)"

# What is said: the lines, the summary, the history, the page.
grep -q 'step 48  validation loss .*, the best so far$' patient.log || fail "$(cat patient.log)"
grep -q 'step 52  validation loss .*; best 2.4.* at step 48; 2 of 3 in a row without improvement$' patient.log || fail "$(cat patient.log)"
grep -q 'step 54  stopped early: 3 evaluations in a row did not improve the validation loss$' patient.log || fail "$(cat patient.log)"
grep -q 'summary: 54 steps .*best 2.4.* at step 48, whose weights the model has' patient.log || fail "$(cat patient.log)"
grep -q 'the best model: step 48, validation loss 2.4' patient.log || fail "$(cat patient.log)"
grep -q 'stopped early: 2 evaluations in a row did not improve the validation loss by more than 0.02' threshold.log || fail "$(cat threshold.log)"
grep -q '"event":"end","step":54,.*"verdict":"finished".*"why":"stopped early: 3 ' patient/history.jsonl || fail "$(tail -n 1 patient/history.jsonl)"
python3 "$DS_SOURCE_DIR/test/tools/run_report.py" patient/report.html patient/history.jsonl finished 'stopped early: 3 evaluations' \
    'Weights of the model step 48' 'the best evaluation, of 54 steps'
python3 "$DS_SOURCE_DIR/test/tools/run_report.py" greater/report.html greater/history.jsonl 'at step 3'

# Stages, ranks, offload, saves behind training: the same step, and for one number of ranks the same bits.
n=0
for more in '"stage": 0' '"stage": 1' '"stage": 2' '"stage": 3, "stage3_gather_16bit_weights_on_model_save": true' \
    '"stage": 3, "stage3_gather_16bit_weights_on_model_save": true, "offload_optimizer": {"device": "cpu"}, "offload_param": {"device": "cpu"}'; do
    n=$((n + 1))
    config "z$n.json" ", \"zero_optimization\": {$more}, \"datastates_ckpt\": $([ $n = 3 ] && echo true || echo false)"
    sed -i 's/per_gpu": 2/per_gpu": 1/' "z$n.json"
    "$bin/deepspeed" --num_gpus 2 "$bin/ds_train" "${base[@]}" --deepspeed_config "z$n.json" --output "two$n" "${best[@]}" \
        --eval_interval 2 --early_stopping_patience 3 --keep_last 1 > "two$n.log" 2>&1 || fail "two ranks, $more: $(tail "two$n.log")"
    [ "$(tags "two$n")" = 'global_step48 global_step54' ] || fail "two ranks, $more: $(tags "two$n")"
    [ $n = 1 ] || same "two$n" two1
done

# Three and four ranks, parameters and optimizer on NVMe: as without, also resumed and against a run that ends at the best step.
nvme="{\"device\": \"nvme\", \"nvme_path\": \"$work/nvme\"}"
config nvme.json ", \"zero_optimization\": {\"stage\": 3, \"stage3_gather_16bit_weights_on_model_save\": true, \"offload_optimizer\": $nvme, \"offload_param\": $nvme}"
config plain.json ''
sed -i 's/per_gpu": 2/per_gpu": 1/' nvme.json plain.json
many() { # RANKS CONFIG OUTPUT FLAGS…
    "$bin/deepspeed" --num_gpus "$1" "$bin/ds_train" "${base[@]}" --deepspeed_config "$2.json" --output "$3" --keep_last 1 "${@:4}" \
        > "$3.log" 2>&1 || fail "$1 ranks, $2, ${*:4}: $(tail "$3.log")"
}
stops=(--load_best_model_at_end --eval_interval 2 --early_stopping_patience 3)
for pair in 3:44:50 4:40:46; do
    IFS=: read -r n at end <<< "$pair"
    many "$n" plain "plain$n" "${stops[@]}" --steps 60
    many "$n" nvme "nvme$n" "${stops[@]}" --steps 60
    [ "$(tags "nvme$n")" = "global_step$at global_step$end" ] || fail "$n ranks on NVMe: $(tags "nvme$n")"
    same "nvme$n" "plain$n"
    many "$n" nvme "there$n" --steps "$at"
    same "nvme$n" "there$n"
done
many 4 nvme again4 "${stops[@]}" --steps 42
many 4 nvme again4 "${stops[@]}" --steps 60 --resume
[ "$(tags again4)" = 'global_step40 global_step46' ] || fail "four ranks on NVMe, resumed: $(tags again4)"
same again4 nvme4
# On other ranks, the best one of four is loaded and stays the best.
many 3 nvme again4 "${stops[@]}" --steps 46 --resume
same again4 nvme4

# Where no model folder is written, what writes it is the best one.
sed 's/_save": true/_save": false/' z4.json > z6.json
"$bin/deepspeed" --num_gpus 2 "$bin/ds_train" "${base[@]}" --deepspeed_config z6.json --output two6 "${best[@]}" --eval_interval 2 \
    --early_stopping_patience 3 > two6.log 2>&1 || fail "two ranks: $(tail two6.log)"
grep -q '"ds_checkpoint export two6 FOLDER global_step48" makes one' two6.log || fail "$(cat two6.log)"
"$bin/ds_checkpoint" export two6 two6/model global_step48 > two6.log 2>&1 || fail "$(cat two6.log)"
same two6/model two1

# Resumed anywhere: the count and the best step go on.
for at in 4 48 52; do
    ok "r$at" "${best[@]}" --steps $at --eval_interval 2 --save_interval 2 --early_stopping_patience 3 --keep_last 2
    ok "r$at" "${best[@]}" --eval_interval 2 --early_stopping_patience 3 --keep_last 1 --resume
    same "r$at" patient
    [ "$(tags "r$at")" = 'global_step48 global_step54' ] || fail "resumed at $at: $(tags "r$at")"
done
# Killed, and restarted by the launcher.
for _ in 1 2 3 4 5 6 7 8; do
    rm -rf killed
    "$bin/ds_train" "${base[@]}" --deepspeed_config ds.json --output killed "${best[@]}" --eval_interval 2 --save_interval 2 \
        --early_stopping_patience 3 > killed.log 2>&1 &
    for _ in $(seq 2000); do
        [ ! -e killed/global_step6/ds_manifest.json ] || break
        sleep 0.01
    done
    kill -KILL $! 2> /dev/null || true
    wait $! 2> /dev/null || true
    [ ! -e killed/model.safetensors ] && break
done
[ ! -e killed/model.safetensors ] || fail "no run was killed in time"
DS_RESTART_COUNT=1 ok killed "${best[@]}" --eval_interval 2 --early_stopping_patience 3
grep -q 'resumed after step' killed.log || fail "no restart: $(cat killed.log)"
same killed patient
# One that stopped early stays so, and goes on with more patience; from an earlier checkpoint it is the same run again.
ok patient "${best[@]}" --eval_interval 2 --early_stopping_patience 3 --resume
grep -q 'step 54  stopped early: 3' patient.log || fail "$(cat patient.log)"
same patient at_48
ok patient "${best[@]}" --eval_interval 2 --early_stopping_patience 4 --resume
grep -q '"step":56,"loss"' patient/history.jsonl || fail "more patience changes nothing: $(cat patient.log)"
ok patient "${best[@]}" --eval_interval 2 --early_stopping_patience 3 --resume global_step48
same patient at_48
# Another rule begins anew; so does a best step whose checkpoint is gone.
ok threshold --steps 40 --load_best_model_at_end --eval_interval 2 --greater_is_better --resume
grep -q 'the best step so far, 34, was found with the other --greater_is_better: it is looked for anew' threshold.log || fail "$(cat threshold.log)"
rm -r r4/global_step48
ok r4 --steps 56 --load_best_model_at_end --eval_interval 2 --resume
grep -q 'the best step so far, 48, has no checkpoint in --output: it is looked for anew' r4.log || fail "$(cat r4.log)"

# Without --load_best_model_at_end the last weights are written, and the run stops all the same.
ok last --steps 60 --eval_interval 2 --early_stopping_patience 3
[ "$(tags last)" = global_step54 ] || fail "kept: $(tags last)"
ok at_54 --steps 54
same last at_54

# Evaluations whose loss is no number (an embedding that only they use is spoiled): no step is the best, and no model is written.
sed 's/"tie_word_embeddings": true/"tie_word_embeddings": false/' "$golden/model/config.json" > one.json
python3 -c 'import json
for name, prompt in ("plain", "ab"), ("odd", "az"):
    with open(name + ".jsonl", "w") as out:
        out.writelines(json.dumps({"prompt": prompt, "completion": "cd"}) + "\n" for _ in range(8))'
spoiled=(--tokenizer bytes --data plain.jsonl --eval_data odd.jsonl --seq_length 48 --threads 1 --deepspeed_config ds.json --steps 4)
"$bin/ds_train" --model_config one.json "${spoiled[@]}" --output whole > whole.log 2>&1 || fail "$(cat whole.log)"
python3 - << 'END'
import json, struct
data = bytearray(open("whole/model.safetensors", "rb").read())
n, = struct.unpack_from("<Q", data)
(name,) = (name for name in json.loads(data[8:8 + n]) if name.endswith("embed_tokens.weight"))
at = 8 + n + json.loads(data[8:8 + n])[name]["data_offsets"][0] + ord("z") * 16 * 4
data[at:at + 4] = struct.pack("<f", float("nan"))
open("whole/model.safetensors", "wb").write(data)
END
code=0
"$bin/ds_train" --model whole "${spoiled[@]}" --output none --load_best_model_at_end --eval_interval 2 --early_stopping_patience 3 > none.log 2>&1 || code=$?
[ $code = 1 ] || fail "no evaluation is a number: exit $code, $(cat none.log)"
grep -q 'over .* tokens; none so far is a number; 1 of 3 in a row' none.log || fail "$(cat none.log)"
grep -q 'no evaluation of the run has a loss that is a number, so no step is the best and no model folder is written' none.log || fail "$(cat none.log)"
[ ! -e none/model.safetensors ] && [ "$(tags none)" = global_step4 ] || fail "$(ls none)"

base=("${base[@]}" --steps 4)
refused 'evaluations compute the loss and nothing else' --metric_for_best_model accuracy --eval_interval 2
refused '--load_best_model_at_end needs --eval_interval N' --load_best_model_at_end
refused '--early_stopping_patience needs --eval_interval N' --early_stopping_patience 2
refused '--early_stopping_threshold needs --early_stopping_patience' --early_stopping_threshold 0.1 --eval_interval 2 --load_best_model_at_end
refused '--greater_is_better needs --load_best_model_at_end or' --greater_is_better --eval_interval 2
refused 'early_stopping_patience' --early_stopping_patience -1 --eval_interval 2
code=0
"$bin/ds_train" "${base[@]}" --deepspeed_config ds.json --load_best_model_at_end --eval_interval 2 > no.log 2>&1 || code=$?
[ $code = 2 ] && grep -q -- '--load_best_model_at_end needs --output DIR' no.log || fail "$(cat no.log)"
