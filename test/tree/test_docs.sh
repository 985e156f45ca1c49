#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: tree
# The README's commands: every tool and flag in its shell blocks exists; every path it names is there.
set -euo pipefail
build=$1
cd "$DS_SOURCE_DIR"
failed=0
tool=""
while read -r line; do
    for word in $line; do
        case $word in
        build/ds_* | build/deepspeed) tool=$build/${word#build/} ;;
        make) tool="" ;;
        --*)
            if [ -n "$tool" ] && ! grep -qE -- "^ *$word( |\$)" <<< "$("$tool" --help)"; then
                echo "README: $tool has no flag $word" >&2
                failed=1
            fi
            ;;
        esac
    done
done < <(awk '/^```sh/ {inside = 1; next} /^```/ {inside = 0} inside' README.md)
for target in demo check build check-long bench deb; do
    grep -q "^$target:" Makefile || { echo "README: no target $target" >&2; failed=1; }
done
for path in $(grep -oE '`(include|models|ref|src|docs|tools|scripts|examples)/[a-z0-9_./-]*`' README.md | tr -d '`'); do
    [ -e "$path" ] || { echo "README: no $path" >&2; failed=1; }
done
exit $failed
