/* SPDX-License-Identifier: Apache-2.0 */
/* A peer: another program that does the same piece of work on request, so that its runs and ours
 * alternate in one run of a bench. It prints "ready" when it is warm; then for each line on its
 * standard input it does what the line says and prints one line with "total": seconds. */
#ifndef DS_BENCH_PEER_H
#define DS_BENCH_PEER_H

#include <stdio.h>
#include <sys/types.h>

typedef struct bench_peer {
    FILE *to, *from;
    pid_t child;
} bench_peer;

/* Starts `command` by the shell and waits until it is ready; ends this program if it does not come
 * up. Its other lines are printed. */
void bench_peer_start(const char *command, bench_peer *peer);

/* Seconds of one piece of work; `what` is the line that it gets, without newline. */
double bench_peer_step(bench_peer *peer, const char *what);

void bench_peer_stop(bench_peer *peer);

#endif
