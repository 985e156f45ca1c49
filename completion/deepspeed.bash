# bash completion for the ds_ tools: flags from each tool's --help, files elsewhere.
_deepspeed()
{
    local current=${COMP_WORDS[COMP_CWORD]}
    case $current in
    --*)
        local flags
        flags=$("$1" --help 2> /dev/null | grep -oE '^ *--[a-z_0-9]+' | tr -d ' ')
        mapfile -t COMPREPLY < <(compgen -W "$flags" -- "$current")
        ;;
    *)
        mapfile -t COMPREPLY < <(compgen -f -- "$current")
        ;;
    esac
}
complete -o filenames -F _deepspeed ds_train ds_generate ds_config ds_data ds_checkpoint
