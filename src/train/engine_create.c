/* SPDX-License-Identifier: Apache-2.0 */
/* Builds an engine: graphs, plans, memory, weights. */
#include "accel/cpu/cpu_features.h"
#include "comm/comm_log.h"
#include "compile/offload_disks.h"
#include "compile/rank_plan.h"
#include "compile/state_place.h"
#include "model/adapter.h"
#include "train/engine_pipe.h"
#include "train/memory_report.h"
#include "train/same_files.h"

#include <deepspeed/profile.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_status check_limit(const ds_engine *engine, const dsi_rank_plan *made)
{
    const double mib = 1048576.0;
    const size_t limit = engine->spec.device_memory;
    const size_t bytes = dsi_rank_mapped_bytes(made);
    if (limit == 0 || bytes <= limit) {
        return DS_OK;
    }
    const size_t arenas = made->train_plan->arena_bytes + made->train_plan->shared_bytes;
    return ds_fail(
        engine->ctx, DS_ERR_LIMIT,
        "device_memory: the plan needs %.1f MiB, %.1f of them for activations and "
        "workspace; the limit is %.1f MiB; take a smaller micro-batch, "
        "activation_checkpointing.recompute full, offload_optimizer and offload_param, or a "
        "higher ZeRO stage on more ranks; ds_plan says what each would save",
        (double)bytes / mib, (double)arenas / mib, (double)limit / mib);
}

static void say_accelerator(const ds_engine *engine)
{
    char text[DSI_ACCEL_TEXT];
    dsi_accel_say(&engine->spec.accel, text);
    ds_log(engine->ctx, DS_LOG_JOB, "accelerator: %s", text);
}

/* What the policy chose, where the configuration left it a choice or has to know. */
static void say_memory(const ds_engine *engine, const dsi_rank_plan *made)
{
    char text[DSI_MEMORY_CHOICE_BYTES];
    dsi_memory_choice_text(&made->choice, made->n_kept, text);
    if (engine->spec.device_memory > 0 && text[0] != '\0') {
        ds_log(engine->ctx, DS_LOG_JOB, "device_memory: %s", text);
    }
}

/* Where super_offload's states are, if that was left to the cost model. */
static void say_states(const ds_engine *engine, const dsi_state_place *place)
{
    char device[DSI_RUN_DEVICE_TEXT];
    char text[DSI_STATE_PLACE_BYTES];
    if (!dsi_run_device_matters(&engine->spec)) {
        return;
    }
    dsi_run_device_text(&engine->placed, &engine->spec, device);
    dsi_state_place_text(place, text);
    if (place->on) {
        ds_log(engine->ctx, DS_LOG_JOB, "%s (device: %s)", text, device);
    } else {
        ds_log(engine->ctx, DS_LOG_JOB,
               "super_offload: all optimizer states are in host memory (but of what "
               "param_persistence_threshold keeps): nothing is known of the device (%s); "
               "ds_plan --device says which offload_optimizer.ratio is the fastest",
               device);
    }
}

/* Takes over what dsi_rank_plan_build made. */
static ds_status plan(ds_engine *engine, const ds_engine_params *params)
{
    dsi_rank_request request = {.model = params->model,
                                .spec = &engine->spec,
                                .frozen = params->frozen,
                                .n_frozen = params->n_frozen,
                                .n_threads = ds_ctx_n_threads(engine->ctx),
                                .stage = dsi_engine_stage(engine)};
    dsi_rank_plan made;
    say_accelerator(engine);
    if (dsi_run_device_matters(&engine->spec)) {
        DS_TRY(dsi_run_device_find(engine->ctx, &engine->spec, &engine->placed));
        request.device = dsi_run_device_profile(&engine->placed);
        request.n_local = engine->placed.n_local;
    }
    DS_TRY(dsi_rank_plan_build(engine->ctx, &request, &made));
    engine->spec.train.tensor = NULL; /* of the configuration, which may go */
    engine->cells = made.cells;
    engine->local = made.local;
    engine->places = made.places;
    engine->residencies = made.residencies;
    engine->own = made.own;
    engine->train_plan = made.train_plan;
    engine->eval_plan = made.eval_plan;
    engine->spec.recompute.mode = made.choice.recompute;
    DS_TRY(dsi_pipe_open(engine, &made.train_messages, &made.eval_messages));
    DS_TRY(dsi_pipe_join(engine, made.axes, made.n_axes));
    say_memory(engine, &made);
    DS_TRY(dsi_engine_say_tensor(engine));
    dsi_engine_say_experts(engine);
    for (int s = 0; s < DSI_OFFLOAD_SECTIONS; ++s) {
        if (made.idle[s][0] != '\0') {
            ds_log(engine->ctx, DS_LOG_JOB, "%s", made.idle[s]);
        }
    }
    say_states(engine, &made.place);
    return check_limit(engine, &made);
}

static void say_offloaded(const ds_engine *engine, const dsi_offload_disks *disks)
{
    for (int c = 0; c < DSI_SWAP_CONTENTS; ++c) {
        const size_t bytes = dsi_exec_disk_bytes_of(engine->exec, (dsi_swap_content)c);
        if (bytes > 0) {
            ds_log(engine->ctx, DS_LOG_JOB, "%s: %.0f MiB on disk in %s",
                   dsi_swap_content_name((dsi_swap_content)c), (double)bytes / 1048576.0,
                   disks->of[c].text);
        }
    }
    ds_log(engine->ctx, DS_LOG_JOB, "offloaded: %.0f MiB to disk, %.0f MiB to host memory",
           (double)ds_engine_disk_bytes(engine) / 1048576.0,
           (double)ds_engine_host_bytes(engine) / 1048576.0);
}

/* What a step is launched as. */
static void say_captured(const ds_engine *engine)
{
    enum { MOST = 4096 };
    dsi_buf text = dsi_buf_make(MOST);
    dsi_exec_captured_text(engine->exec, engine->train_id, &text);
    if (text.size > 0 && dsi_engine_judges_between(engine)) {
        dsi_buf_puts(&text, "; update is launched when the host has seen the norm, which decides "
                            "whether gradients are applied");
    }
    if (!text.failed && text.size > 0) {
        ds_log(engine->ctx, DS_LOG_JOB, "graphs: %s", dsi_buf_text(&text));
    }
    dsi_buf_free(&text);
}

/* Memory for cells and arenas, storage for the cells that live elsewhere. */
static ds_status allocate_memory(ds_engine *engine)
{
    dsi_offload_disks disks;
    dsi_swap_params swap;
    dsi_offload_swap_params(&engine->spec.offload, &disks, &swap);
    dsi_exec_set_residencies(engine->exec, engine->residencies.items, engine->residencies.n, &swap);
    DS_TRY(dsi_exec_allocate(engine->exec));
    say_captured(engine);
    if (engine->residencies.n > 0) {
        say_offloaded(engine, &disks);
    }
    return DS_OK;
}

/* As DeepSpeed shares them out: the steps keep the whole part of the rest. */
static uint32_t host_threads(const ds_engine *engine)
{
    const uint32_t all = ds_ctx_n_threads(engine->ctx);
    const uint32_t kept = (uint32_t)((1.0 - engine->spec.host_cores) * (double)all);
    return kept < all ? all - kept : 1;
}

static ds_status allocate(ds_engine *engine)
{
    DS_TRY(dsi_exec_create(engine->ctx, engine->local, engine->comm, &engine->exec));
    DS_TRY(dsi_exec_set_accel(engine->exec, &engine->spec.accel));
    dsi_exec_set_mesh(engine->exec, engine->mesh);
    DS_TRY(dsi_exec_add(engine->exec, engine->train_plan, &engine->train_id));
    DS_TRY(dsi_exec_add(engine->exec, engine->eval_plan, &engine->eval_id));
    DS_TRY(dsi_engine_make_programs(engine));
    DS_TRY(dsi_engine_join_phases(engine));
    DS_TRY(dsi_zenflow_open(engine));
    dsi_exec_set_host_threads(engine->exec, host_threads(engine));
    DS_TRY(dsi_engine_open_compression(engine));
    DS_TRY(allocate_memory(engine));
    DS_TRY(dsi_engine_open_flops(engine));
    engine->rng[0] = ds_cells_find(engine->cells, DS_CELL_INPUT, "train/rng");
    engine->rng[1] = ds_cells_find(engine->cells, DS_CELL_INPUT, "eval/rng");
    return DS_OK;
}

static double patience_of(const ds_comm *comm)
{
    enum { DEFAULT_TIMEOUT = 300 };
    return 0.9 * (comm != NULL && comm->timeout > 0.0 ? comm->timeout : DEFAULT_TIMEOUT);
}

/* A communicator of its own, so that the program may use the given one as it likes. One log times
 * both. */
static ds_status join(ds_engine *engine, ds_comm *comm)
{
    const dsi_engine_spec *s = &engine->spec;
    if (comm == NULL) {
        return DS_OK;
    }
    if (s->log_comm) {
        DS_TRY(ds_comm_log_start(comm, &s->comm_log));
    }
    if (comm->size > 1) {
        DS_TRY(dsi_comm_split(comm, 0, comm->rank, &engine->comm));
        if (s->log_comm) {
            dsi_comm_log_share(comm, engine->comm);
        }
        engine->mesh = calloc(1, sizeof *engine->mesh);
        if (engine->mesh == NULL) {
            return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for an engine");
        }
        const dsi_axes data = dsi_axes_data();
        DS_TRY(dsi_mesh_comms_make(engine->ctx, engine->comm, &s->zero.mesh, engine->mesh));
        dsi_comm_set_names(comm, &engine->mesh->names.head, 0, 1);
        engine->given = comm;
        DS_TRY(dsi_mesh_comms_get(engine->mesh, &data, &engine->data_comm));
    }
    return DS_OK;
}

static ds_status begin(ds_ctx *ctx, const ds_engine_params *params, const dsi_engine_spec *spec,
                       uint32_t n_ranks, ds_engine **engine_out)
{
    ds_engine *engine = calloc(1, sizeof *engine);
    if (engine == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for an engine");
    }
    engine->ctx = ctx;
    engine->model = params->model;
    engine->spec = *spec;
    dsi_accel_for_ranks(&engine->spec.accel, n_ranks);
    engine->forced_boundary = -1;
    engine->forced_lr = -1.0;
    engine->grad_norm = -1.0;
    ds_status status = dsi_zero_set_ranks(ctx, &engine->spec.zero, n_ranks);
    status = status >= 0 ? dsi_engine_copy_compression(engine) : status;
    if (status < 0) {
        ds_engine_destroy(&engine);
        return status;
    }
    *engine_out = engine;
    return DS_OK;
}

ds_status dsi_engine_check(ds_ctx *ctx, const ds_engine_params *params, uint32_t n_ranks)
{
    dsi_engine_spec spec;
    ds_engine *engine = NULL;
    DS_TRY(dsi_cpu_isa_check(ctx));
    DS_TRY(dsi_engine_read_config(ctx, params, &spec));
    DS_TRY(begin(ctx, params, &spec, n_ranks, &engine));
    ds_status status = dsi_engine_find_room(engine, params);
    status = status < 0 ? status : plan(engine, params);
    status = status < 0 ? status : dsi_engine_check_average(engine);
    ds_engine_destroy(&engine);
    return status;
}

ds_status dsi_engine_create(ds_ctx *ctx, const ds_engine_params *params,
                            const dsi_engine_spec *spec, ds_engine **engine_out)
{
    ds_engine *engine = NULL;
    DS_TRY(begin(ctx, params, spec, ds_comm_size(params->comm), &engine));
    if (spec->offload.patience <= 0.0) {
        engine->spec.offload.patience = patience_of(params->comm);
    }
    ds_status status = DS_OK;
    DS_TRY_GOTO(status, join(engine, params->comm), failed);
    DS_TRY_GOTO(status, dsi_engine_find_room(engine, params), failed);
    DS_TRY_GOTO(status, plan(engine, params), failed);
    DS_TRY_GOTO(status, dsi_engine_check_average(engine), failed);
    DS_TRY_GOTO(status, dsi_engine_agree(engine), failed);
    DS_TRY_GOTO(status, dsi_same_folder(ctx, engine->comm, params->weights, "model folder"),
                failed);
    DS_TRY_GOTO(
        status,
        dsi_same_folder(ctx, engine->comm, spec->train.distillation.weights, "teacher's folder"),
        failed);
    DS_TRY_GOTO(
        status,
        dsi_same_folder(ctx, engine->comm, dsi_adapter_folder(params->adapter), "adapter's folder"),
        failed);
    for (uint32_t i = 0; params->adapter != NULL && i < params->adapter->n_frozen; ++i) {
        DS_TRY_GOTO(status,
                    dsi_same_folder(ctx, engine->comm, params->adapter->frozen[i]->folder,
                                    "frozen adapter's folder"),
                    failed);
    }
    for (uint32_t i = 0; params->adapter != NULL && i < params->adapter->n_others; ++i) {
        DS_TRY_GOTO(status,
                    dsi_same_folder(ctx, engine->comm, params->adapter->others[i]->folder,
                                    "adapter's folder"),
                    failed);
    }
    if (engine->spec.memory_breakdown) {
        DS_TRY_GOTO(status, dsi_engine_view_memory(engine), failed);
        dsi_engine_see_memory(engine, "DeepSpeed Engine: Before configure distributed model");
    }
    DS_TRY_GOTO(status, allocate(engine), failed);
    DS_TRY_GOTO(status, dsi_zenflow_begin(engine), failed);
    dsi_onebit_begin(engine);
    dsi_zenflow_say(engine);
    DS_TRY_GOTO(status, dsi_engine_open_saver(engine), failed);
    DS_TRY_GOTO(status, dsi_engine_fill(engine, params->weights, params->seed), failed);
    DS_TRY_GOTO(status, dsi_engine_begin_lengths(engine), failed);
    DS_TRY_GOTO(status, dsi_engine_begin_pissa(engine), failed);
    DS_TRY_GOTO(status, dsi_engine_load_adapter(engine), failed);
    DS_TRY_GOTO(status, dsi_engine_make_masks(engine), failed);
    dsi_engine_see_memory(engine, "DeepSpeed Engine: After configure distributed model");
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
    ds_checkpoint_saver_destroy(&engine->saver);
    dsi_folder_lock_release(&engine->save_lock);
    free(engine->save_dir);
    ds_engine_trace_drop(engine);
    dsi_exec_destroy(&engine->exec);
    if (engine->given != NULL && engine->given->names == &engine->mesh->names.head) {
        dsi_comm_set_names(engine->given, NULL, 0, 1);
    }
    if (engine->mesh != NULL) {
        dsi_mesh_comms_destroy(engine->mesh);
        free(engine->mesh);
    }
    dsi_pipe_close(engine);
    dsi_comm_destroy(&engine->comm);
    dsi_program_free(&engine->training);
    dsi_program_free(&engine->evaluation);
    dsi_plan_destroy(&engine->train_plan);
    dsi_plan_destroy(&engine->eval_plan);
    if (engine->local != engine->cells) {
        ds_cells_destroy(&engine->local);
    }
    ds_cells_destroy(&engine->cells);
    free(engine->late_pairs);
    free(engine->places);
    dsi_engine_end_pissa(engine);
    free(engine->residencies.items);
    free(engine->step_seconds);
    free(engine->memory);
    free(engine->config_text);
    free(engine->embeddings);
    free(engine->compression);
    free(engine->compress);
    free(engine);
    *engine_inout = NULL;
}
