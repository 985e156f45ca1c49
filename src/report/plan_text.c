/* SPDX-License-Identifier: Apache-2.0 */
/* A report of a plan for people. */
#include "base/buf.h"
#include "compile/state_place.h"
#include "report/plan_print.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const double mib = 1048576.0;

/* Whose rank is planned, and what a pipeline loses where all stages take as long. */
static void print_stage(dsi_buf *text, const dsi_plan_report *r)
{
    const dsi_schedule s = dsi_rank_schedule(&r->spec);
    double held = 0.0;
    double all = 0.0;
    for (ds_cell c = 0; c < ds_cells_count(r->plan.cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(r->plan.cells, c);
        if (cell->kind == DS_CELL_PARAM) {
            const double n = (double)ds_shape_count(cell->meta.shape);
            all += n;
            held +=
                dsi_place_on_has(r->plan.places[c].at.on[DSI_AXIS_PP], r->request.stage) ? n : 0;
        }
    }
    if (r->chosen != NULL) {
        dsi_buf_printf(text, "\n%s", r->why);
    }
    if (s.n_ranks <= 1) {
        return;
    }
    uint32_t chunks = 0;
    const uint32_t in_flight = dsi_schedule_in_flight(&s, r->request.stage, &chunks);
    dsi_buf_printf(text,
                   "\nstage %u of %u, %s: %.0f %% of the parameters, at most %u micro-batch%s in "
                   "flight; a stage idles %.0f %% of a step where all take as long",
                   r->request.stage, s.n_ranks, dsi_schedule_name(s.kind), 100.0 * held / all,
                   in_flight, in_flight == 1 ? "" : "es", 100.0 * dsi_schedule_idle_share(&s));
}

static void print_run(dsi_buf *text, const dsi_plan_report *r)
{
    const dsi_train_spec *t = &r->spec.train;
    const uint32_t n_ranks = r->request.n_ranks;
    char memory[DSI_MEMORY_CHOICE_BYTES];
    char accelerator[DSI_ACCEL_TEXT];
    char active[48] = "";
    if (r->n_active != r->n_parameters) {
        (void)snprintf(active, sizeof active, ", %.2f M active a token", (double)r->n_active / 1e6);
    }
    dsi_buf_printf(text, "%s: %.2f M parameters (%.2f M trainable%s), %s, ZeRO stage %u, %u rank%s",
                   ds_model_get_info(r->request.model)->architecture, (double)r->n_parameters / 1e6,
                   (double)r->n_trainable / 1e6, active, ds_dtype_name(t->dtype),
                   r->spec.zero.stage, n_ranks, n_ranks == 1 ? "" : "s");
    if (r->spec.zero.mesh.size[DSI_AXIS_DPS] != n_ranks) {
        dsi_buf_puts(text, " as ");
        dsi_mesh_text(&r->spec.zero.mesh, text);
    }
    if (r->request.n_nodes > 1) {
        dsi_buf_printf(text, " on %u nodes", r->request.n_nodes);
    }
    dsi_memory_choice_text(&r->plan.choice, r->plan.n_kept, memory);
    dsi_buf_printf(text, "%s%s", memory[0] != '\0' ? ", " : "", memory);
    dsi_buf_printf(text, "\n%lld%s x %lld tokens a micro-batch, %lld micro-batch%s a step: ",
                   (long long)dsi_train_rows(t),
                   ds_preference_is_paired(t->preference.loss) ? " rows, pairs," : "",
                   (long long)t->seq_length, (long long)t->accumulation,
                   t->accumulation == 1 ? "" : "es");
    dsi_buf_printf(text, "%.0f tokens a step of all ranks",
                   (double)dsi_train_rows(t) * (double)t->seq_length * (double)t->accumulation *
                       dsi_mesh_data_size(&r->spec.zero.mesh));
    print_stage(text, r);
    dsi_accel_say(&r->spec.accel, accelerator);
    dsi_buf_printf(text, "\naccelerator: %s\n", accelerator);
    char place[DSI_STATE_PLACE_BYTES];
    dsi_state_place_text(&r->plan.place, place);
    dsi_buf_printf(text, "%s%s", place, place[0] != '\0' ? "\n" : "");
    const bool apart = r->request.device != NULL && !r->request.device->shared;
    if (apart && r->total[DSI_RESIDENCY_DISK] > 0 && !r->spec.offload.use_gds) {
        dsi_buf_puts(text, "on disk: the accelerator cuda refuses that without aio.use_gds true\n");
    }
    for (int s = 0; s < DSI_OFFLOAD_SECTIONS; ++s) {
        dsi_buf_printf(text, "%s%s", r->plan.idle[s], r->plan.idle[s][0] != '\0' ? "\n" : "");
    }
    dsi_buf_putc(text, '\n');
}

/* offloaded: what is said of kinds that the device has as well. */
static void print_kinds(dsi_buf *text, const dsi_plan_report *r, dsi_residency where,
                        const char *offloaded)
{
    for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
        const bool twice = where != DSI_RESIDENCY_DEVICE && r->peak[DSI_RESIDENCY_DEVICE][k] > 0;
        char name[64];
        (void)snprintf(name, sizeof name, "%s%s", dsi_memory_kind_name((dsi_memory_kind)k),
                       twice ? offloaded : "");
        if (r->peak[where][k] > 0) {
            dsi_buf_printf(text, "  %-22s %12.2f\n", name, (double)r->peak[where][k] / mib);
        }
    }
}

static const char *scope_name(const char *scope)
{
    return scope[0] != '\0' ? scope : "the model";
}

static void print_memory(dsi_buf *text, const dsi_plan_report *r)
{
    const bool apart = r->request.device != NULL && !r->request.device->shared;
    const dsi_step *step = &r->plan.train_plan->steps[r->peak_step];
    dsi_buf_printf(text, "memory of a rank at its peak, MiB (step %u of %u, %s, %s of %s)\n",
                   r->peak_step, r->plan.train_plan->n_steps, dsi_report_phase(r, step->phase),
                   step->op->name, scope_name(step->scope));
    print_kinds(text, r, DSI_RESIDENCY_DEVICE, "");
    if (!apart) {
        print_kinds(text, r, DSI_RESIDENCY_HOST, ", host");
    }
    dsi_buf_printf(text, "  %-22s %12.2f\n", "sum", (double)dsi_report_need(r) / mib);
    if (apart) {
        dsi_buf_puts(text, "of its host\n");
        print_kinds(text, r, DSI_RESIDENCY_HOST, "");
    }
    dsi_buf_printf(text, "  %-22s %12.2f\n\n", "on disk",
                   (double)r->total[DSI_RESIDENCY_DISK] / mib);
}

static void print_largest(dsi_buf *text, const dsi_plan_report *r)
{
    dsi_buf_puts(text, "the largest there, MiB\n");
    for (uint32_t i = 0; i < r->n_largest; ++i) {
        const dsi_ledger_entry *e = &r->ledger->entries[r->largest[i]];
        dsi_buf_printf(text, "  %12.2f  %-20s ", (double)e->bytes / mib,
                       dsi_memory_kind_name(e->kind));
        if (e->what != dsi_memory_kind_name(e->kind)) {
            dsi_buf_printf(text, "%s of ", e->what);
        }
        dsi_buf_printf(text, "%s, steps %u to %u\n", scope_name(e->name), e->first, e->last);
    }
    dsi_buf_putc(text, '\n');
}

/* Which of it is in blocks of whole numbers. */
static void print_quantized(dsi_buf *text, const dsi_quantized *q)
{
    if (q->weights || q->frozen_weights) {
        dsi_buf_printf(text, "  %sparameters are gathered in 8 bits\n",
                       q->weights ? "" : "frozen ");
    }
    if (q->gradients) {
        dsi_buf_printf(text, "  gradients but vectors are exchanged in 4 bits%s\n",
                       q->errors ? ", what they lose is added to the next" : "");
    }
}

static void print_comm(dsi_buf *text, const dsi_plan_report *r)
{
    if (r->n_comm == 0) {
        dsi_buf_puts(text, "communication: none\n\n");
        return;
    }
    bool warm_up = false;
    dsi_buf_puts(text,
                 "communication of a rank in a step      calls   MiB carried      MiB sent\n");
    for (uint32_t i = 0; i < r->n_comm; ++i) {
        const dsi_report_comm *c = &r->comm[i];
        char axes[DSI_AXES_LABEL];
        dsi_buf_printf(text, "  %-15s %-4s %-9s %11llu %13.2f %13.2f\n", c->op,
                       dsi_axes_label(c->axes, axes), dsi_report_phase(r, c->phase),
                       (unsigned long long)c->calls, c->carried / mib, c->sent / mib);
        warm_up = warm_up || dsi_report_is_warm_up(r, c->phase);
    }
    print_quantized(text, &r->spec.zero.quantized);
    if (warm_up) {
        const bool zero_one = r->spec.train.optimizer == DS_OPTIMIZER_ZERO_ONE_ADAM;
        dsi_buf_printf(text,
                       "  norm%s: in the %lld steps of the warm-up; own_norm, %s: behind it\n",
                       zero_one ? ", signs" : "", (long long)r->spec.train.onebit.freeze_step,
                       zero_one ? "sync" : "frozen");
    }
    dsi_buf_putc(text, '\n');
}

/* steps: what is issued on it, waits for events included. */
static void print_streams(dsi_buf *text, const dsi_plan_report *r)
{
    const dsi_plan *plan = r->plan.train_plan;
    dsi_buf_puts(text, "streams of the plan                    steps  waits for events  events\n");
    for (uint32_t i = 0; i < plan->n_streams; ++i) {
        const dsi_stream_use use = dsi_plan_stream_use(plan, i);
        dsi_buf_printf(text, "  %-30s %11u %17u %7u\n", plan->streams[i].name, use.steps, use.waits,
                       use.events);
    }
    dsi_buf_putc(text, '\n');
}

static void print_fit(dsi_buf *text, const dsi_plan_report *r)
{
    const double gib = 1024.0 * mib;
    const double need = (double)dsi_report_need(r);
    const double have = (double)r->request.memory;
    dsi_shortage lacks;
    if (dsi_report_lacks(r, &lacks)) {
        dsi_buf_printf(text, "does not fit: %.2f GiB, %.2f GiB more than %.2f GiB (%s)\n",
                       (double)lacks.need / gib, (double)(lacks.need - lacks.have) / gib,
                       (double)lacks.have / gib, lacks.of != NULL ? lacks.of : "memory");
    } else if (have > 0.0) {
        dsi_buf_printf(text, "fits: %.2f GiB of %.2f GiB (%s), %.2f GiB are left\n", need / gib,
                       have / gib, r->request.memory_of, (have - need) / gib);
    }
}

/* "zero_optimization.stage 3, train_micro_batch_size_per_gpu 1". */
static void candidate_print(const dsi_candidate *candidate, dsi_buf *text)
{
    for (uint32_t i = 0; i < candidate->n_settings; ++i) {
        const char *value = dsi_candidate_value(candidate, i);
        if (value[0] != '\0') {
            dsi_buf_printf(text, "%s%s %s", i > 0 ? ", " : "", candidate->paths[i], value);
        }
    }
}

/* By how much a figure changes: "+12 % operations". */
static void print_change(dsi_buf *text, const char *what, double before, double after)
{
    if (before > 0.0 && after > 0.0) {
        dsi_buf_printf(text, ", %+.0f %% %s", 100.0 * (after / before - 1.0), what);
    } else if (after > 0.0) {
        dsi_buf_printf(text, ", %.2f MiB more %s", after / mib, what);
    }
}

static void print_candidate(dsi_buf *text, const dsi_plan_report *r, const dsi_candidate *c)
{
    double sent = 0.0;
    for (uint32_t i = 0; i < r->n_comm; ++i) {
        sent += r->comm[i].sent;
    }
    dsi_buf_puts(text, "  ");
    candidate_print(c, text);
    dsi_buf_printf(text, ": %.2f GiB", (double)c->need / (1024.0 * mib));
    print_change(text, "operations", r->hardware_flops, c->hardware_flops);
    print_change(text, "bytes sent", sent, c->sent);
    if (r->timeline != NULL && c->seconds > 0.0) {
        dsi_buf_printf(text, ", step %.3f s instead of %.3f s", c->seconds,
                       r->timeline->step.seconds);
    }
    dsi_buf_putc(text, '\n');
}

static void print_changes(dsi_buf *text, const dsi_printed *p)
{
    if (p->n_changes > 0) {
        dsi_buf_puts(text, "what would make it fit, cheapest first:\n");
        for (uint32_t i = 0; i < p->n_changes; ++i) {
            print_candidate(text, p->report, &p->changes[i]);
        }
    } else if (p->least) {
        dsi_buf_puts(
            text,
            "no change of stage, recomputation, micro-batch and offload makes it fit; least:\n");
        print_candidate(text, p->report, &p->changes[0]);
    }
}

static void print_cause(dsi_buf *text, const dsi_plan_report *r)
{
    int largest = 0;
    for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
        largest =
            r->peak[DSI_RESIDENCY_DEVICE][k] > r->peak[DSI_RESIDENCY_DEVICE][largest] ? k : largest;
    }
    dsi_buf_printf(text, "the most of it: %s, %.2f GiB\n",
                   dsi_memory_kind_name((dsi_memory_kind)largest),
                   (double)r->peak[DSI_RESIDENCY_DEVICE][largest] / (1024.0 * mib));
}

static void print_all(dsi_buf *text, const dsi_printed *p)
{
    const dsi_plan_report *r = p->report;
    print_run(text, r);
    print_memory(text, r);
    print_largest(text, r);
    print_comm(text, r);
    print_streams(text, r);
    dsi_buf_printf(text,
                   "operations of a rank in a step: %.4g TFLOP of the model, %.4g TFLOP computed\n",
                   1e-12 * r->model_flops, 1e-12 * r->hardware_flops);
    if (r->timeline != NULL) {
        dsi_buf_putc(text, '\n');
        dsi_timeline_print(r->timeline, text);
        dsi_buf_putc(text, '\n');
    }
    print_fit(text, r);
    if (dsi_report_lacks(r, NULL)) {
        print_cause(text, r);
    }
    print_changes(text, p);
}

ds_status dsi_report_text(const dsi_printed *printed, char **text_out)
{
    const dsi_plan_report *report = printed->report;
    dsi_buf text = dsi_buf_make(1 << 20);
    print_all(&text, printed);
    dsi_buf_printf(&text, "planned in %.2f s\n", report->seconds);
    if (text.failed) {
        dsi_buf_free(&text);
        return ds_fail(report->plan.ctx, DS_ERR_NOMEM, "no memory to print a plan");
    }
    *text_out = text.data;
    return DS_OK;
}

/* The best candidates of a search, by what they cost. */
static int by_need(const void *a, const void *b)
{
    const dsi_candidate *x = a;
    const dsi_candidate *y = b;
    if (x->fits != y->fits) {
        return x->fits ? -1 : 1;
    }
    return x->stage != y->stage ? (x->stage < y->stage ? -1 : 1)
                                : (int)x->recompute - (int)y->recompute;
}

/* How ranks share the model: the kinds that a choice stands between. */
static const struct share_kind {
    const char *name;
    bool tp, sp, pp, domino;
} share_kinds[] = {{"no ranks that share", false, false, false, false},
                   {"tensor parallel alone", true, false, false, false},
                   {"sequences alone", false, true, false, false},
                   {"stages alone", false, false, true, false},
                   {"tensor parallel and stages", true, false, true, false},
                   {"domino", true, false, false, true}};

static bool is_of_kind(const dsi_candidate *c, const struct share_kind *kind)
{
    return (c->tp > 1) == kind->tp && (c->sp > 1) == kind->sp && (c->pp > 1) == kind->pp &&
           c->domino == kind->domino;
}

/* What stood beside the choice, where ranks may share: the best of each kind. */
static void explain_shares(const dsi_fit *fit, dsi_buf *text)
{
    const dsi_candidate *chosen = &fit->tried[fit->best];
    const char *between = "beside it, for each row: ";
    for (size_t k = 0; k < sizeof share_kinds / sizeof share_kinds[0]; ++k) {
        const dsi_candidate *best = NULL;
        bool planned = false;
        for (uint32_t i = 0; i < fit->n_tried; ++i) {
            const dsi_candidate *c = &fit->tried[i];
            const bool of_kind = is_of_kind(c, &share_kinds[k]);
            planned = planned || of_kind;
            if (of_kind && c->fits && (best == NULL || dsi_candidate_by_cost(c, best) < 0)) {
                best = c;
            }
        }
        if (!planned || is_of_kind(chosen, &share_kinds[k])) {
            continue;
        }
        dsi_buf_puts(text, between);
        if (best == NULL) {
            dsi_buf_printf(text, "%s does not fit", share_kinds[k].name);
        } else {
            dsi_buf_printf(text, "%s takes %.2f times as long", share_kinds[k].name,
                           best->row_cost / chosen->row_cost);
        }
        between = "; ";
    }
    if (between[0] == ';') {
        dsi_buf_putc(text, '\n');
    }
}

/* Nothing was planned: the one reason as a plan of the configuration itself gives it, or all. */
static ds_status fail_refused(ds_ctx *ctx, const dsi_fit *fit)
{
    dsi_buf text = dsi_buf_make(1 << 16);
    for (uint32_t i = 0; i < fit->n_refusals && fit->n_refusals > 1; ++i) {
        const dsi_refusal *r = &fit->refusals[i];
        dsi_buf_puts(&text, i > 0 ? "; " : "no configuration can be planned: with ");
        candidate_print(&r->first, &text);
        dsi_buf_printf(&text, "%s: %s", r->n > 1 ? " and others" : "", r->text);
    }
    if (fit->n_unsaid > 0) {
        dsi_buf_printf(&text, "; %u more for other reasons", fit->n_unsaid);
    }
    if (text.failed) {
        dsi_buf_free(&text);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to print a search");
    }
    const ds_status status =
        ds_fail(ctx, fit->refusals[0].status, "%s",
                fit->n_refusals > 1 ? dsi_buf_text(&text) : fit->refusals[0].text);
    dsi_buf_free(&text);
    return status;
}

ds_status dsi_fit_text(ds_ctx *ctx, const dsi_fit *fit, size_t memory, char **text_out)
{
    const double gib = 1024.0 * mib;
    if (fit->n_tried == 0 && fit->n_refusals > 0) {
        return fail_refused(ctx, fit);
    }
    dsi_buf text = dsi_buf_make(1 << 20);
    dsi_candidate *sorted = malloc((fit->n_tried + 1) * sizeof *sorted);
    if (sorted == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to print a search");
    }
    if (fit->n_tried > 0) {
        memcpy(sorted, fit->tried, fit->n_tried * sizeof *sorted);
        qsort(sorted, fit->n_tried, sizeof *sorted, by_need);
    }
    dsi_buf_puts(&text, "stage  tp  sp  pp recompute offload     micro-batch accumulation        "
                        "GiB  TFLOP a step  "
                        "MiB sent  step s\n");
    for (uint32_t i = 0; i < fit->n_tried; ++i) {
        const dsi_candidate *c = &sorted[i];
        char seconds[32] = "-"; /* without a device */
        if (c->seconds > 0.0) {
            (void)snprintf(seconds, sizeof seconds, "%.3f", c->seconds);
        }
        dsi_buf_printf(
            &text, "%5u %3u %3u %3u %-9s %-6s %-4s %11lld %12lld %10.2f %13.4g %9.1f %7s%s%s%s%s\n",
            c->stage, c->tp, c->sp, c->pp, dsi_recompute_name(c->recompute),
            c->params != DS_OFFLOAD_NONE   ? "all"
            : c->states != DS_OFFLOAD_NONE ? "states"
                                           : "none",
            c->params == DS_OFFLOAD_NVME || c->states == DS_OFFLOAD_NVME ? "disk"
            : c->params == DS_OFFLOAD_CPU || c->states == DS_OFFLOAD_CPU ? "host"
                                                                         : "",
            (long long)c->micro_batch, (long long)c->accumulation, (double)c->need / gib,
            1e-12 * c->hardware_flops, c->sent / mib, seconds, c->domino ? "  domino" : "",
            c->pp > 1 ? "  " : "",
            c->pp > 1 ? dsi_schedule_name((dsi_schedule_kind)c->schedule) : "",
            c->fits ? "" : "  does not fit");
    }
    free(sorted);
    if (fit->best != UINT32_MAX) {
        dsi_buf_puts(&text, "chosen: ");
        candidate_print(&fit->tried[fit->best], &text);
        dsi_buf_putc(&text, '\n');
        explain_shares(fit, &text);
    } else {
        dsi_buf_printf(&text, "nothing fits into %.2f GiB\n", (double)memory / gib);
    }
    if (text.failed) {
        dsi_buf_free(&text);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to print a search");
    }
    *text_out = text.data;
    return DS_OK;
}
