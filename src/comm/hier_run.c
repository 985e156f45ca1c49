/* SPDX-License-Identifier: Apache-2.0 */
/* How a collective is done in the hierarchy. With L ranks in a block and M blocks, rank = n·L + j:
 *
 * ALL_REDUCE: inside of the block each rank j gets segment j of all and adds it up (fp32); the
 * ranks j of all blocks deal the sums of that segment among them, add them up, scale and round, and
 * gather them; the block gathers the segments. REDUCE_SCATTER: likewise, with the slices of all
 * blocks' ranks j instead of one segment, and without the gathers. ALL_GATHER: ranks j of all
 * blocks gather their slices, then the block gathers those. BROADCAST: to the ranks of the root's
 * place in every block, then inside of the blocks. ALL_TO_ALL: what stays in the block by shared
 * memory.
 */
#include "comm/hier_impl.h"
#include "comm/reduce.h"
#include <stdlib.h>
#include <string.h>

enum { ALIGN = 64 };

static size_t align_up(size_t n)
{
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

/* ---- memory of one call ---- */

static ds_status no_memory(const hier_comm *hier)
{
    return ds_fail(hier->head.ctx, DS_ERR_NOMEM, "no memory for a call of %u ranks",
                   hier->head.size);
}

static ds_status stage(hier_comm *hier, size_t bytes)
{
    if (bytes > hier->stage_bytes) {
        void *more = NULL;
        if (posix_memalign(&more, ALIGN, align_up(bytes)) != 0) {
            return no_memory(hier);
        }
        free(hier->stage);
        hier->stage = more;
        hier->stage_bytes = bytes;
    }
    hier->stage_used = 0;
    return DS_OK;
}

static char *take(hier_comm *hier, size_t bytes)
{
    char *at = hier->stage + hier->stage_used;
    hier->stage_used += align_up(bytes);
    return at;
}

/* Lists for n_parts inner parts, each with n_counts counts. */
static ds_status tables(hier_comm *hier, uint32_t n_parts, size_t n_counts)
{
    if (hier->inputs == NULL) {
        hier->inputs = calloc(hier->head.size, sizeof *hier->inputs);
    }
    if (n_parts > hier->max_parts || hier->parts == NULL) {
        free(hier->parts);
        hier->max_parts = n_parts + 1;
        hier->parts = calloc(hier->max_parts, sizeof *hier->parts);
    }
    if (n_parts * n_counts > hier->n_counts || hier->counts == NULL) {
        free(hier->counts);
        hier->n_counts = n_parts * n_counts + 1;
        hier->counts = calloc(hier->n_counts, sizeof *hier->counts);
    }
    if (hier->inputs == NULL || hier->parts == NULL || hier->counts == NULL) {
        hier->max_parts = 0;
        hier->n_counts = 0;
        return no_memory(hier);
    }
    return DS_OK;
}

/* ---- inner calls ---- */

static ds_status inner(hier_comm *hier, hier_op *op, dsi_comm *on, ds_comm_op kind, ds_dtype dtype,
                       uint32_t n_parts)
{
    const dsi_comm_call call = {.kind = kind,
                                .dtype = dtype,
                                .factor = 1.0f,
                                .peer = 0,
                                .parts = n_parts > 0 ? hier->parts : NULL,
                                .n_parts = n_parts,
                                .what = op->text};
    dsi_comm_ticket ticket;
    dsi_comm_times times = {.seconds = 0.0};
    DS_TRY(dsi_comm_start(on, &call, &ticket));
    DS_TRY(hier_wait_on(hier, on, ticket, &times));
    op->times.waited += times.waited;
    return DS_OK;
}

/* The type in which sums of a block travel. */
static ds_dtype partial_dtype(const dsi_comm_call *call)
{
    const bool real = call->dtype == DS_DTYPE_BF16 || call->dtype == DS_DTYPE_F16;
    return real && call->reduction == DSI_REDUCE_SUM ? DS_DTYPE_F32 : call->dtype;
}

/* Adds n contributions of `count` elements that lie in a row. */
static void add_up(hier_comm *hier, dsi_reduce_job job, const char *from, char *to, size_t count)
{
    const size_t width = ds_dtype_bytes(job.in_dtype);
    for (uint32_t i = 0; i < job.n; ++i) {
        hier->inputs[i] = from + i * count * width;
    }
    if (count > 0) {
        dsi_reduce(&job, hier->inputs, to, count);
    }
}

/* ---- reductions ---- */

/* Of a part: the elements for place j of the block that this rank's `in` has for it. */
static size_t place_count(const hier_comm *hier, const dsi_comm_call *call, size_t count,
                          uint32_t j)
{
    const uint32_t width = hier->on.local->size;
    if (call->kind == DS_COMM_ALL_REDUCE) {
        return dsi_span_of(count, j, width).count;
    }
    size_t sum = 0;
    for (uint32_t n = 0; n < hier->n_blocks; ++n) {
        sum += dsi_span_of(count, n * width + j, hier->head.size).count;
    }
    return sum;
}

/* ... and of these, the elements for block n. */
static dsi_span block_span(const hier_comm *hier, const dsi_comm_call *call, size_t count,
                           uint32_t n)
{
    const uint32_t width = hier->on.local->size;
    const uint32_t j = hier->on.local->rank;
    if (call->kind == DS_COMM_ALL_REDUCE) {
        return dsi_span_of(dsi_span_of(count, j, width).count, n, hier->n_blocks);
    }
    dsi_span span = {0, dsi_span_of(count, n * width + j, hier->head.size).count};
    for (uint32_t before = 0; before < n; ++before) {
        span.begin += dsi_span_of(count, before * width + j, hier->head.size).count;
    }
    return span;
}

typedef struct reduce_stage {
    char *packed, *gathered, *partial, *dealt; /* of one part */
} reduce_stage;

static size_t reduce_stage_bytes(const hier_comm *hier, const dsi_comm_call *call)
{
    const size_t width = ds_dtype_bytes(call->dtype);
    const size_t wide = ds_dtype_bytes(partial_dtype(call));
    size_t bytes = 0;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const size_t count = call->parts[i].count;
        const size_t mine = place_count(hier, call, count, hier->on.local->rank);
        const size_t own = block_span(hier, call, count, hier->block).count;
        bytes += call->kind == DS_COMM_REDUCE_SCATTER ? align_up(count * width) : 0;
        bytes += align_up(mine * hier->on.local->size * width) + align_up(mine * wide) +
                 align_up(own * hier->n_blocks * wide);
    }
    return bytes + call->n_parts * sizeof(reduce_stage) + ALIGN;
}

/* The slices of a reduce-scatter in the order of (place, block). */
static void pack_slices(const hier_comm *hier, const dsi_comm_part *part, size_t bytes, char *to)
{
    const uint32_t width = hier->on.local->size;
    for (uint32_t j = 0; j < width; ++j) {
        for (uint32_t n = 0; n < hier->n_blocks; ++n) {
            const dsi_span span = dsi_span_of(part->count, n * width + j, hier->head.size);
            if (span.count > 0) {
                memcpy(to, (const char *)part->in + span.begin * bytes, span.count * bytes);
                to += span.count * bytes;
            }
        }
    }
}

static ds_status sum_in_block(hier_comm *hier, hier_op *op, reduce_stage *stages)
{
    const dsi_comm_call *call = &op->call;
    const uint32_t width = hier->on.local->size;
    const size_t bytes = ds_dtype_bytes(call->dtype);
    const dsi_reduce_job job = {call->dtype, partial_dtype(call), call->reduction, 1.0f, width};
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        size_t *counts = hier->counts + (size_t)i * 2 * hier->head.size;
        const size_t mine = place_count(hier, call, part->count, hier->on.local->rank);
        for (uint32_t j = 0; j < width; ++j) {
            counts[j] = place_count(hier, call, part->count, j);
            counts[width + j] = mine;
        }
        const void *in = part->in;
        if (call->kind == DS_COMM_REDUCE_SCATTER) {
            stages[i].packed = take(hier, part->count * bytes);
            pack_slices(hier, part, bytes, stages[i].packed);
            in = stages[i].packed;
        }
        stages[i].gathered = take(hier, mine * width * bytes);
        hier->parts[i] = (dsi_comm_part){.in = in,
                                         .out = stages[i].gathered,
                                         .count = part->count,
                                         .counts_in = counts,
                                         .counts_out = counts + width};
    }
    DS_TRY(inner(hier, op, hier->on.local, DS_COMM_ALL_TO_ALL, call->dtype, call->n_parts));
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const size_t mine = place_count(hier, call, call->parts[i].count, hier->on.local->rank);
        stages[i].partial = take(hier, mine * ds_dtype_bytes(job.out_dtype));
        add_up(hier, job, stages[i].gathered, stages[i].partial, mine);
    }
    return DS_OK;
}

static ds_status sum_of_blocks(hier_comm *hier, hier_op *op, reduce_stage *stages)
{
    const dsi_comm_call *call = &op->call;
    const uint32_t n_blocks = hier->n_blocks;
    const ds_dtype dtype = partial_dtype(call);
    const size_t bytes = ds_dtype_bytes(call->dtype);
    const dsi_reduce_job job = {dtype, call->dtype, call->reduction, call->factor, n_blocks};
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const size_t count = call->parts[i].count;
        size_t *counts = hier->counts + (size_t)i * 2 * hier->head.size;
        const size_t own = block_span(hier, call, count, hier->block).count;
        for (uint32_t n = 0; n < n_blocks; ++n) {
            counts[n] = block_span(hier, call, count, n).count;
            counts[n_blocks + n] = own;
        }
        stages[i].dealt = take(hier, own * n_blocks * ds_dtype_bytes(dtype));
        hier->parts[i] = (dsi_comm_part){.in = stages[i].partial,
                                         .out = stages[i].dealt,
                                         .count = count,
                                         .counts_in = counts,
                                         .counts_out = counts + n_blocks};
    }
    DS_TRY(inner(hier, op, hier->on.cross, DS_COMM_ALL_TO_ALL, dtype, call->n_parts));
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        const dsi_span own = block_span(hier, call, part->count, hier->block);
        char *out = part->out;
        if (call->kind == DS_COMM_ALL_REDUCE) {
            const dsi_span segment =
                dsi_span_of(part->count, hier->on.local->rank, hier->on.local->size);
            out += (segment.begin + own.begin) * bytes;
        }
        add_up(hier, job, stages[i].dealt, out, own.count);
        if (call->kind == DS_COMM_REDUCE_SCATTER) {
            const size_t padding = dsi_comm_slice(part->count, hier->head.size) - own.count;
            memset(out + own.count * bytes, 0, padding * bytes);
        }
    }
    return DS_OK;
}

static ds_status gather_sums(hier_comm *hier, hier_op *op)
{
    const dsi_comm_call *call = &op->call;
    const size_t bytes = ds_dtype_bytes(call->dtype);
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        const dsi_span segment =
            dsi_span_of(part->count, hier->on.local->rank, hier->on.local->size);
        const dsi_span own = block_span(hier, call, part->count, hier->block);
        char *out = (char *)part->out + segment.begin * bytes;
        hier->parts[i] =
            (dsi_comm_part){.in = out + own.begin * bytes, .out = out, .count = segment.count};
    }
    DS_TRY(inner(hier, op, hier->on.cross, DS_COMM_ALL_GATHER, call->dtype, call->n_parts));
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        const dsi_span segment =
            dsi_span_of(part->count, hier->on.local->rank, hier->on.local->size);
        hier->parts[i] = (dsi_comm_part){.in = (char *)part->out + segment.begin * bytes,
                                         .out = part->out,
                                         .count = part->count};
    }
    return inner(hier, op, hier->on.local, DS_COMM_ALL_GATHER, call->dtype, call->n_parts);
}

static ds_status run_reduction(hier_comm *hier, hier_op *op)
{
    const dsi_comm_call *call = &op->call;
    DS_TRY(tables(hier, call->n_parts, 2 * (size_t)hier->head.size));
    DS_TRY(stage(hier, reduce_stage_bytes(hier, call)));
    reduce_stage *stages = (reduce_stage *)(void *)take(hier, call->n_parts * sizeof *stages);
    DS_TRY(sum_in_block(hier, op, stages));
    DS_TRY(sum_of_blocks(hier, op, stages));
    return call->kind == DS_COMM_ALL_REDUCE ? gather_sums(hier, op) : DS_OK;
}

/* ---- all-gather ---- */

/* One part at a time. Slices travel padded; a block that lies wholly inside of the tensor is
 * gathered in place. */
static ds_status gather_part(hier_comm *hier, hier_op *op, const dsi_comm_part *part)
{
    const ds_dtype dtype = op->call.dtype;
    const size_t bytes = ds_dtype_bytes(dtype);
    const uint32_t width = hier->on.local->size;
    const size_t slice = dsi_comm_slice(part->count, hier->head.size);
    const dsi_span own = dsi_span_of(part->count, hier->head.rank, hier->head.size);
    const size_t n_whole = slice > 0 ? part->count / (slice * width) : 0;
    DS_TRY(stage(hier, align_up(slice * bytes) + align_up(slice * hier->n_blocks * bytes) +
                           (hier->n_blocks - n_whole) * align_up(slice * width * bytes) + ALIGN));
    char *mine = take(hier, slice * bytes);
    char *column = take(hier, slice * hier->n_blocks * bytes);
    memset(mine + own.count * bytes, 0, (slice - own.count) * bytes);
    if (own.count > 0) {
        memcpy(mine, part->in, own.count * bytes);
    }
    hier->parts[0] = (dsi_comm_part){.in = mine, .out = column, .count = slice * hier->n_blocks};
    DS_TRY(inner(hier, op, hier->on.cross, DS_COMM_ALL_GATHER, dtype, 1));
    for (uint32_t n = 0; n < hier->n_blocks; ++n) {
        char *to = n < n_whole ? (char *)part->out + n * width * slice * bytes
                               : take(hier, slice * width * bytes);
        hier->parts[n] =
            (dsi_comm_part){.in = column + n * slice * bytes, .out = to, .count = slice * width};
    }
    DS_TRY(inner(hier, op, hier->on.local, DS_COMM_ALL_GATHER, dtype, hier->n_blocks));
    for (uint32_t n = (uint32_t)n_whole; n < hier->n_blocks; ++n) {
        const size_t begin = (size_t)n * width * slice;
        const size_t left = begin < part->count ? part->count - begin : 0;
        if (left > 0) {
            memcpy((char *)part->out + begin * bytes, hier->parts[n].out, left * bytes);
        }
    }
    return DS_OK;
}

static ds_status run_gather(hier_comm *hier, hier_op *op)
{
    DS_TRY(tables(hier, hier->n_blocks, 0));
    for (uint32_t i = 0; i < op->call.n_parts; ++i) {
        DS_TRY(gather_part(hier, op, &op->call.parts[i]));
    }
    return DS_OK;
}

/* ---- the others ---- */

static ds_status broadcast_on(hier_comm *hier, hier_op *op, dsi_comm *on, uint32_t root)
{
    const bool first = hier->head.rank == op->call.peer;
    for (uint32_t i = 0; i < op->call.n_parts; ++i) {
        const dsi_comm_part *part = &op->call.parts[i];
        hier->parts[i] = (dsi_comm_part){
            .in = first ? part->in : part->out, .out = part->out, .count = part->count};
    }
    const dsi_comm_call call = {.kind = DS_COMM_BROADCAST,
                                .dtype = op->call.dtype,
                                .peer = root,
                                .parts = hier->parts,
                                .n_parts = op->call.n_parts,
                                .what = op->text};
    dsi_comm_ticket ticket;
    DS_TRY(dsi_comm_start(on, &call, &ticket));
    return hier_wait_on(hier, on, ticket, NULL);
}

static ds_status run_broadcast(hier_comm *hier, hier_op *op)
{
    const uint32_t width = hier->on.local->size;
    DS_TRY(tables(hier, op->call.n_parts, 0));
    if (hier->on.local->rank == op->call.peer % width) {
        DS_TRY(broadcast_on(hier, op, hier->on.cross, op->call.peer / width));
    }
    return broadcast_on(hier, op, hier->on.local, op->call.peer % width);
}

static size_t sum(const size_t *counts, uint32_t n)
{
    size_t total = 0;
    for (uint32_t i = 0; i < n; ++i) {
        total += counts[i];
    }
    return total;
}

/* Ranks [begin, end) of a part of an all-to-all, over the network; other counts are zero. */
static void far_part(const hier_comm *hier, const dsi_comm_part *part, size_t bytes, uint32_t begin,
                     uint32_t end, size_t *counts, dsi_comm_part *far_out)
{
    const uint32_t size = hier->head.size;
    memset(counts, 0, 2 * (size_t)size * sizeof *counts);
    for (uint32_t r = begin; r < end; ++r) {
        counts[r] = part->counts_in[r];
        counts[size + r] = part->counts_out[r];
    }
    *far_out = (dsi_comm_part){
        .in = (const char *)part->in + sum(part->counts_in, begin) * bytes,
        .out = (char *)part->out + sum(part->counts_out, begin) * bytes,
        .counts_in = counts,
        .counts_out = counts + size,
    };
}

static ds_status run_all_to_all(hier_comm *hier, hier_op *op)
{
    const dsi_comm_call *call = &op->call;
    const uint32_t width = hier->on.local->size;
    const uint32_t first = hier->block * width;
    const uint32_t size = hier->head.size;
    const size_t bytes = ds_dtype_bytes(call->dtype);
    DS_TRY(tables(hier, 2 * call->n_parts, 2 * (size_t)size));
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        size_t *counts = hier->counts + (size_t)i * 4 * size;
        far_part(hier, &call->parts[i], bytes, 0, first, counts, &hier->parts[2 * i]);
        far_part(hier, &call->parts[i], bytes, first + width, size, counts + 2 * (size_t)size,
                 &hier->parts[2 * i + 1]);
    }
    DS_TRY(inner(hier, op, hier->on.flat, DS_COMM_ALL_TO_ALL, call->dtype, 2 * call->n_parts));
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        hier->parts[i] = (dsi_comm_part){
            .in = (const char *)part->in + sum(part->counts_in, first) * bytes,
            .out = (char *)part->out + sum(part->counts_out, first) * bytes,
            .counts_in = part->counts_in + first,
            .counts_out = part->counts_out + first,
        };
    }
    return inner(hier, op, hier->on.local, DS_COMM_ALL_TO_ALL, call->dtype, call->n_parts);
}

ds_status hier_run(hier_comm *hier, hier_op *op)
{
    switch (op->call.kind) {
    case DS_COMM_ALL_REDUCE:
    case DS_COMM_REDUCE_SCATTER:
        return run_reduction(hier, op);
    case DS_COMM_ALL_GATHER:
        return run_gather(hier, op);
    case DS_COMM_BROADCAST:
        return run_broadcast(hier, op);
    case DS_COMM_ALL_TO_ALL:
        return run_all_to_all(hier, op);
    default: /* a barrier: whoever is past the second knows that all blocks were past the first */
        DS_TRY(inner(hier, op, hier->on.local, DS_COMM_BARRIER, DS_DTYPE_NONE, 0));
        return inner(hier, op, hier->on.cross, DS_COMM_BARRIER, DS_DTYPE_NONE, 0);
    }
}
