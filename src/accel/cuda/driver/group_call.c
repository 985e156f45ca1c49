/* SPDX-License-Identifier: Apache-2.0 */
/* Collectives as operations of NCCL: sends and receives in one of its groups, its all-gather where
 * slices are equal, a broadcast. A sum is an exchange of slices, the tree over them, and, of an
 * all-reduce, a gather. See group.h.
 */
#include "accel/cuda/driver/group.h"
#include "accel/cuda/kernels/tree_sum.h"

#include <string.h>

#define TRY_NCCL(call)                                                                             \
    do {                                                                                           \
        const dsc_nccl_result nccl_result_ = (call);                                               \
        if (nccl_result_ != DSC_NCCL_SUCCESS && nccl_result_ != DSC_NCCL_IN_PROGRESS) {            \
            return nccl_result_;                                                                   \
        }                                                                                          \
    } while (0)

/* A tensor of a call, in elements. */
typedef struct slices {
    size_t count, each, width; /* whole; of a slice, the last ones may have less; bytes */
} slices;

static slices slices_of(const ds_accel_group *g, const ds_accel_collective *call, uint32_t i)
{
    const size_t count = call->parts[i].count;
    return (slices){count, count / g->size + (count % g->size != 0 ? 1 : 0),
                    ds_dtype_bytes(call->dtype)};
}

static size_t begin_of(const slices *s, uint32_t rank)
{
    const size_t begin = rank * s->each;
    return begin < s->count ? begin : s->count;
}

static size_t n_of(const slices *s, uint32_t rank)
{
    return begin_of(s, rank + 1) - begin_of(s, rank);
}

static dsc_nccl_result send(ds_accel_group *g, const void *from, size_t bytes, uint32_t to)
{
    return bytes > 0 ? g->nccl->send(from, bytes, DSC_NCCL_UINT8, (int)to, g->comm, g->queue)
                     : DSC_NCCL_SUCCESS;
}

static dsc_nccl_result receive(ds_accel_group *g, void *to, size_t bytes, uint32_t from)
{
    return bytes > 0 ? g->nccl->recv(to, bytes, DSC_NCCL_UINT8, (int)from, g->comm, g->queue)
                     : DSC_NCCL_SUCCESS;
}

static ds_status copy(const ds_accel_group *g, void *to, const void *from, size_t bytes)
{
    if (bytes == 0 || to == from) {
        return DS_OK;
    }
    DSC_CU(g->ctx, g->device->cu,
           g->device->cu->copy((dsc_cu_ptr)(uintptr_t)to, (dsc_cu_ptr)(uintptr_t)from, bytes,
                               g->queue),
           "a copy of a collective");
    return DS_OK;
}

/* ---- between NCCL's group start and end: all parts ------------------------------------------ */

/* Slices to their owners; those of others come to the staging, of rank r at r·each. */
static dsc_nccl_result exchange(ds_accel_group *g, const ds_accel_collective *call)
{
    char *staging = (char *)(uintptr_t)g->staging;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const slices s = slices_of(g, call, i);
        for (uint32_t r = 0; r < g->size; ++r) {
            if (r != g->rank) {
                const char *from = (const char *)call->parts[i].in + begin_of(&s, r) * s.width;
                TRY_NCCL(send(g, from, n_of(&s, r) * s.width, r));
                TRY_NCCL(
                    receive(g, staging + r * s.each * s.width, n_of(&s, g->rank) * s.width, r));
            }
        }
        staging += g->size * s.each * s.width;
    }
    return DSC_NCCL_SUCCESS;
}

/* own: the own slice of part i, NULL: it lies in its place. */
static dsc_nccl_result gather(ds_accel_group *g, const slices *s, const void *own, void *out)
{
    const char *mine = own != NULL ? own : (char *)out + begin_of(s, g->rank) * s->width;
    if (s->count % g->size == 0) {
        return g->nccl->all_gather(mine, out, s->each * s->width, DSC_NCCL_UINT8, g->comm,
                                   g->queue);
    }
    for (uint32_t r = 0; r < g->size; ++r) {
        char *place = (char *)out + begin_of(s, r) * s->width;
        if (n_of(s, r) > 0) {
            TRY_NCCL(g->nccl->broadcast(r == g->rank ? mine : place, place, n_of(s, r) * s->width,
                                        DSC_NCCL_UINT8, (int)r, g->comm, g->queue));
        }
    }
    return DSC_NCCL_SUCCESS;
}

static dsc_nccl_result gather_all(ds_accel_group *g, const ds_accel_collective *call)
{
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const slices s = slices_of(g, call, i);
        const bool gathers = call->kind == DS_COMM_ALL_GATHER;
        if (s.count > 0) {
            TRY_NCCL(gather(g, &s, gathers ? call->parts[i].in : NULL, call->parts[i].out));
        }
    }
    return DSC_NCCL_SUCCESS;
}

static dsc_nccl_result pass(ds_accel_group *g, const ds_accel_collective *call)
{
    const size_t width = ds_dtype_bytes(call->dtype);
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const ds_accel_part *p = &call->parts[i];
        if (call->kind == DS_COMM_BROADCAST && p->count > 0) {
            TRY_NCCL(g->nccl->broadcast(call->peer == g->rank ? p->in : p->out, p->out,
                                        p->count * width, DSC_NCCL_UINT8, (int)call->peer, g->comm,
                                        g->queue));
        } else if (call->kind == DS_COMM_SEND) {
            TRY_NCCL(send(g, p->in, p->count * width, call->peer));
        } else if (call->kind == DS_COMM_RECV) {
            TRY_NCCL(receive(g, p->out, p->count * width, call->peer));
        }
    }
    return DSC_NCCL_SUCCESS;
}

static dsc_nccl_result all_to_all(ds_accel_group *g, const ds_accel_collective *call)
{
    const size_t width = ds_dtype_bytes(call->dtype);
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const ds_accel_part *p = &call->parts[i];
        const char *from = p->in;
        char *to = p->out;
        for (uint32_t r = 0; r < g->size; ++r) {
            const size_t n_from = p->counts_in[r] * width;
            const size_t n_to = p->counts_out[r] * width;
            if (r != g->rank) {
                TRY_NCCL(send(g, from, n_from, r));
                TRY_NCCL(receive(g, to, n_to, r));
            }
            from += n_from;
            to += n_to;
        }
    }
    return DSC_NCCL_SUCCESS;
}

/* What a rank sends itself. */
static ds_status keep_own(const ds_accel_group *g, const ds_accel_collective *call)
{
    const size_t width = ds_dtype_bytes(call->dtype);
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const ds_accel_part *p = &call->parts[i];
        size_t from = 0;
        size_t to = 0;
        for (uint32_t r = 0; r < g->rank; ++r) {
            from += p->counts_in[r] * width;
            to += p->counts_out[r] * width;
        }
        DS_TRY(copy(g, (char *)p->out + to, (const char *)p->in + from,
                    p->counts_in[g->rank] * width));
    }
    return DS_OK;
}

/* One of the functions above as one of NCCL's groups. */
static ds_status in_group(ds_accel_group *g, const ds_accel_collective *call,
                          dsc_nccl_result (*queue)(ds_accel_group *g,
                                                   const ds_accel_collective *call))
{
    dsc_nccl_result result = g->nccl->group_start();
    if (result == DSC_NCCL_SUCCESS) {
        const dsc_nccl_result queued = queue(g, call);
        const dsc_nccl_result ended = g->nccl->group_end();
        result = queued != DSC_NCCL_SUCCESS ? queued : ended;
    }
    return dsc_group_settle(g, result, "a collective");
}

/* ---- sums ---------------------------------------------------------------------------------- */

static ds_status add(ds_accel_group *g, const ds_accel_collective *call)
{
    const bool real = dsc_is_act(call->dtype);
    const dsc_fn fn = real ? dsc_of_dtype(DSC_FN_tree_sum_f32, call->dtype) : DSC_FN_tree_sum_whole;
    char *staging = (char *)(uintptr_t)g->staging;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const slices s = slices_of(g, call, i);
        const size_t at = begin_of(&s, g->rank) * s.width;
        const bool scatters = call->kind == DS_COMM_REDUCE_SCATTER;
        const dsc_tree_args args = {.others = staging,
                                    .own = (const char *)call->parts[i].in + at,
                                    .out = (char *)call->parts[i].out + (scatters ? 0 : at),
                                    .count = (int64_t)n_of(&s, g->rank),
                                    .stride = (int64_t)s.each,
                                    .n_out = (int64_t)(scatters ? s.each : n_of(&s, g->rank)),
                                    .n_ranks = g->size,
                                    .rank = g->rank,
                                    .is_max = call->max,
                                    .dtype = (int32_t)call->dtype,
                                    .factor = call->factor};
        const dsc_shape shape = dsc_over_items(args.n_out);
        if (args.n_out > 0) {
            DS_TRY(dsc_launch_on(g->device, g->ctx, g->queue, fn, &shape, &args, sizeof args,
                                 "tree_sum"));
        }
        staging += g->size * s.each * s.width;
    }
    return DS_OK;
}

static ds_status check_sum(const ds_accel_group *g, const ds_accel_collective *call)
{
    size_t bytes = 0;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const slices s = slices_of(g, call, i);
        bytes += g->size * s.each * s.width;
    }
    if (!dsc_is_act(call->dtype) && call->dtype != DS_DTYPE_I64 && call->dtype != DS_DTYPE_I32 &&
        call->dtype != DS_DTYPE_I8 && call->dtype != DS_DTYPE_U8) {
        return dsc_fail(g->ctx, DS_ERR_UNSUPPORTED, "accelerator cuda: no sum of %s over ranks",
                        ds_dtype_name(call->dtype));
    }
    return bytes <= g->staging_bytes
               ? DS_OK
               : dsc_fail(g->ctx, DS_ERR_STATE,
                          "accelerator cuda: a sum over ranks needs %zu bytes of staging, %zu are "
                          "reserved",
                          bytes, g->staging_bytes);
}

ds_status dsc_group_queue(ds_accel_group *g, const ds_accel_collective *call)
{
    switch (call->kind) {
    case DS_COMM_ALL_REDUCE:
    case DS_COMM_REDUCE_SCATTER:
        DS_TRY(check_sum(g, call));
        DS_TRY(in_group(g, call, exchange));
        DS_TRY(add(g, call));
        return call->kind == DS_COMM_ALL_REDUCE ? in_group(g, call, gather_all) : DS_OK;
    case DS_COMM_ALL_GATHER:
        return in_group(g, call, gather_all);
    case DS_COMM_ALL_TO_ALL:
        DS_TRY(in_group(g, call, all_to_all));
        return keep_own(g, call);
    case DS_COMM_BROADCAST:
    case DS_COMM_SEND:
    case DS_COMM_RECV:
        return in_group(g, call, pass);
    default:
        return dsc_fail(g->ctx, DS_ERR_UNSUPPORTED,
                        "accelerator cuda: a collective that devices do not have");
    }
}
