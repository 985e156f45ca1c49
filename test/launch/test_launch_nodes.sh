#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow waits
# Jobs on two "hosts" (addresses of this machine) through a real sshd: pdsh, ssh, mpirun and ds_ssh; hostile
# arguments, failures, signals, a killed launcher, unreachable hosts, elastic restarts.
set -u
bin=$(realpath "$1")
sshd=$(PATH=$PATH:/usr/sbin command -v sshd) || { echo "skip: no sshd (package openssh-server)"; exit 77; }
command -v pdsh > /dev/null || { echo "skip: no pdsh"; exit 77; }
[ "$(id -u)" = 0 ] || { echo "skip: not root, so no sshd of its own"; exit 77; }
work=$(mktemp -d "$bin/launch_nodes.XXXXXX")
cleanup() {
    [ ! -f "$work/sshd.pid" ] || kill "$(cat "$work/sshd.pid")"
    rm -rf "$work"
}
trap cleanup EXIT
cd "$work" || exit 1
failed=0
cases=0
fail() { echo "FAILED: $*"; failed=1; sed 's/^/    out: /' out.txt | head -20 | cut -c 1-200; sed 's/^/    err: /' err.txt | head -40 | cut -c 1-200; }

# ---- the server and its hosts
ssh-keygen -q -t ed25519 -N '' -f key && ssh-keygen -q -t ed25519 -N '' -f hostkey || exit 1
cp key.pub authorized && chmod 600 authorized && mkdir -p /run/sshd
for port in $(seq $((23000 + $$ % 8000)) 31999); do # another of these tests may run beside it
    (exec 3<> "/dev/tcp/127.0.0.2/$port") 2> /dev/null || break
done
cat > sshd_config << END
Port $port
ListenAddress 127.0.0.2
ListenAddress 127.0.0.3
HostKey $work/hostkey
AuthorizedKeysFile $work/authorized
PidFile $work/sshd.pid
PasswordAuthentication no
StrictModes no
UsePAM no
MaxStartups 100
END
"$sshd" -f "$work/sshd_config" || { echo "skip: sshd does not start here"; exit 77; }
for _ in $(seq 50); do [ -s sshd.pid ] && break; sleep 0.1; done
export PDSH_SSH_ARGS_APPEND="-i $work/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ConnectTimeout=3"
printf '127.0.0.2 slots=2\n127.0.0.3 slots=1\n' > hosts
base=(-H hosts --ssh_port "$port")

job() { # CODE ARGS…
    local want=$1 code
    shift
    cases=$((cases + 1))
    timeout -s KILL 60 "$bin/deepspeed" "$@" > out.txt 2> err.txt < /dev/null
    code=$?
    [ $code = "$want" ] || fail "$*: exit code $code, expected $want"
}
prints() { grep -qxF -- "$1" out.txt || fail "expected the line '$1'"; }
says() { grep -qE -- "$1" err.txt || fail "expected '$1' among the messages"; }
gone() { # MARK: no process has it in its environment any more
    local pid
    for _ in $(seq 300); do
        pid=$(grep -lzx "DS_MARK=$1" /proc/[0-9]*/environ 2> /dev/null | grep -v "/$$/" | head -1)
        [ -z "$pid" ] && return
        sleep 0.1
    done
    fail "a process of '$1' is left: $(tr '\0' ' ' < "${pid%environ}cmdline")"
}

cat > show.sh << 'END'
#!/bin/sh
printf '%s/%s %s/%s %s/%s %s %s' $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $CROSS_RANK $CROSS_SIZE ${#DS_JOB_SECRET} "$FRUIT"
printf ' <%s>' "$@"
echo
END
chmod +x show.sh
echo "FRUIT=an 'apple' \$HOME" > .deepspeed_env
hostile=('a b' '$HOME;`touch owned`' "it's" '100%h %n %%' '' '"' '\' '&& touch owned' '*')
words=" <a b> <\$HOME;\`touch owned\`> <it's> <100%h %n %%> <> <\"> <\\> <&& touch owned> <*>"

# Three ranks, of which the one on the other host grows with the micro-batch; rank 0 measures.
cat > tuned.sh << 'END'
#!/bin/sh
m=$(sed -nE 's/.*"train_micro_batch_size_per_gpu": ([0-9]+).*/\1/p' "$2")
out=$(sed -nE 's/.*"metric_path": "(.*)".*/\1/p' "$2")
[ "$DS_AUTOTUNING_TRIAL" = 1 ] || exit 9
if [ $RANK = 2 ] && [ "$m" = 4 ]; then
    exec awk 'BEGIN { s = "x"; while (length(s) < 200000000) s = s s; while (1) x++ }'
fi
[ $RANK = 0 ] && [ "$m" != 4 ] && printf '{"latency": 1, "throughput": %d}' "${m}00" > "$out.new" && mv "$out.new" "$out"
exec sleep 60
END
chmod +x tuned.sh
echo '{"train_micro_batch_size_per_gpu": [1, 2, 4], "zero_optimization": {"stage": 1},
    "autotuning": {"enabled": true, "model_info": {"num_params": 1000}}}' > tune.json

for launcher in pdsh ssh; do
    way=("${base[@]}" --launcher $launcher)
    job 0 "${way[@]}" ./show.sh "${hostile[@]}"
    prints "0/3 0/2 0/2 32 an 'apple' \$HOME$words"
    prints "[rank 1] 1/3 1/2 0/2 32 an 'apple' \$HOME$words"
    prints "[rank 2] 2/3 0/1 1/2 32 an 'apple' \$HOME$words"
    [ ! -e owned ] || fail "an argument was run"
    job 0 "${way[@]}" -i 127.0.0.3 --force_multi --log_dir logs --prefix all sh -c 'echo $RANK $DS_SLOT'
    prints '[rank 0] 0 0'
    [ "$(cat logs/*_rank0.log)" = '0 0' ] || fail "the log file"
    rm -r logs
    # Users of hosts.
    printf 'root@127.0.0.2 slots=2\nroot@127.0.0.3 slots=1\n' > users
    job 0 -H users --ssh_port "$port" --launcher $launcher --prefix all sh -c 'echo $RANK of $(id -un)'
    prints '[rank 2] 2 of root'
    printf '127.0.0.2 slots=1\nnobody-here@127.0.0.3 slots=1\n' > users
    job 255 -H users --ssh_port "$port" --launcher $launcher sh -c 'exec sleep 60'
    says 'nobody-here@127.0.0.3: Permission denied'
    # A rank that never joins is named with its node, not the node of the one that gave up waiting.
    for missing in 0 2; do
        at=127.0.0.$((missing == 2 ? 3 : 2))
        job 1 "${way[@]}" sh -c "[ \$RANK = $missing ] && exec sleep 60; DEEPSPEED_TIMEOUT=0.05 exec $bin/ds_bench --all_reduce --max_size 8"
        grep -E '^deepspeed: (node|rank [0-9]+ on 127[^ ]+ never)' err.txt | tail -n 1 > named.txt
        grep -qE "^deepspeed: (rank $missing on $at never joined the others: node 127.0.0.[23]|node $at) failed with" named.txt ||
            fail "rank $missing of $at is missing, named is: $(cat named.txt)"
    done
    # The second node fails: the first is ended.
    DS_MARK=fails job 139 "${way[@]}" sh -c 'ulimit -c 0; if [ $RANK = 2 ]; then sleep 0.5; echo last; kill -SEGV $$; fi; exec sleep 60'
    says 'rank 2 on [^ ]+ was killed by SIGSEGV'
    says '^deepspeed:   \| last'
    says 'node 127.0.0.3 failed with exit code 139; ending the other'
    gone fails
    # No secret and no exported value on any command line while it runs; SIGTERM reaches the ranks.
    DS_MARK=term DS_API_KEY=sesame-open timeout -s KILL 60 "$bin/deepspeed" "${way[@]}" sh -c 'trap "echo saved $RANK; exit 0" TERM; echo "$DS_JOB_SECRET" > secret.$RANK; while :; do sleep 0.1; done' > out.txt 2> err.txt < /dev/null &
    for _ in $(seq 300); do [ -s secret.2 ] && [ -s secret.0 ] && [ -s secret.1 ] && break; sleep 0.1; done
    cat /proc/[0-9]*/cmdline 2> /dev/null | tr '\0' '\n' > lines.txt
    { [ -s secret.2 ] && cmp -s secret.0 secret.2 && ! grep -qF "$(cat secret.0)" lines.txt; } || fail "the secret is on a command line, or differs"
    ! grep -qF "sesame-open" lines.txt || fail "an exported value is on a command line"
    rm -f secret.*
    kill -TERM "$(pgrep -P $!)"
    wait $!
    code=$?
    [ $code = 0 ] || fail "SIGTERM: exit code $code"
    prints 'saved 0'
    prints '[rank 2] saved 2'
    gone term
    # Limits hold on every node; trials of the autotuner are ended on all of them.
    if [ $launcher = pdsh ]; then
        DS_MARK=late job 124 "${way[@]}" --time_limit 2 --grace 0.5 sh -c 'trap "" TERM; while :; do sleep 0.1; done'
        gone late
        DS_MARK=grown job 137 "${way[@]}" --rank_memory 100M sh -c '[ $RANK = 2 ] || exec sleep 60; awk "BEGIN { s = \"x\"; while (length(s) < 200000000) s = s s; while (1) x++ }"'
        says 'rank 2 uses [0-9]+ MiB of memory, more than --rank_memory allows, 100 MiB'
        gone grown
    else
        DS_MARK=tuned job 0 "${way[@]}" --trial_seconds 20 --rank_memory 100M --autotuning tune ./tuned.sh --deepspeed_config tune.json
        grep -q '^best: z1_gas1_tmbspg2, 200 samples/s' out.txt || fail "the best over two hosts"
        says 'trial [0-9] z1_gas1_tmbspg4 failed: out of memory: .*rank 2 uses [0-9]+ MiB'
        gone tuned
    fi
    # A killed launcher leaves no rank on any node.
    DS_MARK=killed "$bin/deepspeed" "${way[@]}" --grace 1 sh -c 'echo up; sleep 60 & exec sleep 60' > out.txt 2> err.txt < /dev/null &
    launcher=$!
    for _ in $(seq 300); do [ "$(grep -c up out.txt)" = 3 ] && break; sleep 0.1; done
    disown $launcher
    kill -KILL $launcher
    gone killed
    # Restarts.
    job 0 "${way[@]}" --restarts 1 sh -c 'echo "$RANK $DS_RESTART_COUNT"; [ $DS_RESTART_COUNT = 1 ] || exit 5'
    says 'restart 1 of 1: 3 ranks'
    prints '[rank 2] 2 1'
done

# ---- hosts that are not there
printf '127.0.0.2 slots=2\n127.0.0.4 slots=1\n' > partly
cat > elastic.json << 'END'
{"elasticity": {"enabled": true, "max_train_batch_size": 100, "micro_batch_sizes": [2, 4], "version": 0.1}}
END
partly=(-H partly --ssh_port "$port")
job 255 "${partly[@]}" --launcher ssh sh -c 'exec sleep 60'
says 'node 127.0.0.4 was not reached'
for launcher in ssh pdsh; do
    job 0 "${partly[@]}" --launcher $launcher --restarts 1 --elastic_training sh -c 'echo $RANK of $WORLD_SIZE' --deepspeed_config elastic.json
    says 'node 127.0.0.4 is left out'
    prints '[rank 1] 1 of 2'
done
job 3 -H hosts --ssh_port 1 --launcher pdsh true
says 'host 127.0.0.2 of hosts cannot be reached by ssh without a password'

# ---- by hand on every node
export DS_JOB_SECRET=0123456789abcdef0123456789abcdef
for node in 0 1; do
    "$bin/deepspeed" -H hosts --no_ssh --node_rank $node --master_addr 127.0.0.2 sh -c 'echo $RANK/$WORLD_SIZE $CROSS_RANK $MASTER_PORT $DS_JOB_SECRET'
done > out.txt 2> err.txt < /dev/null
prints "[rank 2] 2/3 1 29500 $DS_JOB_SECRET"
prints "0/3 0 29500 $DS_JOB_SECRET"
unset DS_JOB_SECRET

# ---- Open MPI
if command -v ompi_info > /dev/null; then
    export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
    job 0 --num_gpus 2 --launcher openmpi --launcher_args=--oversubscribe sh -c 'echo "$OMPI_COMM_WORLD_RANK/$OMPI_COMM_WORLD_SIZE ${#DS_JOB_SECRET} $FRUIT <$1>"' x "${hostile[1]}"
    prints "1/2 32 an 'apple' \$HOME <\$HOME;\`touch owned\`>"
    job 6 --num_gpus 2 --launcher openmpi --launcher_args=--oversubscribe sh -c 'exit 6'
    [ ! -e owned ] || fail "an argument was run"
else
    echo "no Open MPI here: mpirun was not tried"
fi

# ---- MPICH
if command -v mpirun.mpich > /dev/null; then
    job 0 --num_gpus 2 --launcher mpich sh -c 'echo "$PMI_RANK/$PMI_SIZE ${#DS_JOB_SECRET} $FRUIT <$1>"' x "${hostile[1]}"
    prints "1/2 32 an 'apple' \$HOME <\$HOME;\`touch owned\`>"
    # not at once: Hydra itself dies of SIGPIPE, with 141, when its processes end while it starts the others
    job 6 --num_gpus 2 --launcher mpich sh -c 'sleep 1; exit 6'
    [ ! -e owned ] || fail "an argument was run"
else
    echo "no MPICH here: mpirun.mpich was not tried"
fi
mkdir other && printf '#!/bin/sh\necho "mpirun (Open MPI) 4.1.4"\n' > other/mpirun && chmod +x other/mpirun
PATH=$PWD/other:$PATH job 2 --num_gpus 2 --launcher impi true
says "mpirun in PATH is Open MPI's"

# ---- ds_ssh
"$bin/ds_ssh" -f hosts --ssh_port "$port" 'echo "on $(echo $SSH_CONNECTION | cut -d" " -f 3)"; exit 3' > out.txt 2> err.txt
[ $? = 3 ] || fail "ds_ssh: exit code"
prints '127.0.0.2: on 127.0.0.2'
prints '127.0.0.3: on 127.0.0.3'
says '^ds_ssh: 127.0.0.3 failed with exit code 3'
"$bin/ds_ssh" -f hosts --ssh_port "$port" -e 127.0.0.2 echo a b > out.txt 2> err.txt || fail "ds_ssh -e"
[ "$(cat out.txt)" = '127.0.0.3: a b' ] || fail "ds_ssh -e"
echo "$cases cases"
exit $failed
