# SPDX-License-Identifier: Apache-2.0
"""What a client gets while ds_serve ends: each request whose connection was made is answered, by its text or by 503 and
Connection: close. Usage: serve_drain.py PROGRAM MODEL ROUNDS [FLAGS]"""
import json
import re
import signal
import socket
import subprocess
import sys
import threading
import time

PROGRAM, MODEL, ROUNDS, FLAGS = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4:]
BODY = json.dumps(dict(model="m", prompt="the quick", max_tokens=3))
REQUEST = f"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\nContent-Length: {len(BODY)}\r\n\r\n{BODY}".encode()
counts = dict(texts=0, refused=0, closing=0)


def one(port, bad):
    """false: nobody listens any more"""
    s = socket.socket()
    s.settimeout(30)
    try:
        s.connect(("127.0.0.1", port))
    except ConnectionRefusedError:
        return False
    try:
        s.sendall(REQUEST)
        got = b""
        while b"\r\n\r\n" not in got or len(got.split(b"\r\n\r\n", 1)[1]) < int(re.search(rb"(?i)content-length: (\d+)", got).group(1)):
            part = s.recv(65536)
            if not part:
                break
            got += part
        status = int(got.split()[1]) if got else 0
        closes = b"connection: close" in got.lower()
        if status == 200:
            counts["texts"] += 1
        elif status == 503 and closes:
            counts["closing"] += 1
        else:
            bad.append((status, got[:300]))
    except OSError as e:
        bad.append((0, repr(e)))
    s.close()
    return True


def client(port, bad):
    while one(port, bad):
        pass
    counts["refused"] += 1


for r in range(ROUNDS):
    p = subprocess.Popen([PROGRAM, "--model", MODEL, "--served_model_name", "m", "--port", "0", "--threads", "1", "--max_length", "512",
                          "--kv_tokens", "4096", *FLAGS], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    port = int(re.search(r":(\d+)\n", p.stdout.readline()).group(1))
    idle = socket.create_connection(("127.0.0.1", port))  # one that says nothing must not hold it up
    bad = []
    threads = [threading.Thread(target=client, args=(port, bad)) for _ in range(24)]
    for t in threads:
        t.start()
    time.sleep(0.2 + 0.01 * r)
    p.send_signal(signal.SIGTERM)
    for t in threads:
        t.join()
    if p.wait(60) != 0 or bad:
        p.kill()
        sys.exit(f"FAILED in round {r}: {len(bad)} requests without a proper answer, exit code {p.returncode}: {bad[:2]}")
    idle.close()
if not counts["texts"] or not counts["closing"] or counts["refused"] != 24 * ROUNDS:
    sys.exit(f"FAILED: {counts}")
print(f"{ROUNDS} rounds: {counts['texts']} texts, {counts['closing']} were told that it ends")
