/* Builds an engine: graphs, plans, memory, weights. */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/build_id.h"
#include "exec/agree.h"
#include "op/ops.h"
#include "pass/fuse.h"
#include "train/engine.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_CELLS = 1 << 20, MAX_SLOT_RANGES = 4096 };

static dsi_plan_env plan_env(const ds_engine *engine)
{
    return (dsi_plan_env){.n_threads = ds_ctx_n_threads(engine->ctx),
                          .isa = engine->spec.isa,
                          .choose = dsi_cpu_kernel_choose,
                          .overlap = engine->spec.overlap && engine->spec.zero.n_ranks > 1,
                          .prefetch = engine->spec.prefetch,
                          .no_reuse = engine->spec.no_reuse,
                          .no_fuse = engine->spec.no_fuse};
}

/* Declares the parameters by a trace whose graph is dropped, then freezes those that match. */
static ds_status freeze(ds_engine *engine, const ds_engine_params *params)
{
    if (params->n_frozen == 0) {
        return DS_OK;
    }
    const ds_trace trace = {.mode = DS_TRACE_TRAIN,
                            .dtype = engine->spec.train.dtype,
                            .batch = engine->spec.train.batch,
                            .seq_length = engine->spec.train.seq_length};
    ds_graph *graph = NULL;
    DS_TRY(dsi_forward_graph(engine->model, &trace, engine->spec.train.loss,
                             engine->spec.train.loss_user, engine->cells, &graph));
    ds_graph_destroy(&graph);
    for (uint32_t i = 0; i < params->n_frozen; ++i) {
        uint32_t n = 0;
        DS_TRY(ds_cells_freeze(engine->cells, params->frozen[i], &n));
        ds_log(engine->ctx, DS_LOG_OBJECT, "frozen: %u parameters match %s", n, params->frozen[i]);
    }
    return DS_OK;
}

/* From a logical graph to this rank's plan: fuse, cut over the ranks, lower. With one rank the
 * logical graph is the local one. */
static ds_status lower(ds_engine *engine, const ds_graph *graph, dsi_plan_env env,
                       dsi_plan **plan_out)
{
    ds_graph *fused = NULL;
    ds_graph *local = NULL;
    ds_status status = DS_OK;
    if (engine->spec.zero.n_ranks == 1) {
        return dsi_plan_build(graph, &env, plan_out);
    }
    if (!env.no_fuse) {
        DS_TRY(dsi_fuse(graph, &fused));
    }
    env.no_fuse = true;
    DS_TRY_GOTO(
        status,
        dsi_zero_localize(fused != NULL ? fused : graph, &engine->spec.zero, engine->local, &local),
        done);
    status = dsi_plan_build(local, &env, plan_out);
done:
    ds_graph_destroy(&local);
    ds_graph_destroy(&fused);
    return status;
}

static ds_status build_train_plan(ds_engine *engine)
{
    ds_graph *graph = NULL;
    DS_TRY(
        dsi_train_graph(engine->model, &engine->spec.train, engine->cells, &graph, &engine->own));
    const ds_status status = lower(engine, graph, plan_env(engine), &engine->train_plan);
    ds_graph_destroy(&graph);
    return status;
}

/* The evaluation plan keeps off what a forward pass left for its backward pass. */
static ds_status build_eval_plan(ds_engine *engine)
{
    const ds_trace trace = {.mode = DS_TRACE_EVAL,
                            .dtype = engine->spec.train.dtype,
                            .batch = engine->spec.train.batch,
                            .seq_length = engine->spec.train.seq_length};
    ds_graph *graph = NULL;
    dsi_plan_env env = plan_env(engine);
    dsi_range *slot = calloc(MAX_SLOT_RANGES, sizeof *slot);
    ds_status status = DS_OK;
    uint32_t n_slot = 0;
    if (slot == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for the evaluation plan");
    }
    dsi_plan_live_after(engine->train_plan, DS_PHASE_FORWARD, slot, MAX_SLOT_RANGES, &n_slot);
    if (n_slot > MAX_SLOT_RANGES) { /* keep off the whole arena instead */
        slot[0] = (dsi_range){0, engine->train_plan->arena_bytes};
        n_slot = 1;
    }
    env.reserved = slot;
    env.n_reserved = n_slot;
    DS_TRY_GOTO(status,
                dsi_forward_graph(engine->model, &trace, engine->spec.train.loss,
                                  engine->spec.train.loss_user, engine->cells, &graph),
                done);
    status = lower(engine, graph, env, &engine->eval_plan);
done:
    ds_graph_destroy(&graph);
    free(slot);
    return status;
}

/* What every rank must have alike and no plan shows. */
static ds_status agree(ds_engine *engine)
{
    const dsi_engine_spec *s = &engine->spec;
    char build[80];
    char extra[800];
    dsi_build_id(build, sizeof build);
    (void)snprintf(
        extra, sizeof extra,
        "program %s, seed %llu, lr %.17g, beta1 %.17g, beta2 %.17g, weight_decay %.17g, loss scale "
        "%.17g, accumulation %lld, stage %u, eps %.17g, clipping %.17g, dampening %.17g, "
        "max_coeff %.17g, min_coeff %.17g",
        build, (unsigned long long)s->seed, s->lr, s->beta1, s->beta2, s->weight_decay,
        s->loss_scale.scale, (long long)s->train.accumulation, s->zero.stage, s->train.eps,
        s->train.max_norm, s->train.dampening, s->train.max_coeff, s->train.min_coeff);
    DS_TRY(dsi_exec_agree(engine->ctx, engine->comm, engine->train_plan, extra));
    return dsi_exec_agree(engine->ctx, engine->comm, engine->eval_plan, "evaluation");
}

static ds_status allocate(ds_engine *engine)
{
    engine->places = calloc((size_t)ds_cells_count(engine->cells) + 1, sizeof *engine->places);
    if (engine->places == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for an engine");
    }
    dsi_zero_rules(&engine->spec.zero, engine->cells, engine->places);
    DS_TRY(dsi_exec_create(engine->ctx, engine->local, engine->comm, &engine->exec));
    DS_TRY(dsi_exec_add(engine->exec, engine->train_plan, &engine->train_id));
    DS_TRY(dsi_exec_add(engine->exec, engine->eval_plan, &engine->eval_id));
    DS_TRY(dsi_exec_allocate(engine->exec));
    engine->rng[0] = ds_cells_find(engine->cells, DS_CELL_INPUT, "train/rng");
    engine->rng[1] = ds_cells_find(engine->cells, DS_CELL_INPUT, "eval/rng");
    return DS_OK;
}

ds_status dsi_engine_create(ds_ctx *ctx, const ds_engine_params *params,
                            const dsi_engine_spec *spec, ds_engine **engine_out)
{
    ds_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for an engine");
    }
    engine->ctx = ctx;
    engine->model = params->model;
    engine->spec = *spec;
    engine->spec.zero.n_ranks = ds_comm_size(params->comm);
    engine->forced_boundary = -1;
    engine->forced_lr = -1.0;
    engine->grad_norm = -1.0;
    ds_status status = DS_OK;
    if (params->comm != NULL && ds_comm_size(params->comm) > 1) { /* one of its own */
        DS_TRY_GOTO(status,
                    dsi_comm_split(params->comm, 0, ds_comm_rank(params->comm), &engine->comm),
                    failed);
    }
    DS_TRY_GOTO(status, ds_cells_create(ctx, MAX_CELLS, &engine->cells), failed);
    engine->local = engine->cells;
    if (engine->spec.zero.n_ranks > 1) {
        engine->local = NULL;
        DS_TRY_GOTO(status, ds_cells_create(ctx, MAX_CELLS, &engine->local), failed);
    }
    DS_TRY_GOTO(status, freeze(engine, params), failed);
    DS_TRY_GOTO(status, build_train_plan(engine), failed);
    DS_TRY_GOTO(status, build_eval_plan(engine), failed);
    DS_TRY_GOTO(status, agree(engine), failed);
    DS_TRY_GOTO(status, allocate(engine), failed);
    DS_TRY_GOTO(status, dsi_engine_fill(engine, params->weights, params->seed), failed);
    *engine_out = engine;
    return DS_OK;
failed:
    ds_engine_destroy(&engine);
    return status;
}

void ds_engine_destroy(ds_engine **engine_inout)
{
    ds_engine *engine = engine_inout != NULL ? *engine_inout : NULL;
    if (engine == NULL) {
        return;
    }
    dsi_exec_destroy(&engine->exec);
    dsi_comm_destroy(&engine->comm);
    dsi_plan_destroy(&engine->train_plan);
    dsi_plan_destroy(&engine->eval_plan);
    if (engine->local != engine->cells) {
        ds_cells_destroy(&engine->local);
    }
    ds_cells_destroy(&engine->cells);
    free(engine->places);
    free(engine->config_text);
    free(engine);
    *engine_inout = NULL;
}
