/* SPDX-License-Identifier: Apache-2.0 */
/* A stage of a pipeline. See engine_pipe.h. */
#include "train/engine_pipe.h"
#include "train/engine_actions.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- messages -------------------------------------------------------------------------------- */

static bool is_mine(const dsi_stage_message *m, uint32_t stage)
{
    return m->source == stage || m->target == stage;
}

/* The rank with the last stage, which has the loss. */
static uint32_t last_rank(const dsi_engine_pipe *pipe)
{
    return dsi_part_rank(&pipe->parts, pipe->n_stages, pipe->n_stages * pipe->parts.n_chunks - 1);
}

bool dsi_pipe_has_loss(const dsi_engine_pipe *pipe)
{
    return pipe->stage == last_rank(pipe);
}

/* Those of this stage. */
static ds_status open_line(const ds_engine *engine, dsi_pipe_line *line, dsi_stage_messages *all)
{
    const dsi_engine_pipe *pipe = engine->pipe;
    const size_t room = (size_t)all->n + 1;
    line->all = *all;
    *all = (dsi_stage_messages){0};
    line->messages = calloc(room, sizeof *line->messages);
    line->names = calloc(room, sizeof *line->names);
    line->texts = calloc(room, sizeof *line->texts);
    line->n_calls = pipe->n_slots;
    for (uint32_t i = 0; i < line->all.n; ++i) {
        const uint32_t buffers = line->all.items[i].buffers;
        line->n_calls = buffers > line->n_calls ? buffers : line->n_calls;
    }
    line->calls = calloc(room * line->n_calls, sizeof *line->calls);
    if (line->messages == NULL || line->names == NULL || line->texts == NULL ||
        line->calls == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for the messages of a pipeline");
    }
    for (uint32_t i = 0; i < line->all.n; ++i) {
        const dsi_stage_message *m = &line->all.items[i];
        if (is_mine(m, pipe->stage)) {
            const uint32_t n = line->n++;
            line->messages[n] = m;
            (void)snprintf(line->texts[n], sizeof line->texts[n], "%.90s",
                           ds_cells_get(engine->local, m->cell)->name);
            const bool sends = m->source == pipe->stage;
            const uint32_t there = m->buffers > 0 ? m->buffers : 1;
            line->names[n] = (dsi_program_message){line->texts[n], sends ? m->target : m->source,
                                                   sends ? there : m->places};
        }
    }
    return DS_OK;
}

static void close_line(dsi_pipe_line *line)
{
    free(line->messages);
    free(line->names);
    free(line->texts);
    free(line->calls);
    free(line->all.items);
    *line = (dsi_pipe_line){0};
}

/* The messages of a line behind phases of micro-batches, of all ranks; the others come behind them.
 */
static ds_status find_edges(const ds_engine *engine, const dsi_pipe_line *line,
                            dsi_pipe_edge **edges_out, uint32_t *n_out)
{
    const uint32_t n_micro = dsi_parts_phases(&engine->pipe->parts);
    uint32_t n = 0;
    dsi_pipe_edge *edges = calloc((size_t)line->all.n + 1, sizeof *edges);
    if (edges == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for the schedule of a pipeline");
    }
    for (uint32_t i = 0; i < line->all.n && line->all.items[i].phase < n_micro; ++i) {
        const dsi_stage_message *m = &line->all.items[i];
        edges[n++] = (dsi_pipe_edge){.source = m->source,
                                     .target = m->target,
                                     .phase = m->phase,
                                     .first = m->first,
                                     .last = m->last,
                                     .buffers = m->buffers > 0 ? m->buffers : 1,
                                     .apart = m->waiting != DS_NONE,
                                     .kept = m->places == 0,
                                     .channel = m->channel};
    }
    *edges_out = edges;
    *n_out = n;
    return DS_OK;
}

/* Whether the lists of all ranks, with these messages, come to their ends. */
static ds_status check_schedule(const ds_engine *engine)
{
    const dsi_schedule_times alike = {1.0, 1.0, 1.0};
    dsi_pipe_result result;
    dsi_pipe_edge *edges = NULL;
    uint32_t n = 0;
    DS_TRY(find_edges(engine, &engine->pipe->train, &edges, &n));
    const ds_status status =
        dsi_pipe_check(engine->ctx, &engine->pipe->schedule, edges, n, &alike, &result);
    free(edges);
    return status;
}

/* Elements of parameters on each stage, and what a schedule loses where all take as long. */
static void say(const ds_engine *engine)
{
    const dsi_engine_pipe *pipe = engine->pipe;
    const uint32_t p = pipe->n_stages;
    const uint32_t m = pipe->schedule.n_micro;
    double held[DSI_STAGES_MOST] = {0.0};
    double all = 0.0;
    dsi_buf text = dsi_buf_make(1024);
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(engine->cells, c);
        const uint32_t first = engine->places[c].at.on[DSI_AXIS_PP].dim;
        if (cell->kind == DS_CELL_PARAM) {
            held[first] += (double)ds_shape_count(cell->meta.shape);
            all += (double)ds_shape_count(cell->meta.shape);
        }
    }
    for (uint32_t s = 0; s < p; ++s) {
        dsi_buf_printf(&text, "%s%.0f", s > 0 ? ", " : "", 100.0 * held[s] / all);
    }
    ds_log(engine->ctx, DS_LOG_JOB,
           "pipeline: %u stages with %s %% of the parameters, %s, %u micro-batch%s a step; a stage "
           "idles %.0f %% of it where all take as long",
           p, dsi_buf_text(&text), dsi_schedule_name(pipe->schedule.kind), m, m == 1 ? "" : "es",
           100.0 * dsi_schedule_idle_share(&pipe->schedule));
    dsi_buf_free(&text);
}

ds_status dsi_pipe_open(ds_engine *engine, dsi_stage_messages *train, dsi_stage_messages *eval)
{
    const dsi_mesh *mesh = &engine->spec.zero.mesh;
    if (mesh->size[DSI_AXIS_PP] <= 1) {
        return DS_OK;
    }
    dsi_engine_pipe *pipe = calloc(1, sizeof *pipe);
    if (pipe == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for a stage of a pipeline");
    }
    engine->pipe = pipe;
    pipe->schedule = dsi_rank_schedule(&engine->spec);
    pipe->n_stages = mesh->size[DSI_AXIS_PP];
    pipe->stage = dsi_engine_stage(engine);
    pipe->parts = dsi_schedule_parts(&pipe->schedule);
    pipe->n_slots = engine->train_plan->n_slots;
    pipe->counts = calloc((size_t)pipe->n_slots + 1, sizeof *pipe->counts);
    if (pipe->counts == NULL) {
        return ds_fail(engine->ctx, DS_ERR_NOMEM, "no memory for a stage of a pipeline");
    }
    DS_TRY(open_line(engine, &pipe->train, train));
    DS_TRY(check_schedule(engine));
    say(engine);
    return open_line(engine, &pipe->eval, eval);
}

ds_status dsi_pipe_join(ds_engine *engine, const int64_t *axes, uint32_t n_axes)
{
    const dsi_axes pp = dsi_axes_of(1u << DSI_AXIS_PP);
    dsi_comm *comm = NULL;
    if (engine->pipe == NULL || engine->mesh == NULL) {
        return DS_OK;
    }
    const dsi_stage_messages *all = &engine->pipe->train.all;
    for (uint32_t i = 0; i < all->n && engine->pipe->past == NULL; ++i) {
        if (all->items[i].channel > 0) { /* on all ranks, whose lists are the same */
            DS_TRY(
                dsi_comm_split(engine->comm, 0, ds_comm_rank(engine->comm), &engine->pipe->past));
        }
    }
    for (uint32_t i = 0; i < n_axes; ++i) {
        const dsi_axes tuple = dsi_axes_decode(axes[i]);
        DS_TRY(dsi_mesh_comms_get(engine->mesh, &tuple, &comm));
    }
    return dsi_mesh_comms_get(engine->mesh, &pp, &engine->pipe->across);
}

void dsi_pipe_close(ds_engine *engine)
{
    if (engine->pipe != NULL) {
        close_line(&engine->pipe->train);
        close_line(&engine->pipe->eval);
        dsi_comm_destroy(&engine->pipe->past);
        free(engine->pipe->counts);
        free(engine->pipe);
        engine->pipe = NULL;
    }
}

static ds_status settle(dsi_engine_pipe *pipe, dsi_pipe_call *call)
{
    if (!call->sent) {
        return DS_OK;
    }
    call->sent = false;
    pipe->n_sent -= 1;
    return dsi_comm_wait(call->comm, call->ticket, NULL);
}

/* A buffer that is not written again in a step is waited for at its end, and communicators hold so
 * many calls only: those that are received already make room. */
static ds_status make_room(dsi_engine_pipe *pipe, const dsi_pipe_line *line)
{
    enum { MANY = 32 }; /* half of what every transport holds */
    const uint32_t n = pipe->n_sent < MANY ? 0 : line->n * line->n_calls;
    for (uint32_t i = 0; i < n; ++i) {
        dsi_pipe_call *call = &line->calls[i];
        bool received = false;
        if (call->sent && call->comm->transport->test != NULL) {
            DS_TRY(dsi_comm_test(call->comm, call->ticket, false, &received));
        }
        if (received) {
            DS_TRY(settle(pipe, call));
        }
    }
    return DS_OK;
}

/* The elements of a cell as the communicator sees them: it knows no 8-byte reals. */
static ds_dtype carried_as(ds_dtype dtype)
{
    return dtype == DS_DTYPE_F64 ? DS_DTYPE_I64 : dtype;
}

ds_status dsi_pipe_message(ds_engine *engine, const dsi_pipe_line *line, const dsi_instr *instr)
{
    const dsi_stage_message *m = line->messages[instr->message];
    dsi_pipe_call *call = &line->calls[instr->message * line->n_calls + instr->slot];
    const ds_meta meta = ds_cells_get(engine->local, m->cell)->meta;
    const bool sends = instr->kind == DSI_INSTR_SEND;
    const dsi_axes pp = dsi_axes_of(1u << DSI_AXIS_PP);
    if (instr->kind == DSI_INSTR_SENT) {
        return settle(engine->pipe, call);
    }
    const size_t bytes = ds_meta_bytes(meta);
    dsi_exec_set_slot(engine->exec, instr->slot);
    unsigned char *data = dsi_exec_host_view(engine->exec, m->cell);
    if (data == NULL) {
        return ds_fail(engine->ctx, DS_ERR_UNSUPPORTED,
                       "pipeline: the accelerator %s shares no memory with communicators; use the "
                       "accelerator cpu",
                       dsi_accel_chosen(&engine->spec.accel)->name);
    }
    if (sends && m->waiting != DS_NONE) { /* the cell is written again before this is received */
        unsigned char *room = dsi_exec_host_view(engine->exec, m->waiting);
        data = memcpy(room + instr->slot * bytes, data, bytes);
    }
    call->part =
        (dsi_comm_part){.in = data, .out = data, .count = (size_t)ds_shape_count(meta.shape)};
    call->comm = m->channel == 0 ? engine->comm : engine->pipe->past;
    const dsi_comm_call what = {.kind = sends ? DS_COMM_SEND : DS_COMM_RECV,
                                .dtype = carried_as(meta.dtype),
                                .factor = 1.0f,
                                .peer = dsi_mesh_peer(&engine->spec.zero.mesh, &pp,
                                                      ds_comm_rank(engine->comm),
                                                      line->names[instr->message].peer),
                                .parts = &call->part,
                                .n_parts = 1,
                                .what = line->texts[instr->message]};
    if (!sends) {
        return dsi_comm_run(call->comm, &what);
    }
    DS_TRY(make_room(engine->pipe, line));
    DS_TRY(dsi_comm_start(call->comm, &what, &call->ticket));
    call->sent = true;
    engine->pipe->n_sent += 1;
    return DS_OK;
}

ds_status dsi_pipe_share(ds_engine *engine, double *values, uint32_t n)
{
    enum { MOST = 4 };
    double all[DSI_STAGES_MOST * MOST];
    const dsi_engine_pipe *pipe = engine->pipe;
    DS_TRY(dsi_comm_gather(pipe->across, values, all, n * sizeof *values, "the last stage's loss"));
    for (uint32_t i = 0; i < n; ++i) {
        values[i] = all[last_rank(pipe) * n + i];
    }
    return DS_OK;
}

/* ---- what the host does ---------------------------------------------------------------------- */

/* The next micro-batch into its slot. All stages read it: they take of it what they need. */
static ds_status feed(void *user)
{
    ds_engine *engine = user;
    dsi_engine_pipe *pipe = engine->pipe;
    pipe->batch = (ds_batch){0};
    DS_TRY(pipe->next(pipe->user, &pipe->batch));
    engine->call.batch = &pipe->batch;
    dsi_exec_set_slot(engine->exec, (uint32_t)(pipe->fed % pipe->n_slots));
    DS_TRY(dsi_engine_load_batch.run(engine));
    pipe->fed += 1;
    return DS_OK;
}
static const dsi_program_action feed_action = {"next_batch", feed};

/* On the last stage: what the host reads is of the slot whose backward phase is next. */
static ds_status turn_back(void *user)
{
    ds_engine *engine = user;
    dsi_engine_pipe *pipe = engine->pipe;
    dsi_exec_set_slot(engine->exec, (uint32_t)(pipe->ended % pipe->n_slots));
    pipe->ended += 1;
    return DS_OK;
}
static const dsi_program_action turn_back_action = {"oldest_batch", turn_back};

/* On the last stage: the loss of the micro-batch, as often as it counts. */
static ds_status add_loss(void *user)
{
    ds_engine *engine = user;
    double loss = 0.0;
    DS_TRY(dsi_exec_real(engine->exec, engine->train_id, "loss", &loss));
    engine->pipe->newest = loss;
    engine->pipe->counts[(engine->pipe->ended - 1) % engine->pipe->n_slots] = engine->count;
    engine->pipe->loss += loss * (engine->spec.average == DS_AVERAGE_TARGETS ? engine->count : 1.0);
    return DS_OK;
}
static const dsi_program_action add_loss_action = {"add_loss", add_loss};

/* Gradients of weights that were put off: the loss is seeded as it was for their micro-batch, which
 * others have followed. */
static ds_status recall_count(void *user)
{
    ds_engine *engine = user;
    dsi_engine_pipe *pipe = engine->pipe;
    engine->count = pipe->counts[pipe->weighed % pipe->n_slots];
    pipe->weighed += 1;
    return DS_OK;
}
static const dsi_program_action recall_count_action = {"recall_count", recall_count};

static ds_status share_loss(void *user)
{
    ds_engine *engine = user;
    dsi_engine_pipe *pipe = engine->pipe;
    double values[3] = {pipe->loss, engine->step_targets, pipe->newest};
    if (dsi_pipe_has_loss(pipe)) {
        DS_TRY(ds_comm_sum(engine->data_comm, values, 1));
    }
    DS_TRY(dsi_pipe_share(engine, values, 3));
    pipe->loss = values[0];
    engine->step_targets = values[1];
    pipe->newest = values[2];
    dsi_exec_set_slot(engine->exec, 0);
    return DS_OK;
}
static const dsi_program_action share_loss_action = {"share_loss", share_loss};

static ds_status begin_batch(void *user)
{
    ds_engine *engine = user;
    engine->pipe->fed = engine->pipe->ended = engine->pipe->weighed = 0;
    engine->pipe->loss = engine->step_targets = 0.0;
    return DS_OK;
}
static const dsi_program_action begin_batch_action = {"begin_batch", begin_batch};

/* ---- programs -------------------------------------------------------------------------------- */

static uint32_t place_of(const ds_engine *engine, const dsi_pipe_line *line, uint32_t message,
                         uint32_t micro)
{
    const uint32_t buffers = line->names[message].buffers;
    return micro % (buffers > 0 ? buffers : engine->pipe->n_slots);
}

/* Of a message of all ranks: which one it is of this rank's. */
static uint32_t own_of(const dsi_pipe_line *line, uint32_t message)
{
    uint32_t i = 0;
    while (line->messages[i] != &line->all.items[message]) {
        ++i;
    }
    return i;
}

/* first: no backward phase was run before. */
static void add_run(const ds_engine *engine, dsi_program *p, const dsi_pipe_op *op, bool first)
{
    const dsi_engine_pipe *pipe = engine->pipe;
    const uint32_t v = pipe->parts.n_chunks;
    const uint32_t slot = op->micro % pipe->n_slots;
    const bool last = dsi_pipe_has_loss(pipe) && op->what == v; /* behind the loss */
    const bool put_off = dsi_pipe_has_loss(pipe) && pipe->parts.split &&
                         op->what == dsi_part_end(&pipe->parts, v - 1);
    const bool ends = op->what + 1 == dsi_parts_phases(&pipe->parts);
    if (op->what == 0) {
        dsi_program_do(p, &feed_action);
    }
    if (op->what < v) {
        dsi_program_run(p, DSI_PLAN_TRAIN, op->what, slot);
        return;
    }
    if (last) {
        dsi_program_do(p, &turn_back_action);
    }
    const dsi_engine_backward how = {.phase = op->what,
                                     .slot = slot,
                                     .of_loss = last,
                                     .may_be_first = first,
                                     .ends = ends,
                                     .more = last      ? &add_loss_action
                                             : put_off ? &recall_count_action
                                                       : NULL};
    dsi_engine_add_backward(engine, p, &how);
}

static void add_message(const ds_engine *engine, const dsi_pipe_line *line, dsi_program *p,
                        const dsi_pipe_op *op)
{
    const uint32_t message = own_of(line, op->what);
    const uint32_t place = place_of(engine, line, message, op->micro);
    if (op->kind == DSI_PIPE_RECEIVE) {
        dsi_program_receive(p, message, place);
    } else if (op->kind == DSI_PIPE_SEND) {
        dsi_program_send(p, message, place);
    } else {
        dsi_program_sent(p, message, place);
    }
}

static ds_status make_list(const ds_engine *engine, const dsi_pipe_line *line,
                           const dsi_schedule *schedule, dsi_pipe_list *list_out)
{
    dsi_pipe_edge *edges = NULL;
    uint32_t n = 0;
    DS_TRY(find_edges(engine, line, &edges, &n));
    const ds_status status =
        dsi_pipe_list_make(engine->ctx, schedule, edges, n, engine->pipe->stage, list_out);
    free(edges);
    return status;
}

ds_status dsi_pipe_add_batch(const ds_engine *engine, dsi_program *p)
{
    const dsi_engine_pipe *pipe = engine->pipe;
    dsi_pipe_list list = {0};
    bool first = true;
    DS_TRY(make_list(engine, &pipe->train, &pipe->schedule, &list));
    dsi_program_do(p, &begin_batch_action);
    for (uint32_t i = 0; i < list.n; ++i) {
        const dsi_pipe_op *op = &list.items[i];
        if (op->kind == DSI_PIPE_RUN) {
            add_run(engine, p, op, first);
            first = first && op->what < pipe->parts.n_chunks;
        } else {
            add_message(engine, &pipe->train, p, op);
        }
    }
    free(list.items);
    dsi_program_do(p, &share_loss_action);
    return DS_OK;
}

/* One micro-batch through all forward phases. */
ds_status dsi_pipe_add_evaluation(const ds_engine *engine, dsi_program *p)
{
    const dsi_engine_pipe *pipe = engine->pipe;
    const dsi_schedule once = {DSI_SCHEDULE_GPIPE, pipe->n_stages, 1, pipe->parts.n_chunks};
    dsi_pipe_list list = {0};
    DS_TRY(make_list(engine, &pipe->eval, &once, &list));
    for (uint32_t i = 0; i < list.n; ++i) {
        const dsi_pipe_op *op = &list.items[i];
        if (op->kind != DSI_PIPE_RUN) {
            add_message(engine, &pipe->eval, p, op);
        } else if (op->what < pipe->parts.n_chunks) {
            dsi_program_run(p, DSI_PLAN_EVAL, op->what, 0);
        }
    }
    free(list.items);
    return DS_OK;
}

/* The messages behind a phase, all at once. kind: sends and their ends, or receives. */
static void add_messages(const ds_engine *engine, const dsi_pipe_line *line, dsi_program *p,
                         dsi_instr_kind kind, ds_phase phase)
{
    for (uint32_t i = 0; i < line->n; ++i) {
        const dsi_stage_message *m = line->messages[i];
        const bool sends = m->source == engine->pipe->stage;
        if (kind == DSI_INSTR_RECEIVE && !sends && m->first == phase) {
            dsi_program_receive(p, i, 0);
        } else if (kind == DSI_INSTR_SEND && sends && m->phase == phase) {
            dsi_program_send(p, i, 0);
        } else if (kind == DSI_INSTR_SENT && sends && m->phase == phase) {
            dsi_program_sent(p, i, 0);
        }
    }
}

void dsi_pipe_add_copies(const ds_engine *engine, dsi_program *p)
{
    const dsi_pipe_line *line = &engine->pipe->train;
    const ds_phase phase = engine->own.phases.update;
    add_messages(engine, line, p, DSI_INSTR_SEND, phase);
    add_messages(engine, line, p, DSI_INSTR_RECEIVE, phase);
    add_messages(engine, line, p, DSI_INSTR_SENT, phase);
}
