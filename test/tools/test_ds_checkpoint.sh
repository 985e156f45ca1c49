#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# ds_checkpoint: what it prints and returns for right, broken and missing checkpoints.
set -u
bin=$1
tool=$bin/ds_checkpoint
. "$(dirname "$0")/../common/tool_check.sh"

"$bin/test_checkpoint" write "$dir/save" || exit 1
cp -r "$dir/save/step2" "$dir/save/copy"

check help 0 'list DIR' "$tool" --help
check nothing 2 'expected a command' "$tool"
check command 2 'expected a command' "$tool" lst "$dir/save"
check folder 2 'expected a folder' "$tool" verify
check flag 2 'did you mean --state' "$tool" inspect "$dir/save" --stat config
check misplaced 2 'belongs to verify' "$tool" list "$dir/save" --all
check list 0 '  2 +948 B  whole   step2  \(latest\)' "$tool" list "$dir/save"
check list_empty 0 'no checkpoints' "$tool" list "$dir"
check list_missing 1 'No such file' "$tool" list "$dir/none"
check inspect 0 'exp_avg +w +f32\[6,5\] in 2 slices' "$tool" inspect "$dir/save"
check inspect_tag 0 'optimizer +adamw' "$tool" inspect "$dir/save" step2
check state 0 '^\{"a": \[1, 2.5e-300' "$tool" inspect "$dir/save" --state config
check no_state 2 'it has: random config data' "$tool" inspect "$dir/save" --state engine
check verify 0 'step2: right, 948 B' "$tool" verify "$dir/save"
check tag_missing 1 'global_step9/ds_manifest.json.*--resume (step2|copy) loads it' \
    "$tool" verify "$dir/save" global_step9
check tag_escape 2 "is not the tag of a checkpoint" "$tool" verify "$dir/save" ../save/step2

printf 'x' | dd of="$dir/save/step2/ds_shard_00000_of_00001.safetensors" bs=1 seek=940 conv=notrunc 2>/dev/null
check broken_data 1 "does not have its checksum; the newest whole checkpoint there is 'copy'" \
    "$tool" verify "$dir/save"
check verify_all 1 'copy: right' "$tool" verify "$dir/save" --all
printf '{' >"$dir/save/step2/ds_manifest.json"
check broken_manifest 1 'cut short' "$tool" inspect "$dir/save"
check list_broken 0 'broken  step2  \(latest\)' "$tool" list "$dir/save"
exit $failed
