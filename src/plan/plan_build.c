/* From graph to plan: order, kernels, memory. See plan.h. */
#include "op/ops.h"
#include "pass/fuse.h"
#include "pass/memory.h"
#include "pass/order.h"
#include "pass/overlap.h"
#include "plan/plan.h"
#include "plan/plan_kinds.h"

#include <stdlib.h>
#include <string.h>

enum { PLAN_CEILING = 1 << 30 };

/* Working state of one lowering; arrays by value id unless stated. */
typedef struct build {
    const ds_graph *graph;
    const dsi_plan_env *env;
    dsi_plan *plan;
    uint32_t *uses;
    ds_node *order;
    uint32_t n_order;
    dsi_slot *slots; /* the order once more, with starts and waits of collectives */
    uint32_t n_slots;
    uint32_t *step_of; /* per slot: the step; a bucket is one step */
    uint32_t n_steps;
    bool *shared;           /* per root: a collective sends it */
    bool *swapped;          /* per root: a swap moves it */
    ds_value *root;         /* the value whose storage it shares; itself when its own */
    uint32_t *first, *last; /* steps of definition and last use, over all that share the root */
    bool *kept;             /* named output: must outlive its phase */
    ds_cell *placed;        /* the cell that a value is made in, or DS_NONE */
    ds_value *same;         /* a store's output that was elided: the value stored; else itself */
    dsi_memory_item *items; /* per value, then per step (scratch), then reserved */
} build;

static void *zeroed(build *b, size_t n, size_t size)
{
    return dsi_arena_array(b->plan->arena, n, size);
}

/* The step that makes v, and whether any step from there up to `end` touches cell c. */
static bool touched_between(const build *b, ds_value v, uint32_t end, ds_cell c)
{
    const ds_graph *g = b->graph;
    for (uint32_t s = end; s-- > 0;) {
        const dsi_node_info *node = &g->nodes[b->order[s]];
        for (uint32_t i = 0; i < node->n_in + node->n_out; ++i) {
            const ds_value other = g->operands[node->in_at + i];
            if (other != DS_NONE && g->values[other].cell == c) {
                return true;
            }
        }
        if (b->order[s] == g->values[v].producer) {
            return false;
        }
    }
    return true;
}

/* A value that is only stored into a cell is made in that cell at once: the store is no step. What
 * a swap brings is moved by blocks, for which a cell has no room. */
static void elide_stores(build *b)
{
    const ds_graph *g = b->graph;
    uint32_t kept = 0;
    for (ds_value v = 0; v < g->n_values; ++v) {
        b->same[v] = v;
        b->placed[v] = DS_NONE;
    }
    for (uint32_t s = 0; s < b->n_order; ++s) {
        const dsi_node_info *node = &g->nodes[b->order[s]];
        const ds_value x = node->op == &dsi_op_store ? dsi_node_in(g, node)[1] : DS_NONE;
        const ds_value y = x == DS_NONE ? DS_NONE : dsi_node_out(g, node)[0];
        const ds_node maker = x == DS_NONE ? DS_NONE : g->values[x].producer;
        bool elide = maker != DS_NONE && !b->env->no_reuse && g->values[x].cell == DS_NONE &&
                     b->uses[x] == 1 && g->nodes[maker].phase == node->phase &&
                     (g->nodes[maker].op->flags & (DS_OP_VIEW | DS_OP_SWAP)) == 0 &&
                     g->values[x].meta.dtype == g->values[y].meta.dtype &&
                     !touched_between(b, x, s, g->values[y].cell);
        if (elide) {
            b->placed[x] = g->values[y].cell;
            b->same[y] = x;
        } else {
            b->order[kept++] = b->order[s];
        }
    }
    b->n_order = kept;
}

/* The order as slots; without overlap a collective starts and ends in one place. */
static ds_status make_slots(build *b)
{
    const dsi_overlap_limits limits = {.comm = b->env->overlap,
                                       .prefetch = b->env->prefetch,
                                       .read_ahead = b->env->read_ahead,
                                       .update_ahead = b->env->update_ahead,
                                       .write_behind = b->env->write_behind};
    return dsi_overlap(b->graph, b->order, b->n_order, b->same, &limits, b->slots, &b->n_slots);
}

static const dsi_node_info *node_of(const build *b, uint32_t slot)
{
    return &b->graph->nodes[b->slots[slot].node];
}

/* Neighbours of one bucket are one step. */
static void number_steps(build *b)
{
    for (uint32_t s = 0; s < b->n_slots; ++s) {
        const int64_t bucket = dsi_order_bucket(node_of(b, s));
        const bool joins = s > 0 && bucket >= 0 && b->slots[s].kind == b->slots[s - 1].kind &&
                           bucket == dsi_order_bucket(node_of(b, s - 1));
        b->n_steps += joins ? 0 : 1;
        b->step_of[s] = b->n_steps - 1;
    }
}

/* The input that a collective sends; DS_NONE for other nodes. */
static ds_value sent_by(const ds_graph *g, const dsi_node_info *node)
{
    const bool sends = (node->op->flags & DS_OP_COMM) != 0 && node->op != &dsi_op_take_slice;
    return sends ? dsi_node_in(g, node)[node->op->writes != NULL ? 1 : 0] : DS_NONE;
}

/* What collectives send lies where peers can read it. */
static void mark_shared(build *b)
{
    const ds_graph *g = b->graph;
    for (uint32_t s = 0; s < b->n_slots; ++s) {
        const ds_value v = sent_by(g, node_of(b, s));
        if (v == DS_NONE) {
            continue;
        }
        const ds_value root = b->root[b->same[v]];
        const ds_cell cell = b->placed[root] != DS_NONE ? b->placed[root] : g->values[root].cell;
        if (cell != DS_NONE) {
            b->plan->cell_shared[cell] = true;
        } else {
            b->shared[root] = true;
        }
    }
}

/* What swaps move is aligned for the disk. */
static void mark_swapped(build *b)
{
    const ds_graph *g = b->graph;
    for (uint32_t c = 0; c < b->plan->n_cells; ++c) {
        const bool known = c < b->env->n_homes;
        b->plan->cell_swapped[c] = known && b->env->homes[c].residence != DSI_ON_DEVICE;
        b->plan->cell_parent[c] = known ? b->env->homes[c].parent : DS_NONE;
    }
    for (uint32_t s = 0; s < b->n_slots; ++s) {
        const dsi_node_info *node = node_of(b, s);
        if ((node->op->flags & DS_OP_SWAP) != 0) {
            const ds_value v =
                node->op == &dsi_op_swap_in ? dsi_node_out(g, node)[0] : dsi_node_in(g, node)[1];
            b->swapped[b->root[b->same[v]]] = true;
        }
    }
}

static void count_uses(build *b)
{
    const ds_graph *g = b->graph;
    for (uint32_t s = 0; s < b->n_order; ++s) {
        const dsi_node_info *node = &g->nodes[b->order[s]];
        for (uint32_t i = 0; i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            if (v != DS_NONE) {
                b->uses[v] += 1;
            }
        }
    }
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        b->uses[g->outputs[i].value] += 2; /* never elided */
    }
}

static void use(build *b, ds_value v, uint32_t step)
{
    if (v != DS_NONE) {
        b->last[b->root[b->same[v]]] = step;
    }
}

/* Storage roots: views share input 0's; an in-place output takes over input 0 when that dies. A
 * wait uses all operands of its start. */
static void find_lifetimes(build *b)
{
    const ds_graph *g = b->graph;
    for (ds_value v = 0; v < g->n_values; ++v) {
        b->root[v] = v;
        b->first[v] = UINT32_MAX;
    }
    for (uint32_t at = 0; at < b->n_slots; ++at) {
        const dsi_node_info *node = node_of(b, at);
        const ds_value *out = dsi_node_out(g, node);
        const uint32_t s = b->step_of[at];
        const bool wait = b->slots[at].kind == DSI_SLOT_WAIT;
        if ((node->op->flags & DS_OP_VIEW) != 0) {
            b->root[out[0]] = b->root[dsi_node_in(g, node)[0]];
        }
        for (uint32_t i = 0; i < node->n_in; ++i) {
            use(b, dsi_node_in(g, node)[i], s);
        }
        for (uint32_t i = 0; i < node->n_out; ++i) {
            if (out[i] != DS_NONE && wait) {
                use(b, out[i], s);
            } else if (out[i] != DS_NONE && b->root[out[i]] == out[i]) {
                b->first[out[i]] = s;
                b->last[out[i]] = s;
            }
        }
    }
}

static uint32_t end_of_phase(const build *b, ds_phase phase)
{
    const uint32_t end = b->plan->phase_begin[phase + 1];
    return end > 0 ? end - 1 : 0;
}

static void keep_outputs(build *b)
{
    const ds_graph *g = b->graph;
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        const ds_value root = b->root[g->outputs[i].value];
        const ds_node producer = g->values[root].producer;
        if (producer != DS_NONE) {
            /* Readable until the next phase starts: it may not be reused before. */
            const uint32_t end = end_of_phase(b, g->nodes[producer].phase);
            b->last[root] = end > b->last[root] ? end : b->last[root];
            b->kept[root] = true;
        }
    }
}

/* `out` takes over the storage of input `at` when that dies at step s. */
static void share_pair(build *b, const dsi_node_info *node, uint32_t s, uint32_t at, ds_value out)
{
    const ds_graph *g = b->graph;
    const ds_value in = at < node->n_in ? dsi_node_in(g, node)[at] : DS_NONE;
    const ds_value root = in == DS_NONE ? DS_NONE : b->root[in];
    bool fits = root != DS_NONE && out != DS_NONE && g->values[root].cell == DS_NONE &&
                b->placed[root] == DS_NONE && b->placed[out] == DS_NONE &&
                g->values[out].cell == DS_NONE && b->root[out] == out && !b->kept[root] &&
                b->last[root] == s && g->values[in].meta.dtype == g->values[out].meta.dtype &&
                ds_meta_bytes(g->values[root].meta) == ds_meta_bytes(g->values[out].meta);
    for (uint32_t i = 0; fits && i < node->n_in; ++i) {
        const ds_value other = dsi_node_in(g, node)[i];
        fits = i == at || other == DS_NONE || b->root[other] != root;
    }
    if (!fits) {
        return;
    }
    b->last[root] = b->last[out];
    b->kept[root] = b->kept[out];
    for (ds_value v = 0; v < g->n_values; ++v) { /* views of out follow */
        b->root[v] = b->root[v] == out ? root : b->root[v];
    }
}

/* Lets in-place operators overwrite an input that dies with them. */
static void share_in_place(build *b)
{
    const ds_graph *g = b->graph;
    for (uint32_t place = 0; place < b->n_slots; ++place) {
        const dsi_node_info *node = node_of(b, place);
        const uint32_t s = b->step_of[place];
        if ((node->op->flags & DS_OP_INPLACE) == 0 || b->env->no_reuse) {
            continue;
        }
        const uint32_t n_pairs = node->op->writes != NULL ? node->n_out : 1;
        for (uint32_t i = 0; i < n_pairs; ++i) {
            const uint32_t at =
                node->op->writes != NULL ? (uint32_t)node->op->writes[i] : node->op->inplace_in;
            share_pair(b, node, s, at, dsi_node_out(g, node)[i]);
        }
    }
}

static ds_status choose_kernel(build *b, uint32_t s, dsi_step *step)
{
    const ds_kernel_sig sig = {.op = step->op,
                               .attrs = step->attrs,
                               .n_in = step->n_in,
                               .n_out = step->n_out,
                               .in = b->plan->metas + step->in_at,
                               .out = b->plan->metas + step->out_at,
                               .n_threads = b->env->n_threads};
    step->kernel = b->env->choose(&sig, b->env->isa);
    if (step->kernel == NULL) {
        char word[160];
        return ds_fail(b->graph->ctx, DS_ERR_UNSUPPORTED, "%s: no kernel of %s for %s", step->scope,
                       step->op->name,
                       ds_meta_text(sig.n_in > 0 ? sig.in[0] : sig.out[0], word, sizeof word));
    }
    step->work_bytes = step->kernel->work_bytes != NULL ? step->kernel->work_bytes(&sig) : 0;
    b->items[b->graph->n_values + s] =
        (dsi_memory_item){.bytes = step->work_bytes, .first = s, .last = s};
    return DS_OK;
}

static void add_cost(dsi_step *step, const dsi_plan *plan)
{
    ds_meta out[DS_MAX_OUT];
    memcpy(out, plan->metas + step->out_at, step->n_out * sizeof *out);
    ds_cost cost = {0};
    const ds_infer call = {.op = step->op,
                           .attrs = step->attrs,
                           .n_in = step->n_in,
                           .in = plan->metas + step->in_at,
                           .n_out = step->n_out,
                           .out = out};
    if (step->op->cost != NULL) {
        step->op->cost(&call, &cost);
    } else {
        for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
            cost.bytes += (double)ds_meta_bytes(plan->metas[step->in_at + i]);
        }
    }
    step->flops = cost.flops;
    step->again = cost.again;
    step->bytes = cost.bytes;
}

static dsi_ref make_ref(const build *b, ds_value v)
{
    if (v == DS_NONE) {
        return (dsi_ref){.cell = DS_NONE, .value = DS_NONE};
    }
    const ds_graph *g = b->graph;
    const ds_value root = b->root[b->same[v]];
    const ds_cell cell = b->placed[root] != DS_NONE ? b->placed[root] : g->values[root].cell;
    const dsi_space arena = b->shared[root] ? DSI_SPACE_SHARED : DSI_SPACE_ARENA;
    return (dsi_ref){.meta = g->values[v].meta,
                     .space = cell != DS_NONE ? DSI_SPACE_CELL : arena,
                     .cell = cell,
                     .value = b->same[v]};
}

static void add_refs(build *b, const ds_value *values, uint32_t n)
{
    dsi_plan *plan = b->plan;
    for (uint32_t i = 0; i < n; ++i) {
        plan->refs[plan->n_refs] = make_ref(b, values[i]);
        plan->metas[plan->n_refs] = plan->refs[plan->n_refs].meta;
        plan->n_refs += 1;
    }
}

/* The operands of slots [begin,end): all inputs, then all outputs. */
static void add_operands(build *b, uint32_t begin, uint32_t end, dsi_step *step)
{
    const ds_graph *g = b->graph;
    step->in_at = b->plan->n_refs;
    for (uint32_t at = begin; at < end; ++at) {
        const dsi_node_info *node = node_of(b, at);
        add_refs(b, dsi_node_in(g, node), node->n_in);
        if (step->kind == DSI_STEP_WAIT && node->op->writes != NULL) { /* the old version is gone */
            b->plan->refs[b->plan->n_refs - node->n_in + (uint32_t)node->op->writes[0]] =
                make_ref(b, DS_NONE);
        }
    }
    step->out_at = b->plan->n_refs;
    for (uint32_t at = begin; at < end; ++at) {
        add_refs(b, dsi_node_out(g, node_of(b, at)), node_of(b, at)->n_out);
    }
    step->n_in = step->out_at - step->in_at;
    step->n_out = b->plan->n_refs - step->out_at;
    if (step->kind == DSI_STEP_WAIT) { /* reads them all */
        step->n_in += step->n_out;
        step->out_at += step->n_out;
        step->n_out = 0;
    }
}

/* The START that a WAIT belongs to: of the same first node. */
static uint32_t find_start(const build *b, uint32_t wait)
{
    uint32_t at = wait;
    while (b->slots[at].node != b->slots[wait].node || b->slots[at].kind != DSI_SLOT_START) {
        --at;
    }
    return b->step_of[at];
}

/* The step of the slots at [begin,end): one node, or a bucket. */
static ds_status make_step(build *b, uint32_t begin, uint32_t end)
{
    static const dsi_step_kind kinds[] = {[DSI_SLOT_RUN] = DSI_STEP_RUN,
                                          [DSI_SLOT_START] = DSI_STEP_START,
                                          [DSI_SLOT_WAIT] = DSI_STEP_WAIT};
    dsi_plan *plan = b->plan;
    const dsi_node_info *node = node_of(b, begin);
    const uint32_t s = b->step_of[begin];
    dsi_step *step = &plan->steps[s];
    *step = (dsi_step){.kind = kinds[b->slots[begin].kind],
                       .op = node->op,
                       .scope = dsi_arena_strdup(plan->arena, node->scope),
                       .phase = node->phase,
                       .recomputed = node->recomputed,
                       .n_parts = end - begin};
    step->attrs = dsi_arena_copy(plan->arena, node->attrs, node->op->attrs_bytes);
    if (step->scope == NULL || step->attrs == NULL) {
        return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory for the plan");
    }
    add_operands(b, begin, end, step);
    if (step->kind == DSI_STEP_WAIT) {
        step->start = find_start(b, begin);
        return DS_OK;
    }
    if ((node->op->flags & (DS_OP_COMM | DS_OP_SWAP)) != 0) {
        for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
            step->bytes += (double)ds_meta_bytes(plan->metas[step->in_at + i]);
        }
        return DS_OK;
    }
    DS_TRY(choose_kernel(b, s, step));
    add_cost(step, plan);
    return DS_OK;
}

/* Steps with operands and kernels, not yet offsets. */
static ds_status make_steps(build *b)
{
    for (uint32_t begin = 0, end = 0; begin < b->n_slots; begin = end) {
        while (end < b->n_slots && b->step_of[end] == b->step_of[begin]) {
            ++end;
        }
        DS_TRY(make_step(b, begin, end));
    }
    return DS_OK;
}

/* Offsets in the shared arena: the same strategy, apart from the other one. */
static ds_status place_shared(build *b)
{
    const ds_graph *g = b->graph;
    dsi_memory_item *items = calloc(g->n_values + 1, sizeof *items);
    if (items == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for the plan");
    }
    for (ds_value v = 0; v < g->n_values; ++v) {
        if (b->root[v] == v && b->shared[v]) {
            const bool swaps = b->swapped[v];
            const size_t bytes = ds_meta_bytes(g->values[v].meta);
            items[v] = (dsi_memory_item){.bytes = swaps ? dsi_home_bytes(bytes) : bytes,
                                         .first = b->first[v],
                                         .last = b->last[v],
                                         .align = swaps ? DSI_HOME_ALIGN : 0};
        }
    }
    const ds_status status =
        dsi_memory_assign(g->ctx, items, g->n_values, !b->env->no_reuse, &b->plan->shared_bytes);
    for (uint32_t i = 0; i < b->plan->n_refs && status >= 0; ++i) {
        dsi_ref *ref = &b->plan->refs[i];
        if (ref->space == DSI_SPACE_SHARED) {
            ref->offset = items[b->root[ref->value]].offset;
        }
    }
    for (uint32_t i = 0; i < b->plan->n_outputs && status >= 0; ++i) {
        dsi_ref *ref = &b->plan->outputs[i].ref;
        if (ref->space == DSI_SPACE_SHARED) {
            ref->offset = items[b->root[ref->value]].offset;
        }
    }
    free(items);
    return status;
}

/* Whether item i is of the phase that runs beside the others. */
static bool is_beside(const build *b, uint32_t i)
{
    const uint32_t *begin = b->plan->phase_begin;
    const dsi_memory_item *item = &b->items[i];
    return b->plan->rest_beside && i < b->graph->n_values + b->n_steps && item->bytes > 0 &&
           item->first >= begin[DS_PHASE_REST] && item->last < begin[DS_PHASE_REST + 1];
}

/* The phase that runs beside the others gets the end of the arena to itself. */
static ds_status assign_beside(build *b, dsi_memory_item *apart, uint32_t n)
{
    dsi_plan *plan = b->plan;
    for (uint32_t i = 0; i < n; ++i) {
        if (is_beside(b, i)) {
            apart[i] = b->items[i];
            b->items[i].bytes = 0;
        }
    }
    DS_TRY(dsi_memory_assign(plan->ctx, b->items, n, !b->env->no_reuse, &plan->arena_bytes));
    DS_TRY(dsi_memory_assign(plan->ctx, apart, n, !b->env->no_reuse, &plan->beside.bytes));
    plan->beside.offset = dsi_home_bytes(plan->arena_bytes);
    plan->arena_bytes = plan->beside.offset + plan->beside.bytes;
    for (uint32_t i = 0; i < n; ++i) {
        if (apart[i].bytes > 0) {
            apart[i].offset += plan->beside.offset;
            b->items[i] = apart[i];
        }
    }
    return DS_OK;
}

static ds_status assign_arena(build *b, uint32_t n)
{
    if (!b->plan->rest_beside) {
        return dsi_memory_assign(b->plan->ctx, b->items, n, !b->env->no_reuse,
                                 &b->plan->arena_bytes);
    }
    dsi_memory_item *apart = calloc((size_t)n + 1, sizeof *apart);
    if (apart == NULL) {
        return ds_fail(b->plan->ctx, DS_ERR_NOMEM, "no memory for the plan");
    }
    const ds_status status = assign_beside(b, apart, n);
    free(apart);
    return status;
}

static ds_status place_memory(build *b)
{
    const ds_graph *g = b->graph;
    dsi_plan *plan = b->plan;
    for (ds_value v = 0; v < g->n_values; ++v) {
        if (b->root[v] == v && g->values[v].cell == DS_NONE && b->placed[v] == DS_NONE &&
            b->first[v] != UINT32_MAX && !b->shared[v]) {
            const bool swaps = b->swapped[v];
            const size_t bytes = ds_meta_bytes(g->values[v].meta);
            b->items[v] = (dsi_memory_item){.bytes = swaps ? dsi_home_bytes(bytes) : bytes,
                                            .first = b->first[v],
                                            .last = b->last[v],
                                            .align = swaps ? DSI_HOME_ALIGN : 0};
        }
    }
    const uint32_t n_own = g->n_values + b->n_steps;
    for (uint32_t i = 0; i < b->env->n_reserved; ++i) {
        b->items[n_own + i] = (dsi_memory_item){.bytes = b->env->reserved[i].bytes,
                                                .last = UINT32_MAX,
                                                .offset = b->env->reserved[i].offset,
                                                .fixed = true};
    }
    DS_TRY(assign_arena(b, n_own + b->env->n_reserved));
    for (uint32_t i = 0; i < plan->n_refs; ++i) {
        dsi_ref *ref = &plan->refs[i];
        if (ref->space == DSI_SPACE_ARENA) {
            ref->offset = b->items[b->root[ref->value]].offset;
        }
    }
    for (uint32_t s = 0; s < b->n_steps; ++s) {
        plan->steps[s].work_offset = b->items[g->n_values + s].offset;
    }
    return DS_OK;
}

static ds_status enter_values(const build *b, uint8_t *kinds)
{
    const ds_graph *g = b->graph;
    dsi_ledger *ledger = b->plan->ledger;
    dsi_plan_kinds(g, kinds);
    for (ds_value v = 0; v < g->n_values; ++v) {
        if (b->root[v] != v || g->values[v].cell != DS_NONE || b->placed[v] != DS_NONE ||
            b->first[v] == UINT32_MAX) {
            continue;
        }
        const dsi_step *step = &b->plan->steps[b->first[v]];
        const dsi_memory_kind kind = (dsi_memory_kind)kinds[v];
        const dsi_ledger_entry entry = {
            .kind = b->shared[v] && kind != DSI_MEMORY_GATHERED ? DSI_MEMORY_COMM : kind,
            .first = b->first[v],
            .last = b->last[v],
            .bytes = ds_meta_bytes(g->values[v].meta),
            .name = step->scope,
            .what = step->op->name};
        DS_TRY(dsi_ledger_add(ledger, &entry));
    }
    return DS_OK;
}

/* The ledger of both arenas: values, and the scratch of steps. */
static ds_status fill_ledger(build *b)
{
    dsi_plan *plan = b->plan;
    DS_TRY(dsi_ledger_create(plan->ctx, plan->n_steps, &plan->ledger));
    uint8_t *kinds = malloc((size_t)b->graph->n_values + 1);
    if (kinds == NULL) {
        return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory for the ledger of a plan");
    }
    ds_status status = enter_values(b, kinds);
    free(kinds);
    for (uint32_t s = 0; s < plan->n_steps && status >= 0; ++s) {
        const dsi_ledger_entry entry = {.kind = DSI_MEMORY_WORKSPACE,
                                        .first = s,
                                        .last = s,
                                        .bytes = plan->steps[s].work_bytes,
                                        .name = plan->steps[s].scope,
                                        .what = plan->steps[s].op->name};
        status = dsi_ledger_add(plan->ledger, &entry);
    }
    return status;
}

static ds_status name_outputs(build *b)
{
    const ds_graph *g = b->graph;
    dsi_plan *plan = b->plan;
    plan->n_outputs = g->n_outputs;
    plan->outputs = zeroed(b, g->n_outputs, sizeof *plan->outputs);
    if (plan->outputs == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for the plan");
    }
    for (uint32_t i = 0; i < g->n_outputs; ++i) {
        const ds_value v = g->outputs[i].value;
        const ds_node producer = g->values[b->root[v]].producer;
        dsi_plan_output *output = &plan->outputs[i];
        output->name = dsi_arena_strdup(plan->arena, g->outputs[i].name);
        output->ref = make_ref(b, v);
        output->phase = producer == DS_NONE ? DS_PHASE_FORWARD : g->nodes[producer].phase;
        if (output->ref.space == DSI_SPACE_ARENA) {
            output->ref.offset = b->items[b->root[v]].offset;
        }
        if (output->name == NULL) {
            return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for the plan");
        }
    }
    return DS_OK;
}

static ds_status allocate(build *b)
{
    const ds_graph *g = b->graph;
    const size_t n_items = (size_t)g->n_values + 2 * (size_t)g->n_nodes + b->env->n_reserved + 1;
    b->order = zeroed(b, g->n_nodes + 1, sizeof *b->order);
    b->slots = zeroed(b, 2 * (size_t)g->n_nodes + 1, sizeof *b->slots);
    b->step_of = zeroed(b, 2 * (size_t)g->n_nodes + 1, sizeof *b->step_of);
    b->shared = zeroed(b, g->n_values + 1, sizeof *b->shared);
    b->swapped = zeroed(b, g->n_values + 1, sizeof *b->swapped);
    b->plan->cell_swapped =
        zeroed(b, (size_t)ds_cells_count(g->cells) + 1, sizeof *b->plan->cell_swapped);
    b->plan->n_cells = ds_cells_count(g->cells);
    b->plan->cell_parent = zeroed(b, (size_t)b->plan->n_cells + 1, sizeof *b->plan->cell_parent);
    b->plan->cell_shared = zeroed(b, b->plan->n_cells + 1, sizeof *b->plan->cell_shared);
    b->root = zeroed(b, g->n_values + 1, sizeof *b->root);
    b->first = zeroed(b, g->n_values + 1, sizeof *b->first);
    b->last = zeroed(b, g->n_values + 1, sizeof *b->last);
    b->kept = zeroed(b, g->n_values + 1, sizeof *b->kept);
    b->uses = zeroed(b, g->n_values + 1, sizeof *b->uses);
    b->placed = zeroed(b, g->n_values + 1, sizeof *b->placed);
    b->same = zeroed(b, g->n_values + 1, sizeof *b->same);
    b->items = zeroed(b, n_items, sizeof *b->items);
    b->plan->steps = zeroed(b, 2 * (size_t)g->n_nodes + 1, sizeof *b->plan->steps);
    b->plan->refs = zeroed(b, 2 * (size_t)g->n_operands + 1, sizeof *b->plan->refs);
    b->plan->metas = zeroed(b, 2 * (size_t)g->n_operands + 1, sizeof *b->plan->metas);
    if (b->order == NULL || b->root == NULL || b->first == NULL || b->last == NULL ||
        b->kept == NULL || b->uses == NULL || b->placed == NULL || b->same == NULL ||
        b->items == NULL || b->slots == NULL || b->step_of == NULL || b->shared == NULL ||
        b->swapped == NULL || b->plan->cell_swapped == NULL || b->plan->cell_shared == NULL ||
        b->plan->cell_parent == NULL || b->plan->steps == NULL || b->plan->refs == NULL ||
        b->plan->metas == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for the plan");
    }
    return DS_OK;
}

static void bound_phases(build *b)
{
    uint32_t at = 0;
    for (int phase = 0; phase < DS_PHASE_COUNT; ++phase) {
        b->plan->phase_begin[phase] = at < b->n_slots ? b->step_of[at] : b->n_steps;
        while (at < b->n_slots && node_of(b, at)->phase == (ds_phase)phase) {
            ++at;
        }
    }
    b->plan->phase_begin[DS_PHASE_COUNT] = b->n_steps;
}

static ds_status lower(build *b)
{
    DS_TRY(allocate(b));
    DS_TRY(dsi_order(b->graph, b->order, &b->n_order));
    count_uses(b);
    elide_stores(b);
    DS_TRY(make_slots(b));
    number_steps(b);
    b->plan->n_steps = b->n_steps;
    bound_phases(b);
    find_lifetimes(b);
    keep_outputs(b);
    share_in_place(b);
    mark_shared(b);
    mark_swapped(b);
    DS_TRY(make_steps(b));
    DS_TRY(place_memory(b));
    DS_TRY(name_outputs(b));
    DS_TRY(place_shared(b));
    DS_TRY(fill_ledger(b));
    return dsi_plan_check(b->plan);
}

ds_status dsi_plan_build(const ds_graph *graph, const dsi_plan_env *env, dsi_plan **plan_out)
{
    ds_graph *fused = NULL;
    dsi_plan *plan = calloc(1, sizeof *plan);
    if (plan == NULL || dsi_arena_create(PLAN_CEILING, &plan->arena) < 0) {
        free(plan);
        return ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory for the plan");
    }
    plan->ctx = graph->ctx;
    plan->cells = graph->cells;
    plan->n_threads = env->n_threads;
    plan->isa = env->isa;
    plan->rest_beside = env->rest_beside;
    build b = {.graph = graph, .env = env, .plan = plan};
    ds_status status = DS_OK;
    if (!env->no_fuse) {
        status = dsi_fuse(graph, &fused);
        b.graph = fused;
    }
    if (status >= 0) {
        status = lower(&b);
    }
    ds_graph_destroy(&fused);
    if (status < 0) {
        dsi_plan_destroy(&plan);
        return status;
    }
    *plan_out = plan;
    return DS_OK;
}

void dsi_plan_destroy(dsi_plan **plan)
{
    if (plan != NULL && *plan != NULL) {
        dsi_ledger_destroy(&(*plan)->ledger);
        dsi_arena_destroy(&(*plan)->arena);
        free(*plan);
        *plan = NULL;
    }
}
