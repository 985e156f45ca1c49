#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# A limit of memory is said to be in force where a program that takes more is ended, and nowhere else: not in folders that only
# look like control groups. See test/common/memory_group.sh.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d "$1/memory_group.XXXXXX")
trap 'group_remove; rm -rf "$work"' EXIT
# shellcheck source=test/common/memory_group.sh
. "$here/../common/memory_group.sh"
fail() { echo "FAILED: $1: $(cat "$work/said")" >&2; exit 1; }

group_root=$work/none
group_make $((100 << 20)) > "$work/said"
grep -q 'is NOT in force: no control group can be made' "$work/said" || fail none
mkdir -p "$work/second" "$work/first/memory"
for root in first second; do
    group_root=$work/$root
    group_make $((100 << 20)) > "$work/said"
    grep -q 'NOT in force: .* is no memory control group; only the peak of the process' "$work/said" || fail "$root"
    [ "$(group_run echo ran)" = ran ] && [ "$(group_most 7)" = 7 ] || fail "$root: without a group a program runs as it is"
    [ -z "$(find "$work/$root" -name 'ds_*')" ] || fail "$root: left over"
done

group_root=/sys/fs/cgroup
group_make $((100 << 20)) > "$work/said"
cat "$work/said"
if [ -n "$group" ]; then
    took=$(group_run bash -c 'head -c 160M /dev/zero | tail -n 1 | wc -c' 2> /dev/null || true)
    [ "${took:-0}" -lt $((160 << 20)) ] || fail "a program took 160 MiB of 100"
    [ "$(group_run bash -c 'head -c 40M /dev/zero | tail -n 1 | wc -c')" = $((40 << 20)) ] || fail "40 MiB of 100 are refused"
    [ "$(group_most 0)" -gt $((40 << 20)) ] || fail "its peak is not known"
fi
