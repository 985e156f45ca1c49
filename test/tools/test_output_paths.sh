#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# No path that ds_train writes may be one that it reads, by whatever name: refused before anything is written.
set -euo pipefail
bin=$(realpath "$1")
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/output_paths.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
failed=0 n=0
head -c 3000 "$root/data/tinyshakespeare.txt" > text.txt
cp text.txt held.txt
cp "$root/test/common/gpt2.json" gpt2.json
echo '{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}' > ds.json
sed 's/}}}/}}, "flops_profiler": {"enabled": true, "output_file": "text.txt"}}/' ds.json > profiled.json
run=(--seq_length 16 --threads 1 --deepspeed_config ds.json --steps 1)
fresh=(--model_config gpt2.json --tokenizer bytes --data text.txt --eval_data held.txt "${run[@]}")
"$bin/ds_train" --model_config gpt2.json --tokenizer bytes --data text.txt "${run[@]}" --output model > log.txt 2>&1 || { cat log.txt; exit 1; }
rm -r model/global_step1 model/latest
cp -r model teacher
"$bin/ds_data" tokenize text.txt --tokenizer bytes --output packed > log.txt 2>&1 || { cat log.txt; exit 1; }
mkdir links sub
ln -s ../text.txt links/soft
ln text.txt links/hard
ln model/config.json links/config
ln -s ../model links/model
sums() { find . -type f ! -name log.txt ! -name sums ! -name now -print0 | sort -z | xargs -0 sha256sum; find . ! -type f | sort; }
sums > sums
bad() { # text, flags
    local text=$1 code=0
    shift
    n=$((n + 1))
    "$bin/ds_train" "$@" > log.txt 2>&1 || code=$?
    if [ $code != 1 ] || ! grep -qF -- "$text" log.txt; then
        echo "FAILED: exit $code, expected '$text': $* $(tail -n 2 log.txt)" && failed=1
    fi
    sums > now
    if ! cmp -s now sums; then
        echo "FAILED: something was written: $* $(diff sums now)"
        exit 1
    fi
}
for flag in --metrics --trace; do
    for path in text.txt ./text.txt sub/../text.txt "$PWD/text.txt" links/soft links/hard; do
        bad "$flag $path is --data text.txt" "${fresh[@]}" $flag $path
    done
    bad "$flag held.txt is --eval_data held.txt" "${fresh[@]}" $flag held.txt
    bad "$flag ds.json is --deepspeed_config ds.json" "${fresh[@]}" $flag ds.json
    bad "$flag gpt2.json is --model_config gpt2.json" "${fresh[@]}" $flag gpt2.json
    tune=(--model model --tokenizer bytes --data text.txt "${run[@]}")
    bad "$flag model/config.json is inside of --model model" "${tune[@]}" $flag model/config.json
    bad "$flag links/model/new is inside of --model model" "${tune[@]}" $flag links/model/new
    bad "$flag links/config is the file model/config.json of --model model" "${tune[@]}" $flag links/config
    bad "is --data packed.bin" --model_config gpt2.json --tokenizer bytes --data packed.bin "${run[@]}" $flag packed.bin
    bad "packed.idx, which this run reads" --model_config gpt2.json --tokenizer bytes --data packed.bin "${run[@]}" $flag packed.idx
done
for path in model ./model/ links/model; do
    bad "--output $path is --model model" "${tune[@]}" --output $path --overwrite
    bad "--output $path is --model model" "${tune[@]}" --output $path --resume
done
bad "--output teacher is --teacher teacher" --model_config gpt2.json --teacher teacher --tokenizer bytes --data text.txt "${run[@]}" --output teacher --overwrite
bad '--output model/tuned is inside of --model model' "${tune[@]}" --output model/tuned
bad '--output model/config.json is --model_config model/config.json' --model_config model/config.json --tokenizer bytes --data text.txt "${run[@]}" --output model/config.json
bad '--output model would get files over --model_config model/config.json' --model_config model/config.json --tokenizer bytes --data text.txt "${run[@]}" --output model --overwrite
bad '--output text.txt is --data text.txt' "${fresh[@]}" --output text.txt
bad '--metrics and --trace are both m.jsonl' "${fresh[@]}" --metrics m.jsonl --trace ./m.jsonl
bad 'flops_profiler.output_file text.txt is --data text.txt' "${fresh[@]}" --deepspeed_config profiled.json
# What only looks like it is no obstacle.
"$bin/ds_train" "${fresh[@]}" --output modelled --metrics modelled/metrics.jsonl --trace /dev/null > log.txt 2>&1 || true
grep -q 'which this run reads' log.txt && { echo "FAILED: $(cat log.txt)"; failed=1; }
echo "$n paths refused"
exit $failed
