/* SPDX-License-Identifier: Apache-2.0 */
/* The public side of communicators: include/deepspeed/comm.h. NULL stands for one rank. */
#include "comm/comm.h"

#include "comm/rank_names.h"

#include <deepspeed/comm.h>
#include <string.h>

enum { MAX_NUMBERS = 64, MAX_RANKS = 4096 };

ds_status ds_comm_open(ds_ctx *ctx, ds_comm **comm_out)
{
    dsi_comm_world world;
    DS_TRY(dsi_comm_world_read(ctx, &world));
    return dsi_comm_open(ctx, &world, comm_out);
}

void ds_comm_close(ds_comm **comm)
{
    dsi_comm_destroy(comm);
}

void ds_comm_abort(ds_comm *comm, const char *reason)
{
    if (comm != NULL) {
        dsi_comm_abort(comm, reason);
    }
}

uint32_t ds_comm_rank(const ds_comm *comm)
{
    return comm != NULL ? comm->rank : 0;
}

uint32_t ds_comm_size(const ds_comm *comm)
{
    return comm != NULL ? comm->size : 1;
}

ds_status ds_comm_barrier(ds_comm *comm)
{
    return comm != NULL ? dsi_comm_barrier(comm, "barrier") : DS_OK;
}

/* One 8-byte word of each rank, in rank order. */
static ds_status gather_word(dsi_comm *comm, const void *word, int64_t *words, const char *what)
{
    if (comm->size > MAX_RANKS) {
        return ds_fail(comm->ctx, DS_ERR_LIMIT, "%u ranks, at most %d can agree on numbers",
                       comm->size, MAX_RANKS);
    }
    return dsi_comm_gather(comm, word, words, sizeof *words, what);
}

/* The aligned binary tree over ranks [begin, begin + span), span a power of two. */
static double tree_sum(const double *values, uint32_t begin, uint32_t span, uint32_t n)
{
    if (span == 1) {
        return values[begin];
    }
    const uint32_t half = span / 2;
    const double left = tree_sum(values, begin, half, n);
    return begin + half < n ? left + tree_sum(values, begin + half, half, n) : left;
}

ds_status ds_comm_sum(ds_comm *comm, double *values, size_t n)
{
    int64_t words[MAX_RANKS];
    double numbers[MAX_RANKS];
    uint32_t span = 1;
    if (comm == NULL || comm->size == 1) {
        return DS_OK;
    }
    if (n > MAX_NUMBERS) {
        return ds_fail(comm->ctx, DS_ERR_ARG, "%zu numbers, at most %d", n, MAX_NUMBERS);
    }
    while (span < comm->size) {
        span *= 2;
    }
    for (size_t i = 0; i < n; ++i) {
        DS_TRY(gather_word(comm, &values[i], words, "sum of numbers"));
        memcpy(numbers, words, comm->size * sizeof numbers[0]);
        values[i] = tree_sum(numbers, 0, span, comm->size);
    }
    return DS_OK;
}

ds_status ds_comm_agree(ds_comm *comm, ds_ctx *ctx, ds_status own)
{
    int64_t words[MAX_RANKS];
    const int64_t mine = own;
    if (comm == NULL || comm->size == 1) {
        return own;
    }
    const ds_status status = gather_word(comm, &mine, words, "agreement");
    if (own < 0 || status < 0) {
        return own < 0 ? own : status;
    }
    for (uint32_t rank = 0; rank < comm->size; ++rank) {
        if (words[rank] < 0) {
            return ds_fail(ctx, DS_ERR_PEER, "%s failed: %s; see its messages",
                           dsi_comm_rank_name(comm, rank).text,
                           ds_status_text((ds_status)words[rank]));
        }
    }
    return DS_OK;
}
