#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The commands of each launcher and the environments of ranks, as --dry_run prints them, against
# test/golden/launch/commands.txt; what each refuses. UPDATE=1 writes the golden file.
set -u
bin=$(realpath "$1")
work=$(mktemp -d "$bin/launch_commands.XXXXXX")
trap 'rm -rf "$work"' EXIT
golden=$DS_SOURCE_DIR/test/golden/launch/commands.txt
cd "$work" || exit 1
failed=0
printf 'w0 slots=2\nw1 slots=2\n' > hosts
printf 'w0 slots=2\nw1 slots=1\n' > uneven
printf '# of every node\nNCCL_DEBUG=INFO\nNAME=it'"'"'s "odd" $HOME;id\n' > .deepspeed_env
# An environment that is the same everywhere.
clean=(env -i PATH="$PATH" HOME="$work/none" DS_THREADS=3 OMP_NUM_THREADS=3 MV2_X=1)
run=(--master_port 29501 --dry_run)

show() { # flags and program of one dry run
    printf '==== deepspeed'
    printf ' %q' "$@"
    printf '\n'
    "${clean[@]}" "$bin/deepspeed" "${run[@]}" "$@" 2>&1 |
        sed -e "s#$work#WORK#g; s#$bin#BIN#g; s#this machine (.*)#this machine (HOST)#; s#--log_stamp=[0-9]*#--log_stamp=TIME#g; s#^mpirun\.[a-z]* #mpirun #"
}
{
    show --num_gpus 2 ds_train --x 'a b'
    show -H hosts -i w1:1 true
    show -H hosts ./prog 'a b' "it's" '100%' '$HOME;`id`' ''
    show -H hosts --launcher ssh --ssh_port 2222 --venv_script 'my env/activate' --bind_cores_to_rank --log_dir 'l d' --grace 2 -q ./prog -x
    show -H hosts --launcher openmpi --launcher_args='--mca btl "tcp,self" --bind-to none' ./prog 'a b'
    show -H hosts --launcher mpich ./prog
    show -H hosts --launcher impi --num_gpus 1 ./prog
    show -H hosts --launcher mvapich ./prog
    show -H hosts --launcher slurm --launcher_args='--partition=p' ./prog
    show --launcher slurm --num_nodes 3 --num_gpus 4 ./prog
    show -H hosts --no_ssh --node_rank 1 --master_addr 10.0.0.1 true
} > got.txt 2>&1 || failed=1
# With --no_ssh the secret must be there: the last one above is refused.
if [ "${UPDATE:-0}" = 1 ]; then
    cp got.txt "$golden"
fi
diff -u "$golden" got.txt || { echo "FAILED: commands changed (UPDATE=1 takes them over)"; failed=1; }

refused() { # TEXT FLAGS…
    local text=$1 code
    shift
    "${clean[@]}" "$bin/deepspeed" "$@" > out.txt 2> err.txt
    code=$?
    if [ $code != 2 ] || ! grep -qF -- "$text" err.txt; then
        echo "FAILED: $*: exit code $code, expected 2 and '$text' in:"
        cat err.txt
        failed=1
    fi
}
refused "expected one of pdsh, ssh" -H hosts --launcher qsub ./prog
refused "as many slots on every host, found 2 on w0 and 1 on w1" -H uneven --launcher mpich ./prog
printf 'alice@w0 slots=1\n' > users
refused "takes no user of a host, found alice@w0; put the user into ~/.ssh/config" -H users --force_multi --launcher openmpi ./prog
refused "slots from 0 without gaps, found others on host w0" -H hosts -i w0:1@w1 --launcher openmpi ./prog
refused "--log_dir has no hold on them" -H hosts --launcher openmpi --log_dir x ./prog
refused "cannot be given an argument ':'" -H hosts --launcher openmpi ./prog a : b
refused "--launcher_args: expected plain words, found ';'" -H hosts --launcher_args 'a;id' ./prog
refused "expected --node_rank from 0 to 1, found -1" -H hosts --no_ssh true
refused "expected --master_addr" -H hosts --no_ssh --node_rank 0 true
refused "expected DS_JOB_SECRET in the environment" -H hosts --no_ssh --node_rank 0 --master_addr a true
refused "--node_rank needs --no_ssh" -H hosts --node_rank 0 true
refused "two ways to choose slots" -H hosts --num_gpus 1 -i w0 true
refused "at most 2, the hosts of the hostfile, found 3" -H hosts --num_nodes 3 true
refused "at most 2, the slots of host w0, found 3" -H hosts --num_gpus 3 true
refused "cannot open none" -H none true
refused "--bind_core_list needs --bind_cores_to_rank" --bind_core_list 0 true
refused "needs --elastic_training" --min_elastic_nodes 1 true
refused "expected a configuration with the section elasticity" --elastic_training true
refused "does not say which node failed" -H hosts --launcher openmpi --elastic_training ./prog
printf 'NOT A LINE\n' > .deepspeed_env
refused ".deepspeed_env:1: expected NAME=VALUE" -H hosts --dry_run ./prog
clean+=(DS_JOB_SECRET=123)
refused "expected 32 hexadecimal digits, found 3 characters" true
exit $failed
