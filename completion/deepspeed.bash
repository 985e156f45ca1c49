# SPDX-License-Identifier: Apache-2.0
# bash completion for the ds_ tools: flags from each tool's --help, files elsewhere.
_deepspeed()
{
    local current=${COMP_WORDS[COMP_CWORD]}
    case $current in
    --*)
        local flags
        flags=$("$1" --help 2> /dev/null | grep -oE '^ *(-[A-Za-z], )?--[a-z_0-9]+' | grep -oE -- '--.*')
        mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$current")
        ;;
    *)
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        ;;
    esac
}
complete -o filenames -F _deepspeed deepspeed ds ds_accel_test ds_ssh ds_elastic ds_train ds_generate ds_serve ds_config ds_data ds_checkpoint zero_to_fp32 ds_encode ds_report ds_bench ds_plan ds_io ds_nvme_tune
