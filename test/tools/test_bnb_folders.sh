#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Folders that transformers saved with bitsandbytes (test/golden/bnb): ds_serve gives transformers' greedy tokens, alone and in a crowd;
# ds_train --lora beside one makes the bytes that it makes beside the same dequantized; the adapter by the request, merged and taken out again.
# Usage: test_bnb_folders.sh BUILD
set -u
build=$(realpath "$1")
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
golden=$(realpath "$DS_SOURCE_DIR/test/golden/bnb")
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch" || exit 1
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE DS_RESTART_COUNT
fail() { echo "FAILED: $*"; cat log; exit 1; }

# The 48 tokens are letters, from A on.
mkdir letters
python3 - << 'END'
import json
level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
json.dump({"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": level, "post_processor": None, "decoder": level, "model": {
    "type": "BPE", "vocab": {chr(65 + i): i for i in range(48)}, "merges": []}}, open("letters/tokenizer.json", "w"))
json.dump({"tokenizer_class": "PreTrainedTokenizerFast"}, open("letters/tokenizer_config.json", "w"))
open("data.txt", "w").write("".join(chr(65 + i * i % 48) for i in range(400)))
END

for name in nf4 nf4_nested fp4 int8; do
    for folder in $name $name/plain; do
        "$build/ds_train" --model "$golden/$folder" --lora 2 --lora_targets q_proj down_proj --tokenizer letters --data data.txt --seq_length 16 \
            --micro_batch 2 --max_steps 3 --learning_rate 1e-2 --seed 5 --output "lora.${folder//\//.}" > log 2>&1 || fail "training beside $folder"
    done
    cmp "lora.$name/adapter_model.safetensors" "lora.$name.plain/adapter_model.safetensors" > log 2>&1 || fail "$name: another adapter than of plain"
    "$build/ds_checkpoint" merge --reversible --dtype f32 "$golden/$name" "lora.$name" "merged.$name" > log 2>&1 || fail "merging into $name"
    "$build/ds_checkpoint" merge --dtype f32 "$golden/$name/plain" "lora.$name" "merged.$name.plain" > log 2>&1 || fail "merging into $name/plain"
    cmp "merged.$name/model.safetensors" "merged.$name.plain/model.safetensors" > log 2>&1 || fail "$name: merged, it is another than plain"
    "$build/ds_checkpoint" unmerge "merged.$name" "back.$name" > log 2>&1 || fail "unmerging $name"
    cmp "back.$name/config.json" "$golden/$name/config.json" > log 2>&1 || fail "$name: another config.json comes back"
    python3 - "back.$name/model.safetensors" "$golden/$name/model.safetensors" << 'END' > log 2>&1 || fail "$name: other tensors come back"
import json, sys
def tensors(path):
    data = open(path, "rb").read()
    n = 8 + int.from_bytes(data[:8], "little")
    return {k: (v["dtype"], v["shape"], data[n + v["data_offsets"][0]:n + v["data_offsets"][1]]) for k, v in json.loads(data[8:n]).items() if k != "__metadata__"}
a, b = map(tensors, sys.argv[1:])
assert a == b, [k for k in a.keys() | b.keys() if a.get(k) != b.get(k)]
END
done
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
python3 "$DS_SOURCE_DIR/test/tools/bnb_folders.py" "$build/ds_serve" "$golden" || exit 1
echo PASS
