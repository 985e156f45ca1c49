#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# scripts/config_table.py: what runs, what is refused and why, a group a folder, and two steps of what runs.
set -u
bin=$(realpath "$1")
command -v python3 > /dev/null || { echo "skip: no python3"; exit 77; }
work=$(mktemp -d "$1/config_table.XXXXXX")
trap 'rm -rf "$work"' EXIT
failed=0
mkdir -p "$work/in/one" "$work/in/two"
cat > "$work/in/one/auto.json" << 'END'
{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3, "reduce_bucket_size": "auto"},
 "train_batch_size": "auto", "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto"}
END
cat > "$work/in/one/numbers.json" << 'END'
{"fp16": {"enabled": true}, "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "train_batch_size": 6,
 "train_micro_batch_size_per_gpu": 3, "_comment": "values of its own, which the flags contradict"}
END
echo '{"train_batch_size": 8, "pipeline": {"stages": 4}}' > "$work/in/two/parallel.json"
echo '{"name": "not a configuration"}' > "$work/in/two/package.json"
out=$(python3 "$DS_SOURCE_DIR/scripts/config_table.py" "$bin" "$work/in" --run 9 2>&1) || { echo "FAILED: $out"; exit 1; }
for text in "refused  two/parallel.json: 1:48: pipeline.stages: expected a divisor of the world size, 1, found 4" \
    "     2     2  one" "     1     0  two" "     3     2  all: 66.7 % run as they are" \
    "2 of 2 train two steps of a tiny model"; do
    case $out in
    *"$text"*) ;;
    *)
        echo "FAILED: expected '$text' in: $out"
        failed=1
        ;;
    esac
done
exit $failed
