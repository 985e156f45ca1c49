# SPDX-License-Identifier: Apache-2.0
# For tests of sequences that ranks share or that are computed in chunks: data, a model with dropout everywhere, runs of any length, and
# whether their losses are near. Sourced; needs $build.
# shellcheck source=test/common/train_runs.sh
. "$DS_SOURCE_DIR/test/common/train_runs.sh"
cat > gpt2.json <<'EOM'
{"model_type": "gpt2", "vocab_size": 257, "n_embd": 40, "n_layer": 2, "n_head": 4, "n_positions": 128, "attn_pdrop": 0.1, "embd_pdrop": 0.1,
 "resid_pdrop": 0.1}
EOM
head -c 60000 "$DS_SOURCE_DIR/data/tinyshakespeare.txt" > text.txt
awk 'length($0) > 20 && n < 300 {n++; printf "{\"prompt\": \"%s\", \"completion\": \"%s\"}\n", substr($0, 1, 3 + n % 29), substr($0, 4 + n % 29)}' text.txt |
    sed 's/\\/ /g' > pairs.jsonl
train() { # RANKS, CONFIG, OUTPUT, LENGTH, FLAGS
    local ranks=$1 config=$2 output=$3 length=$4
    shift 4
    rm -f "$output.jsonl"
    [[ " $* " == *" --resume "* ]] || rm -rf "$output"
    "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --tokenizer bytes --threads 1 --seq_length "$length" --seed 7 \
        --lr_scheduler_type none --deepspeed_config "$config" --output "$output" --metrics "$output.jsonl" "$@" > "$output.log" 2>&1
}
losses() { sed -nE 's/.*"(eval_)?loss":([0-9.]+).*/\2/p' "$1.jsonl"; }
near() { # OUTPUTS, BOUND ON ALL STEPS (else 2e-6 on the first, 1e-4 behind it)
    paste <(losses "$1") <(losses "$2") | awk -v bound="${3:-0}" '{n++; d = ($1 - $2) / $1; d = d < 0 ? -d : d; if (d > (bound > 0 ? bound : n == 1 ? 2e-6 : 1e-4)) bad = 1} END {exit !(n >= 3 && !bad)}'
}
