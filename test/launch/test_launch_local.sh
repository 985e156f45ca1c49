#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow waits
# Real jobs of small programs on this machine: environment, prefixes, log files, failures, signals, stopped
# and orphaned processes, exit codes.
set -u
bin=$(realpath "$1")
work=$(mktemp -d "$1/launch_local.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
failed=0
cases=0
fail() { echo "FAILED: $*"; failed=1; sed 's/^/    out: /' out.txt | head -20 | cut -c 1-160; sed 's/^/    err: /' err.txt | head -40 | cut -c 1-160; }

# job CODE ARGS…: runs the launcher; out.txt and err.txt hold what it wrote.
job() {
    local want=$1 code
    shift
    cases=$((cases + 1))
    "$bin/deepspeed" "$@" > out.txt 2> err.txt < /dev/null
    code=$?
    [ $code = "$want" ] || fail "$*: exit code $code, expected $want"
}
says() { grep -qE -- "$1" err.txt || fail "expected '$1' among the messages"; }
prints() { grep -qxE -- "$1" out.txt || fail "expected the line '$1'"; }
silent() { ! grep -qE -- "$1" err.txt out.txt || fail "did not expect '$1'"; }
# gone MARK: no process has the mark in its environment any more.
gone() {
    local pid
    for _ in $(seq 40); do
        pid=$(grep -lzx "MARK=$1" /proc/[0-9]*/environ 2> /dev/null | grep -v "/$$/" | head -1)
        [ -z "$pid" ] && return
        sleep 0.05
    done
    fail "a process of '$1' is left: $pid $(tr '\0' ' ' < "${pid%environ}cmdline")"
}

# ---- environment and terminal
job 0 --num_gpus 3 sh -c 'echo "$RANK/$WORLD_SIZE $LOCAL_RANK/$LOCAL_WORLD_SIZE/$LOCAL_SIZE $CROSS_RANK/$CROSS_SIZE $MASTER_ADDR $DS_RESTART_COUNT $DS_SLOT"'
prints '0/3 0/3/3 0/1 127.0.0.1 0 0'
prints '\[rank 1\] 1/3 1/3/3 0/1 127.0.0.1 0 1'
prints '\[rank 2\] 2/3 2/3/3 0/1 127.0.0.1 0 2'
job 0 --num_gpus 2 sh -c 'echo "$MASTER_PORT $DS_JOB_SECRET" | grep -qE "^[0-9]{4,5} [0-9a-f]{32}$" && echo right'
prints 'right'
prints '\[rank 1\] right'
OMP_NUM_THREADS=7 job 0 --num_gpus 1 sh -c 'echo $OMP_NUM_THREADS'
prints '7'
job 0 --num_gpus 1 sh -c 'echo $DS_THREADS $OMP_NUM_THREADS'
prints "$(nproc) $(nproc)"
job 0 --num_gpus 1 --master_port 1234 sh -c 'echo $MASTER_PORT'
prints 1234
job 0 --num_gpus 2 --prefix all sh -c 'echo x'
prints '\[rank 0\] x'
job 0 --num_gpus 2 --prefix none --show first sh -c 'echo x$RANK'
prints x0
silent x1
# Flags abbreviated as argparse takes them; a Python script; the help of --no_ssh.
job 0 --num_g=2 --prefi none --sh first sh -c 'echo x$RANK'
prints x0
silent x1
job 2 --num=2 sh -c 'echo x'
says 'num may be --num_nodes or --num_gpus; write more of it'
touch train.py
job 2 --num_gpus 2 train.py --epochs 3
says 'train.py is a Python script.*ds_train takes the place'
printf '#!/bin/sh\necho "script $1"\n' > runs.py && chmod +x runs.py
job 0 --num_gpus 1 ./runs.py x
prints 'script x'
job 0 --no_ssh --help
grep -q 'DS_JOB_SECRET=' out.txt || fail "--no_ssh does not name its secret"
job 0 --num_gpus 2 printf '%s|' 'a b' '$HOME' ';' "it's" '' '*'
prints "a b\\|\\\$HOME\\|;\\|it's\\|\\|\\*\\|"
# Lines never mix: two writers, long lines.
job 0 --num_gpus 2 --prefix all sh -c 'i=0; while [ $i -lt 50 ]; do head -c 30000 /dev/zero | tr "\0" $RANK; echo; i=$((i+1)); done'
[ "$(grep -cE '^\[rank 0\] 0{30000}$' out.txt)" = 50 ] && [ "$(grep -cE '^\[rank 1\] 1{30000}$' out.txt)" = 50 ] || fail "lines were mixed"
# Unfinished lines of rank 0 are shown while it runs.
"$bin/deepspeed" --num_gpus 1 sh -c 'printf "asks: "; sleep 3' > out.txt 2> err.txt &
sleep 1
grep -q 'asks: ' out.txt || fail "an unfinished line was not shown"
wait

# ---- log files
job 0 --num_gpus 2 --log_dir logs/deep sh -c 'echo out $RANK; echo err $RANK >&2'
[ "$(find logs/deep -regextype posix-extended -regex '.*/[0-9]{14}_rank[01]\.log' | wc -l)" = 2 ] || fail "log files: $(ls logs/deep)"
[ "$(sort logs/deep/*_rank1.log | tr '\n' ,)" = "err 1,out 1," ] || fail "what the log says"
job 3 --num_gpus 1 --enable_each_rank_log /proc/no sh -c :
says '^deepspeed: --log_dir: /proc/no cannot be made'
if [ -w /dev/full ]; then
    mkdir -p full
    job 0 --num_gpus 1 sh -c 'echo still'
    prints still
fi

# ---- failures
job 7 --num_gpus 3 sh -c 'if [ $RANK = 1 ]; then sleep 0.2; echo the last words >&2; exit 7; fi; exec sleep 50'
says '^deepspeed: rank 1 on [^ ]+ ended with exit code 7; ending the other 2'
says '^deepspeed:   \| the last words'
says 'others     2 told to end by SIGTERM$'
for s in SEGV:139 KILL:137 ABRT:134 TERM:143; do
    job "${s#*:}" --num_gpus 2 sh -c 'ulimit -c 0; if [ $RANK = 1 ]; then kill -'"${s%:*}"' $$; fi; exec sleep 50'
    says "rank 1 on [^ ]+ was killed by SIG${s%:*} "
done
job 137 --num_gpus 2 sh -c 'if [ $RANK = 0 ]; then kill -KILL $$; fi; exec sleep 50'
says 'cause      SIGKILL from outside this job; no sign that memory ran out'
# Who noticed a death may end before the dead one, whose memory takes its time to be freed, can be waited for.
job 137 --num_gpus 2 sh -c 'if [ $RANK = 1 ]; then echo $$ > pid; exec dd bs=600M count=1000000 if=/dev/zero of=/dev/null; fi
    until [ "$(ps -o rss= -p "$(cat pid 2> /dev/null)" 2> /dev/null || echo 0)" -gt 500000 ]; do sleep 0.1; done; kill -KILL "$(cat pid)"; exit 4'
says 'rank 1 on [^ ]+ was killed by SIGKILL'
# A rank that ignores SIGTERM is killed after the grace time.
start=$(date +%s%N)
job 1 --num_gpus 2 --grace 0.5 sh -c 'if [ $RANK = 1 ]; then sleep 0.3; exit 1; fi; trap "" TERM; while :; do sleep 1; done'
took=$((($(date +%s%N) - start) / 1000000))
[ $took -lt 3000 ] || fail "took $took ms"
says '1 still ran after 0.5 s: killed'
# A stopped rank is named, and ended with the others.
MARK=stopped job 4 --num_gpus 3 --grace 1 sh -c 'case $RANK in 0) kill -STOP $$ ;; 1) sleep 0.7; exit 4 ;; esac; exec sleep 50'
says 'rank 0 \(process [0-9]+\) was stopped by SIGSTOP'
gone stopped
# Children of ranks, in other sessions too, do not outlive the job.
MARK=stray job 5 --num_gpus 2 sh -c 'setsid sleep 60 & sleep 60 & sleep 0.2; [ $RANK = 0 ] || exit 5; exec sleep 60'
gone stray
MARK=helpers job 0 --num_gpus 2 sh -c 'sleep 60 > /dev/null 2>&1 & setsid sleep 60 & exit 0'
gone helpers
# A killed launcher leaves nothing.
MARK=killed "$bin/deepspeed" --num_gpus 2 sh -c 'sleep 60 & exec sleep 60' > out.txt 2> err.txt &
launcher=$!
sleep 0.3
disown $launcher
kill -KILL $launcher
gone killed

# ---- limits on time and memory
job 124 --num_gpus 2 --time_limit 0.4 sleep 20
says 'the job still runs after 0.4 s; ending it'
start=$(date +%s%N)
MARK=hung job 124 --num_gpus 2 --time_limit 0.3 --grace 0.3 sh -c 'trap "" TERM INT; while :; do sleep 1; done'
took=$((($(date +%s%N) - start) / 1000000))
[ $took -lt 5000 ] || fail "took $took ms"
gone hung
job 0 --num_gpus 1 --time_limit 20 --rank_memory 1G sh -c 'exit 0'
job 137 --num_gpus 2 --rank_memory 100M sh -c '[ $RANK = 0 ] || awk "BEGIN { s = \"x\"; while (length(s) < 200000000) s = s s; while (1) x++ }"; sleep 20'
says 'rank 1 uses [0-9]+ MiB of memory, more than --rank_memory allows, 100 MiB; killing the job'
# One large request is refused at once, by the system's own limit.
job 0 --num_gpus 1 --rank_memory 100M sh -c '[ "$(ulimit -d)" -gt 102400 ]'
job 124 --num_gpus 1 --time_limit 0.3 --restarts 3 sleep 20
silent 'restart 1'

# A rank that the kernel ends for want of memory, where a control group of our own can be made.
group=/sys/fs/cgroup/memory$(sed -n 's/^[0-9]*:memory://p' /proc/self/cgroup 2> /dev/null)/launch.$$
if mkdir "$group" 2> /dev/null; then
    # Its group's count is known because the launcher itself runs inside of it.
    if echo 40000000 2> /dev/null > "$group/memory.limit_in_bytes"; then
        (echo $BASHPID > "$group/cgroup.procs" && exec "$bin/deepspeed" --num_gpus 2 sh -c '[ $RANK = 0 ] || exec awk "BEGIN { s = \"x\"; while (length(s) < 400000000) s = s s }"; exec sleep 10') > out.txt 2> err.txt < /dev/null
        code=$?
        { [ $code = 137 ] && grep -q 'the kernel ended it for want of memory' err.txt; } || fail "out of memory: exit code $code"
        sleep 0.2
    fi
    rmdir "$group"
fi

# ---- restarts
job 0 --num_gpus 2 --restarts 2 sh -c 'echo "$RANK $DS_RESTART_COUNT"; [ $DS_RESTART_COUNT = 2 ] || exit 4'
says 'restart 2 of 2: 2 ranks'
prints '\[rank 1\] 1 2'
job 4 --num_gpus 2 --restarts 1 sh -c 'exit 4'
job 0 --num_gpus 2 --restarts 1 --log_dir again sh -c '[ $DS_RESTART_COUNT = 1 ] || exit 4'
[ -n "$(find again -name '*_rank1_restart1.log')" ] || fail "log files of a restart: $(ls again)"
echo '{"elasticity": {"enabled": true, "max_train_batch_size": 100, "micro_batch_sizes": [2, 3], "version": 0.1}}' > ds.json
job 0 --num_gpus 5 sh -c :
job 0 --num_gpus 5 --elastic_training sh -c 'echo $WORLD_SIZE' --deepspeed_config=ds.json
prints 4
job 0 --num_gpus 4 --restarts 5 --elastic_training --elastic_config ds.json sh -c 'echo "$RANK of $WORLD_SIZE: $DS_SLOT"; [ $DS_SLOT != 1 ] || exit 4; sleep 0.3'
says 'slot 1 failed twice in a row and is left out'
prints '\[rank 2\] 2 of 3: 3'

# ---- cores
job 0 --num_gpus 1 --bind_cores_to_rank --bind_core_list "$(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')" sh -c 'taskset -cp $$ | sed "s/.*: /on /"; echo threads $DS_THREADS'
prints "on $(taskset -cp $$ | sed 's/.*: //; s/[-,].*//')"
prints 'threads 1'
job 2 --num_gpus 1000 --bind_cores_to_rank true
says 'expected a core for each of 1000 ranks'

# ---- signals to the launcher
signal() { # CODE, SIGNALS, script: sends them half a second apart
    local want=$1 signals=$2 code
    cases=$((cases + 1))
    MARK=signal "$bin/deepspeed" --num_gpus 2 sh -c "$3" > out.txt 2> err.txt &
    local launcher=$!
    for s in $signals; do
        sleep 0.5
        kill -"$s" $launcher
    done
    wait $launcher
    code=$?
    [ $code = "$want" ] || fail "$2: exit code $code, expected $want"
    gone signal
}
signal 130 INT 'exec sleep 50'
signal 143 TERM 'exec sleep 50'
says 'SIGTERM: forwarded; waiting for 2 to end'
signal 0 TERM 'trap "echo saved $RANK; exit 0" TERM; while :; do sleep 0.05; done'
prints 'saved 0'
prints '\[rank 1\] saved 1'
signal 143 'TERM TERM' 'trap "" TERM; while :; do sleep 0.05; done'
signal 129 HUP 'exec sleep 50'
signal 0 HUP 'trap "echo saved $RANK; exit 0" HUP; while :; do sleep 0.05; done'
prints 'saved 0'
signal 0 'HUP HUP' 'trap "sleep 1; echo saved $RANK; exit 0" HUP; while :; do sleep 0.05; done' # of a closed terminal there are two
prints 'saved 0'
(
    trap '' HUP # as nohup does: the job goes on
    signal 0 HUP 'sleep 0.8; echo went on'
    prints 'went on'
    exit $failed
) || failed=1
signal 0 USR1 'trap "echo got it; exit 0" USR1; while :; do sleep 0.05; done'
prints 'got it'
prints '\[rank 1\] got it'

# ---- what is refused
job 2 --num_gpus 2 no_such_program
says "no 'no_such_program' in PATH"
job 2 --num_gpus 2
says 'expected a program'
printf 'print(1)\n' > script.py
job 2 ./script.py
says 'python3 ./script.py'
printf 'echo hi\n' > plain && chmod +x plain
job 3 ./plain
says 'cannot be started: Exec format error'
job 2 --module pkg.mod
says '^deepspeed: --module: .*python3 -m pkg.mod'
job 2 --autotuning tune true
says 'autotuning: expected --deepspeed_config FILE among the arguments of true'
job 2 --num_gpus 0 true
says 'num_gpus: expected at least 1'
job 2 --num_nodes 2 true
says 'expected a hostfile with that many hosts'
job 2 --num_gpuz 2 true
says 'did you mean --num_gpus'
job 0 --no_python --no_local_rank -q true --help
[ ! -s err.txt ] || fail "it was not quiet"
echo "$cases cases"
exit $failed
