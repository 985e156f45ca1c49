#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# A folder that sentence-transformers saved (test/golden/encoder_tasks/make_sentence.py): ds_encode gives its vectors within 1e-5, with each
# kind of pooling as newer and older versions write it, and with modules Dense, cut where the folder says; what is not built is refused by name; training from
# it, modules Dense too, writes a folder of the same kind. Usage: test_sentence_folder.sh BUILD
set -euo pipefail
build=$1
golden=$DS_SOURCE_DIR/test/golden/encoder_tasks/sentence
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fail() {
    echo "FAIL: $1"
    [ ! -e "${2:-}" ] || tail -n 20 "$2"
    exit 1
}
fresh() {
    rm -rf model
    cp -r "$golden" model
    chmod -R u+w model
}
encode() { "$build/ds_encode" --model "$1" --task embedding --file "$golden/texts.txt" 2> said.log | tr -d '{}[]":a-df-z' | sed 's/^e*//; s/,/ /g'; }
near() { # WANTED NAME: vectors on stdin
    paste -d ' ' - "$1" | awk -v name="$2" -v n="$(awk 'NR == 1 {print NF}' "$1")" '{for (i = 1; i <= n; ++i) {d = $i - $(i + n); if (NF != 2 * n || d > 1e-5 || d < -1e-5) bad = 1}}
        END {if (bad || NR != 5) {print "FAIL: " name; exit 1}}'
}
fresh
encode model | near "$golden/vectors.txt" "the folder as it is"
for mode in cls max mean mean_sqrt_len_tokens weightedmean lasttoken; do
    cp "$golden/$mode.config.json" model/1_Pooling/config.json
    awk 'BEGIN {RS = "\n  },\n"; ORS = ""} NR < 3 {print (NR > 1 ? "\n  },\n" : "") $0} END {print "\n  }\n]\n"}' "$golden/modules.json" > model/modules.json
    encode model | near "$golden/$mode.txt" "$mode"
    case $mode in
        cls) old=pooling_mode_cls_token ;;
        lasttoken) old=pooling_mode_lasttoken ;;
        mean_sqrt_len_tokens) old=pooling_mode_mean_sqrt_len_tokens ;;
        *) old=pooling_mode_${mode}_tokens ;;
    esac
    echo "{\"word_embedding_dimension\": 24, \"$old\": true, \"pooling_mode_other\": false}" > model/1_Pooling/config.json
    encode model | near "$golden/$mode.txt" "$mode, as older versions write it"
    echo "{\"embedding_dimension\": 24, \"pooling_mode\": [\"$mode\"]}" > model/1_Pooling/config.json
    encode model | near "$golden/$mode.txt" "$mode, in a list"
done
for name in tanh two adds silu; do
    fresh
    cp -r "$golden/dense_$name"/* model/
    encode model | near "model/vectors.txt" "Dense: $name"
done
sed -i 's/torch.nn.modules.activation.SiLU/torch.nn.SiLU/' model/2_Dense/config.json
encode model | near "model/vectors.txt" "Dense: the short name of a class"
sed -i '/activation_function/d' model/2_Dense/config.json
if (encode model | near "model/vectors.txt" "") > /dev/null; then fail "Dense: the default, Tanh, is SiLU"; fi
dense_refused() { # WORDS SED-SCRIPT [FILE]
    fresh
    cp -r "$golden/dense_tanh"/* model/
    sed -i "$2" "model/${3:-2_Dense/config.json}"
    if encode model > out.log; then fail "Dense: accepted: $2"; fi
    grep -q -- "$1" said.log || fail "Dense: refused without \"$1\": $2" said.log
}
dense_refused 'activation_function "torch.nn.modules.activation.Mish" is not built' 's/Tanh/Mish/'
dense_refused 'activation_function "mine.Tanh" is not built' 's/torch.nn.modules.activation/mine/'
dense_refused 'module_input_name is not built; expected "sentence_embedding"' '/input/s/sentence_embedding/token_embeddings/'
dense_refused 'in_features or out_features is not built' 's/"out_features": 16/"out_features": 0/'
dense_refused 'linear.weight is not of the shape' 's/"out_features": 16/"out_features": 15/'
dense_refused 'has 2 tensors, of which config.json explains 1' 's/"bias": true/"bias": false/'
dense_refused 'the tensor residual.weight is missing' 's/^{/{"use_residual": true,/'
dense_refused 'Dense at "2_Dense" is not built there; up to 4 behind Pooling' 's/pooling.Pooling/normalize.Normalize/' modules.json
fresh
cp -r "$golden/dense_two"/* model/
rm -r model/2_Dense
mv model/3_Dense model/2_Dense
printf '[{"idx":0,"name":"0","path":"","type":"x.Transformer"},{"idx":1,"name":"1","path":"1_Pooling","type":"x.Pooling"},{"idx":2,"name":"2","path":"2_Dense","type":"x.Dense"}]' > model/modules.json
if encode model > out.log; then fail "Dense: accepted: 40 numbers of 24"; fi
grep -q 'Dense 1 has in_features 40; vectors before it have 24' said.log || fail "Dense: the width" said.log
# where texts end: max_seq_length before the tokenizer's
fresh
sed -i 's/^{/{"max_seq_length": 6,/' model/sentence_bert_config.json
if (encode model | near "$golden/vectors.txt" "") > /dev/null; then fail "max_seq_length changes nothing"; fi
grep -q "as far as the first 6" said.log || fail "a text that is cut" said.log

refused() { # WORDS FILE CONTENT
    fresh
    printf '%s\n' "$3" > "model/$2"
    if encode model > out.log; then fail "accepted: $3"; fi
    grep -q -- "$1" said.log || fail "refused without \"$1\": $3" said.log
}
module() { printf '[{"idx": 0, "name": "0", "path": "%s", "type": "sentence_transformers.models.%s"}]' "$1" "$2"; }
refused 'the module Dense at "2_Dense" is not built' modules.json "$(module 2_Dense Dense)"
refused 'the module Transformer at "0_Transformer" is not built' modules.json "$(module 0_Transformer Transformer)"
refused 'pooling_mode "of several" is not built' 1_Pooling/config.json '{"pooling_mode": ["cls", "mean"]}'
refused 'pooling_mode "middle" is not built' 1_Pooling/config.json '{"pooling_mode": "middle"}'
refused '2 of pooling_mode_\* are true' 1_Pooling/config.json '{"pooling_mode_cls_token": true, "pooling_mode_max_tokens": true}'
refused 'do_lower_case true is not built' sentence_bert_config.json '{"do_lower_case": true}'
refused 'transformer_task "fill-mask" is not built' sentence_bert_config.json '{"transformer_task": "fill-mask"}'
refused 'module_output_name "sentence_embedding" is not built' sentence_bert_config.json '{"module_output_name": "sentence_embedding"}'
refused 'default_prompt_name "query" is not built' config_sentence_transformers.json '{"default_prompt_name": "query", "prompts": {"query": "query: "}}'

# modules Dense are trained, and written as they were or as they have become: beside the model, in a checkpoint's export, and resumed
for i in 1 2 3 4; do
    echo '{"anchor": "a small river", "positive": "the old mill"}'
    echo '{"anchor": "children look", "positive": "fish in may"}'
done > rows.jsonl
for n in 2 4; do echo "{\"train_micro_batch_size_per_gpu\": $n}" > "fp32_$n.json"; done # without a file: bf16 where that is fast
train_dense() { # OUTPUT LR STEPS flags …
    local output=$1 lr=$2 steps=$3
    shift 3
    "$build/ds_train" --model model --data rows.jsonl --seq_length 12 --objective embeddings --deepspeed_config fp32_2.json --learning_rate "$lr" --steps "$steps" \
        --lr_scheduler_type none --output "$output" "$@" > train.log 2>&1 || fail "Dense: $output" train.log
}
for name in tanh two adds silu; do
    fresh
    cp -r "$golden/dense_$name"/* model/
    train_dense "as_$name" 1e-30 1
    encode "as_$name" | near "model/vectors.txt" "Dense: $name, written"
done
train_dense once 1e-3 4 --save_interval 2
for i in $(ls model | grep Dense); do
    ! cmp -s "model/$i/model.safetensors" "once/$i/model.safetensors" || fail "Dense: $i is not trained"
done
"$build/ds_checkpoint" export once dense_exported --dtype fp32 --tokenizer "$golden" > export.log 2>&1 || fail "Dense: export" export.log
encode once > once.txt
encode dense_exported > dense_exported.txt
cmp -s once.txt dense_exported.txt || fail "Dense: an export has other vectors"
grep -q sentence_dense once/model.safetensors dense_exported/model.safetensors && fail "Dense: in the model's own weights"
train_dense again 1e-3 2 --save_interval 2
train_dense again 1e-3 4 --resume
cmp -s once/2_Dense/model.safetensors again/2_Dense/model.safetensors || fail "Dense: resumed otherwise"
# training follows the folder, and writes one
rm -rf once again dense_exported
fresh
cp "$golden/cls.config.json" model/1_Pooling/config.json
echo '{"prompts": {"query": "query: ", "passage": "text: "}, "default_prompt_name": null, "similarity_fn_name": "dot"}' > model/config_sentence_transformers.json
for i in 1 2 3 4; do
    echo '{"anchor": "a small river", "positive": "the old mill"}'
    echo '{"anchor": "children look", "positive": "fish in may"}'
done > rows.jsonl
"$build/ds_train" --model model --data rows.jsonl --seq_length 12 --objective embeddings --deepspeed_config fp32_4.json --steps 2 --output learnt > train.log 2>&1 ||
    fail "training" train.log
encode learnt > auto.txt
grep -q '"pooling_mode_cls_token": true' learnt/1_Pooling/config.json || fail "pooling" learnt/1_Pooling/config.json
grep -q 'models.Normalize' learnt/modules.json || fail "Normalize" learnt/modules.json
grep -q '"max_seq_length": 12' learnt/sentence_bert_config.json || fail "max_seq_length" learnt/sentence_bert_config.json
grep -q '"query": "query: "' learnt/config_sentence_transformers.json && grep -q '"similarity_fn_name": "dot"' learnt/config_sentence_transformers.json ||
    fail "prompts and similarity" learnt/config_sentence_transformers.json
# mini-batches, with the folder's dropout: of all rows at once the same weights, and of fewer others, twice the same
parts() { "$build/ds_train" --model model --data rows.jsonl --seq_length 12 --objective embeddings --deepspeed_config fp32_4.json --steps 2 --mini_batch "$1" --output "$2" > "$2.log" 2>&1 ||
    fail "mini-batches of $1" "$2.log"; }
parts 8 whole
parts 4 halves
parts 4 again
parts 3 thirds
cmp learnt/model.safetensors whole/model.safetensors || fail "one mini-batch of all rows gives other weights"
cmp halves/model.safetensors again/model.safetensors || fail "mini-batches give other weights each time"
! cmp -s learnt/model.safetensors halves/model.safetensors || fail "mini-batches draw the dropout of all rows at once"
# a folder that is made of the checkpoint is the same
"$build/ds_checkpoint" export learnt exported --dtype fp32 --tokenizer "$golden" > export.log 2>&1 || fail "export" export.log
for file in modules.json 1_Pooling/config.json sentence_bert_config.json config_sentence_transformers.json; do
    cmp "learnt/$file" "exported/$file" || fail "export: another $file than training's"
done
[ -d exported/2_Normalize ] || fail "export: no 2_Normalize"
encode exported > exported.txt
cmp auto.txt exported.txt || fail "export: other vectors" said.log
"$build/ds_checkpoint" inspect learnt --state embeddings > state.log 2>&1 || fail "the state embeddings" state.log
grep -q '1_Pooling/config.json' state.log || fail "the state embeddings" state.log
rm learnt/modules.json
"$build/ds_encode" --model learnt --task embedding --file "$golden/texts.txt" --pooling cls --normalize --max_length 12 2> said.log |
    tr -d '{}[]":a-df-z' | sed 's/^e*//; s/,/ /g' > flags.txt
cmp auto.txt flags.txt || fail "the folder that training wrote is another than by flags"
