#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# An empty path is refused, as wrong usage and by the flag's name, for every flag of every tool whose value is a
# path, and as a word. The flags are those that --help lists, so that a new one is tried too.
set -u
bin=$(realpath "$1")
failed=0
cases=0
tools="deepspeed ds_bench ds_checkpoint ds_config ds_data ds_elastic ds_generate ds_io ds_nvme_tune ds_plan ds_ssh ds_train zero_to_fp32"

# refused TEXT TOOL ARGS…
refused() {
    local text=$1 tool=$2 said code
    shift 2
    said=$(timeout 10 "$bin/$tool" "$@" 2>&1 < /dev/null)
    code=$?
    cases=$((cases + 1))
    if [ $code != 2 ] || ! grep -qF -- "$text" <<< "$said"; then
        echo "FAILED: $tool $*: exit $code (expected 2), expected '$text' in: $said"
        failed=1
    fi
}

for tool in $tools; do
    flags=$("$bin/$tool" --help | sed -nE 's/^  (-[A-Za-z], )?--([a-z_0-9A-Z]+) [^ ]*(FILE|DIR|FOLDER|PREFIX|TAG|NAME).*/\2/p')
    for flag in $flags; do
        refused "--$flag: expected" "$tool" "--$flag" ""
        refused "--$flag: expected" "$tool" "--$flag="
    done
done
refused 'is empty' ds_checkpoint verify ""
refused 'is empty' ds_checkpoint list ""
refused 'is empty' ds_checkpoint export "" out
refused 'is empty' zero_to_fp32 "" ""
refused 'is empty' zero_to_fp32 . ""
refused 'is empty' ds_config check ""
refused 'is empty' ds_data inspect ""
refused 'is empty' ds_plan diff "" ""
[ $cases -gt 60 ] || { echo "FAILED: only $cases cases: --help is not read"; failed=1; }
[ $failed = 0 ] && echo "$cases empty paths refused"
exit $failed
