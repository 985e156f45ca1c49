/* SPDX-License-Identifier: Apache-2.0 */
/* Exchanges among the ranks of a checkpoint. See ckpt_group.h. */
#include "ckpt/ckpt_group.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

ds_status dsi_ckpt_group_open(ds_ctx *ctx, dsi_comm *comm, dsi_ckpt_group *g)
{
    const bool many = comm != NULL && comm->size > 1;
    *g = (dsi_ckpt_group){.ctx = ctx, .comm = many ? comm : NULL, .size = 1};
    g->rank = many ? comm->rank : 0;
    g->size = many ? comm->size : 1;
    if (gethostname(g->host, sizeof g->host - 1) != 0) {
        (void)snprintf(g->host, sizeof g->host, "unknown");
    }
    g->states = calloc(g->size, sizeof *g->states);
    g->counts = calloc(2 * (size_t)g->size, sizeof *g->counts);
    g->reason = calloc(1, DSI_CKPT_REASON_BYTES);
    if (g->states == NULL || g->counts == NULL || g->reason == NULL) {
        dsi_comm_abort(g->comm, "out of memory for a checkpoint");
        dsi_ckpt_group_close(g);
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory for a checkpoint");
    }
    return DS_OK;
}

void dsi_ckpt_group_close(dsi_ckpt_group *g)
{
    if (g->comm != NULL) {
        g->comm->timeout -= g->granted;
    }
    free(g->states);
    free(g->counts);
    free(g->reason);
    *g = (dsi_ckpt_group){0};
}

static ds_status exchange(dsi_ckpt_group *g, dsi_comm_call call, const dsi_comm_part *part)
{
    if (g->broken < 0) {
        return g->broken;
    }
    call.dtype = DS_DTYPE_U8;
    call.factor = 1.0f;
    call.parts = part;
    call.n_parts = 1;
    call.what = g->what;
    g->broken = dsi_comm_run(g->comm, &call);
    if (g->broken < 0) {
        if (g->comm->ctx != g->ctx) {
            (void)ds_fail(g->ctx, g->broken, "%s: %s", g->what, ds_ctx_error(g->comm->ctx));
        }
        dsi_comm_abort(g->comm, ds_ctx_error(g->ctx));
    }
    return g->broken;
}

ds_status dsi_ckpt_gather(dsi_ckpt_group *g, const void *mine, size_t bytes, void *all_out)
{
    if (g->comm == NULL) {
        memmove(all_out, mine, bytes);
        return DS_OK;
    }
    const dsi_comm_part part = {.in = mine, .out = all_out, .count = g->size * bytes};
    return exchange(g, (dsi_comm_call){.kind = DS_COMM_ALL_GATHER}, &part);
}

ds_status dsi_ckpt_broadcast(dsi_ckpt_group *g, void *data, size_t bytes, uint32_t root)
{
    if (g->comm == NULL || bytes == 0) {
        return DS_OK;
    }
    const dsi_comm_part part = {.in = data, .out = data, .count = bytes};
    return exchange(g, (dsi_comm_call){.kind = DS_COMM_BROADCAST, .peer = root}, &part);
}

/* Whether a message begins as one that the ranks have agreed on. */
static bool names_a_rank(const char *message)
{
    unsigned rank = 0;
    int n = 0;
    if (sscanf(message, "rank %u%n", &rank, &n) != 1) {
        return false;
    }
    const char *behind = message + n;
    const char *end = strncmp(behind, " (", 2) == 0 ? strchr(behind, ')') : NULL; /* coordinates */
    return strncmp(end != NULL ? end + 1 : behind, " on ", 4) == 0;
}

ds_status dsi_ckpt_agree(dsi_ckpt_group *g, ds_status status)
{
    if (g->comm == NULL || g->broken < 0) {
        return status < 0 ? status : g->broken;
    }
    const int32_t mine = status < 0 ? (int32_t)status : 0;
    DS_TRY(dsi_ckpt_gather(g, &mine, sizeof mine, g->states));
    uint32_t first = 0;
    while (first < g->size && g->states[first] == 0) {
        ++first;
    }
    if (first == g->size) {
        return DS_OK;
    }
    const ds_status shared = (ds_status)g->states[first];
    if (first == g->rank && names_a_rank(ds_ctx_error(g->ctx))) { /* shared before */
        (void)snprintf(g->reason, DSI_CKPT_REASON_BYTES, "%s", ds_ctx_error(g->ctx));
    } else if (first == g->rank) {
        (void)snprintf(g->reason, DSI_CKPT_REASON_BYTES, "%s on %s: %s",
                       dsi_comm_rank_name(g->comm, g->rank).text, g->host, ds_ctx_error(g->ctx));
    }
    DS_TRY(dsi_ckpt_broadcast(g, g->reason, DSI_CKPT_REASON_BYTES, first));
    g->reason[DSI_CKPT_REASON_BYTES - 1] = '\0';
    return ds_fail(g->ctx, shared, "%s", g->reason);
}

void dsi_ckpt_pieces_free(dsi_ckpt_pieces *pieces)
{
    free(pieces->data);
    free(pieces->at);
    *pieces = (dsi_ckpt_pieces){0};
}

/* Room for the pieces of sizes[size]; on ranks above 0 for nothing. */
static ds_status make_room(const dsi_ckpt_group *g, const size_t *sizes, dsi_ckpt_pieces *pieces)
{
    pieces->at = calloc((size_t)g->size + 1, sizeof *pieces->at);
    for (uint32_t r = 0; r < g->size && pieces->at != NULL; ++r) {
        pieces->at[r + 1] = pieces->at[r] + (g->rank == 0 ? sizes[r] : 0);
    }
    pieces->data = pieces->at != NULL ? malloc(pieces->at[g->size] + 1) : NULL;
    return pieces->data != NULL ? DS_OK
                                : ds_fail(g->ctx, DS_ERR_NOMEM, "out of memory for %s", g->what);
}

ds_status dsi_ckpt_to_root_again(dsi_ckpt_group *g, const void *mine, size_t bytes,
                                 dsi_ckpt_pieces *pieces)
{
    if (g->comm == NULL) {
        memcpy(pieces->data, mine, bytes);
        return DS_OK;
    }
    size_t *sizes = g->counts + g->size;
    for (uint32_t r = 0; r < g->size; ++r) {
        g->counts[r] = r == 0 ? bytes : 0;
        sizes[r] = pieces->at[r + 1] - pieces->at[r]; /* nothing on ranks above 0 */
    }
    const dsi_comm_part part = {
        .in = mine, .out = pieces->data, .counts_in = g->counts, .counts_out = sizes};
    return exchange(g, (dsi_comm_call){.kind = DS_COMM_ALL_TO_ALL}, &part);
}

ds_status dsi_ckpt_to_root(dsi_ckpt_group *g, const void *mine, size_t bytes,
                           dsi_ckpt_pieces *pieces_out)
{
    dsi_ckpt_pieces pieces = {0};
    size_t *sizes = g->counts + g->size;
    DS_TRY(dsi_ckpt_gather(g, &bytes, sizeof bytes, sizes));
    ds_status status = dsi_ckpt_agree(g, make_room(g, sizes, &pieces));
    if (status == DS_OK) {
        status = dsi_ckpt_to_root_again(g, mine, bytes, &pieces);
    }
    if (status < 0) {
        dsi_ckpt_pieces_free(&pieces);
        return status;
    }
    *pieces_out = pieces;
    return DS_OK;
}
