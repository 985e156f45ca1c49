/* SPDX-License-Identifier: Apache-2.0 */
/* What must be the same on all ranks before the first step (LAW 5). Called by engine_create.c.
 *
 * Ranks compare, first difference first: the program, the model's constants, the numbers that no
 * plan shows, the model as it is traced (which says all of a custom model too), the plans.
 */
#include "accel/cpu/cpu_features.h"
#include "base/buf.h"
#include "base/build_id.h"
#include "comm/same_text.h"
#include "model/adapter.h"
#include "op/isa.h"
#include "train/engine_pipe.h"

#include <stdlib.h>
#include <string.h>

enum { FACTS_BYTES = 1 << 20, CELLS = 1 << 22 };

static const char remedy[] =
    "configuration, model, program, processor and threads must be the same "
    "on all ranks";

static void put_numbers(const dsi_engine_spec *s, dsi_buf *text)
{
    const dsi_zenflow_spec *z = &s->train.zenflow;
    dsi_mesh_text(&s->zero.mesh, text);
    dsi_buf_putc(text, '\n');
    dsi_buf_printf(text, "seed: %llu\nlr: %.17g\nbeta1: %.17g\nbeta2: %.17g\n",
                   (unsigned long long)s->seed, s->lr, s->beta1, s->beta2);
    dsi_buf_printf(text, "weight_decay: %.17g\neps: %.17g\nloss scale: %.17g\nstage: %u\n",
                   s->weight_decay, s->train.eps, s->loss_scale.scale, s->zero.stage);
    dsi_buf_printf(text, "decay_all: %d\naverage: %d\naccumulation: %lld\nclipping: %.17g\n",
                   s->decay_all, (int)s->average, (long long)s->train.accumulation,
                   s->train.max_norm);
    dsi_buf_printf(text, "dampening: %.17g\nmax_coeff: %.17g\nmin_coeff: %.17g\n",
                   s->train.dampening, s->train.max_coeff, s->train.min_coeff);
    dsi_buf_printf(text, "saves behind training: %d\nhost bytes of saves: %zu\n", s->save_behind,
                   s->save_host_bytes);
    dsi_buf_printf(text, "zenflow: %d %d %d %.17g %lld %lld %lld\n", z->on, z->weighs, z->overlap,
                   z->auto_ratio, (long long)z->update_every, (long long)z->select_every,
                   (long long)z->warm_up);
    const ds_config_compression *c = s->train.compression;
    for (uint32_t i = 0; c != NULL && i < c->n_groups; ++i) {
        const ds_compress_group *g = &c->groups[i];
        dsi_buf_printf(text, "compression %s.%s: %lld %d %d %.17g %lld %lld %lld %lld\n",
                       dsi_compress_technique_name(g->technique), g->name, (long long)g->offset,
                       g->in_forward, g->mixed, g->change_ratio, (long long)g->start_bits,
                       (long long)g->target_bits, (long long)g->period, (long long)g->bits);
    }
}

static void put_beside(const char *what, ds_adapter *const *beside, uint32_t n, dsi_buf *text)
{
    for (uint32_t i = 0; i < n; ++i) {
        const char *name = beside[i]->name;
        char *line = NULL;
        (void)ds_adapter_print(beside[i], &line);
        dsi_buf_printf(text, "%s adapter %s: %s\n", what, name != NULL ? name : "",
                       line != NULL ? line : "");
        free(line);
    }
}

static ds_status same_facts(const ds_engine *engine)
{
    char build[80];
    char *model = NULL;
    dsi_buf text = dsi_buf_make(FACTS_BYTES);
    DS_TRY(ds_model_print(engine->model, &model));
    dsi_build_id(build, sizeof build);
    dsi_buf_printf(&text, "program: %s\n", build);
    dsi_buf_printf(&text, "threads (--threads, DS_THREADS): %u\n", ds_ctx_n_threads(engine->ctx));
    dsi_buf_printf(&text, "kernels (processor, DS_CPU_ISA): %s\n",
                   dsi_isa_print(dsi_accel_isa(&engine->spec.accel)).text);
    dsi_buf_printf(&text, "accelerator (--accelerator): %s:%s\n",
                   dsi_accel_chosen(&engine->spec.accel)->name, engine->spec.accel.options);
    if (dsi_run_device_matters(&engine->spec)) {
        dsi_buf_printf(&text, "device (offload_optimizer.ratio places states without it): %s\n",
                       engine->placed.name);
    }
    dsi_buf_puts(&text, model);
    put_numbers(&engine->spec, &text);
    free(model);
    const ds_adapter *a = engine->spec.train.adapter;
    if (a != NULL) {
        char *adapter = NULL;
        (void)ds_adapter_print(a, &adapter);
        dsi_buf_printf(&text, "adapter %s: %s\n", a->name != NULL ? a->name : "",
                       adapter != NULL ? adapter : "");
        free(adapter);
        put_beside("frozen", a->frozen, a->n_frozen, &text);
        put_beside("further", a->others, a->n_others, &text);
    }
    const ds_status status = text.failed
                                 ? ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory to compare ranks")
                                 : dsi_same_text(engine->ctx, engine->comm, dsi_buf_text(&text),
                                                 "model or configuration", remedy);
    dsi_buf_free(&text);
    return status;
}

/* The forward pass of a batch, as text. */
static ds_status print_model(const ds_engine *engine, char **text_out)
{
    const dsi_train_spec *t = &engine->spec.train;
    const ds_trace how = dsi_train_trace(t, DS_TRACE_TRAIN);
    ds_cells *cells = NULL;
    ds_graph *graph = NULL;
    DS_TRY(ds_cells_create(engine->ctx, CELLS, &cells));
    ds_status status = dsi_forward_graph(engine->model, &how, t->loss, t->loss_user, cells, &graph);
    if (status >= 0) {
        status = ds_graph_print(graph, text_out);
    }
    ds_graph_destroy(&graph);
    ds_cells_destroy(&cells);
    return status;
}

static ds_status same_model(const ds_engine *engine)
{
    char *text = NULL;
    DS_TRY(print_model(engine, &text));
    const ds_status status = dsi_same_text(engine->ctx, engine->comm, text, "model", remedy);
    free(text);
    return status;
}

static ds_status same_plan(const ds_engine *engine, const dsi_plan *plan)
{
    char *text = NULL;
    dsi_comm *comm = engine->comm;
    if (engine->pipe != NULL) { /* stages have plans of their own */
        const dsi_axes axes = dsi_axes_of(((1u << DSI_AXIS_COUNT) - 1) & ~(1u << DSI_AXIS_PP));
        DS_TRY(dsi_mesh_comms_get(engine->mesh, &axes, &comm));
    }
    DS_TRY(dsi_plan_print(plan, &text));
    const ds_status status = dsi_same_text(engine->ctx, comm, text, "plan", remedy);
    free(text);
    return status;
}

ds_status dsi_engine_agree(const ds_engine *engine)
{
    if (engine->comm == NULL) {
        return DS_OK;
    }
    DS_TRY(same_facts(engine));
    DS_TRY(same_model(engine));
    DS_TRY(same_plan(engine, engine->train_plan));
    return same_plan(engine, engine->eval_plan);
}
