#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# zero_to_fp32 and ds_checkpoint on checkpoints of many shards: what they write, print and return;
# memory stays bounded by one tensor.
set -u
bin=$(cd "$1" && pwd)
. "$(dirname "$0")/../common/tool_check.sh"

"$bin/test_checkpoint_export" write "$dir/save" 4 || exit 1
tool=$bin/zero_to_fp32
check help 0 'zero_to_fp32 CHECKPOINT_DIR OUTPUT_DIR' "$tool" --help
check words 2 'expected CHECKPOINT_DIR and OUTPUT_DIR' "$tool" "$dir/save"
check size 2 '--max_shard_size: expected a size such as 5GB' "$tool" "$dir/save" "$dir/o" --max_shard_size 5XB
check missing 1 "No such file|has no file 'latest'" "$tool" "$dir/none" "$dir/o"
check tag 1 "--resume global_step2 loads it" "$tool" "$dir/save" "$dir/o" -t global_step9
check plain 0 'Reconstructed Trainable fp32 state dict with 4 params 567 elements' "$tool" "$dir/save" "$dir/a"
check frozen 0 'Reconstructed Frozen fp32 state dict with 4 params 31225 elements' "$tool" "$dir/save" "$dir/a" --overwrite
check world 0 'Detected checkpoint of world_size: 4' "$tool" "$dir/save/global_step2/" "$dir/b" --safe_serialization -d
cmp "$dir/a/model.safetensors" "$dir/b/model.safetensors" || failed=1
pushd "$dir/save/global_step2" >/dev/null || exit 1
check here 0 'Saved fp32' "$tool" . "$dir/c"
cd .. && check above 0 'Saved fp32' "$tool" . "$dir/c" --overwrite
popd >/dev/null || exit 1
check shards 0 'Saved fp32' "$tool" "$dir/save" "$dir/d" --max_shard_size 60KB --exclude_frozen_parameters
[ -f "$dir/d/model.safetensors" ] || { echo "FAILED: 2268 bytes of weights are one file"; failed=1; }
check shards 0 'Saved fp32' "$tool" "$dir/save" "$dir/e" --max_shard_size 60KB
[ -f "$dir/e/model.safetensors.index.json" ] || { echo "FAILED: no index"; failed=1; }

tool=$bin/ds_checkpoint
check inspect 0 'ds_shard_00003_of_00004.safetensors' "$tool" inspect "$dir/save"
check slices 0 'master +h.0.w +f32\[33,17\] in 4 slices' "$tool" inspect "$dir/save"
check verify 0 'global_step2: right' "$tool" verify "$dir/save"
check consolidate 0 'global_step2: 4 shards are one' "$tool" consolidate "$dir/save" "$dir/one"
check one 0 'in 1 shard$' "$tool" inspect "$dir/one"
check verify_one 0 'global_step2: right' "$tool" verify "$dir/one"
check export 1 "does not hold its model's config.json" "$tool" export "$dir/save" "$dir/hf"
check export_dtype 2 "expected fp32, bf16 or fp16, found 'int8'" "$tool" export "$dir/save" "$dir/hf" --dtype int8
check export_words 2 'expected a folder, an output folder' "$tool" export "$dir/save"
check misplaced 2 'belong to export' "$tool" consolidate "$dir/save" "$dir/o" --dtype bf16
"$bin/zero_to_fp32" "$dir/one" "$dir/f" >/dev/null && cmp "$dir/a/model.safetensors" "$dir/f/model.safetensors" || failed=1
printf 'x' | dd of="$dir/save/global_step2/ds_shard_00002_of_00004.safetensors" bs=1 seek=3000 conv=notrunc 2>/dev/null
check broken 1 'ds_shard_00002_of_00004.safetensors' "$tool" verify "$dir/save"
rm "$dir/save/global_step2/ds_shard_00002_of_00004.safetensors"
check gone 1 'ds_shard_00002_of_00004.safetensors: No such file' "$bin/zero_to_fp32" "$dir/save" "$dir/o"

# 24 tensors of 2 MB with a moment each: 96 MB of shards, 48 MB of output
"$bin/test_checkpoint_export" write_large "$dir/large" 3 24 2 || exit 1
text=$("$bin/zero_to_fp32" "$dir/large" "$dir/weights" -d) || failed=1
if nm "$bin/zero_to_fp32" | grep -E '__(asan|tsan|msan)_init' > /dev/null; then
    echo "sanitizer: peak memory not compared"
else
    peak=$(sed -n 's/^peak memory \([0-9]*\)[.0-9]* MB$/\1/p' <<<"$text")
    echo "peak memory of zero_to_fp32: $peak MB for 96 MB of shards"
    [ -n "$peak" ] && [ "$peak" -lt 24 ] || { echo "FAILED: peak memory, text: $text"; failed=1; }
fi
exit $failed
