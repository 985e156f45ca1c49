/* SPDX-License-Identifier: Apache-2.0 */
/* ds_bench --serve from its flags to its reports. See load.h. */
#include "load/load.h"

#include "common/output.h"
#include "monitor/html.h"

#include <stdio.h>

enum { TEXT_CEILING = 1 << 30 };

static ds_status check(ds_ctx *ctx, const load_options *o)
{
    if (o->shared_prefix > 0 && o->trace != NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "--shared_prefix and --trace: a trace says itself what prompts share");
    }
    if (o->rate > 0 && o->trace != NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "--rate and --trace: a trace says itself when they come");
    }
    if (o->html == NULL) {
        return DS_OK;
    }
    DS_TRY(output_check(ctx, o->html));
    DS_TRY(output_not_input(ctx, o->html,
                            (const char *const[]){o->trace, o->api_key_file, o->cacert}, 3));
    return o->overwrite ? DS_OK : dsi_html_check(ctx, o->html, "load report");
}

/* Requests of another seed, one after the other where there is one client; not counted. */
static ds_status warm_up(ds_ctx *ctx, const load_options *o, const load_target *target)
{
    load_options other = *o;
    load_work work;
    load_run run = {0};
    other.requests = o->warmups;
    other.requests_given = true;
    other.trace = NULL;
    other.rate = other.duration = 0;
    other.seed = o->seed + 1000003;
    DS_TRY(load_work_open(ctx, &other, target, &work));
    ds_status status = load_run_all(ctx, &other, target, &work, &run);
    for (size_t i = 0; i < run.n && status == DS_OK; ++i) {
        if (run.results[i].failed) {
            status = ds_fail(ctx, DS_ERR_PEER, "the first requests fail with status %d: %s",
                             run.results[i].status, run.results[i].error);
        }
    }
    load_run_free(&run);
    return status;
}

static ds_status write(ds_ctx *ctx, const load_options *o, const load_report *report)
{
    dsi_buf text = dsi_buf_make(TEXT_CEILING);
    ds_status status = DS_OK;
    if (o->json) {
        load_report_json(report, &text);
    } else {
        load_report_text(report, &text);
    }
    status = text.failed ? ds_fail(ctx, DS_ERR_NOMEM, "no memory for the report")
                         : output_put(ctx, "-", dsi_buf_text(&text), text.size);
    dsi_buf_clear(&text);
    if (status == DS_OK && o->html != NULL) {
        load_report_html(report, &text);
        status = text.failed ? ds_fail(ctx, DS_ERR_NOMEM, "no memory for the page")
                             : output_put(ctx, o->html, dsi_buf_text(&text), text.size);
    }
    dsi_buf_free(&text);
    return status;
}

static ds_status measure(ds_ctx *ctx, const load_options *o, const load_target *target,
                         load_work *work, size_t *failed_out)
{
    load_run run = {0};
    load_report report = {0};
    ds_status status = load_run_all(ctx, o, target, work, &run);
    status = status == DS_OK ? load_report_make(ctx, o, target, &run, &report) : status;
    status = status == DS_OK ? write(ctx, o, &report) : status;
    *failed_out = report.n_failed;
    load_report_free(&report);
    load_run_free(&run);
    return status;
}

static ds_status load_it(ds_ctx *ctx, const load_options *o, const load_target *target,
                         size_t *failed_out)
{
    load_work work;
    DS_TRY(load_work_open(ctx, o, target, &work));
    ds_status status = o->warmups > 0 ? warm_up(ctx, o, target) : DS_OK;
    status = status == DS_OK ? measure(ctx, o, target, &work, failed_out) : status;
    load_work_close(&work);
    return status;
}

ds_status load_main(ds_ctx *ctx, const load_options *o, size_t *failed_out)
{
    load_target target;
    dsi_trust *trust = NULL;
    *failed_out = 0;
    DS_TRY(check(ctx, o));
    ds_status status = load_target_find(ctx, o, &target, &trust);
    status = status == DS_OK ? load_it(ctx, o, &target, failed_out) : status;
    dsi_trust_close(&trust);
    return status;
}
