/* SPDX-License-Identifier: Apache-2.0 */
/* Other weights without an end: SIGHUP, POST /v1/reload. See front.h.
 *
 * A thread loads them beside what is served, in a context of its own; then the engine's thread
 * takes them between two steps. New requests run on them, those that run end on the old ones, whose
 * server is dropped after the last. The new server has blocks of its own, so no key of old weights
 * is found again. Where anything fails the old one stays in force. Over ranks that share the layers
 * the engine's thread loads them itself, so that all ranks do (ranks.c).
 *
 * Invariant: what the HTTP thread has read (tokenizer, template, lengths, adapters' ids) holds for
 * every server; what would change it is refused.
 */
#include "front.h"

#include "base/clock.h"

#include <stdlib.h>
#include <string.h>

enum { PATH_BYTES = 4096, FILE_CEILING = 256 << 20 };

static uint64_t mix(uint64_t hash, uint64_t value)
{
    return (hash ^ value) * 0x100000001b3u;
}

uint64_t reload_stops(const ds_tokenizer *tokenizer)
{
    uint64_t hash = mix(0xcbf29ce484222325u, (uint64_t)ds_tokenizer_bos_id(tokenizer));
    for (uint32_t id = 0; id < ds_tokenizer_vocab_size(tokenizer); ++id) {
        hash = ds_tokenizer_is_eos(tokenizer, id) ? mix(hash, id) : hash;
    }
    return hash;
}

uint64_t reload_digest(const char *folder)
{
    static const char *const files[] = {
        "tokenizer.json",          "tokenizer_config.json", "vocab.json", "merges.txt",
        "tokenizer.model",         "spiece.model",          "vocab.txt",  "added_tokens.json",
        "special_tokens_map.json", "chat_template.jinja"};
    uint64_t hash = 0xcbf29ce484222325u; /* FNV-1a */
    for (size_t i = 0; i < sizeof files / sizeof files[0]; ++i) {
        char path[PATH_BYTES];
        dsi_buf text = dsi_buf_make(FILE_CEILING);
        (void)snprintf(path, sizeof path, "%s/%s", folder, files[i]);
        const bool there = dsi_buf_read_file(NULL, path, &text) >= 0;
        for (size_t k = 0; there && k < text.size; ++k) {
            hash = mix(hash, (unsigned char)text.data[k]);
        }
        hash = mix(hash, there ? 1 : 0);
        dsi_buf_free(&text);
    }
    return hash;
}

/* Who asked is told; was: what was served before. With the lock. */
static void answer(front *f, const char *error, const char *was, double seconds)
{
    job *j = f->asked;
    ds_log(f->http_ctx, DS_LOG_WARN, error == NULL ? "%s is loaded anew" : "%s is not loaded: %s",
           f->asked_path, error);
    f->n_reloads += error == NULL;
    f->n_failed_reloads += error != NULL;
    if (j != NULL && error != NULL) {
        job_fail(j, MHD_HTTP_BAD_REQUEST, "invalid_request_error", error);
    } else if (j != NULL) {
        j->done = true;
        j->status = MHD_HTTP_OK;
        dsi_buf_puts(&j->out, "{\"status\":\"ok\",\"model\":");
        put_clean(&j->out, f->asked_path, strlen(f->asked_path));
        dsi_buf_puts(&j->out, ",\"was\":");
        put_clean(&j->out, was, strlen(was));
        dsi_buf_printf(&j->out, ",\"seconds\":%.3f}\n", seconds);
    }
    if (j != NULL) {
        if (j->suspended) {
            j->suspended = false;
            MHD_resume_connection(j->connection);
        }
        job_release(j);
    }
    f->asked = NULL;
    f->loading = false;
}

const char *reload_differs(const front *f, const served *s)
{
    return (s->server == NULL) != (f->server == NULL)
               ? "one of them is an encoder; start another server for it"
           : s->pairs != f->pairs
               ? "one of them makes texts of sources, the other one goes on with prompts; start "
                 "another server for it"
           : s->tokenizer != f->tokenizer_digest
               ? "its tokenizer or chat template is another one than that in force; start another "
                 "server for it"
           : s->stops != f->stops_digest
               ? "other ids begin or end its texts (generation_config.json, config.json); start "
                 "another server for it"
           : s->vocab_size != f->vocab_size
               ? "it has another number of ids; start another server for it"
           : s->width != f->width ? "its vectors have another width; start another server for it"
           : s->max_length != f->max_length
               ? "its texts would be of another length than those in force; give --max_length"
               : NULL;
}

static void *load(void *opaque)
{
    front *f = opaque;
    const ds_ctx_params params = {.level = DS_LOG_WARN, .n_threads = (uint32_t)f->options->threads};
    ds_ctx *ctx = NULL;
    served *s = NULL;
    char error[512] = "no memory";
    ds_status status = ds_ctx_create(&params, &ctx);
    if (status >= 0) {
        status = f->load(ctx, f->asked_path, f, &s);
        (void)snprintf(error, sizeof error, "%s", ds_ctx_error(ctx));
    }
    const char *other = status >= 0 ? reload_differs(f, s) : NULL;
    if (other != NULL) {
        (void)snprintf(error, sizeof error, "%.300s: %s", f->asked_path, other);
        s->destroy(s);
    } else if (status < 0) {
        ds_ctx_destroy(&ctx);
    }
    (void)pthread_mutex_lock(&f->lock);
    if (status < 0 || other != NULL) {
        answer(f, error, NULL, 0);
    } else {
        f->fresh = s;
        (void)pthread_cond_signal(&f->wake);
    }
    (void)pthread_mutex_unlock(&f->lock);
    return NULL;
}

bool reload_begin(front *f, const char *path, job *j, api_error *e)
{
    sigset_t all;
    sigset_t before;
    (void)pthread_mutex_lock(&f->lock);
    const bool over = f->door.draining || f->stop;
    const bool busy = f->loading;
    f->loading = busy || !over;
    (void)pthread_mutex_unlock(&f->lock);
    if (over) {
        return api_fail(e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "", "the server ends");
    }
    if (busy) {
        return api_fail(e, MHD_HTTP_CONFLICT, "reload_runs", "", "a reload is under way");
    }
    if (f->loader_made) {
        (void)pthread_join(f->loader, NULL); /* of the last one, which has ended */
        f->loader_made = false;
    }
    char *copy = strdup(path != NULL ? path : f->path);
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &before); /* signals are the main thread's */
    (void)pthread_mutex_lock(&f->lock);
    free(f->asked_path);
    f->asked_path = copy;
    f->asked = j;
    f->asked_at = dsi_clock_seconds();
    const bool late = f->stop;      /* meanwhile: reload_close may be over */
    if (!late && f->comm != NULL) { /* the ranks' communicator is the engine's thread's */
        f->loads_here = copy != NULL;
        (void)pthread_cond_signal(&f->wake);
    } else if (!late) {
        f->loader_made = copy != NULL && pthread_create(&f->loader, NULL, load, f) == 0;
    }
    const bool begun = f->loader_made || f->loads_here;
    f->loading = begun;
    if (begun && j != NULL) {
        j->holders = 2;
        j->suspended = true;
        MHD_suspend_connection(j->connection);
    }
    (void)pthread_mutex_unlock(&f->lock);
    (void)pthread_sigmask(SIG_SETMASK, &before, NULL);
    return begun || api_fail(e, MHD_HTTP_SERVICE_UNAVAILABLE, NULL, "",
                             late ? "the server ends" : "no memory for a thread");
}

static bool is_idle(const served *s)
{
    ds_serve_stats stats;
    ds_serve_get_stats(s->server, &stats);
    return stats.n_running == 0 && stats.n_waiting == 0;
}

static bool is_asked(const front *f, const served *s)
{
    for (const job *j = f->running; j != NULL; j = j->next) {
        if (j->server == s->server) {
            return true;
        }
    }
    return false;
}

/* Those that have no request any more. */
static void drop_ended(front *f)
{
    for (served **at = &f->ending; *at != NULL;) {
        served *s = *at;
        if (is_idle(s) && !is_asked(f, s)) {
            *at = s->next;
            ranks_drop(f, s);
        } else {
            at = &s->next;
        }
    }
}

/* Whether an encoder has made some of the vectors of a request, whose others must be its own, too.
 */
static bool is_half_encoded(const front *f)
{
    for (const job *j = f->running; j != NULL && f->server == NULL; j = j->next) {
        for (size_t i = 0; i < j->n_choices; ++i) {
            if (!j->done && !j->gone && j->choices[i].finish != NULL) {
                return true;
            }
        }
    }
    return false;
}

/* On all ranks, while none runs a step. */
static void load_here(front *f)
{
    if (f->loads_here && ranks_reload(f, &f->fresh) < 0) {
        answer(f, ds_ctx_error(f->ctx), NULL, 0);
    }
    f->loads_here = false;
}

/* Its slots have the adapters of those in force. Their folders are read without the lock: slots are
 * the engine's thread's, and no other reload begins meanwhile. */
static ds_status fill_slots(front *f, served *s)
{
    if (f->server == NULL || f->n_slots == 0) {
        return DS_OK;
    }
    f->idle = true; /* it takes its time */
    (void)pthread_mutex_unlock(&f->lock);
    ds_status status = ranks_turn_to(f, s);
    status = status < 0 ? status : lora_slots_load(f, s);
    (void)pthread_mutex_lock(&f->lock);
    f->beat += 1;
    f->idle = false;
    return status;
}

void reload_take(front *f)
{
    load_here(f);
    served *s = f->fresh;
    if (s != NULL && !is_half_encoded(f)) {
        f->fresh = NULL;
        if (fill_slots(f, s) < 0) {
            answer(f, ds_ctx_error(s->ctx), NULL, 0);
            ranks_drop(f, s);
        } else {
            served *old = f->in_force;
            f->in_force = s;
            f->server = s->server;
            f->encoder = s->encoder;
            f->sentence = s->sentence;
            f->ctx = s->ctx;
            f->broken = false;
            char *was = f->path;
            f->path = strdup(f->asked_path);
            if (old->server == NULL) {
                old->destroy(old);
            } else {
                old->next = f->ending;
                f->ending = old;
            }
            answer(f, NULL, was, dsi_clock_seconds() - f->asked_at);
            free(was);
        }
    }
    drop_ended(f);
}

void reload_close(front *f)
{
    if (f->loader_made) {
        (void)pthread_join(f->loader, NULL);
    }
    (void)pthread_mutex_lock(&f->lock);
    if (f->fresh != NULL || f->loads_here) {
        answer(f, "the server ends", NULL, 0);
    }
    if (f->fresh != NULL) {
        f->fresh->destroy(f->fresh);
        f->fresh = NULL;
    }
    while (f->ending != NULL) {
        served *s = f->ending;
        f->ending = s->next;
        ranks_drop(f, s);
    }
    (void)pthread_mutex_unlock(&f->lock);
}
