# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# A Slurm of one's own in a folder, for shell tests that source this file. Needs munged, slurmctld, slurmd and srun.
#
#     slurm_missing                             prints what is not installed; nothing when all is there
#     slurm_files FOLDER PORT CONTROLLER NODES  writes slurm.conf and the key; NODES are its NodeName lines
#     slurm_daemons FOLDER [slurmctld] slurmd   starts munged and these, in the background, with files in FOLDER
#     slurm_end FOLDER                          ends them
#
# Clients need SLURM_CONF=FOLDER/slurm.conf. On several hosts FOLDER is a path of each host's own with the same key.

slurm_missing() {
    local name
    for name in munged slurmctld slurmd srun sinfo; do
        PATH=$PATH:/usr/sbin command -v $name > /dev/null || echo "$name"
    done
}

slurm_files() { # FOLDER PORT CONTROLLER NODES
    mkdir -p "$1/state" "$1/spool" "$1/tmp"
    head -c 1024 /dev/urandom > "$1/key"
    chmod 400 "$1/key"
    printf '%s\n' "ClusterName=test" "SlurmctldHost=$3" "SlurmUser=$(id -un)" "SlurmdUser=$(id -un)" \
        "AuthType=auth/munge" "CredType=cred/munge" "AuthInfo=socket=$1/munge.sock" "SlurmctldPort=$2" \
        "SlurmdPort=$(($2 + 1))" "StateSaveLocation=$1/state" "SlurmdSpoolDir=$1/spool" "TmpFS=$1/tmp" \
        "SlurmctldPidFile=$1/slurmctld.pid" "SlurmdPidFile=$1/slurmd.pid" "SlurmctldLogFile=$1/slurmctld.log" \
        "SlurmdLogFile=$1/slurmd.log" "ProctrackType=proctrack/linuxproc" "TaskPlugin=task/none" \
        "JobAcctGatherType=jobacct_gather/none" "SwitchType=switch/none" "MpiDefault=none" "ReturnToService=2" \
        "SlurmdParameters=config_overrides" "SelectType=select/linear" "KillWait=2" "$4" \
        "PartitionName=all Nodes=ALL Default=YES MaxTime=60 State=UP" > "$1/slurm.conf"
}

slurm_daemons() { # FOLDER DAEMONS…
    local folder=$1
    shift
    PATH=$PATH:/usr/sbin
    munged --force --key-file="$folder/key" --socket="$folder/munge.sock" --pid-file="$folder/munged.pid" \
        --log-file="$folder/munged.log" --seed-file="$folder/seed" || return
    while [ $# -gt 0 ]; do
        "$1" -f "$folder/slurm.conf" || return
        shift
    done
}

slurm_end() { # FOLDER
    local name
    for name in slurmd slurmctld munged; do
        [ ! -s "$1/$name.pid" ] || kill "$(cat "$1/$name.pid")" 2> /dev/null
    done
}

slurm_ready() { # NODES: waits until so many are idle
    local _
    for _ in $(seq 300); do
        [ "$(sinfo -h -t idle -o %D 2> /dev/null)" = "$1" ] && return
        sleep 0.1
    done
    return 1
}
