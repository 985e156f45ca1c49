/* SPDX-License-Identifier: Apache-2.0 */
/* The life of the front of replicas. See balance.h. */
#include "balance.h"

#include "base/clock.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

static const struct timespec tenth = {0, 100000000};

/* Whether one came within a tenth of a second that ends it; SIGHUP goes to the replicas. Starts
 * what is due, too. */
static bool signal_came(balance *b, const sigset_t *signals)
{
    const int number = sigtimedwait(signals, NULL, &tenth);
    restart_due(b);
    if (number == SIGHUP) {
        ds_log(b->ctx, DS_LOG_JOB, "SIGHUP: the servers that were started here load anew");
        replicas_reload(b);
    }
    return number >= 0 && number != SIGHUP;
}

/* false: a signal came, or all replicas have ended. */
static bool wait_settled(balance *b, const sigset_t *signals)
{
    for (;;) {
        (void)pthread_mutex_lock(&b->lock);
        const bool settled = b->settled;
        const bool ended = b->all_ended;
        (void)pthread_mutex_unlock(&b->lock);
        if (settled || ended) {
            return !ended;
        }
        if (signal_came(b, signals)) {
            return false;
        }
    }
}

static void print_first_line(balance *b)
{
    dsi_buf names = dsi_buf_make(1 << 16);
    unsigned status = 0;
    json_error_t error;
    (void)pthread_mutex_lock(&b->lock);
    pages_models(b, &names, &status);
    (void)pthread_mutex_unlock(&b->lock);
    json_t *list = json_loads(dsi_buf_text(&names), 0, &error);
    json_t *one = NULL;
    size_t i = 0;
    dsi_buf_clear(&names);
    json_array_foreach(json_object_get(list, "data"), i, one)
    {
        dsi_buf_printf(&names, "%s%s", i > 0 ? ", " : "",
                       json_string_value(json_object_get(one, "id")));
    }
    json_decref(list);
    (void)printf("serving %s on %s://%s:%u\n",
                 names.size > 0 ? dsi_buf_text(&names) : "nothing yet",
                 b->door.tls_cert != NULL ? "https" : "http", b->o->host, listen_port(&b->door));
    (void)fflush(stdout);
    dsi_buf_free(&names);
}

/* Until a signal, or the end of all replicas: true. */
static bool wait_signal(balance *b, const sigset_t *signals)
{
    for (;;) {
        if (signal_came(b, signals)) {
            return false;
        }
        (void)pthread_mutex_lock(&b->lock);
        const bool ended = b->all_ended;
        (void)pthread_mutex_unlock(&b->lock);
        if (ended) {
            return true;
        }
    }
}

static void drain(balance *b, const sigset_t *signals)
{
    ds_log(b->ctx, DS_LOG_JOB, "no new requests; those that run end");
    (void)pthread_mutex_lock(&b->lock);
    b->door.draining = true;
    (void)pthread_mutex_unlock(&b->lock);
    for (int64_t i = 0; i < 10 * b->o->drain_seconds; ++i) {
        (void)pthread_mutex_lock(&b->lock);
        const bool idle = b->n_asks == 0;
        (void)pthread_mutex_unlock(&b->lock);
        if (idle || signal_came(b, signals)) {
            return;
        }
    }
}

static bool all_refused(const balance *b)
{
    size_t i = 0;
    while (i < b->n && b->replicas[i].refused) {
        ++i;
    }
    return i == b->n;
}

static ds_status serve(ds_ctx *ctx, balance *b, const sigset_t *signals)
{
    pthread_t relay;
    bool ended = false;
    if (pthread_create(&relay, NULL, relay_run, b) != 0) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no thread for the replicas");
    }
    const ds_status status = balance_listen(ctx, b);
    if (status >= 0) {
        if (wait_settled(b, signals)) {
            print_first_line(b);
            ended = wait_signal(b, signals);
        } else {
            (void)pthread_mutex_lock(&b->lock);
            ended = b->all_ended;
            (void)pthread_mutex_unlock(&b->lock);
        }
        drain(b, signals);
    }
    (void)pthread_mutex_lock(&b->lock);
    b->door.draining = b->stop = true;
    (void)pthread_mutex_unlock(&b->lock);
    relay_wake(b);
    (void)pthread_join(relay, NULL);
    if (b->door.daemon != NULL) {
        listen_end(&b->door);
    }
    if (status >= 0 && ended) {
        return all_refused(b) ? ds_fail(ctx, DS_ERR_ARG,
                                        "all replicas have ended: they refuse their flags, as "
                                        "written above")
                              : ds_fail(ctx, DS_ERR_PEER, "all replicas have ended");
    }
    return status;
}

ds_status balance_run(ds_ctx *ctx, const serve_options *o)
{
    balance b = {.ctx = ctx, .o = o, .created = (int64_t)time(NULL)};
    sigset_t signals;
    b.queued_end = &b.queued;
    b.wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    (void)pthread_mutex_init(&b.lock, NULL);
    listen_hold_signals(&signals);
    (void)signal(SIGPIPE, SIG_IGN);
    listen_raise_descriptors(2 * o->max_connections);
    ds_status status =
        b.wake < 0 ? ds_fail(ctx, DS_ERR_IO, "no eventfd") : door_prepare(ctx, o, &b.door);
    status = status < 0 ? status : replicas_open(ctx, &b);
    status = status < 0 ? status : serve(ctx, &b, &signals);
    b.stop = true; /* what ends now is no news */
    replicas_close(&b);
    door_close(&b.door);
    (void)close(b.wake);
    (void)pthread_mutex_destroy(&b.lock);
    return status;
}
