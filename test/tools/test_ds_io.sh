#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# ds_io and ds_nvme_tune: figures, their arithmetic, content, exit codes; nothing is left behind, also by Ctrl-C;
# the section that the tuner writes is one. Usage: test_ds_io.sh BUILD
set -euo pipefail
build=$1
folder=$(mktemp -d "$build/test_ds_io.XXXXXX")
trap 'rm -rf "$folder"' EXIT
fail() { echo "FAILED: $*" >&2; exit 1; }
empty() { [ -z "$(ls -A "$folder/disk")" ] || fail "$1 left $(ls -A "$folder/disk")"; }
mkdir "$folder/disk" "$folder/other"

# Text: the lines of DeepSpeed's benchmark; writing when nothing is asked for.
text=$("$build/ds_io" --folder "$folder/disk" --io_size 4M --loops 2)
[ "$(sed 's/ = .*//' <<< "$text" | head -4)" = "Task Write Latency
Task Write Speed
E2E Write Latency
E2E Write Speed" ] || fail "text: $text"
grep -q '^Transfers of ' <<< "$text" || fail "text: $text"
empty ds_io

# JSON: bytes of all tasks over the seconds are the speed; each backend; content is compared.
for backend in threads auto; do
    "$build/ds_io" --folder "$folder/disk" "$folder/other" --io_size 1M --multi_process 2 --read --write --validate \
        --block_size 64K --queue_depth 4 --io_parallel 2 --single_submit --sequential_requests --backend $backend \
        --json | python3 -c '
import json, sys
a, b = (json.loads(line) for line in sys.stdin)
assert (a["operation"], b["operation"]) == ("read", "write")
for r in (a, b):
    assert r["bytes"] == 4 << 20 and r["block_size"] == 65536 and r["queue_depth"] == 4
    assert r["intra_op_parallelism"] == 2 and r["single_submit"] and not r["overlap_events"]
    assert abs(r["bytes_per_second"] * r["seconds"] / r["bytes"] - 1) < 1e-3
    assert r["best_seconds"] <= r["seconds"] <= r["worst_seconds"]
    assert 0 < r["transfer_seconds"] <= r["slowest_transfer_seconds"] <= 5
    assert r["backend"] in ("threads", "io_uring")
' || fail "json with backend $backend"
done
empty ds_io

# Ctrl-C in the middle.
code=0
timeout -s INT 1 "$build/ds_io" --folder "$folder/disk" --io_size 8M --loops 10000 > /dev/null 2>&1 || code=$?
[ "$code" = 124 ] || fail "10000 loops ended with $code before the signal"
empty "a stopped ds_io"

# What is wrong is said.
expect() { # CODE TEXT COMMAND...
    local want=$1 say=$2 code=0 output
    shift 2
    output=$("$@" 2>&1) || code=$?
    [ "$code" = "$want" ] || fail "$* gives exit code $code: $output"
    grep -qF -- "$say" <<< "$output" || fail "$*: $output"
}
io=("$build/ds_io" --folder "$folder/disk")
expect 2 "expected --folder DIR" "$build/ds_io" --io_size 1M
expect 2 "--io_size: expected 4096" "${io[@]}" --io_size 7
expect 2 "block_size: expected a multiple of 4096" "${io[@]}" --io_size 1M --block_size 1000
expect 1 "free bytes for the files" "${io[@]}" --io_size 60T
expect 1 "/no/such/folder" "$build/ds_io" --folder /no/such/folder --io_size 1M

# The tuner: a row for each combination, the winner among them, a section that the checker accepts.
cat > "$folder/sweep.json" << 'JSON'
{"block_size": ["64K", 131072], "queue_depth": [2, "4"], "single_submit": [false], "sequential_requests": [true, false]}
JSON
tune=("$build/ds_nvme_tune" --nvme_dir "$folder/disk" "$folder/other" --io_size 1M)
text=$("${tune[@]}" --sweep_config "$folder/sweep.json" --output "$folder/aio.json" --verbose)
[ "$(grep -cE '^ +(65536|131072) +[24] +1 ' <<< "$text")" = 12 ] || fail "table: $text" # 8, and the best 4 again
grep -qE '^Best performance \(GB/sec\): read = +[0-9.]+, write = +[0-9.]+$' <<< "$text" || fail "best: $text"
[ "$(tail -n 9 <<< "$text")" = "$(cat "$folder/aio.json")" ] || fail "section: $text"
sed 's/^{/{"train_batch_size": 1,/' "$folder/aio.json" > "$folder/ds.json"
"$build/ds_config" check "$folder/ds.json" > /dev/null || fail "the checker refuses $(cat "$folder/ds.json")"
empty ds_nvme_tune
"${tune[@]}" --no_read --sweep_config "$folder/sweep.json" | grep -qE 'read = +0.00' || fail "--no_read"
echo '{"block_size": ["1K"]}' > "$folder/bad.json"
expect 1 "block_size: expected a list of 1 to 16 numbers from 4096" "${tune[@]}" --sweep_config "$folder/bad.json"
echo '{"num_threads": [1]}' > "$folder/bad.json"
expect 1 "num_threads: unknown key" "${tune[@]}" --sweep_config "$folder/bad.json"
echo '{"single_submit": ["false"]}' > "$folder/bad.json"
expect 1 "single_submit: expected a list of true and false" "${tune[@]}" --sweep_config "$folder/bad.json"
expect 2 "cannot write in folder /no/such" "${tune[@]}" --output /no/such/aio.json
expect 2 "cannot write $folder/disk: it is a folder" "${tune[@]}" --output "$folder/disk"
expect 2 "expected --nvme_dir DIR" "$build/ds_nvme_tune"
expect 2 "at most one of --no_read and --no_write" "${tune[@]}" --no_read --no_write
