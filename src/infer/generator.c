/* SPDX-License-Identifier: Apache-2.0 */
/* The generator: a plan for each of a few piece lengths, over shared cells. See infer.h.
 *
 * A prompt runs through the plans in pieces, the last one padded: what padding leaves behind the
 * prompt in the KV cells lies at positions that no query sees before the real id there overwrites
 * it. The KV cells hold the longest piece more than max_length for that reason.
 */
#include "infer/generator.h"

#include "accel/cpu/cpu_features.h"
#include "base/blocks.h"
#include "base/reserved.h"
#include "compile/adapter_graph.h"
#include "compile/train_graph.h"
#include "infer/sampler.h"
#include "ir/graph.h"
#include "model/adapter.h"
#include "op/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

enum { LENGTHS = 4 };
static const int64_t piece_lengths[LENGTHS] = {1, 16, 64, 256};

/* Positions from which on rotary ones go by a sequence's length; 0: they do not. */
static int64_t longest_fixed(const ds_graph *graph)
{
    int64_t least = 0;
    for (uint32_t i = 0; i < graph->n_nodes; ++i) {
        const dsi_rope_table_attrs *a = graph->nodes[i].attrs;
        if (graph->nodes[i].op == &dsi_op_rope_table && a->scaling == DSI_ROPE_DYNAMIC) {
            const int64_t own = a->original_max_positions;
            least = least == 0 || own < least ? own : least;
        }
    }
    return least;
}

ds_status dsi_generator_build_piece(ds_generator *g, const ds_trace *trace, dsi_piece *piece)
{
    dsi_plan_env env = {.n_threads = ds_ctx_n_threads(g->ctx),
                        .isa = dsi_accel_isa(&g->accel),
                        .choose = dsi_accel_chosen(&g->accel)->kernels->choose};
    ds_graph *graph = NULL;
    DS_TRY(dsi_forward_graph(g->model, trace, NULL, NULL, g->cells, &graph));
    piece->length = trace->seq_length;
    g->n_model_cells = g->n_model_cells > 0 ? g->n_model_cells : ds_cells_count(g->cells);
    g->longest_fixed = longest_fixed(graph);
    ds_status status = dsi_adapter_graph(g->adapter, trace, &graph);
    status = status < 0 ? status : dsi_slot_graph(&g->slots, trace, &graph);
    if (g->comm != NULL) {
        status = ds_comm_agree(g->comm, g->ctx, status);
        g->all_know = status < 0;
    }
    status = status < 0 ? status : dsi_generator_lower(g, piece, &graph);
    status = status < 0 ? status : dsi_generator_offload_graph(g, &env, &graph);
    status = status < 0 ? status : dsi_plan_build(graph, &env, &piece->plan);
    ds_graph_destroy(&graph);
    return status;
}

bool dsi_generator_whole_heads(const ds_generator *g)
{
    return g->adapter != NULL || g->slots.n > 0 || g->zero.tp > 1 ||
           !dsi_accel_chosen(&g->accel)->memory->on_host;
}

const ds_routing *dsi_generator_routing(const ds_generator *g)
{
    return g->engine != NULL ? dsi_train_routing(&g->engine->spec.train) : NULL;
}

ds_trace dsi_generator_trace(const ds_generator *g, int64_t length, int64_t longest)
{
    return (ds_trace){.mode = DS_TRACE_GENERATE,
                      .dtype = g->dtype,
                      .batch = 1,
                      .seq_length = length,
                      .kv_length = g->encodes ? 0 : g->max_length + longest,
                      .task = g->task.task,
                      .n_classes = g->task.n_classes,
                      .task_params = g->task.task_params,
                      .weights = g->quantize,
                      .types = dsi_generator_types(g),
                      .head_ranks = g->zero.tp > 1 ? g->zero.tp : 0,
                      .packing = dsi_adapter_packing(g->adapter),
                      .whole_heads = dsi_generator_whole_heads(g),
                      .routing = dsi_generator_routing(g)};
}

/* The cells of a piece: those that stages add come behind the cells of all pieces. */
static ds_status declare_piece(ds_generator *g, const ds_trace *trace)
{
    ds_graph *graph = NULL;
    DS_TRY(dsi_forward_graph(g->model, trace, NULL, NULL, g->cells, &graph));
    const ds_status status = dsi_adapter_graph(g->adapter, trace, &graph);
    ds_graph_destroy(&graph);
    return status;
}

static ds_status build_piece(ds_generator *g, int64_t length, int64_t longest)
{
    const ds_trace trace = dsi_generator_trace(g, length, longest);
    g->n_pieces += 1;
    return dsi_generator_build_piece(g, &trace, &g->pieces[g->n_pieces - 1]);
}

static ds_status build_pieces(ds_generator *g)
{
    int64_t longest = 1;
    for (uint32_t i = 0; i < LENGTHS; ++i) {
        longest = piece_lengths[i] <= g->max_length ? piece_lengths[i] : longest;
    }
    for (uint32_t i = 0; i < LENGTHS && dsi_generator_n_stages(g) > 1; ++i) {
        if (piece_lengths[i] <= longest) {
            const ds_trace trace = dsi_generator_trace(g, piece_lengths[i], longest);
            DS_TRY(declare_piece(g, &trace));
        }
    }
    for (uint32_t i = 0; i < LENGTHS; ++i) {
        if (piece_lengths[i] <= longest) {
            DS_TRY(build_piece(g, piece_lengths[i], longest));
        }
    }
    return DS_OK;
}

/* An encoder's plans: the usual lengths up to the longest, and that. */
static ds_status build_encoder(ds_generator *g)
{
    for (uint32_t i = 1; i < LENGTHS && piece_lengths[i] < g->max_length; ++i) {
        DS_TRY(build_piece(g, piece_lengths[i], 0));
    }
    for (int64_t length = 2 * piece_lengths[LENGTHS - 1]; length < g->max_length; length *= 2) {
        DS_TRY(build_piece(g, length, 0));
    }
    return build_piece(g, g->max_length, 0);
}

ds_cell dsi_generator_find_input(const ds_generator *g, const char *prefix, const char *name)
{
    char path[96];
    (void)snprintf(path, sizeof path, "%s/%s", prefix, name);
    return ds_cells_find(g->cells, DS_CELL_INPUT, path);
}

ds_status dsi_generator_input(const ds_generator *g, const char *prefix, const char *name,
                              ds_cell *cell_out)
{
    const ds_cell cell = dsi_generator_find_input(g, prefix, name);
    if (cell == DS_NONE) {
        return ds_fail(g->ctx, DS_ERR_UNSUPPORTED, "the model has no input %s for generation",
                       name);
    }
    *cell_out = cell;
    return DS_OK;
}

static ds_status find_inputs(const ds_generator *g, dsi_piece *piece)
{
    char prefix[48];
    (void)snprintf(prefix, sizeof prefix, "generate.%lld", (long long)piece->length);
    DS_TRY(dsi_generator_input(g, prefix, "input_ids", &piece->input_ids));
    DS_TRY(dsi_generator_input(g, prefix, "positions", &piece->positions));
    piece->types = dsi_generator_find_input(g, prefix, "token_type_ids");
    if (g->encodes) {
        return dsi_generator_input(g, prefix, "first", &piece->first);
    }
    DS_TRY(dsi_generator_input(g, prefix, "kv_offset", &piece->kv_offset));
    DS_TRY(dsi_generator_input(g, prefix, "last", &piece->last));
    piece->sequence = dsi_generator_find_input(g, prefix, "length");
    return DS_OK;
}

/* Everything but the weights of an engine. */
static ds_status build_own(ds_generator *g, const ds_generator_params *params)
{
    DS_TRY(ds_cells_create(g->ctx, DSI_GENERATOR_CELLS, &g->cells));
    g->local = g->cells;
    if (dsi_generator_is_shared(g)) {
        DS_TRY(ds_cells_create(g->ctx, DSI_GENERATOR_CELLS, &g->local));
    }
    const bool paged = g->paged.blocks > 0;
    DS_TRY(paged        ? dsi_paged_build_pieces(g)
           : g->pairs   ? dsi_pairs_build_pieces(g)
           : g->encodes ? build_encoder(g)
                        : build_pieces(g));
    DS_TRY(dsi_generator_place(g));
    if (g->plans_only) {
        return DS_OK;
    }
    DS_TRY(dsi_exec_create(g->ctx, g->local, g->comm, &g->exec));
    DS_TRY(dsi_exec_set_accel(g->exec, &g->accel));
    dsi_exec_set_mesh(g->exec, g->mesh);
    for (uint32_t i = 0; i < g->n_pieces; ++i) {
        DS_TRY(dsi_exec_add(g->exec, g->pieces[i].plan, &g->pieces[i].id));
    }
    if (g->engine == NULL) {
        DS_TRY(dsi_generator_bind_weights(g, params));
    } else if (params->share || g->engine->spec.hybrid.enabled) {
        DS_TRY(dsi_generator_share_engine(g));
    }
    DS_TRY(dsi_generator_allocate(g));
    if (g->engine == NULL) {
        DS_TRY(dsi_generator_convert_weights(g));
    }
    for (uint32_t i = 0; i < g->n_pieces; ++i) {
        DS_TRY(paged      ? dsi_paged_find_inputs(g, &g->pieces[i])
               : g->pairs ? dsi_pairs_find_inputs(g, &g->pieces[i])
                          : find_inputs(g, &g->pieces[i]));
    }
    size_t longest = 0;
    for (uint32_t i = 0; i < g->n_pieces; ++i) {
        const size_t own = (size_t)g->pieces[i].length;
        longest = own > longest ? own : longest;
    }
    g->ids = malloc(2 * longest * sizeof *g->ids);
    const size_t v = (size_t)g->vocab_size;
    g->room.order = malloc(v * sizeof *g->room.order);
    g->room.weight = malloc(v * sizeof *g->room.weight);
    g->room.key = malloc(v * sizeof *g->room.key);
    g->held = malloc((size_t)g->max_length * sizeof *g->held);
    if (g->ids == NULL || g->held == NULL || g->room.order == NULL || g->room.weight == NULL ||
        g->room.key == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for sampling");
    }
    return DS_OK;
}

/* What plans depend on. */
static ds_status check_quantize(ds_ctx *ctx, const ds_generator_params *params)
{
    if (params->quantize != DS_DTYPE_NONE && !dsi_is_blocks(params->quantize)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_generator_params: quantize is %s; expected q8_0, q4_0, q4_1, q5_0, "
                       "q5_1, q4_k, q5_k or q6_k",
                       ds_dtype_name(params->quantize));
    }
    if (params->keep_blocks && (params->weights == NULL || params->model == NULL ||
                                params->quantize != DS_DTYPE_NONE || params->gguf != NULL)) {
        return ds_fail(
            ctx, DS_ERR_ARG,
            "ds_generator_params: keep_blocks goes with a model and its weights, without "
            "quantize and gguf");
    }
    if ((params->quantize != DS_DTYPE_NONE || params->gguf != NULL || params->keep_blocks) &&
        (params->checkpoint != NULL || params->engine != NULL || params->adapter != NULL ||
         params->stages > 1)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_generator_params: quantize and gguf go with weights alone, without "
                       "adapter and stages");
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
    if (params->share && params->engine == NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_generator_params: share is of an engine's parameters; leave it false "
                       "without one");
    }
    if (params->engine != NULL && params->comm != NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_generator_params: an engine's ranks each have a whole generator; leave "
                       "comm NULL");
    }
    DS_TRY(dsi_adapter_check_alone(params->adapter, "ds_generator_params"));
    if (params->adapter != NULL &&
        (params->weights == NULL || given > 1 || dsi_adapter_folder(params->adapter) == NULL)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_generator_params: expected an adapter that was opened from a folder, "
                       "beside weights alone");
    }
    if ((params->quantize != DS_DTYPE_NONE || params->gguf != NULL) &&
        (params->weights == NULL || given > 1)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_generator_params: quantize and gguf go with weights alone, without "
                       "adapter and stages");
    }
    if (params->stages > 1 && (params->comm == NULL || ds_comm_size(params->comm) == 1)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_generator_params: %u stages of one rank; give the communicator of at "
                       "least as many, or leave stages 0",
                       params->stages);
    }
    if (given == 0 || (params->engine != NULL && given > 1) ||
        (params->engine == NULL && params->model == NULL)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "ds_generator_params: expected a model with weights or checkpoint, or an "
                       "engine alone");
    }
    return DS_OK;
}

static ds_dtype type_of(const void *user, const char *path, ds_shape shape)
{
    const ds_generator *g = user;
    return g->gguf != NULL ? dsi_gguf_blocks_type(g->gguf, path, shape)
                           : dsi_int4_blocks_type(g->int4, path, shape);
}

const ds_weight_types *dsi_generator_types(const ds_generator *g)
{
    const bool has = g->gguf != NULL || g->int4 != NULL;
    return has && g->quantize == DS_DTYPE_NONE ? &g->types : NULL;
}

int64_t dsi_generator_longest(const ds_generator_params *params, const ds_model_info *info)
{
    const ds_config_hybrid *hybrid =
        params->engine != NULL ? &params->engine->spec.hybrid : &(ds_config_hybrid){0};
    const int64_t most = info->max_positions;
    if (params->max_length > 0 || !hybrid->enabled) {
        return params->max_length > 0 ? params->max_length : most;
    }
    return most > 0 && most < hybrid->max_out_tokens ? most : hybrid->max_out_tokens;
}

/* Checks params and takes over what they say. */
static ds_status begin(ds_generator *g, const ds_generator_params *params)
{
    DS_TRY(dsi_cpu_isa_check(g->ctx));
    DS_TRY(check_quantize(g->ctx, params));
    DS_TRY(g->plans_only ? DS_OK : check_source(g->ctx, params));
    if (params->accelerator == NULL && params->engine != NULL) {
        g->accel = params->engine->spec.accel;
    } else {
        char text[DSI_ACCEL_TEXT];
        DS_TRY(dsi_accel_choose(g->ctx, params->accelerator, &g->accel));
        dsi_accel_for_ranks(&g->accel, ds_comm_size(params->comm));
        dsi_accel_say(&g->accel, text);
        if (!g->plans_only) {
            ds_log(g->ctx, DS_LOG_JOB, "accelerator: %s", text);
        }
    }
    g->adapter = params->engine != NULL ? params->engine->spec.train.adapter : params->adapter;
    g->model = params->model != NULL ? params->model : params->engine->model;
    const ds_model_info *info = ds_model_get_info(g->model);
    if (info->vocab_size == 0) {
        return ds_fail(g->ctx, DS_ERR_ARG, "%s is no language model", info->architecture);
    }
    DS_TRY(dsi_adapter_check_pairs(g->adapter, g->model));
    g->pairs = info->pairs && !g->encodes;
    if (g->pairs) {
        DS_TRY(dsi_pairs_check(g, params));
    } else if (info->encoder && !g->encodes) {
        return ds_fail(g->ctx, DS_ERR_ARG,
                       "%s is an encoder: it has no next token to generate (ds_encode reads it)",
                       info->architecture);
    }
    if (info->max_positions > 0 && params->max_length > info->max_positions) {
        return ds_fail(g->ctx, DS_ERR_LIMIT, "max_length %lld is above the model's %lld positions",
                       (long long)params->max_length, (long long)info->max_positions);
    }
    g->max_length = dsi_generator_longest(params, info);
    if (g->max_length <= 0) {
        return ds_fail(g->ctx, DS_ERR_ARG,
                       "ds_generator_params: max_length is needed, %s has no most positions",
                       info->architecture);
    }
    g->vocab_size = g->slots.vocab_size = info->vocab_size;
    g->dtype = params->dtype;
    g->quantize = params->quantize;
    if (g->dtype == DS_DTYPE_NONE) {
        DS_TRY(dsi_generator_stored_dtype(g->ctx, params, &g->dtype));
    }
    if (params->gguf != NULL) {
        DS_TRY(dsi_gguf_blocks_open(g->ctx, params->gguf, &g->gguf));
        g->types = (ds_weight_types){type_of, g};
    }
    if (params->keep_blocks) {
        DS_TRY(dsi_int4_blocks_open(g->ctx, params->model, params->weights, &g->int4));
        g->types = (ds_weight_types){type_of, g};
    }
    return dsi_generator_offload_open(g, params);
}

/* Where a rank that shares the layers cannot go on, none does. They agree before each collective of
 * g->comm that a failure of one of them alone could keep it from: there this end meets the others.
 */
static ds_status begin_and_build(ds_generator *g, const ds_generator_params *params)
{
    ds_status status = begin(g, params);
    status = g->plans_only ? status : ds_comm_agree(params->comm, g->ctx, status);
    status = status < 0 ? status : dsi_generator_join(g, params);
    status = status < 0 ? status : build_own(g, params);
    return g->comm != NULL && !g->all_know ? ds_comm_agree(g->comm, g->ctx, status) : status;
}

static ds_status create(ds_ctx *ctx, const ds_generator_params *params, const ds_generator *start,
                        ds_generator **generator_out)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_generator_params", params));
    ds_generator *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a generator");
    }
    *g = *start;
    g->ctx = ctx;
    g->engine = params->engine;
    ds_status status = begin_and_build(g, params);
    status = g->engine == NULL || g->plans_only ? status : dsi_generator_take_engine(g, status);
    if (status < 0) {
        ds_generator_destroy(&g);
        return status;
    }
    g->is_made = true;
    *generator_out = g;
    return DS_OK;
}

ds_status ds_generator_create(ds_ctx *ctx, const ds_generator_params *params,
                              ds_generator **generator_out)
{
    return dsi_generator_create(ctx, params, NULL, generator_out);
}

ds_status dsi_encoder_create(ds_ctx *ctx, const ds_generator_params *params,
                             const dsi_encoder_task *task, ds_generator **generator_out)
{
    const ds_generator start = {.encodes = true, .task = *task};
    return create(ctx, params, &start, generator_out);
}

static ds_generator start_of(const dsi_many *many)
{
    return (ds_generator){.paged = many->paged,
                          .budget = many->budget,
                          .draws = many->draws,
                          .embeds = many->embeds,
                          .slots = {.n = many->slots, .rank = many->slot_rank}};
}

ds_status dsi_generator_create(ds_ctx *ctx, const ds_generator_params *params, const dsi_many *many,
                               ds_generator **generator_out)
{
    const ds_generator start = many != NULL ? start_of(many) : (ds_generator){0};
    return create(ctx, params, &start, generator_out);
}

ds_status dsi_generator_plan(ds_ctx *ctx, const ds_generator_params *params, const dsi_many *many,
                             ds_generator **generator_out)
{
    ds_generator start = start_of(many);
    start.plans_only = true;
    start.plan_ranks = many->plan_ranks;
    return create(ctx, params, &start, generator_out);
}

void ds_generator_destroy(ds_generator **generator)
{
    ds_generator *g = generator != NULL ? *generator : NULL;
    if (g == NULL) {
        return;
    }
    dsi_exec_destroy(&g->exec);
    dsi_generator_leave(g);
    for (uint32_t i = 0; i < g->n_pieces; ++i) {
        dsi_plan_destroy(&g->pieces[i].plan);
    }
    dsi_generator_close_weights(g);
    dsi_generator_offload_close(g);
    dsi_gguf_blocks_close(&g->gguf);
    dsi_int4_blocks_close(&g->int4);
    ds_cells_destroy(&g->cells);
    free(g->shared);
    free(g->ids);
    free(g->room.order);
    free(g->room.weight);
    free(g->room.key);
    free(g->held);
    free(g);
    *generator = NULL;
}

static ds_status write_ints(ds_generator *g, ds_cell cell, const int32_t *data, int64_t n)
{
    return dsi_exec_write(g->exec, cell, 0, data, (size_t)n * sizeof *data);
}

ds_status dsi_generator_run_piece(ds_generator *g, uint32_t index, const uint32_t *ids, int64_t n,
                                  int64_t sequence)
{
    const dsi_piece *piece = &g->pieces[index];
    int32_t *positions = g->ids + piece->length;
    for (int64_t i = 0; i < n; ++i) {
        g->held[g->length + i] = ids[i];
    }
    for (int64_t i = 0; i < piece->length; ++i) {
        const int64_t position = g->length + i < g->max_length ? g->length + i : g->max_length - 1;
        g->ids[i] = i < n ? (int32_t)ids[i] : 0;
        positions[i] = (int32_t)position;
    }
    DS_TRY(write_ints(g, piece->input_ids, g->ids, piece->length));
    DS_TRY(write_ints(g, piece->positions, positions, piece->length));
    DS_TRY(write_ints(g, piece->kv_offset, &(int32_t){(int32_t)g->length}, 1));
    DS_TRY(write_ints(g, piece->last, &(int32_t){(int32_t)(n - 1)}, 1));
    if (piece->sequence != DS_NONE) {
        DS_TRY(write_ints(g, piece->sequence, &(int32_t){(int32_t)sequence}, 1));
    }
    DS_TRY(dsi_generator_run_stage(g, piece));
    DS_TRY(dsi_generator_take_logits(g, piece));
    g->length += n;
    return DS_OK;
}

/* On all ranks. */
static ds_status run_piece(ds_generator *g, uint32_t index, const uint32_t *ids, int64_t n,
                           int64_t sequence)
{
    DS_TRY(dsi_generator_lead(g, index, ids, n, sequence));
    return dsi_generator_run_piece(g, index, ids, n, sequence);
}

/* The shortest piece of several ids that holds n, else the longest there is. */
static uint32_t choose_piece(const ds_generator *g, int64_t n)
{
    for (uint32_t i = 1; i < g->n_pieces; ++i) {
        if (g->pieces[i].length >= n) {
            return i;
        }
    }
    return g->n_pieces - 1;
}

/* Runs the ids of a prompt of n that are not in the KV cells. Where they begin changes no bit: the
 * last id is a step when it is left over behind whole pieces of the longest counted from the first
 * id, and no other is. */
static ds_status run_prompt(ds_generator *g, const uint32_t *ids, int64_t n)
{
    const int64_t longest = g->pieces[g->n_pieces - 1].length;
    const int64_t steps_from = longest == 1 ? 0 : n % longest == 1 ? n - 1 : n;
    g->first_step = steps_from;
    while (g->length < n) {
        const bool step = g->length >= steps_from;
        const int64_t left = step ? 1 : steps_from - g->length;
        const uint32_t piece = step ? 0 : choose_piece(g, left);
        const int64_t room = g->pieces[piece].length;
        const int64_t part = left < room ? left : room;
        DS_TRY(run_piece(g, piece, ids + g->length, part, n));
    }
    return DS_OK;
}

/* Whether a step of generation rounds otherwise than the same id in a prompt: attention.md. */
static bool steps_differ(const ds_generator *g)
{
    return g->dtype == DS_DTYPE_BF16 && (dsi_cpu_isa() & DS_ISA_AVX512_BF16) != 0;
}

/* How many of the ids are in the KV cells as a prompt of n would put them there. The last one is
 * run in any case, for its logits. */
static int64_t common_begin(const ds_generator *g, const uint32_t *ids, int64_t n)
{
    int64_t most = g->length < n - 1 ? g->length : n - 1;
    most = steps_differ(g) && g->first_step < most ? g->first_step : most;
    int64_t kept = 0;
    while (kept < most && g->held[kept] == ids[kept]) {
        ++kept;
    }
    if (ds_model_get_info(g->model)->carries && kept < g->length) {
        return 0;
    }
    return g->pieces[0].sequence == DS_NONE ? kept : 0;
}

static ds_status check_prompt(const ds_generator *g, const uint32_t *ids, size_t n)
{
    DS_TRY(dsi_generator_check_live(g));
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
    return DS_OK;
}

ds_status ds_generator_prompt(ds_generator *g, const uint32_t *ids, size_t n)
{
    DS_TRY(check_prompt(g, ids, n));
    g->length = 0;
    g->surprise = NAN;
    return g->pairs ? dsi_pairs_prompt(g, ids, (int64_t)n) : run_prompt(g, ids, (int64_t)n);
}

ds_status ds_generator_prompt_on(ds_generator *g, const uint32_t *ids, size_t n, size_t *kept_out)
{
    DS_TRY(check_prompt(g, ids, n));
    g->surprise = NAN;
    if (g->pairs) {
        if (kept_out != NULL) {
            *kept_out = 0;
        }
        return dsi_pairs_prompt(g, ids, (int64_t)n);
    }
    g->length = common_begin(g, ids, (int64_t)n);
    if (kept_out != NULL) {
        *kept_out = (size_t)g->length;
    }
    return run_prompt(g, ids, (int64_t)n);
}

ds_status ds_generator_next(ds_generator *g, const ds_sampling *sampling, uint32_t *id_out)
{
    DS_TRY(DSI_RESERVED_CHECK(g->ctx, "ds_sampling", sampling));
    DS_TRY(dsi_sampling_check(g->ctx, "ds_sampling", sampling));
    DS_TRY(dsi_generator_check_live(g));
    uint32_t id = 0;
    if (g->logits == NULL) {
        return ds_fail(g->ctx, DS_ERR_STATE, "ds_generator_next needs a prompt first");
    }
    if (g->length >= g->max_length) {
        return ds_fail(g->ctx, DS_ERR_LIMIT, "the sequence has reached its %lld positions",
                       (long long)g->max_length);
    }
    double surprise = isnan(g->surprise) ? 2.0 * sampling->tau : g->surprise;
    DS_TRY(dsi_sample(g->ctx, g->logits, g->vocab_size, sampling, (uint64_t)g->length, &g->room,
                      &surprise, &id));
    g->surprise = surprise;
    DS_TRY(run_piece(g, 0, &id, 1, g->length + 1));
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
    for (ds_cell c = 0; c < ds_cells_count(g->local); ++c) {
        const ds_cell_info *cell = ds_cells_get(g->local, c);
        if (cell->kind == DS_CELL_PARAM || cell->kind == DS_CELL_KV ||
            cell->kind == DS_CELL_STATE) {
            bytes += (double)ds_meta_bytes(cell->meta);
        }
    }
    return bytes;
}
