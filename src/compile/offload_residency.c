/* SPDX-License-Identifier: Apache-2.0 */
/* See offload_residency.h. */
#include "compile/offload_residency.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

bool dsi_offload_is_on(const dsi_offload_spec *spec)
{
    return spec->params != DSI_RESIDENCY_DEVICE || spec->states != DSI_RESIDENCY_DEVICE ||
           spec->chosen != DSI_RESIDENCY_DEVICE || spec->how.activations != DSI_RESIDENCY_DEVICE ||
           spec->how.waiting != DSI_RESIDENCY_DEVICE;
}

typedef struct chooser {
    const dsi_offload_spec *spec;
    int64_t seen, offloaded; /* elements whose states might go, and do */
    int64_t resident;        /* elements of parameters that stay although they might go */
    const bool *stays;       /* per cell: its states do; NULL: seen and offloaded decide */
} chooser;

/* What becomes of one parameter; large ones alone are worth the way. */
static void choose(chooser *c, ds_cell cell, int64_t count, bool *states, bool *params)
{
    const dsi_offload_spec *s = c->spec;
    const bool large = count >= s->threshold;
    c->seen += large ? count : 0;
    const bool goes = c->stays != NULL
                          ? !c->stays[cell]
                          : (double)(c->offloaded + count) <= s->ratio * (double)c->seen + 0.5;
    *states = large && s->states != DSI_RESIDENCY_DEVICE && goes;
    c->offloaded += *states ? count : 0;
    *params = large && s->params != DSI_RESIDENCY_DEVICE && c->resident + count > s->max_resident;
    c->resident += large && !*params ? count : 0;
}

static int by_end(const void *a, const void *b)
{
    const dsi_late_param *x = a;
    const dsi_late_param *y = b;
    if (x->end != y->end) {
        return x->end > y->end ? -1 : 1;
    }
    return x->cell < y->cell ? -1 : 1;
}

ds_status dsi_offload_last_first(const dsi_offload_spec *spec, const ds_cells *cells,
                                 const uint32_t *ends, dsi_late_param **params_out, uint32_t *n_out)
{
    const uint32_t n_cells = ds_cells_count(cells);
    uint32_t n = 0;
    dsi_late_param *params = calloc((size_t)n_cells + 1, sizeof *params);
    if (params == NULL) {
        return DS_ERR_NOMEM;
    }
    for (ds_cell cell = 0; cell < n_cells; ++cell) {
        const ds_cell_info *info = ds_cells_get(cells, cell);
        const int64_t count = ds_shape_count(info->meta.shape);
        if (info->kind == DS_CELL_PARAM && !info->frozen && count >= spec->threshold) {
            params[n++] = (dsi_late_param){cell, ends[cell], count};
        }
    }
    qsort(params, n, sizeof *params, by_end);
    *params_out = params;
    *n_out = n;
    return DS_OK;
}

/* Of 1 - ratio of the elements, those whose gradients come last: none behind the first that is too
 * large for the rest. */
static ds_status keep_last(const dsi_offload_spec *spec, const ds_cells *cells,
                           const uint32_t *ends, bool *stays)
{
    dsi_late_param *params = NULL;
    uint32_t n = 0;
    int64_t all = 0;
    int64_t kept = 0;
    DS_TRY(dsi_offload_last_first(spec, cells, ends, &params, &n));
    for (uint32_t i = 0; i < n; ++i) {
        all += params[i].count;
    }
    const double room = (1.0 - spec->ratio) * (double)all + 0.5;
    for (uint32_t i = 0; i < n && (double)(kept + params[i].count) <= room; ++i) {
        stays[params[i].cell] = true;
        kept += params[i].count;
    }
    free(params);
    return DS_OK;
}

/* What updates read of a parameter: masks are read in the forward pass, the errors of what is sent
 * in the backward pass. */
static bool is_of_update(const ds_cell_info *info)
{
    return info->of != DS_NONE && info->kind != DS_CELL_MASK &&
           info->kind != DS_CELL_WORKER_ERROR && info->kind != DS_CELL_SERVER_ERROR;
}

/* states, all false: whether those of a parameter go, which comes before them. */
static void fill(const dsi_offload_spec *spec, const ds_cells *cells, const bool *stays,
                 bool *states, const dsi_residencies *residencies)
{
    chooser c = {.spec = spec, .stays = stays};
    for (ds_cell cell = 0; cell < residencies->n; ++cell) {
        const ds_cell_info *info = ds_cells_get(cells, cell);
        dsi_cell_residency residency = {.where = DSI_RESIDENCY_DEVICE, .parent = DS_NONE};
        bool params = false;
        if (info->kind == DS_CELL_PARAM && !info->frozen) {
            choose(&c, cell, ds_shape_count(info->meta.shape), &states[cell], &params);
            residency.where = params ? spec->params : DSI_RESIDENCY_DEVICE;
        } else if (info->kind == DS_CELL_PARAM) {
            const bool large = ds_shape_count(info->meta.shape) >= spec->threshold;
            residency.where = large ? spec->params : DSI_RESIDENCY_DEVICE;
        } else if (info->kind == DS_CELL_CHOSEN) { /* matrices; not the index, which all read */
            residency.where = info->meta.shape.n_dims == 2 ? spec->chosen : DSI_RESIDENCY_DEVICE;
        } else if (is_of_update(info) && info->of < cell && states[info->of]) {
            residency.where = spec->states;
        }
        residencies->items[cell] = residency;
    }
}

ds_status dsi_offload_rules(const dsi_offload_spec *spec, const ds_cells *cells,
                            const uint32_t *ends, dsi_residencies *residencies)
{
    const uint32_t n = ds_cells_count(cells);
    const bool last = spec->by_gradient && ends != NULL;
    ds_status status = DS_OK;
    bool *states = calloc((size_t)n + 1, sizeof *states);
    bool *stays = calloc((size_t)n + 1, sizeof *stays);
    residencies->items = calloc((size_t)n + 1, sizeof *residencies->items);
    if (states == NULL || stays == NULL || residencies->items == NULL) {
        status = DS_ERR_NOMEM;
    } else {
        residencies->n = n;
        residencies->capacity = n + 1;
        status = last ? keep_last(spec, cells, ends, stays) : DS_OK;
    }
    if (status >= 0) {
        fill(spec, cells, last ? stays : NULL, states, residencies);
    }
    free(states);
    free(stays);
    return status;
}

/* What might move of a section, and whether any of it does. */
typedef struct reach {
    int64_t largest, all; /* elements of the largest parameter, and of those of the threshold */
    bool moves;
} reach;

static void count_cell(const dsi_offload_spec *spec, const ds_cell_info *info,
                       dsi_cell_residency residency, reach sections[DSI_OFFLOAD_SECTIONS])
{
    const bool away = residency.where != DSI_RESIDENCY_DEVICE;
    if (info->kind == DS_CELL_PARAM) {
        const int64_t count = ds_shape_count(info->meta.shape);
        for (int s = 0; s < DSI_OFFLOAD_SECTIONS; ++s) {
            reach *r = &sections[s];
            const bool counts = s == DSI_OFFLOAD_PARAMS || !info->frozen;
            r->largest = counts && count > r->largest ? count : r->largest;
            r->all += counts && count >= spec->threshold ? count : 0;
        }
        sections[DSI_OFFLOAD_PARAMS].moves |= away;
    } else if (info->kind != DS_CELL_CHOSEN) {
        sections[DSI_OFFLOAD_STATES].moves |= away;
    }
}

void dsi_offload_idle(const dsi_offload_spec *spec, const ds_cells *cells,
                      const dsi_residencies *residencies,
                      char why_out[DSI_OFFLOAD_SECTIONS][DSI_OFFLOAD_WHY_BYTES])
{
    static const char *const names[] = {"offload_param", "offload_optimizer"};
    const bool asked[] = {spec->params != DSI_RESIDENCY_DEVICE,
                          spec->states != DSI_RESIDENCY_DEVICE};
    reach sections[DSI_OFFLOAD_SECTIONS] = {0};
    for (ds_cell cell = 0; cell < ds_cells_count(cells); ++cell) {
        count_cell(spec, ds_cells_get(cells, cell), dsi_residency_of(residencies, cell), sections);
    }
    for (int s = 0; s < DSI_OFFLOAD_SECTIONS; ++s) {
        const reach *r = &sections[s];
        const size_t n = DSI_OFFLOAD_WHY_BYTES;
        why_out[s][0] = '\0';
        if (!asked[s] || r->moves || r->largest == 0) {
            continue;
        }
        if (r->largest < spec->threshold) {
            (void)snprintf(why_out[s], n,
                           "zero_optimization.%s moves nothing: the largest parameter has %" PRId64
                           " elements, param_persistence_threshold keeps those below %" PRId64,
                           names[s], r->largest, spec->threshold);
        } else if (s == DSI_OFFLOAD_PARAMS) {
            (void)snprintf(why_out[s], n,
                           "zero_optimization.%s moves nothing: the parameters that might go have "
                           "%" PRId64 " elements, max_in_cpu keeps %" PRId64,
                           names[s], r->all, spec->max_resident);
        } else if (spec->ratio < 1.0) {
            (void)snprintf(why_out[s], n, "zero_optimization.%s moves nothing: its ratio is %g",
                           names[s], spec->ratio);
        }
    }
}

uint32_t dsi_offload_folders(char *folders, const char *list[DS_CONFIG_MAX_FOLDERS])
{
    uint32_t n = 0;
    char *rest = NULL;
    for (char *at = strtok_r(folders, ",", &rest); at != NULL && n < DS_CONFIG_MAX_FOLDERS;
         at = strtok_r(NULL, ",", &rest)) {
        list[n++] = at;
    }
    return n;
}
