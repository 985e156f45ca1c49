/* From graph to plan: order, kernels, memory. See plan.h. */
#include "op/ops.h"
#include "pass/fuse.h"
#include "pass/memory.h"
#include "pass/order.h"
#include "plan/plan.h"

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
    uint32_t n_steps;
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

/* A value that is only stored into a cell is made in that cell at once: the store is no step. */
static void elide_stores(build *b)
{
    const ds_graph *g = b->graph;
    uint32_t kept = 0;
    for (ds_value v = 0; v < g->n_values; ++v) {
        b->same[v] = v;
        b->placed[v] = DS_NONE;
    }
    for (uint32_t s = 0; s < b->n_steps; ++s) {
        const dsi_node_info *node = &g->nodes[b->order[s]];
        const ds_value x = node->op == &dsi_op_store ? dsi_node_in(g, node)[1] : DS_NONE;
        const ds_value y = x == DS_NONE ? DS_NONE : dsi_node_out(g, node)[0];
        const ds_node maker = x == DS_NONE ? DS_NONE : g->values[x].producer;
        bool elide = maker != DS_NONE && !b->env->no_reuse && g->values[x].cell == DS_NONE &&
                     b->uses[x] == 1 && g->nodes[maker].phase == node->phase &&
                     (g->nodes[maker].op->flags & DS_OP_VIEW) == 0 &&
                     g->values[x].meta.dtype == g->values[y].meta.dtype &&
                     !touched_between(b, x, s, g->values[y].cell);
        if (elide) {
            b->placed[x] = g->values[y].cell;
            b->same[y] = x;
        } else {
            b->order[kept++] = b->order[s];
        }
    }
    b->n_steps = kept;
}

static void count_uses(build *b)
{
    const ds_graph *g = b->graph;
    for (uint32_t s = 0; s < b->n_steps; ++s) {
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

/* Storage roots: views share input 0's; an in-place output takes over input 0 when that dies. */
static void find_lifetimes(build *b)
{
    const ds_graph *g = b->graph;
    for (ds_value v = 0; v < g->n_values; ++v) {
        b->root[v] = v;
        b->first[v] = UINT32_MAX;
    }
    for (uint32_t s = 0; s < b->n_steps; ++s) {
        const dsi_node_info *node = &g->nodes[b->order[s]];
        const ds_value *out = dsi_node_out(g, node);
        if ((node->op->flags & DS_OP_VIEW) != 0) {
            b->root[out[0]] = b->root[dsi_node_in(g, node)[0]];
        }
        for (uint32_t i = 0; i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(g, node)[i];
            if (v != DS_NONE) {
                b->last[b->root[v]] = s;
            }
        }
        for (uint32_t i = 0; i < node->n_out; ++i) {
            if (out[i] != DS_NONE && b->root[out[i]] == out[i]) {
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

/* Lets in-place operators overwrite an input that dies with them. */
static void share_in_place(build *b)
{
    const ds_graph *g = b->graph;
    for (uint32_t s = 0; s < b->n_steps; ++s) {
        const dsi_node_info *node = &g->nodes[b->order[s]];
        if ((node->op->flags & DS_OP_INPLACE) == 0 || b->env->no_reuse) {
            continue;
        }
        const uint32_t at = node->op->inplace_in;
        const ds_value in = at < node->n_in ? dsi_node_in(g, node)[at] : DS_NONE;
        const ds_value out = dsi_node_out(g, node)[0];
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
        if (fits) {
            b->last[root] = b->last[out];
            b->kept[root] = b->kept[out];
            for (ds_value v = 0; v < g->n_values; ++v) { /* views of out follow */
                b->root[v] = b->root[v] == out ? root : b->root[v];
            }
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
    return (dsi_ref){.meta = g->values[v].meta,
                     .space = cell != DS_NONE ? DSI_SPACE_CELL : DSI_SPACE_ARENA,
                     .cell = cell,
                     .value = b->same[v]};
}

/* Steps with operands and kernels, not yet offsets. */
static ds_status make_steps(build *b)
{
    const ds_graph *g = b->graph;
    dsi_plan *plan = b->plan;
    for (uint32_t s = 0; s < b->n_steps; ++s) {
        const dsi_node_info *node = &g->nodes[b->order[s]];
        dsi_step *step = &plan->steps[s];
        *step = (dsi_step){.op = node->op,
                           .scope = dsi_arena_strdup(plan->arena, node->scope),
                           .phase = node->phase,
                           .n_in = node->n_in,
                           .n_out = node->n_out,
                           .in_at = plan->n_refs,
                           .out_at = plan->n_refs + node->n_in};
        step->attrs = dsi_arena_copy(plan->arena, node->attrs, node->op->attrs_bytes);
        if (step->scope == NULL || step->attrs == NULL) {
            return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for the plan");
        }
        for (uint32_t i = 0; i < node->n_in + node->n_out; ++i) {
            const ds_value v = g->operands[node->in_at + i];
            plan->refs[plan->n_refs] = make_ref(b, v);
            plan->metas[plan->n_refs] = plan->refs[plan->n_refs].meta;
            plan->n_refs += 1;
        }
        DS_TRY(choose_kernel(b, s, step));
        add_cost(step, plan);
    }
    return DS_OK;
}

static ds_status place_memory(build *b)
{
    const ds_graph *g = b->graph;
    dsi_plan *plan = b->plan;
    for (ds_value v = 0; v < g->n_values; ++v) {
        if (b->root[v] == v && g->values[v].cell == DS_NONE && b->placed[v] == DS_NONE &&
            b->first[v] != UINT32_MAX) {
            b->items[v] = (dsi_memory_item){.bytes = ds_meta_bytes(g->values[v].meta),
                                            .first = b->first[v],
                                            .last = b->last[v]};
        }
    }
    const uint32_t n_own = g->n_values + b->n_steps;
    for (uint32_t i = 0; i < b->env->n_reserved; ++i) {
        b->items[n_own + i] = (dsi_memory_item){.bytes = b->env->reserved[i].bytes,
                                                .last = UINT32_MAX,
                                                .offset = b->env->reserved[i].offset,
                                                .fixed = true};
    }
    DS_TRY(dsi_memory_assign(g->ctx, b->items, n_own + b->env->n_reserved, !b->env->no_reuse,
                             &plan->arena_bytes));
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
    const size_t n_items = (size_t)g->n_values + g->n_nodes + b->env->n_reserved + 1;
    b->order = zeroed(b, g->n_nodes + 1, sizeof *b->order);
    b->root = zeroed(b, g->n_values + 1, sizeof *b->root);
    b->first = zeroed(b, g->n_values + 1, sizeof *b->first);
    b->last = zeroed(b, g->n_values + 1, sizeof *b->last);
    b->kept = zeroed(b, g->n_values + 1, sizeof *b->kept);
    b->uses = zeroed(b, g->n_values + 1, sizeof *b->uses);
    b->placed = zeroed(b, g->n_values + 1, sizeof *b->placed);
    b->same = zeroed(b, g->n_values + 1, sizeof *b->same);
    b->items = zeroed(b, n_items, sizeof *b->items);
    b->plan->steps = zeroed(b, g->n_nodes + 1, sizeof *b->plan->steps);
    b->plan->refs = zeroed(b, g->n_operands + 1, sizeof *b->plan->refs);
    b->plan->metas = zeroed(b, g->n_operands + 1, sizeof *b->plan->metas);
    if (b->order == NULL || b->root == NULL || b->first == NULL || b->last == NULL ||
        b->kept == NULL || b->uses == NULL || b->placed == NULL || b->same == NULL ||
        b->items == NULL || b->plan->steps == NULL || b->plan->refs == NULL ||
        b->plan->metas == NULL) {
        return ds_fail(g->ctx, DS_ERR_NOMEM, "no memory for the plan");
    }
    return DS_OK;
}

static void bound_phases(build *b)
{
    uint32_t at = 0;
    for (int phase = 0; phase < DS_PHASE_COUNT; ++phase) {
        b->plan->phase_begin[phase] = at;
        while (at < b->n_steps && b->graph->nodes[b->order[at]].phase == (ds_phase)phase) {
            ++at;
        }
    }
    b->plan->phase_begin[DS_PHASE_COUNT] = at;
}

static ds_status lower(build *b)
{
    DS_TRY(allocate(b));
    DS_TRY(dsi_order(b->graph, b->order, &b->n_steps));
    count_uses(b);
    elide_stores(b);
    b->plan->n_steps = b->n_steps;
    bound_phases(b);
    find_lifetimes(b);
    keep_outputs(b);
    share_in_place(b);
    DS_TRY(make_steps(b));
    DS_TRY(place_memory(b));
    DS_TRY(name_outputs(b));
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
        dsi_arena_destroy(&(*plan)->arena);
        free(*plan);
        *plan = NULL;
    }
}
