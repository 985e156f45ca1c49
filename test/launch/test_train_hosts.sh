#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow waits
# ds_train across two hosts that share only a network (two_hosts.sh), through pdsh, ssh, Open MPI and MPICH: the same
# states bit for bit as on one host, with a checkpoint folder that both see and with one of each host's own. Usage: test_train_hosts.sh BUILD
set -u
bin=$(realpath "$1")
root=${DS_SOURCE_DIR:-$(cd "$(dirname "$0")/../.." && pwd)}
# shellcheck source=test/launch/two_hosts.sh
. "$(dirname "$0")/two_hosts.sh"
work=$(mktemp -d "$bin/train_hosts.XXXXXX")
trap 'hosts_down; rm -rf "$work"' EXIT
[ -e "$bin/libdeepspeed_ucx.so" ] || hosts_skip "the module for UCX is not built"
command -v pdsh > /dev/null || hosts_skip "no pdsh"
hosts_up "$work"
failed=0
cases=0
fail() { { echo "FAILED: $*"; tail -n 40 "$work/log" | cut -c 1-300 | sed "s|^|    |"; } >&2; failed=1; }

# ---- what each host has in its home
cat > "$work/model.json" <<'JSON'
{"model_type": "gpt2", "architectures": ["GPT2LMHeadModel"], "vocab_size": 256, "n_positions": 64, "n_embd": 64,
 "n_layer": 2, "n_head": 4, "activation_function": "gelu_new", "resid_pdrop": 0.1, "embd_pdrop": 0.1,
 "attn_pdrop": 0.1, "bos_token_id": 0, "eos_token_id": 0}
JSON
for host in dsa dsb; do
    own=$work/$host/home
    cp "$work/model.json" "$own"
    head -c 60000 "$root/data/tinyshakespeare.txt" > "$own/text.txt"
    printf 'dsa slots=2\ndsb slots=2\n' > "$own/hosts"
    for stage in 0 1 2 3; do
        for dtype in fp32 bf16 fp16; do
            printf '{"train_batch_size": 8, "steps_per_print": 1000, "gradient_clipping": 0.1, "optimizer": {"type": "AdamW",
 "params": {"lr": 1e-3}}, %s "zero_optimization": {"stage": %d}}' \
                "$([ $dtype = fp32 ] || echo "\"$dtype\": {\"enabled\": true},")" $stage > "$own/$dtype.$stage.json"
        done
    done
done

# train HOW DTYPE STAGE STEPS OUTPUT [FLAGS…]: from dsa; HOW is "one", for four ranks there, or a launcher. The steps'
# numbers and losses are in $work/$cases.losses.
train() {
    local how=$1 dtype=$2 stage=$3 steps=$4 output=$5 way=(--num_gpus 4) code
    shift 5
    [ "$how" = one ] || way=(--hostfile hosts --launcher "$how")
    cases=$((cases + 1))
    timeout -s KILL 100 "${on_dsa[@]}" env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 DS_THREADS=1 \
        DEEPSPEED_TIMEOUT=0.5 "$bin/deepspeed" "${way[@]}" "$bin/ds_train" --model_config model.json --tokenizer bytes \
        --data text.txt --seq_length 32 --deepspeed_config "$dtype.$stage.json" --steps "$steps" --lr_scheduler_type none --output "$output" \
        --metrics "$hosts_shared/metrics" "$@" > "$work/log" 2>&1 < /dev/null
    code=$?
    [ $code = 0 ] || fail "$how $dtype stage $stage: exit code $code"
    grep 'behind training in .* stood still' "$work/log" > "$work/behind_lines"
    grep -o '"step": *[0-9]*, *"loss": *[^,]*' "$hosts_shared/metrics" > "$work/$cases.losses"
    rm -f "$hosts_shared/metrics"
}
on_dsa=(bash -c "$(declare -f on); on dsa \"\$@\"" on)
export hosts_home hosts_pid_dsa

# digest OUTPUT: of every state of its newest checkpoint, as dsa sees it.
digest() {
    on dsa rm -rf disk/whole
    on dsa "$bin/ds_checkpoint" consolidate "$1" disk/whole > "$work/log" 2>&1 || return
    on dsa sh -c 'cat disk/whole/*/*.safetensors' | sha256sum | cut -c 1-16
}

check() { # WANT WHAT OUTPUT
    local got
    got=$(digest "$3")
    echo "$2: ${got:-none}"
    [ -n "$got" ] && [ "$got" = "$1" ] || fail "$2: expected $1 as on one host"
}
bring() { # OUTPUT TAG: dsb's part of a checkpoint to dsa
    on dsb tar -C "$1/$2" -c . | on dsa tar -C "$1/$2" -x
}

declare -A want
for dtype in bf16 fp32 fp16; do
    train one $dtype 1 6 "disk/one_$dtype"
    want[$dtype]=$(digest "disk/one_$dtype")
    echo "one host, $dtype: ${want[$dtype]}"
done
[ "${want[bf16]}" != "${want[fp32]}" ] || fail "the digest tells nothing"

# ---- a folder that both see
train pdsh bf16 2 6 "$hosts_shared/pdsh"
check "${want[bf16]}" "pdsh, stage 2" "$hosts_shared/pdsh"
cmp -s "$work/1.losses" "$work/$cases.losses" || fail "the losses differ"
if [ -e "$bin/libdeepspeed_mpi_openmpi.so" ] && command -v mpirun.openmpi > /dev/null; then
    mpi=openmpi
    train openmpi fp16 1 3 "$hosts_shared/mpi"
    train one fp16 3 6 "$hosts_shared/mpi" --resume
    check "${want[fp16]}" "Open MPI, stage 1, then one host, stage 3" "$hosts_shared/mpi"
else
    mpi=pdsh
    echo "no Open MPI here: it was not tried"
fi
# MPICH spins while it waits: four of its ranks on fewer cores, beside other work, may take minutes.
if [ -e "$bin/libdeepspeed_mpi_mpich.so" ] && command -v mpirun.mpich > /dev/null &&
    { [ "$(nproc)" -ge 4 ] || [ -n "${DS_TEST_MPICH:-}" ]; }; then
    train mpich bf16 3 6 "$hosts_shared/mpich"
    check "${want[bf16]}" "MPICH, stage 3" "$hosts_shared/mpich"
else
    echo "MPICH was not tried: not here, or fewer than four cores (DS_TEST_MPICH=1 tries it)"
fi

# ---- saves behind training, over the same
for host in dsa dsb; do
    sed 's/^{/{"datastates_ckpt": true, /' "$work/$host/home/bf16.2.json" > "$work/$host/home/behind.2.json"
done
train pdsh behind 2 6 "$hosts_shared/behind" --save_interval 1 --keep_last 3
[ "$(cd "$hosts_shared/behind" && ls -d global_step* | wc -l)" = 3 ] || fail "--keep_last 3 of a folder that both see"
check "${want[bf16]}" "pdsh, stage 2, saves behind training" "$hosts_shared/behind"
[ "$(wc -l < "$work/behind_lines")" = 6 ] || fail "not every save was written behind training"
train "$mpi" behind 2 6 disk/behind --save_interval 1 --keep_last 2
for host in dsa dsb; do # each removes its own parts of older ones
    [ "$(on $host sh -c 'cd disk/behind && echo global_step*')" = "global_step5 global_step6" ] ||
        fail "$host keeps $(on $host sh -c 'cd disk/behind && echo global_step*') with --keep_last 2"
done
bring disk/behind global_step6
check "${want[bf16]}" "$mpi, stage 2, saves behind training, own disks" disk/behind

# ---- a disk of each host: each writes its part, and what a rank lacks comes from the other host
train ssh fp32 0 2 disk/own --save_interval 1 --keep_last 1
train "$mpi" fp32 3 4 disk/own --resume
train pdsh fp32 2 6 disk/own --resume
for host in dsa dsb; do # nobody asked to remove any
    [ "$(on $host sh -c 'ls -d disk/own/global_step* | wc -l')" = 3 ] || fail "$host: checkpoints are lost"
done
[ "$(on dsb sh -c 'ls disk/own/global_step6 | wc -l')" = 3 ] || fail "dsb's part is not two shards and a manifest"
on dsa "$bin/ds_checkpoint" verify disk/own > "$work/log" 2>&1 && fail "half a checkpoint is taken for a whole one"
grep -q 'ds_shard_00002_of_00004.safetensors (on host dsb)' "$work/log" || fail "the missing shard is not named"
bring disk/own global_step6
check "${want[fp32]}" "ssh stage 0, $mpi stage 3, pdsh stage 2, own disks" disk/own
on dsb rm -r disk/own/global_step4 # nobody has its shards any more
timeout 60 "${on_dsa[@]}" "$bin/deepspeed" --hostfile hosts "$bin/ds_train" --model_config model.json --tokenizer bytes \
    --data text.txt --seq_length 32 --deepspeed_config fp32.2.json --steps 6 --lr_scheduler_type none --output disk/own --resume global_step4 \
    > "$work/log" 2>&1 < /dev/null && fail "a lost part is not missed"
grep -q 'rank [23] on dsb: .*global_step4' "$work/log" || fail "the host that lacks its part is not named"

# ---- a rank of the other host is killed or stops, or the cable is pulled
endless() { # CONFIG: starts a job that runs for ever; waits for its first checkpoint
    rm -rf "$hosts_shared/endless"
    "${on_dsa[@]}" env DEEPSPEED_TIMEOUT=0.0833 DS_THREADS=1 "$bin/deepspeed" --hostfile hosts --grace 1 "$bin/ds_train" \
        --model_config model.json --tokenizer bytes --data text.txt --seq_length 32 --deepspeed_config "$1.2.json" \
        --steps 100000000 --output "$hosts_shared/endless" --save_interval 2 --keep_last 3 > "$work/log" 2>&1 < /dev/null &
    job=$!
    for _ in $(seq 300); do
        [ -e "$hosts_shared/endless/latest" ] && return
        sleep 0.1
    done
    fail "no checkpoint after 30 s"
}
rank_pid() { # HOST RANK
    on "$1" sh -c 'for p in $(pgrep -x ds_train); do tr "\0" "\n" < /proc/$p/environ | grep -qx "RANK=$0" && echo $p; done' "$2"
}
ends() { # WHAT SECONDS MESSAGE
    local begin=$SECONDS code=0 host left
    while kill -0 $job 2> /dev/null && [ $((SECONDS - begin)) -lt 60 ]; do sleep 0.1; done
    kill -KILL $job 2> /dev/null
    wait $job || code=$?
    [ $code != 0 ] || fail "$1: exit code 0"
    [ $((SECONDS - begin)) -le "$2" ] || fail "$1: it took $((SECONDS - begin)) s to end"
    grep -qE -- "$3" "$work/log" || fail "$1: no line with '$3'"
    for _ in $(seq 100); do
        left=$(for host in dsa dsb; do on $host pgrep -x ds_train; on $host pgrep -x deepspeed; done)
        [ -z "$left" ] && break
        sleep 0.1
    done
    [ -z "$left" ] || fail "$1: left over: $left"
    on dsa "$bin/ds_checkpoint" verify "$hosts_shared/endless" > "$work/log" 2>&1 || fail "$1: the last checkpoint"
    echo "$1: ended with code $code after $((SECONDS - begin)) s"
}
for config in bf16 behind; do # saves at once; behind training
    endless $config
    on dsb kill -KILL "$(rank_pid dsb 3)"
    ends "kill -9 of rank 3, $config" 10 'rank 3 on dsb was killed by SIGKILL'
done
endless bf16
on dsb kill -STOP "$(rank_pid dsb 2)"
ends "SIGSTOP of rank 2" 15 'rank 2'
endless behind
hosts_cable down
ends "the cable is pulled" 16 'rank [23]'
hosts_cable up
echo "$cases runs"
exit $failed
