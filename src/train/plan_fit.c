/* The search. See plan_fit.h. */
#include "train/plan_fit.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LARGEST_BATCH = 4096 };

static const char *const recompute_names[] = {[DS_RECOMPUTE_NONE] = "\"none\"",
                                              [DS_RECOMPUTE_SELECTIVE] = "\"selective\"",
                                              [DS_RECOMPUTE_FULL] = "\"full\"",
                                              [DS_RECOMPUTE_AUTO] = "\"auto\""};

const char *dsi_candidate_value(const dsi_candidate *candidate, uint32_t i)
{
    return candidate->texts[i] != NULL ? candidate->texts[i] : candidate->values[i];
}

uint32_t dsi_candidate_settings(const dsi_candidate *candidate, dsi_setting *settings)
{
    for (uint32_t i = 0; i < candidate->n_settings; ++i) {
        const char *value = dsi_candidate_value(candidate, i);
        settings[i] = (dsi_setting){candidate->paths[i], value[0] != '\0' ? value : NULL};
    }
    return candidate->n_settings;
}

static void set_text(dsi_candidate *c, const char *path, const char *value)
{
    if (c->n_settings < DSI_CANDIDATE_SETTINGS) {
        c->paths[c->n_settings] = path;
        (void)snprintf(c->values[c->n_settings], sizeof c->values[0], "%s", value);
        c->n_settings += 1;
    }
}

static void set_borrowed(dsi_candidate *c, const char *path, const char *text)
{
    if (c->n_settings < DSI_CANDIDATE_SETTINGS) {
        c->texts[c->n_settings] = text;
    }
    set_text(c, path, "");
}

static void set_number(dsi_candidate *c, const char *path, int64_t value)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%lld", (long long)value);
    set_text(c, path, text);
}

static void set_stage(dsi_candidate *c, int64_t stage)
{
    set_number(c, "zero_optimization.stage", stage);
}

static void set_recompute(dsi_candidate *c, ds_recompute how)
{
    set_text(c, "activation_checkpointing.recompute", recompute_names[how]);
}

static void set_batch(dsi_candidate *c, int64_t micro, int64_t rows)
{
    set_number(c, "train_micro_batch_size_per_gpu", micro);
    set_number(c, "gradient_accumulation_steps", rows / micro);
}

static bool has_own_memory(const dsi_device *device)
{
    return device != NULL && !device->shared;
}

static void take_figures(dsi_candidate *c, const dsi_plan_report *r)
{
    const ds_config_zero *zero = &ds_config_get(r->request.config)->zero;
    c->planned = true;
    c->need = dsi_report_need(r);
    c->activations = r->peak[DSI_RESIDENCY_DEVICE][DSI_MEMORY_ACTIVATION];
    c->host = r->total[DSI_RESIDENCY_HOST];
    c->disk = r->total[DSI_RESIDENCY_DISK];
    c->fits = !dsi_report_lacks(r, NULL);
    c->states = zero->offload_optimizer.device;
    c->params = zero->offload_param.device;
    c->stage = r->spec.zero.stage;
    c->recompute = r->plan.recompute;
    c->micro_batch = r->spec.train.batch;
    c->accumulation = r->spec.train.accumulation;
    c->model_flops = r->model_flops;
    c->hardware_flops = r->hardware_flops;
    c->seconds = r->timeline != NULL ? r->timeline->step.seconds : 0.0;
    for (uint32_t i = 0; i < r->n_comm; ++i) {
        c->sent += r->comm[i].sent;
    }
}

/* Plans a candidate; one that is refused stays without figures. */
static ds_status plan(ds_ctx *ctx, const dsi_report_request *request, dsi_candidate *c)
{
    dsi_setting settings[DSI_CANDIDATE_SETTINGS];
    const uint32_t n = dsi_candidate_settings(c, settings);
    const int64_t hidden = ds_model_get_info(request->model)->hidden_size;
    dsi_report_request changed = *request;
    dsi_plan_report report;
    ds_config *config = NULL;
    ds_status status =
        dsi_config_with(ctx, request->config, settings, n, request->n_ranks, hidden, &config);
    if (status >= 0) {
        changed.config = config;
        status = dsi_report_make(ctx, &changed, &report);
    }
    if (status >= 0) {
        take_figures(c, &report);
        dsi_report_free(&report);
    }
    ds_config_destroy(&config);
    return status == DS_ERR_NOMEM ? status : DS_OK;
}

/* Operations, bytes or seconds for each operation of the model: what is lost, less is better. */
static double cost_of(const dsi_candidate *c)
{
    return c->model_flops > 0.0
               ? (c->seconds > 0.0 ? c->seconds : c->hardware_flops) / c->model_flops
               : INFINITY;
}

static int by_cost(const dsi_candidate *a, const dsi_candidate *b)
{
    const double x = cost_of(a);
    const double y = cost_of(b);
    if (fabs(x - y) > 1e-6 * fabs(x)) {
        return x < y ? -1 : 1;
    }
    const double sent_a = a->sent / a->model_flops;
    const double sent_b = b->sent / b->model_flops;
    if (fabs(sent_a - sent_b) > 1e-3 * fabs(sent_a)) {
        return sent_a < sent_b ? -1 : 1;
    }
    if (a->micro_batch != b->micro_batch) {
        return a->micro_batch > b->micro_batch ? -1 : 1;
    }
    return a->n_settings < b->n_settings ? -1 : a->n_settings > b->n_settings;
}

/* Divisors of n that may be a micro-batch, largest first. */
static uint32_t divisors(int64_t n, int64_t *out)
{
    uint32_t count = 0;
    for (int64_t d = n < LARGEST_BATCH ? n : LARGEST_BATCH; d >= 1; --d) {
        if (n % d == 0) {
            out[count++] = d;
        }
    }
    return count;
}

/* Elements that are in memory at a time of what lives elsewhere; 0: as the configuration says. */
static const int64_t in_hand[] = {0, 100000000, 10000000};
enum { N_IN_HAND = sizeof in_hand / sizeof in_hand[0] };

/* States, or parameters too, elsewhere. folder: as JSON, borrowed. had: where the configuration
 * puts each already; what is there stays in its own folder. */
static void set_offload(dsi_candidate *c, ds_offload_device where, bool params, int64_t elements,
                        const char *folder, const ds_offload_device had[2])
{
    static const char *const keys[2][2] = {
        {"zero_optimization.offload_optimizer.device",
         "zero_optimization.offload_optimizer.nvme_path"},
        {"zero_optimization.offload_param.device", "zero_optimization.offload_param.nvme_path"}};
    for (int i = 0; i <= (params ? 1 : 0); ++i) {
        if (had[i] == where) {
            continue;
        }
        set_text(c, keys[i][0], where == DS_OFFLOAD_CPU ? "\"cpu\"" : "\"nvme\"");
        if (where == DS_OFFLOAD_NVME) {
            set_borrowed(c, keys[i][1], folder);
        }
    }
    if (elements > 0) {
        set_number(c, "zero_optimization.sub_group_size", elements);
    }
    if (elements > 0 && params) {
        set_number(c, "zero_optimization.stage3_max_live_parameters", elements);
        set_number(c, "zero_optimization.stage3_max_reuse_distance", elements);
        set_number(c, "zero_optimization.stage3_prefetch_bucket_size", elements / 2);
    }
    if (elements > 0 && params && where == DS_OFFLOAD_NVME) { /* its default keeps 1e9 in memory */
        set_number(c, "zero_optimization.offload_param.max_in_cpu", 0);
    }
}

/* ---- changes of a plan that does not fit ---- */

enum { MOST_TRIED = 64 };

typedef struct change_set {
    ds_ctx *ctx;
    const dsi_plan_report *base;
    dsi_candidate *tried; /* each is planned once */
    uint32_t n_tried;
    bool all;                                       /* those that cannot fit, too */
    dsi_candidate items[DSI_CANDIDATE_CHANGES + 1]; /* sorted, those that fit */
    uint32_t n;
    uint32_t n_fit; /* of all that were tried */
    dsi_candidate least;
    int64_t rows; /* of a rank in a step */
} change_set;

static const char *setting_of(const dsi_candidate *c, const char *path)
{
    for (uint32_t i = 0; i < c->n_settings; ++i) {
        if (strcmp(c->paths[i], path) == 0) {
            return dsi_candidate_value(c, i);
        }
    }
    return NULL;
}

static bool same_settings(const dsi_candidate *a, const dsi_candidate *b)
{
    bool same = a->n_settings == b->n_settings;
    for (uint32_t i = 0; i < a->n_settings && same; ++i) {
        const char *value = setting_of(b, a->paths[i]);
        same = value != NULL && strcmp(value, dsi_candidate_value(a, i)) == 0;
    }
    return same;
}

/* What the forward pass keeps of a row of the candidate: of the base, or of the same recomputation
 * alone. Bytes; 0: not known. */
static double kept_of_row(const change_set *set, const dsi_candidate *c)
{
    const dsi_plan_report *base = set->base;
    const char *how = setting_of(c, "activation_checkpointing.recompute");
    double kept = 0.0;
    if (setting_of(c, "activation_checkpointing.cpu_checkpointing") != NULL ||
        setting_of(c, "activation_checkpointing.nvme_path") != NULL) {
        return 0.0;
    }
    if (how == NULL) {
        kept = (double)base->peak[DSI_RESIDENCY_DEVICE][DSI_MEMORY_ACTIVATION];
    }
    for (uint32_t i = 0; how != NULL && i < set->n_tried; ++i) {
        const dsi_candidate *other = &set->tried[i];
        if (other->n_settings == 1 && strcmp(dsi_candidate_value(other, 0), how) == 0) {
            kept = (double)other->activations;
        }
    }
    return kept / (double)base->spec.train.batch;
}

/* Whether a candidate need not be planned: parameters stay whole below stage 3, and what is kept of
 * a row is kept whatever becomes of the states (a fiftieth less, for what need not be). */
static bool cannot_fit(const change_set *set, const dsi_candidate *c)
{
    const dsi_plan_report *base = set->base;
    const char *stage = setting_of(c, "zero_optimization.stage");
    const char *rows = setting_of(c, "train_micro_batch_size_per_gpu");
    const bool whole = base->spec.zero.stage < 3 && (stage == NULL || atoi(stage) < 3);
    const double params = whole ? (double)base->peak[DSI_RESIDENCY_DEVICE][DSI_MEMORY_PARAM] : 0.0;
    const double n_rows = rows != NULL ? atof(rows) : (double)base->spec.train.batch;
    const bool judges = c->n_settings == 1 && /* others */
                        setting_of(c, "activation_checkpointing.recompute") != NULL;
    return !set->all && !judges && base->request.memory > 0 &&
           params + 0.98 * n_rows * kept_of_row(set, c) > (double)base->request.memory;
}

/* One that cannot fit stays without figures. */
static ds_status plan_once(change_set *set, dsi_candidate *c)
{
    for (uint32_t i = 0; i < set->n_tried; ++i) {
        if (same_settings(&set->tried[i], c)) {
            *c = set->tried[i];
            return DS_OK;
        }
    }
    if (cannot_fit(set, c)) {
        return DS_OK;
    }
    DS_TRY(plan(set->ctx, &set->base->request, c));
    if (set->n_tried < MOST_TRIED) {
        set->tried[set->n_tried++] = *c;
    }
    return DS_OK;
}

static ds_status try_change(change_set *set, const dsi_candidate *candidate)
{
    dsi_candidate tried = *candidate;
    dsi_candidate *c = &tried;
    DS_TRY(plan_once(set, c));
    if (!c->planned) {
        return DS_OK;
    }
    if (!set->least.planned || c->need < set->least.need) {
        set->least = *c;
    }
    if (!c->fits) {
        return DS_OK;
    }
    set->n_fit += 1;
    uint32_t at = set->n < DSI_CANDIDATE_CHANGES ? set->n++ : DSI_CANDIDATE_CHANGES;
    for (; at > 0 && by_cost(c, &set->items[at - 1]) < 0; --at) {
        set->items[at] = set->items[at - 1];
    }
    set->items[at] = *c;
    return DS_OK;
}

/* The largest smaller micro-batch that fits beside what `with` sets, else the smallest. */
static ds_status try_batches(change_set *set, const dsi_candidate *with)
{
    int64_t sizes[LARGEST_BATCH];
    const uint32_t n = divisors(set->rows, sizes);
    uint32_t low = 0;
    uint32_t high = n;
    while (low < n && sizes[low] >= set->base->spec.train.batch) {
        ++low;
    }
    while (low < high) { /* memory falls with the size */
        const uint32_t middle = low + (high - low) / 2;
        dsi_candidate c = *with;
        set_batch(&c, sizes[middle], set->rows);
        DS_TRY(plan_once(set, &c));
        if (c.planned && c.fits) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    const uint32_t at = low < n ? low : n - 1;
    if (n == 0 || sizes[at] >= set->base->spec.train.batch) {
        return DS_OK;
    }
    dsi_candidate c = *with;
    set_batch(&c, sizes[at], set->rows);
    return try_change(set, &c);
}

static ds_status try_stages(change_set *set, const dsi_candidate *with, uint32_t first)
{
    for (uint32_t stage = first; stage <= 3 && set->base->request.n_ranks > 1; ++stage) {
        dsi_candidate c = *with;
        set_stage(&c, stage);
        DS_TRY(try_change(set, &c));
    }
    return DS_OK;
}

/* Offload is of stages 1 to 3, that of parameters of stage 3. */
static dsi_candidate with_offload(const change_set *set, const dsi_candidate *with,
                                  ds_offload_device where, bool params, int64_t elements)
{
    const ds_config_zero *zero = &ds_config_get(set->base->request.config)->zero;
    const ds_offload_device had[] = {zero->offload_optimizer.device, zero->offload_param.device};
    const uint32_t now = set->base->spec.zero.stage;
    const uint32_t stage = params ? 3 : now > 0 ? now : 2;
    dsi_candidate c = *with;
    if (stage != now) {
        set_stage(&c, stage);
    }
    set_offload(&c, where, params, elements, "\"/local_nvme\"", had);
    return c;
}

/* With as much in memory as fits; where the least does not, with smaller micro-batches if asked. */
static ds_status try_offload_to(change_set *set, const dsi_candidate *with, ds_offload_device where,
                                bool params, bool batches)
{
    const uint32_t before = set->n_fit;
    const dsi_candidate least = with_offload(set, with, where, params, in_hand[N_IN_HAND - 1]);
    dsi_candidate tried = least;
    DS_TRY(plan_once(set, &tried));
    for (int i = 0; i < N_IN_HAND - 1 && tried.fits && set->n_fit == before; ++i) {
        const dsi_candidate c = with_offload(set, with, where, params, in_hand[i]);
        DS_TRY(c.n_settings > 0 ? try_change(set, &c) : DS_OK);
    }
    DS_TRY(set->n_fit == before ? try_change(set, &least) : DS_OK);
    return batches && !tried.fits ? try_batches(set, &least) : DS_OK;
}

/* Where the configuration puts states already, with less of them in memory; then in the host's
 * memory where the device has its own, else on disk. */
static ds_status try_offload(change_set *set, const dsi_candidate *with, bool params, bool batches)
{
    const dsi_plan_report *base = set->base;
    const bool apart = has_own_memory(base->request.device);
    const ds_offload_device usual = apart ? DS_OFFLOAD_CPU : DS_OFFLOAD_NVME;
    const ds_offload_device had =
        ds_config_get(base->request.config)->zero.offload_optimizer.device;
    const bool counts = had != DS_OFFLOAD_CPU || apart || base->spec.device_memory > 0;
    if (had != DS_OFFLOAD_NONE && had != usual && counts) {
        DS_TRY(try_offload_to(set, with, had, params, false));
    }
    return try_offload_to(set, with, usual, params, batches);
}

/* Activations leave the device between the passes. */
static ds_status try_activations(change_set *set)
{
    const ds_config_activation_checkpointing *kept =
        &ds_config_get(set->base->request.config)->activation_checkpointing;
    dsi_candidate c = {0};
    if (kept->cpu_checkpointing || kept->nvme_path != NULL) {
        return DS_OK;
    }
    if (has_own_memory(set->base->request.device)) {
        set_text(&c, "activation_checkpointing.cpu_checkpointing", "true");
    } else {
        set_borrowed(&c, "activation_checkpointing.nvme_path", "\"/local_nvme\"");
    }
    return try_change(set, &c);
}

static ds_status try_single_changes(change_set *set)
{
    const dsi_candidate none = {0};
    DS_TRY(try_stages(set, &none, set->base->spec.zero.stage + 1));
    for (int how = DS_RECOMPUTE_NONE + 1; how <= DS_RECOMPUTE_FULL; ++how) {
        dsi_candidate c = {0};
        if (set->base->plan.recompute == DS_RECOMPUTE_NONE) {
            set_recompute(&c, (ds_recompute)how);
            DS_TRY(try_change(set, &c));
        }
    }
    DS_TRY(try_batches(set, &none));
    DS_TRY(try_activations(set));
    for (int params = 0; params < 2; ++params) {
        DS_TRY(try_offload(set, &none, params == 1, false));
    }
    return DS_OK;
}

/* Several changes together. */
static ds_status try_combined_changes(change_set *set)
{
    const bool stages = set->base->request.n_ranks > 1 && set->base->spec.zero.stage < 3;
    const bool kept = set->base->plan.recompute == DS_RECOMPUTE_NONE;
    const int last = kept ? DS_RECOMPUTE_FULL : DS_RECOMPUTE_NONE;
    for (int how = DS_RECOMPUTE_NONE; how <= last; ++how) {
        dsi_candidate with = {0};
        if (how != DS_RECOMPUTE_NONE) {
            set_recompute(&with, (ds_recompute)how);
            DS_TRY(try_stages(set, &with, set->base->spec.zero.stage + 1));
            DS_TRY(try_batches(set, &with));
        }
        for (int params = 0; params < 2; ++params) {
            DS_TRY(try_offload(set, &with, params == 1, true));
        }
        if (stages) {
            set_stage(&with, 3);
            DS_TRY(try_batches(set, &with));
        }
    }
    return DS_OK;
}

/* Where nothing fits the least of all is told. */
static ds_status try_all(change_set *set)
{
    DS_TRY(try_single_changes(set));
    if (set->n == 0) {
        DS_TRY(try_combined_changes(set));
    }
    if (set->n == 0 && !set->all) {
        set->all = true;
        DS_TRY(try_all(set));
    }
    return DS_OK;
}

ds_status dsi_fit_changes(ds_ctx *ctx, const dsi_plan_report *report, dsi_candidate *changes_out,
                          uint32_t *n_out)
{
    change_set set = {.ctx = ctx,
                      .base = report,
                      .rows = report->spec.train.batch * report->spec.train.accumulation};
    set.tried = malloc(MOST_TRIED * sizeof *set.tried);
    if (set.tried == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to change a plan");
    }
    const ds_status status = try_all(&set);
    free(set.tried);
    DS_TRY(status);
    for (uint32_t i = 0; i < set.n; ++i) {
        changes_out[i] = set.items[i];
    }
    if (set.n == 0) {
        changes_out[0] = set.least;
    }
    *n_out = set.n;
    return DS_OK;
}

/* ---- the best of all ---- */

static ds_status add_tried(ds_ctx *ctx, dsi_fit *fit, const dsi_candidate *c)
{
    if (fit->n_tried >= DSI_FIT_CEILING) {
        return ds_fail(ctx, DS_ERR_LIMIT, "more than %d candidates", DSI_FIT_CEILING);
    }
    fit->tried[fit->n_tried] = *c;
    if (c->fits && (fit->best == UINT32_MAX || by_cost(c, &fit->tried[fit->best]) < 0)) {
        fit->best = fit->n_tried;
    }
    if (fit->least == UINT32_MAX || c->need < fit->tried[fit->least].need) {
        fit->least = fit->n_tried;
    }
    fit->n_tried += 1;
    return DS_OK;
}

static ds_status try_one(ds_ctx *ctx, const dsi_report_request *request, dsi_fit *fit,
                         dsi_candidate *c)
{
    DS_TRY(plan(ctx, request, c));
    return c->planned ? add_tried(ctx, fit, c) : DS_OK;
}

typedef struct searcher {
    ds_ctx *ctx;
    const dsi_report_request *request;
    const dsi_fit_scope *scope;
    dsi_fit fit;
    int64_t sizes[LARGEST_BATCH]; /* micro-batches, largest first */
    uint32_t n_sizes;
    int64_t rows; /* of a rank in a step, where they stay as they are */
    int64_t accumulation;
    uint32_t n_fit; /* candidates */
} searcher;

/* The largest micro-batch that fits beside what `with` sets; smaller ones cost more. */
static ds_status search_batch(searcher *s, const dsi_candidate *with)
{
    uint32_t low = 0;
    uint32_t high = s->n_sizes;
    while (low < high) {
        const uint32_t middle = low + (high - low) / 2;
        const int64_t size = s->sizes[middle];
        dsi_candidate c = *with;
        if (!s->scope->fixed_batch) {
            set_batch(&c, size, s->scope->free_batch ? size * s->accumulation : s->rows);
        }
        DS_TRY(try_one(s->ctx, s->request, &s->fit, &c));
        if (c.planned && c.fits) {
            high = middle;
            s->n_fit += 1;
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

static bool is_possible(const searcher *s, const offload_level *level, int64_t stage)
{
    const int64_t least = level->params ? 3 : 1;
    if (level->where == DS_OFFLOAD_NONE) {
        return true;
    }
    return (level->where == DS_OFFLOAD_CPU ? has_own_memory(s->request->device)
                                           : s->scope->nvme_path != NULL) &&
           (s->request->n_ranks > 1 ? stage >= least : stage == least);
}

static ds_status search_level(searcher *s, const offload_level *level, int64_t elements)
{
    const int64_t given = ds_config_get(s->request->config)->zero.stage;
    const uint32_t n_stages =
        s->scope->stage && (s->request->n_ranks > 1 || level->where != DS_OFFLOAD_NONE) ? 4 : 1;
    const uint32_t n_ways = s->scope->recompute ? 3 : 1;
    for (uint32_t i = 0; i < n_stages * n_ways; ++i) {
        const int64_t stage = n_stages > 1 ? i / n_ways : given;
        dsi_candidate c = {0};
        if (!is_possible(s, level, stage)) {
            continue;
        }
        if (n_stages > 1) {
            set_stage(&c, stage);
        }
        if (n_ways > 1) {
            set_recompute(&c, (ds_recompute)(i % n_ways));
        }
        if (s->scope->free_batch) { /* derived again */
            set_text(&c, "train_batch_size", "");
        }
        if (level->where != DS_OFFLOAD_NONE) {
            static const ds_offload_device none[2] = {DS_OFFLOAD_NONE, DS_OFFLOAD_NONE};
            set_offload(&c, level->where, level->params, elements, dsi_buf_text(&s->fit.folder),
                        none);
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

static ds_status search(searcher *s)
{
    static const offload_level levels[] = {{DS_OFFLOAD_NONE, false},
                                           {DS_OFFLOAD_CPU, false},
                                           {DS_OFFLOAD_CPU, true},
                                           {DS_OFFLOAD_NVME, false},
                                           {DS_OFFLOAD_NVME, true}};
    const ds_config_zero *zero = &ds_config_get(s->request->config)->zero;
    const bool given = zero->offload_optimizer.device != DS_OFFLOAD_NONE ||
                       zero->offload_param.device != DS_OFFLOAD_NONE;
    const size_t n = s->scope->offload && !given ? sizeof levels / sizeof levels[0] : 1;
    for (size_t i = 0; i < n && (i == 0 || memory_costs(s)); ++i) {
        const uint32_t before = s->n_fit;
        for (int e = 0; e < (i == 0 ? 1 : N_IN_HAND) && s->n_fit == before; ++e) {
            DS_TRY(search_level(s, &levels[i], in_hand[e]));
        }
    }
    return DS_OK;
}

ds_status dsi_fit_search(ds_ctx *ctx, const dsi_report_request *request, const dsi_fit_scope *scope,
                         dsi_fit *fit_out)
{
    const ds_config_batch *batch = &ds_config_get(request->config)->batch;
    searcher s = {.ctx = ctx,
                  .request = request,
                  .scope = scope,
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
        s.n_sizes = divisors(s.rows, s.sizes);
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
