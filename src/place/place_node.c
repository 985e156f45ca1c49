/* SPDX-License-Identifier: Apache-2.0 */
/* Places one node, axis after axis. See place_node.h. */
#include "place/place_node_impl.h"

#include "op/ops.h"
#include "place/expert_rules.h"

#include <stdio.h>
#include <string.h>

enum { NAME_BYTES = 256 };

/* What of the configuration makes an axis; NULL: nothing that is set as its size. */
static const char *key_of(uint32_t axis)
{
    return axis == DSI_AXIS_TP   ? "tensor_parallel.autotp_size"
           : axis == DSI_AXIS_SP ? "sequence_parallel_size"
           : axis == DSI_AXIS_EP ? "expert_parallel.autoep_size"
                                 : NULL;
}

/* The first axis on which a placement would have to change. */
static uint32_t axis_between(const dsi_placement *have, const dsi_placement *need)
{
    uint32_t axis = 0;
    while (axis < DSI_AXIS_COUNT && dsi_place_on_equal(have->on[axis], need->on[axis])) {
        ++axis;
    }
    return axis;
}

static uint32_t nearest_size(const dsi_placing *w, dsi_axis axis);

ds_status dsi_placing_refuse(const dsi_placing *w, uint32_t i, const dsi_placement *need,
                             const char *why)
{
    char have_text[DSI_PLACEMENT_TEXT];
    char need_text[DSI_PLACEMENT_TEXT];
    char meta[128];
    char name[NAME_BYTES];
    char remedy[NAME_BYTES] = "";
    const char *hint = w->p->rule.hint;
    const uint32_t axis = axis_between(&w->node->in[i].at, need);
    const char *key = key_of(axis);
    w->node->name(w->node->user, i, name, sizeof name);
    if (key != NULL) {
        (void)snprintf(remedy, sizeof remedy, "; lower %s, the nearest that goes here is %u", key,
                       nearest_size(w, (dsi_axis)axis));
    }
    return ds_fail(w->ctx, DS_ERR_UNSUPPORTED,
                   "%s at %s: input %u (%s %s) is placed %s and would have to be %s: %s%s%s%s",
                   w->node->op->name, w->node->scope, i, name,
                   ds_meta_text(w->node->in_meta[i], meta, sizeof meta),
                   dsi_placement_str(&w->node->in[i].at, have_text),
                   dsi_placement_str(need, need_text), why, hint != NULL ? "; " : "",
                   hint != NULL ? hint : "", remedy);
}

/* ---- one axis -------------------------------------------------------------------------------- */

typedef struct price {
    bool allowed;
    uint32_t blocked; /* first input that may not change so; when not allowed */
    uint32_t n_blocked;
    bool uneven; /* parts would have different shapes */
    double bytes;
    uint32_t n_moved;
} price;

static double bytes_of(ds_meta meta)
{
    return (double)ds_meta_bytes(meta);
}

/* A mean over rows knows the number of its own rows from whoever cut them: it cannot be made of the
 * number of all. */
static bool lacks_rows(const dsi_placing *w, dsi_place_on from, dsi_place_on to)
{
    return (w->p->rule.flags & DS_PLACE_MEAN_ROWS) != 0 && to.kind == DSI_PARTIAL &&
           from.kind != DSI_PARTIAL;
}

/* What it costs that an input changes on an axis; negative: not allowed. */
static double price_of_move(const dsi_placing *w, uint32_t i, dsi_axis axis, dsi_place_on to)
{
    const dsi_place_on from = w->node->in[i].at.on[axis];
    const bool from_flat = (w->was_flat[i] >> axis & 1u) != 0;
    const double n = (double)w->node->mesh->size[axis];
    const double whole = bytes_of(w->node->in_meta[i]) * (n - 1.0) / n;
    if (from_flat) {
        return to.kind == DSI_PARTIAL ? -1.0 : whole;
    }
    if (from.kind == DSI_PARTIAL && (to.kind == DSI_PARTIAL || (from.dim != 0 && to.kind != 0))) {
        return -1.0; /* another reduction; what is no plain sum is reduced everywhere */
    }
    switch (from.kind) {
    case DSI_REPLICATE:
        return 0.0;
    case DSI_PARTIAL:
        return to.kind == DSI_SHARD ? whole : 2.0 * whole;
    default:
        break;
    }
    if (to.kind == DSI_SHARD) {
        return (w->node->policy->exchange >> axis & 1u) != 0 ? whole / n : -1.0;
    }
    const bool may = (w->node->policy->gather >> axis & 1u) != 0 ||
                     (w->p->rule.flags & DSI_PLACE_WHOLE) != 0 ||
                     (w->p->rule.gathered >> i & 1u) != 0 || dsi_placing_completes(w, i, axis);
    const bool gathers = to.kind == DSI_REPLICATE && may;
    return gathers ? whole : -1.0;
}

/* Whether what is left of an input's sum, once the last of its axes is decided, would be another
 * sum: along some of them it is made, along others it stays; or what is a sum along some would
 * become one along this axis too. */
static bool breaks_sum(const dsi_placing *w, uint32_t i, dsi_axis axis, dsi_place_on to)
{
    const dsi_placement *at = &w->node->in[i].at;
    const uint32_t before = dsi_placement_partial_axes(at);
    const uint32_t stay = before & dsi_placement_partial_axes(&w->p->need[i].at);
    uint32_t made = before & ~stay;
    if (to.kind == DSI_PARTIAL && to.dim == DSI_TERMS_SUM && at->on[axis].kind != DSI_PARTIAL) {
        return (stay & ~(1u << axis)) != 0;
    }
    if (before >> axis != 1u || at->on[axis].dim != DSI_TERMS_SUM) {
        return false;
    }
    made |= to.kind != DSI_PARTIAL ? 1u << axis : 0;
    return !dsi_sum_splits(w->node->mesh, w->node->in_meta[i].dtype, before, made);
}

/* Whether a dim that a strategy cuts would be cut into parts of different lengths. */
static bool is_uneven(const dsi_placing *w, dsi_axis axis, dsi_place_on on,
                      const dsi_placement *others, ds_meta meta)
{
    int64_t ranks = w->node->mesh->size[axis];
    for (uint32_t a = 0; a < (uint32_t)axis; ++a) {
        const bool same = others->on[a].kind == DSI_SHARD && others->on[a].dim == on.dim;
        ranks *= same ? w->node->mesh->size[a] : 1;
    }
    return on.kind == DSI_SHARD && on.blocks == 0 && meta.shape.dims[on.dim] % ranks != 0;
}

/* Whether a strategy cuts blocks of a dim that another axis cuts as well, which none may: that
 * axis, undecided yet, would have to gather it. */
static bool blocks_twice(const dsi_placing *w, uint32_t i, dsi_axis axis, const dsi_strategy *s)
{
    bool in_blocks = false;
    for (uint32_t k = 0; k < w->node->n_in + w->node->n_out; ++k) {
        const dsi_place_on on = k < w->node->n_in ? s->in[k] : s->out[k - w->node->n_in];
        in_blocks = in_blocks || (on.kind == DSI_SHARD && on.blocks > 0);
    }
    bool twice = false;
    for (uint32_t a = (uint32_t)axis + 1; a < DSI_AXIS_COUNT && !s->inside; ++a) {
        const dsi_place_on other = w->node->in[i].at.on[a];
        twice = twice || (in_blocks && s->in[i].kind == DSI_SHARD && other.kind == DSI_SHARD &&
                          other.dim == s->in[i].dim);
    }
    return twice;
}

/* Whether an operand would be cut in blocks by this axis and an earlier one, or by another axis
 * than the one of as many ranks that an earlier one's blocks are for. */
static bool breaks_blocks(const dsi_placing *w, const dsi_placement *at, dsi_axis axis,
                          dsi_place_on to)
{
    bool breaks = false;
    bool between = false; /* an axis that takes those blocks already */
    for (uint32_t a = (uint32_t)axis; a-- > 0 && to.kind == DSI_SHARD;) {
        const dsi_place_on on = at->on[a];
        const bool same = on.kind == DSI_SHARD && on.dim == to.dim;
        if (on.kind == DSI_SHARD && on.blocks > 0) {
            const bool each = to.blocks == 0 && w->node->mesh->size[axis] == on.blocks && !between;
            breaks = breaks || to.blocks > 0 || (same && !each);
        } else {
            between = between || same;
            breaks = breaks || (same && to.blocks > 0);
        }
    }
    return breaks;
}

static bool has_broken_blocks(const dsi_placing *w, dsi_axis axis, const dsi_strategy *s)
{
    bool breaks = false;
    for (uint32_t i = 0; i < w->node->n_in; ++i) {
        breaks = breaks || breaks_blocks(w, &w->p->need[i].at, axis, s->in[i]);
    }
    for (uint32_t o = 0; o < w->node->n_out; ++o) {
        breaks = breaks || breaks_blocks(w, &w->p->out[o].at, axis, s->out[o]);
    }
    return breaks;
}

static price price_of(const dsi_placing *w, dsi_axis axis, const dsi_strategy *s)
{
    price p = {.allowed = true};
    const bool broken = has_broken_blocks(w, axis, s);
    for (uint32_t i = 0; i < w->node->n_in; ++i) {
        const bool from_flat = (w->was_flat[i] >> axis & 1u) != 0;
        const dsi_place_on from = w->node->in[i].at.on[axis];
        if (!dsi_placing_has(w, i)) {
            continue;
        }
        const bool breaks =
            broken || breaks_sum(w, i, axis, s->in[i]) || blocks_twice(w, i, axis, s);
        p.uneven = p.uneven || is_uneven(w, axis, s->in[i], &w->p->need[i].at, w->node->in_meta[i]);
        if (dsi_place_on_equal(from, s->in[i]) && !from_flat && !breaks) {
            continue;
        }
        const double bytes = dsi_placing_is_fixed(w, i) || breaks || lacks_rows(w, from, s->in[i])
                                 ? -1.0
                                 : price_of_move(w, i, axis, s->in[i]);
        if (bytes < 0.0) {
            p.blocked = p.n_blocked == 0 ? i : p.blocked;
            p.allowed = false;
            ++p.n_blocked;
        }
        p.bytes += bytes;
        ++p.n_moved;
    }
    const double n = (double)w->node->mesh->size[axis];
    for (uint32_t o = 0; o < w->node->n_out; ++o) { /* a sum will have to be reduced */
        const bool is_sum = s->out[o].kind == DSI_PARTIAL;
        p.bytes += is_sum ? 2.0 * bytes_of(w->node->out_meta[o]) * (n - 1.0) / n : 0.0;
    }
    return p;
}

/* Whether some input has already what the strategy is about. */
static bool is_taken_up(const dsi_placing *w, dsi_axis axis, const dsi_strategy *s)
{
    const dsi_place_kind kind = s->linear ? DSI_PARTIAL : DSI_SHARD;
    bool taken = s->letter == '\0' && !s->linear;
    for (uint32_t i = 0; i < w->node->n_in; ++i) {
        const dsi_place_on has = w->node->in[i].at.on[axis];
        const bool alike = has.kind != DSI_PARTIAL || has.dim == s->in[i].dim;
        taken =
            taken || (dsi_placing_has(w, i) && s->in[i].kind == kind && has.kind == kind && alike);
    }
    return taken;
}

/* The largest smaller number of ranks along the axis, of those that divide it, for which some rule
 * of the operator takes the inputs as they are placed; 1 where the axis is not at all. */
static uint32_t nearest_size(const dsi_placing *w, dsi_axis axis)
{
    const uint32_t size = w->node->mesh->size[axis];
    for (uint32_t fewer = size / 2; fewer > 1; --fewer) {
        dsi_mesh mesh = *w->node->mesh;
        dsi_place_node node = *w->node;
        dsi_placing smaller = *w;
        dsi_strategy list[DSI_RULE_STRATEGIES];
        if (size % fewer != 0) {
            continue;
        }
        mesh.size[axis] = fewer;
        mesh.n_ranks = mesh.n_ranks / size * fewer;
        node.mesh = &mesh;
        smaller.node = &node;
        const uint32_t n = dsi_rule_strategies(&w->p->rule, &mesh, axis, node.policy, 0, list);
        for (uint32_t k = 0; k < n; ++k) {
            if (is_taken_up(&smaller, axis, &list[k]) &&
                price_of(&smaller, axis, &list[k]).allowed) {
                return fewer;
            }
        }
    }
    return 1;
}

static void take(dsi_placing *w, dsi_axis axis, const dsi_strategy *s)
{
    for (uint32_t i = 0; i < w->node->n_in; ++i) {
        w->p->need[i].at.on[axis] = s->in[i];
    }
    for (uint32_t o = 0; o < w->node->n_out; ++o) {
        w->p->out[o].at.on[axis] = s->out[o];
        w->p->out[o].averaged |= (s->averaged >> o & 1u) << axis;
    }
    dsi_rule_case_take(&w->p->rule, w->node->mesh, axis, s);
}

/* Whether the node makes one value of what the ranks have. Cells that it writes stay their own. */
static bool is_joined(const dsi_placing *w, uint32_t o)
{
    const int8_t *writes = w->node->op->writes;
    return (w->p->rule.flags & DSI_PLACE_JOINS) != 0 && (writes == NULL || writes[o] < 0);
}

/* A maximum or an exact sum of which each rank has a term; else a value that all have. */
static dsi_placement join(const dsi_placing *w, dsi_placement out, dsi_axis axis)
{
    const dsi_terms terms = dsi_rule_terms(&w->p->rule);
    return terms == DSI_TERMS_SUM ? out : dsi_partial_of(out, axis, terms);
}

/* On an axis where the node works on the rank's own samples. */
static ds_status place_own(dsi_placing *w, dsi_axis axis)
{
    const bool may_gather = (w->node->policy->gather >> axis & 1u) != 0;
    for (uint32_t i = 0; i < w->node->n_in; ++i) {
        dsi_placement *need = &w->p->need[i].at;
        const dsi_place_on from = need->on[axis];
        if (!dsi_placing_has(w, i) || from.kind == DSI_OWN) {
            continue;
        }
        need->on[axis] = (dsi_place_on){0};
        if (dsi_placing_is_fixed(w, i)) {
            return dsi_placing_refuse(w, i, &w->node->in[i].at,
                                      "it is written, with what each rank has of its own samples");
        }
        if (from.kind == DSI_SHARD && !may_gather) {
            return dsi_placing_refuse(w, i, need, "the other inputs are of the rank's own samples");
        }
    }
    for (uint32_t o = 0; o < w->node->n_out; ++o) {
        dsi_placement *out = &w->p->out[o].at;
        *out = is_joined(w, o) ? join(w, *out, axis) : dsi_own(*out, axis);
    }
    return DS_OK;
}

/* Between a rank's own rows and those of the experts that it has, along ep, where its samples are
 * its own, sp, where it has a part of each, and tp, where it has a part of what all have. What all
 * ranks that share the experts know of all rows they have alike; the experts' rows are blocks, one
 * a rank. On an axis whose ranks do not share them each has a table and rows for itself. */
static ds_status place_experts(dsi_placing *w, dsi_axis axis)
{
    const dsi_expert_ranks_attrs *a = w->node->attrs;
    const dsi_axes shared = dsi_expert_ranks_axes(a);
    const bool shares = dsi_axes_has(&shared, axis);
    const bool returns = w->node->op == &dsi_op_from_experts;
    const bool gathers = w->node->op == &dsi_op_gather_offsets;
    const bool tells = w->node->op == &dsi_op_expert_segments;
    const dsi_place_on rows = {DSI_SHARD, 0, 0};
    const dsi_place_on own = {axis == DSI_AXIS_EP ? DSI_OWN : DSI_SHARD, 0, 0};
    const dsi_place_on table = shares ? (dsi_place_on){0} : rows;
    const dsi_place_on wanted[2] = {tells ? table : returns ? rows : own, table};
    for (uint32_t i = 0; i < w->node->n_in; ++i) {
        dsi_placement need = w->node->in[i].at;
        need.on[axis] = wanted[i];
        if (!dsi_place_on_equal(w->node->in[i].at.on[axis], need.on[axis])) {
            return dsi_placing_refuse(w, i, &need, "rows go between ranks and their experts");
        }
    }
    w->p->out[0].at.on[axis] = gathers ? table : returns ? own : rows;
    w->p->out[0].averaged |= a->gradient != 0 && !returns && axis == DSI_AXIS_EP ? 1u << axis : 0;
    return DS_OK;
}

/* Tokens that all ranks along tp have, and their parts. */
static void place_tokens(dsi_placing *w, dsi_axis axis)
{
    const bool splits = w->node->op == &dsi_op_split_tokens;
    const dsi_place_on part = {DSI_SHARD, 1, 0};
    w->p->need[0].at.on[axis] = splits ? part : (dsi_place_on){0};
    w->p->out[0].at.on[axis] = w->p->need[0].at.on[axis];
}

/* Products whose rows are a part of a sequence, with experts that all its parts have: a rank's own
 * rows, a term of the sum of the weights' gradients. */
static ds_status place_copies(dsi_placing *w, dsi_axis axis)
{
    const dsi_place_on rows = {DSI_SHARD, 0, 0};
    const dsi_place_on term = {DSI_PARTIAL, DSI_TERMS_SUM, 0};
    const bool dw = w->node->op == &dsi_op_grouped_linear_dw;
    dsi_strategy s = {.in = {rows, {0}, rows}, .out = {rows}};
    if (dw) {
        s = (dsi_strategy){.in = {rows, rows, rows, term}, .out = {term}};
    }
    const price p = price_of(w, axis, &s);
    if (!p.allowed) {
        dsi_placement need = w->node->in[p.blocked].at;
        need.on[axis] = s.in[p.blocked];
        return dsi_placing_refuse(w, p.blocked, &need, "rows go to experts that all ranks have");
    }
    take(w, axis, &s);
    return DS_OK;
}

/* Whether ranks along an axis have rows of their own for the same experts. */
static bool has_copies(const dsi_placing *w, dsi_axis axis)
{
    const bool grouped =
        w->node->op == &dsi_op_grouped_linear || w->node->op == &dsi_op_grouped_linear_dw;
    return grouped && axis == DSI_AXIS_SP &&
           ((const dsi_grouped_attrs *)w->node->attrs)->copies > 1;
}

/* Ranks of an axis behind this one that cut already the dim of input i that a strategy would come
 * to cut: made inside of that cut, it is an exchange along this axis alone. 0: there is none. */
static uint32_t cut_before(const dsi_placing *w, uint32_t i, dsi_axis axis, dsi_place_on to)
{
    const dsi_placement *at = &w->node->in[i].at;
    const dsi_place_on from = at->on[axis];
    uint32_t ranks = 0;
    uint32_t n = 0;
    for (uint32_t a = (uint32_t)axis + 1; a < DSI_AXIS_COUNT; ++a) {
        const bool cuts = at->on[a].kind == DSI_SHARD && at->on[a].dim == to.dim &&
                          at->on[a].blocks == 0 && w->node->mesh->size[a] > 1;
        ranks = cuts ? w->node->mesh->size[a] : ranks;
        n += cuts ? 1 : 0;
    }
    ranks = n == 1 ? ranks : 0;
    const bool comes = from.kind == DSI_SHARD && (from.dim != to.dim || from.blocks == ranks);
    return to.kind == DSI_SHARD && to.blocks == 0 && comes && ranks <= DSI_PART_MOST_BLOCKS ? ranks
                                                                                            : 0;
}

/* Makes a strategy's cuts inside of those of an axis behind, where there are such. */
static void cut_inside(const dsi_placing *w, dsi_axis axis, dsi_strategy *s)
{
    uint32_t ranks = 0;
    for (uint32_t i = 0; i < w->node->n_in && s->letter != '\0'; ++i) {
        const uint32_t n = dsi_placing_has(w, i) ? cut_before(w, i, axis, s->in[i]) : 0;
        ranks = n > 0 ? n : ranks;
    }
    s->inside = ranks > 1 &&
                dsi_rule_cuts_evenly(&w->p->rule, s->letter, ranks * w->node->mesh->size[axis]);
    for (uint32_t k = 0; k < w->node->n_in + w->node->n_out && s->inside; ++k) {
        const dsi_place_on on = k < w->node->n_in ? s->in[k] : s->out[k - w->node->n_in];
        s->inside = on.kind != DSI_SHARD || on.blocks == 0;
    }
    for (uint32_t k = 0; k < w->node->n_in + w->node->n_out && s->inside; ++k) {
        dsi_place_on *on = k < w->node->n_in ? &s->in[k] : &s->out[k - w->node->n_in];
        on->blocks = on->kind == DSI_SHARD ? (uint8_t)ranks : on->blocks;
    }
}

static bool has_own(const dsi_placing *w, dsi_axis axis)
{
    bool own = false;
    for (uint32_t i = 0; i < w->node->n_in; ++i) {
        own = own || dsi_placing_is_own(w, i, 1u << axis);
    }
    return own;
}

/* Even parts first: one graph is for all ranks. */
static bool is_better(const price *a, const price *b)
{
    return a->uneven != b->uneven ? b->uneven
           : a->bytes != b->bytes ? a->bytes < b->bytes
                                  : a->n_moved < b->n_moved;
}

static ds_status place_axis(dsi_placing *w, dsi_axis axis)
{
    const bool experts = (w->p->rule.flags & DSI_PLACE_EXPERTS) != 0;
    if (experts && dsi_expert_ranks_on(w->node->attrs, axis)) {
        return place_experts(w, axis);
    }
    if (axis == DSI_AXIS_TP && (w->p->rule.flags & DSI_PLACE_TOKENS) != 0) {
        place_tokens(w, axis);
        return DS_OK;
    }
    if (has_copies(w, axis)) {
        return place_copies(w, axis);
    }
    if (has_own(w, axis)) {
        return place_own(w, axis);
    }
    dsi_strategy list[DSI_RULE_STRATEGIES];
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < w->node->n_in; ++i) {
        const uint32_t has = dsi_placing_has(w, i) ? w->node->in[i].at.on[axis].blocks : 0;
        blocks = has > 0 ? has : blocks;
    }
    const uint32_t n =
        dsi_rule_strategies(&w->p->rule, w->node->mesh, axis, w->node->policy, blocks, list);
    for (uint32_t k = 0; k < n && (w->node->policy->exchange >> axis & 1u) != 0; ++k) {
        cut_inside(w, axis, &list[k]);
    }
    const dsi_strategy *best = NULL;
    const dsi_strategy *nearest = &list[0];
    price least = {0};
    price fewest = price_of(w, axis, nearest);
    for (uint32_t k = 0; k < n; ++k) {
        const price p = price_of(w, axis, &list[k]);
        if (!is_taken_up(w, axis, &list[k])) {
            continue;
        }
        if (!p.allowed) {
            nearest = p.n_blocked < fewest.n_blocked ? &list[k] : nearest;
            fewest = p.n_blocked < fewest.n_blocked ? p : fewest;
        } else if (best == NULL || is_better(&p, &least)) {
            best = &list[k];
            least = p;
        }
    }
    if (best == NULL) {
        dsi_placement need = w->node->in[fewest.blocked].at;
        need.on[axis] = nearest->in[fewest.blocked];
        return dsi_placing_refuse(
            w, fewest.blocked, &need,
            dsi_placing_is_fixed(w, fewest.blocked)
                ? "it is written, so it stays where it is"
                : "no rule of the operator fits, and the policy does not allow this "
                  "change");
    }
    take(w, axis, best);
    return DS_OK;
}

/* ---- averages, moves ------------------------------------------------------------------------- */

/* A sum that is reduced on the way is divided then; everything else keeps its averaged axes. */
static void average_inputs(dsi_placing *w)
{
    for (uint32_t i = 0; i < w->node->n_in; ++i) {
        const uint32_t before = dsi_placement_partial_axes(&w->node->in[i].at);
        const uint32_t after = dsi_placement_partial_axes(&w->p->need[i].at);
        w->p->need[i].averaged = w->node->in[i].averaged & ~(before & ~after);
    }
}

/* Averaged inputs pass where the operator is linear in all of them together. */
static ds_status average_outputs(dsi_placing *w)
{
    const ds_place_case *c = &w->p->rule;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        uint32_t has = 0;
        uint32_t there = 0;
        uint32_t first = 0;
        for (uint32_t i = 0; i < w->node->n_in; ++i) {
            const bool averaged = dsi_placing_has(w, i) && (w->p->need[i].averaged >> a & 1u) != 0;
            first = averaged && has == 0 ? i : first;
            has |= averaged ? 1u << i : 0;
            there |= dsi_placing_has(w, i) ? 1u << i : 0;
        }
        if (has == 0 || (a == DSI_AXIS_EP && (c->flags & DSI_PLACE_EXPERTS) != 0)) {
            continue; /* what goes back is each rank's own: of its own loss */
        }
        uint32_t group = 0;
        for (uint32_t g = 0; g < c->n_groups; ++g) {
            group = (c->group[g] & there) == has ? c->group[g] : group;
        }
        if (group == 0) {
            return dsi_placing_refuse(
                w, first, &w->node->in[first].at,
                "it is still to be divided by the number of ranks (it comes from a mean "
                "over their rows), which not all that it meets is; reduce it first");
        }
        for (uint32_t o = 0; o < w->node->n_out; ++o) {
            const bool flows = ((c->computed[o] | c->added[o]) & group) != 0;
            w->p->out[o].averaged |= flows ? 1u << a : 0;
        }
    }
    return DS_OK;
}

/* The list of moves of an input that changes; on an error once more, with its name. */
static ds_status plan_input(dsi_placing *w, uint32_t i, const dsi_moves **moves_out)
{
    dsi_redistribution r = {.name = w->node->op->name,
                            .mesh = *w->node->mesh,
                            .meta = w->node->in_meta[i],
                            .from = w->node->in[i].at,
                            .to = w->p->need[i].at,
                            .most_bytes = w->node->policy->most_bytes};
    ds_status status = dsi_redistribute_memo(w->ctx, w->node->memo, &r, moves_out);
    if (status < 0) {
        char input[NAME_BYTES];
        char name[2 * NAME_BYTES];
        w->node->name(w->node->user, i, input, sizeof input);
        (void)snprintf(name, sizeof name, "%s at %s: input %u (%s)", w->node->op->name,
                       w->node->scope, i, input);
        r.name = name;
        status = dsi_redistribute_memo(w->ctx, w->node->memo, &r, moves_out);
    }
    return status;
}

static ds_status plan_moves(dsi_placing *w)
{
    for (uint32_t i = 0; i < w->node->n_in; ++i) {
        const dsi_moves *moves = NULL;
        if (!dsi_placing_has(w, i) || dsi_placement_equal(&w->node->in[i].at, &w->p->need[i].at)) {
            continue;
        }
        DS_TRY(plan_input(w, i, &moves));
        w->p->bytes += moves->bytes;
    }
    return DS_OK;
}

ds_status dsi_place_node_run(ds_ctx *ctx, const dsi_place_node *node, dsi_placed *placed_out)
{
    dsi_placing w = {.ctx = ctx, .node = node, .p = placed_out};
    memset(placed_out, 0, sizeof *placed_out);
    dsi_rule_case_make(node->op, node->attrs, node->in_meta, node->n_in, node->out_meta,
                       node->n_out, &placed_out->rule);
    if ((placed_out->rule.flags & DSI_PLACE_REFUSED) != 0) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s at %s: a collective is no operator of a logical graph: it is what "
                       "placements are lowered to",
                       node->op->name, node->scope);
    }
    for (uint32_t i = 0; i < node->n_in; ++i) {
        placed_out->need[i] = node->in[i];
    }
    DS_TRY(dsi_place_flat(&w));
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (node->mesh->size[a] > 1 && (w.settled >> a & 1u) == 0) {
            DS_TRY(place_axis(&w, (dsi_axis)a));
        }
    }
    average_inputs(&w);
    DS_TRY(average_outputs(&w));
    return plan_moves(&w);
}
