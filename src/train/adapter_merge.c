/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters added to the weights of a model folder: W + scale·B·A, of DoRA with its rows scaled to
 * their trained lengths, an adapter after the other, in fp32, rounded once to the dtype that W is
 * stored in. What modules_to_save trained takes the place of the model's. The folder that is read
 * stays as it is.
 *
 * Which tensor is whose weight, and how it is stored, is asked of the traced model, so that merging
 * means what training and generation mean. Memory is bounded: a tensor is read, changed and written
 * block by block; what a folder has in few bits is held as real numbers, and written so.
 */
#include "base/reserved.h"
#include "ckpt/adapter_weights.h"
#include "compile/adapter_graph.h"
#include "compile/train_graph.h"
#include "io/file.h"
#include "io/json_load.h"
#include "ir/graph.h"
#include "model/adapter.h"
#include "model/adapter_experts.h"
#include "model/adapter_problem.h"
#include "train/adapter_merger.h"

#include <deepspeed/hf_export.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CELLS = 1 << 20, TRACED = 8 /* tokens */ };

static ds_status no_memory(const dsi_merger *m)
{
    return ds_fail(m->ctx, DS_ERR_NOMEM, "no memory to merge an adapter");
}

static const ds_adapter *first_adapter(const dsi_merger *m)
{
    return m->parts[0].adapter;
}

/* ---- the model ------------------------------------------------------------------------------- */

/* The model that all adapters are of. */
static ds_status open_model(dsi_merger *m, const char *folder)
{
    char *config = dsi_path_join(folder, "config.json");
    ds_status status =
        config != NULL ? ds_model_from_config(m->ctx, config, &m->model) : no_memory(m);
    free(config);
    DS_TRY(status);
    for (uint32_t i = 0; i < m->n_parts; ++i) {
        const ds_adapter *a = m->parts[i].adapter;
        if (a->task != first_adapter(m)->task) {
            return ds_fail(m->ctx, DS_ERR_UNSUPPORTED,
                           "ds_adapter_merge: %s and %s differ in task_type",
                           first_adapter(m)->folder, a->folder);
        }
        DS_TRY(dsi_adapter_check_pairs(a, m->model));
        DS_TRY(ds_adapter_fit(a, &m->model));
    }
    return DS_OK;
}

/* The model as it is traced with one adapter, which checks that they fit. */
static ds_status trace(dsi_merger *m, dsi_merge_part *p)
{
    ds_trace how = {.mode = DS_TRACE_EVAL, .dtype = DS_DTYPE_F32, .batch = 1, .seq_length = TRACED};
    if (p->adapter->task != DS_TASK_TOKENS) {
        DS_TRY(ds_adapter_task(p->adapter, &how.task, &how.n_classes));
    }
    DS_TRY(ds_cells_create(m->ctx, MAX_CELLS, &p->cells));
    DS_TRY(dsi_forward_graph(m->model, &how, NULL, NULL, p->cells, &p->graph));
    const ds_cell n = ds_cells_count(p->cells);
    bool same = p == m->parts || n == m->n_cells;
    for (ds_cell c = 0; c < n && same && p != m->parts; ++c) {
        same = strcmp(ds_cells_get(p->cells, c)->name, ds_cells_get(m->cells, c)->name) == 0;
    }
    if (!same) {
        return ds_fail(m->ctx, DS_ERR_INTERNAL, "adapters of different models");
    }
    m->cells = m->parts[0].cells;
    m->n_cells = n;
    return dsi_adapter_graph(p->adapter, &how, &p->graph);
}

static bool are_equal(const ds_safetensor *a, const ds_safetensor *b)
{
    return a->meta.dtype == b->meta.dtype && a->bytes == b->bytes &&
           memcmp(a->data, b->data, a->bytes) == 0;
}

/* What an adapter's folder has in the place of the model's parameters: of one alone. */
static ds_status open_own(dsi_merger *m, dsi_merge_part *p)
{
    p->own_of = calloc((size_t)ds_cells_count(p->cells) + 1, sizeof *p->own_of);
    if (p->own_of == NULL) {
        return no_memory(m);
    }
    DS_TRY(dsi_adapter_weights_open(p->adapter, p->cells, &p->own, p->own_of));
    for (ds_cell c = 0; c < m->n_cells; ++c) {
        if (p->own_of[c] != NULL && m->own_of[c] != NULL &&
            !are_equal(p->own_of[c], m->own_of[c])) {
            return ds_fail(m->ctx, DS_ERR_UNSUPPORTED,
                           "ds_adapter_merge: modules_to_save: %s is trained by %s and by another "
                           "of the adapters, and one of them can take its place",
                           ds_cells_get(p->cells, c)->name, p->adapter->folder);
        }
        m->own_of[c] = p->own_of[c] != NULL ? p->own_of[c] : m->own_of[c];
    }
    return DS_OK;
}

static ds_status open_weights(dsi_merger *m, const char *folder)
{
    const size_t n = (size_t)m->n_cells + 1;
    m->by_cell = calloc(n, sizeof *m->by_cell);
    m->own_of = calloc(n, sizeof *m->own_of);
    m->sums = calloc(n, sizeof *m->sums);
    if (m->by_cell == NULL || m->own_of == NULL || m->sums == NULL) {
        return no_memory(m);
    }
    DS_TRY(ds_safetensors_open_folder(m->ctx, folder, &m->st));
    DS_TRY(dsi_weights_match(m->ctx, m->model, m->cells, m->st, false, &m->stored));
    m->unpacks = dsi_weights_are_unpacked(m->stored);
    for (ds_cell c = 0; c < m->n_cells; ++c) {
        const dsi_weight weight = dsi_weights_of(m->stored, c);
        m->has_blocks = m->has_blocks || weight.scales != NULL;
        m->by_cell[c] = weight.n == 1 && weight.scales == NULL ? weight.parts[0] : NULL;
    }
    for (uint32_t i = 0; i < m->n_parts; ++i) {
        DS_TRY(open_own(m, &m->parts[i]));
    }
    for (uint32_t i = 0; i < m->n_parts; ++i) {
        DS_TRY(dsi_merge_weights(m, i));
    }
    return DS_OK;
}

/* ---- tensors --------------------------------------------------------------------------------- */

static const char *head_name(const dsi_merger *m)
{
    const char *head = ds_model_get_info(m->model)->head;
    return head != NULL ? head : "lm_head.weight";
}

/* An output head that begins as the embedding, which is tied to it in the folder. */
static bool is_new_head(const dsi_merger *m, ds_cell c)
{
    const char *name = ds_cells_get(m->cells, c)->name;
    return ds_model_get_info(m->model)->stored_tied && strcmp(name, head_name(m)) == 0 &&
           m->by_cell[c] != NULL && strcmp(m->by_cell[c]->name, name) != 0;
}

/* The dtype asked for, or that of a stored tensor. */
static ds_dtype dtype_of(const dsi_merger *m, const ds_safetensor *tensor)
{
    return m->dtype != DS_DTYPE_NONE ? m->dtype : tensor->meta.dtype;
}

/* Of what was unpacked: numbers in fp32 came of a few bits and a scale. */
static ds_dtype unpacked_dtype(const dsi_merger *m, const ds_safetensor *part)
{
    const ds_dtype own = dtype_of(m, part);
    return m->dtype == DS_DTYPE_NONE && own == DS_DTYPE_F32 ? DS_DTYPE_BF16 : own;
}

/* W + scale·B·A. */
static ds_tensor_source source_of_sum(dsi_adapter_sum *sum, const char *name, ds_dtype stored)
{
    return (ds_tensor_source){.name = name,
                              .meta = {DS_DTYPE_F32, sum->weight->meta.shape},
                              .stored = stored,
                              .fill = dsi_adapter_sum_fill,
                              .user = sum};
}

/* What is written under a name for a parameter of one tensor. */
static ds_tensor_source source_of(const dsi_merger *m, ds_cell c, const char *name, ds_dtype stored)
{
    const ds_safetensor *from = m->by_cell[c];
    ds_tensor_source source = {.name = name, .meta = from->meta, .data = from->data};
    if (m->sums[c].last != NULL) {
        return source_of_sum(&m->sums[c], name, stored);
    } else if (m->own_of[c] != NULL) {
        source.data = m->own_of[c]->data;
        source.meta = m->own_of[c]->meta;
        source.stored = stored;
    } else if (stored != from->meta.dtype) {
        source.stored = stored;
    }
    return source;
}

/* Of an adapter with a head for classes, another head of the model's folder is left out. By names:
 * what was made longer is another tensor. */
static bool is_left_out(const dsi_merger *m, const ds_safetensor *tensor)
{
    bool used = first_adapter(m)->task == DS_TASK_TOKENS;
    for (ds_cell c = 0; c < m->n_cells && !used; ++c) {
        const ds_cell_info *cell = ds_cells_get(m->cells, c);
        const dsi_weight weight =
            cell->kind == DS_CELL_PARAM ? dsi_weights_of(m->stored, c) : (dsi_weight){0};
        for (int64_t i = 0; i < weight.n && !used; ++i) {
            used = strcmp(weight.parts[i]->name, tensor->name) == 0;
        }
    }
    return !used;
}

/* What the adapter trained and the model's folder has not: a head for classes. */
static bool is_added(const dsi_merger *m, ds_cell c)
{
    const ds_cell_info *cell = ds_cells_get(m->cells, c);
    return cell->kind == DS_CELL_PARAM && cell->of == DS_NONE && m->own_of[c] != NULL &&
           dsi_weights_of(m->stored, c).n == 0;
}

/* NULL: nothing is added to it. */
static dsi_adapter_sum *expert_sum(const dsi_merger *m, const ds_safetensor *tensor)
{
    for (size_t i = 0; i < m->n_experts; ++i) {
        if (m->experts[i].weight == tensor) {
            return &m->experts[i];
        }
    }
    return NULL;
}

/* The name that a tensor is written under: its own, but for a router that has its class's name,
 * beside experts in one tensor: these are written by their stored names, and so is it. */
static const char *written_name(const dsi_merger *m, ds_cell c, const ds_safetensor *tensor)
{
    static const char end[] = ".weight";
    const char *name = ds_cells_get(m->cells, c)->name;
    const size_t n = strlen(name), k = sizeof end - 1;
    char module[1200];
    if (n <= k || n >= sizeof module || strcmp(name + n - k, end) != 0) {
        return tensor->name;
    }
    memcpy(module, name, n - k);
    module[n - k] = '\0';
    dsi_router_module(module);
    const size_t made = strlen(module);
    return strncmp(tensor->name, module, made) == 0 && strcmp(tensor->name + made, end) == 0
               ? name
               : tensor->name;
}

/* What is written for a tensor of the model. A stored one that has been made longer keeps its name.
 */
static ds_tensor_source source_of_tensor(const dsi_merger *m, const ds_safetensor *tensor)
{
    dsi_adapter_sum *sum = expert_sum(m, tensor);
    if (sum != NULL) {
        return source_of_sum(sum, tensor->name, dtype_of(m, tensor));
    }
    for (ds_cell c = 0; c < m->n_cells; ++c) {
        if (m->by_cell[c] != NULL && strcmp(m->by_cell[c]->name, tensor->name) == 0 &&
            !is_new_head(m, c)) {
            return source_of(m, c, written_name(m, c, tensor), dtype_of(m, m->by_cell[c]));
        }
    }
    return (ds_tensor_source){.name = tensor->name, .meta = tensor->meta, .data = tensor->data};
}

/* Those of a parameter that the folder has in few bits, or as a slice of a tensor. */
static ds_status add_made(const dsi_merger *m, ds_cell c, ds_hf_export *export)
{
    const dsi_weight weight = dsi_weights_of(m->stored, c);
    for (int64_t i = 0; i < weight.n; ++i) {
        const ds_safetensor *part = weight.parts[i];
        const dsi_weight_origin origin = dsi_weights_origin(m->stored, c, i);
        if (origin == DSI_WEIGHT_STORED) {
            continue;
        }
        const ds_dtype dtype =
            origin == DSI_WEIGHT_UNPACKED ? unpacked_dtype(m, part) : dtype_of(m, part);
        dsi_adapter_sum *sum = weight.n > 1 ? expert_sum(m, part) : NULL;
        const ds_tensor_source plain = {
            .name = part->name, .meta = part->meta, .data = part->data, .stored = dtype};
        const ds_tensor_source source = sum != NULL     ? source_of_sum(sum, part->name, dtype)
                                        : weight.n == 1 ? source_of(m, c, part->name, dtype)
                                                        : plain;
        DS_TRY(ds_hf_export_add(export, &source));
    }
    return DS_OK;
}

static ds_status add_parameter(const dsi_merger *m, ds_cell c, ds_hf_export *export)
{
    if (is_new_head(m, c)) {
        const ds_tensor_source source = source_of(m, c, head_name(m), dtype_of(m, m->by_cell[c]));
        return ds_hf_export_add(export, &source);
    }
    if (is_added(m, c)) {
        const ds_tensor_source source = {.name = ds_cells_get(m->cells, c)->name,
                                         .meta = m->own_of[c]->meta,
                                         .data = m->own_of[c]->data,
                                         .stored = dtype_of(m, ds_safetensors_at(m->st, 0))};
        return ds_hf_export_add(export, &source);
    }
    return add_made(m, c, export);
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* The model's config.json, with what the adapter's folder says of its classes, and without how
 * weights were stored that are not any longer. */
static ds_status config_of(const dsi_merger *m, char **text_out)
{
    const char *text = ds_model_config_text(m->model);
    const bool classes = first_adapter(m)->task == DS_TASK_SEQUENCE_CLASSES;
    json_error_t error;
    json_t *root = classes || m->unpacks ? dsi_json_parse(text, strlen(text), 0, &error) : NULL;
    const ds_status status =
        root != NULL && classes
            ? dsi_adapter_problem_read(m->ctx, dsi_adapter_folder(first_adapter(m)), root)
            : DS_OK;
    const bool unpacked = m->unpacks && json_object_del(root, "quantization_config") == 0;
    *text_out = root != NULL && (unpacked || json_object_get(root, "problem_type") != NULL)
                    ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17))
                    : strdup(text);
    json_decref(root);
    return status < 0 || *text_out != NULL ? status
                                           : ds_fail(m->ctx, DS_ERR_NOMEM, "no memory to merge");
}

static ds_status add_tensors(const dsi_merger *m, ds_hf_export *export)
{
    for (size_t i = 0; i < ds_safetensors_count(m->st); ++i) {
        const ds_safetensor *tensor = ds_safetensors_at(m->st, i);
        if (!dsi_weights_takes(m->stored, i) && !is_left_out(m, tensor)) {
            const ds_tensor_source source = source_of_tensor(m, tensor);
            DS_TRY(ds_hf_export_add(export, &source));
        }
    }
    for (ds_cell c = 0; c < m->n_cells; ++c) {
        DS_TRY(add_parameter(m, c, export));
    }
    return DS_OK;
}

static ds_status write_tensors(const dsi_merger *m, const ds_adapter_merge_params *params,
                               const char *config)
{
    const ds_hf_export_params how = {.folder = params->folder,
                                     .config_json = config,
                                     .dtype = params->dtype,
                                     .max_shard_bytes = params->max_shard_bytes,
                                     .task = first_adapter(m)->task,
                                     .copy_from = params->model_folder};
    ds_hf_export *export = NULL;
    if (params->dtype != DS_DTYPE_NONE && m->has_blocks) {
        return ds_fail(
            m->ctx, DS_ERR_UNSUPPORTED,
            "%s has experts in MXFP4, which stay as they are: merge without another dtype",
            params->model_folder);
    }
    DS_TRY(ds_hf_export_begin(m->ctx, &how, &export));
    const ds_status status = add_tensors(m, export);
    if (status < 0) {
        ds_hf_export_abort(&export);
        return status;
    }
    return ds_hf_export_finish(&export);
}

static ds_status write_folder(const dsi_merger *m, const ds_adapter_merge_params *params)
{
    char *config = NULL;
    ds_status status = config_of(m, &config);
    status = status < 0 ? status : write_tensors(m, params, config);
    free(config);
    return status;
}

static void close_all(dsi_merger *m)
{
    for (ds_cell c = 0; m->sums != NULL && c < m->n_cells; ++c) {
        dsi_adapter_sum_free(&m->sums[c]);
    }
    for (size_t i = 0; i < m->n_experts; ++i) {
        dsi_adapter_sum_free(&m->experts[i]);
    }
    free(m->experts);
    free(m->sums);
    free(m->by_cell);
    free(m->own_of);
    dsi_weights_destroy(&m->stored);
    for (uint32_t i = 0; i < m->n_parts; ++i) {
        dsi_merge_part *p = &m->parts[i];
        free(p->own_of);
        ds_safetensors_close(&p->own);
        ds_graph_destroy(&p->graph);
        ds_cells_destroy(&p->cells);
    }
    free(m->parts);
    ds_safetensors_close(&m->st);
    ds_model_destroy(&m->model);
}

/* ---- what is asked for ----------------------------------------------------------------------- */

static bool is_same(const char *a, const char *b)
{
    struct stat one;
    struct stat other;
    return stat(a, &one) == 0 && stat(b, &other) == 0 && one.st_dev == other.st_dev &&
           one.st_ino == other.st_ino;
}

/* The adapters with what they count, and that what is written over is not what is read. */
static ds_status find_parts(dsi_merger *m, const ds_adapter *first,
                            const ds_adapter_merge_params *params)
{
    m->parts = calloc((size_t)params->n_others + 1, sizeof *m->parts);
    if (m->parts == NULL) {
        return no_memory(m);
    }
    m->n_parts = params->n_others + 1;
    for (uint32_t i = 0; i < m->n_parts; ++i) {
        const ds_adapter *a = i == 0 ? first : params->others[i - 1];
        const double weight = params->weights != NULL ? params->weights[i] : 1.0;
        m->parts[i] = (dsi_merge_part){.adapter = a, .weight = weight};
        DS_TRY(dsi_adapter_check_alone(a, "ds_adapter_merge"));
        if (dsi_adapter_folder(a) == NULL) {
            return ds_fail(m->ctx, DS_ERR_ARG,
                           "ds_adapter_merge: expected an adapter that was opened from a folder");
        }
        if (!isfinite(weight)) {
            return ds_fail(m->ctx, DS_ERR_ARG, "ds_adapter_merge_params: weights[%u] is %g", i,
                           weight);
        }
        if (weight != 1.0 &&
            (a->dora || json_array_size(json_object_get(a->config, "modules_to_save")) > 0)) {
            return ds_fail(m->ctx, DS_ERR_UNSUPPORTED,
                           "%s/%s: \"%s\": it is merged as it is, and not %g times", a->folder,
                           DSI_ADAPTER_CONFIG, a->dora ? "use_dora" : "modules_to_save", weight);
        }
        if (is_same(a->folder, params->folder)) {
            return ds_fail(m->ctx, DS_ERR_ARG,
                           "ds_adapter_merge: %s is the adapter's folder, which is read; give "
                           "another folder",
                           params->folder);
        }
    }
    return is_same(params->model_folder, params->folder)
               ? ds_fail(m->ctx, DS_ERR_ARG,
                         "ds_adapter_merge: %s is the model's folder, which is read; give another "
                         "folder",
                         params->folder)
               : DS_OK;
}

ds_status ds_adapter_merge(ds_ctx *ctx, const ds_adapter *adapter,
                           const ds_adapter_merge_params *params)
{
    dsi_merger m = {.ctx = ctx, .dtype = params->dtype};
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_adapter_merge_params", params));
    ds_status status = find_parts(&m, adapter, params);
    status = status < 0 ? status : open_model(&m, params->model_folder);
    for (uint32_t i = 0; i < m.n_parts && status >= 0; ++i) {
        status = trace(&m, &m.parts[i]);
    }
    status = status < 0 ? status : open_weights(&m, params->model_folder);
    status = status < 0 ? status : write_folder(&m, params);
    if (status >= 0 && m.unpacks) {
        ds_log(ctx, DS_LOG_JOB, "%s has weights in few bits: they are written as %s",
               params->model_folder,
               m.dtype != DS_DTYPE_NONE ? ds_dtype_name(m.dtype)
                                        : "bf16, or as f16 where scales are");
    }
    close_all(&m);
    return status;
}
