/* SPDX-License-Identifier: Apache-2.0 */
/* An adapter added to the weights of a model folder: W + scale·B·A, of DoRA with its rows scaled to
 * their trained lengths, in fp32, rounded once to the dtype that W is stored in. What
 * modules_to_save trained takes the place of the model's. The folder that is read stays as it is.
 *
 * Which tensor is whose weight, and how it is stored, is asked of the traced model, so that merging
 * means what training and generation mean. Memory is bounded: a tensor is read, changed and written
 * block by block; matrices of the adapter are read whole.
 */
#include "base/reserved.h"
#include "ckpt/adapter_weights.h"
#include "ckpt/model_weights.h"
#include "compile/adapter_graph.h"
#include "compile/train_graph.h"
#include "io/convert.h"
#include "io/file.h"
#include "io/json_load.h"
#include "ir/graph.h"
#include "model/adapter.h"
#include "model/adapter_experts.h"
#include "model/adapter_problem.h"
#include "op/ops.h"

#include <deepspeed/hf_export.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MAX_CELLS = 1 << 20, NAME_BYTES = 1200, TRACED = 8 /* tokens */ };

/* A weight with its A and B. */
typedef struct merged {
    const ds_safetensor *weight;
    float *a,
        *b; /* (rank,columns) and (rows,rank) of the stored weight: swapped where transposed */
    int64_t rank, rows, columns;
    int64_t experts; /* rows are of so many matrices one under the other, each with its A */
    double scale;
    float *lengths; /* DoRA: what each output is scaled by; NULL: nothing */
    bool turned;    /* outputs are the columns of the stored weight */
} merged;

typedef struct merger {
    const ds_adapter *adapter;
    ds_ctx *ctx;
    ds_model *model;
    ds_cells *cells;
    ds_graph *graph;
    ds_safetensors *st, *own;
    dsi_weights *stored;           /* of the model */
    const ds_safetensor **by_cell; /* those of one tensor; stacked ones are in `experts` */
    const ds_safetensor **own_of;  /* of the adapter */
    merged *weights;               /* per cell; weight NULL: it stays */
    merged *experts;               /* those that are stored one by one */
    size_t n_experts, room;
    bool has_blocks; /* of MXFP4 */
    ds_dtype dtype;  /* asked for; NONE: as stored */
} merger;

static ds_status no_memory(const merger *m)
{
    return ds_fail(m->ctx, DS_ERR_NOMEM, "no memory to merge an adapter");
}

/* ---- one weight ------------------------------------------------------------------------------ */

/* Elements of one row from `column` on. */
static void add_row(const merged *w, int64_t row, int64_t column, int64_t n, float *out)
{
    const float *a = w->a + row / (w->rows / w->experts) * w->rank * w->columns;
    for (int64_t i = 0; i < n; ++i) {
        float sum = 0.0f;
        for (int64_t k = 0; k < w->rank; ++k) {
            sum += w->b[row * w->rank + k] * a[k * w->columns + column + i];
        }
        out[i] += (float)w->scale * sum;
    }
}

/* Elements [first, first + count) of W + scale·B·A. */
static void add_elements(const merged *w, size_t first, size_t count, float *out)
{
    const size_t width = ds_dtype_bytes(w->weight->meta.dtype);
    (void)dsi_convert(w->weight->meta.dtype, (const char *)w->weight->data + first * width,
                      DS_DTYPE_F32, out, count);
    for (size_t at = 0; at < count;) {
        const int64_t row = (int64_t)(first + at) / w->columns;
        const int64_t column = (int64_t)(first + at) % w->columns;
        const int64_t rest = w->columns - column;
        const int64_t part = rest < (int64_t)(count - at) ? rest : (int64_t)(count - at);
        add_row(w, row, column, part, out + at);
        at += (size_t)part;
    }
}

/* Of a stored row and column. */
static int64_t output_of(const merged *w, int64_t row, int64_t column)
{
    return w->turned ? column : row;
}

/* lengths: of the adapter; becomes what outputs are scaled by, lengths / |W + scale·B·A|. */
static ds_status scale_lengths(const merger *m, merged *w)
{
    const int64_t n = w->turned ? w->columns : w->rows;
    double *sums = calloc((size_t)n + 1, sizeof *sums);
    float *row = malloc(((size_t)w->columns + 1) * sizeof *row);
    for (int64_t r = 0; r < w->rows && sums != NULL && row != NULL; ++r) {
        add_elements(w, (size_t)(r * w->columns), (size_t)w->columns, row);
        for (int64_t c = 0; c < w->columns; ++c) {
            sums[output_of(w, r, c)] += (double)row[c] * (double)row[c];
        }
    }
    for (int64_t o = 0; o < n && sums != NULL; ++o) {
        w->lengths[o] = w->lengths[o] / (float)sqrt(sums[o]);
    }
    const bool room = sums != NULL && row != NULL;
    free(sums);
    free(row);
    return room ? DS_OK : no_memory(m);
}

/* n bytes of the merged weight in fp32. */
static ds_status fill(void *user, size_t offset, void *data, size_t n)
{
    const merged *w = user;
    const size_t first = offset / sizeof(float), count = n / sizeof(float);
    float *out = data;
    add_elements(w, first, count, out);
    for (size_t i = 0; i < count && w->lengths != NULL; ++i) {
        const int64_t at = (int64_t)(first + i);
        out[i] *= w->lengths[output_of(w, at / w->columns, at % w->columns)];
    }
    return DS_OK;
}

/* A matrix in fp32, turned over where asked for; several stay as they are. */
static ds_status read_matrix(const merger *m, const ds_safetensor *tensor, bool turn, float **out)
{
    const int64_t rows = tensor->meta.shape.dims[0], columns = tensor->meta.shape.dims[1];
    const size_t count = (size_t)ds_shape_count(tensor->meta.shape);
    float *read = malloc(count * sizeof *read + 1);
    float *turned = turn ? malloc(count * sizeof *turned + 1) : NULL;
    ds_status status = read != NULL && (turned != NULL || !turn) ? DS_OK : no_memory(m);
    if (status == DS_OK) {
        status = ds_safetensors_read(m->ctx, tensor, DS_DTYPE_F32, read);
    }
    for (int64_t i = 0; turn && status == DS_OK && i < rows * columns; ++i) {
        turned[i % columns * rows + i / columns] = read[i];
    }
    *out = status < 0 ? NULL : turn ? turned : read;
    free(*out == read ? NULL : read);
    free(*out == turned ? NULL : turned);
    return status;
}

static const ds_safetensor *tensor_of(const merger *m, const char *module, const char *which)
{
    char name[NAME_BYTES + 32];
    (void)snprintf(name, sizeof name, "%s%s", module, which);
    const ds_cell cell = ds_cells_find(m->cells, DS_CELL_PARAM, name);
    return cell != DS_NONE ? m->own_of[cell] : NULL;
}

static ds_status read_lengths(const merger *m, const char *module, merged *w)
{
    const ds_safetensor *tensor = tensor_of(m, module, DSI_ADAPTER_MAGNITUDE);
    const int64_t n = w->turned ? w->columns : w->rows;
    w->lengths = malloc(((size_t)n + 1) * sizeof *w->lengths);
    if (w->lengths == NULL || tensor == NULL) {
        return no_memory(m);
    }
    DS_TRY(ds_safetensors_read(m->ctx, tensor, DS_DTYPE_F32, w->lengths));
    return scale_lengths(m, w);
}

/* What the weight of a linear layer, of an embedding, or of an output head, which is read by a
 * concat, becomes, once. */
static ds_status find_weight(merger *m, const dsi_node_info *node, uint32_t at)
{
    const bool table = node->op == &dsi_op_embedding;
    const ds_value v = at < node->n_in ? dsi_node_in(m->graph, node)[at] : DS_NONE;
    const ds_cell cell = v != DS_NONE ? m->graph->values[v].cell : DS_NONE;
    char module[NAME_BYTES];
    dsi_adapter_layer layer;
    bool on = false;
    if (cell == DS_NONE || m->by_cell[cell] == NULL || m->weights[cell].weight != NULL) {
        return DS_OK;
    }
    const char *name = ds_cells_get(m->cells, cell)->name;
    const char *end = strrchr(name, '.');
    (void)snprintf(module, sizeof module, "%.*s", (int)(end - name), name);
    dsi_router_module(module);
    const ds_safetensor *a = tensor_of(m, module, table ? DSI_ADAPTER_TABLE_A : ".lora_A.weight");
    const ds_safetensor *b = tensor_of(m, module, table ? DSI_ADAPTER_TABLE_B : ".lora_B.weight");
    if (a == NULL || b == NULL) {
        return DS_OK;
    }
    const bool linear = node->op == &dsi_op_linear;
    const bool turn = table || (linear && ((const dsi_linear_attrs *)node->attrs)->transposed != 0);
    merged *w = &m->weights[cell];
    DS_TRY(dsi_adapter_match(m->adapter, module, false, &on, &layer));
    if (!on) {
        char key[NAME_BYTES + 8];
        (void)snprintf(key, sizeof key, "%s.weight", module);
        DS_TRY(dsi_adapter_match_parameter(m->adapter, key, &on, &layer));
    }
    w->weight = m->own_of[cell] != NULL ? m->own_of[cell] : m->by_cell[cell];
    w->rank = a->meta.shape.dims[0];
    w->experts = 1;
    w->rows = w->weight->meta.shape.dims[0];
    w->columns = w->weight->meta.shape.dims[1];
    w->scale = layer.scale;
    w->turned = turn;
    DS_TRY(read_matrix(m, turn ? b : a, turn, &w->a));
    DS_TRY(read_matrix(m, turn ? a : b, turn, &w->b));
    return m->adapter->dora ? read_lengths(m, module, w) : DS_OK;
}

/* ---- experts --------------------------------------------------------------------------------- */

/* A matrix of experts, with its A (E,rank,in) and B (E,out,rank). */
typedef struct stack {
    dsi_expert_matrix matrix;
    float *a, *b;
    int64_t rank, n_experts, n_in, n_out;
    bool turned; /* stored (in,out) */
    double scale;
} stack;

/* Expert e's A and B in the order of the stored matrix: rows times rank, and rank times columns. */
static void copy_expert(const stack *s, int64_t e, float *rows, float *columns)
{
    float *b = s->turned ? columns : rows, *a = s->turned ? rows : columns;
    for (int64_t k = 0; k < s->rank; ++k) {
        for (int64_t i = 0; i < s->n_in; ++i) {
            a[s->turned ? i * s->rank + k : k * s->n_in + i] =
                s->a[(e * s->rank + k) * s->n_in + i];
        }
        for (int64_t o = 0; o < s->n_out; ++o) {
            b[s->turned ? k * s->n_out + o : o * s->rank + k] =
                s->b[(e * s->n_out + o) * s->rank + k];
        }
    }
}

/* Experts [first, first + n) in one stored tensor. */
static ds_status merge_experts(merger *m, const stack *s, const ds_safetensor *tensor,
                               int64_t first, int64_t n, merged *w)
{
    const int64_t rows = s->turned ? s->n_in : s->n_out;
    *w = (merged){.weight = tensor,
                  .rank = s->rank,
                  .rows = n * rows,
                  .columns = s->turned ? s->n_out : s->n_in,
                  .experts = n,
                  .scale = s->scale,
                  .turned = s->turned};
    w->a = malloc((size_t)(n * s->rank * w->columns) * sizeof *w->a + 1);
    w->b = malloc((size_t)(n * s->rank * rows) * sizeof *w->b + 1);
    if (w->a == NULL || w->b == NULL) {
        return no_memory(m);
    }
    for (int64_t e = 0; e < n; ++e) {
        copy_expert(s, first + e, w->b + e * rows * s->rank, w->a + e * s->rank * w->columns);
    }
    return DS_OK;
}

static ds_status merge_stack(merger *m, const stack *s, ds_cell cell)
{
    const dsi_weight weight = dsi_weights_of(m->stored, cell);
    if (weight.scales != NULL) {
        return ds_fail(m->ctx, DS_ERR_UNSUPPORTED,
                       "ds_adapter_merge: %s is stored in MXFP4, to which nothing can be added; "
                       "write the model in bf16 first",
                       ds_cells_get(m->cells, cell)->name);
    }
    if (weight.n == 1) {
        return merge_experts(m, s, weight.parts[0], 0, s->n_experts, &m->weights[cell]);
    }
    if (m->n_experts + (size_t)weight.n > m->room) {
        m->room = 2 * m->room + (size_t)weight.n;
        merged *grown = realloc(m->experts, m->room * sizeof *grown);
        if (grown == NULL) {
            return no_memory(m);
        }
        m->experts = grown;
    }
    for (int64_t e = 0; e < weight.n; ++e) {
        merged *w = &m->experts[m->n_experts++];
        DS_TRY(merge_experts(m, s, weight.parts[e], e, 1, w));
    }
    return DS_OK;
}

/* What the matrices of a product by groups become. */
static ds_status find_experts(merger *m, const dsi_node_info *node)
{
    const ds_value v = dsi_node_in(m->graph, node)[1];
    const ds_cell cell = m->graph->values[v].cell;
    char base[DSI_EXPERTS_NAME_BYTES + 16];
    char key[DSI_EXPERTS_NAME_BYTES + 32];
    char last[DSI_EXPERTS_END_BYTES];
    stack s = {.turned = ((const dsi_grouped_attrs *)node->attrs)->transposed != 0};
    dsi_adapter_layer layer;
    bool on = false;
    if (cell == DS_NONE || !dsi_expert_matrix_of(ds_cells_get(m->cells, cell)->name, &s.matrix)) {
        return DS_OK;
    }
    (void)snprintf(key, sizeof key, "%s.%s", s.matrix.module, s.matrix.parameter);
    DS_TRY(dsi_adapter_match_parameter(m->adapter, key, &on, &layer));
    if (!on) {
        return DS_OK;
    }
    DS_TRY(dsi_expert_cells_of(m->adapter, &s.matrix, base));
    const ds_safetensor *a = tensor_of(m, base, ".lora_A.weight");
    dsi_expert_b_end(&s.matrix, last);
    const ds_safetensor *b = tensor_of(m, base, last);
    const ds_shape shape = ds_cells_get(m->cells, cell)->meta.shape;
    s.rank = layer.rank;
    s.scale = layer.scale;
    s.n_experts = shape.dims[0];
    s.n_in = shape.dims[s.turned ? 1 : 2];
    s.n_out = shape.dims[s.turned ? 2 : 1];
    ds_status status = a != NULL && b != NULL
                           ? read_matrix(m, a, false, &s.a)
                           : ds_fail(m->ctx, DS_ERR_INTERNAL, "%s has no A or B", key);
    status = status < 0 ? status : read_matrix(m, b, false, &s.b);
    status = status < 0 ? status : merge_stack(m, &s, cell);
    free(s.a);
    free(s.b);
    return status;
}

/* ---- the folder ------------------------------------------------------------------------------ */

/* The model as it is traced with the adapter, which checks that they fit. */
static ds_status trace(merger *m, const char *folder)
{
    ds_trace how = {.mode = DS_TRACE_EVAL, .dtype = DS_DTYPE_F32, .batch = 1, .seq_length = TRACED};
    char *config = dsi_path_join(folder, "config.json");
    ds_status status =
        config != NULL ? ds_model_from_config(m->ctx, config, &m->model) : no_memory(m);
    free(config);
    DS_TRY(status);
    if (m->adapter->task != DS_TASK_TOKENS) {
        DS_TRY(ds_adapter_task(m->adapter, &how.task, &how.n_classes));
    }
    DS_TRY(dsi_adapter_check_pairs(m->adapter, m->model));
    DS_TRY(ds_adapter_fit(m->adapter, &m->model));
    DS_TRY(ds_cells_create(m->ctx, MAX_CELLS, &m->cells));
    DS_TRY(dsi_forward_graph(m->model, &how, NULL, NULL, m->cells, &m->graph));
    return dsi_adapter_graph(m->adapter, &how, &m->graph);
}

static ds_status open_weights(merger *m, const char *folder)
{
    const size_t n = (size_t)ds_cells_count(m->cells) + 1;
    m->by_cell = calloc(n, sizeof *m->by_cell);
    m->own_of = calloc(n, sizeof *m->own_of);
    m->weights = calloc(n, sizeof *m->weights);
    if (m->by_cell == NULL || m->own_of == NULL || m->weights == NULL) {
        return no_memory(m);
    }
    DS_TRY(ds_safetensors_open_folder(m->ctx, folder, &m->st));
    DS_TRY(dsi_weights_match(m->ctx, m->model, m->cells, m->st, false, &m->stored));
    if (dsi_weights_are_unpacked(m->stored)) {
        return ds_fail(m->ctx, DS_ERR_UNSUPPORTED,
                       "%s: its matrices are stored in four bits, into which no adapter is merged; "
                       "use the adapter beside it",
                       folder);
    }
    for (ds_cell c = 0; c < ds_cells_count(m->cells); ++c) {
        const dsi_weight weight = dsi_weights_of(m->stored, c);
        m->has_blocks = m->has_blocks || weight.scales != NULL;
        m->by_cell[c] = weight.n == 1 && weight.scales == NULL ? weight.parts[0] : NULL;
    }
    DS_TRY(dsi_adapter_weights_open(m->adapter, m->cells, &m->own, m->own_of));
    for (ds_node i = 0; i < m->graph->n_nodes; ++i) {
        const dsi_node_info *node = &m->graph->nodes[i];
        DS_TRY(node->op == &dsi_op_grouped_linear ? find_experts(m, node) : DS_OK);
        DS_TRY(node->op == &dsi_op_linear ? find_weight(m, node, 1) : DS_OK);
        DS_TRY(node->op == &dsi_op_concat ? find_weight(m, node, 0) : DS_OK);
        DS_TRY(node->op == &dsi_op_embedding ? find_weight(m, node, 0) : DS_OK);
        DS_TRY(node->op == &dsi_op_embedding ? find_weight(m, node, 2) : DS_OK);
    }
    return DS_OK;
}

static const char *head_name(const merger *m)
{
    const char *head = ds_model_get_info(m->model)->head;
    return head != NULL ? head : "lm_head.weight";
}

/* An output head that begins as the embedding, which is tied to it in the folder. */
static bool is_new_head(const merger *m, ds_cell c)
{
    const char *name = ds_cells_get(m->cells, c)->name;
    return ds_model_get_info(m->model)->stored_tied && strcmp(name, head_name(m)) == 0 &&
           m->by_cell[c] != NULL && strcmp(m->by_cell[c]->name, name) != 0;
}

/* The dtype asked for, or that of a stored tensor. */
static ds_dtype dtype_of(const merger *m, const ds_safetensor *tensor)
{
    return m->dtype != DS_DTYPE_NONE ? m->dtype : tensor->meta.dtype;
}

/* W + scale·B·A. */
static ds_tensor_source source_of_sum(merged *w, const char *name, ds_dtype stored)
{
    return (ds_tensor_source){.name = name,
                              .meta = {DS_DTYPE_F32, w->weight->meta.shape},
                              .stored = stored,
                              .fill = fill,
                              .user = w};
}

/* What is written under a name for a parameter. */
static ds_tensor_source source_of(const merger *m, ds_cell c, const char *name)
{
    const ds_safetensor *from = m->by_cell[c];
    ds_tensor_source source = {.name = name, .meta = from->meta, .data = from->data};
    if (m->weights[c].weight != NULL) {
        return source_of_sum(&m->weights[c], name, dtype_of(m, from));
    } else if (m->own_of[c] != NULL) {
        source.data = m->own_of[c]->data;
        source.meta = m->own_of[c]->meta;
        source.stored = dtype_of(m, from);
    }
    return source;
}

/* Of an adapter with a head for classes, another head of the model's folder is left out. */
static bool is_left_out(const merger *m, const ds_safetensor *tensor)
{
    bool used = m->adapter->task == DS_TASK_TOKENS;
    for (ds_cell c = 0; c < ds_cells_count(m->cells) && !used; ++c) {
        const ds_cell_info *cell = ds_cells_get(m->cells, c);
        const dsi_weight weight =
            cell->kind == DS_CELL_PARAM ? dsi_weights_of(m->stored, c) : (dsi_weight){0};
        for (int64_t i = 0; i < weight.n && !used; ++i) {
            used = weight.parts[i] == tensor;
        }
    }
    return !used;
}

/* What the adapter trained and the model's folder has not: a head for classes. */
static bool is_added(const merger *m, ds_cell c)
{
    const ds_cell_info *cell = ds_cells_get(m->cells, c);
    return cell->kind == DS_CELL_PARAM && cell->of == DS_NONE && m->own_of[c] != NULL &&
           dsi_weights_of(m->stored, c).n == 0;
}

/* What is written for a tensor of the model. A stored one that has been made longer keeps its name.
 */
static ds_tensor_source source_of_tensor(const merger *m, const ds_safetensor *tensor)
{
    for (size_t i = 0; i < m->n_experts; ++i) {
        if (m->experts[i].weight == tensor) {
            return source_of_sum(&m->experts[i], tensor->name, dtype_of(m, tensor));
        }
    }
    for (ds_cell c = 0; c < ds_cells_count(m->cells); ++c) {
        if (m->by_cell[c] != NULL && strcmp(m->by_cell[c]->name, tensor->name) == 0 &&
            !is_new_head(m, c)) {
            return source_of(m, c, tensor->name);
        }
    }
    return (ds_tensor_source){.name = tensor->name, .meta = tensor->meta, .data = tensor->data};
}

/* The model's config.json, with what the adapter's folder says of its classes. */
static ds_status config_of(const merger *m, char **text_out)
{
    const char *text = ds_model_config_text(m->model);
    json_error_t error;
    json_t *root = m->adapter->task == DS_TASK_SEQUENCE_CLASSES
                       ? dsi_json_parse(text, strlen(text), 0, &error)
                       : NULL;
    const ds_status status =
        root != NULL ? dsi_adapter_problem_read(m->ctx, dsi_adapter_folder(m->adapter), root)
                     : DS_OK;
    *text_out = root != NULL && json_object_get(root, "problem_type") != NULL
                    ? json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17))
                    : strdup(text);
    json_decref(root);
    return status < 0 || *text_out != NULL ? status
                                           : ds_fail(m->ctx, DS_ERR_NOMEM, "no memory to merge");
}

static ds_status write_tensors(const merger *m, const ds_adapter_merge_params *params,
                               const char *config)
{
    const ds_hf_export_params how = {.folder = params->folder,
                                     .config_json = config,
                                     .dtype = params->dtype,
                                     .max_shard_bytes = params->max_shard_bytes,
                                     .task = m->adapter->task,
                                     .copy_from = params->model_folder};
    ds_hf_export *export = NULL;
    ds_status status = DS_OK;
    if (params->dtype != DS_DTYPE_NONE && m->has_blocks) {
        return ds_fail(
            m->ctx, DS_ERR_UNSUPPORTED,
            "%s has experts in MXFP4, which stay as they are: merge without another dtype",
            params->model_folder);
    }
    DS_TRY(ds_hf_export_begin(m->ctx, &how, &export));
    for (size_t i = 0; i < ds_safetensors_count(m->st) && status >= 0; ++i) {
        const ds_safetensor *tensor = ds_safetensors_at(m->st, i);
        const ds_tensor_source source = source_of_tensor(m, tensor);
        status = is_left_out(m, tensor) ? DS_OK : ds_hf_export_add(export, &source);
    }
    for (ds_cell c = 0; c < ds_cells_count(m->cells) && status >= 0; ++c) {
        if (is_new_head(m, c)) {
            const ds_tensor_source source = source_of(m, c, head_name(m));
            status = ds_hf_export_add(export, &source);
        } else if (is_added(m, c)) {
            const ds_tensor_source source = {.name = ds_cells_get(m->cells, c)->name,
                                             .meta = m->own_of[c]->meta,
                                             .data = m->own_of[c]->data,
                                             .stored = dtype_of(m, ds_safetensors_at(m->st, 0))};
            status = ds_hf_export_add(export, &source);
        }
    }
    if (status < 0) {
        ds_hf_export_abort(&export);
        return status;
    }
    return ds_hf_export_finish(&export);
}

static ds_status write_folder(const merger *m, const ds_adapter_merge_params *params)
{
    char *config = NULL;
    ds_status status = config_of(m, &config);
    status = status < 0 ? status : write_tensors(m, params, config);
    free(config);
    return status;
}

static void close_all(merger *m)
{
    for (ds_cell c = 0; m->weights != NULL && c < ds_cells_count(m->cells); ++c) {
        free(m->weights[c].a);
        free(m->weights[c].b);
        free(m->weights[c].lengths);
    }
    for (size_t i = 0; i < m->n_experts; ++i) {
        free(m->experts[i].a);
        free(m->experts[i].b);
    }
    free(m->experts);
    free(m->weights);
    free(m->by_cell);
    dsi_weights_destroy(&m->stored);
    free(m->own_of);
    ds_safetensors_close(&m->own);
    ds_safetensors_close(&m->st);
    ds_graph_destroy(&m->graph);
    ds_cells_destroy(&m->cells);
    ds_model_destroy(&m->model);
}

/* What is written over is not what is read. */
static ds_status check_place(const merger *m, const ds_adapter_merge_params *params)
{
    const char *const inputs[] = {params->model_folder, dsi_adapter_folder(m->adapter)};
    struct stat out;
    struct stat in;
    for (size_t i = 0; i < 2 && stat(params->folder, &out) == 0; ++i) {
        if (stat(inputs[i], &in) == 0 && in.st_dev == out.st_dev && in.st_ino == out.st_ino) {
            return ds_fail(m->ctx, DS_ERR_ARG,
                           "ds_adapter_merge: %s is %s, which is read; give another folder",
                           params->folder, i == 0 ? "the model's folder" : "the adapter's folder");
        }
    }
    return DS_OK;
}

ds_status ds_adapter_merge(ds_ctx *ctx, const ds_adapter *adapter,
                           const ds_adapter_merge_params *params)
{
    merger m = {.adapter = adapter, .ctx = ctx, .dtype = params->dtype};
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_adapter_merge_params", params));
    if (dsi_adapter_folder(adapter) == NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_adapter_merge: expected an adapter that was opened from a folder");
    }
    DS_TRY(check_place(&m, params));
    ds_status status = trace(&m, params->model_folder);
    status = status < 0 ? status : open_weights(&m, params->model_folder);
    status = status < 0 ? status : write_folder(&m, params);
    close_all(&m);
    return status;
}
