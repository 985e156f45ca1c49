/* SPDX-License-Identifier: Apache-2.0 */
/* A generator whose layers several ranks share: which part of each cell is this rank's, and the
 * orders by which rank 0 leads.
 *
 * Rank 0's generator is used as one of a single rank is. Before it runs a piece it broadcasts what
 * it will run; the others obey in ds_generator_follow until it ends. So prompts, random numbers and
 * the end of a sequence are decided once.
 */
#include "base/machine_id.h"
#include "comm/same_text.h"
#include "compile/train_graph.h"
#include "infer/generator.h"
#include "io/file.h"
#include "model/adapter.h"
#include "pass/vocab_parts.h"
#include "place/tensor_rules.h"
#include "train/same_files.h"

#include <deepspeed/checkpoint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { HEAD_INTS = 4 };

/* Order: piece (n_pieces: the end), ids, length before, length of the sequence; then the ids. */
ds_status dsi_generator_order(const ds_generator *g, int32_t *words, size_t n)
{
    const dsi_comm_part part = {.in = words, .out = words, .count = n};
    const dsi_comm_call call = {.kind = DS_COMM_BROADCAST,
                                .dtype = DS_DTYPE_I32,
                                .factor = 1.0f,
                                .parts = &part,
                                .n_parts = 1,
                                .what = "what rank 0 generates"};
    return dsi_comm_run(g->comm, &call);
}

static size_t order_words(const ds_generator *g)
{
    return g->paged.blocks > 0 ? dsi_paged_order_words(g)
                               : HEAD_INTS + (size_t)g->pieces[g->n_pieces - 1].length;
}

/* ---- creation -------------------------------------------------------------------------------- */

/* All ranks have rank 0's length and dtype: the others do not know its prompt. */
static ds_status share_params(ds_generator *g)
{
    int32_t words[2] = {(int32_t)g->dtype, (int32_t)g->max_length};
    DS_TRY(dsi_generator_order(g, words, 2));
    g->dtype = (ds_dtype)words[0];
    g->max_length = words[1];
    return DS_OK;
}

/* The manifest has checksums of all else that a checkpoint holds, which are compared as it is read.
 */
static ds_status same_checkpoint(const ds_generator *g, const ds_generator_params *params)
{
    ds_checkpoint *ckpt = NULL;
    char *manifest = NULL;
    ds_status status = ds_checkpoint_open(g->ctx, params->checkpoint, params->tag, &ckpt);
    if (status >= 0) {
        manifest = dsi_path_join(ds_checkpoint_get_info(ckpt)->path, "ds_manifest.json");
        status = manifest != NULL ? DS_OK : ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for a path");
    }
    if (status >= 0 && access(manifest, F_OK) != 0) {
        status = ds_fail(g->ctx, DS_ERR_UNSUPPORTED,
                         "%s is no checkpoint of ours: several ranks cannot compare it; make one "
                         "of it by ds_checkpoint consolidate",
                         params->checkpoint);
    }
    status = ds_comm_agree(g->comm, g->ctx, status);
    if (status >= 0) {
        const char *paths[] = {manifest};
        status = dsi_same_files(g->ctx, g->comm, paths, 1, "checkpoint");
    }
    free(manifest);
    ds_checkpoint_close(&ckpt);
    return status;
}

static ds_status same_weights(const ds_generator *g, const ds_generator_params *params)
{
    DS_TRY(
        dsi_same_folder(g->ctx, g->comm, dsi_adapter_folder(params->adapter), "adapter's folder"));
    DS_TRY(dsi_same_folder(g->ctx, g->comm, params->gguf, "GGUF file"));
    return params->checkpoint != NULL
               ? same_checkpoint(g, params)
               : dsi_same_folder(g->ctx, g->comm, params->weights, "model folder");
}

static ds_status count_local(ds_generator *g)
{
    const uint64_t own = dsi_machine_id();
    uint64_t *all = calloc(g->comm->size, sizeof *all);
    if (all == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for a generator");
    }
    const ds_status status = dsi_comm_gather(g->comm, &own, all, sizeof own, "hosts");
    g->n_local = 0;
    for (uint32_t r = 0; r < g->comm->size; ++r) {
        g->n_local += all[r] == own;
    }
    free(all);
    return status;
}

/* What many sequences share is said to each rank by its own caller. */
static ds_status same_sizes(const ds_generator *g)
{
    enum { TEXT_BYTES = 512 };
    const ds_paged *p = &g->paged;
    char text[TEXT_BYTES];
    (void)snprintf(
        text, sizeof text,
        "positions: %lld\nblock: %lld\nsequences: %lld\nrows of states: %lld\nmax_length: "
        "%lld\nbudget of tokens: %lld\nrows of logits: %lld\nkv_type: %s\nembeddings: %s\nslots of "
        "adapters: %lld of rank "
        "%lld\nquantize: %s\n",
        (long long)(p->blocks * p->block), (long long)p->block, (long long)p->sequences,
        (long long)p->states, (long long)g->max_length, (long long)g->budget, (long long)p->rows,
        ds_dtype_name(p->kv_type), g->embeds ? "yes" : "no", (long long)g->slots.n,
        (long long)g->slots.rank, ds_dtype_name(g->quantize));
    return dsi_same_text(g->ctx, g->comm, text, "server", "give every rank the same parameters");
}

bool dsi_generator_is_shared(const ds_generator *g)
{
    return g->comm != NULL || g->zero.tp > 1;
}

void dsi_generator_set_patience(ds_generator *g, double seconds)
{
    if (g->comm == NULL) {
        return;
    }
    g->comm->timeout = seconds;
    for (uint32_t i = 0; i < g->mesh->n; ++i) {
        if (g->mesh->group[i].comm != NULL) {
            g->mesh->group[i].comm->timeout = seconds;
        }
    }
}

ds_status dsi_generator_join(ds_generator *g, const ds_generator_params *params)
{
    ds_comm *comm = params->comm;
    if (g->plan_ranks > 1) {
        g->zero = (dsi_zero_spec){.tp = g->plan_ranks, .pp = 1, .comm_dtype = g->dtype};
        return dsi_zero_set_ranks(g->ctx, &g->zero, g->plan_ranks);
    }
    if (comm == NULL || ds_comm_size(comm) == 1) {
        return DS_OK;
    }
    const uint32_t stages = params->stages > 1 ? params->stages : 1;
    if (comm->size % stages != 0) {
        return ds_fail(g->ctx, DS_ERR_ARG,
                       "ds_generator_params: stages %u is no divisor of the %u ranks", stages,
                       comm->size);
    }
    if (stages > 1 && g->paged.blocks > 0) {
        return ds_fail(g->ctx, DS_ERR_UNSUPPORTED,
                       "ds_generator_params: stages %u: a server of many sequences has one stage",
                       stages);
    }
    g->zero = (dsi_zero_spec){.tp = comm->size / stages, .pp = stages, .comm_dtype = g->dtype};
    DS_TRY(dsi_zero_set_ranks(g->ctx, &g->zero, comm->size));
    const ds_status status =
        ds_comm_agree(comm, g->ctx, dsi_comm_split(comm, 0, comm->rank, &g->comm));
    if (status < 0) {
        dsi_comm_destroy(&g->comm); /* there may be none elsewhere */
        return status;
    }
    if (g->paged.blocks == 0) {
        g->comm->timeout = 0.0; /* a user may think; deaths are noticed all the same */
    }
    DS_TRY(g->paged.blocks > 0 ? same_sizes(g) : DS_OK);
    DS_TRY(count_local(g));
    DS_TRY(share_params(g));
    g->mesh = calloc(1, sizeof *g->mesh);
    if (g->mesh == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for a generator");
    }
    DS_TRY(dsi_mesh_comms_make(g->ctx, g->comm, &g->zero.mesh, g->mesh));
    return same_weights(g, params);
}

void dsi_generator_leave(ds_generator *g)
{
    if (g->comm != NULL && g->comm->rank == 0 && g->is_made && g->paged.blocks > 0) {
        dsi_paged_end(g);
    } else if (g->comm != NULL && g->comm->rank == 0 && g->is_made) {
        g->orders[0] = (int32_t)g->n_pieces; /* the end; who is gone needs none */
        (void)dsi_generator_order(g, g->orders, order_words(g));
    }
    if (g->mesh != NULL) {
        dsi_mesh_comms_destroy(g->mesh);
    }
    free(g->mesh);
    dsi_generator_close_stages(g);
    dsi_comm_destroy(&g->comm);
    free(g->orders);
    free(g->tables);
    free(g->tensor);
    free(g->places);
    if (g->local != g->cells) {
        ds_cells_destroy(&g->local);
    }
}

static ds_status same_model(const ds_generator *g, const ds_graph *graph)
{
    char *text = NULL;
    DS_TRY(ds_graph_print(graph, &text));
    const ds_status status =
        dsi_same_text(g->ctx, g->comm, text, "model", "give every rank the same model");
    free(text);
    return status;
}

/* Which dims tp shards: found in the first piece, in force in all; what reads sources has layers of
 * its own, found in the first piece of those. */
static ds_status find_shards(ds_generator *g, const ds_graph *graph)
{
    ds_graph *parts = NULL;
    if (g->tensor == NULL) {
        g->tensor =
            calloc(DSI_GENERATOR_CELLS, sizeof *g->tensor); /* {0}: inputs of later pieces */
    }
    if (g->tensor == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory to share layers");
    }
    DS_TRY(dsi_vocab_parts(graph, g->zero.tp, g->n_pieces > 1 ? g->tensor : NULL, &parts));
    const ds_status status =
        g->n_pieces > 1 ? dsi_tensor_rules_beside(parts, &g->zero.mesh, g->n_placed, g->tensor)
                        : dsi_tensor_rules(parts, &g->zero.mesh, NULL, g->tensor);
    ds_graph_destroy(&parts);
    return status;
}

/* The vocabulary in parts where ranks share layers. */
static ds_status cut_vocabulary(ds_generator *g, ds_graph **graph_inout)
{
    ds_graph *parts = NULL;
    if (g->zero.tp == 1) {
        return DS_OK;
    }
    if (g->tensor == NULL || (g->pairs && g->n_pieces == g->n_texts + 1)) {
        DS_TRY(find_shards(g, *graph_inout));
        g->zero.tensor = g->tensor;
    }
    g->n_placed = ds_cells_count(g->cells);
    DS_TRY(dsi_vocab_parts(*graph_inout, g->zero.tp, g->tensor, &parts));
    ds_graph_destroy(graph_inout);
    *graph_inout = parts;
    return DS_OK;
}

ds_status dsi_generator_lower(ds_generator *g, dsi_piece *piece, ds_graph **graph_inout)
{
    ds_graph *local = NULL;
    if (!dsi_generator_is_shared(g)) {
        return DS_OK;
    }
    DS_TRY(g->comm != NULL ? same_model(g, *graph_inout) : DS_OK);
    DS_TRY(dsi_generator_mark_stages(g, *graph_inout));
    DS_TRY(cut_vocabulary(g, graph_inout));
    DS_TRY(dsi_zero_lower(*graph_inout, &g->zero, g->local, &local));
    ds_graph_destroy(graph_inout);
    *graph_inout = local;
    return dsi_generator_cut_stage(g, piece, graph_inout);
}

ds_status dsi_generator_place(ds_generator *g)
{
    if (g->comm == NULL) {
        return DS_OK;
    }
    g->places = calloc((size_t)ds_cells_count(g->cells) + 1, sizeof *g->places);
    g->orders = calloc(order_words(g), sizeof *g->orders);
    const int64_t tables = g->pairs ? 2 : 1;
    g->tables =
        calloc((size_t)(tables * g->paged.sequences * g->paged.table) + 1, sizeof *g->tables);
    if (g->places == NULL || g->orders == NULL || g->tables == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory to share layers");
    }
    DS_TRY(dsi_generator_place_stages(g));
    dsi_zero_rules(&g->zero, g->cells, g->places);
    return DS_OK;
}

dsi_part dsi_generator_part(const ds_generator *g, ds_cell cell)
{
    return dsi_generator_part_of(g, cell, ds_cells_get(g->cells, cell)->meta.shape);
}

dsi_part dsi_generator_part_of(const ds_generator *g, ds_cell cell, ds_shape shape)
{
    return g->places == NULL
               ? dsi_part_whole(shape)
               : dsi_placement_part(&g->zero.mesh, &g->places[cell].at, shape, g->comm->rank);
}

/* ---- generation ------------------------------------------------------------------------------ */

ds_status dsi_generator_lead(ds_generator *g, uint32_t piece, const uint32_t *ids, int64_t n,
                             int64_t sequence)
{
    if (g->comm == NULL) {
        return DS_OK;
    }
    if (g->comm->rank != 0) {
        return ds_fail(g->ctx, DS_ERR_STATE,
                       "rank %u shares its layers with rank 0, which alone is given prompts: call "
                       "ds_generator_follow here",
                       g->comm->rank);
    }
    const int32_t head[HEAD_INTS] = {(int32_t)piece, (int32_t)n, (int32_t)g->length,
                                     (int32_t)sequence};
    memcpy(g->orders, head, sizeof head);
    memcpy(g->orders + HEAD_INTS, ids, (size_t)n * sizeof *ids);
    return dsi_generator_order(g, g->orders, order_words(g));
}

ds_status ds_generator_follow(ds_generator *g)
{
    if (g->comm == NULL || g->comm->rank == 0) {
        return ds_fail(g->ctx, DS_ERR_STATE,
                       "ds_generator_follow is for the ranks above 0 of a generator with a "
                       "communicator");
    }
    for (;;) {
        DS_TRY(dsi_generator_order(g, g->orders, order_words(g)));
        const int32_t *head = g->orders;
        if (head[0] == (int32_t)g->n_pieces) {
            return DS_OK;
        }
        g->length = head[2];
        DS_TRY(dsi_generator_run_piece(g, (uint32_t)head[0], (const uint32_t *)head + HEAD_INTS,
                                       head[1], head[3]));
    }
}
