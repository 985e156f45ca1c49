/* SPDX-License-Identifier: Apache-2.0 */
/* Redistribution: refusals, and the search for the cheapest list. See redistribute.h.
 *
 * The search knows no case by case table: it compares the parts that ranks have with the parts that
 * they need (redistribute_moves.c) and takes whatever the elements allow.
 */
#include "place/redistribute.h"
#include "place/redistribute_moves.h"

#include <stdlib.h>
#include <string.h>

/* ---- refusals -------------------------------------------------------------------------------- */

static ds_status refuse(ds_ctx *ctx, const dsi_redistribution *r, ds_status status, const char *why)
{
    char from[DSI_PLACEMENT_TEXT];
    char to[DSI_PLACEMENT_TEXT];
    char meta[128];
    return ds_fail(ctx, status, "%s %s: from %s to %s: %s", r->name,
                   ds_meta_text(r->meta, meta, sizeof meta), dsi_placement_str(&r->from, from),
                   dsi_placement_str(&r->to, to), why);
}

static bool is_integer(ds_dtype dtype)
{
    return dtype == DS_DTYPE_I32 || dtype == DS_DTYPE_I64;
}

static bool is_summed(ds_dtype dtype)
{
    return is_integer(dtype) || dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 ||
           dtype == DS_DTYPE_F16 || dtype == DS_DTYPE_F64;
}

bool dsi_sum_splits(const dsi_mesh *mesh, ds_dtype dtype, uint32_t partial, uint32_t first)
{
    uint32_t block = 1; /* ranks that are added first */
    const uint32_t rest = partial & ~first;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        block *= (first >> a & 1u) != 0 ? mesh->size[a] : 1;
    }
    const bool is_aligned = (block & (block - 1)) == 0;
    const bool is_inner = (first & (~first + 1u)) > rest; /* its lowest bit is above all of rest */
    const bool is_exact = dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_F64;
    return is_integer(dtype) || first == 0 || rest == 0 || (is_exact && is_inner && is_aligned);
}

/* Of terms that may be combined in any order: all but the canonical sum's. */
static bool is_any_order(const dsi_placement *p)
{
    const dsi_axes axes = dsi_axes_of(dsi_placement_partial_axes(p));
    return axes.n > 0 && p->on[axes.axis[0]].dim != DSI_TERMS_SUM;
}

static ds_status check_sums(ds_ctx *ctx, const dsi_redistribution *r, const dsi_placement *from,
                            const dsi_placement *to)
{
    const uint32_t before = dsi_placement_partial_axes(from);
    const uint32_t after = dsi_placement_partial_axes(to);
    const uint32_t made = after & ~before;
    if ((before | after) != 0 && !is_summed(r->meta.dtype)) {
        return refuse(ctx, r, DS_ERR_UNSUPPORTED,
                      "only floats, i32 and i64 are summed over ranks; cast it before");
    }
    const uint32_t cuts = dsi_placement_shard_axes(from) | dsi_axes_mask(&from->flat);
    if ((made & cuts) != 0) {
        return refuse(ctx, r, DS_ERR_UNSUPPORTED,
                      "ambiguous: a value that is cut along an axis is no sum along it; replicate "
                      "it first, or keep the cut");
    }
    return DS_OK;
}

/* The axes along which the value is to become a sum whose term of index 0 is all of it: those that
 * are new; all of them where what stays of its own sum, added later, would not give the canonical
 * one. */
static uint32_t masked_axes(const dsi_redistribution *r, const dsi_placement *from,
                            const dsi_placement *to)
{
    const uint32_t before = dsi_placement_partial_axes(from);
    const uint32_t after = dsi_placement_partial_axes(to);
    const uint32_t made = after & ~before;
    const bool ordered = !is_integer(r->meta.dtype) && !is_any_order(from);
    const bool holds = dsi_sum_splits(&r->mesh, r->meta.dtype, before, before & ~after) &&
                       ((before & after) == 0 || made == 0);
    return ordered && !holds ? after : made;
}

/* ---- the search ------------------------------------------------------------------------------ */

typedef struct search {
    const dsi_mesh *mesh;
    ds_meta meta;
    dsi_placement to; /* simplified, its new Partial axes still Replicate */
    dsi_axes masked;  /* those axes */
    bool any_order;   /* terms of the Partial axes may be combined in any order */
    bool found;
    dsi_moves best;
} search;

/* A list under construction and the placement that it has reached. */
typedef struct trail {
    dsi_placement at;
    dsi_moves moves;
} trail;

static bool is_better(const dsi_moves *a, const dsi_moves *b)
{
    return a->bytes != b->bytes ? a->bytes < b->bytes : a->n < b->n;
}

static void take(search *s, trail t)
{
    if (s->masked.n > 0) {
        dsi_moves_mask(&t.moves, &t.at, &s->masked);
    }
    if (!s->found || is_better(&t.moves, &s->best)) {
        s->best = t.moves;
        s->found = true;
    }
}

/* The last leg: one exchange, over the fewest axes that reach. */
static void exchange(search *s, const trail *t)
{
    const uint32_t cuts = dsi_placement_shard_axes(&t->at) | dsi_axes_mask(&t->at.flat);
    uint32_t differ = t->at.flat.n > 0 || s->to.flat.n > 0
                          ? dsi_axes_mask(&t->at.flat) | dsi_axes_mask(&s->to.flat)
                          : 0;
    uint32_t dims = 0; /* dims that differing axes cut */
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        const dsi_place_on from = t->at.on[a];
        const dsi_place_on to = s->to.on[a];
        if (!dsi_place_on_equal(from, to)) {
            differ |= 1u << a;
            dims |= from.kind == DSI_SHARD ? 1u << from.dim : 0;
            dims |= to.kind == DSI_SHARD ? 1u << to.dim : 0;
        }
    }
    uint32_t related = differ;
    for (uint32_t d = 0; d < DS_MAX_DIMS; ++d) {
        related |= (dims >> d & 1u) != 0 ? dsi_placement_dim_axes(&t->at, d) : 0;
    }
    const uint32_t tries[3] = {differ & cuts, related & cuts, cuts};
    for (uint32_t i = 0; i < 3; ++i) {
        trail next = *t;
        if (dsi_moves_exchange(&next.moves, &next.at, &s->to, tries[i])) {
            take(s, next);
            return;
        }
    }
}

/* Cuts what can be cut without communication, axis after axis, towards the target. */
static void slice(const search *s, trail *t)
{
    dsi_placement at = t->at;
    const dsi_placement start = at;
    const uint32_t flat = dsi_axes_mask(&s->to.flat);
    for (uint32_t a = 0; a <= DSI_AXIS_COUNT; ++a) {
        dsi_placement next = at;
        if (a < DSI_AXIS_COUNT) {
            const bool open =
                at.on[a].kind == DSI_REPLICATE && !dsi_axes_has(&at.flat, (dsi_axis)a);
            if (!open || s->to.on[a].kind != DSI_SHARD) {
                continue;
            }
            next.on[a] = s->to.on[a];
        } else {
            const uint32_t taken = dsi_placement_shard_axes(&at) | dsi_placement_partial_axes(&at);
            const bool deeper = at.flat.n < s->to.flat.n && dsi_axes_begin(&at.flat, &s->to.flat) &&
                                (at.flat.n == 0 || at.cut == s->to.cut);
            if (flat == 0 || !deeper || (flat & taken) != 0) {
                continue;
            }
            next.flat = s->to.flat;
            next.cut = s->to.cut;
            next.owner = s->to.owner;
        }
        if (dsi_parts_inside(s->mesh, s->meta.shape, &next, &start)) {
            at = next;
        }
    }
    if (!dsi_placement_equal(&at, &start)) {
        dsi_moves_slice(&t->moves, &t->at, &at);
    }
}

static void finish(search *s, const trail *t)
{
    if (dsi_placement_equal(&t->at, &s->to)) {
        take(s, *t);
        return;
    }
    exchange(s, t);
    trail sliced = *t;
    slice(s, &sliced);
    if (dsi_placement_equal(&sliced.at, &s->to)) {
        take(s, sliced);
    } else if (!dsi_placement_equal(&sliced.at, &t->at)) {
        exchange(s, &sliced);
    }
}

static void reduce(search *s, const trail *t);

/* Adds along some Partial axes: straight into the target's cut, into equal slices, or everywhere.
 */
static void reduce_along(search *s, const trail *t, const dsi_axes *axes)
{
    const uint32_t sum = dsi_axes_mask(axes);
    dsi_placement whole = t->at;
    dsi_placement wanted = t->at;
    for (uint32_t i = 0; i < axes->n; ++i) {
        whole.on[axes->axis[i]] = (dsi_place_on){0};
        wanted.on[axes->axis[i]] = s->to.on[axes->axis[i]];
    }
    const uint32_t flat = dsi_axes_mask(&s->to.flat);
    const uint32_t taken = dsi_placement_shard_axes(&wanted) | dsi_placement_partial_axes(&wanted);
    if (whole.flat.n == 0 && (flat & sum) != 0 && (flat & taken) == 0) {
        wanted.flat = s->to.flat;
        wanted.cut = s->to.cut;
        wanted.owner = s->to.owner;
    }
    if (whole.flat.n > 0 && whole.flat.n < s->to.flat.n &&
        dsi_axes_begin(&whole.flat, &s->to.flat) && whole.cut == s->to.cut) {
        const dsi_axes rest = dsi_axes_behind(&s->to.flat, whole.flat.n);
        if (dsi_axes_mask(&rest) == sum) { /* slices of slices */
            wanted.flat = s->to.flat;
        }
    }
    const dsi_placement slices = whole.flat.n == 0 ? dsi_flat(whole, *axes) : wanted;
    trail next = *t;
    if (dsi_moves_reduce_scatter(&next.moves, &next.at, &wanted, axes)) {
        reduce(s, &next);
    }
    next = *t;
    if (!dsi_placement_equal(&slices, &wanted) &&
        dsi_moves_reduce_scatter(&next.moves, &next.at, &slices, axes)) {
        reduce(s, &next);
    }
    next = *t;
    dsi_moves_all_reduce(&next.moves, &next.at, &whole, axes);
    reduce(s, &next);
}

/* Adds along all axes that must not stay Partial: together, or the inner ones first where the sum
 * splits. */
static void reduce(search *s, const trail *t)
{
    const uint32_t partial = dsi_placement_partial_axes(&t->at);
    const uint32_t sum = partial & ~dsi_placement_partial_axes(&s->to);
    if (sum == 0) {
        finish(s, t);
        return;
    }
    for (uint32_t from = 0; from < DSI_AXIS_COUNT; ++from) {
        const uint32_t first = sum & ~((1u << from) - 1);
        const bool is_new = (sum >> from & 1u) != 0;
        if (is_new && (s->any_order || dsi_sum_splits(s->mesh, s->meta.dtype, partial, first))) {
            const dsi_axes axes = dsi_axes_of(first);
            reduce_along(s, t, &axes);
        }
    }
}

ds_status dsi_redistribute(ds_ctx *ctx, const dsi_redistribution *r, dsi_moves *moves_out)
{
    DS_TRY(dsi_placement_check(ctx, &r->mesh, &r->from, r->meta.shape, r->name));
    DS_TRY(dsi_placement_check(ctx, &r->mesh, &r->to, r->meta.shape, r->name));
    const dsi_placement from = dsi_placement_simplify(&r->mesh, &r->from);
    const dsi_placement to = dsi_placement_simplify(&r->mesh, &r->to);
    DS_TRY(check_sums(ctx, r, &from, &to));
    search s = {.mesh = &r->mesh, .meta = r->meta, .to = to, .any_order = is_any_order(&from)};
    s.masked = dsi_axes_of(masked_axes(r, &from, &to));
    for (uint32_t i = 0; i < s.masked.n; ++i) {
        s.to.on[s.masked.axis[i]] = (dsi_place_on){0};
    }
    const trail start = {.at = from,
                         .moves = {.mesh = r->mesh, .meta = r->meta, .from = from, .to = to}};
    trail sliced = start;
    slice(&s, &sliced);
    reduce(&s, &sliced);
    if (sliced.moves.n > 0) {
        reduce(&s, &start);
    }
    if (!s.found) {
        return refuse(ctx, r, DS_ERR_INTERNAL, "no list of moves was found");
    }
    if (r->most_bytes != 0 && s.best.peak_bytes > r->most_bytes) {
        char from_text[DSI_PLACEMENT_TEXT];
        char to_text[DSI_PLACEMENT_TEXT];
        return ds_fail(ctx, DS_ERR_LIMIT,
                       "%s: from %s to %s: a rank would hold %zu bytes at once, more than %zu: "
                       "unexpectedly large",
                       r->name, dsi_placement_str(&r->from, from_text),
                       dsi_placement_str(&r->to, to_text), s.best.peak_bytes, r->most_bytes);
    }
    *moves_out = s.best;
    return DS_OK;
}

/* ---- the memo -------------------------------------------------------------------------------- */

struct dsi_moves_entry {
    dsi_mesh mesh;
    ds_meta meta;
    dsi_placement from, to;
    size_t most_bytes;
    dsi_moves moves;
};

static bool answers(const struct dsi_moves_entry *e, const dsi_redistribution *r)
{
    return e->meta.dtype == r->meta.dtype && ds_shape_equal(e->meta.shape, r->meta.shape) &&
           dsi_placement_equal(&e->from, &r->from) && dsi_placement_equal(&e->to, &r->to) &&
           e->most_bytes == r->most_bytes && memcmp(&e->mesh, &r->mesh, sizeof e->mesh) == 0;
}

ds_status dsi_redistribute_memo(ds_ctx *ctx, dsi_moves_memo *memo, const dsi_redistribution *r,
                                const dsi_moves **moves_out)
{
    for (uint32_t i = memo->n; i-- > 0;) {
        if (answers(&memo->entries[i], r)) {
            *moves_out = &memo->entries[i].moves;
            return DS_OK;
        }
    }
    if (memo->n == memo->capacity) {
        const uint32_t capacity = memo->capacity == 0 ? 16 : 2 * memo->capacity;
        struct dsi_moves_entry *entries =
            realloc(memo->entries, (size_t)capacity * sizeof *entries);
        if (entries == NULL) {
            return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the moves of a graph");
        }
        memo->entries = entries;
        memo->capacity = capacity;
    }
    struct dsi_moves_entry *e = &memo->entries[memo->n];
    DS_TRY(dsi_redistribute(ctx, r, &e->moves));
    e->mesh = r->mesh;
    e->meta = r->meta;
    e->from = r->from;
    e->to = r->to;
    e->most_bytes = r->most_bytes;
    memo->n += 1;
    *moves_out = &e->moves;
    return DS_OK;
}

void dsi_moves_memo_free(dsi_moves_memo *memo)
{
    free(memo->entries);
    *memo = (dsi_moves_memo){0};
}

/* ---- text ------------------------------------------------------------------------------------ */

static const char *const move_names[] = {
#define X(id, text) text,
    DSI_MOVE_LIST(X)
#undef X
};

static const char *move_name(dsi_move_kind kind)
{
    return kind < DSI_MOVE_KIND_COUNT ? move_names[kind] : "?";
}

bool dsi_move_is_local(dsi_move_kind kind)
{
    return kind <= DSI_MOVE_UNPACK;
}

static void move_text(const dsi_moves *moves, const dsi_move *m, dsi_buf *buf)
{
    dsi_buf_puts(buf, move_name(m->kind));
    if (m->kind == DSI_MOVE_SLICE) {
        dsi_buf_puts(buf, " to ");
        dsi_placement_text(&m->to, buf);
    }
    if (m->kind == DSI_MOVE_PACK || m->kind == DSI_MOVE_UNPACK) {
        dsi_buf_printf(buf, " for %s", move_name(m->of));
    }
    if (m->axes.n > 0) {
        dsi_buf_puts(buf, " over ");
        dsi_axes_text(&m->axes, buf);
        dsi_buf_printf(buf, " of %u", dsi_axes_size(&moves->mesh, &m->axes));
    }
    if (m->kind == DSI_MOVE_BROADCAST) {
        dsi_buf_printf(buf, " from %u", m->root);
    }
    if (m->chunk > 0) {
        dsi_buf_printf(buf, ", chunks of %lld", (long long)m->chunk);
    }
    if (!dsi_move_is_local(m->kind)) {
        dsi_buf_printf(buf, ", %zu bytes", m->bytes);
    }
    dsi_buf_putc(buf, '\n');
}

void dsi_moves_text(const dsi_moves *moves, dsi_buf *buf)
{
    for (uint32_t i = 0; i < moves->n; ++i) {
        move_text(moves, &moves->move[i], buf);
    }
}
