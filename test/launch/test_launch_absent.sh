#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow waits
# Ranks that never join: one that ended well is named at once by the launcher, one that is late or absent by those that wait.
# Random jobs (DS_ABSENT_CASES, DS_ABSENT_SEED): any ranks end or begin late, before or after the others.
set -u
bin=$(realpath "$1")
work=$(mktemp -d "$1/launch_absent.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work" || exit 1
unset RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE MASTER_ADDR MASTER_PORT DS_JOB_SECRET DEEPSPEED_TIMEOUT
host=$(hostname)
fail() { echo "FAILED: $1"; head -c 1500 "$2"; touch failed; }
bench="$bin/ds_bench --all_reduce --max_size 8 --trials 1 --warmups 0" # on a busy machine each call may wait for its peer's turn
has() { grep -qE -- "$2" "$1" || fail "expected '$2' in $1" "$1"; }
hasnt() { ! grep -qE -- "$2" "$1" || fail "did not expect '$2' in $1" "$1"; }
# timed MOST FILE CODE COMMAND…: exit code, and the seconds it may take at most.
timed() {
    local most=$1 out=$2 want=$3 code begin=$SECONDS
    shift 3
    timeout 40 "$@" > "$out" 2>&1 < /dev/null
    code=$?
    [ $code = "$want" ] || fail "$out: exit code $code, expected $want" "$out"
    [ $((SECONDS - begin)) -le "$most" ] || fail "$out took $((SECONDS - begin)) s, at most $most were expected" "$out"
}

# ---- ended well, before the ranks met: the launcher's headline is that rank
ended() {
    timed 30 "ended$1" 1 "$bin/deepspeed" --num_gpus 3 sh -c "[ \$RANK = $1 ] || exec $bench"
    has "ended$1" "^deepspeed: rank $1 on $host exited with code 0 before it joined"
    has "ended$1" "^deepspeed: ---- rank $1 failed ----"
}
ended 0
ended 1
ended 2

# ---- no rank is blamed that has joined, or where nobody waits
timed 30 after 0 "$bin/deepspeed" --num_gpus 2 sh -c "$bench > /dev/null && { [ \$RANK = 1 ] || sleep 1; }"
timed 30 apart 0 "$bin/deepspeed" --num_gpus 2 sh -c '[ $RANK = 1 ] || sleep 1'
timed 30 own 3 "$bin/deepspeed" --num_gpus 2 sh -c '[ $RANK = 1 ] || { sleep 0.3; exit 3; }'
hasnt own 'before it joined'

# ---- late, or never: a line within 10 s by those that wait, and the error at the end names the missing
late() {
    timed 35 late 0 "$bin/deepspeed" --num_gpus 2 sh -c "[ \$RANK = 1 ] && sleep 6.5; exec $bench"
    has late "rank 0 waits for rank 1 of 2 on $host since [5-9] s, gives up after 300 s"
}
never() {
    timed 30 never 1 env DEEPSPEED_TIMEOUT=0.1 "$bin/deepspeed" --num_gpus 3 sh -c "[ \$RANK = 1 ] && sleep 60; exec $bench"
    has never "rank 0 waits for rank 1 of 3 on $host since [5-9] s"
    has never "rank 1 of 3 on $host did not join within 6 s"
    hasnt never 'rank [02] .*did not join'
    headline never 1
}
# headline FILE RANK: the launcher's first and last word is that rank, not those that gave up waiting for it
headline() {
    has "$1" "^deepspeed: rank $2 on $host never joined the others, which gave up after [0-9]+ s; ending it"
    has "$1" "^deepspeed: ---- rank $2 failed ----"
    hasnt "$1" '^deepspeed: rank [0-9]+ on .* ended with exit code'
}
zero() {
    timed 30 zero 1 env DEEPSPEED_TIMEOUT=0.1 "$bin/deepspeed" --num_gpus 3 sh -c "[ \$RANK = 0 ] && sleep 60; exec $bench"
    has zero "rank 0 of 3 on $host did not join within 6 s"
    headline zero 0
}
# a variable of the launcher that one rank has otherwise is named, and is no wait
variable() {
    timed 10 "$1" 1 "$bin/deepspeed" --num_gpus 3 sh -c "[ \$RANK = 1 ] && export $1=$2; exec $bench"
    has "$1" "$3"
    hasnt "$1" 'waits for'
}
# bare NAME PORT SIZE RANK…: these ranks of a job without launcher.
bare() {
    local name=$1 port=$2 size=$3 rank
    shift 3
    for rank in "$@"; do
        timed 30 "$name$rank" 1 env RANK="$rank" WORLD_SIZE="$size" MASTER_PORT="$port" MASTER_ADDR="$name" DEEPSPEED_TIMEOUT=0.1 \
            $bench &
    done
    wait
}
alone() {
    bare alone 29511 3 0 2
    has alone0 "rank 0 waits for rank 1 of 3 on $host since [5-9] s"
    has alone0 "rank 1 of 3 on $host did not join within 6 s"
    has alone2 "rank 1 of 3 on $host did not join within 6 s"
    bare other 29512 2 1
    has other1 "rank 1 waits for rank 0 of 2 on $host since [5-9] s"
    has other1 "rank 0 of 2 on $host did not join within 6 s"
}
# between hosts the rendezvous of rank 0 is what the others wait for
far() {
    timed 30 far 1 env RANK=1 WORLD_SIZE=2 LOCAL_RANK=0 LOCAL_WORLD_SIZE=1 CROSS_RANK=1 CROSS_SIZE=2 MASTER_ADDR=127.0.0.1 \
        MASTER_PORT=29513 DEEPSPEED_TIMEOUT=0.1 $bench
    has far "rank 1 waits for rank 0, whose rendezvous is at 127.0.0.1 port 29513 .*since [5-9] s"
    has far "rank 0 did not join within 6 s"
}
# A variable that names the job makes two meetings: it is named as soon as the ranks of both have waited for a moment; where
# they may be two jobs the line says so, and the wait goes on.
stray() { # NAME RANK PATTERN SETTING…: the settings are that rank's alone
    local name=$1 odd=$2 pattern=$3 rank
    shift 3
    for rank in 0 1 2; do
        timed 30 "$name.$rank" 1 env RANK=$rank WORLD_SIZE=3 MASTER_PORT=29514 MASTER_ADDR="$name" DEEPSPEED_TIMEOUT=0.1 \
            $([ $rank != "$odd" ] || printf '%s ' "$@") $bench &
    done
    wait
    has "$name.0" "$pattern"
    if grep -qE 'since [5-9] s' "$name.0"; then
        [ "$(grep -nE 'since [5-9] s' "$name.0" | head -n 1 | cut -d: -f 1)" -gt "$(grep -nE "$pattern" "$name.0" | head -n 1 | cut -d: -f 1)" ] ||
            fail "$name: the wait is told before its cause" "$name.0"
    fi
}
secret=0123456789abcdef0123456789abcdef
strays() {
    stray stray1 1 'rank 1 waits .* if it is of this job: rank 1 has DS_JOB_SECRET=.digest [0-9a-f]{8}. in its environment, rank 0 has DS_JOB_SECRET=:' \
        DS_JOB_SECRET=$secret
    hasnt stray1.0 "$secret"
    stray stray2 0 'if it is of this job: rank [12] has DS_JOB_SECRET= in its environment, rank 0 has DS_JOB_SECRET=.digest' DS_JOB_SECRET=$secret
    stray stray3 2 'if it is of this job: rank 2 has DS_LAUNCHER=elsewhere in its' DS_LAUNCHER=elsewhere
}
strays & late & never & zero & alone & far &
variable DS_RESTART_COUNT 3 'rank 1 has DS_RESTART_COUNT=3 in its environment, rank 0 has DS_RESTART_COUNT=0'
variable MASTER_PORT 1234 'rank 1 has MASTER_PORT=1234 in its environment, rank 0 has MASTER_PORT='
variable WORLD_SIZE 4 'these contradict'
variable LOCAL_WORLD_SIZE 2 'these contradict'
variable LOCAL_SIZE 2 "the environment's LOCAL_SIZE is 2, LOCAL_WORLD_SIZE is 3"
variable CROSS_SIZE 2 'these contradict'
variable DS_JOB_SECRET $secret 'rank 1 has DS_JOB_SECRET=.digest [0-9a-f]{8}. in its environment, rank 0 has DS_JOB_SECRET='
variable DS_LAUNCHER elsewhere 'rank 1 has DS_LAUNCHER=elsewhere in its environment, rank 0 has DS_LAUNCHER=ds-launcher-'
variable DS_LAUNCHER '' 'rank 1 has DS_LAUNCHER= in its environment, rank 0 has DS_LAUNCHER=ds-launcher-'
variable RANK 2 'another process is this rank already'

# ---- random jobs, meanwhile
RANDOM=${DS_ABSENT_SEED:-1}
for case in $(seq "${DS_ABSENT_CASES:-6}"); do
    size=$((RANDOM % 5 + 2))
    gone=' '
    script='case $RANK in '
    for rank in $(seq 0 $((size - 1))); do
        delay=0.$((RANDOM % 5))
        if [ $((RANDOM % 3)) = 0 ]; then
            gone="$gone$rank "
            script="$script $rank) sleep $delay; exit 0;;"
        else
            script="$script $rank) sleep $delay;;"
        fi
    done
    n=$(wc -w <<< "$gone")
    want=$((n > 0 && n < size ? 1 : 0))
    timed 30 "random$case" $want "$bin/deepspeed" --num_gpus $size sh -c "$script esac; exec $bench"
    if [ $want = 1 ]; then
        named=$(sed -nE 's/^deepspeed: ---- rank ([0-9]+) failed ----$/\1/p' "random$case")
        [[ "$gone" = *" $named "* ]] || fail "case $case: rank '$named' is named, gone are$gone: $script" "random$case"
    fi
done
wait
[ ! -e failed ] && echo "ranks that never join are named; ${DS_ABSENT_CASES:-6} random jobs"
[ ! -e failed ]
