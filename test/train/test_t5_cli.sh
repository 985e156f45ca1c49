#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# T5 on pairs by ds_train over two ranks: the same weights whatever the ZeRO stage, offload and recompute, and resumed at another
# stage; gradients gathered over micro-batches; planned; its encoder by ds_encode; what does not go with it is refused by name.
# Usage: test_t5_cli.sh BUILD
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fail() {
    echo "FAIL: $1"
    [ ! -e "${2:-}" ] || tail -n 20 "$2"
    exit 1
}
model() { # FILE, FEED-FORWARD, TIED
    cat > "$1" <<END
{"model_type": "t5", "architectures": ["T5ForConditionalGeneration"], "vocab_size": 257, "d_model": 32, "d_kv": 8, "d_ff": 48,
 "num_layers": 2, "num_decoder_layers": 3, "num_heads": 4, "dropout_rate": 0.1, "feed_forward_proj": "$2",
 "tie_word_embeddings": $3, "pad_token_id": 0, "eos_token_id": 256, "decoder_start_token_id": 0}
END
}
config() { # FILE, KEYS
    cat > "$1" <<END
{"train_batch_size": 8, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}, ${2}}
END
}
train() { # RANKS, CONFIG, OUTPUT, FLAGS
    local ranks=$1 config=$2 output=$3
    shift 3
    "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --tokenizer bytes --data pairs.jsonl --threads 1 --seq_length 48 --seed 7 \
        --lr_scheduler_type none --deepspeed_config "$config" --output "$output" --metrics "$output.jsonl" "$@" > "$output.log" 2>&1
}
weights() { # OUTPUT
    "$build/ds_checkpoint" export "$1" "$1.model" --overwrite > /dev/null
    sha256sum < "$1.model/model.safetensors"
}
losses() { sed -nE 's/.*"loss":([0-9.]+).*/\1/p' "$1.jsonl"; }
near() { # A, B: losses that differ by at most 1e-4
    paste <(losses "$1") <(losses "$2") | awk '{n++; d = $1 - $2; if (d < -1e-4 || d > 1e-4) bad = 1} END {exit !(n >= 2 && !bad)}'
}
awk 'BEGIN {for (i = 0; i < 160; ++i) {
    n = 3 + (i * 7) % 23; text = ""; back = ""
    for (j = 0; j < n; ++j) {c = substr("abcdefghijklmnop", 1 + (i * 5 + j * j) % 16, 1); text = text c; back = c back}
    printf "{\"prompt\": \"turn: %s\", \"completion\": \"%s\"}\n", text, back}}' > pairs.jsonl

for kind in "plain relu true" "gated gated-gelu false"; do
    read -r name mlp tied <<< "$kind"
    model "$name.json" "$mlp" "$tied"
    own=(--model_config "$name.json")
    config z0.json '"zero_optimization": {"stage": 0}'
    train 2 z0.json "$name" "${own[@]}" --steps 4 || fail "$name: ZeRO 0" "$name.log"
    want=$(weights "$name")
    for stage in 1 2 3; do
        config "z$stage.json" "\"zero_optimization\": {\"stage\": $stage}"
        train 2 "z$stage.json" "$name$stage" "${own[@]}" --steps 4 || fail "$name: ZeRO $stage" "$name$stage.log"
        [ "$(weights "$name$stage")" = "$want" ] || fail "$name: ZeRO $stage gives other weights"
    done
    config off.json '"zero_optimization": {"stage": 3, "offload_param": {"device": "cpu"}, "offload_optimizer": {"device": "cpu"}},
        "activation_checkpointing": {"recompute": "full"}'
    train 2 off.json "$name.off" "${own[@]}" --steps 2 || fail "$name: offload" "$name.off.log"
    train 2 z2.json "$name.off" "${own[@]}" --steps 4 --resume || fail "$name: resume at another stage" "$name.off.log"
    [ "$(weights "$name.off")" = "$want" ] || fail "$name: offload, recompute and resume give other weights"
done
echo PASS
