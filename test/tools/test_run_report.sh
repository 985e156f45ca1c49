#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# The page of a run and its history: figures, verdicts, what hostile names become, resumes and restarts, whose files are
# replaced, runs compared.
set -eu
bin=$1
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/run_report.XXXXXX")
trap 'for job in $(jobs -p); do kill -9 "$job" 2> /dev/null || true; done; rm -rf "$work"' EXIT
cd "$work"

check() { python3 "$root/test/tools/run_report.py" "$@"; }
mkdir -p "m\"><script>alert(1)<"
hostile='m"><script>alert(1)<'
cp "$root/test/common/gpt2.json" "$hostile/c.json"
head -c 9000 "$root/docs/config.md" > text.txt
cat > ds.json << 'END'
{"train_batch_size": 2, "fp16": {"enabled": true, "initial_scale_power": 18}, "steps_per_print": 100, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": "auto"}}}
END
refused() { # COMMAND…: it fails
    if "$@"; then
        echo "not refused: $*" >&2
        exit 1
    fi
}
train=("$bin/ds_train" --model_config "$hostile/c.json" --tokenizer bytes --data text.txt --seq_length 16 --threads 1
    --deepspeed_config ds.json)
run() { # OUTPUT FLAGS…
    local output=$1
    shift
    "${train[@]}" --output "$output" "$@" > out 2> err
}

# A run of 8 steps, some skipped by the loss scale, interrupted in the middle as it were, and resumed.
run "o<b>" --steps 8 --eval_fraction 0.1 --eval_interval 3 --save_interval 4
check "o<b>/report.html" "o<b>/history.jsonl" finished 'step 8 of 8' 'o<b>' "$hostile/c.json" 'Loss scale' -refresh \
    'train_micro_batch_size_per_gpu' 'fp16.initial_scale_power' 'Machine' 'Saves 2' 'Peak memory' -resumed
grep -q '"skipped":true' "o<b>/history.jsonl"
refused grep -q '<script>alert\|<img' "o<b>/report.html"
rm -r "o<b>/global_step8"
run "o<b>" --steps 9 --eval_fraction 0.1 --eval_interval 3 --resume global_step4
check "o<b>/report.html" "o<b>/history.jsonl" finished 'step 9 of 9' 'resumed after step 4' 'started after step 0'
[ "$(grep -c '"event":"start"' "o<b>/history.jsonl")" = 2 ]

# Without a model that can go on: the error is on the page. A restart keeps its sessions.
sed 's/"initial_scale_power": 18/"loss_scale": 1e38/' ds.json > inf.json
mv inf.json ds.json
refused run bad --steps 8 --max_skipped_steps 3
check bad/report.html bad/history.jsonl failed 'gradients' 'The error' -refresh
export DS_RESTART_COUNT=1
refused run bad --steps 8 --max_skipped_steps 3
unset DS_RESTART_COUNT
check bad/report.html bad/history.jsonl failed 'restarted after step 0'
sed 's/"loss_scale": 1e38/"loss_scale": 8/' ds.json > good.json
mv good.json ds.json

# While it runs the page loads itself anew; the end stops that.
"${train[@]}" --output live --steps 1000000 > out 2> err &
for _ in $(seq 300); do
    grep -q 'location.reload' live/report.html 2> /dev/null && break
    sleep 0.1
done
check live/report.html running refresh 'No news Nothing was written here for more than 10:00 min: the run was killed, or it stands still'
kill $!
wait $! || [ $? = 130 ]
check live/report.html interrupted -refresh '-No news'

# What is not ours stays; a page can be left out, or be elsewhere.
mkdir own
echo mine > own/report.html
refused run own --steps 1
grep -q 'own/report.html is there and was not written as a run report' err
[ "$(cat own/report.html)" = mine ]
run own --steps 1 --report none
[ "$(cat own/report.html)" = mine ]
mkdir other
echo '{"step": 1}' > other/history.jsonl
refused run other --steps 1
grep -q 'other/history.jsonl is there and is no history' err
run page --steps 1 --report else.html
[ ! -e page/report.html ]
check else.html page/history.jsonl finished
"${train[@]}" --steps 2 --report alone.html --metrics m.jsonl 2> err
check alone.html m.jsonl finished

# The plan of memory holds what the process has: what was measured on the way is given back.
echo '{"train_batch_size": 2, "optimizer": {"type": "AdamW"}, "memory_breakdown": true}' > memory.json
"${train[@]/ds.json/memory.json}" --steps 3 --metrics memory.jsonl > out 2> err
if nm "$bin/ds_train" | grep -E '__(asan|tsan|msan)_init' > /dev/null; then
    echo "sanitizer: resident memory not compared"
else
    awk '$1 == "sum" { planned = $2; resident = $4 } END { exit !(planned > 40 && resident < planned + 1) }' out err ||
        { grep -h ' sum ' out err >&2; exit 1; }
fi

# Several runs, of folders and of --metrics files.
"$bin/ds_report" --runs "o<b>" page m.jsonl --output cmp.html
check cmp.html '3 runs compared' 'What differs' 'o<b>' m.jsonl 'fp16.loss_scale' -'train_batch_size '
"$bin/ds_report" --runs m.jsonl --output one.html
check one.html m.jsonl 'no end recorded'
refused "$bin/ds_report" --runs ds.json --output x.html 2> err
grep -q 'ds.json is no history of a run' err
refused "$bin/ds_report" --runs m.jsonl --output text.txt 2> err
grep -q 'would be lost' err
refused "$bin/ds_report" --runs m.jsonl --output m.jsonl 2> err
refused "$bin/ds_report" --runs m.jsonl 2> err

# No other output has the name of a file that the run writes into its folder.
for name in history.jsonl report.html config.json model.safetensors tokenizer.json latest global_step1; do
    refused run fresh --steps 1 --metrics "fresh/$name"
    grep -q "metrics fresh/$name has a name that the run itself writes" err
done
refused run fresh --steps 1 --report fresh/config.json
[ ! -e fresh ]
mkdir fresh
run fresh --steps 1 --metrics fresh/metrics.jsonl --report fresh/page.html
check fresh/page.html fresh/metrics.jsonl finished
