/* SPDX-License-Identifier: Apache-2.0 */
/* Single moves of a redistribution. See redistribute_moves.h. */
#include "place/redistribute_moves.h"

#include "base/arena.h"

static dsi_part part_of(const dsi_moves *m, const dsi_placement *p, uint32_t rank)
{
    return dsi_placement_part(&m->mesh, p, m->meta.shape, rank);
}

static uint32_t peer_of(const dsi_moves *m, const dsi_axes *axes, uint32_t rank, uint32_t i)
{
    return dsi_mesh_peer(&m->mesh, axes, rank, i);
}

static int64_t most(int64_t a, int64_t b)
{
    return a > b ? a : b;
}

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static int64_t slice_of(int64_t n, uint32_t size)
{
    return n / size + (n % size != 0 ? 1 : 0);
}

/* Bytes of n elements, saturating. */
static size_t bytes_of(const dsi_moves *m, int64_t n, size_t times)
{
    size_t bytes;
    const size_t one = ds_dtype_bytes(m->meta.dtype);
    if (!dsi_mul_size((size_t)n, one, &bytes) || !dsi_mul_size(bytes, times, &bytes)) {
        return SIZE_MAX;
    }
    return bytes;
}

static size_t add_bytes(size_t a, size_t b)
{
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

/* Appends a move that reads and writes so many elements. */
static void append(dsi_moves *m, const dsi_move *move, int64_t reads, int64_t writes)
{
    const size_t held = add_bytes(bytes_of(m, reads, 1), bytes_of(m, writes, 1));
    m->move[m->n++] = *move;
    m->bytes = add_bytes(m->bytes, move->bytes);
    m->peak_bytes = held > m->peak_bytes ? held : m->peak_bytes;
}

static int64_t slots(const dsi_moves *m, const dsi_placement *p)
{
    return dsi_placement_slots(&m->mesh, p, m->meta.shape);
}

bool dsi_parts_inside(const dsi_mesh *mesh, ds_shape shape, const dsi_placement *a,
                      const dsi_placement *b)
{
    const dsi_axes axes = dsi_axes_of(dsi_placement_part_axes(a) | dsi_placement_part_axes(b));
    const uint32_t n = dsi_axes_size(mesh, &axes); /* along other axes parts are the same */
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t rank = dsi_mesh_peer(mesh, &axes, 0, i);
        const dsi_part in_a = dsi_placement_part(mesh, a, shape, rank);
        const dsi_part in_b = dsi_placement_part(mesh, b, shape, rank);
        if (!dsi_part_inside(&in_a, &in_b)) {
            return false;
        }
    }
    return true;
}

/* ---- local moves ----------------------------------------------------------------------------- */

void dsi_moves_slice(dsi_moves *moves, dsi_placement *at, const dsi_placement *to)
{
    const dsi_move move = {.kind = DSI_MOVE_SLICE, .from = *at, .to = *to};
    append(moves, &move, slots(moves, at), slots(moves, to));
    *at = *to;
}

void dsi_moves_mask(dsi_moves *moves, dsi_placement *at, const dsi_axes *axes)
{
    dsi_move move = {.kind = DSI_MOVE_MASK, .axes = *axes, .from = *at, .to = *at};
    for (uint32_t i = 0; i < axes->n; ++i) {
        move.to = dsi_partial(move.to, (dsi_axis)axes->axis[i]);
    }
    append(moves, &move, slots(moves, at), slots(moves, at));
    *at = move.to;
}

/* ---- sums ------------------------------------------------------------------------------------ */

void dsi_moves_all_reduce(dsi_moves *moves, dsi_placement *at, const dsi_placement *to,
                          const dsi_axes *axes)
{
    dsi_move move = {.kind = DSI_MOVE_ALL_REDUCE, .axes = *axes, .from = *at, .to = *to};
    const int64_t n = slots(moves, at);
    const uint32_t size = dsi_axes_size(&moves->mesh, axes);
    move.bytes = bytes_of(moves, slice_of(n, size), 2 * (size_t)(size - 1));
    append(moves, &move, n, n);
    *at = *to;
}

/* The shape of a chunked exchange: facts over all ranks. */
typedef struct chunks {
    int64_t chunk;     /* most elements of one part */
    bool is_partition; /* of each group's whole by its parts */
    bool in_place;     /* part i of a group is slice i, of ceil(P/N), of its whole */
    bool even;         /* every rank's local memory of parts has `chunk` slots */
} chunks;

/* Whether a rank has the same in `whole` as the first of its group; same: they all have. */
static bool is_as_first(const dsi_moves *m, const dsi_placement *whole, const dsi_axes *axes,
                        uint32_t rank, bool same)
{
    const uint32_t first = peer_of(m, axes, rank, 0);
    if (same || first == rank) {
        return first != rank;
    }
    const dsi_part a = part_of(m, whole, first);
    const dsi_part b = part_of(m, whole, rank);
    return a.count == b.count && dsi_part_inside(&a, &b);
}

/* The axes along which ranks have other parts of either, or are of other groups: along the rest
 * what one rank has and exchanges is what all have. */
static dsi_axes axes_that_differ(const dsi_placement *a, const dsi_placement *b,
                                 const dsi_axes *axes)
{
    return dsi_axes_of(dsi_placement_part_axes(a) | dsi_placement_part_axes(b) |
                       dsi_axes_mask(axes));
}

/* Compares the parts that ranks have in `cut` with what each has in `whole`, group by group. */
static chunks look(const dsi_moves *m, const dsi_placement *cut, const dsi_placement *whole,
                   const dsi_axes *axes)
{
    chunks c = {.is_partition = true, .in_place = true};
    int64_t most_slots = 0;
    int64_t least_slots = INT64_MAX;
    const uint32_t size = dsi_axes_size(&m->mesh, axes);
    const uint32_t cuts = dsi_placement_shard_axes(whole) | dsi_axes_mask(&whole->flat);
    const bool same = (cuts & dsi_axes_mask(axes)) == 0;
    const dsi_axes all_axes = axes_that_differ(cut, whole, axes);
    const uint32_t n = dsi_axes_size(&m->mesh, &all_axes);
    for (uint32_t k = 0; k < n; ++k) {
        const uint32_t rank = dsi_mesh_peer(&m->mesh, &all_axes, 0, k);
        if (is_as_first(m, whole, axes, rank, same)) {
            continue; /* seen with the first */
        }
        const dsi_part all = part_of(m, whole, rank);
        /* a box is cut with its padding */
        const int64_t slice = slice_of(all.flat ? all.count : all.slots, size);
        int64_t sum = 0;
        for (uint32_t i = 0; i < size; ++i) {
            const dsi_part part = part_of(m, cut, peer_of(m, axes, rank, i));
            const int64_t begin = least((int64_t)i * slice, all.count);
            int64_t at = 0;
            c.is_partition = c.is_partition && dsi_part_inside(&part, &all);
            c.in_place = c.in_place && dsi_part_is_range(&part, &all, &at) &&
                         part.count == least(slice, all.count - begin) &&
                         (part.count == 0 || at == begin);
            c.chunk = most(c.chunk, part.count);
            most_slots = most(most_slots, part.slots);
            least_slots = least(least_slots, part.slots);
            sum += part.count;
        }
        c.is_partition = c.is_partition && sum == all.count;
    }
    c.even = most_slots == c.chunk && least_slots == c.chunk; /* of all: each is in a group */
    c.in_place = c.in_place && c.is_partition;
    return c;
}

static void append_pack(dsi_moves *m, const dsi_move *of, dsi_move_kind kind, int64_t reads,
                        int64_t writes)
{
    dsi_move move = *of;
    move.kind = kind;
    move.of = of->kind;
    move.bytes = 0;
    append(m, &move, reads, writes);
}

bool dsi_moves_reduce_scatter(dsi_moves *moves, dsi_placement *at, const dsi_placement *to,
                              const dsi_axes *axes)
{
    const chunks c = look(moves, to, at, axes);
    if (!c.is_partition) {
        return false;
    }
    const uint32_t size = dsi_axes_size(&moves->mesh, axes);
    const int64_t have = slots(moves, at);
    const int64_t all = c.in_place ? have : c.chunk * size;
    dsi_move move = {
        .kind = DSI_MOVE_REDUCE_SCATTER, .axes = *axes, .from = *at, .to = *to, .of = 0};
    move.chunk = c.in_place ? 0 : c.chunk;
    move.bytes = bytes_of(moves, c.chunk, size - 1);
    if (!c.in_place) {
        append_pack(moves, &move, DSI_MOVE_PACK, have, all);
    }
    append(moves, &move, all, c.chunk);
    if (!c.even) {
        append_pack(moves, &move, DSI_MOVE_UNPACK, c.chunk, c.chunk);
    }
    *at = *to;
    return true;
}

/* ---- exchanges ------------------------------------------------------------------------------- */

static bool gather(dsi_moves *moves, dsi_placement *at, const dsi_placement *to,
                   const dsi_axes *axes)
{
    const chunks c = look(moves, at, to, axes);
    if (!c.is_partition) {
        return false;
    }
    const uint32_t size = dsi_axes_size(&moves->mesh, axes);
    const int64_t have = slots(moves, at);
    const int64_t need = slots(moves, to);
    const int64_t all = c.in_place ? need : c.chunk * size;
    dsi_move move = {.kind = DSI_MOVE_ALL_GATHER, .axes = *axes, .from = *at, .to = *to};
    move.chunk = c.in_place ? 0 : c.chunk;
    move.bytes = bytes_of(moves, c.chunk, size - 1);
    if (!c.in_place && !c.even) {
        append_pack(moves, &move, DSI_MOVE_PACK, have, c.chunk);
    }
    append(moves, &move, most(have, c.chunk), all);
    if (!c.in_place) {
        append_pack(moves, &move, DSI_MOVE_UNPACK, all, need);
    }
    *at = *to;
    return true;
}

/* One rank of each group has everything that all its ranks need. */
static bool broadcast(dsi_moves *moves, dsi_placement *at, const dsi_placement *to,
                      const dsi_axes *axes)
{
    if (at->cut != DSI_CUT_TENSOR || !dsi_axes_equal(&at->flat, axes)) {
        return false;
    }
    const chunks c = look(moves, at, to, axes);
    if (!c.is_partition) {
        return false;
    }
    dsi_move move = {.kind = DSI_MOVE_BROADCAST, .axes = *axes, .from = *at, .to = *to};
    const int64_t need = slots(moves, to);
    move.root = at->owner;
    move.bytes = bytes_of(moves, need, 1);
    append(moves, &move, need, need);
    *at = *to;
    return true;
}

/* Elements that `rank` sends to (or gets from) others and to itself, in group order; *direct_io:
 * whether they lie in `own` one after the other. */
static int64_t traffic(const dsi_moves *m, const dsi_placement *own, const dsi_placement *other,
                       const dsi_axes *axes, uint32_t rank, bool *direct_io, int64_t *abroad_out)
{
    const dsi_part mine = part_of(m, own, rank);
    const uint32_t size = dsi_axes_size(&m->mesh, axes);
    int64_t sum = 0;
    *abroad_out = 0;
    for (uint32_t i = 0; i < size; ++i) {
        const uint32_t peer = peer_of(m, axes, rank, i);
        const dsi_part theirs = part_of(m, other, peer);
        const int64_t n = dsi_part_common(&mine, &theirs);
        if (n > 0 && *direct_io) { /* their share of mine must be mine[sum, sum + n) */
            dsi_part range = mine;
            range.flat = true;
            range.begin += sum;
            range.count = sum + n <= mine.count ? n : 0;
            *direct_io = range.count == n && dsi_part_inside(&range, &theirs);
        }
        sum += n;
        *abroad_out += peer != rank ? n : 0;
    }
    *direct_io = *direct_io && sum == mine.count && mine.slots == mine.count;
    return sum;
}

static bool all_to_all(dsi_moves *moves, dsi_placement *at, const dsi_placement *to,
                       const dsi_axes *axes)
{
    bool packed = true; /* already, on every rank */
    bool unpacked = true;
    int64_t abroad = 0;
    int64_t most_out = 0;
    const dsi_axes all_axes = axes_that_differ(at, to, axes);
    const uint32_t n = dsi_axes_size(&moves->mesh, &all_axes);
    for (uint32_t k = 0; k < n; ++k) {
        const uint32_t rank = dsi_mesh_peer(&moves->mesh, &all_axes, 0, k);
        int64_t there = 0;
        int64_t here = 0;
        most_out = most(most_out, traffic(moves, at, to, axes, rank, &packed, &there));
        const int64_t got = traffic(moves, to, at, axes, rank, &unpacked, &here);
        if (got != part_of(moves, to, rank).count) {
            return false;
        }
        abroad = most(abroad, most(there, here));
    }
    dsi_move move = {.kind = DSI_MOVE_ALL_TO_ALL, .axes = *axes, .from = *at, .to = *to};
    const int64_t have = slots(moves, at);
    const int64_t need = slots(moves, to);
    move.bytes = bytes_of(moves, abroad, 1);
    if (!packed) {
        append_pack(moves, &move, DSI_MOVE_PACK, have, most_out);
    }
    append(moves, &move, most_out, need);
    if (!unpacked) {
        append_pack(moves, &move, DSI_MOVE_UNPACK, need, need);
    }
    *at = *to;
    return true;
}

bool dsi_moves_exchange(dsi_moves *moves, dsi_placement *at, const dsi_placement *to, uint32_t mask)
{
    const uint32_t flat = dsi_axes_mask(&at->flat);
    const dsi_axes axes = mask == flat ? at->flat : dsi_axes_of(mask);
    const uint32_t cuts = dsi_placement_shard_axes(to) | dsi_axes_mask(&to->flat);
    dsi_moves exact = *moves;
    if ((cuts & mask) == 0 && at->cut != DSI_CUT_TENSOR && gather(moves, at, to, &axes)) {
        return true; /* all need everything: whoever has most sends no less in any other way */
    }
    dsi_placement reached = *at;
    if (!all_to_all(&exact, &reached, to, &axes)) {
        return false;
    }
    dsi_moves same = *moves;
    dsi_placement there = *at;
    const bool is_same = broadcast(&same, &there, to, &axes) || gather(&same, &there, to, &axes);
    *moves = is_same && same.bytes <= exact.bytes ? same : exact;
    *at = *to;
    return true;
}
