/* SPDX-License-Identifier: Apache-2.0 */
/* Of a server that a front of replicas started (--control): what the front says on standard input.
 * See front.h, and balance/replica.c for the other end. */
#include "front.h"

#include "base/processor.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

/* Behind the first line: each byte asks for a reload. */
static void *hear_front(void *unused)
{
    char text[64];
    (void)unused;
    while (read(STDIN_FILENO, text, sizeof text) > 0) {
        (void)kill(getpid(), SIGHUP);
    }
    (void)kill(getpid(), SIGTERM);
    return NULL;
}

/* The first line: "KEY N", N replicas share this machine. */
ds_status control_obey(ds_ctx *ctx, serve_options *o)
{
    char line[128];
    char end = 0;
    size_t n = 0;
    long long beside = 0;
    pthread_t thread;
    sigset_t all;
    sigset_t before;
    while (n + 1 < sizeof line && read(STDIN_FILENO, line + n, 1) == 1 && line[n] != '\n') {
        ++n;
    }
    line[n] = '\0';
    if (sscanf(line, "%63[0-9a-f] %lld%c", o->control_key, &beside, &end) != 2 || beside < 1) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--control: expected a line \"KEY N\" on standard input; it "
                       "is for what a front starts");
    }
    if (o->threads == 0 && beside > 1 && getenv("DS_THREADS") == NULL) {
        const int64_t cores = dsi_processor_n_cores();
        o->threads = cores > beside ? cores / beside : 1;
    }
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before); /* the signal is for the main thread */
    const int error = pthread_create(&thread, NULL, hear_front, NULL);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return error == 0 && pthread_detach(thread) == 0
               ? DS_OK
               : ds_fail(ctx, DS_ERR_NOMEM, "no thread for standard input");
}
