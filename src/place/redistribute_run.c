/* SPDX-License-Identifier: Apache-2.0 */
/* The interpreter of moves. See redistribute_run.h. */
#include "place/redistribute_run.h"

#include "base/arena.h"
#include <stdlib.h>
#include <string.h>

/* One move as one rank sees it. */
typedef struct view {
    const dsi_moves *moves;
    const dsi_move *move;
    uint32_t rank, size; /* of the rank in the mesh, of the group */
    dsi_part from, to;
    size_t element;
} view;

static dsi_part part_of(const view *v, const dsi_placement *p, uint32_t index)
{
    const uint32_t peer = dsi_mesh_peer(&v->moves->mesh, &v->move->axes, v->rank, index);
    return dsi_placement_part(&v->moves->mesh, p, v->moves->meta.shape, peer);
}

static view view_of(const dsi_moves *moves, uint32_t i, uint32_t rank)
{
    const dsi_move *m = &moves->move[i];
    return (view){
        .moves = moves,
        .move = m,
        .rank = rank,
        .size = dsi_axes_size(&moves->mesh, &m->axes),
        .from = dsi_placement_part(&moves->mesh, &m->from, moves->meta.shape, rank),
        .to = dsi_placement_part(&moves->mesh, &m->to, moves->meta.shape, rank),
        .element = ds_dtype_bytes(moves->meta.dtype),
    };
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

/* Elements that go from a rank to its group and come from it. */
static int64_t sent(const view *v)
{
    int64_t n = 0;
    for (uint32_t i = 0; i < v->size; ++i) {
        const dsi_part theirs = part_of(v, &v->move->to, i);
        n += dsi_part_common(&v->from, &theirs);
    }
    return n;
}

/* Elements of a collective's whole tensor, P of comm.h. */
static int64_t whole(const view *v)
{
    const dsi_move *m = v->move;
    if (m->chunk > 0) {
        return m->chunk * (int64_t)v->size;
    }
    const dsi_part *all =
        m->kind == DSI_MOVE_ALL_GATHER || m->kind == DSI_MOVE_BROADCAST ? &v->to : &v->from;
    return all->flat ? all->count : all->slots; /* a box goes with its padding */
}

/* Elements that a rank's memory holds after move i; padding beyond what it means is zero. */
static int64_t move_writes(const dsi_moves *moves, uint32_t i, uint32_t rank)
{
    const view v = view_of(moves, i, rank);
    const dsi_move *m = v.move;
    switch (m->kind) {
    case DSI_MOVE_PACK:
        if (m->of == DSI_MOVE_ALL_TO_ALL) {
            return sent(&v);
        }
        return m->of == DSI_MOVE_ALL_GATHER ? m->chunk : m->chunk * (int64_t)v.size;
    case DSI_MOVE_ALL_GATHER:
        return most(whole(&v), v.to.slots);
    case DSI_MOVE_REDUCE_SCATTER:
        return most((int64_t)dsi_comm_slice((size_t)whole(&v), v.size), v.to.slots);
    case DSI_MOVE_ALL_TO_ALL:
        return most(v.to.count, v.to.slots);
    default:
        return v.to.slots;
    }
}

/* Elements that `rank` sends to and receives from each index of the group of an ALL_TO_ALL. */
static void move_counts(const dsi_moves *moves, uint32_t i, uint32_t rank, size_t *counts_in,
                        size_t *counts_out)
{
    const view v = view_of(moves, i, rank);
    for (uint32_t k = 0; k < v.size; ++k) {
        const dsi_part get = part_of(&v, &v.move->to, k);
        const dsi_part have = part_of(&v, &v.move->from, k);
        counts_in[k] = (size_t)dsi_part_common(&v.from, &get);
        counts_out[k] = (size_t)dsi_part_common(&have, &v.to);
    }
}

/* ---- local moves ----------------------------------------------------------------------------- */

/* x + -0 is x for every x, also for -0; an integer's is the zero that is there. */
static void fill_identity(ds_dtype dtype, size_t element, int64_t n, void *out)
{
    const bool is_real = dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16 ||
                         dtype == DS_DTYPE_F64;
    for (int64_t i = 0; is_real && i < n; ++i) {
        ((unsigned char *)out)[((size_t)i + 1) * element - 1] = 0x80;
    }
}

static void pack(const view *v, const void *in, void *out)
{
    const dsi_move *m = v->move;
    if (m->of == DSI_MOVE_ALL_GATHER) {
        memcpy(out, in, (size_t)v->from.count * v->element);
        return;
    }
    char *at = out;
    for (uint32_t i = 0; i < v->size; ++i) {
        const dsi_part theirs = part_of(v, &m->to, i);
        const int64_t n = dsi_part_pack(&v->from, in, &theirs, at, v->element);
        at += (size_t)(m->of == DSI_MOVE_ALL_TO_ALL ? n : m->chunk) * v->element;
    }
}

static void unpack(const view *v, const void *in, void *out)
{
    const dsi_move *m = v->move;
    if (m->of == DSI_MOVE_REDUCE_SCATTER) {
        memcpy(out, in, (size_t)v->to.count * v->element);
        return;
    }
    const char *at = in;
    for (uint32_t i = 0; i < v->size; ++i) {
        const dsi_part theirs = part_of(v, &m->from, i);
        const int64_t n = dsi_part_unpack(&theirs, at, &v->to, out, v->element);
        at += (size_t)(m->of == DSI_MOVE_ALL_TO_ALL ? n : m->chunk) * v->element;
    }
}

/* One local move. out: move_writes elements, zeroed. */
static void move_local(const dsi_moves *moves, uint32_t i, uint32_t rank, const void *in, void *out)
{
    const view v = view_of(moves, i, rank);
    switch (v.move->kind) {
    case DSI_MOVE_SLICE:
        (void)dsi_part_copy(&v.from, in, &v.to, out, v.element);
        break;
    case DSI_MOVE_MASK:
        if (dsi_mesh_group(&moves->mesh, &v.move->axes, rank).index == 0) {
            memcpy(out, in, (size_t)v.from.slots * v.element);
        } else {
            fill_identity(moves->meta.dtype, v.element, v.to.count, out);
        }
        break;
    case DSI_MOVE_PACK:
        pack(&v, in, out);
        break;
    default: /* UNPACK */
        unpack(&v, in, out);
        break;
    }
}

/* ---- collectives ----------------------------------------------------------------------------- */

static ds_status run_collective(const view *v, uint32_t i, dsi_mesh_comms *comms, const char *what,
                                const void *in, void *out)
{
    static const ds_comm_op kinds[DSI_MOVE_KIND_COUNT] = {
        [DSI_MOVE_ALL_GATHER] = DS_COMM_ALL_GATHER,
        [DSI_MOVE_REDUCE_SCATTER] = DS_COMM_REDUCE_SCATTER,
        [DSI_MOVE_ALL_REDUCE] = DS_COMM_ALL_REDUCE,
        [DSI_MOVE_ALL_TO_ALL] = DS_COMM_ALL_TO_ALL,
        [DSI_MOVE_BROADCAST] = DS_COMM_BROADCAST,
    };
    dsi_comm *comm = NULL;
    DS_TRY(dsi_mesh_comms_get(comms, &v->move->axes, &comm));
    size_t *counts = calloc(2 * (size_t)v->size, sizeof *counts);
    if (counts == NULL) {
        return ds_fail(comms->ctx, DS_ERR_NOMEM, "%s: out of memory", what);
    }
    dsi_comm_part part = {.in = in, .out = out, .count = (size_t)whole(v)};
    if (v->move->kind == DSI_MOVE_ALL_TO_ALL) {
        move_counts(v->moves, i, v->rank, counts, counts + v->size);
        part.count = 0;
        part.counts_in = counts;
        part.counts_out = counts + v->size;
    }
    const dsi_comm_call call = {
        .kind = kinds[v->move->kind],
        .dtype = v->moves->meta.dtype,
        .factor = 1.0f,
        .peer = v->move->root,
        .parts = &part,
        .n_parts = 1,
        .what = what,
    };
    const ds_status status = dsi_comm_run(comm, &call);
    free(counts);
    return status;
}

/* Zeroed memory for n elements and never NULL for want of elements. */
static void *make_memory(int64_t n, size_t element)
{
    size_t bytes;
    if (!dsi_mul_size((size_t)n, element, &bytes)) {
        return NULL;
    }
    return calloc(bytes > 0 ? bytes : 1, 1);
}

ds_status dsi_moves_run(const dsi_moves *moves, dsi_mesh_comms *comms, const char *what,
                        const void *in, void *out)
{
    const uint32_t rank = comms->world->rank;
    const size_t element = ds_dtype_bytes(moves->meta.dtype);
    const void *at = in; /* what the last move wrote */
    void *held = NULL;
    ds_status status = DS_OK;
    for (uint32_t i = 0; i < moves->n; ++i) {
        const view v = view_of(moves, i, rank);
        void *next = make_memory(move_writes(moves, i, rank), element);
        if (next == NULL) {
            status = ds_fail(comms->ctx, DS_ERR_NOMEM, "%s: out of memory", what);
            dsi_comm_abort(comms->world, "out of memory");
            goto end;
        }
        if (dsi_move_is_local(v.move->kind)) {
            move_local(moves, i, rank, at, next);
        } else {
            status = run_collective(&v, i, comms, what, at, next);
        }
        free(held);
        held = next;
        at = next;
        if (status < 0) {
            goto end;
        }
    }
    const dsi_part part = dsi_placement_part(&moves->mesh, &moves->to, moves->meta.shape, rank);
    memcpy(out, at, (size_t)part.slots * element);
end:
    free(held);
    return status;
}
