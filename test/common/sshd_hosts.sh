# SPDX-License-Identifier: Apache-2.0
# Sourced by tests of hostfiles, as root, in a scratch folder ($scratch): an sshd of its own on two "hosts", 127.0.0.2 and 127.0.0.3, at
# $port, and PDSH_SSH_ARGS_APPEND for it. Ends the test (77) where none can be; sshd_end ends it.
sshd=$(PATH=$PATH:/usr/sbin command -v sshd) || { echo "skip: no sshd (package openssh-server)"; exit 77; }
[ "$(id -u)" = 0 ] || { echo "skip: not root, so no sshd of its own"; exit 77; }
ssh-keygen -q -t ed25519 -N '' -f key && ssh-keygen -q -t ed25519 -N '' -f hostkey || exit 1
cp key.pub authorized && chmod 600 authorized && mkdir -p /run/sshd
for port in $(seq $((23000 + $$ % 8000)) 31999); do # another of these tests may run beside it
    (exec 3<> "/dev/tcp/127.0.0.2/$port") 2> /dev/null || break
done
cat > sshd_config << END
Port $port
ListenAddress 127.0.0.2
ListenAddress 127.0.0.3
HostKey $scratch/hostkey
AuthorizedKeysFile $scratch/authorized
PidFile $scratch/sshd.pid
PasswordAuthentication no
StrictModes no
UsePAM no
MaxStartups 100
END
sshd_end() { [ ! -f "$scratch/sshd.pid" ] || kill "$(cat "$scratch/sshd.pid")"; }
"$sshd" -f "$scratch/sshd_config" || { echo "skip: sshd does not start here"; exit 77; }
for _ in $(seq 50); do [ -s sshd.pid ] && break; sleep 0.1; done
export PDSH_SSH_ARGS_APPEND="-i $scratch/key -o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ConnectTimeout=3"
