#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ds_quantize into a file and back, what it refuses, --text; and ds_generate of a GGUF file: the same text as of its folder.
set -eu
bin=$1
golden=$DS_SOURCE_DIR/test/golden/gguf
work=$(mktemp -d "$1/ds_quantize.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
export TMPDIR=$work/tmp
mkdir tmp
fail() { echo "$1" >&2; exit 1; }
# refused CODE WHAT COMMAND…
refused() {
    local want=$1 what=$2 code=0
    shift 2
    "$@" > out 2> err || code=$?
    [ $code = "$want" ] || fail "exit $code, not $want: $*"
    grep -q -- "$what" err || fail "$*: expected '$what': $(cat err)"
}
"$bin/ds_quantize" --dtype f32 "$golden/qwen2.gguf" folder
"$bin/ds_quantize" --type f32 folder file.gguf
"$bin/ds_quantize" --dtype f32 file.gguf back
for name in config.json model.safetensors tokenizer.json tokenizer_config.json; do
    cmp "folder/$name" "back/$name"
done
echo "We are accounted poor citizens, the patricians good." > text
"$bin/ds_quantize" --type q8_0 --text text folder small.gguf > out
grep -Eq '^perplexity of [0-9]+ tokens of text: [0-9.]+ before, [0-9.]+ now \([+-][0-9.]+ %\)$' out || fail "--text: $(cat out)"
for way in "" "--quantize file" "--dtype f32"; do
    # shellcheck disable=SC2086
    "$bin/ds_generate" --model file.gguf $way --prompt "We are" --max_new_tokens 5 > "text$way" 2> err || fail "ds_generate $way: $(cat err)"
done
"$bin/ds_generate" --model folder --prompt "We are" --max_new_tokens 5 > want 2> err
cmp "text--dtype f32" want
"$bin/ds_quantize" --dtype f32 small.gguf small32
echo '{"dtype": "fp32", "save_mp_checkpoint_path": "copy"}' > f32.json # the numbers of the file, not by way of bf16
"$bin/ds_generate" --model small.gguf --deepspeed_config f32.json --prompt "We are" --max_new_tokens 5 > text 2> err || fail "$(cat err)"
cmp copy/model.safetensors small32/model.safetensors
[ -z "$(ls tmp)" ] || fail "left behind: $(ls tmp)"
python3 "$DS_SOURCE_DIR/test/tools/gptq_experts.py" experts # whose stacked matrices stay no blocks
"$bin/ds_generate" --model experts --tokenizer bytes --quantize file --prompt "We" --max_new_tokens 3 > text 2> err || fail "experts: $(cat err)"
grep -q '^matrices in blocks: 4 as' err || fail "experts: $(cat err)"
# FP8, int8, GPTQ, AWQ and compressed-tensors: the numbers that come of what torch makes of the same folder (test/golden/int4/make.py); tensors are in another order
eights=$DS_SOURCE_DIR/test/golden/int4
for form in fp8 fp8_whole fp8_e8m0 fp8_mx fbgemm float_row float_block int_row int_group \
    gptq gptq_v2 gptq_run awq packed packed_zero packed8 packed8_zero; do
    case $form in
    fp8 | gptq_v2) types="f32 f16 bf16 q4_0 q8_0 q4_k_m q6_k" ;; # of gptq_v2 columns are in an order of their own
    gptq* | awq* | packed*) types=f32 ;;
    *) types=q8_0 ;;
    esac
    for type in $types; do
        "$bin/ds_quantize" --no_tokenizer --overwrite --type "$type" "$eights/$form" stored.gguf
        "$bin/ds_quantize" --no_tokenizer --overwrite --type "$type" "$eights/$form/plain" plain.gguf
        [ "$(stat -c %s stored.gguf)" = "$(stat -c %s plain.gguf)" ] || fail "$form to $type: sizes"
        for file in stored plain; do
            "$bin/ds_quantize" --no_tokenizer --overwrite --dtype f32 $file.gguf $file
        done
        cmp stored/model.safetensors plain/model.safetensors || fail "$form to $type"
    done
done
# and of bitsandbytes (test/golden/bnb/make.py)
for form in nf4 nf4_nested fp4 int8; do
    "$bin/ds_quantize" --no_tokenizer --overwrite --type f32 "$DS_SOURCE_DIR/test/golden/bnb/$form" stored.gguf
    "$bin/ds_quantize" --no_tokenizer --overwrite --type f32 "$DS_SOURCE_DIR/test/golden/bnb/$form/plain" plain.gguf
    for file in stored plain; do
        "$bin/ds_quantize" --no_tokenizer --overwrite --dtype f32 $file.gguf $file
    done
    cmp stored/model.safetensors plain/model.safetensors || fail "$form"
done
mkdir bare
cp "$eights/fp8/config.json" bare
sed 's/k_proj.weight_scale_inv/x_proj.weight_scale_inv/' "$eights/fp8/model.safetensors" > bare/model.safetensors
refused 1 'the tensor model.layers.0.self_attn.x_proj.weight_scale_inv has no name' \
    "$bin/ds_quantize" --no_tokenizer --type q8_0 bare bare.gguf
# altered NAME FORM FILE SED: a folder of that form with one file changed; names keep their length
altered() {
    mkdir "$1"
    cp "$eights/$2/"*.* "$1"
    LC_ALL=C sed -i "$4" "$1/$3"
}
# refuses NAME FORM FILE SED MESSAGE
refuses() {
    altered "$1" "$2" "$3" "$4"
    refused 1 "$5" "$bin/ds_quantize" --no_tokenizer --type q8_0 "$1" "$1.gguf"
    [ ! -e "$1.gguf" ] || fail "$1.gguf is there"
}
w=model.safetensors
refuses scales gptq $w 's/k_proj.scales/k_proj.scalex/' 'the scales of model.layers.0.self_attn.k_proj.qweight (scales) are missing'
refuses zeros awq $w 's/k_proj.qzeros/k_proj.qzerox/' 'the zero points of model.layers.0.self_attn.k_proj.qweight (qzeros) are missing'
refuses orphan gptq $w 's/k_proj.qweight/k_proj.qweighx/' 'the tensor model.layers.0.self_attn.k_proj.[a-z_]* has no name in a GGUF file'
refuses order packed $w 's/k_proj.weight_shape/k_proj.weight_g_idx/' 'the tensor model.layers.0.self_attn.k_proj.weight_g_idx has no name'
refuses twice gptq $w 's/k_proj.qzeros/k_proj.weight/' 'k_proj.qweight and model.layers.0.self_attn.k_proj.weight are the same parameter'
refuses bits gptq config.json 's/"bits": 4/"bits": 3/' 'quantization_config.bits: 4 alone'
refuses layout awq config.json 's/"gemm"/"gemv"/' 'quantization_config.version: "gemm" alone'
refuses kinds packed config.json 's/"pack-quantized"/"marlin-24"/' 'quantization_config.format'
refuses method gptq config.json 's/"quant_method": "gptq"/"quant_method": "hqq"/' 'has no name in a GGUF file'
refuses second gptq_v2 config.json 's/"gptq_v2"/"gptq"/' 'has a zero point.*save the model as "gptq_v2"'
refuses shapes gptq config.json 's/"quant_method": "gptq"/"quant_method": "awq"/' 'none of a matrix\|has no name'
refuses tied packed config.json 's/"tie_word_embeddings": false/"tie_word_embeddings": true/' \
    'lm_head.weight differs from model.embed_tokens.weight'
# a Conv1D of GPTQ, whose words may be those of a Linear
"$bin/ds_quantize" --dtype f32 "$golden/gpt2.gguf" conv1d
LC_ALL=C sed -i 's/"transformer\.h\.0\.attn\.c_attn\.weight":/"h.0.attn.c_attn.qweight":           /' conv1d/$w
sed -i '1s/{/{"quantization_config": {"quant_method": "gptq", "bits": 4},/' conv1d/config.json
refused 1 'h.0.attn.c_attn.qweight: a Conv1D in four bits is not read' "$bin/ds_quantize" --type q8_0 conv1d conv1d.gguf
refused 2 'give --type' "$bin/ds_quantize" folder new.gguf
refused 2 'overwrite replaces it' "$bin/ds_quantize" --type q4_0 folder file.gguf
refused 2 'neither folder nor back' "$bin/ds_quantize" folder back
refused 2 'for a file' "$bin/ds_quantize" --type q4_0 file.gguf third
refused 1 'could stay as they are; name a type of blocks' "$bin/ds_generate" --model folder --quantize file --prompt x
refused 2 'without --adapter' "$bin/ds_generate" --model folder --adapter back --quantize q8_0 --prompt x
rm folder/tokenizer.json
refused 1 'has no tokenizer.json' "$bin/ds_quantize" --type q4_0 folder new.gguf
[ ! -e new.gguf ] || fail "new.gguf is there"
"$bin/ds_quantize" --type q4_0 --no_tokenizer folder new.gguf
