/* SPDX-License-Identifier: Apache-2.0 */
/* Of a server that a front of replicas started (--control): what the front says on standard input.
 * See front.h, and balance/replica.c for the other end. */
#include "front.h"

#include "base/processor.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
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

/* "CERT<tab>KEY", bars for the ends of lines. */
static bool take_tls(serve_options *o, char *text)
{
    char *secret = strchr(text, '\t');
    if (secret == NULL) {
        return false;
    }
    *secret++ = '\0';
    if (strlen(text) >= sizeof o->control_cert || strlen(secret) >= sizeof o->control_secret) {
        return false;
    }
    (void)snprintf(o->control_cert, sizeof o->control_cert, "%s", text);
    (void)snprintf(o->control_secret, sizeof o->control_secret, "%s", secret);
    for (char *at = o->control_cert; (at = strchr(at, '|')) != NULL;) {
        *at = '\n';
    }
    for (char *at = o->control_secret; (at = strchr(at, '|')) != NULL;) {
        *at = '\n';
    }
    return true;
}

/* The first line: "KEY N", N replicas share this machine; with https "<tab>CERT<tab>KEY" behind. */
ds_status control_obey(ds_ctx *ctx, serve_options *o)
{
    char line[2 * DSI_TLS_PEM_BYTES + 128];
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
    char *tls = strchr(line, '\t');
    if (tls != NULL) {
        *tls++ = '\0';
    }
    if ((tls != NULL && !take_tls(o, tls)) ||
        sscanf(line, "%63[0-9a-f] %lld%c", o->control_key, &beside, &end) != 2 || beside < 1) {
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
