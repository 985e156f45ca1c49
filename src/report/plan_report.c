/* SPDX-License-Identifier: Apache-2.0 */
/* Counts what a plan costs. See plan_report.h. */
#include "report/plan_report.h"

#include "base/clock.h"
#include "compile/rank_time.h"
#include "compile/run_device.h"
#include "op/ops.h"
#include "report/plan_stages.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static uint32_t ranks_of_node(const dsi_report_request *request)
{
    const uint32_t n_nodes = request->n_nodes > 0 ? request->n_nodes : 1;
    return (request->n_ranks + n_nodes - 1) / n_nodes;
}

bool dsi_report_is_warm_up(const dsi_plan_report *report, ds_phase phase)
{
    return dsi_rank_is_warm_up(&report->plan.own.phases, phase);
}

const char *dsi_report_phase(const dsi_plan_report *report, ds_phase phase)
{
    return report->plan.train_plan->phases.items[phase].name;
}

/* Of a phase: how often an optimizer step runs it. */
static double report_runs(const dsi_plan_report *report, ds_phase phase)
{
    return dsi_phase_is_micro(&report->plan.train_plan->phases, phase)
               ? (double)report->spec.train.accumulation
               : dsi_rank_phase_share(&report->spec.train, &report->plan.own.phases, phase);
}

size_t dsi_report_need(const dsi_plan_report *report)
{
    const bool apart = report->request.device != NULL && !report->request.device->shared;
    return report->total[DSI_RESIDENCY_DEVICE] + (apart ? 0 : report->total[DSI_RESIDENCY_HOST]);
}

/* What the ranks of a node put into a host's memory that is apart from the device's. */
static size_t host_need(const dsi_plan_report *r)
{
    return ranks_of_node(&r->request) * r->total[DSI_RESIDENCY_HOST];
}

bool dsi_report_lacks(const dsi_plan_report *report, dsi_shortage *shortage_out)
{
    const dsi_device *device = report->request.device;
    const bool apart = device != NULL && !device->shared;
    const dsi_shortage all[] = {
        {dsi_report_need(report), report->request.memory, report->request.memory_of},
        {dsi_rank_mapped_bytes(&report->plan), report->spec.device_memory,
         "device_memory, for model states, activations and workspace"},
        {host_need(report), apart ? (size_t)device->host_memory_bytes : 0,
         "the memory of its host, for all ranks there"}};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; ++i) {
        if (all[i].have > 0 && all[i].need > all[i].have) {
            if (shortage_out != NULL) {
                *shortage_out = all[i];
            }
            return true;
        }
    }
    return false;
}

static void count_parameters(dsi_plan_report *r)
{
    for (ds_cell c = 0; c < ds_cells_count(r->plan.cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(r->plan.cells, c);
        const uint64_t n = (uint64_t)ds_shape_count(ds_cell_unpacked(cell, DS_DTYPE_F32).shape);
        if (cell->kind == DS_CELL_PARAM) {
            r->n_parameters += n;
            r->n_trainable += cell->frozen ? 0 : n;
        }
    }
}

/* Parameters that one token meets: of experts, which stand side by side in one parameter (E,..),
 * the K that it goes to. */
static void count_active(dsi_plan_report *r)
{
    const dsi_plan *plan = r->plan.train_plan;
    uint64_t idle = 0;
    int64_t n_experts = 0;
    int64_t n_chosen = 0;
    for (uint32_t s = 0; s < plan->n_steps && n_experts == 0; ++s) {
        const dsi_step *step = &plan->steps[s];
        if (step->op == &dsi_op_route) {
            n_chosen = ((const dsi_route_attrs *)step->attrs)->n_chosen;
            n_experts = ds_shape_last(plan->metas[step->in_at].shape);
        }
    }
    for (ds_cell c = 0; c < ds_cells_count(r->plan.cells) && n_experts > 0; ++c) {
        const ds_cell_info *cell = ds_cells_get(r->plan.cells, c);
        const ds_shape shape = cell->meta.shape;
        if (cell->kind == DS_CELL_PARAM && shape.n_dims == 3 && shape.dims[0] == n_experts) {
            idle += (uint64_t)(ds_shape_count(shape) / n_experts * (n_experts - n_chosen));
        }
    }
    r->n_active = r->n_parameters - idle;
}

static ds_status count_memory(dsi_plan_report *r)
{
    size_t most = 0;
    const bool apart = r->request.device != NULL && !r->request.device->shared;
    DS_TRY(dsi_rank_ledger(&r->plan, r->request.n_ranks, apart, &r->ledger));
    DS_TRY(dsi_ledger_peak(r->ledger, DSI_RESIDENCY_DEVICE, &r->peak_step, &most));
    for (int where = 0; where < DSI_RESIDENCY_COUNT; ++where) {
        dsi_ledger_at(r->ledger, (dsi_residency)where, r->peak_step, r->peak[where]);
        for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
            r->total[where] += r->peak[where][k];
        }
    }
    r->n_largest = dsi_ledger_largest(r->ledger, DSI_RESIDENCY_DEVICE, r->peak_step, r->largest,
                                      DSI_REPORT_LARGEST);
    return DS_OK;
}

/* Bytes of the whole tensors of a collective, and what a rank must send of them: everybody needs
 * what the other N-1 have; an all-reduce is a reduction and a gathering. */
static void measure(const dsi_plan *plan, const dsi_step *step, double *carried, double *sent)
{
    const uint32_t n_in = step->n_in / step->n_parts;
    const double n = (double)((const dsi_comm_attrs *)step->attrs)->n_ranks;
    /* of rows that go back a rank gets its own; those that it sends have the room for the worst */
    const bool gathers =
        dsi_op_collective(step->op) == DS_COMM_ALL_GATHER || step->op->role == DS_ROLE_RETURN_ROWS;
    for (uint32_t i = 0; i < step->n_parts; ++i) {
        const ds_meta in = plan->metas[step->in_at + i * n_in + n_in - 1];
        const ds_meta out = plan->metas[step->out_at + i];
        *carried += (double)ds_meta_bytes(gathers ? out : in);
    }
    *sent = *carried * (n - 1.0) / n * (step->op->role == DS_ROLE_ALL_REDUCE ? 2.0 : 1.0);
    *sent = step->op->role == DS_ROLE_SHIFT ? *carried : *sent; /* all to the next rank */
}

static void count_collective(dsi_plan_report *r, const dsi_step *step)
{
    double carried = 0.0;
    double sent = 0.0;
    uint32_t i = 0;
    const int64_t axes = ((const dsi_comm_attrs *)step->attrs)->axes;
    while (i < r->n_comm && (r->comm[i].op != step->op->name || r->comm[i].phase != step->phase ||
                             r->comm[i].axes != axes)) {
        ++i;
    }
    if (i == DSI_REPORT_MOST_COLLECTIVES) {
        return; /* five collectives, ten phases, six sets of axes */
    }
    dsi_report_comm *row = &r->comm[i];
    if (i == r->n_comm) {
        *row = (dsi_report_comm){.op = step->op->name, .axes = axes, .phase = step->phase};
        r->n_comm += 1;
    }
    const double runs = dsi_report_is_warm_up(r, step->phase) ? 1.0 : report_runs(r, step->phase);
    measure(r->plan.train_plan, step, &carried, &sent);
    row->calls += (uint64_t)ceil(runs);
    row->carried += runs * carried;
    row->sent += runs * sent;
}

double dsi_step_model_flops(const dsi_plan *plan, const dsi_step *step)
{
    const ds_kernel_sig sig = {.op = step->op,
                               .attrs = step->attrs,
                               .n_in = step->n_in,
                               .n_out = step->n_out,
                               .in = plan->metas + step->in_at,
                               .out = plan->metas + step->out_at};
    if (step->recomputed || step->cost.flops <= 0.0 ||
        !dsi_phase_is_micro(&plan->phases, step->phase)) {
        return 0.0;
    }
    const dsi_work work = dsi_work_of(&sig, &step->cost);
    return dsi_op_class_is_model(work.op_class) ? step->cost.flops - step->cost.again : 0.0;
}

static void count_steps(dsi_plan_report *r)
{
    const dsi_plan *plan = r->plan.train_plan;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        const dsi_step *step = &plan->steps[s];
        const double runs = report_runs(r, step->phase);
        r->hardware_flops += runs * step->cost.flops;
        r->model_flops += runs * dsi_step_model_flops(plan, step);
        if (step->op->op_class == DS_CLASS_COMM && step->kind != DSI_STEP_WAIT) {
            count_collective(r, step);
        }
    }
}

static ds_status simulate(dsi_plan_report *r)
{
    const double flops = r->model_flops / (double)r->spec.train.accumulation;
    return dsi_rank_simulate(&r->plan, &r->spec, &r->device, ranks_of_node(&r->request), flops,
                             &r->sim_steps, &r->timeline);
}

static bool is_elsewhere(const dsi_report_request *request)
{
    return request->device != NULL && !request->device->shared;
}

/* Kernels of a device of elsewhere are those of the null accelerator, without workspace, unless an
 * accelerator is named: that needs no device here. The null accelerator has no memory: whether that
 * is the host's, the profile says. */
static ds_status read_config(ds_ctx *ctx, const ds_engine_params *params, dsi_plan_report *r)
{
    const char *asked = params->accelerator;
    ds_engine_params own = *params;
    if (!is_elsewhere(&r->request)) {
        return dsi_engine_read_config(ctx, params, &r->spec);
    }
    own.accelerator = "null";
    DS_TRY(dsi_engine_read_config(ctx, &own, &r->spec));
    if (!dsi_accel_is_auto(asked)) {
        DS_TRY(dsi_accel_choose_to_plan(ctx, asked, &r->spec.accel));
    }
    const ds_accel *accel = dsi_accel_chosen(&r->spec.accel);
    const bool apart = accel->counts_only || !accel->memory->on_host;
    return dsi_run_follow_accel(ctx, dsi_config_values(params->config), apart, &r->spec);
}

static ds_status make(ds_ctx *ctx, const dsi_memory_choice *choice, dsi_plan_report *r)
{
    const dsi_report_request *request = &r->request;
    const ds_engine_params params = {.model = request->model,
                                     .config = request->config,
                                     .seq_length = request->seq_length,
                                     .preference = request->preference,
                                     .accelerator = request->accelerator,
                                     .adapter = request->adapter,
                                     .distillation = request->distillation};
    DS_TRY(read_config(ctx, &params, r));
    r->spec.accel.automatic = dsi_accel_is_auto(request->accelerator);
    dsi_accel_for_ranks(&r->spec.accel, request->n_ranks);
    DS_TRY(dsi_zero_set_ranks(ctx, &r->spec.zero, request->n_ranks));
    r->spec.room = dsi_memory_room(request->memory);
    if (request->device != NULL) {
        r->device = dsi_device_of_rank(request->device, ranks_of_node(request), request->n_threads);
    }
    dsi_rank_request rank = {.model = request->model,
                             .spec = &r->spec,
                             .frozen = request->frozen,
                             .n_frozen = request->n_frozen,
                             .n_threads = request->n_threads,
                             .stage = request->stage,
                             .choice = choice,
                             .device =
                                 is_elsewhere(request) && !request->as_run ? &r->device : NULL,
                             .n_local = ranks_of_node(request),
                             .memory = request->memory};
    if (request->device == NULL && dsi_run_device_matters(&r->spec)) { /* as a run here */
        dsi_run_device here;
        DS_TRY(dsi_run_device_find(ctx, &r->spec, &here));
        r->device = here.device;
        rank.device = dsi_run_device_profile(&here) != NULL ? &r->device : NULL;
    }
    DS_TRY(dsi_rank_plan_build(ctx, &rank, &r->plan));
    count_parameters(r);
    count_active(r);
    count_steps(r);
    DS_TRY(count_memory(r));
    DS_TRY(request->device != NULL ? simulate(r) : DS_OK);
    r->step_time = r->timeline != NULL ? r->timeline->step.seconds : r->hardware_flops;
    return DS_OK;
}

/* choice: see dsi_rank_request. */
static ds_status make_stage(ds_ctx *ctx, const dsi_report_request *request, uint32_t stage,
                            const dsi_memory_choice *choice, dsi_plan_report *report_out)
{
    memset(report_out, 0, sizeof *report_out);
    report_out->request = *request;
    report_out->request.stage = stage;
    report_out->plan.ctx = ctx;
    const ds_status status = make(ctx, choice, report_out);
    if (status < 0) {
        dsi_report_free(report_out);
    }
    return status;
}

/* Of the model's parameters, those of the layers of each stage; the stage that has most. */
static uint32_t fullest_stage(const dsi_plan_report *r, uint32_t n_stages)
{
    double most = 0.0;
    uint32_t stage = 0;
    for (uint32_t s = 0; s < n_stages; ++s) {
        double held = 0.0;
        for (ds_cell c = 0; c < ds_cells_count(r->plan.cells); ++c) {
            const ds_cell_info *cell = ds_cells_get(r->plan.cells, c);
            const bool here = cell->kind == DS_CELL_PARAM &&
                              dsi_place_on_has(r->plan.places[c].at.on[DSI_AXIS_PP], s);
            held += here ? (double)ds_shape_count(cell->meta.shape) : 0.0;
        }
        stage = held > most ? s : stage;
        most = held > most ? held : most;
    }
    return stage;
}

/* The report of the stage that needs most, the first of equal ones. */
static ds_status make_largest(ds_ctx *ctx, const dsi_report_request *request,
                              dsi_plan_report *report_out)
{
    enum { ALL = 4 };
    dsi_stage_clock clock = {.rest = 0.0};
    DS_TRY(make_stage(ctx, request, 0, NULL, report_out));
    const dsi_memory_choice choice = report_out->plan.choice;
    const dsi_schedule schedule = dsi_rank_schedule(&report_out->spec);
    const uint32_t n = schedule.n_ranks;
    const uint32_t fullest = n > ALL ? fullest_stage(report_out, n) : 0;
    ds_status status = DS_OK;
    dsi_stage_clock_add(&clock, report_out);
    for (uint32_t s = 1; s < n && status >= 0; ++s) {
        dsi_plan_report other;
        if (n > ALL && s != 1 && s != fullest && s + 1 != n) {
            continue;
        }
        DS_TRY_GOTO(status, make_stage(ctx, request, s, &choice, &other), done);
        dsi_stage_clock_add(&clock, &other);
        if (dsi_report_need(&other) > dsi_report_need(report_out)) {
            const dsi_plan_report smaller = *report_out;
            *report_out = other;
            other = smaller;
        }
        dsi_report_free(&other);
    }
    if (n > 1) {
        status = dsi_stage_clock_step(ctx, &clock, &schedule, &report_out->step_time);
    }
done:
    if (status < 0) {
        dsi_report_free(report_out);
    }
    return status;
}

/* The report of a configuration that leaves nothing open. */
static ds_status make_closed(ds_ctx *ctx, const dsi_report_request *request,
                             dsi_plan_report *report_out)
{
    return request->stage == DSI_STAGE_LARGEST
               ? make_largest(ctx, request, report_out)
               : make_stage(ctx, request, request->stage, NULL, report_out);
}

static ds_status make_chosen(ds_ctx *ctx, const dsi_report_request *request,
                             dsi_plan_report *report_out)
{
    dsi_report_request closed = *request;
    dsi_buf why = dsi_buf_make(sizeof report_out->why);
    ds_config *chosen = NULL;
    ds_status status = dsi_stages_choose(ctx, request, &chosen, &why);
    if (status >= 0) {
        closed.config = chosen;
        status = make_closed(ctx, &closed, report_out);
    }
    if (status >= 0) {
        report_out->chosen = chosen;
        (void)snprintf(report_out->why, sizeof report_out->why, "%s", dsi_buf_text(&why));
    } else {
        ds_config_destroy(&chosen);
    }
    dsi_buf_free(&why);
    return status;
}

ds_status dsi_report_make(ds_ctx *ctx, const dsi_report_request *request,
                          dsi_plan_report *report_out)
{
    const double start = dsi_clock_seconds();
    DS_TRY(dsi_stages_are_open(request->config) ? make_chosen(ctx, request, report_out)
                                                : make_closed(ctx, request, report_out));
    report_out->seconds = dsi_clock_seconds() - start;
    return DS_OK;
}

void dsi_report_free(dsi_plan_report *report)
{
    dsi_timeline_destroy(&report->timeline);
    free(report->sim_steps);
    report->sim_steps = NULL;
    dsi_ledger_destroy(&report->ledger);
    dsi_rank_plan_free(&report->plan);
    ds_config_destroy(&report->chosen);
}

ds_status dsi_report_curve(const dsi_plan_report *report, size_t (*points)[DSI_MEMORY_KIND_COUNT],
                           uint32_t room, uint32_t *n_out, uint32_t *run_out)
{
    enum { KINDS = DSI_MEMORY_KIND_COUNT };
    const uint32_t n_steps = report->ledger->n_steps;
    const uint32_t run = (n_steps + room - 1) / room;
    size_t *curve = malloc((size_t)n_steps * KINDS * sizeof *curve);
    if (curve == NULL) {
        return ds_fail(report->plan.ctx, DS_ERR_NOMEM, "no memory for the curve of a plan");
    }
    dsi_ledger_curve(report->ledger, DSI_RESIDENCY_DEVICE, curve);
    size_t most = 0;
    for (uint32_t s = 0; s < n_steps; ++s) {
        size_t sum = 0;
        for (int k = 0; k < KINDS; ++k) {
            sum += curve[(size_t)s * KINDS + (size_t)k];
        }
        if (s % run == 0 || sum > most) {
            memcpy(points[s / run], &curve[(size_t)s * KINDS], sizeof points[0]);
            most = sum;
        }
    }
    free(curve);
    *n_out = (n_steps + run - 1) / run;
    *run_out = run;
    return DS_OK;
}
