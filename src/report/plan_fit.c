/* SPDX-License-Identifier: Apache-2.0 */
/* The search. See plan_fit.h. */
#include "report/plan_fit.h"

#include "config/config_values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_status add_tried(ds_ctx *ctx, dsi_fit *fit, const dsi_candidate *c)
{
    if (fit->n_tried >= DSI_FIT_CEILING) {
        return ds_fail(ctx, DS_ERR_LIMIT, "more than %d candidates", DSI_FIT_CEILING);
    }
    fit->tried[fit->n_tried] = *c;
    if (c->fits &&
        (fit->best == UINT32_MAX || dsi_candidate_by_cost(c, &fit->tried[fit->best]) < 0)) {
        fit->best = fit->n_tried;
    }
    if (fit->least == UINT32_MAX || c->need < fit->tried[fit->least].need) {
        fit->least = fit->n_tried;
    }
    fit->n_tried += 1;
    return DS_OK;
}

static void add_refusal(dsi_fit *fit, const dsi_candidate *c, const char *text)
{
    char cut[sizeof fit->refusals[0].text];
    (void)snprintf(cut, sizeof cut, "%s", text);
    for (uint32_t i = 0; i < fit->n_refusals; ++i) {
        if (strcmp(fit->refusals[i].text, cut) == 0) {
            fit->refusals[i].n += 1;
            return;
        }
    }
    if (fit->n_refusals == DSI_REFUSALS) {
        fit->n_unsaid += 1;
        return;
    }
    dsi_refusal *refusal = &fit->refusals[fit->n_refusals++];
    *refusal = (dsi_refusal){.status = c->refused, .first = *c, .n = 1};
    memcpy(refusal->text, cut, sizeof cut);
}

static ds_status try_one(ds_ctx *ctx, const dsi_report_request *request, dsi_fit *fit,
                         dsi_candidate *c)
{
    DS_TRY(dsi_candidate_plan(ctx, request, c));
    if (!c->planned) {
        add_refusal(fit, c, ds_ctx_error(ctx));
        return DS_OK;
    }
    return add_tried(ctx, fit, c);
}

typedef struct searcher {
    ds_ctx *ctx;
    const dsi_report_request *request;
    const dsi_fit_scope *scope;
    dsi_fit fit;
    int64_t sizes[DSI_LARGEST_BATCH]; /* micro-batches, largest first */
    uint32_t n_sizes;
    int64_t rows;    /* of a rank in a step, where they stay as they are */
    dsi_share share; /* ranks that have the same rows, which are so many times more */
    int64_t accumulation;
    uint32_t n_fit; /* candidates */
} searcher;

/* Stages wait less for more micro-batches. */
static bool has_stages(const searcher *s)
{
    const ds_config_values *v = dsi_config_values(s->request->config);
    return v->pipeline_stages > 1 || v->pipeline_open;
}

/* Of stages that nobody asked for: the largest micro-batches that are twice as many as stages,
 * since fewer wait longer; where there are none, the smallest. */
static bool is_of_few(const searcher *s, uint32_t i)
{
    enum { FEW = 3 };
    uint32_t before = 0;
    const int64_t rows = s->rows * dsi_share_ranks(s->share);
    for (uint32_t k = 0; k < i; ++k) {
        before += rows / s->sizes[k] >= 2 * (int64_t)s->share.pp ? 1 : 0;
    }
    return s->scope->free_batch
               ? s->accumulation >= 2 * (int64_t)s->share.pp
               : (before < FEW && rows / s->sizes[i] >= 2 * (int64_t)s->share.pp) ||
                     (before == 0 && i + 1 == s->n_sizes);
}

/* The largest micro-batch that fits beside what `with` sets, for smaller ones cost more; of a
 * pipeline all sizes. */
static ds_status search_batch(searcher *s, const dsi_candidate *with)
{
    const bool all = has_stages(s) || s->share.pp > 1;
    uint32_t low = 0;
    uint32_t high = s->n_sizes;
    while (low < high) {
        const uint32_t middle = all ? low : low + (high - low) / 2;
        const int64_t size = s->sizes[middle];
        const int64_t rows = s->rows * dsi_share_ranks(s->share);
        dsi_candidate c = *with;
        if (s->share.pp > 1 && !is_of_few(s, middle)) {
            low = middle + 1;
            continue;
        }
        if (!s->scope->fixed_batch || dsi_share_ranks(s->share) > 1) {
            dsi_candidate_set_batch(&c, size, s->scope->free_batch ? size * s->accumulation : rows);
        }
        DS_TRY(try_one(s->ctx, s->request, &s->fit, &c));
        s->n_fit += c.planned && c.fits ? 1 : 0;
        if (c.planned && c.fits && !all) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return DS_OK;
}

/* How much lives elsewhere, and where: what costs less first. */
typedef struct offload_level {
    ds_offload_device where;
    bool params;
} offload_level;

/* Ranks over which ZeRO shards. */
static uint32_t zero_ranks(const searcher *s)
{
    return dsi_config_values(s->request->config)->zero_ranks / s->share.tp / s->share.pp;
}

static bool is_possible(const searcher *s, const offload_level *level, int64_t stage)
{
    const int64_t least = level->params ? 3 : 1;
    if (level->where == DS_OFFLOAD_NONE) {
        return true;
    }
    return (level->where == DS_OFFLOAD_CPU ? dsi_has_own_memory(s->request->device)
                                           : s->scope->nvme_path != NULL) &&
           (zero_ranks(s) > 1 ? stage >= least : stage == least);
}

/* Beside shares the stage of the best so far is tried, or the one that needs least; beside stages,
 * which have fewer parameters, 1 as well. */
static bool is_left_out(const searcher *s, int64_t stage)
{
    const int64_t taken = s->fit.best != UINT32_MAX ? s->fit.tried[s->fit.best].stage : 3;
    return dsi_share_ranks(s->share) > 1 && stage != taken && (s->share.pp == 1 || stage != 1);
}

static ds_status search_level(searcher *s, const offload_level *level, int64_t elements)
{
    const int64_t given = dsi_config_values(s->request->config)->zero.stage;
    const bool stages = s->scope->stage && (zero_ranks(s) > 1 || level->where != DS_OFFLOAD_NONE);
    const uint32_t n_stages = stages ? 4 : 1;
    const uint32_t n_ways = s->scope->recompute ? 3 : 1;
    for (uint32_t i = 0; i < n_stages * n_ways; ++i) {
        const int64_t stage = n_stages > 1 ? i / n_ways : given;
        dsi_candidate c = {0};
        if (!is_possible(s, level, stage) || (stages && is_left_out(s, stage))) {
            continue;
        }
        dsi_candidate_set_share(&c, s->share);
        if (n_stages > 1) {
            dsi_candidate_set_stage(&c, stage);
        }
        if (n_ways > 1) {
            dsi_candidate_set_recompute(&c, (ds_recompute)(i % n_ways));
        }
        if (s->scope->free_batch) { /* derived again */
            dsi_candidate_set(&c, "train_batch_size", "");
        }
        if (level->where != DS_OFFLOAD_NONE) {
            static const ds_offload_device none[2] = {DS_OFFLOAD_NONE, DS_OFFLOAD_NONE};
            dsi_candidate_set_offload(&c, level->where, level->params, elements,
                                      dsi_buf_text(&s->fit.folder), none);
        }
        DS_TRY(search_batch(s, &c));
    }
    return DS_OK;
}

/* Whether less memory could make a run faster: it recomputes, or its micro-batch could grow. */
static bool memory_costs(const searcher *s)
{
    const dsi_candidate *best = s->fit.best == UINT32_MAX ? NULL : &s->fit.tried[s->fit.best];
    return best == NULL || (best->seconds > 0.0 && (best->recompute != DS_RECOMPUTE_NONE ||
                                                    best->micro_batch != s->sizes[0]));
}

/* Whether what ranks send each other could: some goes over the network. */
static bool network_costs(const searcher *s)
{
    return s->request->n_nodes > 1 && s->request->device != NULL;
}

/* Ranks that share layers, sequences or the model: more of them as long as that is found to help.
 */
static ds_status search_shares(searcher *s)
{
    const offload_level none = {DS_OFFLOAD_NONE, false};
    dsi_share shares[DSI_SHARES];
    const uint32_t n = s->scope->share ? dsi_shares(s->request, shares) : 0;
    uint32_t best = s->fit.best; /* before shares of so many ranks */
    for (uint32_t i = 0; i < n && (memory_costs(s) || network_costs(s)); ++i) {
        const uint32_t ranks = dsi_share_ranks(shares[i]);
        if (i > 0 && ranks > dsi_share_ranks(shares[i - 1])) {
            if (best != UINT32_MAX && best == s->fit.best) {
                break;
            }
            best = s->fit.best;
        }
        s->share = shares[i];
        if (!s->scope->free_batch && !s->scope->fixed_batch) {
            s->n_sizes = dsi_micro_batches(s->rows * ranks, s->sizes);
        }
        DS_TRY(search_level(s, &none, 0));
    }
    s->share = (dsi_share){1, 1, 1};
    if (!s->scope->free_batch && !s->scope->fixed_batch) {
        s->n_sizes = dsi_micro_batches(s->rows, s->sizes);
    }
    return DS_OK;
}

/* The best that fits of those that share layers, or the model; NULL: none. */
static const dsi_candidate *best_of(const searcher *s, bool stages)
{
    const dsi_candidate *best = NULL;
    for (uint32_t i = 0; i < s->fit.n_tried; ++i) {
        const dsi_candidate *c = &s->fit.tried[i];
        if (c->fits && (stages ? c->pp > 1 : c->tp > 1) &&
            (best == NULL || dsi_candidate_by_cost(c, best) < 0)) {
            best = c;
        }
    }
    return best;
}

static ds_status try_with(searcher *s, const dsi_candidate *base, const char *key,
                          const char *value)
{
    dsi_candidate c = *base;
    c.planned = c.fits = false;
    c.sent = 0.0;
    dsi_candidate_set(&c, key, value);
    return try_one(s->ctx, s->request, &s->fit, &c);
}

/* What is worth trying of the best alone: the order of its stages; halves of its micro-batches,
 * which hide what ranks of one layer send each other. */
static ds_status refine(searcher *s)
{
    const ds_config *config = s->request->config;
    const dsi_candidate *stages = dsi_is_silent_on_stages(config) ? best_of(s, true) : NULL;
    if (s->scope->share && stages != NULL) {
        DS_TRY(try_with(s, stages, "pipeline.schedule", "\"auto\""));
    }
    const dsi_candidate *halves = dsi_is_silent_on_domino(config) ? best_of(s, false) : NULL;
    if (s->scope->share && halves != NULL && halves->seconds > 0.0 && halves->micro_batch > 1) {
        DS_TRY(try_with(s, halves, "tensor_parallel.domino", "true"));
    }
    return DS_OK;
}

static ds_status search(searcher *s)
{
    static const offload_level levels[] = {{DS_OFFLOAD_NONE, false},
                                           {DS_OFFLOAD_CPU, false},
                                           {DS_OFFLOAD_CPU, true},
                                           {DS_OFFLOAD_NVME, false},
                                           {DS_OFFLOAD_NVME, true}};
    const ds_config_zero *zero = &dsi_config_values(s->request->config)->zero;
    const bool given = zero->offload_optimizer.device != DS_OFFLOAD_NONE ||
                       zero->offload_param.device != DS_OFFLOAD_NONE;
    const size_t n = s->scope->offload && !given ? sizeof levels / sizeof levels[0] : 1;
    for (size_t i = 0; i < n && (i == 0 || memory_costs(s)); ++i) {
        const uint32_t before = s->n_fit;
        for (int e = 0; e < (i == 0 ? 1 : DSI_N_IN_HAND) && s->n_fit == before; ++e) {
            DS_TRY(search_level(s, &levels[i], dsi_in_hand[e]));
        }
        if (i == 0) {
            DS_TRY(search_shares(s));
        }
    }
    return refine(s);
}

ds_status dsi_fit_search(ds_ctx *ctx, const dsi_report_request *request, const dsi_fit_scope *scope,
                         dsi_fit *fit_out)
{
    const ds_config_batch *batch = &dsi_config_values(request->config)->batch;
    searcher s = {.ctx = ctx,
                  .request = request,
                  .scope = scope,
                  .share = {1, 1, 1},
                  .fit = {.best = UINT32_MAX,
                          .least = UINT32_MAX,
                          .folder = dsi_buf_make(8 * DS_CONFIG_TEXT_BYTES)},
                  .accumulation = batch->gradient_accumulation_steps};
    s.rows = batch->train_micro_batch_size_per_gpu * batch->gradient_accumulation_steps;
    for (int64_t size = 256; size >= 1 && scope->free_batch; size /= 2) {
        s.sizes[s.n_sizes++] = size;
    }
    if (scope->fixed_batch) {
        s.sizes[0] = batch->train_micro_batch_size_per_gpu;
        s.n_sizes = 1;
    } else if (!scope->free_batch) {
        s.n_sizes = dsi_micro_batches(s.rows, s.sizes);
    }
    s.fit.tried = calloc(DSI_FIT_CEILING, sizeof *s.fit.tried);
    if (scope->nvme_path != NULL) {
        dsi_buf_putc(&s.fit.folder, '"');
        dsi_buf_json(&s.fit.folder, scope->nvme_path, strlen(scope->nvme_path));
        dsi_buf_putc(&s.fit.folder, '"');
    }
    if (s.fit.tried == NULL || s.fit.folder.failed) {
        dsi_fit_free(&s.fit);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to search a configuration");
    }
    const ds_status status = search(&s);
    if (status < 0) {
        dsi_fit_free(&s.fit);
        return status;
    }
    *fit_out = s.fit;
    return DS_OK;
}

void dsi_fit_free(dsi_fit *fit)
{
    free(fit->tried);
    fit->tried = NULL;
    dsi_buf_free(&fit->folder);
}
