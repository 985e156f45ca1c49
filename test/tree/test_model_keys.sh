#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: tree
# Every key of config.json that a table of models/ or src/model has is in docs/internals/models.md.
set -euo pipefail
cd "$DS_SOURCE_DIR"
rows='(SIZE|SIZE_OR_NULL|SWITCH|APPLIED|ALIAS|DROPOUT|REAL|PAD|ANY_INT|MULTIPLIER|DS_FIELD_CHECK|DS_FIELD_REFUSE)\("[a-z0-9_]+"'
keys=$(grep -ohE "$rows" models/*.[ch] src/model/common_fields.c | grep -oE '"[a-z0-9_]+"' | tr -d '"' | sort -u)
[ "$(wc -w <<< "$keys")" -ge 55 ] || { echo "only $(wc -w <<< "$keys") keys found: has a macro another name?" >&2; exit 1; }
failed=0
for key in $keys; do
    grep -qE "\`$key[\`:]" docs/internals/models.md || { echo "models.md does not say what $key does" >&2; failed=1; }
done
exit $failed
