/* SPDX-License-Identifier: Apache-2.0 */
/* Geometry, digest, text and checks of calls. See comm_call.h. */
#include "comm/comm_call.h"

#include "base/arena.h"
#include <math.h>
#include <stdio.h>
#include <string.h>

const char *dsi_coll_name(ds_comm_op kind)
{
    static const char *const names[DS_COMM_OP_COUNT] = {
        "barrier",   "all_reduce", "reduce_scatter", "all_gather",
        "broadcast", "all_to_all", "send",           "recv"};
    return (unsigned)kind < DS_COMM_OP_COUNT ? names[kind] : "?";
}

dsi_span dsi_span_of(size_t count, uint32_t rank, uint32_t size)
{
    const size_t slice = dsi_comm_slice(count, size);
    const size_t begin = slice * rank < count ? slice * rank : count;
    const size_t left = count - begin;
    return (dsi_span){begin, left < slice ? left : slice};
}

static size_t sum_counts(const size_t *counts, uint32_t n)
{
    size_t sum = 0;
    for (uint32_t i = 0; i < n; ++i) {
        sum += counts[i];
    }
    return sum;
}

size_t dsi_part_in_count(const dsi_comm_call *call, const dsi_comm_part *part, uint32_t rank,
                         uint32_t size)
{
    switch (call->kind) {
    case DS_COMM_ALL_GATHER:
        return dsi_span_of(part->count, rank, size).count;
    case DS_COMM_BROADCAST:
        return rank == call->peer ? part->count : 0;
    case DS_COMM_ALL_TO_ALL:
        return sum_counts(part->counts_in, size);
    case DS_COMM_RECV:
    case DS_COMM_BARRIER:
        return 0;
    default:
        return part->count;
    }
}

size_t dsi_part_out_count(const dsi_comm_call *call, const dsi_comm_part *part, uint32_t rank,
                          uint32_t size)
{
    (void)rank;
    switch (call->kind) {
    case DS_COMM_REDUCE_SCATTER:
        return dsi_comm_slice(part->count, size);
    case DS_COMM_ALL_TO_ALL:
        return sum_counts(part->counts_out, size);
    case DS_COMM_SEND:
    case DS_COMM_BARRIER:
        return 0;
    default:
        return part->count;
    }
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 29;
}

uint64_t dsi_call_digest(const dsi_comm_call *call)
{
    uint32_t factor = 0;
    uint64_t words = 0;
    const bool pair = dsi_coll_is_pair(call->kind);
    if (dsi_coll_reduces(call->kind)) {
        memcpy(&factor, &call->factor, sizeof factor);
        words = (uint64_t)call->reduction << 32;
    }
    if (call->kind == DS_COMM_BROADCAST) {
        words = (uint64_t)call->peer << 32;
    }
    uint64_t hash = mix(UINT64_C(0x6473636f6d6d), words | factor);
    hash = mix(hash, (uint64_t)(pair ? DS_COMM_SEND : call->kind) << 32 | (uint64_t)call->dtype);
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        hash = mix(hash, call->kind == DS_COMM_ALL_TO_ALL ? 0 : call->parts[i].count);
    }
    return hash;
}

void dsi_call_describe(const dsi_comm_call *call, uint64_t number, dsi_call_info *info)
{
    info->digest = dsi_call_digest(call);
    info->number = number;
    info->elements = 0;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        info->elements += call->kind == DS_COMM_ALL_TO_ALL ? 0 : call->parts[i].count;
    }
    info->kind = (uint32_t)call->kind;
    info->dtype = (uint32_t)call->dtype;
    info->n_parts = call->n_parts;
    info->peer = call->peer;
    info->factor = call->factor;
    info->reduction = (uint32_t)call->reduction;
    const char *what = call->what != NULL ? call->what : "";
    const size_t n = strnlen(what, sizeof info->what - 1);
    memcpy(info->what, what, n);
    info->what[n] = '\0';
}

char *dsi_call_info_text(const dsi_call_info *info, char *text, size_t n)
{
    char amount[96] = "";
    char side[64] = "";
    char what[96] = "";
    if (info->kind == DS_COMM_ALL_TO_ALL) {
        (void)snprintf(amount, sizeof amount, " of %s in %u tensors",
                       ds_dtype_name((ds_dtype)info->dtype), info->n_parts);
    } else if (info->kind != DS_COMM_BARRIER) {
        (void)snprintf(amount, sizeof amount, " of %llu %s in %u tensor%s",
                       (unsigned long long)info->elements, ds_dtype_name((ds_dtype)info->dtype),
                       info->n_parts, info->n_parts == 1 ? "" : "s");
    }
    if (dsi_coll_is_pair((ds_comm_op)info->kind) || info->kind == DS_COMM_BROADCAST) {
        (void)snprintf(side, sizeof side, " %s rank %u", info->kind == DS_COMM_SEND ? "to" : "from",
                       info->peer);
    } else if (dsi_coll_reduces((ds_comm_op)info->kind)) {
        (void)snprintf(side, sizeof side, " (%s, factor %.9g)",
                       info->reduction == DSI_REDUCE_MAX ? "max" : "sum", (double)info->factor);
    }
    if (info->what[0] != '\0') {
        (void)snprintf(what, sizeof what, ", \"%.80s\"", info->what);
    }
    (void)snprintf(text, n, "%s%s%s (call %llu%s)", dsi_coll_name((ds_comm_op)info->kind), amount,
                   side, (unsigned long long)info->number, what);
    return text;
}

static ds_status check_reduction(const dsi_comm *comm, const dsi_comm_call *call)
{
    const char *name = dsi_coll_name(call->kind);
    const bool real = call->dtype == DS_DTYPE_F32 || call->dtype == DS_DTYPE_BF16 ||
                      call->dtype == DS_DTYPE_F16 || call->dtype == DS_DTYPE_F64;
    if (call->reduction != DSI_REDUCE_SUM && call->reduction != DSI_REDUCE_MAX) {
        return ds_fail(comm->ctx, DS_ERR_ARG, "%s: unknown reduction %d", name,
                       (int)call->reduction);
    }
    if (call->reduction == DSI_REDUCE_MAX) {
        return DS_OK;
    }
    if (call->dtype == DS_DTYPE_BOOL) {
        return ds_fail(comm->ctx, DS_ERR_ARG, "%s: a sum of bool has no meaning; use max", name);
    }
    if (call->factor == 0.0f || !isfinite(call->factor) || (!real && call->factor != 1.0f)) {
        return ds_fail(comm->ctx, DS_ERR_ARG, "%s of %s: factor %g; give 1 for none%s", name,
                       ds_dtype_name(call->dtype), (double)call->factor,
                       real ? "" : ", integers take no other");
    }
    return DS_OK;
}

static ds_status check_part(const dsi_comm *comm, const dsi_comm_call *call, uint32_t index)
{
    const dsi_comm_part *part = &call->parts[index];
    const char *name = dsi_coll_name(call->kind);
    size_t bytes;
    if (call->kind == DS_COMM_ALL_TO_ALL && (part->counts_in == NULL || part->counts_out == NULL)) {
        return ds_fail(comm->ctx, DS_ERR_ARG, "%s: part %u lacks counts_in or counts_out", name,
                       index);
    }
    const size_t n_in = dsi_part_in_count(call, part, comm->rank, comm->size);
    const size_t n_out = dsi_part_out_count(call, part, comm->rank, comm->size);
    if (!dsi_mul_size(n_in, ds_dtype_bytes(call->dtype), &bytes) ||
        !dsi_mul_size(n_out, ds_dtype_bytes(call->dtype), &bytes)) {
        return ds_fail(comm->ctx, DS_ERR_ARG, "%s: part %u has %zu elements, too many", name, index,
                       part->count);
    }
    if ((n_in > 0 && part->in == NULL) || (n_out > 0 && part->out == NULL)) {
        return ds_fail(comm->ctx, DS_ERR_ARG, "%s: part %u of %zu elements has no `%s`", name,
                       index, part->count, n_in > 0 && part->in == NULL ? "in" : "out");
    }
    return DS_OK;
}

ds_status dsi_call_check(const dsi_comm *comm, const dsi_comm_call *call)
{
    if ((unsigned)call->kind >= DS_COMM_OP_COUNT) {
        return ds_fail(comm->ctx, DS_ERR_ARG, "unknown collective %d", (int)call->kind);
    }
    const char *name = dsi_coll_name(call->kind);
    if (call->kind == DS_COMM_BARRIER) {
        return call->n_parts == 0 ? DS_OK
                                  : ds_fail(comm->ctx, DS_ERR_ARG, "a barrier carries no tensors");
    }
    if (ds_dtype_bytes(call->dtype) == 0) {
        return ds_fail(comm->ctx, DS_ERR_ARG, "%s: no dtype given", name);
    }
    if (call->n_parts > 0 && call->parts == NULL) {
        return ds_fail(comm->ctx, DS_ERR_ARG, "%s: %u parts, but no list", name, call->n_parts);
    }
    if (dsi_coll_reduces(call->kind)) {
        DS_TRY(check_reduction(comm, call));
    }
    const bool pair = dsi_coll_is_pair(call->kind);
    if ((pair || call->kind == DS_COMM_BROADCAST) &&
        (call->peer >= comm->size || (pair && call->peer == comm->rank))) {
        return ds_fail(comm->ctx, DS_ERR_ARG, "%s on rank %u of %u: peer %u is not another rank",
                       name, comm->rank, comm->size, call->peer);
    }
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        DS_TRY(check_part(comm, call, i));
    }
    return DS_OK;
}
