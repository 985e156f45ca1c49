#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# The plans of 864 runs are those of test/golden/plan_corpus.txt: operators, operands, order, bytes, memory.
# Usage: test_plan_corpus.sh BUILD. What a plan was before: `plan_corpus show NAME` of a build of the older commit. After a change
# that is meant: plan_corpus > test/golden/plan_corpus.txt, and its reason in the commit.
set -euo pipefail
build=$1
golden=$DS_SOURCE_DIR/test/golden/plan_corpus.txt
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
"$build/plan_corpus" > got.txt
[ "$(wc -l < got.txt)" -ge 500 ] || { echo "only $(wc -l < got.txt) plans"; exit 1; }
if grep -m 3 ' refused: ' got.txt; then
    exit 1
fi
if ! diff "$golden" got.txt > changed.txt; then
    echo "$(grep -c '^>' changed.txt) of $(wc -l < got.txt) plans are others than in test/golden/plan_corpus.txt, the first:"
    head -n 6 changed.txt
    exit 1
fi
echo "$(wc -l < got.txt) plans, as before"
