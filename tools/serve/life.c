/* SPDX-License-Identifier: Apache-2.0 */
/* The life of a server of a model: its ranks meet, what is served is opened, threads run until a
 * signal. See front.h. */
#include "open.h"

#include "base/build_id.h"
#include "comm/comm.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

static bool is_idle(front *f)
{
    (void)pthread_mutex_lock(&f->lock);
    const bool idle = f->n_jobs == 0;
    (void)pthread_mutex_unlock(&f->lock);
    return idle;
}

/* Until a signal; then until nothing runs, a second signal or the time is over. */
static void wait_for_end(ds_ctx *ctx, front *f, const sigset_t *signals)
{
    const struct timespec tenth = {0, 100000000};
    for (int number = 0; number <= 0 || number == SIGHUP;) {
        api_error e;
        number = sigtimedwait(signals, NULL, &tenth);
        watch_tick(f);
        if (number == SIGHUP && !reload_begin(f, NULL, NULL, &e)) {
            ds_log(ctx, DS_LOG_WARN, "SIGHUP: %s", e.message);
        }
    }
    (void)pthread_mutex_lock(&f->lock);
    f->door.draining = true;
    if (!f->broken) {
        ds_log(ctx, DS_LOG_JOB, "no new texts; those that run end");
    }
    (void)pthread_mutex_unlock(&f->lock);
    for (int64_t i = 0; i < 10 * f->options->drain_seconds && !is_idle(f); ++i) {
        const int second = sigtimedwait(signals, NULL, &tenth);
        watch_tick(f);
        if (second >= 0 && second != SIGHUP) {
            break;
        }
    }
}

static ds_status serve(ds_ctx *ctx, front *f)
{
    pthread_t engine;
    sigset_t signals;
    listen_hold_signals(&signals);
    (void)signal(SIGPIPE, SIG_IGN);
    listen_raise_descriptors(f->options->max_connections);
    if (pthread_create(&engine, NULL, engine_run, f) != 0) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no thread for the engine");
    }
    (void)pthread_setname_np(engine, "engine");
    const ds_status status = http_start(ctx, f);
    if (status >= 0) {
        (void)printf("serving %s on %s://%s:%u\n", f->name,
                     f->door.tls_cert != NULL ? "https" : "http", f->options->host,
                     listen_port(&f->door));
        (void)fflush(stdout);
        wait_for_end(ctx, f, &signals);
    }
    (void)pthread_mutex_lock(&f->lock);
    f->door.draining = f->stop = true;
    (void)pthread_cond_signal(&f->wake);
    (void)pthread_cond_signal(&f->answered);
    (void)pthread_mutex_unlock(&f->lock);
    watch_join(f, engine);
    reload_close(f);
    const bool lost = f->broken && f->comm != NULL;
    if (f->door.daemon != NULL) {
        listen_end(&f->door);
    }
    return status < 0 || !lost ? status : DS_ERR_PEER; /* the step's message is the context's */
}

/* Who the ranks are. What is signalled means rank 0, which lets the others go. */
static ds_status meet(ds_ctx *ctx, front *f)
{
    DS_TRY(ds_comm_open(ctx, &f->comm));
    if (ds_comm_size(f->comm) == 1) {
        ds_comm_close(&f->comm);
        return DS_OK;
    }
    front_rank own = {.process = (int64_t)getpid()};
    (void)gethostname(own.host, sizeof own.host - 1);
    f->n_ranks = ds_comm_size(f->comm);
    f->ranks = calloc(f->n_ranks, sizeof *f->ranks);
    if (f->ranks == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for ranks");
    }
    if (ds_comm_rank(f->comm) > 0) {
        (void)signal(SIGTERM, SIG_IGN);
        (void)signal(SIGINT, SIG_IGN);
        (void)signal(SIGHUP, SIG_IGN); /* rank 0 reloads, the others with it */
    }
    return dsi_comm_gather(f->comm, &own, f->ranks, sizeof own, "who serves");
}

static ds_status run(ds_ctx *ctx, serve_options *o, front *f)
{
    parts p = {0};
    char id[64];
    f->options = o;
    f->ctx = ctx;
    f->queued_end = &f->queued;
    f->created = (int64_t)time(NULL);
    dsi_build_id(id, sizeof id);
    (void)snprintf(f->fingerprint, sizeof f->fingerprint, "ds_%.12s", id);
    if (getrandom(&f->secret, sizeof f->secret, 0) != (ssize_t)sizeof f->secret) {
        f->secret = (uint64_t)f->created;
    }
    (void)pthread_mutex_init(&f->lock, NULL);
    (void)pthread_cond_init(&f->wake, NULL);
    (void)pthread_cond_init(&f->answered, NULL);
    const ds_ctx_params one = {.level = DS_LOG_WARN, .n_threads = 1};
    ds_status status = ds_ctx_create(&one, &f->http_ctx);
    status = status < 0 ? status : meet(ctx, f);
    status = status < 0 ? status : door_prepare(ctx, o, &f->door);
    status = status < 0 ? status : open_model(ctx, o, f, &p);
    if (status >= 0 && ds_comm_rank(f->comm) == 0) {
        status = open_tokenizer(o, f, &p);
        status = status < 0 ? ds_fail(ctx, status, "%s", ds_ctx_error(f->http_ctx)) : status;
    }
    if (status >= 0 && f->tokenizer != NULL && o->tokenizer == NULL) {
        f->tokenizer_digest = reload_digest(o->model);
        f->stops_digest = reload_stops(f->tokenizer);
    }
    status = status < 0 ? status : open_server(ctx, o, f, &p);
    unpacked_remove(&p.unpacked);
    status = status < 0 ? status : renew_first(ctx, f, &p);
    if (status >= 0) {
        status = ds_comm_rank(f->comm) > 0 ? ranks_follow(f) : serve(ctx, f);
    }
    if (status < 0) {
        ds_comm_abort(f->comm, ds_ctx_error(ctx));
    }
    ranks_close(f);
    if (f->in_force != NULL) {
        f->in_force->destroy(f->in_force);
    } else {
        ds_serve_destroy(&f->server);
        ds_encoder_destroy(&f->encoder);
    }
    free(f->path);
    free(f->asked_path);
    parts_close(&p);
    door_close(&f->door);
    ds_comm_close(&f->comm);
    free(f->ranks);
    free(f->stop_ids);
    lora_close(f);
    dsi_vocabulary_destroy(&f->words);
    ds_ctx_destroy(&f->http_ctx);
    return status;
}

ds_status front_run(ds_ctx *ctx, serve_options *o)
{
    front f = {0};
    return run(ctx, o, &f);
}
