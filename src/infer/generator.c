/* SPDX-License-Identifier: Apache-2.0 */
/* The generator: a plan for each of a few piece lengths, over shared cells. See infer.h.
 *
 * A prompt runs through the plans in pieces, the last one padded: what padding leaves behind the
 * prompt in the KV cells lies at positions that no query sees before the real id there overwrites
 * it. The KV cells hold the longest piece more than max_length for that reason.
 */
#include "infer/generator.h"

#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/reserved.h"
#include "infer/sampler.h"
#include "train/train_graph.h"

#include <stdio.h>
#include <stdlib.h>

enum { MAX_CELLS = 1 << 20 };

static const int64_t piece_lengths[DSI_GENERATOR_PIECES] = {1, 16, 64, 256};

static ds_status build_piece(ds_generator *g, int64_t length, int64_t longest)
{
    dsi_piece *piece = &g->pieces[g->n_pieces];
    const ds_trace trace = {.mode = DS_TRACE_GENERATE,
                            .dtype = g->dtype,
                            .batch = 1,
                            .seq_length = length,
                            .kv_length = g->max_length + longest};
    const dsi_plan_env env = {.n_threads = ds_ctx_n_threads(g->ctx),
                              .isa = dsi_cpu_isa(),
                              .choose = dsi_cpu_kernel_choose};
    ds_graph *graph = NULL;
    DS_TRY(dsi_forward_graph(g->model, &trace, NULL, NULL, g->cells, &graph));
    piece->length = length;
    const ds_status status = dsi_plan_build(graph, &env, &piece->plan);
    g->n_pieces += 1;
    ds_graph_destroy(&graph);
    return status;
}

static ds_status build_pieces(ds_generator *g)
{
    int64_t longest = 1;
    for (uint32_t i = 0; i < DSI_GENERATOR_PIECES; ++i) {
        longest = piece_lengths[i] <= g->max_length ? piece_lengths[i] : longest;
    }
    for (uint32_t i = 0; i < DSI_GENERATOR_PIECES; ++i) {
        if (piece_lengths[i] <= longest) {
            DS_TRY(build_piece(g, piece_lengths[i], longest));
        }
    }
    return DS_OK;
}

static ds_cell find_input(const ds_generator *g, const dsi_piece *piece, const char *name)
{
    char path[64];
    (void)snprintf(path, sizeof path, "generate.%lld/%s", (long long)piece->length, name);
    return ds_cells_find(g->cells, DS_CELL_INPUT, path);
}

static ds_status input(const ds_generator *g, const dsi_piece *piece, const char *name,
                       int32_t **data_out)
{
    const ds_cell cell = find_input(g, piece, name);
    if (cell == DS_NONE) {
        return ds_fail(g->ctx, DS_ERR_UNSUPPORTED, "the model has no input %s for generation",
                       name);
    }
    *data_out = dsi_exec_cell(g->exec, cell);
    return DS_OK;
}

static ds_status link_piece(ds_generator *g, dsi_piece *piece)
{
    ds_tensor logits;
    DS_TRY(input(g, piece, "input_ids", &piece->input_ids));
    DS_TRY(input(g, piece, "positions", &piece->positions));
    DS_TRY(input(g, piece, "kv_offset", &piece->kv_offset));
    DS_TRY(input(g, piece, "last", &piece->last));
    if (find_input(g, piece, "length") != DS_NONE) {
        DS_TRY(input(g, piece, "length", &piece->sequence));
    }
    DS_TRY(dsi_exec_output(g->exec, piece->id, "logits", &logits));
    piece->logits = logits.data;
    return DS_OK;
}

/* Everything but the weights of an engine. */
static ds_status build_own(ds_generator *g, const ds_generator_params *params)
{
    DS_TRY(ds_cells_create(g->ctx, MAX_CELLS, &g->cells));
    DS_TRY(build_pieces(g));
    DS_TRY(dsi_exec_create(g->ctx, g->cells, NULL, &g->exec));
    for (uint32_t i = 0; i < g->n_pieces; ++i) {
        DS_TRY(dsi_exec_add(g->exec, g->pieces[i].plan, &g->pieces[i].id));
    }
    if (g->engine == NULL) {
        DS_TRY(dsi_generator_bind_weights(g, params));
    }
    DS_TRY(dsi_exec_allocate(g->exec));
    if (g->engine == NULL) {
        DS_TRY(dsi_generator_convert_weights(g));
    }
    for (uint32_t i = 0; i < g->n_pieces; ++i) {
        DS_TRY(link_piece(g, &g->pieces[i]));
    }
    g->order = malloc((size_t)g->vocab_size * sizeof *g->order);
    g->weight = malloc((size_t)g->vocab_size * sizeof *g->weight);
    if (g->order == NULL || g->weight == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for sampling");
    }
    return DS_OK;
}

static ds_status check_source(ds_ctx *ctx, const ds_generator_params *params)
{
    const int given =
        (params->weights != NULL) + (params->checkpoint != NULL) + (params->engine != NULL);
    if (params->engine != NULL && params->model != NULL && params->model != params->engine->model) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_generator_params: model is another one than that of the engine");
    }
    if (given == 0 || (params->engine != NULL && given > 1) ||
        (params->engine == NULL && params->model == NULL)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_generator_params: expected a model with weights or checkpoint, or an "
                       "engine alone");
    }
    return DS_OK;
}

/* Checks params and takes over what they say. */
static ds_status begin(ds_generator *g, const ds_generator_params *params)
{
    DS_TRY(dsi_cpu_isa_check(g->ctx));
    DS_TRY(check_source(g->ctx, params));
    g->model = params->model != NULL ? params->model : params->engine->model;
    const ds_model_info *info = ds_model_get_info(g->model);
    if (info->vocab_size == 0) {
        return ds_fail(g->ctx, DS_ERR_ARG, "%s is no language model", info->architecture);
    }
    if (info->max_positions > 0 && params->max_length > info->max_positions) {
        return ds_fail(g->ctx, DS_ERR_LIMIT, "max_length %lld is above the model's %lld positions",
                       (long long)params->max_length, (long long)info->max_positions);
    }
    if (info->max_positions <= 0 && params->max_length <= 0) {
        return ds_fail(g->ctx, DS_ERR_ARG,
                       "ds_generator_params: max_length is needed, %s has no most positions",
                       info->architecture);
    }
    g->vocab_size = info->vocab_size;
    g->max_length = params->max_length > 0 ? params->max_length : info->max_positions;
    g->dtype = params->dtype;
    return g->dtype != DS_DTYPE_NONE ? DS_OK
                                     : dsi_generator_stored_dtype(g->ctx, params, &g->dtype);
}

ds_status ds_generator_create(ds_ctx *ctx, const ds_generator_params *params,
                              ds_generator **generator_out)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_generator_params", params));
    ds_generator *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a generator");
    }
    g->ctx = ctx;
    g->engine = params->engine;
    ds_status status = begin(g, params);
    status = status < 0 ? status : build_own(g, params);
    status = g->engine == NULL ? status : dsi_generator_take_engine(g, status);
    if (status < 0) {
        ds_generator_destroy(&g);
        return status;
    }
    *generator_out = g;
    return DS_OK;
}

void ds_generator_destroy(ds_generator **generator)
{
    ds_generator *g = generator != NULL ? *generator : NULL;
    if (g == NULL) {
        return;
    }
    dsi_exec_destroy(&g->exec);
    for (uint32_t i = 0; i < g->n_pieces; ++i) {
        dsi_plan_destroy(&g->pieces[i].plan);
    }
    dsi_generator_close_weights(g);
    ds_cells_destroy(&g->cells);
    free(g->order);
    free(g->weight);
    free(g);
    *generator = NULL;
}

/* Runs n ids, 1 <= n <= piece->length, behind what the KV cells hold. sequence: ids of the whole
 * prompt, or with the new one. */
static ds_status run_piece(ds_generator *g, const dsi_piece *piece, const uint32_t *ids, int64_t n,
                           int64_t sequence)
{
    for (int64_t i = 0; i < piece->length; ++i) {
        const int64_t position = g->length + i < g->max_length ? g->length + i : g->max_length - 1;
        piece->input_ids[i] = i < n ? (int32_t)ids[i] : 0;
        piece->positions[i] = (int32_t)position;
    }
    piece->kv_offset[0] = (int32_t)g->length;
    piece->last[0] = (int32_t)(n - 1);
    if (piece->sequence != NULL) {
        piece->sequence[0] = (int32_t)sequence;
    }
    DS_TRY(dsi_exec_run(g->exec, piece->id, DS_PHASE_FORWARD));
    g->length += n;
    g->logits = piece->logits;
    return DS_OK;
}

/* The shortest piece that holds n ids, else the longest there is. */
static const dsi_piece *choose_piece(const ds_generator *g, int64_t n)
{
    for (uint32_t i = 0; i < g->n_pieces; ++i) {
        if (g->pieces[i].length >= n) {
            return &g->pieces[i];
        }
    }
    return &g->pieces[g->n_pieces - 1];
}

ds_status ds_generator_prompt(ds_generator *g, const uint32_t *ids, size_t n)
{
    if (n == 0 || n > (size_t)g->max_length) {
        return ds_fail(g->ctx, DS_ERR_LIMIT, "the prompt has %zu tokens; 1 to %lld are possible", n,
                       (long long)g->max_length);
    }
    for (size_t i = 0; i < n; ++i) {
        if ((int64_t)ids[i] >= g->vocab_size) {
            return ds_fail(g->ctx, DS_ERR_ARG,
                           "token %u is outside of the model's vocabulary of %lld", ids[i],
                           (long long)g->vocab_size);
        }
    }
    g->length = 0;
    for (size_t at = 0; at < n;) {
        const dsi_piece *piece = choose_piece(g, (int64_t)(n - at));
        const int64_t part = (int64_t)(n - at) < piece->length ? (int64_t)(n - at) : piece->length;
        DS_TRY(run_piece(g, piece, ids + at, part, (int64_t)n));
        at += (size_t)part;
    }
    return DS_OK;
}

ds_status ds_generator_next(ds_generator *g, const ds_sampling *sampling, uint32_t *id_out)
{
    DS_TRY(DSI_RESERVED_CHECK(g->ctx, "ds_sampling", sampling));
    uint32_t id = 0;
    if (g->logits == NULL) {
        return ds_fail(g->ctx, DS_ERR_STATE, "ds_generator_next needs a prompt first");
    }
    if (g->length >= g->max_length) {
        return ds_fail(g->ctx, DS_ERR_LIMIT, "the sequence has reached its %lld positions",
                       (long long)g->max_length);
    }
    DS_TRY(dsi_sample(g->ctx, g->logits, g->vocab_size, sampling, (uint64_t)g->length, g->order,
                      g->weight, &id));
    DS_TRY(run_piece(g, &g->pieces[0], &id, 1, g->length + 1));
    *id_out = id;
    return DS_OK;
}

const float *ds_generator_logits(const ds_generator *g, int64_t *n_out)
{
    *n_out = g->vocab_size;
    return g->logits;
}

int64_t ds_generator_length(const ds_generator *g)
{
    return g->length;
}

int64_t ds_generator_max_length(const ds_generator *g)
{
    return g->max_length;
}

ds_dtype ds_generator_dtype(const ds_generator *g)
{
    return g->dtype;
}

double ds_generator_step_bytes(const ds_generator *g)
{
    double bytes = 0.0;
    for (ds_cell c = 0; c < ds_cells_count(g->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(g->cells, c);
        if (cell->kind == DS_CELL_PARAM || cell->kind == DS_CELL_KV) {
            bytes += (double)ds_meta_bytes(cell->meta);
        }
    }
    return bytes;
}
