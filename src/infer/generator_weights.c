/* SPDX-License-Identifier: Apache-2.0 */
/* Weights of a generator: mapped from a model folder where the dtype fits, else converted into
 * memory; or read from a training checkpoint. */
#include "base/process_memory.h"
#include "ckpt/adapter_weights.h"
#include "ckpt/model_weights.h"
#include "ckpt/packed_weight.h"
#include "infer/generator.h"
#include "io/safetensors_internal.h"

#include <deepspeed/aio.h>
#include <deepspeed/checkpoint.h>
#include <stdlib.h>
#include <string.h>

/* What must stay open while the generator lives. */
typedef struct source {
    ds_safetensors *st, *adapter;  /* of the model and of its adapter, if there is one */
    dsi_weights *weights;          /* of st */
    const ds_safetensor **adapted; /* of adapter, by cell; NULL: none, or the model's are taken */
    bool *bound;                   /* by cell: mapped, so that nothing is to be read */
    ds_checkpoint *ckpt;
    int64_t n_rounded, n_kept; /* matrices in blocks */
} source;

/* A part of a quantized matrix: its whole numbers or bytes, or scales of bytes, which have a dtype
 * of their own. */
static bool is_of_quantized(const ds_safetensor *t)
{
    const ds_dtype dtype = t->meta.dtype;
    return dtype == DS_DTYPE_I32 || dtype == DS_DTYPE_I64 || ds_dtype_bytes(dtype) == 1 ||
           strstr(t->name, ".weight_scale") != NULL;
}

ds_status dsi_generator_stored_dtype(ds_ctx *ctx, const ds_generator_params *params,
                                     ds_dtype *dtype_out)
{
    ds_safetensors *st = NULL;
    if (params->engine != NULL) {
        *dtype_out = params->engine->spec.train.dtype;
        return DS_OK;
    }
    if (params->weights == NULL) { /* masters are fp32; the config says what to compute in */
        const ds_dtype dtype = ds_model_get_info(params->model)->dtype;
        *dtype_out = dtype != DS_DTYPE_NONE ? dtype : DS_DTYPE_F32;
        return DS_OK;
    }
    DS_TRY(ds_safetensors_open_folder(ctx, params->weights, &st));
    ds_dtype dtype = DS_DTYPE_F32;
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        const ds_safetensor *t = ds_safetensors_at(st, i);
        if (!is_of_quantized(t)) {
            dtype = t->meta.dtype; /* of the first that is no part of a quantized matrix */
            break;
        }
    }
    ds_safetensors_close(&st);
    const bool computes = dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16;
    *dtype_out = computes ? dtype : DS_DTYPE_F32;
    return DS_OK;
}

/* Where this rank's part of a weight lies in the file's map, ready to be used; NULL: it has to be
 * converted or put together. */
static const void *mapped_part(const ds_generator *g, ds_cell c, const dsi_weight *weight)
{
    const dsi_part own = dsi_generator_part(g, c);
    dsi_run run = {0};
    const bool packed = ds_cells_get(g->cells, c)->packed.format != DS_PACKING_NONE;
    if (packed || weight->n == 0 || weight->gguf != NULL || !dsi_exec_is_on_host(g->exec) ||
        weight->parts[0]->meta.dtype != ds_cells_get(g->cells, c)->meta.dtype ||
        !dsi_part_next_run(&own, ds_cells_get(g->cells, c)->meta.shape, &run) ||
        run.count != own.count) {
        return NULL;
    }
    const ds_safetensor piece = dsi_weight_piece(weight, run.begin, run.count);
    const bool whole = piece.meta.shape.dims[0] == run.count;
    return whole && (uintptr_t)piece.data % ds_dtype_bytes(piece.meta.dtype) == 0 ? piece.data
                                                                                  : NULL;
}

/* A weight that is away and lies in the model's file as it is used needs no other storage. */
static bool read_in_place(ds_generator *g, const source *s, ds_cell c, const void *place)
{
    const char *path = NULL;
    uint64_t offset = 0;
    return (dsi_safetensors_locate(s->st, place, &path, &offset) ||
            (s->adapter != NULL && dsi_safetensors_locate(s->adapter, place, &path, &offset))) &&
           dsi_generator_offload_source(g, c, path, offset);
}

static ds_status match_adapter(ds_generator *g, source *s)
{
    s->adapted = calloc((size_t)ds_cells_count(g->cells) + 1, sizeof *s->adapted);
    return s->adapted != NULL
               ? dsi_adapter_weights_open(g->adapter, g->cells, &s->adapter, s->adapted)
               : ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for weights");
}

/* What an adapter has of parameters stands in front of the model's. */
static dsi_weight weight_of(const source *s, ds_cell c)
{
    return s->adapted != NULL && s->adapted[c] != NULL
               ? (dsi_weight){.parts = &s->adapted[c], .n = 1}
               : dsi_weights_of(s->weights, c);
}

static ds_status bind_folder(ds_generator *g, source *s, const char *weights)
{
    DS_TRY(ds_safetensors_open_folder(g->ctx, weights, &s->st));
    s->bound = calloc((size_t)ds_cells_count(g->cells) + 1, sizeof *s->bound);
    if (s->bound == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for weights");
    }
    DS_TRY(dsi_weights_match_kept(g->ctx, g->model, g->cells, s->st, false, g->int4, g->gguf,
                                  &s->weights));
    DS_TRY(g->adapter != NULL ? match_adapter(g, s) : DS_OK);
    for (ds_cell c = 0; c < ds_cells_count(g->cells); ++c) {
        const dsi_weight weight = weight_of(s, c);
        if (g->encodes && weight.n == 0 && ds_cells_get(g->cells, c)->kind == DS_CELL_PARAM) {
            return ds_fail(g->ctx, DS_ERR_NOT_FOUND,
                           "%s has no %s: it was not trained for this task", weights,
                           ds_cells_get(g->cells, c)->name);
        }
        const void *place = mapped_part(g, c, &weight);
        if (place != NULL && dsi_generator_is_away(g, c)) {
            s->bound[c] = read_in_place(g, s, c, place);
        } else if (place != NULL) {
            /* Kernels only read parameters: the map stays read-only. */
            DS_TRY(dsi_exec_bind(g->exec, c, (void *)(uintptr_t)place));
            s->bound[c] = true;
        }
    }
    return DS_OK;
}

ds_status dsi_generator_bind_weights(ds_generator *g, const ds_generator_params *params)
{
    source *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for weights");
    }
    g->source = s;
    if (params->checkpoint != NULL) {
        return ds_checkpoint_open(g->ctx, params->checkpoint, params->tag, &s->ckpt);
    }
    return bind_folder(g, s, params->weights);
}

ds_status dsi_generator_fill(ds_generator *g, ds_cell c, dsi_generator_fill_fn fill, void *user)
{
    void *view = dsi_exec_host_view(g->exec, c);
    if (view != NULL) {
        return fill(g, c, view, user);
    }
    const size_t bytes = ds_meta_bytes(ds_cells_get(g->local, c)->meta);
    void *room = NULL; /* of whole pages, which a disk takes without a copy, given back at once */
    DS_TRY(ds_aio_buffer_create(g->ctx, bytes, false, &room));
    ds_status status = fill(g, c, room, user);
    status = status < 0 ? status : dsi_exec_write(g->exec, c, 0, room, bytes);
    ds_aio_buffer_destroy(&room, bytes);
    return status;
}

/* Puts an extent of a checkpoint's tensor into its place among this rank's elements. */
static ds_status read_extent(ds_generator *g, const ds_checkpoint_tensor *tensor,
                             const ds_extent *extent, const dsi_part *own, ds_dtype dtype,
                             void *data)
{
    const source *s = g->source;
    const dsi_part from = dsi_part_of_extent(extent, tensor->meta.shape);
    const size_t size = ds_dtype_bytes(dtype);
    void *room = malloc((size_t)from.count * size + 1);
    if (room == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory to read a part of a tensor");
    }
    const ds_status status = ds_checkpoint_read(s->ckpt, tensor, extent, dtype, room);
    if (status >= 0) {
        (void)dsi_part_copy(&from, room, own, data, size);
    }
    free(room);
    return status;
}

static ds_status read_checkpoint(ds_generator *g, ds_cell c, void *data, void *user)
{
    const source *s = user;
    const ds_cell_info *cell = ds_cells_get(g->cells, c);
    const ds_checkpoint_tensor *tensor = ds_checkpoint_find(s->ckpt, "master", cell->name);
    tensor = tensor != NULL ? tensor : ds_checkpoint_find(s->ckpt, "param", cell->name);
    if (tensor == NULL || !ds_shape_equal(tensor->meta.shape, cell->meta.shape)) {
        return ds_fail(g->ctx, tensor == NULL ? DS_ERR_NOT_FOUND : DS_ERR_SHAPE,
                       "%s: the weight %s is missing or of another shape",
                       ds_checkpoint_get_info(s->ckpt)->path, cell->name);
    }
    if (g->comm == NULL) {
        return ds_checkpoint_read(s->ckpt, tensor, NULL, cell->meta.dtype, data);
    }
    const dsi_part own = dsi_generator_part(g, c);
    ds_extent extents[DSI_PART_MOST_EXTENTS];
    const uint32_t n = dsi_part_extents(&own, cell->meta.shape, extents);
    for (uint32_t i = 0; i < n; ++i) {
        DS_TRY(read_extent(g, tensor, &extents[i], &own, cell->meta.dtype, data));
    }
    return DS_OK;
}

/* Elements of a rank's part of a matrix, one after the other. */
typedef struct walk {
    const dsi_part *own;
    ds_shape shape; /* of the whole */
    dsi_run run;
    int64_t used; /* of the run */
} walk;

/* The next ones, at most n and of one row of the whole; *at_out: where they are in that. */
static int64_t next_of_row(walk *w, int64_t n, int64_t *at_out)
{
    const int64_t k = w->shape.dims[1];
    if (w->used == w->run.count && !dsi_part_next_run(w->own, w->shape, &w->run)) {
        return 0;
    }
    w->used = w->used == w->run.count ? 0 : w->used;
    *at_out = w->run.begin + w->used;
    const int64_t of_row = k - *at_out % k;
    const int64_t of_run = w->run.count - w->used;
    n = n < of_row ? n : of_row;
    n = n < of_run ? n : of_run;
    w->used += n;
    return n;
}

/* What blocks are read from. */
typedef struct block_source {
    ds_ctx *ctx;
    const dsi_gguf_blocks *kept; /* the file's, taken as they are */
    dsi_int4_blocks *int4;       /* the folder's; both NULL: rounded */
    const char *name;            /* of the parameter */
    uint8_t *row;                /* room for one of int4 */
    const dsi_weight *weight;
    ds_meta meta; /* of the whole */
} block_source;

/* The next n elements, whole rows of the part, as blocks; rows: room for them. */
static ds_status next_blocks(const block_source *s, walk *w, int64_t n, float *rows,
                             uint8_t *blocks)
{
    const int64_t k = s->meta.shape.dims[1];
    int64_t at = 0;
    for (int64_t done = 0, part = 0; done < n; done += part) {
        part = next_of_row(w, n - done, &at);
        if (part == 0) {
            return ds_fail(s->ctx, DS_ERR_INTERNAL, "a part of a matrix in blocks ends early");
        }
        if (s->kept != NULL) {
            const uint8_t *row =
                dsi_gguf_blocks_row(s->kept, s->weight->parts[0]->name, s->meta, at / k);
            memcpy(blocks + dsi_block_row_bytes(s->meta.dtype, done),
                   row + dsi_block_row_bytes(s->meta.dtype, at % k),
                   dsi_block_row_bytes(s->meta.dtype, part));
        } else if (s->int4 != NULL) {
            dsi_int4_blocks_row(s->int4, s->name, at / k, s->row);
            memcpy(blocks + dsi_block_row_bytes(s->meta.dtype, done),
                   s->row + dsi_block_row_bytes(s->meta.dtype, at % k),
                   dsi_block_row_bytes(s->meta.dtype, part));
        } else {
            DS_TRY(dsi_weight_read(s->ctx, s->weight, at, part, DS_DTYPE_F32, rows + done));
        }
    }
    if (s->kept == NULL && s->int4 == NULL) {
        dsi_blocks_quantize(s->meta.dtype, rows, n, blocks);
    }
    return DS_OK;
}

/* This rank's part of a matrix in blocks, a panel at a time: those of the file, or its rows as
 * fp32, rounded. */
static ds_status read_blocks(ds_generator *g, ds_cell c, const dsi_weight *weight, uint8_t *data)
{
    source *s = g->source;
    const ds_meta meta = ds_cells_get(g->cells, c)->meta;
    const ds_shape own = ds_cells_get(g->local, c)->meta.shape;
    const dsi_part part = dsi_generator_part(g, c);
    const bool kept = g->gguf != NULL && weight->n == 1 &&
                      dsi_gguf_blocks_row(g->gguf, weight->parts[0]->name, meta, 0) != NULL;
    const char *name = ds_cells_get(g->cells, c)->name;
    const bool whole =
        g->int4 != NULL && dsi_int4_blocks_type(g->int4, name, meta.shape) == meta.dtype;
    block_source from = {.ctx = g->ctx,
                         .kept = kept ? g->gguf : NULL,
                         .int4 = whole ? g->int4 : NULL,
                         .name = name,
                         .weight = weight,
                         .meta = meta};
    walk w = {.own = &part, .shape = meta.shape};
    const int64_t k = own.dims[1];
    const size_t row_bytes = dsi_block_row_bytes(meta.dtype, k);
    const size_t of_row = dsi_block_row_bytes(meta.dtype, meta.shape.dims[1]);
    float *rows =
        malloc((size_t)(DSI_BLOCK_ROWS * k) * sizeof *rows + DSI_BLOCK_ROWS * row_bytes + of_row);
    uint8_t *blocks = (uint8_t *)(rows + DSI_BLOCK_ROWS * k);
    from.row = blocks + DSI_BLOCK_ROWS * row_bytes;
    ds_status status = rows != NULL ? DS_OK : ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for rows");
    for (int64_t r = 0; r < own.dims[0] && status >= 0; r += DSI_BLOCK_ROWS) {
        const int64_t n = own.dims[0] - r < DSI_BLOCK_ROWS ? own.dims[0] - r : DSI_BLOCK_ROWS;
        status = next_blocks(&from, &w, n * k, rows, blocks);
        if (status >= 0) {
            dsi_blocks_weave(meta.dtype, blocks, n, row_bytes, k, data);
            data += dsi_panel_bytes(meta.dtype, k);
        }
    }
    s->n_kept += kept || whole;
    s->n_rounded += !kept && !whole;
    free(rows);
    return status;
}

static ds_status read_folder(ds_generator *g, ds_cell c, void *data, void *user)
{
    const source *s = user;
    const dsi_part own = dsi_generator_part(g, c);
    const dsi_weight weight = weight_of(s, c);
    if (dsi_is_blocks(ds_cells_get(g->cells, c)->meta.dtype)) {
        return read_blocks(g, c, &weight, data);
    }
    const ds_shape shape = ds_cells_get(g->cells, c)->meta.shape;
    const ds_dtype dtype = ds_cells_get(g->cells, c)->meta.dtype; /* not always the model's */
    if (ds_cells_get(g->cells, c)->packed.format != DS_PACKING_NONE) {
        return dsi_packed_load(g->ctx, ds_cells_get(g->cells, c), g->dtype, &weight, data);
    }
    for (dsi_run run = {0}; dsi_part_next_run(&own, shape, &run);) {
        DS_TRY(dsi_weight_read(g->ctx, &weight, run.begin, run.count, dtype,
                               (unsigned char *)data + (size_t)run.local * ds_dtype_bytes(dtype)));
    }
    return DS_OK;
}

/* Whether bytes lie in a map of the files, and not in memory of our own: of a vocabulary that was
 * enlarged, of an adapter's experts, whose elements are put into another order. */
static bool is_mapped(const source *s, const void *data)
{
    const char *path = NULL;
    uint64_t offset = 0;
    return dsi_safetensors_locate(s->st, data, &path, &offset) ||
           (s->adapter != NULL && dsi_safetensors_locate(s->adapter, data, &path, &offset));
}

/* What was converted is not read again. */
static void release(const source *s, ds_cell c)
{
    const dsi_weight weight = weight_of(s, c);
    for (int64_t i = 0; i < weight.n; ++i) {
        const ds_safetensor *part = weight.parts[i];
        if (!dsi_weights_drop(s->weights, part) && is_mapped(s, part->data)) {
            dsi_process_memory_release(part->data, part->bytes);
        }
    }
}

ds_status dsi_generator_convert_weights(ds_generator *g)
{
    source *s = g->source;
    for (ds_cell c = 0; c < ds_cells_count(g->cells); ++c) {
        const bool lacks = dsi_generator_part(g, c).count == 0; /* another stage has it */
        if (ds_cells_get(g->cells, c)->kind != DS_CELL_PARAM || lacks) {
            continue;
        }
        if (s->ckpt != NULL) {
            DS_TRY(dsi_generator_fill(g, c, read_checkpoint, s));
        } else if (weight_of(s, c).n > 0 && !s->bound[c]) {
            DS_TRY(dsi_generator_fill(g, c, read_folder, s));
            release(s, c);
        }
    }
    if (g->gguf != NULL) {
        ds_log(g->ctx, DS_LOG_JOB, "matrices in %s: %lld as the file has them, %lld rounded",
               g->quantize != DS_DTYPE_NONE ? ds_dtype_name(g->quantize) : "the file's types",
               (long long)s->n_kept, (long long)s->n_rounded);
        dsi_gguf_blocks_close(&g->gguf); /* all is read: weights are not asked again */
    }
    if (g->int4 != NULL) {
        ds_log(g->ctx, DS_LOG_JOB,
               "matrices in blocks: %lld as the folder has them; %lld others "
               "are real numbers",
               (long long)s->n_kept, (long long)dsi_int4_blocks_n_real(g->int4));
        dsi_int4_blocks_close(&g->int4);
    }
    return DS_OK;
}

void dsi_generator_close_weights(ds_generator *g)
{
    source *s = g->source;
    if (s != NULL) {
        dsi_weights_destroy(&s->weights);
        free(s->bound);
        free(s->adapted);
        ds_safetensors_close(&s->st);
        ds_safetensors_close(&s->adapter);
        ds_checkpoint_close(&s->ckpt);
        free(s);
        g->source = NULL;
    }
}
