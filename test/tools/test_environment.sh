#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow
# What the environment says is in force or refused by name, and so is every number of a flag: no text that is no
# number becomes one, and no half of a launcher's variables is a run of one rank.
set -u
bin=$(realpath "$1")
root=$DS_SOURCE_DIR
work=$(mktemp -d "$1/environment.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
head -c 2000 "$root/data/tinyshakespeare.txt" > text.txt
echo '{"train_batch_size": 2, "optimizer": {"type": "SGD", "params": {"lr": 1e-3}}}' > ds.json
run=("$bin/ds_train" --model_config "$root/test/common/gpt2.json" --tokenizer bytes --seq_length 16 --data text.txt
    --deepspeed_config ds.json --steps 1)

refused() { # text, command…
    local text=$1 code=0
    shift
    "$@" > out.txt 2>&1 < /dev/null || code=$?
    if [ $code = 0 ] || [ $code -ge 124 ] || ! grep -qF -- "$text" out.txt; then
        echo "FAILED: exit $code, expected an error with '$text': $*: $(tail -n 3 out.txt)"
        failed=1
    fi
}
taken() { # command…
    "$@" > out.txt 2>&1 < /dev/null || { echo "FAILED: exit $?: $*: $(tail -n 3 out.txt)"; failed=1; }
}

# ---- DS_*
refused 'DS_CPU_ISA is "sparc", expected one of ref, avx2' env DS_CPU_ISA=sparc "${run[@]}"
refused 'DS_CPU_ISA' env DS_CPU_ISA=sparc "$bin/ds_report"
taken env DS_CPU_ISA= "$bin/ds_report"
taken env DS_CPU_ISA=AVX2 "$bin/ds_report"
for bad in x 4x -1 0 4097 1e3 ' 2' 99999999999999999999; do
    refused 'DS_THREADS' env "DS_THREADS=$bad" "${run[@]}"
done
refused 'DS_THREADS' env DS_THREADS=x "$bin/ds_bench" --profile out.json
taken env DS_THREADS=2 "${run[@]}"
refused 'DS_RESTART_COUNT' env DS_RESTART_COUNT=many "${run[@]}"
refused 'DS_ACCELERATOR' env DS_ACCELERATOR=gpu "$bin/deepspeed" --num_gpus 1 --dry_run true
refused 'DS_MPI' env DS_MPI=lam "${run[@]}"
refused 'DS_RENDEZVOUS' env DS_RENDEZVOUS=me "${run[@]}"
refused 'DS_AUTOTUNING_TRIAL' env DS_AUTOTUNING_TRIAL=0 "${run[@]}"
refused 'DS_MODULE_PATH' env DS_MODULE_PATH=nowhere "${run[@]}"
taken env DS_MODULE_PATH="$PWD" DS_MPI=mpich DS_RENDEZVOUS=launcher "${run[@]}"
taken env DS_AUTOTUNING_TRIAL= "${run[@]}" --output kept
[ -e kept/latest ] || { echo "FAILED: an empty DS_AUTOTUNING_TRIAL is a trial"; failed=1; }
refused 'DEEPSPEED_TIMEOUT' env DEEPSPEED_TIMEOUT=0x10 "${run[@]}"
refused 'DEEPSPEED_TIMEOUT' env DEEPSPEED_TIMEOUT=nan "${run[@]}"

# ---- the launchers' variables
refused 'WORLD_SIZE is set, RANK is not' env WORLD_SIZE=2 "${run[@]}"
refused 'RANK is set, WORLD_SIZE is not' env RANK=0 "${run[@]}"
refused 'LOCAL_RANK is set, RANK is not' env LOCAL_RANK=0 "${run[@]}"
refused 'LOCAL_WORLD_SIZE is set, RANK is not' env LOCAL_WORLD_SIZE=1 "${run[@]}"
refused 'OMPI_COMM_WORLD_SIZE is set, OMPI_COMM_WORLD_RANK is not' env OMPI_COMM_WORLD_SIZE=2 "${run[@]}"
refused 'PMI_RANK is set, PMI_SIZE is not' env PMI_RANK=0 "${run[@]}"
refused 'MV2_COMM_WORLD_RANK is set, MV2_COMM_WORLD_SIZE is not' env MV2_COMM_WORLD_RANK=0 "${run[@]}"
refused 'WORLD_SIZE is "2x"' env RANK=0 WORLD_SIZE=2x "${run[@]}"
refused 'RANK is " 0"' env 'RANK= 0' WORLD_SIZE=1 "${run[@]}"
refused 'WORLD_SIZE' env WORLD_SIZE=4 OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 "${run[@]}"
taken env RANK=0 WORLD_SIZE=1 "${run[@]}"
taken env RANK= WORLD_SIZE= "${run[@]}"
taken env SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NODEID=0 "${run[@]}" # a batch script's, without srun
taken env MASTER_ADDR=localhost MASTER_PORT=29500 "${run[@]}"
echo '{"elasticity": {"enabled": true, "max_train_batch_size": 8, "micro_batch_sizes": [2], "version": 0.2}}' > e.json
refused 'WORLD_SIZE' env WORLD_SIZE=two "$bin/ds_elastic" --config e.json

# ---- numbers of flags
for bad in nan inf -1 0x10G 1GX '' 9e99 0; do
    refused '--rank_memory' "$bin/deepspeed" "--rank_memory=$bad" --num_gpus 1 true
done
for bad in nan inf 0x10 ' 1' 1e999; do
    refused '--time_limit' "$bin/deepspeed" "--time_limit=$bad" --num_gpus 1 true
    refused '--io_size' "$bin/ds_io" "--io_size=$bad" --folder .
    refused '--min_size' "$bin/ds_bench" "--min_size=$bad"
    refused '--max_shard_size' "$bin/zero_to_fp32" . out "--max_shard_size=$bad"
    refused '--memory' "$bin/ds_plan" --model_config "$root/test/common/gpt2.json" --deepspeed_config ds.json "--memory=$bad"
    refused '--trace_steps' "${run[@]}" --trace t.json "--trace_steps=$bad"
done
exit $failed
