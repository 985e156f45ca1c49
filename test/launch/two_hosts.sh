# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Two hosts of this one machine, for shell tests that source this file: sets of namespaces (network, host name, IPC,
# processes, mounts) that share a cable and the installed programs. Each has its own /dev/shm, /tmp, home, disk and
# sshd, and knows the other by name. Needs root, ip (iproute2), unshare, nsenter and sshd.
#
#     hosts_up WORK        makes hosts dsa (10.213.78.1) and dsb (10.213.78.2); exits with 77 and a reason where it cannot
#     on HOST COMMAND…     runs there, in its home
#     hosts_cable down|up  pulls the cable, plugs it in
#     hosts_down           ends all that runs there; for a trap
#
# $hosts_home is the home of root on both, $hosts_home/disk a folder of each host alone, $hosts_shared one of both.

hosts_skip() { echo "skipped: $1"; exit 77; }

# What the first process of a host does. Arguments: NAME WORK.
hosts_init() {
    local name=$1 work=$2 own=$2/$1
    hostname "$name"
    mount --make-rprivate /
    mount -t proc proc /proc
    mkdir -p "$own/cgroup" # a /sys of this network, with the control groups of before
    mount --rbind /sys/fs/cgroup "$own/cgroup"
    mount -t sysfs sysfs /sys
    mount --rbind "$own/cgroup" /sys/fs/cgroup
    mount -t tmpfs tmpfs /dev/shm
    case $work in
    /tmp/*) ;;
    *) mount -t tmpfs tmpfs /tmp ;;
    esac
    mount --bind "$own/passwd" /etc/passwd
    mount --bind "$work/hosts" /etc/hosts
    mount --bind "$own/home" "$work/home"
    mkdir -p /run/sshd
    mount -t tmpfs -o mode=755 tmpfs /run/sshd
    "$(PATH=$PATH:/usr/sbin command -v sshd)" -D -f "$own/sshd_config" -E "$own/sshd.log"
}

hosts_files() { # NAME: keys, names and settings of a host
    local own=$hosts_work/$1 home=$hosts_work/$1/home
    mkdir -p "$home/.ssh" "$home/disk"
    sed "s|^\(root:[^:]*:[^:]*:[^:]*:[^:]*\):[^:]*:|\1:$hosts_home:|" /etc/passwd > "$own/passwd"
    cp "$hosts_work/key" "$home/.ssh/id_ed25519"
    cp "$hosts_work/key.pub" "$home/.ssh/authorized_keys"
    printf 'Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  LogLevel ERROR\n' > "$home/.ssh/config"
    chmod -R go= "$home/.ssh"
    printf '%s\n' "HostKey $hosts_work/hostkey" "AuthorizedKeysFile $hosts_home/.ssh/authorized_keys" \
        "PidFile none" "StrictModes no" "UsePAM no" "PasswordAuthentication no" "MaxStartups 100" > "$own/sshd_config"
}

hosts_start() { # NAME NAMESPACE: starts it; its first process, seen from here, in hosts_pid_NAME
    local unshared child="" script
    script="$(declare -f hosts_init); hosts_init $1 $(printf %q "$hosts_work")" # not in the background: no child but one
    nsenter --net="/run/netns/$2" unshare --uts --ipc --pid --mount --fork --kill-child bash -c "$script" \
        > "$hosts_work/$1/init.log" 2>&1 &
    unshared=$!
    for _ in $(seq 100); do
        child=$(cat "/proc/$unshared/task/$unshared/children" 2> /dev/null)
        [ -n "${child// /}" ] && break
        kill -0 $unshared 2> /dev/null || break
        sleep 0.05
    done
    [ -n "${child// /}" ] || hosts_skip "no namespaces of processes and mounts: $(cat "$hosts_work/$1/init.log")"
    printf -v "hosts_pid_$1" '%s' "${child// /}"
    hosts_unshared+=("$unshared")
}

on() { # HOST COMMAND…
    local pid=hosts_pid_$1
    shift
    nsenter --target "${!pid}" --net --uts --ipc --pid --mount env -C "$hosts_home" HOME="$hosts_home" "$@"
}

hosts_up() { # WORK
    local name
    [ "$(id -u)" = 0 ] || hosts_skip "namespaces need root"
    for name in ip unshare nsenter ssh; do
        command -v $name > /dev/null || hosts_skip "$name is not installed"
    done
    PATH=$PATH:/usr/sbin command -v sshd > /dev/null || hosts_skip "no sshd (package openssh-server)"
    hosts_work=$1 hosts_home=$1/home hosts_shared=$1/shared hosts_unshared=()
    hosts_a=dsa_$$ hosts_b=dsb_$$
    mkdir -p "$hosts_home" "$hosts_shared" "$hosts_work/dsa" "$hosts_work/dsb"
    ip netns add "$hosts_a" 2> "$hosts_work/why" && ip netns add "$hosts_b" 2> "$hosts_work/why" ||
        hosts_skip "no network namespaces: $(cat "$hosts_work/why")"
    ip link add "dsa$$" netns "$hosts_a" type veth peer name "dsb$$" netns "$hosts_b" 2> "$hosts_work/why" ||
        hosts_skip "no veth: $(cat "$hosts_work/why")"
    ip -n "$hosts_a" addr add 10.213.78.1/24 dev "dsa$$"
    ip -n "$hosts_b" addr add 10.213.78.2/24 dev "dsb$$"
    for name in "$hosts_a dsa$$" "$hosts_b dsb$$"; do
        ip -n "${name% *}" link set lo up
        ip -n "${name% *}" link set "${name#* }" up
    done
    printf '127.0.0.1 localhost\n10.213.78.1 dsa\n10.213.78.2 dsb\n' > "$hosts_work/hosts"
    ssh-keygen -q -t ed25519 -N '' -f "$hosts_work/key" && ssh-keygen -q -t ed25519 -N '' -f "$hosts_work/hostkey" || exit 1
    for name in dsa dsb; do hosts_files $name; done
    hosts_start dsa "$hosts_a"
    hosts_start dsb "$hosts_b"
    for name in dsa dsb; do
        for _ in $(seq 100); do
            [ "$(on dsa ssh $name hostname 2> "$hosts_work/why")" = $name ] && continue 2
            sleep 0.1
        done
        hosts_skip "no ssh from dsa to $name: $(cat "$hosts_work/why" "$hosts_work"/*/init.log "$hosts_work"/*/sshd.log)"
    done
    for name in "$hosts_a" "$hosts_b"; do # UCX passes over an interface whose addresses are not settled yet
        for _ in $(seq 100); do
            [ -n "$(ip -n "$name" addr show tentative)" ] || break
            sleep 0.1
        done
    done
}

hosts_cable() { # up or down
    ip -n "$hosts_a" link set "dsa$$" "$1"
}

hosts_down() {
    local pid
    for pid in "${hosts_unshared[@]}"; do kill -KILL "$pid" 2> /dev/null; done
    for pid in "${hosts_unshared[@]}"; do wait "$pid" 2> /dev/null; done
    ip netns del "${hosts_a:-none}" 2> /dev/null
    ip netns del "${hosts_b:-none}" 2> /dev/null
}
