# SPDX-License-Identifier: Apache-2.0
# For tests of ds_train over ranks: a scratch folder, runs, and what came of them. Sourced; needs $build. Runs read $data, with
# $length tokens a row.
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
cd "$scratch"
fail() {
    echo "FAIL: $1"
    [ ! -e "${2:-}" ] || tail -n 20 "$2"
    exit 1
}
config() { # FILE, KEYS
    cat > "$1" <<END
{"train_batch_size": 8, "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}, ${2}}
END
}
train() { # RANKS, CONFIG, OUTPUT, FLAGS
    local ranks=$1 config=$2 output=$3
    shift 3
    "$build/deepspeed" --num_gpus "$ranks" "$build/ds_train" --tokenizer bytes --data "$data" --threads 1 --seq_length "$length" --seed 7 \
        --lr_scheduler_type none --deepspeed_config "$config" --output "$output" --metrics "$output.jsonl" "$@" > "$output.log" 2>&1
}
on_cuda() { # SEED, and what train takes: over the stand-ins; DS_CUDA_NAME: what the driver reports, of a large device. DS_CUDA_REAL=1: on the machine's own
    local seed=$1
    shift
    if [ -n "${DS_CUDA_REAL:-}" ]; then
        train "$@" --accelerator cuda
        return
    fi
    DS_MODULE_PATH="$build/standin" LD_LIBRARY_PATH="$build/standin" DS_CUDA_STANDIN="seed=$seed,turn=200${DS_CUDA_NAME:+,mib=200000,name=$DS_CUDA_NAME}" train "$@" --accelerator cuda
}
weights() { # OUTPUT: the hash of its newest checkpoint's weights; of one that has none words that no other has
    "$build/ds_checkpoint" export "$1" "$1.model" --overwrite > /dev/null || { echo "no weights of $1"; return 1; }
    sha256sum < "$1.model/model.safetensors"
}
losses() { sed -nE 's/.*"loss":([0-9.]+).*/\1/p' "$1.jsonl"; }
near() { # A, B: losses that differ by at most 1e-4
    paste <(losses "$1") <(losses "$2") | awk '{n++; d = $1 - $2; if (d < -1e-4 || d > 1e-4) bad = 1} END {exit !(n >= 2 && !bad)}'
}
