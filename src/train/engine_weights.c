/* SPDX-License-Identifier: Apache-2.0 */
/* Fills the parameters: freshly, or from a model folder. */
#include "base/rng.h"
#include "ckpt/model_weights.h"
#include "train/engine.h"

#include <deepspeed/op.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BLOCK = 1 << 14, PIECE = 1 << 22 };

typedef struct init_job {
    float *data;
    size_t first; /* element of the tensor that data[0] is */
    size_t count;
    ds_init init;
    uint64_t seed;
    uint32_t site;
} init_job;

static const double LEAST_LOG = 0.01; /* of what DS_INIT_LOG_UNIFORM takes logarithms of */

static void init_block(void *arg, uint32_t task, uint32_t thread)
{
    const init_job *job = arg;
    const size_t begin = (size_t)task * BLOCK;
    const size_t end = begin + BLOCK < job->count ? begin + BLOCK : job->count;
    (void)thread;
    if (job->init.kind == DS_INIT_NORMAL) {
        dsi_rng_normals(job->seed, job->site, job->first + begin, (float)job->init.std,
                        job->data + begin, end - begin);
        return;
    }
    if (job->init.kind == DS_INIT_UNIFORM) {
        for (size_t i = begin; i < end; ++i) {
            const uint32_t word = dsi_rng_u32(job->seed, job->site, 0, job->first + i);
            job->data[i] = (float)job->init.std * (2.0f * dsi_rng_unit(word) - 1.0f);
        }
        return;
    }
    if (job->init.kind == DS_INIT_LOG_UNIFORM) {
        for (size_t i = begin; i < end; ++i) {
            const uint32_t word = dsi_rng_u32(job->seed, job->site, 0, job->first + i);
            const double span = job->init.std - LEAST_LOG;
            job->data[i] = (float)log(LEAST_LOG + span * (double)dsi_rng_unit(word));
        }
        return;
    }
    for (size_t i = begin; i < end; ++i) {
        job->data[i] = job->init.kind == DS_INIT_ONES ? 1.0f : 0.0f;
    }
}

static ds_status init_run(ds_engine *engine, ds_cell c, init_job *job, const dsi_run *run)
{
    for (int64_t at = 0; at < run->count; at += PIECE) {
        job->first = (size_t)(run->begin + at);
        job->count = (size_t)(run->count - at < PIECE ? run->count - at : PIECE);
        ds_parallel(engine->ctx, init_block, job, (uint32_t)((job->count + BLOCK - 1) / BLOCK));
        DS_TRY(dsi_engine_put(engine, c, run->begin + at, (int64_t)job->count, job->data,
                              DS_DTYPE_F32));
    }
    return DS_OK;
}

/* Numbers of a matrix that is to be packed. */
typedef struct fresh {
    ds_engine *engine;
    init_job job;
} fresh;

static ds_status read_fresh(void *user, int64_t first, int64_t n, float *out)
{
    fresh *f = user;
    f->job.data = out;
    f->job.first = (size_t)first;
    f->job.count = (size_t)n;
    ds_parallel(f->engine->ctx, init_block, &f->job, (uint32_t)((n + BLOCK - 1) / BLOCK));
    return DS_OK;
}

/* Fills one parameter run by run, only what this rank holds. Its random site is the hash of its
 * name: the same whatever else the model holds. */
static ds_status init_parameter(ds_engine *engine, ds_cell c, uint64_t seed, float *scratch)
{
    const ds_cell_info *info = ds_cells_get(engine->cells, c);
    const dsi_part own = dsi_engine_part(engine, c);
    init_job job = {.data = scratch,
                    .init = info->init,
                    .seed = seed,
                    .site = (uint32_t)XXH3_64bits(info->name, strlen(info->name))};
    if (info->packed.format != DS_PACKING_NONE) {
        fresh f = {engine, job};
        return dsi_engine_pack(engine, c, read_fresh, &f);
    }
    for (dsi_run run = {0}; dsi_part_next_run(&own, info->meta.shape, &run);) {
        DS_TRY(init_run(engine, c, &job, &run));
    }
    return DS_OK;
}

/* added: only what belongs to a parameter, and is no part of a model folder, and the head of
 * scores, which need not be. The master's part lies
 * inside of the parameter's: both are whole or the same slice, or the parameter is whole. */
static ds_status init_fresh(ds_engine *engine, uint64_t seed, bool added)
{
    float *scratch = malloc(PIECE * sizeof *scratch);
    if (scratch == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to initialise the parameters");
    }
    ds_status status = DS_OK;
    for (ds_cell c = 0; c < ds_cells_count(engine->cells) && status >= 0; ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        if (cell->kind == DS_CELL_PARAM &&
            (!added || cell->of != DS_NONE || dsi_is_new_head(cell->name))) {
            status = init_parameter(engine, c, seed, scratch);
        }
    }
    free(scratch);
    return status;
}

ds_status dsi_engine_fill(ds_engine *engine, const char *weights, uint64_t seed)
{
    DS_TRY(init_fresh(engine, seed, weights != NULL));
    DS_TRY(weights != NULL ? dsi_engine_load_folder(engine, weights) : DS_OK);
    return dsi_engine_load_teacher(engine);
}
