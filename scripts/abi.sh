#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The library's binary interface against the committed baseline: functions, and layouts of public structs and enums.
# Usage: abi.sh check [LIBRARY] | update
#   check   fails on any difference; with a shared library also when its symbols are not those of the headers. Without
#           abidiff (abigail-tools) only the symbols are compared, and the exit is 77
#   update  moves the baseline. It belongs into one commit with the lines in CHANGELOG.md that say what changed
# A small library is made of the headers alone, a body for each declaration: it has the interface that a program is
# compiled against, and needs no build of ours with debug information.
set -euo pipefail
cd "$(dirname "$0")/.."
baseline=test/golden/abi/libdeepspeed.abi
command=${1:-check}
library=${2:-}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

probe() {
    {
        printf '#include <deepspeed/deepspeed.h>\n'
        grep -hv '^#' include/deepspeed/*.h | tr '\n' ' ' | grep -oE 'DS_API [^;{}]*\);' | sed -E 's/ DS_PRINTF\([0-9]+, [0-9]+\)//; s/;$/ { __builtin_trap(); }/'
    } > "$scratch/probe.c"
    cc -std=c11 -g -O0 -fPIC -shared -fvisibility=hidden -Iinclude -Wl,-soname,libdeepspeed.so.0 "$scratch/probe.c" -o "$scratch/libprobe.so"
}
symbols() { nm -D --defined-only "$1" | awk '$2 == "T" {print $3}' | sort; }

same_symbols() {
    diff <(symbols "$scratch/libprobe.so") <(symbols "$library") > "$scratch/symbols" || {
        echo "$library and the public headers differ; < is declared only, > is exported only:"
        cat "$scratch/symbols"
        exit 1
    }
}
write_abi() {
    abidw --no-show-locs --no-corpus-path --no-comp-dir-path --no-elf-needed --no-parameter-names --type-id-style hash \
        --out-file "$scratch/now.abi" "$scratch/libprobe.so"
    sed -i "s|path='[^']*'|path='probe.c'|" "$scratch/now.abi"
}
changes_log() { [ -n "$(git show --format= --name-only "$1" -- CHANGELOG.md)" ]; } # COMMIT
moved_together() { # the newest commit of the baseline has changed the changelog, too
    git rev-parse --git-dir > /dev/null 2>&1 && git diff --quiet HEAD -- "$baseline" || return 0
    local commit
    commit=$(git log -1 --format=%h -- "$baseline")
    [ -z "$commit" ] || changes_log "$commit" || {
        echo "commit $commit moves $baseline without a line in CHANGELOG.md"
        exit 1
    }
}

probe
case $command in
check)
    [ -z "$library" ] || same_symbols
    command -v abidiff > /dev/null || { echo "abidiff is not installed (abigail-tools): layouts are not compared"; exit 77; }
    write_abi
    abidiff "$baseline" "$scratch/now.abi" || {
        echo "The binary interface is not that of $baseline. Where that is meant: say it in CHANGELOG.md, run scripts/abi.sh update,"
        echo "and commit both together."
        exit 1
    }
    moved_together
    echo "the interface is that of the baseline"
    ;;
update)
    if [ -e "$baseline" ] && git diff --quiet HEAD -- CHANGELOG.md && ! changes_log HEAD; then
        echo "say in CHANGELOG.md what changes, then run this again"
        exit 1
    fi
    write_abi
    mkdir -p "$(dirname "$baseline")"
    cp "$scratch/now.abi" "$baseline"
    echo "moved $baseline"
    ;;
*)
    echo "usage: $0 check [LIBRARY] | update" >&2
    exit 2
    ;;
esac
