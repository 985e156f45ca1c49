/* SPDX-License-Identifier: Apache-2.0 */
/* A report of a plan for programs. ds_plan diff reads it back. */
#include "base/buf.h"
#include "report/plan_print.h"

#include <string.h>

enum { TEXT_CEILING = 64 << 20, CURVE_POINTS = 512 };

static void put_text(dsi_buf *text, const char *value)
{
    dsi_buf_putc(text, '"');
    dsi_buf_json(text, value, strlen(value));
    dsi_buf_putc(text, '"');
}

/* {"dpr": 2, "dps": 4}: axes of more than one rank, outermost first. */
static void put_mesh(dsi_buf *text, const dsi_mesh *mesh)
{
    const char *comma = "";
    dsi_buf_puts(text, ", \"mesh\": {");
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (mesh->size[a] > 1) {
            dsi_buf_printf(text, "%s\"%s\": %u", comma, dsi_axis_name((dsi_axis)a), mesh->size[a]);
            comma = ", ";
        }
    }
    dsi_buf_putc(text, '}');
}

static void put_run(dsi_buf *text, const dsi_plan_report *r)
{
    const dsi_train_spec *t = &r->spec.train;
    char memory[DSI_MEMORY_CHOICE_BYTES];
    dsi_memory_choice_text(&r->plan.choice, r->plan.n_kept, memory);
    dsi_buf_puts(text, "  \"run\": {\"model\": ");
    put_text(text, ds_model_get_info(r->request.model)->architecture);
    dsi_buf_printf(text, ", \"parameters\": %llu, \"active\": %llu, \"trainable\": %llu",
                   (unsigned long long)r->n_parameters, (unsigned long long)r->n_active,
                   (unsigned long long)r->n_trainable);
    dsi_buf_printf(text, ", \"dtype\": \"%s\", \"stage\": %u, \"ranks\": %u, \"nodes\": %u",
                   ds_dtype_name(t->dtype), r->spec.zero.stage, r->request.n_ranks,
                   r->request.n_nodes);
    put_mesh(text, &r->spec.zero.mesh);
    dsi_buf_printf(
        text,
        ", \"micro_batch\": %lld, \"rows\": %lld, \"accumulation\": %lld, \"seq_length\": %lld, "
        "\"recompute\": \"%s\", \"kept_logits\": %u, \"memory\": \"%s\"},\n",
        (long long)t->batch, (long long)dsi_train_rows(t), (long long)t->accumulation,
        (long long)t->seq_length, dsi_recompute_name(r->plan.choice.recompute), r->plan.n_kept,
        memory);
}

/* A split's planned step; null where it does not fit. */
static void put_seconds(dsi_buf *text, const char *name, double seconds)
{
    dsi_buf_printf(text, ", \"%s\": ", name);
    if (seconds > 0.0) {
        dsi_buf_printf(text, "%.9g", seconds);
    } else {
        dsi_buf_puts(text, "null");
    }
}

static void put_place(dsi_buf *text, const dsi_state_place *place)
{
    if (!place->on) {
        return;
    }
    dsi_buf_printf(text,
                   "  \"super_offload\": {\"buckets\": %u, \"kept\": %u, \"planned\": %u, "
                   "\"elements\": %lld, \"kept_elements\": %lld, \"ratio\": %.15g",
                   place->n_buckets, place->n_kept, place->n_tried, (long long)place->elements,
                   (long long)place->kept, place->ratio);
    put_seconds(text, "seconds", place->seconds);
    put_seconds(text, "host_seconds", place->host_seconds);
    put_seconds(text, "device_seconds", place->device_seconds);
    dsi_buf_printf(text, ", \"device_lacks\": %zu},\n", place->lacks);
}

static void put_kinds(dsi_buf *text, const char *name, const size_t *bytes)
{
    const char *comma = "";
    dsi_buf_printf(text, "    \"%s\": {", name);
    for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
        if (bytes[k] > 0) {
            dsi_buf_printf(text, "%s\"%s\": %zu", comma, dsi_memory_kind_name((dsi_memory_kind)k),
                           bytes[k]);
            comma = ", ";
        }
    }
    dsi_buf_puts(text, "},\n");
}

static void put_largest(dsi_buf *text, const dsi_plan_report *r)
{
    dsi_buf_puts(text, "    \"largest\": [");
    for (uint32_t i = 0; i < r->n_largest; ++i) {
        const dsi_ledger_entry *e = &r->ledger->entries[r->largest[i]];
        dsi_buf_printf(text, "%s\n      {\"bytes\": %zu, \"kind\": \"%s\", \"first\": %u, ",
                       i > 0 ? "," : "", e->bytes, dsi_memory_kind_name(e->kind), e->first);
        dsi_buf_printf(text, "\"last\": %u, \"what\": \"%s\", \"name\": ", e->last, e->what);
        put_text(text, e->name);
        dsi_buf_putc(text, '}');
    }
    dsi_buf_puts(text, "],\n");
}

static ds_status put_curve(dsi_buf *text, const dsi_plan_report *r)
{
    size_t points[CURVE_POINTS][DSI_MEMORY_KIND_COUNT];
    uint32_t n = 0;
    uint32_t run = 0;
    DS_TRY(dsi_report_curve(r, points, CURVE_POINTS, &n, &run));
    dsi_buf_printf(text, "    \"curve\": {\"steps_a_point\": %u, \"bytes\": [", run);
    for (uint32_t i = 0; i < n; ++i) {
        size_t sum = 0;
        for (int k = 0; k < DSI_MEMORY_KIND_COUNT; ++k) {
            sum += points[i][k];
        }
        dsi_buf_printf(text, "%s%zu", i > 0 ? ", " : "", sum);
    }
    dsi_buf_puts(text, "]}\n");
    return DS_OK;
}

/* By how much it does not fit, and into what: `need` against `available` is one of three limits. */
static void put_lacks(dsi_buf *text, const dsi_plan_report *r)
{
    dsi_shortage lacks;
    if (dsi_report_lacks(r, &lacks)) {
        dsi_buf_printf(text, "    \"lacks\": {\"need\": %zu, \"have\": %zu, \"of\": ", lacks.need,
                       lacks.have);
        put_text(text, lacks.of != NULL ? lacks.of : "memory");
        dsi_buf_puts(text, "},\n");
    }
}

static ds_status put_memory(dsi_buf *text, const dsi_plan_report *r)
{
    const dsi_step *step = &r->plan.train_plan->steps[r->peak_step];
    const size_t need = dsi_report_need(r);
    dsi_buf_printf(text, "  \"memory\": {\n    \"need\": %zu, \"available\": %zu, \"fits\": %s,\n",
                   need, r->request.memory,
                   dsi_report_lacks(r, NULL) ? "false"
                   : r->request.memory == 0  ? "null"
                                             : "true");
    put_lacks(text, r);
    dsi_buf_printf(text, "    \"peak_step\": %u, \"steps\": %u, \"phase\": \"%s\", \"at\": ",
                   r->peak_step, r->plan.train_plan->n_steps, dsi_report_phase(r, step->phase));
    put_text(text, step->scope);
    dsi_buf_puts(text, ",\n");
    put_kinds(text, "device", r->peak[DSI_RESIDENCY_DEVICE]);
    put_kinds(text, "host", r->peak[DSI_RESIDENCY_HOST]);
    put_kinds(text, "disk", r->peak[DSI_RESIDENCY_DISK]);
    put_largest(text, r);
    DS_TRY(put_curve(text, r));
    dsi_buf_puts(text, "  },\n");
    return DS_OK;
}

static void put_comm(dsi_buf *text, const dsi_plan_report *r)
{
    dsi_buf_puts(text, "  \"communication\": [");
    for (uint32_t i = 0; i < r->n_comm; ++i) {
        const dsi_report_comm *c = &r->comm[i];
        char axes[DSI_AXES_LABEL];
        dsi_buf_printf(text, "%s\n    {\"collective\": \"%s\", \"axis\": \"%s\", ",
                       i > 0 ? "," : "", c->op, dsi_axes_label(c->axes, axes));
        dsi_buf_printf(text, "\"phase\": \"%s\", \"calls\": %llu, \"bytes\": %.0f, \"sent\": %.0f}",
                       dsi_report_phase(r, c->phase), (unsigned long long)c->calls, c->carried,
                       c->sent);
    }
    dsi_buf_puts(text, "],\n");
}

static void put_streams(dsi_buf *text, const dsi_plan_report *r)
{
    const dsi_plan *plan = r->plan.train_plan;
    dsi_buf_puts(text, "  \"streams\": [");
    for (uint32_t i = 0; i < plan->n_streams; ++i) {
        const dsi_stream_use use = dsi_plan_stream_use(plan, i);
        dsi_buf_printf(text, "%s\n    {\"stream\": \"%s\", \"steps\": %u, ", i > 0 ? "," : "",
                       plan->streams[i].name, use.steps);
        dsi_buf_printf(text, "\"waits\": %u, \"events\": %u}", use.waits, use.events);
    }
    dsi_buf_puts(text, "],\n");
}

static void put_pipeline(dsi_buf *text, const dsi_plan_report *r)
{
    const dsi_schedule s = dsi_rank_schedule(&r->spec);
    if (s.n_ranks <= 1 && r->chosen == NULL) {
        return;
    }
    dsi_buf_printf(text,
                   ",\n  \"pipeline\": {\"stages\": %u, \"schedule\": \"%s\", \"chunks\": %u, "
                   "\"step\": %.9g, \"of\": \"%s\", \"chosen\": ",
                   s.n_ranks, dsi_schedule_name(s.kind), s.n_chunks, r->step_time,
                   r->timeline != NULL ? "seconds" : "operations");
    if (r->chosen != NULL) {
        put_text(text, r->why);
    } else {
        dsi_buf_puts(text, "null");
    }
    dsi_buf_puts(text, "}");
}

static void put_changes(dsi_buf *text, const dsi_printed *p)
{
    dsi_buf_puts(text, ",\n  \"changes\": [");
    for (uint32_t i = 0; i < p->n_changes; ++i) {
        const dsi_candidate *c = &p->changes[i];
        dsi_buf_printf(text, "%s\n    {\"set\": {", i > 0 ? "," : "");
        for (uint32_t s = 0; s < c->n_settings; ++s) {
            dsi_buf_printf(text, "%s\"%s\": %s", s > 0 ? ", " : "", c->paths[s],
                           dsi_candidate_value(c, s));
        }
        dsi_buf_printf(text, "}, \"need\": %zu, \"computed\": %.17g, \"sent\": %.0f", c->need,
                       c->hardware_flops, c->sent);
        dsi_buf_printf(text, ", \"seconds\": %.9g}", c->seconds);
    }
    dsi_buf_puts(text, "]");
}

ds_status dsi_report_json(const dsi_printed *printed, char **text_out)
{
    const dsi_plan_report *report = printed->report;
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    dsi_buf_puts(&text, "{\n  \"ds_plan\": 1,\n");
    put_run(&text, report);
    put_place(&text, &report->plan.place);
    const ds_status status = put_memory(&text, report);
    put_comm(&text, report);
    put_streams(&text, report);
    dsi_buf_printf(&text, "  \"operations\": {\"model\": %.17g, \"computed\": %.17g}",
                   report->model_flops, report->hardware_flops);
    put_pipeline(&text, report);
    put_changes(&text, printed);
    if (report->timeline != NULL) {
        dsi_buf_puts(&text, ",\n  \"timeline\": ");
        dsi_timeline_json(report->timeline, &text);
    }
    dsi_buf_puts(&text, "\n}\n");
    if (status < 0 || text.failed) {
        dsi_buf_free(&text);
        return status < 0 ? status
                          : ds_fail(report->plan.ctx, DS_ERR_NOMEM, "no memory to print a plan");
    }
    *text_out = text.data;
    return DS_OK;
}
