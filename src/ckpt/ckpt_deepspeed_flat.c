/* SPDX-License-Identifier: Apache-2.0 */
/* Flat partitions of DeepSpeed's ranks as slices of logical tensors. See ckpt_deepspeed.h.
 *
 * Stages 1 and 2, BF16_Optimizer: a group's parameters are laid end to end (a padding may follow
 * each: param_alignment_paddings), padded, and cut into as many equal partitions as there are
 * ranks. Weights are stored without the padding at the end (BF16_Optimizer: with it), moments with
 * it, or all without it (elastic_checkpoint).
 *
 * Stage 3: of each parameter a rank has ceil(elements / ranks); these partitions lie end to end in
 * the sub-groups of the rank.
 */
#include "ckpt/ckpt_deepspeed.h"

#include <stdio.h>
#include <string.h>

static const char *const kinds[] = {"master", "exp_avg", "exp_avg_sq"};
enum { MASTER, N_KINDS = 3 };

/* The value of a whole number as key of a dict, or item i of a list. */
static const dsi_pickle *item_of(const dsi_pickle *value, int64_t i)
{
    if (!dsi_pickle_is(value, DSI_PICKLE_DICT)) {
        return i >= 0 ? dsi_pickle_at(value, (size_t)i) : NULL;
    }
    for (size_t k = 0; k < value->list.n; k += 2) {
        int64_t key = 0;
        if (dsi_pickle_whole(value->list.items[k], &key) && key == i) {
            return value->list.items[k + 1];
        }
    }
    return NULL;
}

const dsi_pickle *dsi_deepspeed_moments(const dsi_deepspeed *d, uint32_t rank, int64_t g)
{
    const dsi_pickle *base = dsi_pickle_get(
        d->states[rank], d->stage == 3 ? "optimizer_state_dict" : "base_optimizer_state");
    return dsi_pickle_is(base, DSI_PICKLE_LIST) ? item_of(base, g) /* elastic_checkpoint */
                                                : item_of(dsi_pickle_get(base, "state"), g);
}

/* A flat tensor of rank r's states that must be there; what: for the message. */
static ds_status vector_of(const dsi_deepspeed *d, uint32_t rank, const dsi_pickle *value,
                           const char *what, const dsi_pickle_tensor **tensor_out)
{
    const dsi_pickle_tensor *t = dsi_pickle_is(value, DSI_PICKLE_TENSOR) ? value->tensor : NULL;
    if (t == NULL || t->shape.n_dims != 1 || dsi_pickle_dense(t) == NULL ||
        dsi_pickle_dtype(t) == DS_DTYPE_NONE) {
        return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: %s is no flat tensor of numbers",
                       d->optims[rank].path, what);
    }
    *tensor_out = t;
    return DS_OK;
}

static const uint8_t *element(const dsi_pickle_tensor *t, int64_t i)
{
    return dsi_pickle_dense(t) + (size_t)i * t->storage->type->bytes;
}

/* ---- stages 1 and 2 ---- */

/* The partitions of a group: by rank and kind, NULL where the optimizer has no such moment. Those
 * of experts are cut by the `n` ranks that share the same experts: ranks first, first + step, … */
typedef struct group {
    int64_t index;
    uint32_t first, step, n;
    int64_t size; /* elements of a partition with its padding */
    ds_dtype dtype[N_KINDS];
    const dsi_pickle_tensor **parts; /* [n_ranks][N_KINDS] */
} group;

static const dsi_pickle_tensor *part_of(const group *g, uint32_t rank, size_t kind)
{
    return g->parts[(size_t)rank * N_KINDS + kind];
}

/* Rank k of those that share the group. */
static uint32_t rank_at(const group *g, uint32_t k)
{
    return g->first + k * g->step;
}

/* Elements of the padding that this rank's weights were stored without. */
static int64_t padding_of(const dsi_deepspeed *d, uint32_t rank, int64_t g)
{
    const dsi_pickle *paddings = dsi_pickle_get(d->states[rank], "group_paddings");
    int64_t n = 0;
    return d->stage > 0 && dsi_pickle_whole(dsi_pickle_at(paddings, (size_t)g), &n) && n > 0 ? n
                                                                                             : 0;
}

static ds_status read_part(dsi_deepspeed *d, group *g, uint32_t rank)
{
    const dsi_pickle *moments = dsi_deepspeed_moments(d, rank, g->index);
    const dsi_pickle *weights = dsi_pickle_at(
        dsi_pickle_get(d->states[rank], "single_partition_of_fp32_groups"), (size_t)g->index);
    const dsi_pickle_tensor **parts = &g->parts[(size_t)rank * N_KINDS];
    DS_TRY(vector_of(d, rank, weights, "single_partition_of_fp32_groups", &parts[MASTER]));
    for (size_t k = 1; k < N_KINDS; ++k) {
        const dsi_pickle *moment = dsi_pickle_get(moments, kinds[k]);
        if (moment != NULL) {
            DS_TRY(vector_of(d, rank, moment, kinds[k], &parts[k]));
        }
    }
    const int64_t n = ds_shape_count(parts[MASTER]->shape);
    const int64_t padding = padding_of(d, rank, g->index);
    const int64_t size = padding < INT64_MAX - n ? n + padding : n;
    const bool first = rank == g->first;
    g->size = first ? size : g->size;
    for (size_t k = 0; k < N_KINDS; ++k) {
        const int64_t own = parts[k] != NULL ? ds_shape_count(parts[k]->shape) : 0;
        const ds_dtype dtype = parts[k] != NULL ? dsi_pickle_dtype(parts[k]) : DS_DTYPE_NONE;
        g->dtype[k] = first ? dtype : g->dtype[k];
        if (size != g->size || own > size || dtype != g->dtype[k]) {
            return ds_fail(d->ctx, DS_ERR_FORMAT,
                           "%s: %s of group %lld has %lld elements of %s in a partition of %lld, "
                           "which does not fit rank %u's (%s, %lld)",
                           d->optims[rank].path, kinds[k], (long long)g->index, (long long)own,
                           ds_dtype_name(dtype), (long long)size, g->first,
                           ds_dtype_name(g->dtype[k]), (long long)g->size);
        }
    }
    return DS_OK;
}

/* What rank r's own file says of a parameter in its partition (param_slice_mappings), where it says
 * it: a rank's file in the place of another's would permute elements. begin, count: of the
 * partition; count 0: it has none of the parameter. */
static ds_status check_mapping(const dsi_deepspeed *d, const group *g, uint32_t r, const char *name,
                               int64_t begin, int64_t count)
{
    const dsi_pickle *all = dsi_pickle_get(d->states[r], "param_slice_mappings");
    const dsi_pickle *own = dsi_pickle_at(all, (size_t)g->index);
    const dsi_pickle *address = dsi_pickle_get(own, name);
    const dsi_pickle *state =
        dsi_pickle_is(address, DSI_PICKLE_OBJECT) ? address->object.state : NULL;
    int64_t start = -1;
    int64_t numel = 0;
    (void)dsi_pickle_whole(dsi_pickle_get(state, "start"), &start);
    (void)dsi_pickle_whole(dsi_pickle_get(state, "numel"), &numel);
    const bool right = count > 0 ? start == begin && numel == count : numel == 0;
    return dsi_pickle_count(own) == 0 || right
               ? DS_OK
               : ds_fail(d->ctx, DS_ERR_FORMAT,
                         "%s: param_slice_mappings has %lld elements of '%.160s' from %lld on, "
                         "rank %u of the folder has %lld from %lld on; is it another rank's file?",
                         d->optims[r].path, (long long)numel, name, (long long)start, r,
                         (long long)count, (long long)(count > 0 ? begin : -1));
}

/* Elements [at, at + count) of the group are one parameter; own: its name in a rank's files. */
static ds_status check_mappings(const dsi_deepspeed *d, const group *g, const char *own, int64_t at,
                                int64_t count)
{
    for (uint32_t i = 0; i < g->n; ++i) {
        const int64_t begin = (int64_t)i * g->size;
        const int64_t end = begin + g->size;
        const int64_t low = at > begin ? at : begin;
        const int64_t high = at + count < end ? at + count : end;
        DS_TRY(check_mapping(d, g, rank_at(g, i), own, low - begin, high > low ? high - low : 0));
    }
    return DS_OK;
}

/* Elements [at, at + count) of the group are one parameter. */
static ds_status add_flat(dsi_deepspeed *d, const group *g, const char *name,
                          const dsi_pickle *dims, int64_t at, int64_t count)
{
    for (size_t k = 0; k < N_KINDS; ++k) {
        if (g->dtype[k] == DS_DTYPE_NONE) {
            continue;
        }
        DS_TRY(dsi_deepspeed_tensor(d, kinds[k], name, g->dtype[k], dims));
        for (uint32_t i = 0; i < g->n; ++i) {
            const uint32_t r = rank_at(g, i);
            const dsi_pickle_tensor *part = part_of(g, r, k);
            const int64_t begin = (int64_t)i * g->size;
            const int64_t end = begin + ds_shape_count(part->shape);
            const int64_t low = at > begin ? at : begin;
            const int64_t high = at + count < end ? at + count : end;
            if (low < high) {
                DS_TRY(dsi_deepspeed_slice(d, r, low - at, high - low, element(part, low - begin)));
            }
        }
        DS_TRY(dsi_deepspeed_end_tensor(d));
    }
    return DS_OK;
}

/* A pair of param_shapes: its name and number of elements. */
static ds_status read_param(const dsi_deepspeed *d, const dsi_pickle *shapes, size_t i,
                            const char **name_out, int64_t *count_out)
{
    *name_out = dsi_pickle_text(shapes->list.items[2 * i]);
    *count_out = dsi_deepspeed_count(shapes->list.items[2 * i + 1]);
    return *name_out != NULL && **name_out != '\0' && *count_out >= 0
               ? DS_OK
               : ds_fail(d->ctx, DS_ERR_FORMAT,
                         "%s: param_shapes: '%.120s' has no shape that can be read",
                         d->models[0].path, *name_out != NULL ? *name_out : "?");
}

static ds_status add_group(dsi_deepspeed *d, group *g, const dsi_pickle *shapes)
{
    const dsi_pickle *paddings =
        dsi_pickle_at(dsi_pickle_get(d->states[0], "param_alignment_paddings"), (size_t)g->index);
    const int64_t all = g->size < (INT64_C(1) << 60) / g->n ? g->size * g->n : 0;
    const size_t n = dsi_pickle_is(shapes, DSI_PICKLE_DICT) ? dsi_pickle_count(shapes) : 0;
    int64_t at = 0;
    for (size_t i = 0; i < n; ++i) {
        const char *name = NULL;
        int64_t count = 0;
        int64_t padding = 0;
        DS_TRY(read_param(d, shapes, i, &name, &count));
        if (count > all - at) {
            return ds_fail(d->ctx, DS_ERR_FORMAT,
                           "%s: %s does not fit into the ranks' partitions of group %lld (%lld "
                           "elements)",
                           d->folder, name, (long long)g->index, (long long)all);
        }
        DS_TRY(check_mappings(d, g, name, at, count));
        DS_TRY(dsi_deepspeed_expert_name(d, shapes, &name, g->first));
        DS_TRY(add_flat(d, g, name, shapes->list.items[2 * i + 1], at, count));
        at += count;
        (void)dsi_pickle_whole(dsi_pickle_at(paddings, i), &padding);
        at += padding > 0 && padding < all - at ? padding : 0;
    }
    /* Partitions end at a multiple of 2 * ranks. */
    return all - at < 2 * (int64_t)g->n
               ? DS_OK
               : ds_fail(d->ctx, DS_ERR_FORMAT,
                         "%s: param_shapes has %lld elements of group %lld, the ranks' partitions "
                         "%lld",
                         d->folder, (long long)at, (long long)g->index, (long long)all);
}

ds_status dsi_deepspeed_flat(dsi_deepspeed *d)
{
    const dsi_pickle *shapes = dsi_pickle_get(d->models[0].root, "param_shapes");
    group g = {0};
    g.parts = dsi_arena_array(d->m->arena, (size_t)d->n_ranks * N_KINDS, sizeof *g.parts);
    if (g.parts == NULL) {
        return ds_fail(d->ctx, DS_ERR_NOMEM, "no memory to read %s", d->folder);
    }
    if (!dsi_pickle_is(shapes, DSI_PICKLE_LIST) || dsi_pickle_count(shapes) == 0) {
        return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: param_shapes is no list of groups",
                       d->models[0].path);
    }
    for (; g.index < (int64_t)dsi_pickle_count(shapes); ++g.index) {
        memset((void *)g.parts, 0, (size_t)d->n_ranks * N_KINDS * sizeof *g.parts);
        DS_TRY(dsi_deepspeed_expert_ranks(d, g.index, &g.step));
        g.n = d->n_ranks / g.step;
        for (g.first = 0; g.first < g.step; ++g.first) {
            for (uint32_t k = 0; k < g.n; ++k) {
                DS_TRY(read_part(d, &g, rank_at(&g, k)));
            }
            DS_TRY(add_group(d, &g, dsi_pickle_at(shapes, (size_t)g.index)));
        }
    }
    return DS_OK;
}

/* ---- stage 3 ---- */

/* Sub-group i of a rank, of a kind; NULL where the optimizer has no such moment. */
static ds_status sub_group(const dsi_deepspeed *d, uint32_t rank, int64_t i, size_t kind,
                           const dsi_pickle_tensor **tensor_out)
{
    const dsi_pickle *value =
        kind == MASTER
            ? dsi_pickle_at(dsi_pickle_get(d->states[rank], "fp32_flat_groups"), (size_t)i)
            : dsi_pickle_get(dsi_deepspeed_moments(d, rank, i), kinds[kind]);
    *tensor_out = NULL;
    return value == NULL && kind != MASTER
               ? DS_OK
               : vector_of(d, rank, value, kind == MASTER ? "fp32_flat_groups" : kinds[kind],
                           tensor_out);
}

/* Whether the optimizer has the kind at all, and its dtype: as sub-group 0 of rank 0. */
static ds_status kind_dtype(const dsi_deepspeed *d, size_t kind, ds_dtype *dtype_out)
{
    const dsi_pickle_tensor *t = NULL;
    DS_TRY(sub_group(d, 0, 0, kind, &t));
    *dtype_out = t != NULL ? dsi_pickle_dtype(t) : DS_DTYPE_NONE;
    return DS_OK;
}

/* Rank r's elements of a parameter: [at, at + count) of its sub-groups laid end to end; they are
 * the parameter's from `begin` on. */
static ds_status add_partition(dsi_deepspeed *d, uint32_t r, size_t kind, int64_t at, int64_t count,
                               int64_t begin)
{
    const ds_dtype dtype = d->m->tensors[d->m->n_tensors - 1].meta.dtype;
    const size_t n = dsi_pickle_count(dsi_pickle_get(d->states[r], "fp32_flat_groups"));
    int64_t start = 0; /* of the sub-group */
    for (size_t i = 0; i < n && count > 0; ++i) {
        const dsi_pickle_tensor *weights = NULL;
        const dsi_pickle_tensor *t = NULL;
        DS_TRY(sub_group(d, r, (int64_t)i, MASTER, &weights));
        const int64_t size = ds_shape_count(weights->shape);
        if (at < start + size) {
            DS_TRY(sub_group(d, r, (int64_t)i, kind, &t));
            if (t == NULL || dsi_pickle_dtype(t) != dtype || ds_shape_count(t->shape) != size) {
                return ds_fail(
                    d->ctx, DS_ERR_FORMAT, "%s: %s of sub-group %zu is not %lld elements of %s",
                    d->optims[r].path, kinds[kind], i, (long long)size, ds_dtype_name(dtype));
            }
            const int64_t own = count < start + size - at ? count : start + size - at;
            DS_TRY(dsi_deepspeed_slice(d, r, begin, own, element(t, at - start)));
            at += own;
            begin += own;
            count -= own;
        }
        start += size;
    }
    return DS_OK;
}

static ds_status add_param3(dsi_deepspeed *d, const ds_dtype dtypes[N_KINDS], const char *name,
                            const dsi_pickle *dims, int64_t at, int64_t part)
{
    const int64_t count = dsi_deepspeed_count(dims);
    for (size_t k = 0; k < N_KINDS; ++k) {
        if (dtypes[k] == DS_DTYPE_NONE) {
            continue;
        }
        DS_TRY(dsi_deepspeed_tensor(d, kinds[k], name, dtypes[k], dims));
        for (uint32_t r = 0; r < d->n_ranks; ++r) {
            const int64_t begin = (int64_t)r * part;
            const int64_t own = count - begin < part ? count - begin : part;
            if (own > 0) {
                DS_TRY(add_partition(d, r, k, at, own, begin));
            }
        }
        DS_TRY(dsi_deepspeed_end_tensor(d));
    }
    return DS_OK;
}

ds_status dsi_deepspeed_zero3(dsi_deepspeed *d)
{
    const dsi_pickle *groups = dsi_pickle_get(d->models[0].root, "param_shapes");
    ds_dtype dtypes[N_KINDS];
    int64_t at = 0;
    for (size_t k = 0; k < N_KINDS; ++k) {
        DS_TRY(kind_dtype(d, k, &dtypes[k]));
    }
    if (!dsi_pickle_is(groups, DSI_PICKLE_LIST) || dsi_pickle_count(groups) == 0) {
        return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: param_shapes is no list of groups",
                       d->models[0].path);
    }
    for (size_t g = 0; g < dsi_pickle_count(groups); ++g) {
        const dsi_pickle *shapes = dsi_pickle_at(groups, g);
        for (size_t i = 0; dsi_pickle_is(shapes, DSI_PICKLE_DICT) && i < dsi_pickle_count(shapes);
             ++i) {
            const char *name = NULL;
            int64_t count = 0;
            DS_TRY(read_param(d, shapes, i, &name, &count));
            const int64_t part = (count + d->n_ranks - 1) / d->n_ranks;
            DS_TRY(add_param3(d, dtypes, name, shapes->list.items[2 * i + 1], at, part));
            if (at > INT64_MAX / 2 - part) {
                return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: param_shapes has too many elements",
                               d->models[0].path);
            }
            at += part;
        }
    }
    return DS_OK;
}
