#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# scripts/check-long.sh: parts are chosen by name, a failed one does not end the others, the table and the status say what happened, and
# LONG_RESUME passes over what passed with the same sources. Usage: test_check_long.sh BUILD
# labels: tree
set -euo pipefail
root=${DS_SOURCE_DIR:?}
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
mkdir -p "$scratch/scripts" "$scratch/test/long"
cp "$root/scripts/check-long.sh" "$scratch/scripts"
printf 'build:\n\t@:\n' > "$scratch/Makefile"
echo 'echo "of $1"' > "$scratch/test/long/good.sh"
echo 'echo a; false; echo b' > "$scratch/test/long/bad.sh"
echo 'echo "no device"; exit 77' > "$scratch/test/long/lacking.sh"
sed -i '1i set -e' "$scratch/test/long/bad.sh"
printf 'build\nerrors\nout\n' > "$scratch/.gitignore"
git -C "$scratch" init -q
git -C "$scratch" add -A
git -C "$scratch" -c user.name=n -c user.email=e commit -qm first

run() { # STATUS VARIABLES…: the output in $out
    local want=$1 code=0
    shift
    out=$(env -u MAKEFLAGS "$@" "$scratch/scripts/check-long.sh" 2> "$scratch/errors") || code=$?
    [ "$code" = "$want" ] || { echo "status $code, not $want: $*"; echo "$out"; cat "$scratch/errors"; exit 1; }
}
silent() { ! grep -qE "$1" <<< "$out" || { echo "said: $1"; echo "$out"; exit 1; }; }
says() { grep -qE "$1" <<< "$out" || { echo "not said: $1"; echo "$out"; exit 1; }; }

run 1 LONG_ONLY="bad good lacking"
says '^bad +[0-9]+  FAILED \(1\)$'
says '^good +[0-9]+  passed$'
says '^lacking +[0-9]+  not run$'
says '^check-long: FAILED: bad$'
says "^of $scratch/build\$"
silent '^b$'

run 0 LONG_ONLY="bad good lacking" LONG_SKIP=bad
says '^check-long: passed, but not run: lacking$'
silent '^bad'

run 0 LONG_ONLY=good LONG_RESUME=1
says '^good +-  passed before$'
echo 'echo changed' >> "$scratch/test/long/good.sh"
run 0 LONG_ONLY=good LONG_RESUME=1
says '^changed$'

run 2 LONG_ONLY="good nothing"
grep -q 'no part is named "nothing". The parts: check fuzz comm_sim bad good lacking demo_1' "$scratch/errors"
run 2 LONG_ONLY=good LONG_SKIP=good
echo "check-long: ok"
