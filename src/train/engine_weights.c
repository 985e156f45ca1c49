/* Fills the parameters: freshly, or from a model folder. */
#include "base/rng.h"
#include "train/engine.h"
#include "train/half_copy.h"

#include <deepspeed/op.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { BLOCK = 1 << 14 };

void dsi_engine_put(ds_engine *engine, ds_cell param, const void *data, ds_dtype dtype)
{
    const ds_cell_info *info = ds_cells_get(engine->cells, param);
    const size_t count = (size_t)ds_shape_count(info->meta.shape);
    const ds_cell master = ds_cells_find(engine->cells, DS_CELL_MASTER, info->name);
    if (master != DS_NONE) {
        dsi_half_copy(engine->ctx, dsi_exec_cell(engine->exec, master), DS_DTYPE_F32, data, dtype,
                      count, 1.0f);
    }
    void *to = dsi_exec_cell(engine->exec, param);
    if (info->meta.dtype == dtype) {
        memcpy(to, data, ds_meta_bytes(info->meta));
    } else {
        dsi_half_copy(engine->ctx, to, info->meta.dtype, data, dtype, count, 1.0f);
    }
}

typedef struct init_job {
    float *data;
    size_t count;
    ds_init init;
    uint64_t seed;
    uint32_t site;
} init_job;

static void init_block(void *arg, uint32_t task, uint32_t thread)
{
    const init_job *job = arg;
    const size_t begin = (size_t)task * BLOCK;
    const size_t end = begin + BLOCK < job->count ? begin + BLOCK : job->count;
    (void)thread;
    for (size_t i = begin; i < end; ++i) {
        switch (job->init.kind) {
        case DS_INIT_ZEROS:
            job->data[i] = 0.0f;
            break;
        case DS_INIT_ONES:
            job->data[i] = 1.0f;
            break;
        case DS_INIT_NORMAL:
            job->data[i] = (float)job->init.std * dsi_rng_normal(job->seed, job->site, i);
            break;
        }
    }
}

/* A parameter's random site is the hash of its name: the same whatever else the model holds. */
static ds_status init_fresh(ds_engine *engine, uint64_t seed)
{
    float *scratch = NULL;
    size_t room = 0;
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *info = ds_cells_get(engine->cells, c);
        const size_t count = (size_t)ds_shape_count(info->meta.shape);
        if (info->kind != DS_CELL_PARAM) {
            continue;
        }
        if (count > room) {
            free(scratch);
            scratch = malloc(count * sizeof *scratch);
            room = count;
            if (scratch == NULL) {
                return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to initialise %s", info->name);
            }
        }
        init_job job = {scratch, count, info->init, seed,
                        (uint32_t)XXH3_64bits(info->name, strlen(info->name))};
        ds_parallel(engine->ctx, init_block, &job, (uint32_t)((count + BLOCK - 1) / BLOCK));
        dsi_engine_put(engine, c, scratch, DS_DTYPE_F32);
    }
    free(scratch);
    return DS_OK;
}

ds_status dsi_engine_fill(ds_engine *engine, const char *weights, uint64_t seed)
{
    if (weights == NULL) {
        return init_fresh(engine, seed);
    }
    return dsi_engine_load_folder(engine, weights);
}
