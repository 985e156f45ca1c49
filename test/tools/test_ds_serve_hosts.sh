#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# labels: slow waits
# ds_serve --hostfile on two "hosts" (addresses of this machine) through a real sshd: replicas that answer, ports and slots, a host
# that cannot be reached, a replica that is killed, and nothing left behind, also when the front is killed.
set -u
build=$(realpath "$1")
[ -x "$build/ds_serve" ] || { echo "ds_serve is not built: libmicrohttpd-dev is missing"; exit 77; }
command -v python3 > /dev/null || { echo "no python3"; exit 77; }
# shellcheck source=test/common/tiny_llama.sh
. "$DS_SOURCE_DIR/test/common/tiny_llama.sh" 2 32 2 2048
touch log
front=""
cleanup() {
    [ -z "$front" ] || kill -KILL "$front" 2> /dev/null
    ! declare -F sshd_end > /dev/null || sshd_end
    rm -rf "$scratch"
}
trap cleanup EXIT
python3 -c "print('the quick brown fox jumps over the lazy dog. ' * 200)" > data.txt
"$build/ds_train" --model_config llama.json --tokenizer bytes --data data.txt --seq_length 64 --micro_batch 8 --max_steps 20 \
    --learning_rate 1e-2 --output "out it's" > log 2>&1 || fail "training"

# shellcheck source=test/common/sshd_hosts.sh
. "$DS_SOURCE_DIR/test/common/sshd_hosts.sh"
printf '127.0.0.2 slots=2\n127.0.0.3 slots=1\n' > hosts

# shellcheck disable=SC2086
start() { # FLAGS…: front and its port in $front and $url
    : > line # of the front before
    "$build/ds_serve" --ssh_port "$port" --port 0 --probe_seconds 0.2 --probe_timeout 5 --threads 1 ${sizes---max_length 256 --kv_tokens 1024} \
        --model "out it's" --served_model_name m "$@" > line 2> log &
    front=$!
    for _ in $(seq 600); do grep -q serving line && break; kill -0 $front 2> /dev/null || break; sleep 0.1; done
    url=$(sed -n 's/^serving m on //p' line)
}
get() { python3 -c 'import sys, urllib.request as u
try: print(u.urlopen(sys.argv[1], timeout=30).read().decode())
except u.HTTPError as e: print(e.read().decode())' "$1" 2> /dev/null; }
complete() { python3 -c 'import sys, json, urllib.request as u
r = u.Request(sys.argv[1] + "/v1/completions", json.dumps(dict(model="m", prompt="the " + sys.argv[2], max_tokens=5)).encode(), {"Content-Type": "application/json"})
print(json.load(u.urlopen(r, timeout=60))["usage"]["completion_tokens"])' "$url" "$1"; }
pids() { local p; for p in $(pgrep -f -- "^[^ ]*ds_serve .*--control --host 0.0.0.0"); do # of this test, not of another beside it
    [ "$(readlink "/proc/$p/cwd")" != "$scratch" ] || echo "$p"
done; }
servers() { pids | wc -l; }
gone() { for _ in $(seq 100); do [ "$(servers)" = 0 ] && return; sleep 0.1; done; fail "$(servers) servers stay behind"; }

start --hostfile hosts
[ -n "$url" ] || fail "no front"
[ "$(servers)" = 3 ] || fail "$(servers) servers for 3 slots"
get "$url/health" > health
python3 - << 'END' || fail "health: $(cat health)"
import json
replicas = json.load(open("health"))["replicas"]
hosts = [r["url"].split("//")[1].split(":")[0] for r in replicas]
assert hosts == ["127.0.0.2", "127.0.0.2", "127.0.0.3"] and all(r["state"] == "up" and r["models"] == ["m"] for r in replicas)
END
for i in 1 2 3; do [ "$(complete $i)" = 5 ] || fail "text $i"; done
get "$url/metrics" | grep -c '^ds_front_replica_requests_total.* 1$' | grep -qx 3 || fail "three requests went to three replicas: $(get "$url/metrics")"
kill -KILL "$(pids | head -1)"
for _ in $(seq 100); do grep -q "is out: its process ended" log && break; sleep 0.1; done
grep -q "replica . (http://127.0.0.[23]:[0-9]*) is out: its process ended" log || fail "the log names it"
[ "$(complete 4)" = 5 ] || fail "the others go on"
for _ in $(seq 300); do get "$url/ready" | grep -q '"state":"up".*"state":"up".*"state":"up"' && break; sleep 0.1; done
get "$url/health" | grep -q '"status":"ok".*"restarts":1' || fail "it is started again over ssh: $(get "$url/health")"
[ "$(complete 5)" = 5 ] && [ "$(servers)" = 3 ] || fail "$(servers) servers after the restart"
kill -TERM $front
wait $front || fail "exit code $?"
gone

# MII's file: its hosts, as many slots as replica_num
echo '{"model_name_or_path": "m", "replica_num": 3, "hostfile": "hosts", "max_length": 256,
    "inference_engine_config": {"state_manager": {"memory_config": {"mode": "allocate", "size": 8}}}}' > mii.json
sizes="" start --deepspeed_config mii.json
[ -n "$url" ] && [ "$(servers)" = 3 ] && [ "$(complete 1)" = 5 ] || fail "$(servers) servers for replica_num 3"
kill -TERM $front
wait $front || fail "exit code $?"
gone

# slots say the port, and a part of the file may be chosen
free=$((20000 + $$ % 8000)) # below those that the kernel gives connections
start --hostfile hosts --include 127.0.0.2:1@127.0.0.3 --replica_port $free
get "$url/health" | grep -q "127.0.0.2:$((free + 1)).*127.0.0.3:$free" || fail "ports of slots: $(get "$url/health")"
kill -KILL $front # its connections end, and with them the servers
wait $front 2> /dev/null
gone

# https between the front and its hosts
start --hostfile hosts --replica_tls
get "$url/health" | grep -q '"url":"https://127.0.0.3:' || fail "https to the hosts: $(get "$url/health")"
[ "$(complete 1)" = 5 ] || fail "a text by https"
kill -TERM $front
wait $front || fail "exit code $?"
gone

# a host that is not there: the others serve, and it is named
printf '127.0.0.2 slots=1\n127.0.0.9 slots=1\n' > hosts2
start --hostfile hosts2
[ -n "$url" ] && [ "$(complete 1)" = 5 ] || fail "one host of two"
grep -q "replica 1 is out: its process ended with exit code 255" log || fail "the host that is not there is named"
grep -q "^replica 1: ssh: connect to host 127.0.0.9" log || fail "ssh's words are shown"
kill -TERM $front
wait $front || fail "exit code $?"
gone
echo "hosts: 3 slots, ports, https, a killed server, a killed front, a host that is not there"
