#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Groups of ranks (MiCS, hpZ): the same checkpoint as plain ZeRO, bit for bit, also where one goes on from the other's; ds_plan's bytes
# along the axes; what they do not go with is refused. Usage: test_groups.sh BUILD
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
cat > model.json <<'EOF'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
 "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}
EOF
head -c 40000 "$DS_SOURCE_DIR/data/tinyshakespeare.txt" > text.txt
config() { # FILE, ZERO SECTION
    cat > "$1" <<EOF
{"train_batch_size": 8, "bf16": {"enabled": true}, "gradient_clipping": 1.0,
 "optimizer": {"type": "AdamW", "params": {"lr": 1e-3}}, "zero_optimization": {$2}}
EOF
}
config plain.json '"stage": 3'
config mics.json '"stage": 3, "mics_shard_size": 2, "stage3_param_persistence_threshold": 0'
config hpz.json '"stage": 3, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 100'
config two.json '"stage": 2'
train() { # RANKS, CONFIG, OUTPUT, FLAGS
    local ranks=$1 config=$2 output=$3
    shift 3
    "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --model_config model.json --tokenizer bytes --data text.txt \
        --seq_length 32 --seed 7 --lr_scheduler_type none --deepspeed_config "$config" --output "$output" "$@" > "$output.log" 2>&1 ||
        { tail -n 20 "$output.log"; return 1; }
}
weights() { # OUTPUT: the hash of its newest checkpoint's weights
    "$build/ds_checkpoint" export "$1" "$1.model" > /dev/null
    sha256sum < "$1.model/model.safetensors"
}

train 4 plain.json plain --steps 4
train 4 mics.json mics --steps 4
train 4 hpz.json hpz --steps 4
train 4 mics.json on --steps 2
train 4 two.json on --steps 4 --resume
train 4 plain.json back --steps 2
train 4 hpz.json back --steps 3 --resume
train 4 mics.json back --steps 4 --resume
for run in mics hpz on back; do
    "$build/ds_checkpoint" verify "$run" --all > /dev/null
    [ "$(weights "$run")" = "$(weights plain)" ] || { echo "$run: other weights than plain ZeRO's"; exit 1; }
    rm -rf plain.model
done

# The mesh of a run is in its history, that of a plan in ds_plan's report.
grep -q '"event":"start".*"mesh":{"dpr":2,"dps":2}.*\["mesh","mesh(dpr=2,dps=2)"' hpz/history.jsonl
grep -q '"mesh":{"dps":4}' plain/history.jsonl
"$build/ds_plan" --model_config model.json --seq_length 32 --deepspeed_config mics.json --world_size 8 --json - |
    grep '"ranks": 8, "nodes": 1, "mesh": {"dpr": 4, "dps": 2}' > /dev/null

# Within a group of two, half of what is gathered is sent; plain ZeRO sends three quarters.
sent() { # CONFIG
    "$build/ds_plan" --model_config model.json --seq_length 32 --deepspeed_config "$1" --world_size 4 --json - |
        python3 -c 'import json, sys
report = json.load(sys.stdin)
print(sum(c["sent"] for c in report["communication"] if c["collective"] == "all_gather" and c["phase"] == "forward"))'
}
config plain0.json '"stage": 3, "stage3_param_persistence_threshold": 0'
config hpz0.json '"stage": 3, "zero_hpz_partition_size": 2, "stage3_param_persistence_threshold": 0'
python3 - "$(sent mics.json)" "$(sent hpz0.json)" "$(sent plain0.json)" <<'EOF'
import sys
mics, hpz, plain = map(float, sys.argv[1:])
assert plain > 0 and abs(mics / plain - (1 / 2) / (3 / 4)) < 1e-6 and hpz == mics, (mics, hpz, plain)
EOF

# hpZ's gradients are reduced to slices of all ranks: as many bytes as plain ZeRO's.
reduced() { # CONFIG
    "$build/ds_plan" --model_config model.json --seq_length 32 --deepspeed_config "$1" --world_size 4 --json - |
        python3 -c 'import json, sys
print(sum(c["sent"] for c in json.load(sys.stdin)["communication"] if c["phase"] == "backward" and c["collective"] in ("reduce_scatter", "all_reduce")))'
}
plain=$(reduced plain0.json)
[ "$plain" -gt 0 ] && [ "$(reduced hpz0.json)" = "$plain" ] || { echo "hpZ sends $(reduced hpz0.json) bytes of gradients, plain ZeRO $plain"; exit 1; }

config bad.json '"stage": 2, "mics_shard_size": 2'
if train 2 bad.json bad --steps 1 > /dev/null; then
    echo "MiCS in stage 2 was taken"
    exit 1
fi
grep -q "mics_shard_size: expected none with zero_optimization.stage 2" bad.log
config bad.json '"stage": 3, "mics_shard_size": 3'
if train 4 bad.json bad3 --steps 1 > /dev/null; then
    echo "groups of three of four ranks were taken"
    exit 1
fi
grep -q "mics_shard_size: expected a divisor of the world size, 4, found 3" bad3.log
config bad.json '"stage": 3, "zero_hpz_partition_size": 2, "offload_param": {"device": "cpu"}'
if train 2 bad.json bad4 --steps 1 > /dev/null; then
    echo "hpZ with offloaded parameters was taken"
    exit 1
fi
grep -q "zero_hpz_partition_size: expected 1 with zero_optimization.offload_param" bad4.log
echo "MiCS and hpZ: the same bits as ZeRO-3"
