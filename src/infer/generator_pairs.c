/* SPDX-License-Identifier: Apache-2.0 */
/* Generation by models of sources and what is made of them: piece 0 decodes an id, the others read
 * a source whole, and leave in cells what each layer of the decoder sees of it. Called by
 * generator.c. What a source before was longer stays in the cells behind this one's end, which
 * piece 0 is told. Of many sequences in a row (generator_paged.c) sources go to blocks instead. */
#include "infer/generator.h"

#include <stdio.h>

ds_status dsi_pairs_check(const ds_generator *g, const ds_generator_params *params)
{
    const bool many = g->paged.blocks > 0;
    const char *what = !many && ds_comm_size(params->comm) > 1
                           ? "ranks that share the layers; a server's is"
                           : NULL;
    return what == NULL ? DS_OK
                        : ds_fail(g->ctx, DS_ERR_UNSUPPORTED,
                                  "%s: generation from a source is not built for %s",
                                  ds_model_get_info(g->model)->architecture, what);
}

static ds_status build(ds_generator *g, int64_t length, uint32_t task)
{
    ds_trace trace = dsi_generator_trace(g, length, 0);
    trace.task = task;
    g->n_pieces += 1;
    return dsi_generator_build_piece(g, &trace, &g->pieces[g->n_pieces - 1]);
}

/* Sources of the same lengths as those of encoders; one of a single id takes two positions, as the
 * inputs of a piece are named by its length. */
ds_status dsi_pairs_build_pieces(ds_generator *g)
{
    g->max_length = g->max_length > 2 ? g->max_length : 2;
    DS_TRY(build(g, 1, DS_TASK_TOKENS));
    for (int64_t length = 16; length < g->max_length; length *= 4) {
        DS_TRY(build(g, length, DS_TASK_HIDDEN));
    }
    return build(g, g->max_length, DS_TASK_HIDDEN);
}

ds_status dsi_pairs_find_inputs(ds_generator *g, dsi_piece *piece)
{
    char prefix[48];
    (void)snprintf(prefix, sizeof prefix, "generate.%lld", (long long)piece->length);
    DS_TRY(dsi_generator_input(g, prefix, "input_ids", &piece->input_ids));
    DS_TRY(dsi_generator_input(g, prefix, "positions", &piece->positions));
    DS_TRY(dsi_generator_input(g, prefix, "first", &piece->first));
    DS_TRY(dsi_generator_input(g, prefix, "kv_offset", &piece->kv_offset));
    piece->sequence = DS_NONE;
    if (piece->length > 1) {
        return DS_OK;
    }
    DS_TRY(dsi_generator_input(g, prefix, "last", &piece->last));
    return dsi_generator_input(g, prefix, "source_end", &piece->source_end);
}

static ds_status write_ints(ds_generator *g, ds_cell cell, const int32_t *data, int64_t n)
{
    return dsi_exec_write(g->exec, cell, 0, data, (size_t)n * sizeof *data);
}

/* Padding is a document of its own. */
static ds_status write_source(ds_generator *g, const dsi_piece *piece, const uint32_t *ids,
                              int64_t n)
{
    const int64_t length = piece->length;
    for (int64_t i = 0; i < length; ++i) {
        g->ids[i] = i < n ? (int32_t)ids[i] : (int32_t)ds_model_get_info(g->model)->pad_id;
    }
    DS_TRY(write_ints(g, piece->input_ids, g->ids, length));
    for (int64_t i = 0; i < length; ++i) {
        g->ids[i] = (int32_t)(i < n ? i : i - n);
    }
    DS_TRY(write_ints(g, piece->positions, g->ids, length));
    for (int64_t i = 0; i < length; ++i) {
        g->ids[i] = i < n ? 0 : (int32_t)n;
    }
    return write_ints(g, piece->first, g->ids, length);
}

static ds_status read_source(ds_generator *g, const dsi_piece *piece, const uint32_t *ids,
                             int64_t n)
{
    DS_TRY(write_source(g, piece, ids, n));
    DS_TRY(write_ints(g, piece->kv_offset, &(int32_t){0}, 1));
    return dsi_exec_run(g->exec, piece->id, DS_PHASE_FORWARD);
}

ds_status dsi_pairs_prompt(ds_generator *g, const uint32_t *ids, int64_t n)
{
    uint32_t i = 1;
    while (i + 1 < g->n_pieces && g->pieces[i].length < n) {
        ++i;
    }
    g->length = 0;
    g->logits = NULL;
    DS_TRY(read_source(g, &g->pieces[i], ids, n));
    DS_TRY(write_ints(g, g->pieces[0].first, &(int32_t){0}, 1));
    DS_TRY(write_ints(g, g->pieces[0].source_end, &(int32_t){(int32_t)n}, 1));
    const uint32_t start = (uint32_t)ds_model_get_info(g->model)->start_id;
    DS_TRY(dsi_generator_run_piece(g, 0, &start, 1, 1));
    return DS_OK;
}

ds_status dsi_pairs_find_source_inputs(ds_generator *g, dsi_piece *piece)
{
    char prefix[48];
    (void)snprintf(prefix, sizeof prefix, "embed.%lld.%lld", (long long)piece->length,
                   (long long)piece->rows);
    DS_TRY(dsi_generator_input(g, prefix, "input_ids", &piece->input_ids));
    DS_TRY(dsi_generator_input(g, prefix, "positions", &piece->positions));
    DS_TRY(dsi_generator_input(g, prefix, "first", &piece->first));
    DS_TRY(g->slots.n > 0 ? dsi_generator_input(g, prefix, "adapters", &piece->adapters) : DS_OK);
    return dsi_generator_input(g, prefix, "slots", &piece->slots);
}

/* The first n of a piece's positions have the values, or one value where there are none; the rest
 * -1. */
static ds_status write_of_source(ds_generator *g, const dsi_piece *piece, ds_cell cell, int64_t n,
                                 const int32_t *values, int32_t value)
{
    for (int64_t i = 0; i < piece->length; ++i) {
        g->ids[i] = i >= n ? -1 : values != NULL ? values[i] : value;
    }
    return write_ints(g, cell, g->ids, piece->length);
}

ds_status dsi_pairs_read_source(ds_generator *g, const uint32_t *ids, int64_t n,
                                const int32_t *slots, int32_t adapter, const float **rows_out)
{
    const dsi_piece *piece = &g->pieces[g->n_texts];
    ds_tensor rows;
    if (g->comm != NULL && g->comm->rank == 0) {
        DS_TRY(dsi_paged_lead_source(g, ids, n, slots, adapter));
    }
    while (piece->length < n) {
        ++piece;
    }
    DS_TRY(write_source(g, piece, ids, n));
    DS_TRY(write_of_source(g, piece, piece->slots, n, slots, -1));
    if (g->slots.n > 0) {
        DS_TRY(write_of_source(g, piece, piece->adapters, n, NULL, adapter));
    }
    const ds_status status = dsi_exec_run(g->exec, piece->id, DS_PHASE_FORWARD);
    g->lost = status < 0;
    DS_TRY(status);
    DS_TRY(dsi_exec_output(g->exec, piece->id, "hidden", &rows));
    *rows_out = rows.data;
    return DS_OK;
}
