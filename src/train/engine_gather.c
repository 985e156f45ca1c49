/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters gathered for a while: copies of whole ones, and back. See deepspeed/engine_states.h.
 */
#include "train/engine_same.h"

#include <deepspeed/engine_states.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

struct ds_gathered {
    ds_engine *engine;
    ds_gathered *next; /* of the engine's list */
    int64_t modifier;
    uint64_t steps; /* of the engine when it began */
    uint32_t n;
    ds_cell *cells; /* the parameters */
    float **copies;
    uint64_t *digests; /* as they were gathered */
};

static size_t count_of(const ds_gathered *g, uint32_t i)
{
    return (size_t)ds_shape_count(ds_cells_get(g->engine->cells, g->cells[i])->meta.shape);
}

static void unlink_and_free(ds_gathered *g)
{
    ds_gathered **at = &g->engine->gathered;
    while (*at != NULL && *at != g) {
        at = &(*at)->next;
    }
    if (*at == g) {
        *at = g->next;
    }
    for (uint32_t i = 0; i < g->n && g->copies != NULL; ++i) {
        free(g->copies[i]);
    }
    free(g->copies);
    free(g->cells);
    free(g->digests);
    free(g);
}

static ds_status check_free(const ds_engine *engine, ds_cell cell)
{
    for (const ds_gathered *g = engine->gathered; g != NULL; g = g->next) {
        for (uint32_t i = 0; i < g->n; ++i) {
            if (g->cells[i] == cell) {
                return ds_fail(engine->ctx, DS_ERR_STATE,
                               "%s is gathered already; end that with ds_gathered_end",
                               ds_cells_get(engine->cells, cell)->name);
            }
        }
    }
    return DS_OK;
}

/* The local part: finds the parameters and makes room. */
static ds_status prepare(ds_gathered *g, const char *const *names)
{
    ds_engine *engine = g->engine;
    DS_TRY(g->modifier >= 0 ? dsi_engine_check_set(engine, DS_CELL_PARAM) : DS_OK);
    if (g->modifier < -1 || g->modifier >= (int64_t)ds_comm_size(engine->comm)) {
        return ds_fail(engine->ctx, DS_ERR_ARG, "the modifier %lld is no rank: expected -1 to %u",
                       (long long)g->modifier, ds_comm_size(engine->comm) - 1);
    }
    if (g->cells == NULL || g->copies == NULL || g->digests == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to gather parameters");
    }
    for (uint32_t i = 0; i < g->n; ++i) {
        g->cells[i] = ds_cells_find(engine->cells, DS_CELL_PARAM, names[i]);
        if (g->cells[i] == DS_NONE) {
            return ds_fail(engine->ctx, DS_ERR_NOT_FOUND, "there is no parameter named %s",
                           names[i]);
        }
        DS_TRY(check_free(engine, g->cells[i]));
        DS_TRY(dsi_engine_check_settled(engine, names[i]));
        DS_TRY(dsi_engine_check_plain(engine, g->cells[i]));
        for (uint32_t k = 0; k < i; ++k) {
            if (g->cells[k] == g->cells[i]) {
                return ds_fail(engine->ctx, DS_ERR_ARG, "%s is given twice", names[i]);
            }
        }
        g->copies[i] = malloc((count_of(g, i) + 1) * sizeof **g->copies);
        if (g->copies[i] == NULL) {
            return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for a copy of %s", names[i]);
        }
    }
    return DS_OK;
}

static ds_cell best_copy(const ds_gathered *g, uint32_t i)
{
    const char *name = ds_cells_get(g->engine->cells, g->cells[i])->name;
    const ds_cell master = ds_cells_find(g->engine->cells, DS_CELL_MASTER, name);
    return master != DS_NONE ? master : g->cells[i];
}

/* What the ranks must ask alike: how many, which, and for whom. */
static uint64_t digest_of_list(const ds_gathered *g)
{
    uint64_t digest = (uint64_t)(g->modifier + 2) * 1000003u + g->n;
    if (g->cells != NULL) {
        digest = XXH3_64bits_withSeed(g->cells, g->n * sizeof *g->cells, digest);
    }
    return digest;
}

/* The call in words: as many names as there is room for. */
static void call_text(char *text, size_t room, const char *const *names, uint32_t n,
                      int64_t modifier)
{
    size_t at = (size_t)snprintf(text, room, "gather %u parameters for %s %lld", n,
                                 modifier < 0 ? "nobody" : "rank", (long long)modifier);
    for (uint32_t i = 0; i < n && at < room; ++i) {
        at += (size_t)snprintf(text + at, room - at, "%s%s", i == 0 ? ": " : ", ", names[i]);
    }
}

ds_status ds_engine_gather(ds_engine *engine, const char *const *names, uint32_t n,
                           int64_t modifier, ds_gathered **gathered_out)
{
    char what[200];
    ds_gathered *g = calloc(1, sizeof *g);
    if (g == NULL) {
        dsi_comm_abort(engine->comm, "out of memory gathering parameters");
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to gather parameters");
    }
    *g = (ds_gathered){.engine = engine,
                       .modifier = modifier,
                       .steps = engine->global_steps,
                       .n = n,
                       .cells = calloc((size_t)n + 1, sizeof *g->cells),
                       .copies = calloc((size_t)n + 1, sizeof *g->copies),
                       .digests = calloc((size_t)n + 1, sizeof *g->digests)};
    call_text(what, sizeof what, names, n, modifier);
    ds_status own = prepare(g, names);
    own = own == DS_OK ? dsi_zenflow_drain(engine) : own;
    ds_status status = dsi_engine_same(engine, what, own == DS_OK ? digest_of_list(g) : 0, own);
    for (uint32_t i = 0; i < n && status == DS_OK; ++i) {
        status = dsi_engine_get_cell(engine, best_copy(g, i), g->copies[i]);
        g->digests[i] = XXH3_64bits(g->copies[i], count_of(g, i) * sizeof **g->copies);
    }
    if (status < 0) {
        unlink_and_free(g);
        return status;
    }
    g->next = engine->gathered;
    engine->gathered = g;
    *gathered_out = g;
    return DS_OK;
}

float *ds_gathered_data(ds_gathered *g, uint32_t i, size_t *count_out)
{
    if (i >= g->n) {
        return NULL;
    }
    if (count_out != NULL) {
        *count_out = count_of(g, i);
    }
    return g->copies[i];
}

/* The own checks at the end. */
static ds_status check_end(const ds_gathered *g)
{
    const ds_engine *engine = g->engine;
    for (uint32_t i = 0; i < g->n && g->modifier < 0; ++i) {
        if (XXH3_64bits(g->copies[i], count_of(g, i) * sizeof **g->copies) != g->digests[i]) {
            return ds_fail(engine->ctx, DS_ERR_STATE,
                           "the copy of %s was changed, and no modifier was given to "
                           "ds_engine_gather: the change is lost",
                           ds_cells_get(engine->cells, g->cells[i])->name);
        }
    }
    if (g->modifier >= 0 && engine->global_steps != g->steps) {
        return ds_fail(engine->ctx, DS_ERR_STATE,
                       "%llu steps were taken while parameters were gathered to be modified; "
                       "nothing is taken over",
                       (unsigned long long)(engine->global_steps - g->steps));
    }
    return g->modifier >= 0 ? dsi_engine_check_settled(engine, "gathered parameters") : DS_OK;
}

static ds_status take_over(ds_gathered *g, uint32_t i)
{
    ds_engine *engine = g->engine;
    DS_TRY(dsi_zenflow_drain(engine));
    engine->zenflow.fetch = engine->zenflow.chosen;
    const char *name = ds_cells_get(engine->cells, g->cells[i])->name;
    const size_t count = count_of(g, i);
    if (engine->comm != NULL) {
        const dsi_comm_part part = {.in = g->copies[i], .out = g->copies[i], .count = count};
        const dsi_comm_call call = {.kind = DS_COMM_BROADCAST,
                                    .dtype = DS_DTYPE_F32,
                                    .factor = 1.0f,
                                    .peer = (uint32_t)g->modifier,
                                    .parts = &part,
                                    .n_parts = 1,
                                    .what = name};
        DS_TRY(dsi_comm_run(engine->comm, &call));
    }
    return dsi_engine_put(engine, g->cells[i], 0, (int64_t)count, g->copies[i], DS_DTYPE_F32);
}

ds_status ds_gathered_end(ds_gathered **gathered)
{
    ds_gathered *g = gathered != NULL ? *gathered : NULL;
    if (g == NULL) {
        return DS_OK;
    }
    ds_status status =
        dsi_engine_same(g->engine, "end gathered parameters", digest_of_list(g), check_end(g));
    for (uint32_t i = 0; i < g->n && g->modifier >= 0 && status == DS_OK; ++i) {
        status = take_over(g, i);
    }
    unlink_and_free(g);
    *gathered = NULL;
    return status;
}
