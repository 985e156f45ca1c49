/* SPDX-License-Identifier: Apache-2.0 */
/* The changes that are tried, one at a time and together. See plan_changes.h. */
#include "report/plan_changes.h"

#include "config/config_values.h"

#include <stdlib.h>
#include <string.h>

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
    const char *tp = setting_of(c, "tensor_parallel.autotp_size");
    const char *sp = setting_of(c, "sequence_parallel_size");
    const double layers =
        tp != NULL ? atof(tp) : 1.0; /* ranks that share them, at most all of it */
    const double own = layers * (sp != NULL ? atof(sp) : 1.0);
    const bool whole = base->spec.zero.stage < 3 && (stage == NULL || atoi(stage) < 3);
    const double params = whole ? (double)base->peak[DSI_RESIDENCY_DEVICE][DSI_MEMORY_PARAM] : 0.0;
    const double n_rows = rows != NULL ? atof(rows) : (double)base->spec.train.batch;
    const bool judges = c->n_settings == 1 && /* others */
                        setting_of(c, "activation_checkpointing.recompute") != NULL;
    return !set->all && !judges && base->request.memory > 0 &&
           params / layers + 0.98 * n_rows * kept_of_row(set, c) / own >
               (double)base->request.memory;
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
    DS_TRY(dsi_candidate_plan(set->ctx, &set->base->request, c));
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
    for (; at > 0 && dsi_candidate_by_cost(c, &set->items[at - 1]) < 0; --at) {
        set->items[at] = set->items[at - 1];
    }
    set->items[at] = *c;
    return DS_OK;
}

/* The largest smaller micro-batch that fits beside what `with` sets, else the smallest. */
static ds_status try_batches(change_set *set, const dsi_candidate *with)
{
    int64_t sizes[DSI_LARGEST_BATCH];
    const uint32_t n = dsi_micro_batches(set->rows, sizes);
    uint32_t low = 0;
    uint32_t high = n;
    while (low < n && sizes[low] >= set->base->spec.train.batch) {
        ++low;
    }
    while (low < high) { /* memory falls with the size */
        const uint32_t middle = low + (high - low) / 2;
        dsi_candidate c = *with;
        dsi_candidate_set_batch(&c, sizes[middle], set->rows);
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
    dsi_candidate_set_batch(&c, sizes[at], set->rows);
    return try_change(set, &c);
}

static ds_status try_stages(change_set *set, const dsi_candidate *with, uint32_t first)
{
    const bool several = dsi_mesh_data_size(&set->base->spec.zero.mesh) > 1;
    for (uint32_t stage = first; stage <= 3 && several; ++stage) {
        dsi_candidate c = *with;
        dsi_candidate_set_stage(&c, stage);
        DS_TRY(try_change(set, &c));
    }
    return DS_OK;
}

/* Offload is of stages 1 to 3, that of parameters of stage 3. */
static dsi_candidate with_offload(const change_set *set, const dsi_candidate *with,
                                  ds_offload_device where, bool params, int64_t elements)
{
    const ds_config_zero *zero = &dsi_config_values(set->base->request.config)->zero;
    const ds_offload_device had[] = {zero->offload_optimizer.device, zero->offload_param.device};
    const uint32_t now = set->base->spec.zero.stage;
    const uint32_t stage = params ? 3 : now > 0 ? now : 2;
    dsi_candidate c = *with;
    if (stage != now) {
        dsi_candidate_set_stage(&c, stage);
    }
    dsi_candidate_set_offload(&c, where, params, elements, "\"/local_nvme\"", had);
    return c;
}

/* With as much in memory as fits; where the least does not, with smaller micro-batches if asked. */
static ds_status try_offload_to(change_set *set, const dsi_candidate *with, ds_offload_device where,
                                bool params, bool batches)
{
    const uint32_t before = set->n_fit;
    const dsi_candidate least =
        with_offload(set, with, where, params, dsi_in_hand[DSI_N_IN_HAND - 1]);
    dsi_candidate tried = least;
    DS_TRY(plan_once(set, &tried));
    for (int i = 0; i < DSI_N_IN_HAND - 1 && tried.fits && set->n_fit == before; ++i) {
        const dsi_candidate c = with_offload(set, with, where, params, dsi_in_hand[i]);
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
    const bool apart = dsi_has_own_memory(base->request.device);
    const ds_offload_device usual = apart ? DS_OFFLOAD_CPU : DS_OFFLOAD_NVME;
    const ds_offload_device had =
        dsi_config_values(base->request.config)->zero.offload_optimizer.device;
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
        &dsi_config_values(set->base->request.config)->activation_checkpointing;
    dsi_candidate c = {0};
    if (kept->cpu_checkpointing || kept->nvme_path != NULL) {
        return DS_OK;
    }
    if (dsi_has_own_memory(set->base->request.device)) {
        dsi_candidate_set(&c, "activation_checkpointing.cpu_checkpointing", "true");
    } else {
        dsi_candidate_set(&c, "activation_checkpointing.nvme_path", "\"/local_nvme\"");
    }
    return try_change(set, &c);
}

/* Ranks that share layers, or sequences, have the rows of all of them. */
static ds_status try_shares(change_set *set, const dsi_candidate *with)
{
    dsi_share shares[DSI_SHARES];
    const uint32_t n = dsi_shares(&set->base->request, shares);
    const uint32_t before = set->n_fit;
    uint32_t ranks = 0; /* of those that fit */
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t own = dsi_share_ranks(shares[i]);
        dsi_candidate c = *with;
        if (ranks > 0 && own > ranks) {
            break;
        }
        if (shares[i].pp > 1) { /* which is for --fit to try */
            continue;
        }
        dsi_candidate_set_share(&c, shares[i]);
        dsi_candidate_set_batch(&c, set->base->spec.train.batch, set->rows * own);
        DS_TRY(try_change(set, &c));
        ranks = set->n_fit > before ? own : 0;
    }
    return DS_OK;
}

static ds_status try_single_changes(change_set *set)
{
    const dsi_candidate none = {0};
    DS_TRY(try_stages(set, &none, set->base->spec.zero.stage + 1));
    for (int how = DS_RECOMPUTE_NONE + 1; how <= DS_RECOMPUTE_FULL; ++how) {
        dsi_candidate c = {0};
        if (set->base->plan.choice.recompute == DS_RECOMPUTE_NONE) {
            dsi_candidate_set_recompute(&c, (ds_recompute)how);
            DS_TRY(try_change(set, &c));
        }
    }
    DS_TRY(try_batches(set, &none));
    DS_TRY(try_shares(set, &none));
    DS_TRY(try_activations(set));
    for (int params = 0; params < 2; ++params) {
        DS_TRY(try_offload(set, &none, params == 1, false));
    }
    return DS_OK;
}

/* Several changes together. */
static ds_status try_combined_changes(change_set *set)
{
    const bool stages =
        dsi_mesh_data_size(&set->base->spec.zero.mesh) > 1 && set->base->spec.zero.stage < 3;
    const bool kept = set->base->plan.choice.recompute == DS_RECOMPUTE_NONE;
    const int last = kept ? DS_RECOMPUTE_FULL : DS_RECOMPUTE_NONE;
    for (int how = DS_RECOMPUTE_NONE; how <= last; ++how) {
        dsi_candidate with = {0};
        if (how != DS_RECOMPUTE_NONE) {
            dsi_candidate_set_recompute(&with, (ds_recompute)how);
            DS_TRY(try_stages(set, &with, set->base->spec.zero.stage + 1));
            DS_TRY(try_batches(set, &with));
            DS_TRY(try_shares(set, &with));
        }
        for (int params = 0; params < 2; ++params) {
            DS_TRY(try_offload(set, &with, params == 1, true));
        }
        if (stages) {
            dsi_candidate_set_stage(&with, 3);
            DS_TRY(try_batches(set, &with));
            DS_TRY(try_shares(set, &with));
        }
    }
    return DS_OK;
}

/* Where nothing fits the least is reported: everything elsewhere, nothing kept, the smallest batch.
 */
static ds_status try_least(change_set *set)
{
    dsi_candidate with = {0};
    set->all = true;
    if (set->base->plan.choice.recompute == DS_RECOMPUTE_NONE) {
        dsi_candidate_set_recompute(&with, DS_RECOMPUTE_FULL);
    }
    DS_TRY(try_offload(set, &with, true, true));
    DS_TRY(try_offload(set, &with, false, true));
    return try_batches(set, &with);
}

static ds_status try_all(change_set *set)
{
    DS_TRY(try_single_changes(set));
    if (set->n == 0) {
        DS_TRY(try_combined_changes(set));
    }
    return set->n == 0 ? try_least(set) : DS_OK;
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
