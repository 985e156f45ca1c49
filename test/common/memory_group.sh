# SPDX-License-Identifier: Apache-2.0
# Runs a program in so many bytes of memory, page cache included, no swap. For long tests; sourced by bash. Where no memory
# control group can be made (it takes root), group_peak is empty and only the process itself can be measured.
group="" group_peak=""

group_make() { # BYTES
    if mkdir "/sys/fs/cgroup/memory/ds_$$" 2> /dev/null; then # version 1
        group=/sys/fs/cgroup/memory/ds_$$
        echo "$1" > "$group/memory.limit_in_bytes"
        echo "$1" > "$group/memory.memsw.limit_in_bytes" 2> /dev/null || true
        group_peak=$group/memory.max_usage_in_bytes
    elif mkdir "/sys/fs/cgroup/ds_$$" 2> /dev/null && [ -e "/sys/fs/cgroup/ds_$$/memory.max" ]; then
        group=/sys/fs/cgroup/ds_$$
        echo "$1" > "$group/memory.max"
        echo 0 > "$group/memory.swap.max" 2> /dev/null || true
        group_peak=$group/memory.peak
    else
        echo "no memory control group can be made here: only the peak of the process is checked"
    fi
}
group_remove() { [ -z "$group" ] || rmdir "$group" 2> /dev/null || true; }
group_run() { # COMMAND…
    (
        [ -z "$group" ] || echo "$BASHPID" > "$group/cgroup.procs"
        exec "$@"
    )
}
# The most bytes in use so far; OTHERWISE where that is not known.
group_most() { # OTHERWISE
    if [ -n "$group_peak" ] && [ -r "$group_peak" ]; then cat "$group_peak"; else echo "$1"; fi
}
