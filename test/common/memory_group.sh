# SPDX-License-Identifier: Apache-2.0
# Runs a program in so many bytes of memory, page cache included, no swap. For long tests; sourced by bash.
#
#     group_make BYTES       tries whether a limit holds (a small program that takes more must be ended), then makes the group;
#                            says which: $group_says is "in force", or "NOT in force: REASON", and is for the last line
#     group_run COMMAND…     runs in it; without a group as it is
#     group_most OTHERWISE   the most bytes in use so far; OTHERWISE where that is not known
#     group_remove           for a trap
#
# Where no memory control group holds (it takes root) only the process itself can be measured.
group="" group_peak="" group_says="" group_root=${group_root:-/sys/fs/cgroup}

# Folders that only look like control groups take any file: the kernel's own are asked what they took.
group_new() { # NAME BYTES: $group and $group_peak, or 1 and $group_says
    group=""
    if mkdir "$group_root/memory/$1" 2> /dev/null; then # version 1
        group=$group_root/memory/$1 group_peak=$group/memory.max_usage_in_bytes
        { echo "$2" > "$group/memory.limit_in_bytes"; } 2> /dev/null
        { echo "$2" > "$group/memory.memsw.limit_in_bytes"; } 2> /dev/null || true # not every kernel counts swap
        set -- "$1" "$2" "$(cat "$group/memory.limit_in_bytes" 2> /dev/null)"
    elif mkdir "$group_root/$1" 2> /dev/null; then
        group=$group_root/$1 group_peak=$group/memory.peak
        { echo "$2" > "$group/memory.max"; } 2> /dev/null
        { echo 0 > "$group/memory.swap.max"; } 2> /dev/null || true
        set -- "$1" "$2" "$(cat "$group/memory.max" 2> /dev/null)"
    else
        group_says="NOT in force: no control group can be made in $group_root"
        return 1
    fi
    [ "$3" = "$2" ] && [ -e "$group/cgroup.procs" ] && return
    group_says="NOT in force: $group is no memory control group"
    group_remove
    return 1
}
group_make() { # BYTES
    local code=0
    if group_new "ds_try_$$" $((64 << 20)); then
        group_run bash -c 'head -c 192M /dev/zero | tail -n 1 | wc -c' > "/tmp/ds_try_$$" 2> /dev/null || code=$?
        group_remove
        if [ "$code" = 0 ] && [ "$(cat "/tmp/ds_try_$$")" = $((192 << 20)) ]; then
            group_says="NOT in force: a program in a group of 64 MiB took 192"
        elif group_new "ds_$$" "$1"; then
            group_says="in force"
        fi
        rm -f "/tmp/ds_try_$$"
    fi
    echo "the limit of $1 bytes is $group_says$([ "$group_says" = "in force" ] || echo "; only the peak of the process is checked")"
}
group_remove() {
    [ -z "$group" ] || rmdir "$group" 2> /dev/null || rm -rf "$group" 2> /dev/null || true # one that only looks like a group
    group="" group_peak=""
}
group_run() { # COMMAND…
    (
        if [ -n "$group" ] && ! echo "$BASHPID" > "$group/cgroup.procs"; then
            echo "memory_group: no place in $group" >&2
            exit 1
        fi
        exec "$@"
    )
}
group_most() { # OTHERWISE
    if [ -n "$group_peak" ] && [ -r "$group_peak" ]; then cat "$group_peak"; else echo "$1"; fi
}
