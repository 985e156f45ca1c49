#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# ds_train --trace on one rank and two, and ds_plan diff: the run's timeline beside the plan's, as a
# table and in one file.
# Usage: test_trace_diff.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() {
    echo "FAIL: $1"
    [ ! -e log ] || cat log
    exit 1
}
# want EXIT PATTERN COMMAND…: the exit code, and a line of the output
want() {
    local code=0
    local exit=$1 pattern=$2
    shift 2
    "$@" > log 2>&1 || code=$?
    [ "$code" = "$exit" ] || fail "exit $code, expected $exit: $*"
    grep -qE -- "$pattern" log || fail "no \"$pattern\": $*"
}

cat > gpt.json << END
{"model_type": "gpt2", "vocab_size": 256, "n_positions": 64, "n_embd": 64, "n_layer": 3, "n_head": 4}
END
cat > ds.json << END
{"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2, "bf16": {"enabled": true}, "steps_per_print": 1000,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "gradient_clipping": 1.0,
 "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 100}}
END
for i in $(seq 400); do echo "line $i: the quick brown fox jumps over the lazy dog"; done > text.txt
model=(--model_config gpt.json --deepspeed_config ds.json --seq_length 32)
train=("$build/ds_train" "${model[@]}" --tokenizer bytes --data text.txt --threads 1)
plan=("$build/ds_plan" "${model[@]}" --world_size 2 --device xeon-amx-2)

# which steps
want 0 'trace of steps 2 to 3: one.json' "${train[@]}" --steps 5 --trace one.json
[ "$(grep -c '"name":"step"' one.json)" = 2 ] || fail "not two steps"
grep -q '"step":2,' one.json && grep -q '"step":3,' one.json || fail "not steps 2 and 3"
want 0 'trace of steps 1 to 1: first.json' "${train[@]}" --steps 1 --trace first.json
want 0 'trace of steps 4 to 4: last.json' "${train[@]}" --steps 4 --trace last.json --trace_steps 4
for bad in 0 3:2 2:9 x 2: 2:3:4 -1 1.5; do
    want 1 'trace_steps .*(expected A:B|goes from step 1 to step 5)' \
        "${train[@]}" --steps 5 --trace no.json --trace_steps=$bad
done
want 2 'trace_steps needs --trace' "${train[@]}" --steps 5 --trace_steps 2
# a place that cannot be written is found before the first step
mkdir folder
printf kept > before.json
for place in none/x.json folder /dev/null/x; do
    want 1 "^ds_train: --trace: cannot .*${place%/x*}" "${train[@]}" --steps 5 --metrics none.jsonl --trace $place
    [ ! -e none.jsonl ] || fail "a run began whose trace cannot be written to $place"
done
want 1 'goes from step 1 to step 5' "${train[@]}" --steps 5 --trace before.json --trace_steps 9 --overwrite
[ "$(cat before.json)" = kept ] && [ ! -e no.json ] || fail "a refused run wrote a trace"

# a trace that cannot be written costs no training: the rest of it and its checkpoint are there
take() { # a folder takes the trace's place once the run has begun
    "$@" --metrics begun.jsonl &
    until [ -s begun.jsonl ] || ! kill -0 $! 2> /dev/null; do sleep 0.01; done
    mkdir taken
    wait $!
}
want 1 'no trace: cannot write taken: .*; the run goes on' \
    take "${train[@]}" --steps 300 --output kept --trace taken --trace_steps 299
grep -q 'ended well, but the trace taken was not written' log || fail "no last word of the trace"
[ "$(cat kept/latest)" = global_step300 ] || fail "the run ended with its trace"

# two ranks beside the plan
want 0 'trace of steps 2 to 3: run.json' \
    "$build/deepspeed" --num_gpus 2 "${train[@]}" --steps 4 --trace run.json
want 0 'fits' "${plan[@]}" --trace plan.json
want 0 'planned +measured +ratio +slowest B' "$build/ds_plan" diff plan.json run.json --trace both.json
for row in forward backward norm update sum linear waiting communication 'transformer.h.\*.mlp.c_fc'; do
    grep -qE "^  $row +[0-9]+\.[0-9]{3} +[0-9]+\.[0-9]{3} +[0-9]+\.[0-9]{2}" log || fail "no row $row"
done
cp log table
# phases and what the thread did are the same time, told twice: in both columns, within 5 %
awk '$1 == "sum" { planned[++n] = $2; measured[n] = $3 }
    function near(a, b) { return a > 0 && b > 0.95 * a && b < 1.05 * a }
    END { exit !(n == 3 && near(planned[1], planned[2]) && near(planned[2], planned[3]) &&
                 near(measured[1], measured[2]) && near(measured[2], measured[3])) }' table || {
    cat table
    fail "the sums differ"
}
want 0 'planned +measured' "$build/ds_plan" diff ds.json run.json --model_config gpt.json \
    --seq_length 32 --world_size 2 --device xeon-amx-2
for process in 'planned rank' 'rank 0' 'rank 1'; do
    grep -q "\"$process\"" both.json || fail "no process $process in one file"
done
want 0 'A +B +ratio' "$build/ds_plan" diff one.json run.json --trace runs.json
grep -q 'rank 0 (one.json)' runs.json && grep -q 'rank 0 (run.json)' runs.json || fail "ranks mixed up"
want 0 ' 1\.00' "$build/ds_plan" diff run.json run.json

# phases that some updates have only (ZenFlow) count by their share
sed 's/"stage": 3,/"stage": 2, "offload_optimizer": {"device": "cpu"}, "zenflow": {"select_strategy": "step", "select_interval": 4, "update_interval": 2},/' ds.json > zen.json
zen=("${model[@]/ds.json/zen.json}")
want 0 'trace of steps 2 to 9' "${train[@]/ds.json/zen.json}" --steps 9 --trace zen_run.json --trace_steps 2:9
want 0 'fits' "$build/ds_plan" "${zen[@]}" --world_size 1 --device xeon-amx-2 --trace zen_plan.json
want 0 'planned +measured' "$build/ds_plan" diff zen_plan.json zen_run.json
for row in norm settle choose fetch postpone rest update; do
    grep -qE "^  $row +[0-9]+\.[0-9]{3} +[0-9]+\.[0-9]{3} +[0-9]+\.[0-9]{2}" log || fail "no row $row"
done
for i in plan run; do # milliseconds of an update of the spans themselves
    awk -F'[:,]' -v planned=$([ $i = plan ] && echo 1 || echo 0) '/"name":"(rest|choose)"/ {
        name = $12; dur = $10; n[name]++; s[name] += dur }
        END { every["\"rest\""] = 2; every["\"choose\""] = 4
              for (k in s) { gsub(/"/, "", k); q = "\"" k "\""; print k, s[q] / 1e3 / (planned ? every[q] : 8) } }' zen_$i.json |
        while read -r name ms; do
            awk -v name="$name" -v ms="$ms" -v at=$([ $i = plan ] && echo 2 || echo 3) '$1 == name && NF > 3 {
                d = $at - ms; ok = d < 0.0011 && d > -0.0011 } END { exit !ok }' log || fail "$name of $i is not $ms"
        done
done

# another host, whose clock is 1000 s ahead: the ranks' steps still stand together
cat > other_host << END
#!/bin/sh
mount --bind "$work/boot_id" /proc/sys/kernel/random/boot_id && exec "\$@"
END
echo 11111111-2222-3333-4444-555555555555 > boot_id
chmod +x other_host
away="unshare --mount --time --monotonic 1000 --fork $work/other_host"
if [ -e "$build/libdeepspeed_ucx.so" ] && $away true 2> /dev/null; then
    rank() { # RANK, then a command in front: a rank of two hosts
        local number=$1
        shift
        RANK=$number WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 MASTER_ADDR=127.0.0.1 MASTER_PORT=$port \
            DEEPSPEED_TIMEOUT=1 "$@" "${train[@]}" --steps 3 --trace hosts.json
    }
    port=$((20000 + $$ % 20000))
    rank 0 env > log 2>&1 &
    first=$!
    rank 1 $away > log1 2>&1 || { cat log log1; fail "rank 1 of two hosts"; }
    wait "$first" || fail "rank 0 of two hosts"
    awk -F'[:,]' '/"name":"step"/ { begin[$4] = $8; end[$4] = $8 + $10 }
        END { exit !(begin[1000] < end[1001] && begin[1001] < end[1000] && begin[1000] >= 0 && begin[1001] >= 0) }' hosts.json || {
        grep '"name":"step"' hosts.json
        fail "clocks of two hosts"
    }
else
    echo "skipped: two hosts need UCX and a time name space"
fi

# what is no trace
"${plan[@]}" --json report.json || fail "no report"
want 1 'report.json is a report, which has no spans' "$build/ds_plan" diff report.json run.json
want 1 'ds.json is no report .* and no trace' "$build/ds_plan" diff ds.json run.json
echo '{"traceEvents": [{"ph": "X"}, 3, {"ph": "M", "name": "process_name"}, {"args": 3, "cat": "phase"}]}' > odd.json
want 1 'odd.json has no phases of a step' "$build/ds_plan" diff odd.json run.json
head -c 2000 run.json > cut.json
want 1 'cut.json is no report .* and no trace' "$build/ds_plan" diff cut.json run.json
echo "trace_diff: fine"
