#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Bad input through the real tools: each case has its exit code and a text that its one error message must
# hold. Nothing crashes, and files that were there before are untouched.
set -u
bin=$(realpath "$1")
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/bad_input.XXXXXX")
trap 'chmod -R u+w "$work"; rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
cases=0

# bad CODE TEXT TOOL ARGS…: exit code, text in the message; exactly one line of stderr starts "TOOL: ".
bad() {
    local want=$1 text=$2 tool=$3 code n
    shift 3
    cases=$((cases + 1))
    "$bin/$tool" "$@" > out.txt 2> err.txt < /dev/null
    code=$?
    n=$(grep -c "^$tool: " err.txt)
    if [ $code != "$want" ] || [ "$n" != 1 ] || ! grep -qF -- "$text" err.txt; then
        echo "FAILED: $tool $*: exit $code (expected $want), $n messages, expected '$text' in:"
        head -c 600 err.txt
        failed=1
    fi
}

head -c 3000 "$root/data/tinyshakespeare.txt" > text.txt
echo '{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}' > ds.json
gpt=$root/test/common/gpt2.json

# A run that would be right, in parts.
run=(--model_config "$gpt" --tokenizer bytes --seq_length 16 --threads 1)
tune=(--tokenizer bytes --data text.txt --seq_length 16 --threads 1 --deepspeed_config ds.json --steps 1)
data=("${run[@]}" --deepspeed_config ds.json --steps 1)
full=("${data[@]}" --data text.txt)

"$bin/ds_train" "${full[@]}" --output saved > setup.txt 2>&1 || { cat setup.txt; exit 1; }
tag=$(cat saved/latest)
mkdir model && cp saved/config.json saved/model.safetensors model
find saved model text.txt ds.json -type f -exec cksum {} + | sort > before.txt

# ---- folders that are no model folders
bad 1 "unable to open saved/$tag/config.json: No such file or directory; that is a checkpoint: give the folder that holds it" \
    ds_generate --model "saved/$tag" --tokenizer bytes --prompt a
bad 1 'unable to open no/such/folder/config.json: No such file or directory; there is no such folder' \
    ds_generate --model no/such/folder --tokenizer bytes --prompt a
mkdir hollow
bad 1 'unable to open hollow/config.json: No such file or directory; a model folder has one' ds_generate --model hollow --tokenizer bytes --prompt a
bad 1 'a model folder has one' ds_train "${tune[@]}" --model hollow

# ---- rows of which nothing counts
echo '{"prompt": "a question that is longer than a row", "completion": "b"}' > long.jsonl
bad 1 'no sample is left: 0 are longer than 16 tokens, 1 have no answer within them; give longer rows (--seq_length)' \
    ds_train "${data[@]}" --data long.jsonl

# ---- flags
bad 2 'stepz' ds_train "${full[@]}" --stepz 3
bad 2 'steps' ds_train "${full[@]}" --steps abc
bad 2 'steps' ds_train "${full[@]}" --steps -4
bad 2 'too_long' ds_train "${full[@]}" --too_long maybe
bad 2 'eval_fraction' ds_train "${full[@]}" --eval_fraction 2
# before a step is taken, not after the last
bad 1 'ds_train: --output text.txt is --data text.txt, which this run reads' ds_train "${full[@]}" --output text.txt
bad 1 'ds_train: cannot create folder /proc/x: ' ds_train "${full[@]}" --output /proc/x
sed 's/^{/{"fp16": {"enabled": true}, /' ds.json > half.json
bad 1 'fp16.enabled: the file and the flag --bf16 disagree' ds_train "${full[@]}" --deepspeed_config half.json --bf16
# a flag is in force, or named
for flag in learning_rate weight_decay max_grad_norm adam_beta1 adam_epsilon warmup_steps; do
    bad 2 "--$flag: expected at least 0, found -1" ds_train "${full[@]}" --$flag -1
done
bad 2 '--micro_batch: expected at least 1, found -1' ds_train "${full[@]}" --micro_batch -1
bad 2 '--gradient_accumulation_steps: expected at least 1, found 0' ds_plan "${run[@]:0:2}" \
    --deepspeed_config ds.json --gradient_accumulation_steps 0
bad 2 "--micro_batch: expected a whole number, found '1.5'" ds_config resolve ds.json --micro_batch 1.5
bad 1 'lr: the file and the flag --learning_rate disagree: 0.001 here, 0.5 by' ds_train "${full[@]}" --learning_rate 0.5
bad 1 '--warmup_steps is not in force: without a section "scheduler"' ds_train "${full[@]}" --warmup_steps 5 \
    --lr_scheduler_type none
bad 2 '--warmup_ratio: expected at most 1' ds_train "${full[@]}" --warmup_ratio 1.5
bad 1 '--warmup_steps and --warmup_ratio are both given' ds_train "${full[@]}" --warmup_ratio 0.5 --warmup_steps 1
echo '{"train_batch_size": 2}' > bare.json
bad 1 'found "galore_adamw", which is not built' ds_config resolve bare.json --optim galore_adamw
bad 1 'the file and the flag --optim disagree' ds_train "${full[@]}" --optim sgd
bad 1 'found "greedy", which is not built' ds_train "${full[@]}" --lr_scheduler_type greedy
bad 1 '--lr_scheduler_type: expected one of linear' ds_train "${full[@]}" --lr_scheduler_type liner
bad 1 '--lr_scheduler_kwargs:1:' ds_train "${full[@]}" --lr_scheduler_kwargs '{"a'
bad 1 '"a" is no parameter of linear' ds_train "${full[@]}" --lr_scheduler_kwargs '{"a": 1}'
bad 1 'needs one of min_lr and min_lr_rate' ds_train "${full[@]}" --lr_scheduler_type cosine_with_min_lr
bad 1 'world size = 3 × 1 × 1 = 3, found 2; remove one of the three (--micro_batch and' ds_train "${full[@]}" \
    --micro_batch 3 --gradient_accumulation_steps 1
sed 's/AdamW/SGD/' ds.json > sgd.json
bad 1 '--adam_epsilon is not in force: expected one whose params have "eps", found "SGD"' ds_train "${full[@]}" \
    --deepspeed_config sgd.json --adam_epsilon 1e-6
bad 2 'model' ds_train --data text.txt --tokenizer bytes --deepspeed_config ds.json --steps 1
bad 2 'data' ds_train "${data[@]}"
bad 2 'deepspeed_config' ds_train "${run[@]}" --data text.txt --steps 1 --deepspeed_config
bad 2 'steps' ds_train "${run[@]}" --data text.txt --deepspeed_config ds.json --steps 2 --epochs 1
bad 2 'model' ds_train "${full[@]}" --model model
bad 2 'epochs' ds_train "${full[@]}" --epochs 1
bad 2 'resume' ds_train "${full[@]}" --resume
bad 2 'tokenizer' ds_train --model_config "$gpt" --data text.txt --deepspeed_config ds.json --steps 1
bad 2 'model' ds_generate --prompt x
bad 2 'dtype' ds_generate --model saved --prompt x --dtype i8
bad 2 'top_p' ds_generate --model saved --prompt x --top_p 3
bad 2 'tokens' ds_generate --model saved --prompt x --max_new_tokens many
bad 2 '' ds_data
bad 2 'tokenizer' ds_data tokenize text.txt --output o
bad 2 'output' ds_data tokenize text.txt --tokenizer bytes

# ---- a full disk behind standard output
for tool in deepspeed ds_accel_test ds_bench ds_checkpoint ds_config ds_data ds_elastic ds_generate ds_io ds_nvme_tune ds_plan ds_report ds_ssh \
    ds_train zero_to_fp32; do
    cases=$((cases + 1))
    "$bin/$tool" --help > /dev/full 2> err.txt && { echo "FAILED: $tool --help into a full disk is no error"; failed=1; }
    grep -q "^$tool: cannot write all of the output" err.txt || { echo "FAILED: $tool says nothing of a full disk"; failed=1; }
done

# ---- configuration
config() { # text, expected
    echo "$1" > bad.json
    bad 1 "$2" ds_train "${run[@]}" --data text.txt --steps 1 --deepspeed_config bad.json
}
bad 1 'none.json' ds_train "${run[@]}" --data text.txt --steps 1 --deepspeed_config none.json
config '{"train_batch_size": ' 'bad.json:'
config '[]' 'bad.json'
config '{"train_batch_size": 2, "optimiser": {"type": "Adam"}}' 'optimiser'
config '{"train_batch_size": "two"}' 'train_batch_size'
config '{"train_batch_size": 0}' 'train_batch_size'
config '{"train_batch_size": 5, "train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": 2}' 'train_batch_size'
config '{"train_batch_size": 2, "optimizer": {"type": "Magic"}}' 'Magic'
config '{"train_batch_size": 2, "fp16": {"enabled": true}, "bf16": {"enabled": true}}' 'bf16'
config '{"train_batch_size": 2, "zero_optimization": {"stage": 9}}' 'stage'
config '{"train_micro_batch_size_per_gpu": "many"}' 'micro_batch'

# ---- model folders
folder() { # name: a fresh copy of the right folder
    rm -rf broken
    cp -r model broken
}
bad_folder() { bad 1 "$1" ds_train "${tune[@]}" --model broken; }
bad 1 'nowhere' ds_train "${tune[@]}" --model nowhere
folder && rm broken/config.json
bad_folder 'config.json'
folder && echo '{' > broken/config.json
bad_folder 'config.json'
folder && sed -i 's/"gpt2"/"mystery"/' broken/config.json
bad_folder 'mystery'
folder && sed -i 's/"n_layer": 4/"n_layer": 5/' broken/config.json
bad_folder 'h.4.'
folder && sed -i 's/"n_layer": 4/"n_layer": 3/' broken/config.json
bad_folder 'h.3.'
folder && sed -i 's/"n_positions": 128/"n_positions": 64/' broken/config.json
bad_folder 'wpe'
folder && sed -i 's/"n_head": 4/"n_head": 0/' broken/config.json
bad_folder 'n_head'
folder && rm broken/model.safetensors
bad_folder 'safetensors'
folder && truncate -s -100 broken/model.safetensors
bad_folder 'model.safetensors'
folder && truncate -s 4 broken/model.safetensors
bad_folder 'model.safetensors'
folder && : > broken/model.safetensors
bad_folder 'model.safetensors'
folder && printf '\377\377\377\377\377\377\377\177' | dd of=broken/model.safetensors conv=notrunc status=none
bad_folder 'model.safetensors'
folder && printf 'xx' | dd of=broken/model.safetensors bs=1 seek=8 conv=notrunc status=none
bad_folder 'model.safetensors'
bad 1 'tokenizer' ds_train --model model --data text.txt --deepspeed_config ds.json --steps 1

# ---- tokenizers
bad 1 'nowhere' ds_data tokenize text.txt --tokenizer nowhere --output o
echo '{' > tokenizer.json
bad 1 'tokenizer.json' ds_data tokenize text.txt --tokenizer tokenizer.json --output o
echo '{"model": {"type": "Unigram", "vocab": []}}' > tokenizer.json
bad 1 'Unigram' ds_data tokenize text.txt --tokenizer tokenizer.json --output o

# ---- data
bad 1 'none.txt' ds_train "${data[@]}" --data none.txt
: > empty.txt
bad 1 'empty' ds_train "${data[@]}" --data empty.txt
: > empty.jsonl
bad 1 'empty' ds_train "${data[@]}" --data empty.jsonl
printf '{"text": "one"}\n{"text": \n' > line.jsonl
bad 1 'line.jsonl:2' ds_train "${data[@]}" --data line.jsonl
printf '{"text": "one"}\n{"prompt": "a", "completion": "b"}\n' > mixed.jsonl
bad 1 'mixed.jsonl' ds_train "${data[@]}" --data mixed.jsonl
printf '{"other": "one"}\n' > keys.jsonl
bad 1 'keys.jsonl' ds_train "${data[@]}" --data keys.jsonl
bad 1 'text.zip' ds_train "${data[@]}" --data text.zip
echo short > short.txt
bad 1 '' ds_train "${data[@]}" --data short.txt
"$bin/ds_data" tokenize text.txt --tokenizer bytes --output good > out.txt 2>&1 || failed=1
cp good.bin odd.bin && head -c 20 good.idx > odd.idx
bad 1 'odd' ds_train "${data[@]}" --data odd.bin
cp good.bin magic.bin && cp good.idx magic.idx && printf 'XXXX' | dd of=magic.idx conv=notrunc status=none
bad 1 'magic' ds_train "${data[@]}" --data magic.idx
cp good.idx cut.idx && head -c 100 good.bin > cut.bin
bad 1 'cut' ds_train "${data[@]}" --data cut.bin
cp good.bin alone.bin
bad 1 'alone.idx' ds_data inspect alone.bin --tokenizer bytes

# ---- outputs
bad 1 '/dev/null/x' ds_train "${full[@]}" --output /dev/null/x
bad 1 '/proc/none' ds_train "${full[@]}" --output /proc/none
bad 1 '/dev/full' ds_train "${full[@]}" --metrics /dev/full
bad 1 '/dev/null/m' ds_train "${full[@]}" --metrics /dev/null/m
bad 1 '/dev/null' ds_data tokenize text.txt --tokenizer bytes --output /dev/null/o

# ---- checkpoints
resume=("${data[@]}" --data text.txt --steps 2 --output copy)
fresh() { rm -rf copy && cp -r saved copy; }
fresh
bad 1 'nothing' ds_train "${resume[@]}" --resume nothing
fresh && echo other > copy/latest
bad 1 'other' ds_train "${resume[@]}" --resume
fresh && echo ../saved > copy/latest
bad 1 'latest' ds_train "${resume[@]}" --resume
fresh && echo '{' > "copy/$tag/ds_manifest.json"
bad 1 'ds_manifest.json' ds_train "${resume[@]}" --resume
shard=$(basename "saved/$tag/"*.safetensors)
fresh && truncate -s -64 "copy/$tag/$shard"
bad 1 "$shard" ds_train "${resume[@]}" --resume
fresh && printf 'zzzz' | dd of="copy/$tag/$shard" bs=1 seek=50000 conv=notrunc status=none
bad 1 'checksum' ds_train "${resume[@]}" --resume
fresh && rm "copy/$tag/$shard"
bad 1 "$shard" ds_train "${resume[@]}" --resume
fresh
sed 's/"n_layer": 4/"n_layer": 5/' "$gpt" > other.json
bad 1 'it had "n_layer: 4"' ds_train --model_config other.json "${tune[@]}" --output copy --resume
sed 's/"n_layer": 4/"n_layer": 3/' "$gpt" > fewer.json
bad 1 'n_layer' ds_train --model_config fewer.json "${tune[@]}" --output copy --resume
sed 's/AdamW/SGD/' ds.json > sgd.json
bad 1 'optimizer adam, the configuration asks for sgd' ds_train "${run[@]}" --data text.txt --steps 2 --deepspeed_config sgd.json --output copy --resume

# ---- a full disk, where this user may mount one
mkdir disk
if mount -t tmpfs -o size=2m tmpfs disk 2> /dev/null; then
    bad 1 'No space left' ds_train "${full[@]}" --output disk/out
    umount disk
else
    echo "not run: a full disk (mount is not permitted)"
fi

find saved model text.txt ds.json -type f -exec cksum {} + | sort > after.txt
cmp before.txt after.txt || { echo "FAILED: files that were there before have changed"; failed=1; }
echo "$cases cases"
[ $cases -ge 60 ] || failed=1
exit $failed
