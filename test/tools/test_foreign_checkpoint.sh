#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A checkpoint of DeepSpeed for Python, given to any tool that takes one: the error says what it is and what works.
set -euo pipefail
bin=$(realpath "$1")
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/foreign.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
failed=0 n=0
head -c 3000 "$root/data/tinyshakespeare.txt" > text.txt
echo '{"train_batch_size": 2, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}}' > ds.json
train=(ds_train --model_config "$root/test/common/gpt2.json" --tokenizer bytes --seq_length 16 --threads 1 --data text.txt --deepspeed_config ds.json --steps 1)
says() { # text, command
    local text=$1 code=0
    shift
    n=$((n + 1))
    "$bin/$1" "${@:2}" > log.txt 2>&1 || code=$?
    if [ $code = 0 ] || [ $code -gt 3 ] || ! grep -qF -- "$text" log.txt || ! grep -q 'not supported yet\|is a model folder\|no file of torch.save\|lacks \|(ZeRO' log.txt; then
        echo "FAILED: exit $code, expected '$text': ${*:1:3} $(tail -n 2 log.txt)" && failed=1
    fi
}
all() { # folder, text
    says "$2" "${train[@]}" --output "$1" --resume
    for verb in list inspect verify; do
        says "$2" ds_checkpoint $verb "$1"
    done
    says "$2" ds_checkpoint verify "$1" --all
    says "$2" zero_to_fp32 "$1" fp32
    says "$2" ds_generate --model "$1" --prompt a
    says "$2" ds_generate --checkpoint "$1" --prompt a
}
make() { # folder, tag, files
    mkdir -p "$1/$2"
    echo -n "$2" > "$1/latest"
    local f
    for f in "${@:3}"; do
        mkdir -p "$(dirname "$1/$2/$f")" && echo pickle > "$1/$2/$f"
    done
}
make plain global_step7 mp_rank_0{0,1}_model_states.pt
all plain 'plain/global_step7 is a checkpoint of DeepSpeed for Python: without ZeRO, step 7, 1 data-parallel and 2 model-parallel'
# Those of ZeRO are read (test_deepspeed_checkpoint.sh): these files are no files of torch.save.
make two global_step120 mp_rank_00_model_states.pt zero_pp_rank_{0,1,2,3}_mp_rank_00_optim_states.pt
all two 'two/global_step120'
make three mine zero_pp_rank_{0,1}_mp_rank_00_model_states.pt bf16_zero_pp_rank_{0,1}_mp_rank_00_optim_states.pt
all three 'three/mine'
make old global_step1 zero_pp_rank_0_mp_rank_00optim_states.pt
all old 'old/global_step1'
make tensor global_step1 zero_pp_rank_0_mp_rank_0{0,1}_optim_states.pt
all tensor 'tensor/global_step1'
make pipe global_step3 layer_0{0,1,2}-model_00-model_states.pt layer_03-model_states.pt mp_rank_00_model_states.pt
all pipe 'of a pipeline, step 3'
make experts global_step3 layer_0_expert_{0,1}_mp_rank_00_model_states.pt expp_rank_0_mp_rank_00_optim_states.pt mp_rank_00_model_states.pt
all experts 'without ZeRO, with experts, step 3'
make universal global_step3_universal mp_rank_00_model_states.pt zero/h.0.weight/fp32.pt zero/h.0.weight/exp_avg.pt
mv universal/latest universal/latest_universal
all universal 'universal/global_step3_universal'
# Pickled weights.
mkdir bin && echo pickle > bin/pytorch_model-00001-of-00002.bin
all bin 'bin is a model folder with its weights as pytorch_model-00001-of-00002.bin'
# What is no checkpoint at all is called none.
mkdir empty && echo x > empty/layer_cake.pt
"$bin/ds_checkpoint" list empty | grep -q 'no checkpoints in empty' || { echo "FAILED: an empty folder"; failed=1; }
echo "$n refusals"
exit $failed
