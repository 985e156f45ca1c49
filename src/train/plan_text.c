/* A report of a plan for people. */
#include "base/buf.h"
#include "train/plan_report.h"

#include <stdlib.h>

static const double mib = 1048576.0;

static void print_run(dsi_buf *text, const dsi_plan_report *r)
{
    const dsi_train_spec *t = &r->spec.train;
    const uint32_t n_ranks = r->request.n_ranks;
    dsi_buf_printf(text, "%s: %.2f M parameters (%.2f M trainable), %s, ZeRO stage %u, %u rank%s",
                   ds_model_get_info(r->request.model)->architecture, (double)r->n_parameters / 1e6,
                   (double)r->n_trainable / 1e6, ds_dtype_name(t->dtype), r->spec.zero.stage,
                   n_ranks, n_ranks == 1 ? "" : "s");
    if (r->request.n_nodes > 1) {
        dsi_buf_printf(text, " on %u nodes", r->request.n_nodes);
    }
    dsi_buf_printf(text, "\n%lld x %lld tokens a micro-batch, %lld micro-batch%s a step: ",
                   (long long)t->batch, (long long)t->seq_length, (long long)t->accumulation,
                   t->accumulation == 1 ? "" : "es");
    dsi_buf_printf(text, "%.0f tokens a step of all ranks\n\n",
                   (double)t->batch * (double)t->seq_length * (double)t->accumulation *
                       (double)n_ranks);
}

static void print_kinds(dsi_buf *text, const dsi_plan_report *r, dsi_residency where)
{
    for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
        if (r->peak[where][k] > 0) {
            dsi_buf_printf(text, "  %-22s %12.2f\n", dsi_memory_kind_name((dsi_memory_kind)k),
                           (double)r->peak[where][k] / mib);
        }
    }
}

static void print_memory(dsi_buf *text, const dsi_plan_report *r)
{
    const dsi_step *step = &r->plan.train_plan->steps[r->peak_step];
    dsi_buf_printf(text, "memory of a rank at its peak, MiB (step %u of %u, %s, %s of %s)\n",
                   r->peak_step, r->plan.train_plan->n_steps, dsi_phase_name(step->phase),
                   step->op->name, step->scope);
    print_kinds(text, r, DSI_RESIDENCY_DEVICE);
    print_kinds(text, r, DSI_RESIDENCY_HOST);
    dsi_buf_printf(text, "  %-22s %12.2f\n", "sum", (double)dsi_report_need(r) / mib);
    dsi_buf_printf(text, "  %-22s %12.2f\n\n", "on disk",
                   (double)r->total[DSI_RESIDENCY_DISK] / mib);
}

static void print_largest(dsi_buf *text, const dsi_plan_report *r)
{
    dsi_buf_puts(text, "the largest there, MiB\n");
    for (uint32_t i = 0; i < r->n_largest; ++i) {
        const dsi_ledger_entry *e = &r->ledger->entries[r->largest[i]];
        dsi_buf_printf(text, "  %12.2f  %-20s %s of %s, steps %u to %u\n", (double)e->bytes / mib,
                       dsi_memory_kind_name(e->kind), e->what, e->name, e->first, e->last);
    }
    dsi_buf_putc(text, '\n');
}

static void print_comm(dsi_buf *text, const dsi_plan_report *r)
{
    if (r->n_comm == 0) {
        dsi_buf_puts(text, "communication: none\n\n");
        return;
    }
    dsi_buf_puts(text,
                 "communication of a rank in a step      calls   MiB carried      MiB sent\n");
    for (uint32_t i = 0; i < r->n_comm; ++i) {
        const dsi_report_comm *c = &r->comm[i];
        dsi_buf_printf(text, "  %-15s %-4s %-9s %11llu %13.2f %13.2f\n", c->op, c->axis,
                       dsi_phase_name(c->phase), (unsigned long long)c->calls, c->carried / mib,
                       c->sent / mib);
    }
    dsi_buf_putc(text, '\n');
}

static void print_fit(dsi_buf *text, const dsi_plan_report *r)
{
    const double gib = 1024.0 * mib;
    const double need = (double)dsi_report_need(r);
    const double have = (double)r->request.memory;
    if (have <= 0.0) {
        return;
    }
    if (need <= have) {
        dsi_buf_printf(text, "fits: %.2f GiB of %.2f GiB (%s), %.2f GiB are left\n", need / gib,
                       have / gib, r->request.memory_of, (have - need) / gib);
        return;
    }
    dsi_buf_printf(text, "does not fit: %.2f GiB, %.2f GiB more than %.2f GiB (%s)\n", need / gib,
                   (need - have) / gib, have / gib, r->request.memory_of);
}

ds_status dsi_report_text(const dsi_plan_report *report, char **text_out)
{
    dsi_buf text = dsi_buf_make(1 << 20);
    print_run(&text, report);
    print_memory(&text, report);
    print_largest(&text, report);
    print_comm(&text, report);
    dsi_buf_printf(&text,
                   "operations of a rank in a step: %.4g TFLOP of the model, %.4g TFLOP computed\n",
                   1e-12 * report->model_flops, 1e-12 * report->hardware_flops);
    print_fit(&text, report);
    dsi_buf_printf(&text, "planned in %.2f s\n", report->seconds);
    if (text.failed) {
        dsi_buf_free(&text);
        return ds_fail(report->plan.ctx, DS_ERR_NOMEM, "no memory to print a plan");
    }
    *text_out = text.data;
    return DS_OK;
}
