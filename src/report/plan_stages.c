/* SPDX-License-Identifier: Apache-2.0 */
/* Stages for the planner. See plan_stages.h. */
#include "report/plan_stages.h"

#include "config/config_values.h"
#include "report/plan_choice.h"

#include <stdio.h>
#include <string.h>

/* ---- the time of a step ---------------------------------------------------------------------- */

/* Of a phase run once. */
static double phase_time(const dsi_plan_report *r, ds_phase phase)
{
    const dsi_plan *plan = r->plan.train_plan;
    double operations = 0.0;
    if (r->timeline != NULL) {
        return r->timeline->phases[phase].seconds;
    }
    for (uint32_t s = plan->phase_begin[phase]; s < plan->phase_begin[phase + 1]; ++s) {
        operations += plan->steps[s].cost.flops;
    }
    return operations;
}

/* Whether some rank of a stage has its peer of the next one on another node. */
static bool goes_far(const dsi_plan_report *r, uint32_t from, uint32_t to)
{
    const uint32_t n_nodes = r->request.n_nodes > 0 ? r->request.n_nodes : 1;
    const uint32_t local = (r->request.n_ranks + n_nodes - 1) / n_nodes;
    const uint32_t n = r->request.n_ranks / r->spec.zero.mesh.size[DSI_AXIS_PP];
    bool far = false;
    for (uint32_t i = 0; i < n; ++i) {
        far = far || (from * n + i) / local != (to * n + i) / local;
    }
    return far;
}

/* Of what a stage sends to the one beside it. What goes further is on its way while those between
 * compute. */
static void add_ways(dsi_stage_clock *clock, const dsi_plan_report *r, const dsi_schedule *s,
                     const dsi_stage_parts *parts)
{
    const dsi_stage_messages *messages = &r->plan.train_messages;
    const uint32_t n_micro = dsi_parts_phases(parts);
    memset(clock->ways, 0, sizeof clock->ways);
    for (uint32_t i = 0; i < messages->n && r->timeline != NULL; ++i) {
        const dsi_stage_message *m = &messages->items[i];
        if (m->phase >= n_micro) {
            continue;
        }
        const uint32_t from =
            dsi_part_stage(parts, s->n_ranks, m->source, dsi_part_chunk(parts, m->phase));
        const uint32_t to =
            dsi_part_stage(parts, s->n_ranks, m->target, dsi_part_chunk(parts, m->first));
        const double bytes = (double)ds_meta_bytes(ds_cells_get(r->plan.local, m->cell)->meta);
        const double seconds =
            dsi_time_message(&r->device, goes_far(r, m->source, m->target), bytes);
        if (to == from + 1) {
            clock->ways[from].down += seconds;
        } else if (from == to + 1) {
            clock->ways[to].back += seconds;
        }
    }
}

/* Ranks of a stage follow one another, and so do those of a host. */
static dsi_stage_cores stage_cores(const dsi_plan_report *r, uint32_t n_stages)
{
    const dsi_cores *cores = &r->device.cores;
    const uint32_t n = r->request.n_ranks / n_stages;
    const bool known = r->timeline != NULL && cores->n > 0;
    return (dsi_stage_cores){
        .cores = *cores, .together = known && n > 0 ? cores->ranks / n : 0, .n_ranks = n};
}

void dsi_stage_clock_add(dsi_stage_clock *clock, const dsi_plan_report *r)
{
    const dsi_schedule s = dsi_rank_schedule(&r->spec);
    const dsi_stage_parts parts = dsi_schedule_parts(&s);
    const dsi_phases *phases = &r->plan.train_plan->phases;
    double rest = 0.0;
    add_ways(clock, r, &s, &parts);
    for (uint32_t c = 0; c < s.n_chunks; ++c) {
        const uint32_t stage = dsi_part_stage(&parts, s.n_ranks, r->request.stage, c);
        const ds_phase back = dsi_part_backward(&parts, c);
        clock->known[stage] = true;
        clock->stages[stage] = (dsi_schedule_times){
            .forward = phase_time(r, dsi_part_forward(&parts, c)),
            .backward = phase_time(r, back),
            .weights = parts.split ? phase_time(r, dsi_part_end(&parts, c)) : 0.0};
    }
    for (ds_phase p = dsi_phases_micro(phases); p < phases->n && r->timeline != NULL; ++p) {
        rest += dsi_timeline_repeats(r->timeline, p) * r->timeline->phases[p].seconds;
    }
    clock->rest = rest > clock->rest ? rest : clock->rest;
    clock->shared = stage_cores(r, s.n_ranks);
}

ds_status dsi_stage_clock_step(ds_ctx *ctx, const dsi_stage_clock *clock, const dsi_schedule *s,
                               double *step_out)
{
    const dsi_stage_parts parts = dsi_schedule_parts(s);
    dsi_stage_clock all = *clock;
    double micro = 0.0;
    for (uint32_t stage = 0; stage < s->n_ranks * s->n_chunks; ++stage) {
        const uint32_t chunk = stage / s->n_ranks;
        const uint32_t second = dsi_part_stage(&parts, s->n_ranks, s->n_ranks > 1, chunk);
        const uint32_t first = dsi_part_stage(&parts, s->n_ranks, 0, chunk);
        if (!clock->known[stage]) {
            all.stages[stage] = clock->stages[clock->known[second] ? second : first];
        }
    }
    const dsi_stage_times times = {all.stages, all.ways, clock->shared};
    DS_TRY(dsi_schedule_seconds(ctx, s, &times, &micro));
    *step_out = micro + clock->rest;
    return DS_OK;
}

/* ---- the choice ------------------------------------------------------------------------------ */

static const char stages_key[] = "pipeline.stages";
static const char schedule_key[] = "pipeline.schedule";
static const char chunks_key[] = "pipeline.chunks";

static bool says_auto(const ds_config *config, const char *key)
{
    const ds_config_item *item = ds_config_find(config, key);
    return item != NULL && item->origin != DS_ORIGIN_DEFAULT &&
           strcmp(item->value, "\"auto\"") == 0;
}

bool dsi_stages_are_open(const ds_config *config)
{
    return dsi_config_values(config)->pipeline_open;
}

/* A way to run the pipeline. */
typedef struct way {
    uint32_t stages;
    dsi_schedule_kind kind;
    uint32_t chunks; /* 0: as the configuration says */
    bool planned, fits;
    size_t need;
    double step, cost; /* seconds or operations: of a step, of a row of it */
} way;

typedef struct chooser {
    ds_ctx *ctx;
    const dsi_report_request *request;
    bool open_stages, open_schedule, open_chunks;
    way best, least, next; /* next: the second of those that fit */
    way one;               /* without stages */
    uint32_t n_planned, n_fit;
    bool timed;
    char refused[512]; /* why the last that was refused was */
} chooser;

static ds_status config_of(const chooser *c, const way *w, ds_config **config_out)
{
    char stages[16];
    char schedule[32];
    char chunks[16];
    dsi_setting settings[3];
    uint32_t n = 0;
    (void)snprintf(stages, sizeof stages, "%u", w->stages);
    (void)snprintf(schedule, sizeof schedule, "\"%s\"", dsi_schedule_name(w->kind));
    (void)snprintf(chunks, sizeof chunks, "%u", w->chunks);
    if (c->open_stages) {
        settings[n++] = (dsi_setting){stages_key, stages};
    }
    if (c->open_schedule) {
        settings[n++] = (dsi_setting){schedule_key, schedule};
    }
    if (c->open_chunks && w->chunks > 0) {
        settings[n++] = (dsi_setting){chunks_key, chunks};
    }
    return dsi_config_with(c->ctx, c->request->config, settings, n, c->request->n_ranks,
                           ds_model_get_info(c->request->model)->hidden_size, config_out);
}

static bool is_better(const way *a, const way *b)
{
    return !b->planned || a->cost < b->cost * (1.0 - 1e-6);
}

static void keep(chooser *c, const way *w)
{
    c->n_planned += 1;
    c->n_fit += w->fits ? 1 : 0;
    if (w->stages == 1) {
        c->one = *w;
    }
    if (w->fits && is_better(w, &c->best)) {
        c->next = c->best;
        c->best = *w;
    } else if (w->fits && is_better(w, &c->next)) {
        c->next = *w;
    }
    if (!c->least.planned || w->need < c->least.need) {
        c->least = *w;
    }
}

/* A way that the configuration's rules or the planner refuse is left out. */
static ds_status try_way(chooser *c, way w)
{
    ds_config *config = NULL;
    dsi_plan_report report;
    dsi_report_request request = *c->request;
    ds_status status = config_of(c, &w, &config);
    if (status >= 0) {
        request.config = config;
        request.stage = DSI_STAGE_LARGEST;
        status = dsi_report_make(c->ctx, &request, &report);
    }
    if (status >= 0) {
        const ds_config_batch *batch = &dsi_config_values(config)->batch;
        w.planned = true;
        w.fits = !dsi_report_lacks(&report, NULL);
        w.need = dsi_report_need(&report);
        w.step = report.step_time;
        w.cost = w.step / (double)batch->train_batch_size;
        c->timed = report.timeline != NULL;
        keep(c, &w);
        dsi_report_free(&report);
    } else {
        (void)snprintf(c->refused, sizeof c->refused, "%s", ds_ctx_error(c->ctx));
    }
    ds_config_destroy(&config);
    return status == DS_ERR_NOMEM ? status : DS_OK;
}

/* The schedules of so many stages. */
static ds_status try_stages(chooser *c, uint32_t stages)
{
    static const dsi_schedule_kind kinds[] = {DSI_SCHEDULE_1F1B, DSI_SCHEDULE_ZB_H1,
                                              DSI_SCHEDULE_ZB_V, DSI_SCHEDULE_INTERLEAVED};
    const bool any = c->open_schedule && stages > 1;
    const uint32_t n = any ? (uint32_t)(sizeof kinds / sizeof kinds[0]) : 1;
    const int given = dsi_config_values(c->request->config)->pipeline_schedule;
    for (uint32_t i = 0; i < n; ++i) {
        const dsi_schedule_kind kind = any                ? kinds[i]
                                       : c->open_schedule ? DSI_SCHEDULE_1F1B
                                                          : (dsi_schedule_kind)given;
        const bool free = kind == DSI_SCHEDULE_INTERLEAVED && c->open_chunks && stages > 1;
        const uint32_t most = free ? DSI_STAGES_MOST / stages : 0;
        for (uint32_t v = free ? 2 : 0; v <= most; ++v) {
            DS_TRY(try_way(c, (way){.stages = stages, .kind = kind, .chunks = v}));
        }
    }
    return DS_OK;
}

static void name_way(const chooser *c, const way *w, dsi_buf *text)
{
    if (w->stages == 1) {
        dsi_buf_puts(text, "1 stage");
    } else {
        dsi_buf_printf(text, "%u stages, %s", w->stages, dsi_schedule_name(w->kind));
    }
    if (w->chunks > 0) {
        dsi_buf_printf(text, " of %u chunks", w->chunks);
    }
    if (c->timed) {
        dsi_buf_printf(text, " (%.4g s a step, %.2f GiB)", w->step, (double)w->need / 1073741824.0);
    } else {
        dsi_buf_printf(text, " (%.4g TFLOP long, %.2f GiB)", w->step / 1e12,
                       (double)w->need / 1073741824.0);
    }
}

static void explain(const chooser *c, const way *taken, dsi_buf *text)
{
    dsi_buf_puts(text, "pipeline \"auto\": ");
    name_way(c, taken, text);
    if (c->n_fit == 0) {
        dsi_buf_printf(text, ": none of %u that were planned fits, it needs least", c->n_planned);
        return;
    }
    dsi_buf_printf(text, ", the fastest of %u that fit of %u that were planned", c->n_fit,
                   c->n_planned);
    if (c->next.planned) {
        dsi_buf_puts(text, "; next: ");
        name_way(c, &c->next, text);
    }
    if (c->one.planned && !c->one.fits) {
        dsi_buf_puts(text, "; does not fit: ");
        name_way(c, &c->one, text);
    }
}

ds_status dsi_stages_choose(ds_ctx *ctx, const dsi_report_request *request, ds_config **config_out,
                            dsi_buf *why)
{
    chooser c = {.ctx = ctx,
                 .request = request,
                 .open_stages = says_auto(request->config, stages_key),
                 .open_schedule = says_auto(request->config, schedule_key)};
    const ds_config_item *chunks = ds_config_find(request->config, chunks_key);
    c.open_chunks = chunks == NULL || chunks->origin == DS_ORIGIN_DEFAULT ||
                    says_auto(request->config, chunks_key);
    const uint32_t given = dsi_config_values(request->config)->pipeline_stages;
    for (uint32_t n = 1; n <= DSI_STAGES_MOST && n <= request->n_ranks; ++n) {
        if (c.open_stages ? request->n_ranks % n == 0 : n == given) {
            DS_TRY(try_stages(&c, n));
        }
    }
    const way *taken = c.best.planned ? &c.best : &c.least;
    if (!taken->planned) {
        return ds_fail(ctx, DS_ERR_CONFIG, "pipeline \"auto\": no choice can be planned: %s",
                       c.refused);
    }
    DS_TRY(config_of(&c, taken, config_out));
    explain(&c, taken, why);
    return DS_OK;
}
