# SPDX-License-Identifier: Apache-2.0
# One run of GPT-2 124M through zero_row, for the tests of test/long. Sourced; expects $build and $scratch.

run() { # ARGUMENTS…, among them ranks=… and transport=…: prints "hash …", or nothing when it fails
    local start=() ranks=1 word row=("$build/zero_row" model=gpt2_124m "save=$scratch/save" "$@")
    for word in "$@"; do
        case $word in ranks=*) ranks=${word#ranks=} ;; esac
    done
    case " $* " in
    *" transport=sim "*) ;;
    *" transport=mpi "*) start=(mpirun.openmpi --allow-run-as-root --oversubscribe --bind-to none -n "$ranks") ;;
    *) start=("$build/deepspeed" --num_gpus "$ranks") ;;
    esac
    rm -rf "$scratch/save"
    "${start[@]}" "${row[@]}" 2> "$scratch/errors" < /dev/null | grep -o 'hash.*' || cat "$scratch/errors" >&2
}
