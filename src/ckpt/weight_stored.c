/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters that are stored in few bits, or many in one tensor. See model_weights_impl.h. */
#include "ckpt/expert_stack.h"
#include "ckpt/model_weights_impl.h"
#include "ckpt/mxfp4.h"
#include "model/adapter_experts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Blocks and scales of a parameter that is stored so. *found_out: whether there are any. */
ds_status dsi_match_mxfp4(dsi_matching *m, ds_cell c, const ds_cell_info *cell, bool *found_out)
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
        dsi_matching_use(m, both[i]);
    }
    m->found->parts[m->found->n_parts] = both[0];
    m->found->by_cell[c] =
        (dsi_weight){.parts = m->found->parts + m->found->n_parts, .n = 1, .scales = both[1]};
    m->found->n_parts += 1;
    return DS_OK;
}

/* A place for a matrix in real numbers; it is freed with the others, also after an error. */
static ds_status add_unpacked(dsi_matching *m, const char *name, dsi_unpacked_weight **out)
{
    dsi_unpacked_weight *u = calloc(1, sizeof *u);
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
ds_status dsi_match_bytes(dsi_matching *m, const char *name, ds_shape shape,
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
    dsi_unpacked_weight *u = NULL;
    m->found->few_bits = true;
    DS_TRY(add_unpacked(m, name, &u));
    DS_TRY(dsi_byte_unpack(m->ctx, &m->bytes, *tensor, found[0], found[1], shape, &u->tensor));
    u->tensor.name = u->name;
    dsi_matching_take(m, *tensor);
    for (int i = 0; i < 2; ++i) {
        if (found[i] != NULL) {
            dsi_matching_take(m, found[i]);
        }
    }
    *tensor = &u->tensor;
    return DS_OK;
}

/* X.weight in bitsandbytes' codes. *tensor stays where it is none. */
ds_status dsi_match_bnb(dsi_matching *m, const char *name, ds_shape shape,
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
    dsi_unpacked_weight *u = NULL;
    m->found->few_bits = true;
    DS_TRY(add_unpacked(m, name, &u));
    DS_TRY(dsi_bnb_unpack(m->ctx, m->bnb, &parts, shape, &u->tensor));
    u->tensor.name = u->name;
    for (int i = 0; i < DSI_BNB_N_PARTS; ++i) {
        if (parts.of[i] != NULL) {
            dsi_matching_take(m, parts.of[i]);
        }
    }
    *tensor = &u->tensor;
    return DS_OK;
}

/* A parameter X.weight that is stored as X.qweight or X.weight_packed and what belongs to it.
 * *tensor_out stays where it is not. Kept is what the cell holds in blocks: no stacked experts. */
ds_status dsi_match_int4(dsi_matching *m, const ds_cell_info *cell, const char *name,
                         ds_shape shape, const ds_safetensor **tensor_out)
{
    dsi_int4_parts parts;
    if (!dsi_int4_find(m->model, m->st, &m->int4, name, &parts)) {
        return DS_OK;
    }
    const ds_safetensor *const found[] = {parts.words, parts.scales, parts.zeros, parts.groups,
                                          parts.shape};
    for (size_t i = 0; i < sizeof found / sizeof found[0]; ++i) {
        if (found[i] != NULL) {
            dsi_matching_take(m, found[i]);
        }
    }
    if (m->kept != NULL && dsi_int4_blocks_type(m->kept, name, shape) == cell->meta.dtype) {
        *tensor_out = parts.words; /* whoever keeps it knows what it is */
        return DS_OK;
    }
    dsi_unpacked_weight *u = NULL;
    m->found->few_bits = true;
    DS_TRY(add_unpacked(m, name, &u));
    DS_TRY(dsi_int4_unpack(m->ctx, &m->int4, &parts, shape, &u->tensor));
    u->tensor.name = u->name;
    *tensor_out = &u->tensor;
    return DS_OK;
}

/* PyPI's compressed-tensors packs matrices of experts side by side, but says by no name whose they
 * are: no class of transformers' has them, and folders have an expert a tensor. */
static ds_status refuse_packed_stack(dsi_matching *m, const char *name)
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
ds_status dsi_match_stack(dsi_matching *m, ds_cell c, const ds_cell_info *cell, bool *found_out)
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
    dsi_matching_take(m, s.whole);
    if (s.scales != NULL) {
        dsi_matching_take(m, s.scales);
        m->found->few_bits = true;
    }
    const ds_safetensor **parts = m->found->parts + m->found->n_parts;
    for (int64_t e = 0; e < s.n_experts; ++e) {
        dsi_unpacked_weight *u = NULL;
        DS_TRY(dsi_stacked_name(m->ctx, cell->name, e, name));
        DS_TRY(add_unpacked(m, name, &u));
        u->mapped = s.scales == NULL;
        DS_TRY(dsi_expert_stack_read(m->ctx, &m->bytes, &s, e, &u->tensor));
        u->tensor.name = u->name;
        DS_TRY(dsi_weights_check_meta(m->ctx, (ds_meta){DS_DTYPE_F32, s.shape}, &u->tensor));
        parts[e] = &u->tensor;
        m->found->made[m->found->n_parts + (size_t)e] =
            u->mapped ? DSI_WEIGHT_SLICED : DSI_WEIGHT_UNPACKED;
    }
    m->found->by_cell[c] = (dsi_weight){.parts = parts, .n = s.n_experts};
    m->found->n_parts += (size_t)s.n_experts;
    *found_out = true;
    return DS_OK;
}
