/* SPDX-License-Identifier: Apache-2.0 */
/* The shape that a parameter of a universal folder has in the model. See ckpt_deepspeed.h.
 *
 * The file has the whole parameter, the model's files the shapes of the ranks' shards, which
 * ds_to_universal joined as the job's universal_checkpoint_info says: by affine_map, or by patterns
 * (replicated and averaged ones are a shard; shards end to end in dim 0, in dim 1
 * (parameter_with_row_parallelism_patterns), or in the parts that sub-parameters are, which may
 * stand there in a view of more dims; of vocabulary_parameter_patterns the padding is gone). A
 * shape that is none of these is refused: its elements could be in another order than the module
 * has.
 */
#include "ckpt/ckpt_deepspeed.h"

#include <deepspeed/context.h>
#include <string.h>

/* The ranks' shards of a parameter. */
typedef struct shards {
    ds_shape first;
    int64_t sums[DS_MAX_DIMS]; /* of their lengths */
    bool alike[DS_MAX_DIMS];   /* whether all have the first's length */
    int64_t count;             /* elements of all */
} shards;

static const dsi_pickle *dims_in(const dsi_torch_file *file, const char *name)
{
    const dsi_pickle *groups = dsi_pickle_get(file->root, "param_shapes");
    const dsi_pickle *dims = NULL;
    for (size_t g = 0; g < dsi_pickle_count(groups) && dims == NULL; ++g) {
        dims = dsi_pickle_get(dsi_pickle_at(groups, g), name);
    }
    return dims;
}

bool dsi_deepspeed_has(const dsi_deepspeed *d, const char *name)
{
    bool found = false;
    for (uint32_t k = 0; k < d->n_models && !found; ++k) {
        found = dims_in(&d->models[k], name) != NULL;
    }
    return found;
}

/* Ranks that share each layer, whose files stand in a row for each stage; 0: versions that do not
 * say it. */
static ds_status tensor_ranks(const dsi_deepspeed *d, uint32_t *n_out)
{
    const dsi_pickle *sizes = dsi_pickle_get(d->models[0].root, "checkpoint_parallel_dimensions");
    int64_t n = 0;
    const bool says = dsi_pickle_whole(dsi_pickle_get(sizes, "tp_degree"), &n);
    *n_out = (uint32_t)n;
    return !says || (n >= 1 && n <= (int64_t)d->n_models && d->n_models % (uint32_t)n == 0)
               ? DS_OK
               : ds_fail(d->ctx, DS_ERR_FORMAT,
                         "%s is of %lld ranks that share layers, the folder has model files of %u",
                         d->models[0].path, (long long)n, d->n_models);
}

static ds_status add_shard(const dsi_deepspeed *d, const char *name, const dsi_torch_file *file,
                           bool is_first, shards *s)
{
    const dsi_pickle *dims = dims_in(file, name);
    ds_shape shape;
    if (dims == NULL || !dsi_deepspeed_dims(dims, &shape)) {
        return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: param_shapes has no shape of '%.160s'",
                       file->path, name);
    }
    if (is_first) {
        *s = (shards){.first = shape};
    } else if (shape.n_dims != s->first.n_dims) {
        return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: '%.160s' has %u dims, in %s %u", file->path,
                       name, shape.n_dims, d->models[0].path, s->first.n_dims);
    }
    for (uint32_t i = 0; i < shape.n_dims; ++i) {
        s->sums[i] += shape.dims[i];
        s->alike[i] = (is_first || s->alike[i]) && shape.dims[i] == s->first.dims[i];
    }
    s->count += ds_shape_count(shape);
    return DS_OK;
}

/* The shards of the first stage that has the parameter; where the stages are not known, of all
 * files that have it. */
static ds_status read_shards(const dsi_deepspeed *d, const char *name, shards *s, uint32_t *n_out)
{
    uint32_t n = 0;
    uint32_t first = 0;
    *n_out = 0;
    DS_TRY(tensor_ranks(d, &n));
    while (first < d->n_models && dims_in(&d->models[first], name) == NULL) {
        ++first;
    }
    if (first == d->n_models) {
        return ds_fail(d->ctx, DS_ERR_FORMAT, "%s: param_shapes of %s has no parameter '%.160s'",
                       d->folder, d->models[0].path, name);
    }
    const uint32_t begin = n > 0 ? first - first % n : first;
    const uint32_t end = n > 0 ? begin + n : d->n_models;
    for (uint32_t r = begin; r < end; ++r) {
        if (n > 0 || dims_in(&d->models[r], name) != NULL) {
            DS_TRY(add_shard(d, name, &d->models[r], *n_out == 0, s));
            ++*n_out;
        }
    }
    return DS_OK;
}

/* The one dim in which the shape is not the first shard's; n_dims: none; -1: several. */
static int joined_dim(const shards *s, ds_shape shape)
{
    int dim = (int)shape.n_dims;
    for (uint32_t i = 0; i < shape.n_dims; ++i) {
        if (!s->alike[i] || shape.dims[i] != s->first.dims[i]) {
            dim = dim == (int)shape.n_dims ? (int)i : -1;
        }
    }
    return dim;
}

/* A view of sub-parameters of more dims than the module has: the elements before the dim that was
 * cut are as many in both. */
static bool of_view(const dsi_pickle *view, const shards *s, ds_shape shape, ds_shape *whole_out)
{
    int64_t cut = -1;
    int64_t outer = 1;
    int64_t below = 1;
    if (!dsi_pickle_is(view, DSI_PICKLE_OBJECT) ||
        !dsi_pickle_whole(dsi_pickle_get(view->object.state, "partition_dim"), &cut) || cut < 0 ||
        cut >= (int64_t)shape.n_dims || ds_shape_count(shape) != s->count) {
        return false;
    }
    for (int64_t i = 0; i < cut; ++i) {
        outer *= shape.dims[i];
    }
    *whole_out = s->first;
    for (uint32_t k = 0; k < s->first.n_dims; ++k) {
        bool rest = below == outer;
        for (uint32_t i = 0; i < s->first.n_dims; ++i) {
            rest = rest && (i == k || s->alike[i]);
        }
        if (rest) {
            whole_out->dims[k] = s->sums[k];
            return ds_shape_count(*whole_out) == s->count;
        }
        below *= s->first.dims[k];
    }
    return false;
}

static bool is_true(const dsi_pickle *dict, const char *key)
{
    const dsi_pickle *value = dsi_pickle_get(dict, key);
    return dsi_pickle_is(value, DSI_PICKLE_BOOL) && value->truth;
}

/* By the rules above; false: by none. */
static bool find_whole(const dsi_deepspeed *d, const char *name, const dsi_pickle *dict,
                       ds_shape shape, const shards *s, ds_shape *whole_out)
{
    ds_shape mapped;
    const dsi_pickle *view = dsi_pickle_get(dict, "sub_param_shape");
    const bool vocabulary = is_true(dict, "vocab_tensor");
    const int dim = shape.n_dims == s->first.n_dims ? joined_dim(s, shape) : -1;
    *whole_out = shape;
    if (dsi_deepspeed_logical(d, name, &mapped)) {
        const int64_t rows = mapped.n_dims > 0 ? mapped.dims[0] : 0;
        mapped.dims[0] =
            vocabulary && shape.n_dims > 0 && shape.dims[0] < rows ? shape.dims[0] : rows;
        return ds_shape_equal(mapped, shape);
    }
    if (view != NULL && !dsi_pickle_is(view, DSI_PICKLE_NONE)) {
        return of_view(view, s, shape, whole_out);
    }
    if (dim < 0) {
        return false;
    }
    return dim == (int)shape.n_dims || shape.dims[dim] == s->sums[dim] ||
           (vocabulary && dim == 0 && shape.dims[0] < s->sums[0]);
}

ds_status dsi_deepspeed_whole(const dsi_deepspeed *d, const char *name, const dsi_torch_file *file,
                              ds_shape shape, ds_shape *whole_out)
{
    shards s = {0};
    uint32_t n = 0;
    bool right = false;
    DS_TRY(read_shards(d, name, &s, &n));
    if (n == 1) {
        /* stage 3's are flat, and may be padded for the ranks that saved it */
        *whole_out = s.first;
        right = shape.n_dims == 1 ? shape.dims[0] >= s.count : ds_shape_equal(shape, s.first);
    } else {
        right = find_whole(d, name, file->root, shape, &s, whole_out);
    }
    return right ? DS_OK
                 : ds_fail(d->ctx, DS_ERR_SHAPE,
                           "%s has not the shape that param_shapes has for it%s", file->path,
                           n > 1 ? ", by the shards of the ranks that share it" : "");
}

/* ---- experts ---- */

ds_status dsi_deepspeed_whole_experts(const dsi_deepspeed *d, const char *name,
                                      const dsi_torch_file *file, ds_shape shape,
                                      int64_t *n_experts_out)
{
    shards s = {0};
    uint32_t n = 0;
    int64_t experts = -1;
    DS_TRY(read_shards(d, name, &s, &n));
    if (n > 1) {
        return ds_fail(d->ctx, DS_ERR_UNSUPPORTED,
                       "%s: experts whose ranks share layers (%u of them) are not read", file->path,
                       n);
    }
    (void)dsi_pickle_whole(dsi_pickle_get(file->root, "ep_num_experts"), &experts);
    bool right = shape.n_dims > 1 && shape.n_dims == s.first.n_dims && shape.dims[0] == experts &&
                 experts >= 1 && s.first.dims[0] <= experts;
    for (uint32_t i = 1; i < shape.n_dims && right; ++i) {
        right = shape.dims[i] == s.first.dims[i];
    }
    *n_experts_out = experts;
    return right ? DS_OK
                 : ds_fail(d->ctx, DS_ERR_SHAPE,
                           "%s has not the shape of ep_num_experts (%lld) of what param_shapes "
                           "has for a rank",
                           file->path, (long long)experts);
}

bool dsi_deepspeed_is_experts(const dsi_torch_file *file)
{
    return is_true(file->root, "is_expert_param");
}
