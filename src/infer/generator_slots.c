/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters in slots: a folder of PEFT's into one slot of each layer that it means.
 *
 * Which modules are meant, and that the folder has all and only their tensors, is found as for one
 * adapter: by its graph over cells of its own. Nothing is written before all of it is checked.
 */
#include "base/half.h"
#include "ckpt/adapter_weights.h"
#include "ckpt/model_weights.h"
#include "compile/adapter_graph.h"
#include "compile/train_graph.h"
#include "infer/generator.h"
#include "model/adapter.h"
#include "train/same_files.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NAME_BYTES = 1200 };

/* What is read. */
typedef struct reading {
    ds_generator *g;
    const ds_adapter *adapter;
    int64_t slot;
    ds_cells *cells; /* of the adapter's graph */
    ds_safetensors *st;
    const ds_safetensor **by_cell;
} reading;

static ds_status check_kind(ds_ctx *ctx, const ds_adapter *a)
{
    return a->dora || a->pissa
               ? ds_fail(
                     ctx, DS_ERR_UNSUPPORTED,
                     "%s: slots hold plain LoRA and rsLoRA, not %s; ds_checkpoint merge makes a "
                     "model of it",
                     a->folder, a->dora ? "DoRA" : "PiSSA")
               : DS_OK;
}

static ds_status add_graph(reading *r, uint32_t task)
{
    ds_graph *graph = NULL;
    const ds_trace trace = {.mode = DS_TRACE_GENERATE,
                            .dtype = r->g->dtype,
                            .batch = 1,
                            .seq_length = task == DS_TASK_TOKENS ? 1 : 2,
                            .kv_length = r->g->max_length,
                            .task = task,
                            .whole_heads = 1};
    DS_TRY(dsi_forward_graph(r->g->model, &trace, NULL, NULL, r->cells, &graph));
    const ds_status status = dsi_adapter_graph(r->adapter, &trace, &graph);
    ds_graph_destroy(&graph);
    return status;
}

/* Of a model of sources and what is made of them, both halves. */
static ds_status match(reading *r)
{
    DS_TRY(dsi_adapter_check_pairs(r->adapter, r->g->model));
    DS_TRY(ds_cells_create(r->g->ctx, DSI_GENERATOR_CELLS, &r->cells));
    DS_TRY(add_graph(r, DS_TASK_TOKENS));
    DS_TRY(r->g->pairs ? add_graph(r, DS_TASK_HIDDEN) : DS_OK);
    r->by_cell = calloc((size_t)ds_cells_count(r->cells) + 1, sizeof *r->by_cell);
    return r->by_cell != NULL ? dsi_adapter_weights_open(r->adapter, r->cells, &r->st, r->by_cell)
                              : ds_fail(r->g->ctx, DS_ERR_NOMEM, "no memory for an adapter");
}

/* The slots' cell of a parameter MODULE.lora_A.weight; *is_b_out: it is B. */
static ds_cell pool_of(const reading *r, const char *name, bool *is_b_out)
{
    static const char ends[2][16] = {".lora_A.weight", ".lora_B.weight"};
    const size_t n = strlen(name), k = strlen(ends[0]);
    char path[NAME_BYTES];
    for (int i = 0; i < 2 && n > k && n < NAME_BYTES - 32; ++i) {
        if (strcmp(name + n - k, ends[i]) == 0) {
            (void)snprintf(path, sizeof path, DSI_SLOT_PREFIX "%.*s.%c", (int)(n - k), name,
                           i == 0 ? 'A' : 'B');
            *is_b_out = i == 1;
            return ds_cells_find(r->g->cells, DS_CELL_INPUT, path);
        }
    }
    return DS_NONE;
}

static ds_status check_cell(const reading *r, ds_cell c)
{
    const ds_cell_info *cell = ds_cells_get(r->cells, c);
    bool is_b = false;
    if (pool_of(r, cell->name, &is_b) == DS_NONE) {
        return ds_fail(r->g->ctx, DS_ERR_UNSUPPORTED,
                       "%s: %s is of no layer that has slots (embeddings, output heads and "
                       "modules_to_save have none); ds_checkpoint merge makes a model of it",
                       r->adapter->folder, cell->name);
    }
    const int64_t rank = cell->meta.shape.dims[is_b ? 1 : 0];
    return rank <= r->g->slots.rank
               ? DS_OK
               : ds_fail(r->g->ctx, DS_ERR_LIMIT,
                         "%s: %s has rank %lld, slots have %lld (adapter_rank, --max_lora_rank)",
                         r->adapter->folder, cell->name, (long long)rank,
                         (long long)r->g->slots.rank);
}

static void put(ds_dtype dtype, void *to, int64_t at, float x)
{
    if (dtype == DS_DTYPE_BF16) {
        ((uint16_t *)to)[at] = dsi_f32_to_bf16(x);
    } else if (dtype == DS_DTYPE_F16) {
        ((uint16_t *)to)[at] = dsi_f32_to_f16(x);
    } else {
        ((float *)to)[at] = x;
    }
}

/* Writes what this rank has of a slot's whole matrix. */
static ds_status write_part(const reading *r, ds_cell pool, ds_meta meta, const void *whole)
{
    const ds_shape one = ds_shape_3d(1, meta.shape.dims[1], meta.shape.dims[2]);
    const dsi_part own = dsi_generator_part_of(r->g, pool, one);
    const size_t size = ds_dtype_bytes(meta.dtype);
    const size_t begin = (size_t)(r->slot * own.count) * size;
    for (dsi_run run = {0}; dsi_part_next_run(&own, one, &run);) {
        DS_TRY(dsi_exec_write(r->g->exec, pool, begin + (size_t)run.local * size,
                              (const unsigned char *)whole + (size_t)run.begin * size,
                              (size_t)run.count * size));
    }
    return DS_OK;
}

/* The stored matrix turned into the slot's, zeros beyond its rank; B with the adapter's scale. */
static ds_status write_cell(const reading *r, ds_cell c, double scale, ds_cell pool, bool is_b)
{
    const ds_meta meta = ds_cells_get(r->g->cells, pool)->meta;
    const ds_shape stored = ds_cells_get(r->cells, c)->meta.shape;
    const int64_t rows = stored.dims[0], columns = stored.dims[1];
    const int64_t width = meta.shape.dims[2];
    const int64_t count = meta.shape.dims[1] * width;
    const size_t bytes = (size_t)count * ds_dtype_bytes(meta.dtype);
    float *from = malloc((size_t)(rows * columns) * sizeof *from);
    void *to = calloc(1, bytes);
    const dsi_weight weight = {.parts = &r->by_cell[c], .n = 1};
    ds_status status =
        from != NULL && to != NULL
            ? dsi_weight_read(r->g->ctx, &weight, 0, rows * columns, DS_DTYPE_F32, from)
            : ds_fail(r->g->ctx, DS_ERR_NOMEM, "no memory for an adapter");
    for (int64_t i = 0; status >= 0 && i < rows; ++i) {
        for (int64_t k = 0; k < columns; ++k) {
            const float x = from[i * columns + k];
            put(meta.dtype, to, k * width + i, is_b ? (float)((double)x * scale) : x);
        }
    }
    status = status < 0 ? status : write_part(r, pool, meta, to);
    free(from);
    free(to);
    return status;
}

static ds_status write_all(const reading *r)
{
    for (ds_cell c = 0; c < ds_cells_count(r->cells); ++c) {
        DS_TRY(r->by_cell[c] != NULL ? check_cell(r, c) : DS_OK);
    }
    DS_TRY(dsi_generator_slot_clear(r->g, r->slot));
    for (ds_cell c = 0; c < ds_cells_count(r->cells); ++c) {
        const char *name = ds_cells_get(r->cells, c)->name;
        char module[NAME_BYTES];
        dsi_adapter_layer layer = {0};
        bool is_b = false, on = false;
        if (r->by_cell[c] == NULL) {
            continue;
        }
        const ds_cell pool = pool_of(r, name, &is_b);
        (void)snprintf(module, sizeof module, "%.*s",
                       (int)(strlen(name) - strlen(".lora_A.weight")), name);
        DS_TRY(dsi_adapter_match(r->adapter, module, false, &on, &layer));
        if (!on) {
            char key[NAME_BYTES + 8];
            (void)snprintf(key, sizeof key, "%s.weight", module);
            DS_TRY(dsi_adapter_match_parameter(r->adapter, key, &on, &layer));
        }
        if (!on) {
            return ds_fail(r->g->ctx, DS_ERR_INTERNAL, "%s: no target means %s", r->adapter->folder,
                           module);
        }
        DS_TRY(write_cell(r, c, layer.scale, pool, is_b));
    }
    return DS_OK;
}

ds_status dsi_generator_slot_clear(ds_generator *g, int64_t slot)
{
    for (ds_cell c = 0; c < ds_cells_count(g->local); ++c) {
        const ds_cell_info *cell = ds_cells_get(g->local, c);
        if (cell->kind != DS_CELL_INPUT ||
            strncmp(cell->name, DSI_SLOT_PREFIX, strlen(DSI_SLOT_PREFIX)) != 0) {
            continue;
        }
        const size_t bytes = ds_meta_bytes(cell->meta) / (size_t)g->slots.n;
        void *zeros = calloc(1, bytes);
        const ds_status status =
            zeros != NULL ? dsi_exec_write(g->exec, c, (size_t)slot * bytes, zeros, bytes)
                          : ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for an adapter");
        free(zeros);
        DS_TRY(status);
    }
    return DS_OK;
}

static ds_status load(ds_generator *g, int64_t slot, const ds_adapter *adapter)
{
    reading r = {.g = g, .adapter = adapter, .slot = slot};
    ds_status status = check_kind(g->ctx, adapter);
    status = status < 0 ? status : match(&r);
    status = status < 0 ? status : write_all(&r);
    ds_safetensors_close(&r.st);
    free(r.by_cell);
    ds_cells_destroy(&r.cells);
    return status;
}

/* own: whether this rank could open the folder. The others may have to read it from a slow disk. */
static ds_status load_on_all(ds_generator *g, int64_t slot, const ds_adapter *adapter,
                             ds_status own)
{
    const double patience = g->comm->timeout;
    dsi_generator_set_patience(g, 0.0); /* deaths are noticed all the same */
    ds_status status = ds_comm_agree(g->comm, g->ctx, own);
    status = status < 0 ? status
                        : dsi_same_folder(g->ctx, g->comm, dsi_adapter_folder(adapter),
                                          "adapter's folder");
    if (status >= 0) {
        status = ds_comm_agree(g->comm, g->ctx, load(g, slot, adapter));
    }
    dsi_generator_set_patience(g, patience);
    return status;
}

ds_status dsi_generator_slot_load(ds_generator *g, int64_t slot, const ds_adapter *adapter)
{
    if (g->comm == NULL) {
        return load(g, slot, adapter);
    }
    DS_TRY(dsi_paged_lead_slot(g, slot, dsi_adapter_folder(adapter)));
    return load_on_all(g, slot, adapter, DS_OK);
}

void dsi_generator_slot_follow(ds_generator *g, int64_t slot, const char *folder)
{
    ds_adapter *adapter = NULL;
    const ds_status own = ds_adapter_open(g->ctx, folder, &adapter);
    (void)load_on_all(g, slot, adapter, own); /* rank 0 reports it */
    ds_adapter_destroy(&adapter);
}
