#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# Quantized collectives (qwZ, qgZ, LoCo, with hpZ): the same weights and states whatever the transport, threads, overlap, bucket, stage, recomputation,
# residency, and when a run is saved and resumed; bytes that are carried, against bf16's; a small model's loss against that of the run that is not quantized.
# Usage: test_quantized_bits.sh BUILD
set -euo pipefail
build=$1
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE DS_RESTART_COUNT
fail() { echo "FAILED: $*"; exit 1; }

run() { # WORDS: prints the hash line
    local launcher=()
    local ranks
    ranks=$(sed -E 's/.*ranks=([0-9]+).*/\1/' <<< "$*")
    case "$*" in
    *transport=mpi*) launcher=(mpirun --allow-run-as-root --oversubscribe --bind-to none -n "$ranks") ;;
    *transport=*) launcher=("$build/deepspeed" --num_gpus "$ranks") ;;
    esac
    rm -rf "$scratch/save"
    # shellcheck disable=SC2086
    "${launcher[@]}" "$build/zero_row" steps=6 $* save="$scratch/save" < /dev/null | grep -o 'hash [0-9a-f]*'
}
has() { # TRANSPORT
    case $1 in
    mpi) ls "$build"/libdeepspeed_mpi_openmpi.so > /dev/null 2>&1 && command -v mpirun > /dev/null ;;
    ucx) ls "$build"/libdeepspeed_ucx.so > /dev/null 2>&1 ;;
    *) true ;;
    esac
}

# A group, and what changes no bit of it.
n=0
declare -A seen
while IFS='|' read -r group changes; do
    want=$(run "$group")
    [ -n "$want" ] || fail "$group: no result"
    [ -z "${seen[$want]:-}" ] || fail "$group: as ${seen[$want]}"
    seen[$want]=$group
    while IFS= read -r -d ';' change; do
        case $change in *transport=mpi*) has mpi || continue ;; *transport=ucx*) has ucx || continue ;; esac
        got=$(run "$group $change") || fail "$group $change: no result"
        [ "$got" = "$want" ] || fail "$group $change: $got, expected $want"
        n=$((n + 1))
    done <<< "$changes"
done << 'END'
model=llama dtype=bf16 ranks=4 stage=3|overlap=1;
model=llama dtype=bf16 ranks=4 stage=3 qwz=1|hpz=2;threads=3 overlap=1;bucket=1000;
model=llama dtype=bf16 ranks=4 qgz=1 stage=3|loco=1;stage=2;stage=1 overlap=1 bucket=20000;transport=shm;
model=llama dtype=bf16 ranks=4 stage=3 qwz=1 qgz=1 hpz=2|overlap=1 bucket=20000 threads=2;transport=shm;transport=mpi;transport=ucx overlap=1;recompute=full;offload=states;
model=llama dtype=bf16 ranks=4 stage=3 qwz=1 qgz=1 hpz=2 loco=4|overlap=1 bucket=20000 threads=2;transport=shm;transport=mpi;resume=1;resume=2 transport=shm;
model=gpt2 dtype=f16 ranks=2 accumulation=2 stage=3 qwz=1 qgz=1 loco=4|transport=shm overlap=1;transport=ucx;resume=1;bucket=1000;
model=gpt2 dtype=f32 ranks=3 stage=3 qwz=1 qgz=1|transport=shm bucket=1000;threads=3;offload=params;
model=llama dtype=bf16 ranks=4 tp=2 stage=3 qwz=1 qgz=1|overlap=1;transport=shm;
model=llama dtype=bf16 ranks=4 sp=2 stage=3 qwz=1 qgz=1|overlap=1;transport=shm bucket=20000;
END

# ---- what is carried, and how a small model trains with it -------------------------------------------------------------------------
cat > "$scratch/model.json" <<'JSON'
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 256, "hidden_size": 64, "intermediate_size": 96,
 "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 128,
 "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": false}
JSON
head -c 60000 "$DS_SOURCE_DIR/data/tinyshakespeare.txt" > "$scratch/text.txt"
config() { # NAME, MORE OF THE ZERO SECTION
    cat > "$scratch/$1.json" <<JSON
{"train_batch_size": 8, "bf16": {"enabled": true}, "gradient_clipping": 1.0, "comms_logger": {"enabled": true},
 "optimizer": {"type": "AdamW", "params": {"lr": 3e-3}}, "zero_optimization": {"stage": 3, "stage3_param_persistence_threshold": 0$2}}
JSON
}
zeropp=', "zero_hpz_partition_size": 2, "zero_quantized_weights": true, "zero_quantized_gradients": true'
config plain ''
config hpz ', "zero_hpz_partition_size": 2'
config qgz ', "zero_quantized_gradients": true'
config zeropp "$zeropp"
config loco "$zeropp, \"zeropp_loco_param\": {\"err_beta\": 0.8, \"reset_T\": 64}"
train() { # CONFIG, STEPS, OTHER RANKS THAN 4, FLAGS
    "$build/deepspeed" --num_gpus "${3:-4}" "$build/ds_train" --model_config "$scratch/model.json" --tokenizer bytes --data "$scratch/text.txt" \
        --seq_length 32 --seed 7 --lr_scheduler_type none --deepspeed_config "$scratch/$1.json" --output "$scratch/$1" --max_steps "$2" "${@:4}" > "$scratch/$1.log" 2>&1 ||
        { tail -n 20 "$scratch/$1.log"; fail "$1"; }
}
for name in plain zeropp loco; do
    train $name 200
done
train qgz 7
# Bytes of gradients, from the first table of the log: what is an all_to_all there, and a reduce_scatter here; GPT-2 124M as it is planned, of which fewer
# numbers are in vectors.
cat > "$scratch/gpt2.json" <<'JSON'
{"model_type": "gpt2", "vocab_size": 50257, "n_positions": 1024, "n_embd": 768, "n_layer": 12, "n_head": 12, "layer_norm_epsilon": 1e-5}
JSON
for name in plain hpz qgz zeropp; do
    "$build/ds_plan" --model_config "$scratch/gpt2.json" --seq_length 1024 --deepspeed_config "$scratch/$name.json" --world_size 8 --json - > "$scratch/$name.plan"
done
"$build/ds_plan" --model_config "$scratch/model.json" --seq_length 32 --deepspeed_config "$scratch/loco.json" --world_size 4 > "$scratch/loco.text"
for line in "parameters are gathered in 8 bits" "gradients but vectors are exchanged in 4 bits, what they lose is added to the next" "all_to_all *dpr *backward"; do
    grep "$line" "$scratch/loco.text" > /dev/null || { cat "$scratch/loco.text"; fail "ds_plan does not say: $line"; }
done
python3 - "$scratch" <<'PYTHON'
import json, re, sys
folder = sys.argv[1]
def losses(name):
    rows = [json.loads(line) for line in open(f"{folder}/{name}/history.jsonl")]
    found = [row["loss"] for row in rows if "loss" in row and "step" in row]
    assert len(found) >= 200, (name, len(found))
    return found[0], sum(found[180:200]) / 20
first, plain = losses("plain")
for name in ("zeropp", "loco"):
    loss = losses(name)[1]
    print(f"{name}: loss {loss:.4f}, plain {plain:.4f}, at first {first:.4f}")
    assert plain < 0.6 * first and abs(loss - plain) <= 0.02 * plain, (name, loss, plain)
UNITS = {"B": 1, "KB": 1024, "MB": 1024**2}
def carried(name, op, steps):
    total, now = 0.0, None
    for line in open(f"{folder}/{name}.log"):
        word = line.split()
        if "Breakdown" in line:
            break
        if word and re.fullmatch("[a-z_]+", word[0]):
            now = word[0]
        if now == op and len(word) > 2 and word[1] in UNITS and re.fullmatch("[0-9.]+", word[0]) and int(word[2]) % steps == 0:
            total += float(word[0]) * UNITS[word[1]] * int(word[2]) / steps # others are of the start
    return total
bf16 = carried("plain", "reduce_scatter", 200)
int4 = carried("qgz", "all_to_all", 7) + carried("qgz", "reduce_scatter", 7)
print(f"gradients of a step: {int4:.0f} bytes, bf16 {bf16:.0f}")
assert bf16 > 0 and 0.25 * bf16 < int4 <= 0.27 * bf16, (int4, bf16)
def sent(name, ops, phase):
    return sum(c["sent"] for c in json.load(open(f"{folder}/{name}.plan"))["communication"] if c["collective"] in ops and c["phase"] == phase)
sums = ("reduce_scatter", "all_to_all", "all_reduce")
for phase, ops, low, high, with_, without in (
        ("backward", sums, 0.25, 0.27, "qgz", "plain"),
        ("backward", sums, 0.25, 0.27, "zeropp", "plain"),
        ("forward", ("all_gather", ), 0.5, 0.51, "zeropp", "hpz")):
    a, b = sent(with_, ops, phase), sent(without, ops, phase)
    print(f"GPT-2 124M on 8 ranks, {with_}, {phase}: {a:.0f} of {b:.0f} bytes, {a / b:.4f}")
    assert low <= a / b <= high
PYTHON
# Goes on with other ranks, and without: said, not passed over.
train loco 202 2 --resume
grep "what quantized gradients have lost starts at zero" "$scratch/loco.log" > /dev/null || { cat "$scratch/loco.log"; fail "no notice of other ranks"; }
cp "$scratch/plain.json" "$scratch/zeropp.json"
train zeropp 202 4 --resume
grep "zero_quantized_gradients" "$scratch/zeropp.log" > /dev/null || { cat "$scratch/zeropp.log"; fail "no notice of another way to send"; }
echo "$n runs, the same bits in each group"
