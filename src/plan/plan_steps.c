/* SPDX-License-Identifier: Apache-2.0 */
/* The steps of a plan: operands, kernels, costs. See plan_lower.h. */
#include "plan/plan_lower.h"

#include "op/isa.h"
#include "op/ops.h"
#include "pass/order.h"

#include <string.h>

static ds_status choose_kernel(dsi_lowering *b, uint32_t s, dsi_step *step)
{
    const ds_kernel_sig sig = {.op = step->op,
                               .attrs = step->attrs,
                               .n_in = step->n_in,
                               .n_out = step->n_out,
                               .in = b->plan->metas + step->in_at,
                               .out = b->plan->metas + step->out_at,
                               .n_threads = b->env->n_threads};
    const ds_isa isa = step->on_host ? b->env->host_isa : b->env->isa;
    step->kernel = (step->on_host ? b->env->choose_host : b->env->choose)(&sig, isa);
    if (step->kernel == NULL) {
        char word[160];
        return ds_fail(b->graph->ctx, DS_ERR_UNSUPPORTED,
                       "%s: no kernel of %s for %s; the accelerator cpu has one for every operator",
                       step->scope, step->op->name,
                       ds_meta_text(sig.n_in > 0 ? sig.in[0] : sig.out[0], word, sizeof word));
    }
    if ((step->kernel->needs & ~isa) != 0) {
        return ds_fail(b->graph->ctx, DS_ERR_DEVICE,
                       "%s: the accelerator chose kernel %s of %s, which needs %s; there is %s",
                       step->scope, step->kernel->name, step->op->name,
                       dsi_isa_print(step->kernel->needs).text, dsi_isa_print(isa).text);
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
    const ds_infer call = {.op = step->op,
                           .attrs = step->attrs,
                           .n_in = step->n_in,
                           .in = plan->metas + step->in_at,
                           .n_out = step->n_out,
                           .out = out};
    if (step->op->cost != NULL) {
        step->op->cost(&call, &step->cost);
    } else {
        for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
            step->cost.bytes += (double)ds_meta_bytes(plan->metas[step->in_at + i]);
        }
    }
}

dsi_ref dsi_lower_make_ref(const dsi_lowering *b, ds_value v)
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
                     .initial = g->values[b->same[v]].producer == DS_NONE,
                     .cell = cell,
                     .value = b->same[v]};
}

static void add_refs(dsi_lowering *b, const ds_value *values, uint32_t n)
{
    dsi_plan *plan = b->plan;
    for (uint32_t i = 0; i < n; ++i) {
        plan->refs[plan->n_refs] = dsi_lower_make_ref(b, values[i]);
        plan->metas[plan->n_refs] = plan->refs[plan->n_refs].meta;
        plan->n_refs += 1;
    }
}

/* The operands of slots [begin,end): all inputs, then all outputs. */
static void add_operands(dsi_lowering *b, uint32_t begin, uint32_t end, dsi_step *step)
{
    const ds_graph *g = b->graph;
    step->in_at = b->plan->n_refs;
    for (uint32_t at = begin; at < end; ++at) {
        const dsi_node_info *node = dsi_lower_node_of(b, at);
        add_refs(b, dsi_node_in(g, node), node->n_in);
    }
    step->out_at = b->plan->n_refs;
    for (uint32_t at = begin; at < end; ++at) {
        add_refs(b, dsi_node_out(g, dsi_lower_node_of(b, at)), dsi_lower_node_of(b, at)->n_out);
    }
    step->n_in = step->out_at - step->in_at;
    step->n_out = b->plan->n_refs - step->out_at;
}

/* The START that a WAIT belongs to: of the same first node, before it, or behind it when the
 * writeback is deferred. */
static uint32_t find_start(const dsi_lowering *b, uint32_t wait)
{
    uint32_t at = wait;
    while (b->slots[at].node != b->slots[wait].node || b->slots[at].kind != DSI_STEP_START) {
        at = (at > 0 ? at : b->n_slots) - 1;
    }
    return b->step_of[at];
}

/* Whether a bucket's nodes ask for one collective. */
static bool is_one_call(const dsi_lowering *b, uint32_t begin, uint32_t end)
{
    const dsi_comm_attrs *first = dsi_lower_node_of(b, begin)->attrs;
    bool same = true;
    for (uint32_t at = begin + 1; at < end; ++at) {
        const dsi_comm_attrs *attrs = dsi_lower_node_of(b, at)->attrs;
        same = same && dsi_lower_node_of(b, at)->op == dsi_lower_node_of(b, begin)->op &&
               attrs->axes == first->axes && attrs->factor == first->factor;
    }
    return same;
}

/* The step of the slots at [begin,end): one node, or a bucket. */
static ds_status make_step(dsi_lowering *b, uint32_t begin, uint32_t end)
{
    dsi_plan *plan = b->plan;
    const dsi_node_info *node = dsi_lower_node_of(b, begin);
    const uint32_t s = b->step_of[begin];
    if (!is_one_call(b, begin, end)) {
        return ds_fail(plan->ctx, DS_ERR_INTERNAL, "%s: %s of a bucket that is several collectives",
                       node->scope, node->op->name);
    }
    dsi_step *step = &plan->steps[s];
    *step = (dsi_step){.kind = b->slots[begin].kind,
                       .op = node->op,
                       .scope = dsi_arena_strdup(plan->arena, node->scope),
                       .phase = b->slots[begin].phase,
                       .recomputed = node->recomputed,
                       .on_host = node->on_host,
                       .n_parts = end - begin};
    step->attrs = dsi_arena_copy(plan->arena, node->attrs, node->op->attrs_bytes);
    if (step->scope == NULL || step->attrs == NULL) {
        return ds_fail(plan->ctx, DS_ERR_NOMEM, "no memory for the plan");
    }
    if (step->kind == DSI_STEP_WAIT) {
        step->start = find_start(b, begin);
        step->in_at = step->out_at = b->plan->n_refs;
        return DS_OK;
    }
    add_operands(b, begin, end, step);
    if ((node->op->flags & (DS_OP_COMM | DS_OP_SWAP)) != 0) {
        for (uint32_t i = 0; i < step->n_in + step->n_out; ++i) {
            step->cost.bytes += (double)ds_meta_bytes(plan->metas[step->in_at + i]);
        }
        return DS_OK;
    }
    DS_TRY(choose_kernel(b, s, step));
    add_cost(step, plan);
    return DS_OK;
}

/* Steps with operands and kernels, not yet offsets. */
ds_status dsi_lower_make_steps(dsi_lowering *b)
{
    for (uint32_t begin = 0, end = 0; begin < b->n_slots; begin = end) {
        while (end < b->n_slots && b->step_of[end] == b->step_of[begin]) {
            ++end;
        }
        DS_TRY(make_step(b, begin, end));
    }
    return DS_OK;
}
