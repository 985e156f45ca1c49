/* SPDX-License-Identifier: Apache-2.0 */
/* Generation of many sequences in a row: plans for batches of some numbers of tokens, over the same
 * blocks of keys and values. Called by generator.c and src/serve.
 *
 * A batch runs in the smallest plan that holds its tokens and logits; what is left over are tokens
 * of no sequence: they write no key and are seen by none. A row has the same bits in every plan, as
 * it has alone and among others (docs/internals/gemm.md): so the choice changes nothing.
 */
#include "accel/accel.h"
#include "base/machine_memory.h"
#include "infer/generator.h"

#include <stdio.h>
#include <string.h>

enum { FEW_ROWS = 4, LINE = 64 };

static ds_status add_piece(ds_generator *g, int64_t length, int64_t rows, ds_task task)
{
    ds_paged paged = g->paged;
    paged.rows = rows;
    const ds_trace trace = {.mode = DS_TRACE_GENERATE,
                            .dtype = g->dtype,
                            .batch = 1,
                            .seq_length = length,
                            .kv_length = g->max_length,
                            .task = task,
                            .weights = g->quantize,
                            .types = dsi_generator_types(g),
                            .head_ranks = g->zero.tp > 1 ? g->zero.tp : 0,
                            .paged = &paged,
                            .whole_heads = dsi_generator_whole_heads(g),
                            .routing = dsi_generator_routing(g)};
    if (g->n_pieces == DSI_GENERATOR_PIECES) {
        return ds_fail(g->ctx, DS_ERR_LIMIT, "a budget of %lld tokens needs more than %d plans",
                       (long long)g->budget, DSI_GENERATOR_PIECES);
    }
    dsi_piece *piece = &g->pieces[g->n_pieces++];
    piece->rows = rows;
    return dsi_generator_build_piece(g, &trace, piece);
}

/* As the executor lays out memory. */
static size_t aligned(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

void dsi_generator_count(const ds_generator *g, dsi_generator_needs *needs_out)
{
    enum { PROCESS_BYTES = 3 << 20 }; /* measured, as in compile/rank_ledger.c */
    dsi_generator_needs needs = {.process = PROCESS_BYTES};
    size_t arena = 0;
    bool swaps = false;
    for (ds_cell c = 0; c < ds_cells_count(g->local); ++c) {
        const ds_cell_info *cell = ds_cells_get(g->local, c);
        const size_t bytes = aligned(ds_meta_bytes(cell->meta));
        const bool away = dsi_generator_is_away(g, c);
        swaps = swaps || away;
        needs.weights += cell->kind == DS_CELL_PARAM && !away ? bytes : 0;
        *(cell->kind == DS_CELL_KV ? &needs.stored_keys : &needs.stored) +=
            away ? dsi_swap_block_bytes(bytes) : 0;
        needs.keys_values += cell->kind == DS_CELL_KV && !away ? bytes : 0;
        needs.states += cell->kind == DS_CELL_STATE ? bytes : 0;
        needs.batch +=
            cell->kind != DS_CELL_PARAM && cell->kind != DS_CELL_KV && cell->kind != DS_CELL_STATE
                ? bytes
                : 0;
    }
    const size_t cells = needs.weights + needs.keys_values + needs.states + needs.batch;
    needs.batch += swaps ? dsi_swap_block_bytes(cells) - cells : 0; /* swaps' memory is in blocks */
    for (uint32_t i = 0; i < g->n_pieces; ++i) {
        const dsi_plan *plan = g->pieces[i].plan;
        arena = plan->arena_bytes > arena ? plan->arena_bytes : arena;
        needs.batch += aligned(plan->shared_bytes);
        needs.process += dsi_exec_table_bytes(plan);
    }
    needs.batch += aligned(arena) + LINE;
    *needs_out = needs;
}

size_t dsi_generator_needs_sum(const dsi_generator_needs *n)
{
    return n->weights + n->keys_values + n->states + n->batch + n->process;
}

/* Before anything is allocated: all of it fits this machine. */
static ds_status check_memory(const ds_generator *g)
{
    const size_t device = dsi_accel_device_memory(g->ctx, &g->accel);
    const size_t machine = dsi_machine_memory();
    const size_t there = device > 0 ? device : g->n_local > 1 ? machine / g->n_local : machine;
    const double tokens = (double)(g->paged.blocks * g->paged.block);
    dsi_generator_needs needs;
    dsi_generator_count(g, &needs);
    const size_t sum = dsi_generator_needs_sum(&needs);
    if (g->plans_only || there == 0 || sum <= there) {
        return DS_OK;
    }
    const size_t rest = sum - needs.keys_values;
    const double each = (double)needs.keys_values / tokens;
    const double room = there > rest && each > 0.0 ? (double)(there - rest) / each : 0.0;
    return ds_fail(g->ctx, DS_ERR_NOMEM,
                   "weights of %.2f GB, %.0f positions of %.1f KB and a batch of %.2f GB are %.2f "
                   "GB, this %s has %.2f GB%s: %.2f GB too much; kv_tokens of at most %.0f "
                   "would fit",
                   (double)needs.weights * 1e-9, tokens, each * 1e-3,
                   (double)(needs.batch + needs.states) * 1e-9, (double)sum * 1e-9,
                   device > 0 ? "device" : "machine", (double)there * 1e-9,
                   device == 0 && g->n_local > 1 ? " for each of its ranks" : "",
                   (double)(sum - there) * 1e-9, room);
}

/* Hidden states of documents: lengths 16, 64, 256 … up to the budget, with all rows. */
static ds_status build_embedding(ds_generator *g)
{
    enum { SHORTEST = 16, TIMES = 4 };
    for (int64_t length = SHORTEST; length < g->budget; length *= TIMES) {
        DS_TRY(add_piece(g, length, length, DS_TASK_HIDDEN));
    }
    return add_piece(g, g->budget, g->budget, DS_TASK_HIDDEN);
}

/* Sources, one at a time and whole: 16, 64, 256 … up to the longest, as a generator's of one
 * sequence, whatever the budget. */
static ds_status build_sources(ds_generator *g)
{
    enum { SHORTEST = 16, TIMES = 4 };
    for (int64_t length = SHORTEST; length < g->max_length; length *= TIMES) {
        DS_TRY(add_piece(g, length, length, DS_TASK_HIDDEN));
    }
    return add_piece(g, g->max_length, g->max_length, DS_TASK_HIDDEN);
}

/* Lengths 1, 2, 4, 8, 16 … up to the budget, the longer ones with few and with all rows, between
 * them with those that ids are drawn from where there are more. */
ds_status dsi_paged_build_pieces(ds_generator *g)
{
    for (int64_t length = 1;;) {
        const int64_t most = g->paged.rows < length ? g->paged.rows : length;
        if (most > FEW_ROWS) {
            DS_TRY(add_piece(g, length, FEW_ROWS, DS_TASK_TOKENS));
        }
        if (g->draws > FEW_ROWS && g->draws < most) {
            DS_TRY(add_piece(g, length, g->draws, DS_TASK_TOKENS));
        }
        DS_TRY(add_piece(g, length, most, DS_TASK_TOKENS));
        if (length == g->budget) {
            break;
        }
        length = 2 * length < g->budget ? 2 * length : g->budget;
    }
    g->n_texts = g->n_pieces;
    DS_TRY(g->pairs ? build_sources(g) : g->embeds ? build_embedding(g) : DS_OK);
    return check_memory(g);
}

ds_status dsi_paged_find_inputs(ds_generator *g, dsi_piece *piece)
{
    char prefix[48];
    const bool embeds = piece - g->pieces >= g->n_texts;
    if (embeds && g->pairs) {
        return dsi_pairs_find_source_inputs(g, piece);
    }
    (void)snprintf(prefix, sizeof prefix, "%s.%lld.%lld", embeds ? "embed" : "serve",
                   (long long)piece->length, (long long)piece->rows);
    DS_TRY(dsi_generator_input(g, prefix, "input_ids", &piece->input_ids));
    DS_TRY(dsi_generator_input(g, prefix, "positions", &piece->positions));
    DS_TRY(dsi_generator_input(g, prefix, "tables", &piece->tables));
    DS_TRY(dsi_generator_input(g, prefix, "sequence", &piece->of_token));
    DS_TRY(dsi_generator_input(g, prefix, "slots", &piece->slots));
    DS_TRY(dsi_generator_input(g, prefix, "last", &piece->last));
    piece->kv_offset = piece->adapters = DS_NONE;
    piece->sequence = dsi_generator_find_input(g, prefix, "length");
    piece->source_tables = dsi_generator_find_input(g, prefix, "source_tables");
    piece->source_last = dsi_generator_find_input(g, prefix, "source_last");
    DS_TRY(g->slots.n > 0 ? dsi_generator_input(g, prefix, "adapters", &piece->adapters) : DS_OK);
    return DS_OK;
}

/* Pieces ascend in length, then in rows. */
static const dsi_piece *choose(const ds_generator *g, const dsi_paged_batch *batch)
{
    const dsi_piece *piece = g->pieces + (batch->embeds ? g->n_texts : 0);
    while (piece->length < batch->n || piece->rows < batch->n_last) {
        ++piece;
    }
    return piece;
}

/* The first `n` of `length` ints, the rest `fill`. */
static ds_status write_padded(ds_generator *g, ds_cell cell, const int32_t *data, int64_t n,
                              int64_t length, int32_t fill)
{
    for (int64_t i = 0; i < length; ++i) {
        g->ids[i] = i < n ? data[i] : fill;
    }
    return dsi_exec_write(g->exec, cell, 0, g->ids, (size_t)length * sizeof *data);
}

/* Rows of what layers carry for sequences: cells of the model itself, not those that a plan keeps
 * its own values in. */
static ds_status copy_states(ds_generator *g, const dsi_paged_batch *batch)
{
    for (ds_cell c = 0; c < g->n_model_cells && batch->n_copies > 0; ++c) {
        const ds_cell_info *cell = ds_cells_get(g->local, c);
        if (cell->kind != DS_CELL_STATE) {
            continue;
        }
        const size_t bytes = ds_meta_bytes(cell->meta) / (size_t)cell->meta.shape.dims[0];
        for (int64_t i = 0; i < batch->n_copies; ++i) {
            const size_t from = (size_t)batch->copies[2 * i] * bytes;
            DS_TRY(
                dsi_exec_copy(g->exec, c, from, (size_t)batch->copies[2 * i + 1] * bytes, bytes));
        }
    }
    return DS_OK;
}

ds_status dsi_paged_run(ds_generator *g, const dsi_paged_batch *batch, const float **rows_out)
{
    if (g->comm != NULL && g->comm->rank == 0) {
        DS_TRY(dsi_paged_lead(g, batch));
    }
    DS_TRY(copy_states(g, batch));
    const dsi_piece *piece = choose(g, batch);
    const size_t table_bytes = (size_t)(g->paged.sequences * g->paged.table) * sizeof(int32_t);
    const int64_t length = piece->length;
    const int64_t n = batch->n;
    ds_tensor rows;
    DS_TRY(write_padded(g, piece->input_ids, batch->ids, n, length, 0));
    DS_TRY(write_padded(g, piece->positions, batch->positions, n, length, 0));
    DS_TRY(write_padded(g, piece->of_token, batch->of_token, n, length, -1));
    DS_TRY(write_padded(g, piece->slots, batch->slots, n, length, -1));
    if (piece->sequence != DS_NONE) {
        DS_TRY(write_padded(g, piece->sequence, batch->lengths, n, length, 1));
    }
    if (piece->adapters != DS_NONE) {
        DS_TRY(write_padded(g, piece->adapters, batch->adapters, n, length, -1));
    }
    DS_TRY(write_padded(g, piece->last, batch->last, batch->n_last, piece->rows, 0));
    DS_TRY(dsi_exec_write(g->exec, piece->tables, 0, batch->tables, table_bytes));
    if (piece->source_tables != DS_NONE) {
        DS_TRY(dsi_exec_write(g->exec, piece->source_tables, 0, batch->source_tables, table_bytes));
        DS_TRY(write_padded(g, piece->source_last, batch->source_last, n, length, 0));
    }
    const ds_status status = dsi_exec_run(g->exec, piece->id, DS_PHASE_FORWARD);
    g->lost = status < 0;
    DS_TRY(status);
    DS_TRY(dsi_exec_output(g->exec, piece->id, batch->embeds ? "hidden" : "logits", &rows));
    *rows_out = rows.data;
    return DS_OK;
}
