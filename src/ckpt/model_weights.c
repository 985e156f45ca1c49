/* SPDX-License-Identifier: Apache-2.0 */
/* Matches stored tensors with parameters. See model_weights.h. */
#include "ckpt/model_weights.h"

#include "ckpt/bnb_weight.h"
#include "ckpt/byte_weight.h"
#include "ckpt/expert_stack.h"
#include "ckpt/int4.h"
#include "ckpt/mxfp4.h"
#include "ckpt/stacked.h"
#include "io/convert.h"
#include "model/adapter_experts.h"
#include "nn/nn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_LONGER = 3 }; /* embedding, output projection, its bias */

/* A matrix that is stored in four or eight bits, in real numbers. */
typedef struct unpacked_weight unpacked_weight;
struct unpacked_weight {
    ds_safetensor tensor;
    bool mapped; /* its data lies in the file */
    char name[DSI_STACKED_NAME_BYTES];
    unpacked_weight *next;
};

struct dsi_weights {
    unpacked_weight *unpacked;
    dsi_weight *by_cell;
    const ds_safetensor **parts; /* of all weights, one after the other */
    dsi_weight_origin *made;     /* of parts */
    bool *taken;                 /* of the stored tensors: it was read for one that was unpacked */
    size_t n_parts;
    bool few_bits;                     /* some were in few bits */
    ds_safetensor longer[MOST_LONGER]; /* with a row for each token, more than are stored */
    uint32_t n_longer;
};

static const char *head_name(const ds_model *model)
{
    const char *head = ds_model_get_info(model)->head;
    return head != NULL ? head : "lm_head.weight";
}

/* Norms of BERT's first folders: gamma and beta. */
static const ds_safetensor *find_old(const ds_safetensors *st, const char *name)
{
    static const char *const words[2][2] = {{".LayerNorm.weight", ".LayerNorm.gamma"},
                                            {".LayerNorm.bias", ".LayerNorm.beta"}};
    const size_t n = strlen(name);
    for (size_t i = 0; i < 2; ++i) {
        const size_t own = strlen(words[i][0]);
        char old[512];
        if (n >= own && n < sizeof old && strcmp(name + n - own, words[i][0]) == 0) {
            (void)snprintf(old, sizeof old, "%.*s%s", (int)(n - own), name, words[i][1]);
            return ds_safetensors_find(st, old);
        }
    }
    return NULL;
}

/* Mixtral's router by the name that transformers' class has, beside experts in one tensor. */
static const ds_safetensor *find_router(const ds_safetensors *st, const char *name)
{
    static const char end[] = ".weight";
    const size_t n = strlen(name), k = sizeof end - 1;
    char module[512];
    if (n <= k || n >= sizeof module || strcmp(name + n - k, end) != 0) {
        return NULL;
    }
    (void)snprintf(module, sizeof module, "%.*s", (int)(n - k), name);
    dsi_router_module(module);
    (void)snprintf(module + strlen(module), sizeof module - strlen(module), "%s", end);
    return strcmp(module, name) != 0 ? ds_safetensors_find(st, module) : NULL;
}

/* The parameter's tensor. Where a tied model's file has the output projection alone, it is both. */
const ds_safetensor *dsi_weights_find(const ds_model *model, const ds_safetensors *st,
                                      const char *name)
{
    const ds_model_info *info = ds_model_get_info(model);
    const char *prefix = info->base_prefix;
    const size_t n = strlen(prefix);
    const ds_safetensor *tensor = ds_safetensors_find(st, name);
    if (tensor == NULL && strncmp(name, prefix, n) == 0) {
        tensor = ds_safetensors_find(st, name + n);
    }
    if (tensor == NULL) {
        tensor = find_old(st, name);
    }
    if (tensor == NULL) {
        tensor = find_router(st, name);
    }
    if (tensor == NULL && info->tied_embeddings && info->embedding != NULL &&
        strcmp(name, info->embedding) == 0) {
        tensor = ds_safetensors_find(st, head_name(model));
    }
    if (tensor == NULL && info->stored_tied && strcmp(name, head_name(model)) == 0) {
        tensor = dsi_weights_find(model, st, info->embedding);
    }
    return tensor;
}

static ds_status check_meta(ds_ctx *ctx, ds_meta want, const ds_safetensor *tensor)
{
    const ds_dtype dtype = tensor->meta.dtype;
    if (dsi_gguf_blocks_left(tensor)) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s: the blocks of %s stayed in the GGUF file that the folder was made of: "
                       "it is of use only beside it",
                       tensor->path, tensor->name);
    }
    const bool real = dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16 ||
                      dtype == DS_DTYPE_F64;
    if (!real || !ds_shape_equal(tensor->meta.shape, want.shape)) {
        char need[160];
        char got[160];
        return ds_fail(ctx, DS_ERR_SHAPE, "%s: tensor %s is %s, the model needs the shape of %s",
                       tensor->path, tensor->name, ds_meta_text(tensor->meta, got, sizeof got),
                       ds_meta_text(want, need, sizeof need));
    }
    return DS_OK;
}

/* A tied model's files may hold the output projection a second time, but no other one: transformers
 * does not tie then, whatever config.json says. */
static ds_status check_head(ds_ctx *ctx, const ds_model *model, const ds_safetensors *st)
{
    const ds_model_info *info = ds_model_get_info(model);
    const ds_safetensor *head = ds_safetensors_find(st, head_name(model));
    const ds_safetensor *embedding = dsi_weights_find(model, st, info->embedding);
    if (head == NULL || embedding == NULL || head == embedding) {
        return DS_OK;
    }
    if (head->meta.dtype == embedding->meta.dtype &&
        ds_shape_equal(head->meta.shape, embedding->meta.shape) && !dsi_gguf_blocks_left(head) &&
        memcmp(head->data, embedding->data, ds_meta_bytes(head->meta)) == 0) {
        return DS_OK;
    }
    return ds_fail(ctx, DS_ERR_FORMAT,
                   "%s: %s differs from %s, but config.json has "
                   "\"tie_word_embeddings\": true: set it to false to use both, or leave "
                   "%s out",
                   head->path, head->name, embedding->name, head->name);
}

bool dsi_is_new_head(const char *name)
{
    return strcmp(name, DSI_SCORE_HEAD) == 0 || strncmp(name, "classifier.", 11) == 0 ||
           strstr(name, ".pooler.dense.") != NULL || dsi_is_dense(name);
}

/* Of a reward model made of a language model, or of one that learns embeddings (ds_contrast). */
static bool is_left_head(const ds_model *model, const ds_cells *cells, const char *name)
{
    return strcmp(name, head_name(model)) == 0 &&
           (ds_cells_find(cells, DS_CELL_PARAM, DSI_SCORE_HEAD) != DS_NONE ||
            ds_cells_find(cells, DS_CELL_INPUT, "train/pool") != DS_NONE);
}

static bool is_tied_head(const ds_model *model, const char *name)
{
    const ds_model_info *info = ds_model_get_info(model);
    return info->tied_embeddings && info->embedding != NULL && strcmp(name, head_name(model)) == 0;
}

/* The bias of a tied output projection, which some folders have twice: it must be the same. */
static ds_status check_head_bias(ds_ctx *ctx, const ds_safetensors *st, const ds_safetensor *bias)
{
    static const char twice[] = ".decoder.bias";
    const size_t n = strlen(bias->name);
    const size_t m = sizeof twice - 1;
    char name[512];
    if (n < m || n >= sizeof name || strcmp(bias->name + n - m, twice) != 0) {
        return DS_OK;
    }
    (void)snprintf(name, sizeof name, "%.*s.bias", (int)(n - m), bias->name);
    const ds_safetensor *other = ds_safetensors_find(st, name);
    if (other == NULL || (other->bytes == bias->bytes && other->meta.dtype == bias->meta.dtype &&
                          memcmp(other->data, bias->data, bias->bytes) == 0)) {
        return DS_OK;
    }
    return ds_fail(ctx, DS_ERR_FORMAT,
                   "%s: %s differs from %s, but config.json has \"tie_word_embeddings\": true: set "
                   "it to false to use it, or leave it out",
                   bias->path, bias->name, other->name);
}

static ds_status check_extra(ds_ctx *ctx, const ds_model *model, const ds_cells *cells,
                             const ds_safetensors *st, const bool *used)
{
    for (size_t i = 0; i < ds_safetensors_count(st); ++i) {
        const ds_safetensor *tensor = ds_safetensors_at(st, i);
        if (!used[i] && is_tied_head(model, tensor->name)) {
            DS_TRY(check_head(ctx, model, st));
        } else if (!used[i] && ds_model_ignores(model, tensor->name)) {
            DS_TRY(check_head_bias(ctx, st, tensor));
        } else if (!used[i] && !is_left_head(model, cells, tensor->name)) {
            return ds_fail(ctx, DS_ERR_FORMAT,
                           "%s: the tensor %s is not part of this model (%s); does config.json "
                           "belong to these weights?",
                           tensor->path, tensor->name, ds_model_get_info(model)->architecture);
        }
    }
    return DS_OK;
}

typedef struct matching {
    ds_ctx *ctx;
    const ds_model *model;
    const ds_safetensors *st;
    bool *used; /* of the stored tensors */
    dsi_weights *found;
    dsi_int4_form int4;
    dsi_int4_blocks *kept;       /* NULL: all are unpacked */
    const dsi_gguf_blocks *gguf; /* what the folder lacks; NULL: nothing */
    dsi_byte_form bytes;
    dsi_bnb_form bnb;
} matching;

static void use(matching *m, const ds_safetensor *tensor)
{
    m->used[tensor - ds_safetensors_at(m->st, 0)] = true;
}

/* The same for what is unpacked. */
static void take(matching *m, const ds_safetensor *tensor)
{
    use(m, tensor);
    m->found->taken[tensor - ds_safetensors_at(m->st, 0)] = true;
}

/* Rows behind the stored ones: their mean, summed in fp64 and rounded to the dtype once. */
static ds_status add_rows(ds_ctx *ctx, const ds_safetensor *from, int64_t n_rows, ds_safetensor *to)
{
    const int64_t stored = from->meta.shape.dims[0];
    const int64_t width = ds_shape_count(from->meta.shape) / (stored > 0 ? stored : 1);
    const size_t row_bytes = (size_t)width * ds_dtype_bytes(from->meta.dtype);
    double *sums = calloc((size_t)width + 1, sizeof *sums);
    float *row = malloc(((size_t)width + 1) * sizeof *row);
    unsigned char *data = malloc((size_t)n_rows * row_bytes + 1);
    if (sums == NULL || row == NULL || data == NULL) {
        free(sums);
        free(row);
        free(data);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for %s with %lld rows", from->name,
                       (long long)n_rows);
    }
    memcpy(data, from->data, (size_t)stored * row_bytes);
    for (int64_t r = 0; r < stored; ++r) {
        (void)dsi_convert(from->meta.dtype, data + (size_t)r * row_bytes, DS_DTYPE_F32, row,
                          (size_t)width);
        for (int64_t i = 0; i < width; ++i) {
            sums[i] += (double)row[i];
        }
    }
    for (int64_t i = 0; i < width && stored > 0; ++i) {
        row[i] = (float)(sums[i] / (double)stored);
    }
    for (int64_t r = stored; r < n_rows; ++r) {
        (void)dsi_convert(DS_DTYPE_F32, row, from->meta.dtype, data + (size_t)r * row_bytes,
                          (size_t)width);
    }
    free(sums);
    free(row);
    *to = *from;
    to->meta.shape.dims[0] = n_rows;
    to->bytes = (size_t)n_rows * row_bytes;
    to->data = data;
    return DS_OK;
}

static bool is_head_bias(const ds_model *model, const char *name)
{
    const char *head = head_name(model);
    const char *dot = strrchr(head, '.');
    const size_t n = dot != NULL ? (size_t)(dot - head) : strlen(head);
    return strncmp(name, head, n) == 0 && strcmp(name + n, ".bias") == 0;
}

/* What has a row for each token, of a model whose vocabulary was enlarged (ds_model_change). */
static ds_status enlarge(matching *m, const char *name, const ds_safetensor **tensor)
{
    const ds_model_info *info = ds_model_get_info(m->model);
    const ds_shape shape = (*tensor)->meta.shape;
    const bool grows = info->stored_vocab > 0 && info->stored_vocab < info->vocab_size;
    if (!grows || shape.n_dims == 0 || shape.dims[0] != info->stored_vocab ||
        m->found->n_longer == MOST_LONGER ||
        (strcmp(name, info->embedding) != 0 && strcmp(name, head_name(m->model)) != 0 &&
         !is_head_bias(m->model, name))) {
        return DS_OK;
    }
    ds_safetensor *longer = &m->found->longer[m->found->n_longer];
    DS_TRY(add_rows(m->ctx, *tensor, info->vocab_size, longer));
    m->found->n_longer += 1;
    *tensor = longer;
    return DS_OK;
}

/* Blocks and scales of a parameter that is stored so. *found_out: whether there are any. */
static ds_status match_mxfp4(matching *m, ds_cell c, const ds_cell_info *cell, bool *found_out)
{
    const ds_safetensor *both[2] = {NULL, NULL};
    static const char *const ends[2] = {"_blocks", "_scales"};
    for (int i = 0; i < 2; ++i) {
        char name[DSI_STACKED_NAME_BYTES];
        const int length = snprintf(name, sizeof name, "%s%s", cell->name, ends[i]);
        both[i] = length > 0 && (size_t)length < sizeof name
                      ? dsi_weights_find(m->model, m->st, name)
                      : NULL;
    }
    *found_out = both[0] != NULL && both[1] != NULL;
    if (!*found_out) {
        return DS_OK;
    }
    DS_TRY(dsi_mxfp4_check(m->ctx, both[0], both[1], cell->meta.shape));
    for (int i = 0; i < 2; ++i) {
        use(m, both[i]);
    }
    m->found->parts[m->found->n_parts] = both[0];
    m->found->by_cell[c] =
        (dsi_weight){.parts = m->found->parts + m->found->n_parts, .n = 1, .scales = both[1]};
    m->found->n_parts += 1;
    return DS_OK;
}

/* A place for a matrix in real numbers; it is freed with the others, also after an error. */
static ds_status add_unpacked(matching *m, const char *name, unpacked_weight **out)
{
    unpacked_weight *u = calloc(1, sizeof *u);
    if (u == NULL) {
        return ds_fail(m->ctx, DS_ERR_NOMEM, "no memory to unpack %s", name);
    }
    u->next = m->found->unpacked;
    m->found->unpacked = u;
    (void)snprintf(u->name, sizeof u->name, "%s", name);
    *out = u;
    return DS_OK;
}

/* X.weight in bytes with its scales beside it, and zeros. *tensor stays where it is none. */
static ds_status match_bytes(matching *m, const char *name, ds_shape shape,
                             const ds_safetensor **tensor)
{
    const char *ends[2] = {m->bytes.scale, "weight_zero_point"};
    const ds_safetensor *found[2] = {NULL};
    const size_t n = strlen(name);
    if (!dsi_byte_is_stored(&m->bytes, *tensor) || n < 7 || strcmp(name + n - 7, ".weight") != 0) {
        return DS_OK;
    }
    for (int i = 0; i < 2; ++i) {
        char part[DSI_STACKED_NAME_BYTES + 32];
        (void)snprintf(part, sizeof part, "%.*s%s", (int)(n - 6), name, ends[i]);
        found[i] = dsi_weights_find(m->model, m->st, part);
    }
    if (found[0] == NULL) {
        return ds_fail(m->ctx, DS_ERR_NOT_FOUND,
                       "%s: the tensor %.*s%s is missing, the scales of %s", (*tensor)->path,
                       (int)(n - 6), name, ends[0], name);
    }
    unpacked_weight *u = NULL;
    m->found->few_bits = true;
    DS_TRY(add_unpacked(m, name, &u));
    DS_TRY(dsi_byte_unpack(m->ctx, &m->bytes, *tensor, found[0], found[1], shape, &u->tensor));
    u->tensor.name = u->name;
    take(m, *tensor);
    for (int i = 0; i < 2; ++i) {
        if (found[i] != NULL) {
            take(m, found[i]);
        }
    }
    *tensor = &u->tensor;
    return DS_OK;
}

/* X.weight in bitsandbytes' codes. *tensor stays where it is none. */
static ds_status match_bnb(matching *m, const char *name, ds_shape shape,
                           const ds_safetensor **tensor)
{
    if (!dsi_bnb_is_stored(m->bnb, *tensor)) {
        return DS_OK;
    }
    /* transformers quantizes a Conv1D's transpose, which says so by its shape only if not square */
    if (strcmp(ds_model_get_info(m->model)->architecture, "gpt2") == 0) {
        return ds_fail(m->ctx, DS_ERR_UNSUPPORTED,
                       "%s: tensor %s: a Conv1D of bitsandbytes' codes is not read (gpt2)",
                       (*tensor)->path, name);
    }
    const dsi_bnb_parts parts = dsi_bnb_find(m->st, *tensor);
    unpacked_weight *u = NULL;
    m->found->few_bits = true;
    DS_TRY(add_unpacked(m, name, &u));
    DS_TRY(dsi_bnb_unpack(m->ctx, m->bnb, &parts, shape, &u->tensor));
    u->tensor.name = u->name;
    for (int i = 0; i < DSI_BNB_N_PARTS; ++i) {
        if (parts.of[i] != NULL) {
            take(m, parts.of[i]);
        }
    }
    *tensor = &u->tensor;
    return DS_OK;
}

/* A parameter X.weight that is stored as X.qweight or X.weight_packed and what belongs to it.
 * *tensor_out stays where it is not. Kept is what the cell holds in blocks: no stacked experts. */
static ds_status match_int4(matching *m, const ds_cell_info *cell, const char *name, ds_shape shape,
                            const ds_safetensor **tensor_out)
{
    dsi_int4_parts parts;
    if (!dsi_int4_find(m->model, m->st, &m->int4, name, &parts)) {
        return DS_OK;
    }
    const ds_safetensor *const found[] = {parts.words, parts.scales, parts.zeros, parts.groups,
                                          parts.shape};
    for (size_t i = 0; i < sizeof found / sizeof found[0]; ++i) {
        if (found[i] != NULL) {
            take(m, found[i]);
        }
    }
    if (m->kept != NULL && dsi_int4_blocks_type(m->kept, name, shape) == cell->meta.dtype) {
        *tensor_out = parts.words; /* whoever keeps it knows what it is */
        return DS_OK;
    }
    unpacked_weight *u = NULL;
    m->found->few_bits = true;
    DS_TRY(add_unpacked(m, name, &u));
    DS_TRY(dsi_int4_unpack(m->ctx, &m->int4, &parts, shape, &u->tensor));
    u->tensor.name = u->name;
    *tensor_out = &u->tensor;
    return DS_OK;
}

/* PyPI's compressed-tensors packs matrices of experts side by side, but says by no name whose they
 * are: no class of transformers' has them, and folders have an expert a tensor. */
static ds_status refuse_packed_stack(matching *m, const char *name)
{
    static const char *const ends[] = {"_packed", ".weight_packed", ".weight"};
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; ++i) {
        char full[DSI_STACKED_NAME_BYTES + 16];
        (void)snprintf(full, sizeof full, "%s%s", name, ends[i]);
        const ds_safetensor *t = dsi_weights_find(m->model, m->st, full);
        if (t != NULL && t->meta.shape.n_dims > 2) {
            return ds_fail(m->ctx, DS_ERR_UNSUPPORTED,
                           "%s: tensor %s: a stack of experts that no class of transformers has "
                           "(%s is read, in real numbers or FP8); store an expert a tensor",
                           t->path, t->name, name);
        }
    }
    return DS_OK;
}

/* Experts that the file has as one tensor, in which this is one of the matrices of each. */
static ds_status match_stack(matching *m, ds_cell c, const ds_cell_info *cell, bool *found_out)
{
    const ds_shape shape = cell->meta.shape;
    dsi_expert_matrix matrix;
    char name[DSI_STACKED_NAME_BYTES];
    char scales[DSI_STACKED_NAME_BYTES + 16];
    *found_out = false;
    if (shape.n_dims != 3 || strchr(cell->name, '*') == NULL ||
        !dsi_expert_matrix_of(cell->name, &matrix)) {
        return DS_OK;
    }
    (void)snprintf(name, sizeof name, "%s.%s", matrix.module, matrix.parameter);
    (void)snprintf(scales, sizeof scales, "%s_scale_inv", name);
    dsi_expert_stack s = {.whole = dsi_weights_find(m->model, m->st, name),
                          .scales = dsi_weights_find(m->model, m->st, scales),
                          .n_experts = shape.dims[0],
                          .part = matrix.part,
                          .parts = matrix.parts,
                          .shape = dsi_stacked_shape(cell->name, shape)};
    if (s.whole == NULL) {
        return refuse_packed_stack(m, name);
    }
    DS_TRY(dsi_expert_stack_check(m->ctx, &m->bytes, &s));
    s.scales = dsi_byte_is_stored(&m->bytes, s.whole) ? s.scales : NULL;
    take(m, s.whole);
    if (s.scales != NULL) {
        take(m, s.scales);
        m->found->few_bits = true;
    }
    const ds_safetensor **parts = m->found->parts + m->found->n_parts;
    for (int64_t e = 0; e < s.n_experts; ++e) {
        unpacked_weight *u = NULL;
        DS_TRY(dsi_stacked_name(m->ctx, cell->name, e, name));
        DS_TRY(add_unpacked(m, name, &u));
        u->mapped = s.scales == NULL;
        DS_TRY(dsi_expert_stack_read(m->ctx, &m->bytes, &s, e, &u->tensor));
        u->tensor.name = u->name;
        DS_TRY(check_meta(m->ctx, (ds_meta){DS_DTYPE_F32, s.shape}, &u->tensor));
        parts[e] = &u->tensor;
        m->found->made[m->found->n_parts + (size_t)e] =
            u->mapped ? DSI_WEIGHT_SLICED : DSI_WEIGHT_UNPACKED;
    }
    m->found->by_cell[c] = (dsi_weight){.parts = parts, .n = s.n_experts};
    m->found->n_parts += (size_t)s.n_experts;
    *found_out = true;
    return DS_OK;
}

/* The tensors of one parameter. Those of an open folder lie side by side. */
static ds_status match_cell(matching *m, ds_cell c, const ds_cell_info *cell)
{
    const ds_meta whole = ds_cell_unpacked(cell, DS_DTYPE_F32);
    const ds_meta want = {whole.dtype, dsi_stacked_shape(cell->name, whole.shape)};
    const int64_t n = dsi_stacked_count(cell->name, whole.shape);
    const ds_safetensor **parts = m->found->parts + m->found->n_parts;
    char name[DSI_STACKED_NAME_BYTES];
    bool stack = false;
    DS_TRY(match_stack(m, c, cell, &stack));
    for (int64_t i = 0; i < n && !stack; ++i) {
        DS_TRY(dsi_stacked_name(m->ctx, cell->name, i, name));
        parts[i] = dsi_weights_find(m->model, m->st, name);
        if (parts[i] == NULL && dsi_is_new_head(cell->name)) {
            return !cell->frozen
                       ? DS_OK
                       : ds_fail(m->ctx, DS_ERR_NOT_FOUND,
                                 "the weights lack %s, which is frozen and would stay as it was "
                                 "drawn: train it (beside an adapter: --modules_to_save), or "
                                 "begin with a model that has it",
                                 name);
        }
        bool packed = false;
        if (parts[i] == NULL) {
            DS_TRY(match_int4(m, cell, name, want.shape, &parts[i]));
            if (parts[i] != NULL) {
                m->found->made[m->found->n_parts + (size_t)i] = DSI_WEIGHT_UNPACKED;
                continue;
            }
        }
        DS_TRY(parts[i] == NULL && n == 1 ? match_mxfp4(m, c, cell, &packed) : DS_OK);
        if (packed) {
            return DS_OK;
        }
        if (parts[i] == NULL) {
            const ds_safetensor *first = ds_safetensors_at(m->st, 0);
            return ds_fail(m->ctx, DS_ERR_NOT_FOUND, "%s: the tensor %s is missing",
                           first != NULL ? first->path : "weights", name);
        }
        use(m, parts[i]);
        if (m->gguf != NULL && n == 1 && dsi_gguf_blocks_left(parts[i]) &&
            dsi_gguf_blocks_type(m->gguf, parts[i]->name, want.shape) != DS_DTYPE_NONE) {
            m->found->by_cell[c] = (dsi_weight){
                .parts = parts, .n = n, .gguf = m->gguf, .row = ds_shape_last(want.shape)};
            m->found->n_parts += (size_t)n;
            return DS_OK;
        }
        const ds_safetensor *stored = parts[i];
        DS_TRY(match_bytes(m, name, want.shape, &parts[i]));
        DS_TRY(match_bnb(m, name, want.shape, &parts[i]));
        m->found->made[m->found->n_parts + (size_t)i] =
            parts[i] != stored ? DSI_WEIGHT_UNPACKED : DSI_WEIGHT_STORED;
        DS_TRY(enlarge(m, name, &parts[i]));
        DS_TRY(check_meta(m->ctx, want, parts[i]));
    }
    if (!stack) {
        m->found->by_cell[c] = (dsi_weight){.parts = parts, .n = n};
        m->found->n_parts += (size_t)n;
    }
    return DS_OK;
}

/* What belongs to a parameter is the run's, not the model's. */
static bool is_weight(const ds_cell_info *cell)
{
    return cell->kind == DS_CELL_PARAM && cell->of == DS_NONE;
}

static ds_status create(ds_ctx *ctx, const ds_cells *cells, const ds_safetensors *st,
                        dsi_weights **weights_out)
{
    size_t n_parts = 1;
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        n_parts += is_weight(cell) ? (size_t)dsi_stacked_count(cell->name, cell->meta.shape) : 0;
    }
    dsi_weights *w = calloc(1, sizeof *w);
    if (w == NULL || (w->parts = calloc(n_parts, sizeof *w->parts)) == NULL ||
        (w->made = calloc(n_parts, sizeof *w->made)) == NULL ||
        (w->taken = calloc(ds_safetensors_count(st) + 1, sizeof *w->taken)) == NULL ||
        (w->by_cell = calloc((size_t)ds_cells_count(cells) + 1, sizeof *w->by_cell)) == NULL) {
        dsi_weights_destroy(&w);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to match weights");
    }
    *weights_out = w;
    return DS_OK;
}

ds_status dsi_weights_match(ds_ctx *ctx, const ds_model *model, const ds_cells *cells,
                            const ds_safetensors *st, bool teacher, dsi_weights **weights_out)
{
    return dsi_weights_match_kept(ctx, model, cells, st, teacher, NULL, NULL, weights_out);
}

ds_status dsi_weights_match_kept(ds_ctx *ctx, const ds_model *model, const ds_cells *cells,
                                 const ds_safetensors *st, bool teacher, dsi_int4_blocks *kept,
                                 const dsi_gguf_blocks *gguf, dsi_weights **weights_out)
{
    matching m = {.ctx = ctx, .model = model, .st = st, .kept = kept, .gguf = gguf};
    DS_TRY(create(ctx, cells, st, &m.found));
    m.used = calloc(ds_safetensors_count(st) + 1, sizeof *m.used);
    ds_status status =
        m.used != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory to match weights");
    status = status < 0 ? status : dsi_int4_form_of(ctx, st, &m.int4);
    status = status < 0 ? status : dsi_byte_form_of(ctx, st, &m.bytes);
    status = status < 0 ? status : dsi_bnb_form_of(ctx, st, &m.bnb);
    for (ds_cell c = 0; c < ds_cells_count(cells) && status >= 0; ++c) {
        ds_cell_info cell = *ds_cells_get(cells, c);
        if (is_weight(&cell) && dsi_nn_is_teacher(&cell) == teacher) {
            cell.name += teacher ? DSI_NN_TEACHER_BYTES : 0;
            status = match_cell(&m, c, &cell);
        }
    }
    if (status >= 0 && (m.bytes.there || m.bnb != DSI_BNB_NONE) && !m.found->few_bits) {
        const ds_safetensor *first = ds_safetensors_at(st, 0);
        status = ds_fail(ctx, DS_ERR_UNSUPPORTED,
                         "%s: config.json has a quantization_config, but the weights are plain: "
                         "they are not rounded here; leave it out, or use --load_in_fp8",
                         first != NULL ? first->path : "weights");
    }
    if (status >= 0 && ds_model_get_info(model)->stored_tied) {
        status = check_head(ctx, model, st);
    }
    if (status >= 0) {
        status = check_extra(ctx, model, cells, st, m.used);
    }
    free(m.used);
    if (status < 0) {
        dsi_weights_destroy(&m.found);
        return status;
    }
    *weights_out = m.found;
    return DS_OK;
}

void dsi_weights_destroy(dsi_weights **weights)
{
    if (weights != NULL && *weights != NULL) {
        for (uint32_t i = 0; i < (*weights)->n_longer; ++i) {
            free((void *)(uintptr_t)(*weights)->longer[i].data);
        }
        for (unpacked_weight *u = (*weights)->unpacked; u != NULL;) {
            unpacked_weight *next = u->next;
            free(u->mapped ? NULL : (void *)(uintptr_t)u->tensor.data);
            free(u);
            u = next;
        }
        free((*weights)->parts);
        free((*weights)->made);
        free((*weights)->taken);
        free((*weights)->by_cell);
        free(*weights);
        *weights = NULL;
    }
}

bool dsi_weights_are_unpacked(const dsi_weights *weights)
{
    return weights->few_bits;
}

dsi_weight_origin dsi_weights_origin(const dsi_weights *weights, ds_cell cell, int64_t i)
{
    return weights->made[weights->by_cell[cell].parts - weights->parts + i];
}

bool dsi_weights_takes(const dsi_weights *weights, size_t i)
{
    return weights->taken[i];
}

bool dsi_weights_drop(dsi_weights *weights, const ds_safetensor *part)
{
    unpacked_weight *u = weights->unpacked;
    while (u != NULL && &u->tensor != part) {
        u = u->next;
    }
    if (u == NULL || u->mapped) {
        return false;
    }
    free((void *)(uintptr_t)u->tensor.data);
    u->tensor.data = NULL;
    return true;
}

dsi_weight dsi_weights_of(const dsi_weights *weights, ds_cell cell)
{
    return weights->by_cell[cell];
}

ds_safetensor dsi_weight_piece(const dsi_weight *weight, int64_t begin, int64_t count)
{
    const int64_t each = ds_shape_count(weight->parts[0]->meta.shape);
    ds_safetensor piece = *weight->parts[each > 0 ? begin / each : 0];
    const int64_t first = each > 0 ? begin % each : 0;
    const int64_t n = each - first < count ? each - first : count;
    const size_t size = ds_dtype_bytes(piece.meta.dtype);
    piece.meta.shape = ds_shape_1d(n);
    piece.data = (const unsigned char *)piece.data + (size_t)first * size;
    piece.bytes = (size_t)n * size;
    piece.file_offset += (size_t)first * size;
    return piece;
}

static ds_status read_mxfp4(ds_ctx *ctx, const dsi_weight *weight, int64_t begin, int64_t count,
                            ds_dtype dtype, void *data)
{
    enum { AT_ONCE = 4096 };
    float values[AT_ONCE];
    for (int64_t at = 0; at < count;) {
        const int64_t n = count - at < AT_ONCE ? count - at : AT_ONCE;
        dsi_mxfp4_read(weight->parts[0], weight->scales, begin + at, n, values);
        if (dsi_convert(DS_DTYPE_F32, values, dtype,
                        (char *)data + (size_t)at * ds_dtype_bytes(dtype), (size_t)n) > 0) {
            return ds_fail(ctx, DS_ERR_NUMERIC, "%s has values beyond the range of %s",
                           weight->parts[0]->name, ds_dtype_name(dtype));
        }
        at += n;
    }
    return DS_OK;
}

static ds_status read_gguf(ds_ctx *ctx, const dsi_weight *weight, int64_t begin, int64_t count,
                           ds_dtype dtype, void *data)
{
    const char *name = weight->parts[0]->name;
    float *row = malloc((size_t)weight->row * sizeof *row + 1);
    ds_status status = row != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory for %s", name);
    for (int64_t at = 0, n = 0; at < count && status >= 0; at += n) {
        const int64_t first = (begin + at) % weight->row;
        n = weight->row - first < count - at ? weight->row - first : count - at;
        status = dsi_gguf_blocks_read(weight->gguf, name, (begin + at) / weight->row, row);
        if (status >= 0 &&
            dsi_convert(DS_DTYPE_F32, row + first, dtype,
                        (char *)data + (size_t)at * ds_dtype_bytes(dtype), (size_t)n) > 0) {
            status = ds_fail(ctx, DS_ERR_NUMERIC, "%s has values beyond the range of %s", name,
                             ds_dtype_name(dtype));
        }
    }
    free(row);
    return status;
}

ds_status dsi_weight_read(ds_ctx *ctx, const dsi_weight *weight, int64_t begin, int64_t count,
                          ds_dtype dtype, void *data)
{
    if (weight->scales != NULL) {
        return read_mxfp4(ctx, weight, begin, count, dtype, data);
    }
    if (weight->gguf != NULL) {
        return read_gguf(ctx, weight, begin, count, dtype, data);
    }
    for (int64_t at = 0; at < count;) {
        const ds_safetensor piece = dsi_weight_piece(weight, begin + at, count - at);
        DS_TRY(ds_safetensors_read(ctx, &piece, dtype,
                                   (char *)data + (size_t)at * ds_dtype_bytes(dtype)));
        at += piece.meta.shape.dims[0];
    }
    return DS_OK;
}
