#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# A model by its name in the Hugging Face cache does what its folder does, in every tool; nothing is written into the cache.
# Usage: test_hub_models.sh BUILD
set -euo pipefail
build=$(cd "$1" && pwd)
scratch=$(mktemp -d)
pid=
trap '[ -z "$pid" ] || kill -KILL "$pid" 2> /dev/null || true; rm -rf "$scratch"' EXIT
cd "$scratch"
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE HF_HUB_CACHE HUGGINGFACE_HUB_CACHE XDG_CACHE_HOME
export HF_HOME=$scratch/hf
fail() { echo "FAILED: $*"; cat log; exit 1; }

cat > model.json <<'JSON'
{"model_type": "gpt2", "vocab_size": 320, "n_embd": 16, "n_head": 2, "n_layer": 1, "n_positions": 64, "architectures": ["GPT2LMHeadModel"]}
JSON
seq 1 3000 > data.txt
"$build/ds_train" --model_config model.json --tokenizer bytes --data data.txt --seq_length 32 --threads 1 --steps 1 --output made > log 2>&1 || fail made
mkdir plain
cp made/config.json made/*.safetensors plain/

# The same files as the Hub's client lays them out.
commit=0123456789012345678901234567890123456789
repo=$HF_HOME/hub/models--org--tiny
mkdir -p "$repo/refs" "$repo/blobs" "$repo/snapshots/$commit"
printf '%s' "$commit" > "$repo/refs/main"
printf '%s' "$commit" > "$repo/refs/v1"
for file in plain/*; do
    blob=$(sha1sum < "$file" | cut -d' ' -f1)
    cp "$file" "$repo/blobs/$blob"
    ln -s "../../blobs/$blob" "$repo/snapshots/$commit/${file##*/}"
done
state() { find "$HF_HOME" | sort; find "$HF_HOME" -type f -exec sha1sum {} + | sort; }
state > before

# same WHAT COMMAND…: both print the same, with the folder in place of @ and with the name
same() {
    local what=$1
    shift
    "${@//@/plain}" > by_folder 2> log || fail "$what of a folder"
    "${@//@/org/tiny}" > by_name 2> log || fail "$what of a name"
    diff <(grep -v '^planned in' by_folder) <(grep -v '^planned in' by_name) > log || fail "$what differs"
}
same generate "$build/ds_generate" --model @ --tokenizer bytes --prompt 12 --max_new_tokens 8 --threads 1
same "a revision" "$build/ds_generate" --model org/tiny --model_revision v1 --tokenizer bytes --prompt 12 --max_new_tokens 8 --threads 1
same "a commit" "$build/ds_generate" --model org/tiny --model_revision $commit --tokenizer bytes --prompt 12 --max_new_tokens 8 --threads 1
"$build/ds_config" init > ds.json 2> log || fail init
same plan "$build/ds_plan" --model @ --deepspeed_config ds.json --seq_length 32 --world_size 2 --threads 1
same "plan of a teacher" "$build/ds_plan" --model_config model.json --teacher @ --deepspeed_config ds.json --seq_length 32 --world_size 2 --threads 1
same "plan of a draft model" "$build/ds_plan" serve --model plain --draft_model @ --max_length 64
same init "$build/ds_config" init --model @
same check "$build/ds_config" check ds.json --model @

train() { "$build/ds_train" --tokenizer bytes --data data.txt --seq_length 32 --threads 1 "$@" > log 2>&1; }
train --model plain --steps 2 --output out_folder || fail "training of a folder"
train --model org/tiny --steps 2 --output out_name || fail "training of a name"
grep -q "model org/tiny: $repo/snapshots/$commit" log || fail "the folder is not said"
cmp out_folder/model.safetensors out_name/model.safetensors || fail "training differs"
[ ! -L out_name/config.json ] || fail "a link into the cache"
train --model_config model.json --teacher plain --steps 2 --output taught_folder || fail "a teacher of a folder"
train --model_config model.json --teacher org/tiny --steps 2 --output taught_name || fail "a teacher by its name"
cmp taught_folder/model.safetensors taught_name/model.safetensors || fail "a teacher by its name differs"
train --model plain --steps 3 --output out_name --resume || fail "a resume by the folder"
train --model org/tiny --steps 4 --output out_name --resume || fail "a resume by the name"

# A draft model by its name: the same text as without, some of it guessed.
if [ -x "$build/ds_serve" ]; then
    # serve NAME OPTION…: its text into text_NAME, how many tokens were guessed into drafted_NAME
    serve() {
        local name=$1
        shift
        : > line # of the server before
        "$build/ds_serve" --model plain --tokenizer bytes --port 0 --threads 1 --max_length 64 --kv_tokens 1024 --served_model_name m "$@" > line 2> log &
        pid=$!
        for _ in $(seq 300); do grep -q serving line && break; kill -0 $pid 2> /dev/null || break; sleep 0.1; done
        python3 - "$(sed -n 's/^serving m on //p' line)" << 'END' > "text_$name" 2> "drafted_$name" || { cat "drafted_$name"; fail "serving $name"; }
import json, re, sys, urllib.request as u
body = json.dumps(dict(model="m", prompt=[1, 2], max_tokens=30, temperature=0, logprobs=1)).encode()
got = json.load(u.urlopen(u.Request(sys.argv[1] + "/v1/completions", body, {"Content-Type": "application/json"}), timeout=60))
print(json.dumps(got["choices"][0]))
print(re.search(r"^vllm:spec_decode_num_draft_tokens_total (\d+)", u.urlopen(sys.argv[1] + "/metrics").read().decode(), re.M).group(1), file=sys.stderr)
END
        kill -TERM $pid && wait $pid || fail "exit code $? of serving $name"
        pid=
    }
    serve alone
    serve drafted --draft_model org/tiny
    cmp text_alone text_drafted || fail "a draft model changes a text"
    [ "$(cat drafted_alone)" = 0 ] && [ "$(cat drafted_drafted)" -gt 10 ] || fail "$(cat drafted_drafted) guesses of a draft model"
fi

# A tokenizer by its name: its files are links too, and copies of them are files.
gpt2=$HF_HOME/hub/models--gpt2
mkdir -p "$gpt2/refs" "$gpt2/blobs" "$gpt2/snapshots/$commit"
printf '%s' "$commit" > "$gpt2/refs/main"
for file in "$DS_SOURCE_DIR"/data/gpt2/*; do
    cp "$file" "$gpt2/blobs/${file##*/}.blob"
    ln -s "../../blobs/${file##*/}.blob" "$gpt2/snapshots/$commit/${file##*/}"
done
state > before
"$build/ds_data" tokenize data.txt --tokenizer "$DS_SOURCE_DIR/data/gpt2" --output a > log 2>&1 || fail "tokenizing by a folder"
"$build/ds_data" tokenize data.txt --tokenizer gpt2 --output b > log 2>&1 || fail "tokenizing by a name"
cmp a.bin b.bin && cmp a.idx b.idx || fail "tokens differ"
"$build/ds_data" check data.txt --tokenizer gpt2 > log 2>&1 || fail "check by a name"
"$build/ds_checkpoint" export out_folder exported --tokenizer gpt2 > log 2>&1 || fail "an export with a tokenizer by its name"
[ -f exported/merges.txt ] && [ ! -L exported/merges.txt ] || [ -f exported/tokenizer.json ] || fail "no tokenizer in the export"

# refuses WHAT COMMAND…: an error that has WHAT; the cache stays as it is
refuses() {
    local what=$1
    shift
    ! "$@" > log 2>&1 || fail "$what: it ran"
    grep -qF -- "$what" log || fail "no \"$what\""
    state | cmp - before || fail "$what: the cache was written to"
}
generate=("$build/ds_generate" --tokenizer bytes --prompt 12 --max_new_tokens 2 --threads 1)
refuses 'get it with: hf download org/none' "${generate[@]}" --model org/none
refuses 'get it with: hf download org/none' "$build/ds_plan" serve --model plain --draft_model org/none
refuses "looked in $HF_HOME/hub/models--org--none" "${generate[@]}" --model org/none
refuses 'get it with: hf download org/tiny --revision v2' "${generate[@]}" --model org/tiny --model_revision v2
refuses 'branches and tags there: main v1' "${generate[@]}" --model org/tiny --model_revision v2
refuses 'the revision v1 is of a model by its name' "${generate[@]}" --model plain --model_revision v1
refuses '--tokenizer_revision v1 needs --tokenizer ORG/NAME' "${generate[@]}" --model plain --tokenizer_revision v1
refuses 'has no tokenizer of org/tiny' "$build/ds_generate" --model org/tiny --prompt 12
run=("$build/ds_train" --model org/tiny --tokenizer bytes --data data.txt --seq_length 32 --threads 1 --steps 1)
refuses 'inside of the Hugging Face cache' "${run[@]}" --output "$repo/out"
refuses 'inside of the Hugging Face cache' "${run[@]}" --output "$repo/snapshots/$commit"
refuses 'inside of the Hugging Face cache' "${run[@]}" --metrics "$repo/blobs/new.jsonl"
refuses 'inside of the Hugging Face cache' "${run[@]}" --overwrite --metrics "$repo/snapshots/$commit/config.json"
refuses 'inside of the Hugging Face cache' "$build/ds_data" tokenize data.txt --tokenizer gpt2 --output "$gpt2/x"
refuses 'inside of the Hugging Face cache' "$build/ds_checkpoint" export out_folder "$gpt2/snapshots/$commit" --tokenizer gpt2 --overwrite
refuses 'inside of the Hugging Face cache' "$build/ds_plan" --model org/tiny --deepspeed_config ds.json --overwrite \
    --json "$repo/snapshots/$commit/config.json"
refuses 'inside of the Hugging Face cache' "$build/ds_config" init --model org/tiny --output "$repo/ds.json"
state | cmp - before || fail "the cache was written to"

# A download that was broken off.
weights=$(readlink -f "$repo/snapshots/$commit/model.safetensors")
mv "$weights" "$weights.1a2b3c4d.incomplete"
state > before
refuses 'model.safetensors: a link to a file that is not there: the download of org/tiny was broken off' "${generate[@]}" --model org/tiny
"$build/ds_plan" --model org/tiny --deepspeed_config ds.json --seq_length 32 --threads 1 > log 2>&1 || fail "a plan reads config.json alone"
rm "$repo/snapshots/$commit/model.safetensors"
state > before
refuses '.1a2b3c4d.incomplete: a file that is not whole' "${generate[@]}" --model org/tiny
# A folder of that name wins.
mkdir -p org && cp -r plain org/tiny
"${generate[@]}" --model org/tiny > log 2>&1 || fail "a folder of that name"
echo "models by their names are as their folders"
