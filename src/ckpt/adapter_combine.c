/* SPDX-License-Identifier: Apache-2.0 */
/* Several adapters of one model as one: PEFT's add_weighted_adapter (tuners/lora/model.py), of its
 * ways without "…_svd" but "svd". See deepspeed/adapter.h.
 *
 * What is combined are the tensors of the folders, by their names; no model is needed. A combined
 * matrix is made whole in memory, one of each adapter beside it; "svd" makes the sum of what the
 * adapters add to a weight, which is as large as the weight.
 */
#include "base/reserved.h"
#include "ckpt/adapter_combiner.h"
#include "io/file.h"

#include <deepspeed/safetensors.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { NAME_BYTES = DSI_COMBINER_NAME_BYTES };

typedef dsi_combiner combiner;

static ds_status no_memory(ds_ctx *ctx)
{
    return ds_fail(ctx, DS_ERR_NOMEM, "no memory to combine adapters");
}

/* ---- what goes together ---------------------------------------------------------------------- */

static const json_t *field(const ds_adapter *a, const char *key)
{
    static const char *const empty[] = {"", "[]", "{}", "null", "false"};
    const json_t *value = json_object_get(a->config, key);
    char *text = value != NULL ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    bool none = text == NULL || strcmp(text, "\"\"") == 0;
    for (size_t i = 0; i < sizeof empty / sizeof empty[0] && !none; ++i) {
        none = strcmp(text, empty[i]) == 0;
    }
    free(text);
    return none ? NULL : value;
}

static ds_status refuse(const combiner *c, uint32_t i, const char *key, const char *why)
{
    return ds_fail(c->ctx, DS_ERR_UNSUPPORTED, "%s/%s: \"%s\": %s", c->p->adapters[i]->folder,
                   DSI_ADAPTER_CONFIG, key, why);
}

/* Whether matrices are added as they are, which needs one rank. */
static bool adds_matrices(const combiner *c)
{
    return c->p->combination != DS_ADAPTER_CAT && c->p->combination != DS_ADAPTER_SVD;
}

static int64_t largest_rank(const ds_adapter *a)
{
    const char *key;
    json_t *value;
    int64_t rank = a->rank;
    json_object_foreach(json_object_get(a->config, "rank_pattern"), key, value)
    {
        rank = json_integer_value(value) > rank ? json_integer_value(value) : rank;
    }
    return rank;
}

static ds_status check_one(combiner *c, uint32_t i)
{
    static const char *const alike[] = {"layers_to_transform", "layers_pattern", "exclude_modules"};
    const ds_adapter *a = c->p->adapters[i], *first = c->p->adapters[0];
    const int64_t rank = largest_rank(a);
    DS_TRY(dsi_adapter_check_alone(a, "ds_adapter_combine"));
    if (a->folder == NULL) {
        return ds_fail(c->ctx, DS_ERR_ARG,
                       "ds_adapter_combine: expected adapters that were opened from folders");
    }
    if (a->dora || field(a, "target_parameters") != NULL || field(a, "modules_to_save") != NULL) {
        return refuse(c, i,
                      a->dora                                 ? "use_dora"
                      : field(a, "target_parameters") != NULL ? "target_parameters"
                                                              : "modules_to_save",
                      "such adapters are not combined; merge them into the model one by one");
    }
    for (size_t k = 0; k < sizeof alike / sizeof alike[0]; ++k) {
        const json_t *own = field(a, alike[k]), *other = field(first, alike[k]);
        if ((own == NULL) != (other == NULL) || (own != NULL && !json_equal(own, other))) {
            return refuse(c, i, alike[k], "it differs from that of the first adapter");
        }
    }
    if (adds_matrices(c) && i > 0 && rank != c->rank) {
        return ds_fail(c->ctx, DS_ERR_ARG,
                       "ds_adapter_combine: %s has rank %lld, %s rank %lld: adapters of one rank "
                       "are combined in this way; take cat or svd",
                       first->folder, (long long)c->rank, a->folder, (long long)rank);
    }
    if (c->p->combination == DS_ADAPTER_CAT) {
        c->rank += rank;
    } else {
        c->rank = rank > c->rank ? rank : c->rank;
    }
    return DS_OK;
}

/* The modules of all: lists of names together, or expressions of which one fits. */
static ds_status join_targets(const combiner *c, json_t **out)
{
    const json_t *first = json_object_get(c->p->adapters[0]->config, "target_modules");
    const char *head = json_string_value(first);
    json_t *made = head != NULL ? NULL : json_array();
    for (uint32_t i = 0; i < c->p->n_adapters; ++i) {
        const json_t *own = json_object_get(c->p->adapters[i]->config, "target_modules");
        const bool all = c->p->adapters[i]->all_linear;
        if (json_is_string(own) != (head != NULL) || all != c->p->adapters[0]->all_linear) {
            json_decref(made);
            return refuse(c, i, "target_modules",
                          "it is a list of names in one adapter, an expression or all-linear in "
                          "another");
        }
        for (size_t k = 0; k < json_array_size(own); ++k) {
            json_t *name = json_array_get(own, k);
            bool there = false;
            for (size_t j = 0; j < json_array_size(made) && !there; ++j) {
                there = json_equal(json_array_get(made, j), name);
            }
            (void)(there || json_array_append(made, name) == 0);
        }
        if (head != NULL) {
            json_t *one =
                all      ? json_string(head)
                : i == 0 ? json_sprintf("(%s)", json_string_value(own))
                         : json_sprintf("%s|(%s)", json_string_value(made), json_string_value(own));
            json_decref(made);
            made = one;
        }
    }
    *out = made;
    return made != NULL ? DS_OK : no_memory(c->ctx);
}

/* ---- tensors --------------------------------------------------------------------------------- */

typedef enum matrix_side { SIDE_A, SIDE_B, SIDE_NONE, SIDE_OTHER } matrix_side;

/* Which matrix a tensor is, and of which module. NONE: an embedding, which PEFT writes beside. */
static matrix_side side_of(const char *name, char module[NAME_BYTES])
{
    static const struct {
        const char *end;
        matrix_side side;
    } ends[] = {{".lora_A.weight", SIDE_A},
                {".lora_B.weight", SIDE_B},
                {DSI_ADAPTER_TABLE_A, SIDE_A},
                {DSI_ADAPTER_TABLE_B, SIDE_B},
                {".base_layer.weight", SIDE_NONE}};
    const size_t n = strlen(name), p = strlen(DSI_ADAPTER_PREFIX);
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; ++i) {
        const size_t k = strlen(ends[i].end);
        if (n > k + p && n < NAME_BYTES && strcmp(name + n - k, ends[i].end) == 0 &&
            strncmp(name, DSI_ADAPTER_PREFIX, p) == 0) {
            (void)snprintf(module, NAME_BYTES, "%.*s", (int)(n - k - p), name + p);
            return ends[i].side;
        }
    }
    return SIDE_OTHER;
}

/* What adapter i's matrix counts. PEFT's linear way gives A and B the root each, A the sign. */
static ds_status weight_of(const combiner *c, uint32_t i, const char *module, matrix_side side,
                           float *weight_out)
{
    dsi_adapter_layer layer;
    bool on = false;
    DS_TRY(dsi_adapter_match(c->p->adapters[i], module, false, &on, &layer));
    const double weight = (c->p->weights != NULL ? c->p->weights[i] : 1.0) * layer.scale;
    const double root = sqrt(fabs(weight));
    if (!on) {
        return ds_fail(c->ctx, DS_ERR_FORMAT,
                       "%s: %s has tensors, but target_modules does not "
                       "mean it",
                       c->p->adapters[i]->folder, module);
    }
    *weight_out = c->p->combination == DS_ADAPTER_CAT ? (side == SIDE_A ? (float)weight : 1.0f)
                  : side == SIDE_A && weight < 0.0    ? (float)-root
                                                      : (float)root;
    return DS_OK;
}

/* One adapter's matrix in fp32, from malloc. */
static ds_status read_matrix(const combiner *c, const ds_safetensor *t, matrix_side side,
                             int64_t at, ds_shape shape, float **out)
{
    const int64_t rows = t->meta.shape.dims[0], columns = t->meta.shape.dims[1];
    const int64_t own = side == SIDE_A ? rows : columns;
    if (t->meta.shape.n_dims != 2 || at + own > c->rank || (adds_matrices(c) && own != c->rank) ||
        (side == SIDE_A ? columns != shape.dims[1] : rows != shape.dims[0])) {
        return ds_fail(
            c->ctx, DS_ERR_SHAPE,
            "%s: %s is %lld by %lld, which does not fit into one of rank %lld with those "
            "of the other adapters (where matrices are added all have this rank; take cat)",
            t->path, t->name, (long long)rows, (long long)columns, (long long)c->rank);
    }
    *out = malloc((size_t)(rows * columns) * sizeof **out + 1);
    return *out != NULL ? ds_safetensors_read(c->ctx, t, DS_DTYPE_F32, *out) : no_memory(c->ctx);
}

/* Adds one adapter's matrix at row (A) or column (B) `at` of what is made. */
static ds_status add_matrix(const combiner *c, const ds_safetensor *t, matrix_side side, int64_t at,
                            float weight, ds_shape shape, float *out)
{
    const int64_t rows = t->meta.shape.dims[0], columns = t->meta.shape.dims[1];
    float *read = NULL;
    const ds_status status = read_matrix(c, t, side, at, shape, &read);
    for (int64_t r = 0; r < rows && status >= 0; ++r) {
        float *to = side == SIDE_A ? out + (at + r) * columns : out + r * shape.dims[1] + at;
        for (int64_t k = 0; k < columns; ++k) {
            to[k] += weight * read[r * columns + k];
        }
    }
    free(read);
    return status;
}

ds_status dsi_combine_make(combiner *c, const char *name, ds_shape shape, float **out)
{
    *out = calloc((size_t)ds_shape_count(shape) + 1, sizeof **out);
    if (*out == NULL) {
        return no_memory(c->ctx);
    }
    c->data[c->n] = *out;
    c->made[c->n++] = (ds_tensor_source){.name = name, .meta = {DS_DTYPE_F32, shape}, .data = *out};
    return DS_OK;
}

/* The matrices of all adapters that have the tensor, of which a part stays. */
static ds_status combine_parts(const combiner *c, const ds_safetensor *first, const char *module,
                               matrix_side side, ds_shape shape, float *out)
{
    dsi_combine_part *parts = calloc((size_t)c->p->n_adapters + 1, sizeof *parts);
    ds_status status = parts != NULL ? DS_OK : no_memory(c->ctx);
    uint32_t n = 0;
    for (uint32_t i = 0; i < c->p->n_adapters && status >= 0; ++i) {
        const ds_safetensor *t = ds_safetensors_find(c->st[i], first->name);
        if (t == NULL) {
            continue;
        }
        dsi_combine_part *part = &parts[n++];
        part->adapter = i;
        status = weight_of(c, i, module, side, &part->weight);
        status = status < 0 ? status : read_matrix(c, t, side, 0, shape, &part->data);
    }
    status = status < 0 ? status
                        : dsi_combine_sparse(c, first->name, parts, n, ds_shape_count(shape), out);
    for (uint32_t i = 0; i < n; ++i) {
        free(parts[i].data);
    }
    free(parts);
    return status;
}

/* One tensor of all adapters that have it. */
static ds_status combine_tensor(combiner *c, const ds_safetensor *first, const char *module,
                                matrix_side side)
{
    ds_shape shape = first->meta.shape;
    int64_t at = 0;
    if (shape.n_dims != 2) {
        return ds_fail(c->ctx, DS_ERR_SHAPE, "%s: %s is no matrix", first->path, first->name);
    }
    shape.dims[side == SIDE_A ? 0 : 1] = c->rank;
    float *out = NULL;
    DS_TRY(dsi_combine_make(c, first->name, shape, &out));
    if (dsi_combine_is_sparse(c->p->combination)) {
        return combine_parts(c, first, module, side, shape, out);
    }
    for (uint32_t i = 0; i < c->p->n_adapters; ++i) {
        const ds_safetensor *t = ds_safetensors_find(c->st[i], first->name);
        float weight = 0.0f;
        if (t == NULL) {
            continue;
        }
        DS_TRY(weight_of(c, i, module, side, &weight));
        DS_TRY(add_matrix(c, t, side, at, weight, shape, out));
        at += c->p->combination == DS_ADAPTER_CAT ? t->meta.shape.dims[side == SIDE_A ? 0 : 1] : 0;
    }
    return DS_OK;
}

/* ---- all of them ----------------------------------------------------------------------------- */

static ds_status combine_tensors(combiner *c)
{
    for (uint32_t i = 0; i < c->p->n_adapters; ++i) {
        c->room += ds_safetensors_count(c->st[i]);
    }
    c->made = calloc(c->room + 1, sizeof *c->made);
    c->data = calloc(c->room + 1, sizeof *c->data);
    if (c->made == NULL || c->data == NULL) {
        return no_memory(c->ctx);
    }
    for (uint32_t i = 0; i < c->p->n_adapters; ++i) {
        for (size_t k = 0; k < ds_safetensors_count(c->st[i]); ++k) {
            const ds_safetensor *t = ds_safetensors_at(c->st[i], k);
            char module[NAME_BYTES];
            const matrix_side side = side_of(t->name, module);
            bool before = side == SIDE_NONE;
            for (uint32_t j = 0; j < i && !before; ++j) {
                before = ds_safetensors_find(c->st[j], t->name) != NULL;
            }
            if (side == SIDE_OTHER) {
                return ds_fail(c->ctx, DS_ERR_UNSUPPORTED,
                               "%s: the tensor %s is no matrix of LoRA, others are not combined",
                               t->path, t->name);
            }
            if (c->p->combination == DS_ADAPTER_SVD) {
                DS_TRY(before || side == SIDE_B ? DS_OK : dsi_combine_svd(c, t, module));
            } else {
                DS_TRY(before ? DS_OK : combine_tensor(c, t, module, side));
            }
        }
    }
    return DS_OK;
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* The first adapter's fields; the scale is 1, what the adapters' scales were is in A and B. */
static ds_status config_text(const combiner *c, char **text_out)
{
    json_t *targets = NULL;
    DS_TRY(join_targets(c, &targets));
    json_t *config = json_deep_copy(c->p->adapters[0]->config);
    (void)json_object_set_new(config, "target_modules", targets);
    (void)json_object_set_new(config, "r", json_integer(c->rank));
    (void)json_object_set_new(config, "lora_alpha", json_integer(c->rank));
    (void)json_object_set_new(config, "rank_pattern", json_object());
    (void)json_object_set_new(config, "alpha_pattern", json_object());
    (void)json_object_set_new(config, "use_rslora", json_false());
    (void)json_object_set_new(config, "init_lora_weights", json_true());
    (void)json_object_set_new(config, "inference_mode", json_true());
    *text_out = json_dumps(config, JSON_INDENT(2) | JSON_SORT_KEYS | JSON_REAL_PRECISION(17));
    json_decref(config);
    return *text_out != NULL ? DS_OK : no_memory(c->ctx);
}

static ds_status write_folder(const combiner *c)
{
    static const ds_text_pair format = {"format", "pt"};
    const ds_safetensors_params params = {.metadata = &format, .n_metadata = 1};
    char *weights = dsi_path_join(c->p->folder, DSI_ADAPTER_WEIGHTS);
    char *config = dsi_path_join(c->p->folder, DSI_ADAPTER_CONFIG);
    char *text = NULL;
    ds_status status = weights != NULL && config != NULL ? DS_OK : no_memory(c->ctx);
    DS_TRY_GOTO(status, config_text(c, &text), done);
    DS_TRY_GOTO(status, dsi_folder_make(c->ctx, c->p->folder), done);
    DS_TRY_GOTO(status, ds_safetensors_write(c->ctx, weights, c->made, c->n, &params), done);
    status = dsi_file_replace(c->ctx, config, text, strlen(text));
done:
    free(weights);
    free(config);
    free(text);
    return status;
}

static bool is_same(const char *a, const char *b)
{
    struct stat one;
    struct stat other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

static ds_status combine(combiner *c)
{
    for (uint32_t i = 0; i < c->p->n_adapters; ++i) {
        DS_TRY(check_one(c, i));
        if (is_same(c->p->adapters[i]->folder, c->p->folder)) {
            return ds_fail(c->ctx, DS_ERR_ARG,
                           "ds_adapter_combine: %s is an adapter that is read; give another folder",
                           c->p->folder);
        }
        char *path = dsi_path_join(c->p->adapters[i]->folder, DSI_ADAPTER_WEIGHTS);
        const ds_status status =
            path != NULL ? ds_safetensors_open(c->ctx, path, &c->st[i]) : no_memory(c->ctx);
        free(path);
        DS_TRY(status);
    }
    c->rank = c->p->combination == DS_ADAPTER_SVD && c->p->rank > 0 ? c->p->rank : c->rank;
    DS_TRY(combine_tensors(c));
    return write_folder(c);
}

ds_status ds_adapter_combine(ds_ctx *ctx, const ds_adapter_combine_params *params)
{
    combiner c = {.ctx = ctx, .p = params};
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_adapter_combine_params", params));
    if (params->n_adapters < 1 || params->folder == NULL ||
        params->combination < DS_ADAPTER_LINEAR ||
        params->combination > DS_ADAPTER_MAGNITUDE_PRUNE || params->rank < 0 ||
        (params->rank > 0 && params->combination != DS_ADAPTER_SVD)) {
        return ds_fail(
            ctx, DS_ERR_ARG,
            "ds_adapter_combine_params: expected adapters, a folder, a combination, and a "
            "rank of DS_ADAPTER_SVD alone");
    }
    DS_TRY(dsi_combine_check_sparse(ctx, params));
    for (uint32_t i = 0; i < params->n_adapters && params->weights != NULL; ++i) {
        if (!isfinite(params->weights[i])) {
            return ds_fail(ctx, DS_ERR_ARG, "ds_adapter_combine_params: weights[%u] is %g", i,
                           params->weights[i]);
        }
    }
    c.st = calloc(params->n_adapters, sizeof(ds_safetensors *));
    const ds_status status = c.st != NULL ? combine(&c) : no_memory(ctx);
    for (size_t i = 0; i < c.n; ++i) {
        free(c.data[i]);
    }
    for (uint32_t i = 0; c.st != NULL && i < params->n_adapters; ++i) {
        ds_safetensors_close(&c.st[i]);
    }
    free(c.made);
    free(c.data);
    free(c.st);
    return status;
}
