#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# What a tool did not make, or made in another run, is replaced with --overwrite alone; what it can make again it replaces.
set -eu
bin=$1
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/output_free.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
fail() { echo "$1" >&2; exit 1; }
# keeps FILE WHAT COMMAND…: refused, says WHAT, and FILE is as it was; replaces FILE COMMAND…: with --overwrite it is not.
keeps() {
    local file=$1 what=$2 code=0 before
    shift 2
    before=$(cat "$file")
    "$@" > out 2> err || code=$?
    [ $code != 0 ] || fail "not refused: $*"
    grep -q -- "$what" err || fail "$*: expected '$what': $(cat err)"
    [ "$(cat "$file")" = "$before" ] || fail "$*: $file was replaced"
}
replaces() {
    local file=$1
    shift
    "$@" --overwrite > out 2> err || fail "$* --overwrite: $(cat err)"
    [ "$(head -c 5 "$file")" != mine: ] || fail "$* --overwrite: $file is the old one"
}

head -c 4000 "$root/docs/config.md" > text.txt
echo '{"train_batch_size": 2, "optimizer": {"type": "AdamW"}}' > ds.json
train=("$bin/ds_train" --model_config "$root/test/common/gpt2.json" --tokenizer bytes --data text.txt --seq_length 16
    --threads 1 --steps 1 --deepspeed_config ds.json)
plan=("$bin/ds_plan" --model_config "$root/test/common/gpt2.json" --deepspeed_config ds.json --memory 1GB)

# --metrics: another's file, and that of another run; a resumed run appends.
echo mine: > m.jsonl
keeps m.jsonl 'm.jsonl is there already and would be lost: --overwrite' "${train[@]}" --metrics m.jsonl
replaces m.jsonl "${train[@]}" --metrics m.jsonl
keeps m.jsonl 'is there already' "${train[@]}" --metrics m.jsonl
"${train[@]}" --output run > out 2> err
"${train[@]}" --output run --resume --steps 2 --metrics m.jsonl > out 2> err
[ "$(grep -c '"loss"' m.jsonl)" = 2 ] || fail "a resumed run did not append: $(cat m.jsonl)"

# --trace, --report, the profile that the configuration names: another run's stay; a run that goes on replaces its own.
"${train[@]}" --trace t.json --report r.html > out 2> err || fail "$(cat err)"
grep -q traceEvents t.json
keeps t.json 't.json is there already and would be lost: --overwrite' "${train[@]}" --trace t.json
keeps r.html 'r.html is there already and would be lost: --overwrite' "${train[@]}" --report r.html
keeps t.json 't.json is there already' "${plan[@]}" --device xeon-amx-2 --trace t.json
keeps r.html 'r.html is there already' "$bin/ds_report" --runs run --output r.html
keeps r.html 'r.html is there and was not written as a comparison' "$bin/ds_report" --runs run m.jsonl --output r.html
echo mine: > t.json
cp r.html page.html
replaces t.json "${train[@]}" --trace t.json --report r.html
! cmp -s r.html page.html || fail "--overwrite keeps the page"
replaces t.json "${plan[@]}" --device xeon-amx-2 --trace t.json
replaces r.html "$bin/ds_report" --runs run --output r.html
"$bin/ds_report" --runs run m.jsonl --output both.html
"$bin/ds_report" --runs run m.jsonl --output both.html || fail "a comparison is not made again"
cp -r run longer
"${train[@]}" --output longer --resume --steps 3 --trace t.json --report r.html > out 2> err || fail "a run that goes on: $(cat err)"
sed 's/}}/}, "flops_profiler": {"enabled": true, "profile_step": 0, "output_file": "profile.txt"}}/' ds.json > profiled.json
"${train[@]/ds.json/profiled.json}" > out 2> err || fail "$(cat err)"
keeps profile.txt 'flops_profiler.output_file: profile.txt is there already' "${train[@]/ds.json/profiled.json}"
echo mine: > profile.txt
replaces profile.txt "${train[@]/ds.json/profiled.json}" --output profiled

# A folder that holds only a tokenizer, or only a config.json.
for name in tokenizer.json config.json tokenizer.model merges.txt; do
    mkdir only
    echo mine: > "only/$name"
    keeps "only/$name" "holds a model folder ($name)" "${train[@]}" --output only
    keeps "only/$name" "holds a model's files ($name)" "$bin/ds_checkpoint" export run only
    keeps "only/$name" "holds a model's files ($name)" "$bin/zero_to_fp32" run only
    rm -r only
done
mkdir only
echo mine: > only/config.json
replaces only/config.json "$bin/ds_checkpoint" export run only
replaces only/config.json "${train[@]}" --output only
"$bin/ds_checkpoint" consolidate run one > out
keeps one/global_step2/ds_manifest.json 'one holds global_step2 already' "$bin/ds_checkpoint" consolidate run one
"$bin/ds_checkpoint" consolidate run one --overwrite > out

# ds_data, ds_plan.
echo mine: > t.bin
keeps t.bin 't.bin is there already' "$bin/ds_data" tokenize text.txt --tokenizer bytes --output t
replaces t.bin "$bin/ds_data" tokenize text.txt --tokenizer bytes --output t
for kind in html json trace; do
    more=()
    [ $kind != trace ] || more=(--device xeon-amx-2)
    echo mine: > "p.$kind"
    keeps "p.$kind" "p.$kind is there" "${plan[@]}" "${more[@]}" --$kind "p.$kind"
    replaces "p.$kind" "${plan[@]}" "${more[@]}" --$kind "p.$kind"
    "${plan[@]}" "${more[@]}" --$kind "p.$kind" > out 2> err || fail "its own $kind is not replaced: $(cat err)"
done
keeps ds.json 'ds.json' "${plan[@]}" --fit --output ds.json
echo mine: > fitted.json
keeps fitted.json 'is there already' "${plan[@]}" --fit --output fitted.json
replaces fitted.json "${plan[@]}" --fit --output fitted.json

# Templates beside the tokenizer's own go with an export.
mkdir -p folder/additional_chat_templates
cp only/tokenizer.json only/config.json folder
echo "{{ messages }}" > folder/additional_chat_templates/tools.jinja
"$bin/ds_checkpoint" export run exported --tokenizer folder > out
cmp folder/additional_chat_templates/tools.jinja exported/additional_chat_templates/tools.jinja
