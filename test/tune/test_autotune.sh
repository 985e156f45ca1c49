#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# deepspeed --autotuning: a real search over ds_train; programs that hang, grow, fail or know no engine; an
# interruption and what goes on from it.
set -u
bin=$(realpath "$1")
work=$(mktemp -d "$1/autotune.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
unset DS_AUTOTUNING_TRIAL
failed=0
fail() {
    echo "FAILED: $*"
    failed=1
    tail -n 5 out.txt err.txt 2> /dev/null | cut -c 1-200 | sed 's/^/    /'
}
# job CODE ARGS…: the launcher; out.txt and err.txt hold what it wrote.
job() {
    local want=$1 code
    shift
    "$bin/deepspeed" "$@" > out.txt 2> err.txt < /dev/null
    code=$?
    [ $code = "$want" ] || fail "$*: exit code $code, expected $want"
}
says() { grep -qE -- "$1" err.txt || fail "expected '$1' among the messages"; }
prints() { grep -qE -- "$1" out.txt || fail "expected '$1' in the output"; }
silent() { ! grep -qE -- "$1" out.txt err.txt || fail "did not expect '$1'"; }
# gone MARK: no process has the mark in its environment any more.
gone() {
    for _ in $(seq 400); do
        grep -lzx "MARK=$1" /proc/[0-9]*/environ 2> /dev/null | grep -qv "/$$/" || return
        sleep 0.05
    done
    fail "a process of '$1' is left"
}
r=autotuning_results

# ---- the rows of the data bound the micro-batches
mkdir rows
cat > rows/gpt.json << 'END'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 32, "n_ctx": 32,
 "n_embd": 64, "n_layer": 2, "n_head": 2, "tie_word_embeddings": true}
END
for i in $(seq 50); do echo "{\"prompt\": \"a question, number $i\", \"completion\": \"seven\"}"; done > rows/text.jsonl
cat > rows/ds.json << 'END'
{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2, "optimizer": {"type": "AdamW"},
 "autotuning": {"enabled": true}}
END
few=("$bin/ds_train" --model_config rows/gpt.json --tokenizer bytes --data rows/text.jsonl --steps 30 --deepspeed_config rows/ds.json)
job 0 --dry_run --device xeon-amx-2 --num_gpus 1 --autotuning tune "${few[@]}"
says 'the data has 50 rows: micro-batches up to 24 are tried'
silent 'tmbspg(32|64|1024)'
prints 'tmbspg24'

# ranks that share layers and sequences: the values of a list, with the batch of all ranks as it is
sed 's/"autotuning"/"tensor_parallel": {"autotp_size": [1, 2]}, "sequence_parallel_size": [1, 2], &/; s/"gradient_accumulation_steps": 2/"train_batch_size": 16/' \
    rows/ds.json > rows/shared.json
shared=("${few[@]/ds.json/shared.json}")
job 0 --dry_run --device xeon-amx-2 --num_gpus 4 --autotuning tune "${shared[@]}" --seq_length 32
prints 'z[0-3]_gas[0-9]+_tmbspg[0-9]+_rc[a-z]+_as2_sps1 '
prints 'z[0-3]_gas[0-9]+_tmbspg[0-9]+_rc[a-z]+_as1_sps2 '
prints 'z[0-3]_gas[0-9]+_tmbspg[0-9]+_rc[a-z]+_as2_sps2 '
prints ', 0 refused'
sed -i 's/\[1, 2\]}/[2, 3]}/' rows/shared.json
job 2 --dry_run --device xeon-amx-2 --num_gpus 4 --autotuning tune "${shared[@]}" --seq_length 32
says 'tensor_parallel.autotp_size: expected a list of at most 32 whole numbers, each a multiple of the first'

# ---- ds_train: planned, run, written
cat > gpt.json << 'END'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 32, "n_ctx": 32,
 "n_embd": 64, "n_layer": 2, "n_head": 2, "tie_word_embeddings": true}
END
yes 'all work and no play makes jack a dull boy' | head -c 60000 > text.txt
cat > ds.json << 'END'
{"train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": 2, // a comment, which HJSON allows
 "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
 "csv_monitor": {"enabled": true, "output_path": "monitors", "job_name": "x"},
 "autotuning": {"enabled": true, "end_profile_step": 4, "max_train_micro_batch_size_per_gpu": 8,
                "num_tuning_micro_batch_sizes": 2}}
END
train=("$bin/ds_train" --model_config gpt.json --tokenizer bytes --data text.txt --steps 30 --learning_rate 0.001
    --micro_batch 3 --threads 1 --deepspeed_config ds.json --output saved --metrics metrics.jsonl)
job 0 --device xeon-amx-2 --num_gpus 1 --autotuning tune "${train[@]}"
says '[0-9]+ settings for 1 ranks predicted in .* worth a trial'
says 'at most 2 trials of 4 steps: about [0-9]+ s as predicted, at most 10 min \(--trial_seconds 300 each\)'
says 'trial 1 z0_gas2_tmbspg[0-9]+_rc[a-z]+: predicted [0-9.]+ s a step, [0-9.]+ GiB'
says 'trial 2 z0_gas2_tmbspg[0-9]+_rc[a-z]+: [0-9.]+ samples/s, [0-9.]+ s a step'
prints '^\| tuning_space \| num_experiments \| best_metric_val \| best_exp_name '
prints '^\| global +\| +2 \| +[0-9.e+]+ \| z0_gas2_tmbspg'
prints '^Tuning completed in 0:[0-9]{2}:[0-9.]+\. Total number of experiments: 2\.'
prints '^best: z0_gas2_tmbspg[0-9]+_rc[a-z]+, [0-9.]+ samples/s, by metric "throughput"; [0-9.]+ % better than z0'
prints '^settings +GiB +s/step +samples/s +GiB'
prints '^z0_gas2_tmbspg[0-9]+_rc[a-z]+( +[0-9.]+){6}  best$'
prints 'predicted no better than those that were run'
for file in summary.txt results.json ds_config_optimal.json cmd_optimal.txt; do
    [ -s $r/$file ] || fail "no $r/$file"
done
best=$(sed -nE 's/^best: ([^,]+),.*/\1/p' out.txt)
for file in cmd.txt ds_config.json exp.json metrics.json stdout.log stderr.log; do
    [ -e "$r/$best/$file" ] || fail "no $r/$best/$file"
done
[ -s "autotuning_exps/$best.json" ] || fail "no experiment"
"$bin/ds_config" check $r/ds_config_optimal.json --world_size 1 > check.txt 2>&1 || grep -q 'auto' check.txt ||
    fail "the best configuration is none: $(cat check.txt)"
grep -q '"lr": "auto"' $r/ds_config_optimal.json && grep -q '"csv_monitor"' $r/ds_config_optimal.json &&
    ! grep -q autotuning $r/ds_config_optimal.json || fail "what the best configuration keeps"
grep -q -- "--num_gpus 1 .*--micro_batch ${best//[^0-9]*tmbspg/}" $r/cmd_optimal.txt 2> /dev/null ||
    grep -qE -- "--num_gpus 1 .*--micro_batch [0-9]+ .*--deepspeed_config [^ ]*/ds_config_optimal.json" $r/cmd_optimal.txt ||
    fail "command: $(cat $r/cmd_optimal.txt)"
! grep -q autotuning <(sed "s,$r,," $r/cmd_optimal.txt) || fail "the command searches again"
[ ! -e saved ] && [ ! -e metrics.jsonl ] && [ ! -e monitors ] || fail "a trial wrote into the user's files: $(ls)"
sh -c "$(cat $r/cmd_optimal.txt)" > run.txt 2>&1 || fail "the best command: $(tail -2 run.txt)"
[ -e saved/latest ] && [ "$(grep -c loss metrics.jsonl)" = 30 ] || fail "the best command saves and measures"

# The same command goes on from what is there: nothing runs again.
stamp=$(stat -c %Y.%y $r/*/metrics.json)
job 0 --device xeon-amx-2 --num_gpus 1 --autotuning tune "${train[@]}"
says 'trial 2 .*\(from before\)$'
[ "$stamp" = "$(stat -c %Y.%y $r/*/metrics.json)" ] || fail "trials ran again"
sed -i 's/"enabled": true, "end_profile_step"/"enabled": true, "overwrite": true, "end_profile_step"/' ds.json
job 0 --device none --num_gpus 1 --autotuning tune "${train[@]}"
silent 'from before'
[ "$stamp" != "$(stat -c %Y.%y $r/*/metrics.json)" ] || fail "overwrite: nothing ran again"
prints '0 do not fit into [0-9.]+ GiB a rank \(what is free here, shared\)'

# Memory that does not suffice is seen before anything runs; two ranks and all stages; only predicted.
job 1 --device none --num_gpus 1 --rank_memory 1M --autotuning run "${train[@]}"
says 'no setting ran'
prints 'needs [0-9]+ MiB of 1 MiB'
prints '^nothing fits; z0_gas2_tmbspg[0-9]+_rcfull needs least, '
# where other settings are refused, too, want of memory is still the reason
sed 's/"optimizer"/"zero_optimization": {"offload_param": {"device": "nvme", "nvme_path": "."}}, "optimizer"/' ds.json > refused.json
job 1 --device none --num_gpus 2 --rank_memory 1M --autotuning tune "${train[@]/ds.json/refused.json}"
prints '^nothing fits; z3_gas[24]_tmbspg3_rc'
prints '^z0_gas2_tmbspg3_rcnone .*expected zero_optimization.stage 3 or above'
job 0 --device xeon-amx-2 --num_gpus 2 --dry_run --autotuning tune "${train[@]}"
for stage in 0 1 2 3; do
    prints "^z${stage}_gas2_tmbspg6_rcnone( +[0-9.]+){3}"
done
silent 'trial 1'
# the file says nothing of ranks that share: layers, sequences, stages in the planner's order, domino, with the batch of all ranks as it is
prints '^z[0-3]_gas4_tmbspg[0-9]+_rc[a-z]+_as2 '
prints '^z[0-3]_gas4_tmbspg[0-9]+_rc[a-z]+_as2_dT '
prints '^z[0-3]_gas4_tmbspg[0-9]+_rc[a-z]+_sps2 '
prints '^z[0-3]_gas4_tmbspg[0-9]+_rc[a-z]+_s2_sauto '
sed 's/"optimizer"/"tensor_parallel": {"autotp_size": 1, "domino": false}, "sequence_parallel_size": 1, "pipeline": {"stages": 1}, "optimizer"/' ds.json > said.json
job 0 --device xeon-amx-2 --num_gpus 2 --dry_run --autotuning tune "${train[@]/ds.json/said.json}"
silent '_(as|sps|s)2'

# Without --device this machine is measured with the job's ranks, and the disk that the configuration names; once.
mkdir own disk
cp "$bin/deepspeed" own/
cat > own/ds_bench << 'END'
#!/bin/sh
# rank 0 writes a profile of so many ranks, and what it was asked
[ "$RANK" = 0 ] || exit 0
echo "ranks $WORLD_SIZE $*" >> asked
[ "$WORLD_SIZE" = 1 ] || links=', "node": {"name": "shm", "latency": 1e-6, "bandwidth": 1e10, "all_reduce": 1, "reduce_scatter": 1, "all_gather": 1}'
case $* in *--profile_folder*) links="$links, \"disk\": {\"read\": 1e9, \"write\": 1e9}" ;; esac
cat > "$2" << DEVICE
{"name": "plain", "shared": true, "ranks_per_node": $WORLD_SIZE, "peak": {"f32": 1e11, "bf16": 1e11, "f16": 1e11},
 "memory": {"bytes": 2e10, "bandwidth": 2e10}, "host": {"link": 1e10, "adam": 1e9, "bytes": 2e10, "bandwidth": 2e10}$links}
DEVICE
END
chmod +x own/ds_bench
cat > measured.json << 'END'
{"train_micro_batch_size_per_gpu": 1, "optimizer": {"type": "AdamW", "params": {"lr": "auto"}},
 "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "nvme", "nvme_path": "disk"}},
 "autotuning": {"enabled": true, "end_profile_step": 3, "tuner_num_trials": 1, "results_dir": "m", "max_train_micro_batch_size_per_gpu": 1}}
END
measured=("${train[@]/ds.json/measured.json}")
bin_was=$bin bin=$work/own
for ranks in 1 2 2; do
    job 0 --num_gpus $ranks --autotuning tune "${measured[@]}"
    says "settings for $ranks ranks predicted in"
    says 'trial 1 .*: predicted [0-9.]+ s a step'
done
bin=$bin_was
printf 'ranks %s --profile '"$work"'/m/device.json --profile_folder disk\n' 1 2 | cmp -s - asked || fail "measured: $(cat asked)"

# ---- any program that takes --deepspeed_config
cat > any.sh << 'END'
#!/bin/sh
# any.sh WAY --deepspeed_config FILE …
way=$1
for word; do [ "$before" = --deepspeed_config ] && config=$word; before=$word; done
of() { sed -nE "s/.*\"$1\": \"?([^\",]*)\"?,?\$/\1/p" "$config" | head -1; }
m=$(of train_micro_batch_size_per_gpu) z=$(of stage) out=$(of metric_path)
[ -n "$out" ] || { echo "the job: stage $z, micro-batch $m, $*"; echo "data limit $(ulimit -d)"; exit 7; }
case $way in
grow) [ "$m" -lt 4 ] || exec awk 'BEGIN { s = "x"; while (1) s = s s }' ;;
hang) [ "$m" != 2 ] || { trap '' TERM INT HUP; while :; do sleep 1; done; } ;;
slow) [ "$m" != 2 ] || { touch started; sleep 30; } ;;
fail) echo "cannot find my data" >&2; exit 3 ;;
none) exit 0 ;;
esac
# best at stage 2; larger micro-batches are faster until 4, and slower in a step
t=$((1000 / (m > 4 ? 1 : m) + (z == 2 ? 0 : 50)))
printf '{"latency": %d, "throughput": %d, "FLOPS_per_gpu": 1e9, "memory_bytes": 1000}\n' $((m * 100)) $((100000 / t)) > "$out.new"
mv "$out.new" "$out"
exec sleep 60
END
chmod +x any.sh
# Only predicted: neither the program nor ds_bench is started.
echo '{"autotuning": {"enabled": true, "results_dir": "dry", "max_train_micro_batch_size_per_gpu": 4}}' > dry.json
job 0 --num_gpus 1 --dry_run --autotuning tune ./any.sh good --deepspeed_config dry.json
says 'dry_run does not run the program'
prints '^z0_gas1_tmbspg4 '
sed 's/"overwrite": true,/"overwrite": true, "results_dir": "dry",/' ds.json > dry.json
job 0 --num_gpus 1 --dry_run --autotuning tune "${train[@]/ds.json/dry.json}"
says 'dry_run does not measure this machine'
prints '^z0_gas2_tmbspg6_rcnone '
[ -z "$(find dry -name '*.log')" ] || fail "--dry_run started something: $(find dry -name '*.log')"
# any CODE WAY AUTOTUNING REST LAUNCHER-FLAGS…
any() {
    local code=$1 way=$2
    echo "{\"optimizer\": {\"type\": \"Adam\"}, $4 \"autotuning\": {\"enabled\": true, \"model_info\": {\"num_params\": 1000},
        \"max_train_micro_batch_size_per_gpu\": ${most:-4}, \"num_tuning_micro_batch_sizes\": 9 $3}}" > any.json
    shift 4
    job "$code" "$@" ./any.sh "$way" --deepspeed_config any.json
}
start=$(date +%s)
any 0 ok '' '' --num_gpus 2 --autotuning tune
[ $(($(date +%s) - start)) -lt 60 ] || fail "trials were not ended at their metrics"
prints '^best: z2_gas1_tmbspg4, '
grep -q '"stage": 2' $r/ds_config_optimal.json && grep -q '"train_micro_batch_size_per_gpu": 4' $r/ds_config_optimal.json ||
    fail "the best of a program: $(cat $r/ds_config_optimal.json)"
# run starts it, and its exit code is the job's
any 7 ok '' '"zero_optimization": {"stage": [1, 2]},' --num_gpus 2 --rank_memory 1G --autotuning run
prints '^(\[rank 1\] )?the job: stage 2, micro-batch 4, ok --deepspeed_config '
silent 'z0_|z3_'
prints "data limit $(ulimit -d)"
# less is better
any 0 ok ', "metric": "latency"' '"zero_optimization": {"stage": 1},' --num_gpus 2 --autotuning tune
prints '^best: z1_gas1_tmbspg1, 100 ms a step, by metric "latency"'
# what the user writes stays; a flag of the program follows
any 0 ok ', "overwrite": true, "arg_mappings": {"train_micro_batch_size_per_gpu ": "--batch"}' \
    '"train_batch_size": 8, "train_micro_batch_size_per_gpu": [1, 4], "zero_optimization": {"stage": 3},' --num_gpus 2 --autotuning tune
prints '^best: z3_gas1_tmbspg4, '
silent 'tmbspg2'
grep -q -- '--batch 4$' $r/cmd_optimal.txt || fail "arg_mappings: $(cat $r/cmd_optimal.txt)"
grep -q '"train_batch_size": 8' $r/z3_gas4_tmbspg1/ds_config.json || fail "the global batch changed"
# other settings of ZeRO
any 0 ok ', "overwrite": true, "fast": false, "tuner_num_trials": 12, "tuner_early_stopping": 0' \
    '"train_micro_batch_size_per_gpu": [4], "zero_optimization": {"stage": 1, "allgather_bucket_size": [1000, 20000]},' --num_gpus 1 --autotuning tune
prints 'z1_gas1_tmbspg4_abs2\.0e\+04'
prints 'z1_gas1_tmbspg4_.*ocF'
says 'trial 12 '
silent 'trial 13'

# A trial that hangs, and hears no signal, fails with its reason; the search goes on.
MARK=hang any 0 hang ', "overwrite": true' '"zero_optimization": {"stage": 0},' --num_gpus 2 --trial_seconds 3 --autotuning tune
says 'trial [0-9] z0_gas1_tmbspg2 failed: not done with step 5 after 3 s \(--trial_seconds\): slow, or it hangs'
prints '^best: z0_gas1_tmbspg4, '
grep -q '"failure": "time"' $r/z0_gas1_tmbspg2/exp.json || fail "exp.json of a trial that hangs"
gone hang

# One that runs out of memory; what needs more is not run.
most=6
any 0 grow ', "overwrite": true, "tuner_type": "gridsearch"' \
    '"zero_optimization": {"stage": 0},' --num_gpus 1 --rank_memory 150M --autotuning tune
says 'trial [0-9] z0_gas1_tmbspg4 failed: out of memory: '
prints '^z0_gas1_tmbspg6 .* needs no less than z0_gas1_tmbspg4, which had no room'
prints '^best: z0_gas1_tmbspg3, '
grep -q '"failure": "memory"' $r/z0_gas1_tmbspg4/exp.json || fail "exp.json of a trial without memory"
# It counts again under the same bound.
any 0 grow ', "tuner_type": "gridsearch"' \
    '"zero_optimization": {"stage": 0},' --num_gpus 1 --rank_memory 150M --autotuning tune
says 'trial [0-9] z0_gas1_tmbspg4 failed: out of memory: .*\(from before\)'

most=4

# Ctrl-C ends the trial and keeps what was measured; the same command goes on.
rm -rf $r autotuning_exps started
echo '{"optimizer": {"type": "Adam"}, "zero_optimization": {"stage": 0}, "autotuning": {"enabled": true, "tuner_type": "gridsearch",
    "model_info": {"num_params": 1000}, "max_train_micro_batch_size_per_gpu": 4, "num_tuning_micro_batch_sizes": 9}}' > any.json
MARK=interrupted setsid "$bin/deepspeed" --num_gpus 2 --rank_memory 1G --autotuning run ./any.sh slow --deepspeed_config any.json > out.txt 2> err.txt < /dev/null &
tuner=$!
for _ in $(seq 1200); do [ -e started ] && break; sleep 0.05; done
# Another search stays out of the folder.
"$bin/deepspeed" --num_gpus 2 --autotuning tune ./any.sh slow --deepspeed_config any.json > out2.txt 2> err2.txt < /dev/null
grep -q 'another search is at work in this folder' err2.txt || fail "two searches in one folder: $(cat err2.txt)"
kill -INT $tuner
wait $tuner
[ $? = 130 ] || fail "an interrupted search: exit code"
says 'interrupted after 1 trials; their results are in .*, and the same command goes on'
prints '^Tuning was interrupted in '
prints '^best: z0_gas1_tmbspg1, '
silent 'the job:'
[ -s $r/ds_config_optimal.json ] && [ -s $r/summary.txt ] || fail "an interrupted search wrote no results"
gone interrupted
job 0 --num_gpus 2 --rank_memory 1G --trial_seconds 3 --autotuning tune ./any.sh slow --deepspeed_config any.json
says 'trial 1 z0_gas1_tmbspg1: .*\(from before\)'
says 'trial 2 z0_gas1_tmbspg2 failed: not done with step 5'
prints '^best: z0_gas1_tmbspg4, '

# A killed search leaves no process and whole files.
rm -f started
rm -rf $r
MARK=murdered "$bin/deepspeed" --num_gpus 2 --rank_memory 1G --autotuning tune ./any.sh slow --deepspeed_config any.json > out.txt 2> err.txt < /dev/null &
tuner=$!
disown $tuner
for _ in $(seq 1200); do [ -e started ] && break; sleep 0.05; done
kill -KILL $tuner
gone murdered
[ -s $r/z0_gas1_tmbspg1/metrics.json ] || fail "what a killed search leaves"

# Programs that only fail, or measure nothing, are told so at once.
any 1 fail ', "overwrite": true' '' --num_gpus 2 --autotuning run
says 'failed: exit code 3: (\[rank 1\] )?cannot find my data' # both ranks fail, in any order
prints '^ended: three trials failed'
any 1 none ', "overwrite": true' '"zero_optimization": {"stage": 0},' --num_gpus 1 --autotuning tune
says 'it ended before step 5 was measured'

# A program on the engine that has another name: its model is learnt by running it.
ln -s "$bin/ds_train" my_train
echo '{"optimizer": {"type": "AdamW", "params": {"lr": 0.001}}, "zero_optimization": {"stage": "all"},
    "autotuning": {"enabled": true, "overwrite": true, "end_profile_step": 3, "num_tuning_micro_batch_sizes": 1, "max_train_micro_batch_size_per_gpu": 2}}' > my.json
job 0 --num_gpus 1 --autotuning tune ./my_train --model_config gpt.json --tokenizer bytes --data text.txt --steps 30 --threads 1 --deepspeed_config=my.json
says 'profile_model_info: running the program once'
[ "$(sed -nE 's/.*"num_params": ([0-9]+).*/\1/p' $r/profile_model_info/model_info.json)" = 118528 ] || fail "the model's parameters: $(cat $r/profile_model_info/model_info.json)"
prints "predicted \\(ZeRO's formula\\)"
prints '^best: z0_gas1_tmbspg2, '

# ---- refused by name
echo '{"train_batch_size": 8, "autotuning": {"enabled": false}}' > bad.json
job 2 --autotuning tune ./any.sh ok --deepspeed_config bad.json
says 'bad.json: autotuning.enabled is false and --autotuning is given'
echo '{"train_batch_size": 8, "autotuning": {"enabled": true, "tuner_num_trails": 3}}' > bad.json
job 2 --autotuning tune ./any.sh ok --deepspeed_config bad.json
says 'autotuning.tuner_num_trails: unknown key.*tuner_num_trials'
echo '{"gradient_accumulation_steps": [1, 2], "autotuning": {"enabled": true}}' > bad.json
job 2 --autotuning tune ./any.sh ok --deepspeed_config bad.json
says 'gradient_accumulation_steps: expected one number'
echo '{"zero_optimization": {"stage": [1, 4]}, "autotuning": {"enabled": true}}' > bad.json
job 2 --autotuning tune ./any.sh ok --deepspeed_config bad.json
says 'zero_optimization.stage: expected a stage from 0 to 3'
echo '{"train_batch_size": 7, "autotuning": {"enabled": true}}' > bad.json
job 2 --num_gpus 2 --autotuning tune ./any.sh ok --deepspeed_config bad.json
says 'train_batch_size: expected a multiple of the 2 ranks'
echo '{"train_batch_size": 4, "autotuning": {"enabled": true, "mp_size": 2}}' > bad.json
job 2 --autotuning tune ./any.sh ok --deepspeed_config bad.json
says 'autotuning.mp_size: not available'
job 2 --autotuning tune ./any.sh ok
says 'expected --deepspeed_config FILE among the arguments of ./any.sh'
job 2 --launcher openmpi --autotuning tune ./any.sh ok --deepspeed_config any.json
says -- '--autotuning with --launcher openmpi'
job 2 --restarts 2 --autotuning tune ./any.sh ok --deepspeed_config any.json
says -- '--autotuning with --restarts'
sed -i 's/"AdamW"/"AdmaW"/' ds.json
job 2 --device none --num_gpus 1 --autotuning tune "${train[@]}"
says 'no setting can be planned; .*AdmaW'
exit $failed
