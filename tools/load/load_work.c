/* SPDX-License-Identifier: Apache-2.0 */
/* What is sent: lengths from distributions, arrivals of a Poisson process, prompts with shared
 * beginnings. Every number is a function of the seed and the request's number. See load.h.
 *
 * A distribution: "N", "uniform:LOW,HIGH", "normal:MEAN,SD", "lognormal:MEDIAN,SIGMA",
 * "exp:MEAN"; rounded, at least 1.
 */
#include "load/load.h"

#include "base/number.h"
#include "base/rng.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    BLOCK_IDS = 512,
    MOST_TOKENS = 1 << 22,
    FIRST_ID = 3 /* those below are special in most vocabularies */
};
/* Sites of random numbers. */
enum { SITE_ARRIVAL = 1, SITE_PROMPT, SITE_OUTPUT, SITE_OWN, SITE_SHARED, SITE_BLOCK, SITE_GROUP };

static const char *const words[] = {"time",  "house", "water", "light", "hand",  "world", "night",
                                    "river", "stone", "story", "green", "table", "paper", "sound",
                                    "horse", "point", "small", "large", "white", "early"};
enum { N_WORDS = sizeof words / sizeof words[0] };

/* In (0,1): never 0, so that its logarithm is finite. */
static double unit(uint64_t seed, uint32_t site, uint64_t element)
{
    return ((double)dsi_rng_u32(seed, site, 0, element) + 0.5) * 0x1p-32;
}

/* Splits "name:a,b" ("a" alone is the name ""). */
static bool split(const char *text, char name[16], double out[2], int *n_out)
{
    const char *colon = strchr(text, ':');
    const size_t n = colon != NULL ? (size_t)(colon - text) : 0;
    *n_out = 0;
    if (n >= 16) {
        return false;
    }
    memcpy(name, text, n);
    name[n] = '\0';
    const char *p = colon != NULL ? colon + 1 : text;
    while (*n_out < 2) {
        p = dsi_number_start(p, &out[*n_out]);
        if (p == NULL) {
            return false;
        }
        ++*n_out;
        if (*p != ',') {
            break;
        }
        ++p;
    }
    return *p == '\0';
}

/* One length; below 0: the text is no distribution. */
static double draw(const char *text, uint64_t seed, uint32_t site, uint64_t k)
{
    char name[16];
    double v[2] = {0, 0};
    int n = 0;
    if (!split(text, name, v, &n) || v[0] < 0 || v[1] < 0) {
        return -1;
    }
    if (name[0] == '\0' && n == 1) {
        return v[0];
    }
    if (strcmp(name, "uniform") == 0 && n == 2 && v[0] <= v[1]) {
        return floor(v[0] + unit(seed, site, k) * (v[1] - v[0] + 1.0));
    }
    if (strcmp(name, "normal") == 0 && n == 2) {
        return fmax(0, v[0] + v[1] * (double)dsi_rng_normal(seed, site, k));
    }
    if (strcmp(name, "lognormal") == 0 && n == 2) {
        return v[0] * exp(v[1] * (double)dsi_rng_normal(seed, site, k));
    }
    if (strcmp(name, "exp") == 0 && n == 1) {
        return -v[0] * log(unit(seed, site, k));
    }
    return -1;
}

static ds_status check_lengths(ds_ctx *ctx, const char *flag, const char *text)
{
    if (draw(text, 0, SITE_PROMPT, 0) < 0) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--%s: expected N, uniform:LOW,HIGH, normal:MEAN,SD, "
                       "lognormal:MEDIAN,SIGMA or exp:MEAN, found '%s'",
                       flag, text);
    }
    return DS_OK;
}

ds_status load_work_open(ds_ctx *ctx, const load_options *o, const load_target *target,
                         load_work *work)
{
    *work = (load_work){.o = o, .target = target};
    DS_TRY(check_lengths(ctx, "prompt_tokens", o->prompt_tokens));
    DS_TRY(check_lengths(ctx, "output_tokens", o->output_tokens));
    DS_TRY(o->trace != NULL ? load_trace_read(ctx, o->trace, work) : DS_OK);
    work->n = o->duration > 0 && !o->requests_given ? INT64_MAX : o->requests;
    if (o->trace != NULL && (!o->requests_given || (size_t)o->requests > work->n_trace)) {
        work->n = (int64_t)work->n_trace;
    }
    return DS_OK;
}

void load_work_close(load_work *work)
{
    free(work->trace);
    free(work->blocks);
    *work = (load_work){0};
}

static int64_t length_of(const char *text, uint64_t seed, uint32_t site, int64_t k)
{
    const double value = round(draw(text, seed, site, (uint64_t)k));
    return value < 1 ? 1 : value > MOST_TOKENS ? MOST_TOKENS : (int64_t)value;
}

void load_work_next(load_work *work, int64_t k, load_request *out)
{
    const load_options *o = work->o;
    const uint64_t seed = (uint64_t)o->seed;
    const int64_t most = work->target->max_length;
    if (work->trace != NULL) {
        *out = work->trace[k];
    } else {
        *out = (load_request){.prompt = length_of(o->prompt_tokens, seed, SITE_PROMPT, k) +
                                        o->shared_prefix,
                              .output = length_of(o->output_tokens, seed, SITE_OUTPUT, k)};
    }
    if (o->rate > 0) {
        work->due += k > 0 ? -log(unit(seed, SITE_ARRIVAL, (uint64_t)k)) / o->rate : 0.0;
        out->due = work->due;
    }
    if (most > 1 && out->output > most - 1) {
        out->output = most - 1;
    }
    if (most > 1 && out->prompt > most - out->output) {
        out->prompt = most - out->output;
    }
}

/* Where part i of a prompt comes from: the shared beginning, a trace's block, itself. */
static uint32_t word_at(const load_work *work, int64_t k, const load_request *r, int64_t i)
{
    const load_options *o = work->o;
    const uint64_t seed = (uint64_t)o->seed;
    if ((size_t)(i / BLOCK_IDS) < r->n_blocks) {
        const uint64_t block = r->blocks[i / BLOCK_IDS];
        return dsi_rng_u32(seed, SITE_BLOCK, 0, (block << 9) + (uint64_t)(i % BLOCK_IDS));
    }
    if (work->trace == NULL && i < o->shared_prefix) {
        const uint64_t group = dsi_rng_below(seed, SITE_GROUP, (uint64_t)k, (uint64_t)o->prefixes);
        return dsi_rng_u32(seed, SITE_SHARED, (uint32_t)group, (uint64_t)i);
    }
    return dsi_rng_u32(seed, SITE_OWN, (uint32_t)k, (uint64_t)i);
}

static void put_prompt(const load_work *work, int64_t k, const load_request *r, dsi_buf *body)
{
    const int64_t vocab = work->target->vocab;
    const uint64_t choices = vocab > 0 ? (uint64_t)(vocab - FIRST_ID) : N_WORDS;
    dsi_buf_puts(body, vocab > 0 ? "[" : "\"");
    for (int64_t i = 0; i < r->prompt; ++i) {
        const uint32_t at = (uint32_t)(((uint64_t)word_at(work, k, r, i) * choices) >> 32);
        if (vocab > 0) {
            dsi_buf_printf(body, "%s%u", i > 0 ? "," : "", at + FIRST_ID);
        } else {
            dsi_buf_printf(body, "%s%s", i > 0 ? " " : "", words[at]);
        }
    }
    dsi_buf_puts(body, vocab > 0 ? "]" : "\"");
}

void load_work_put(const load_work *work, int64_t k, const load_request *request, dsi_buf *body,
                   dsi_buf *text)
{
    const load_target *t = work->target;
    dsi_buf_clear(body);
    dsi_buf_puts(body, "{\"model\":\"");
    dsi_buf_json(body, t->model, strlen(t->model));
    dsi_buf_puts(body,
                 t->chat ? "\",\"messages\":[{\"role\":\"user\",\"content\":" : "\",\"prompt\":");
    put_prompt(work, k, request, body);
    dsi_buf_puts(body, t->chat ? "}]" : "");
    dsi_buf_printf(body,
                   ",\"max_tokens\":%lld,\"temperature\":0,\"stream\":true,"
                   "\"stream_options\":{\"include_usage\":true}%s}",
                   (long long)request->output, work->o->keep_eos ? "" : ",\"ignore_eos\":true");
    dsi_buf_printf(text,
                   "POST %s/v1/%s HTTP/1.1\r\nHost: %s:%s\r\nContent-Type: application/json\r\n"
                   "Content-Length: %zu\r\n",
                   t->path, t->chat ? "chat/completions" : "completions", t->host, t->port,
                   body->size);
    if (t->key[0] != '\0') {
        dsi_buf_printf(text, "Authorization: Bearer %s\r\n", t->key);
    }
    dsi_buf_puts(text, "\r\n");
    dsi_buf_append(text, dsi_buf_text(body), body->size);
    text->failed = text->failed || body->failed;
}
