/* SPDX-License-Identifier: Apache-2.0 */
/* The report of a plan for programs, as the tool ds_plan prints it. See include/deepspeed/plan.h.
 */
#include "base/processor.h"
#include "base/reserved.h"
#include "config/config_values.h"
#include "report/plan_print.h"
#include "report/plan_stages.h"

#include <stdio.h>

enum { WHY_CEILING = 2048 };

ds_status dsi_full_report_make(ds_ctx *ctx, const dsi_report_request *request,
                               dsi_full_report *full)
{
    *full = (dsi_full_report){.printed = {.report = &full->report, .changes = full->changes}};
    DS_TRY(dsi_report_make(ctx, request, &full->report));
    full->fits = !dsi_report_lacks(&full->report, NULL);
    if (full->fits) {
        return DS_OK;
    }
    const ds_status status =
        dsi_fit_changes(ctx, &full->report, full->changes, &full->printed.n_changes);
    full->printed.least = full->printed.n_changes == 0 && full->changes[0].planned;
    if (status < 0) {
        dsi_report_free(&full->report);
    }
    return status;
}

ds_status dsi_report_limit_device(ds_ctx *ctx, const dsi_report_request *request,
                                  ds_config **limited_out)
{
    char bytes[32];
    const dsi_setting setting = {"device_memory", bytes};
    *limited_out = NULL;
    if (request->device == NULL || request->device->shared || request->memory == 0 ||
        dsi_config_values(request->config)->device_memory > 0) {
        return DS_OK;
    }
    (void)snprintf(bytes, sizeof bytes, "%zu", request->memory);
    return dsi_config_with(ctx, request->config, &setting, 1, request->n_ranks,
                           ds_model_get_info(request->model)->hidden_size, limited_out);
}

static ds_status check(ds_ctx *ctx, const ds_plan_params *params)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_plan_params", params));
    const bool resolved = params->config != NULL && dsi_config_values(params->config) != NULL;
    if (params->model == NULL || !resolved) {
        return ds_fail(ctx, DS_ERR_ARG, "a plan needs a model and a resolved configuration");
    }
    const uint32_t n_ranks = dsi_config_values(params->config)->world_size;
    if (params->seq_length < 1) {
        return ds_fail(ctx, DS_ERR_ARG, "seq_length: expected at least 1, found %lld",
                       (long long)params->seq_length);
    }
    if (params->n_nodes > n_ranks) {
        return ds_fail(ctx, DS_ERR_ARG, "n_nodes: expected at most the %u ranks, found %u", n_ranks,
                       params->n_nodes);
    }
    return DS_OK;
}

/* Threads and memory that nobody gave are a rank's share of a node. */
static dsi_report_request request_of(const ds_plan_params *params, const dsi_device *device)
{
    const uint32_t n_ranks = dsi_config_values(params->config)->world_size;
    const uint32_t n_nodes = params->n_nodes > 0 ? params->n_nodes : 1;
    const uint32_t local = (n_ranks + n_nodes - 1) / n_nodes;
    const uint32_t share = dsi_device_cores(device) / local;
    const size_t own =
        device != NULL ? (size_t)dsi_device_of_rank(device, local, 0).memory_bytes : 0;
    return (dsi_report_request){
        .model = params->model,
        .config = params->config,
        .seq_length = params->seq_length,
        .preference = params->preference,
        .n_ranks = n_ranks,
        .n_nodes = n_nodes,
        .stage = DSI_STAGE_LARGEST,
        .n_threads = params->n_threads > 0 ? params->n_threads
                     : share > 0           ? share
                                           : 1,
        .frozen = params->frozen,
        .n_frozen = params->n_frozen,
        .adapter = params->adapter,
        .distillation = params->distillation,
        .device = device,
        .accelerator = params->accelerator,
        .memory = params->memory_bytes > 0 ? (size_t)params->memory_bytes : own,
        .memory_of = params->memory_bytes > 0 || device == NULL ? "memory_bytes" : device->name};
}

static ds_status print(const dsi_full_report *full, ds_plan_format format, char **text_out)
{
    switch (format) {
    case DS_PLAN_JSON:
        return dsi_report_json(&full->printed, text_out);
    case DS_PLAN_HTML:
        return dsi_report_html(&full->printed, text_out);
    case DS_PLAN_TRACE:
        return dsi_report_trace(&full->report, text_out);
    case DS_PLAN_TEXT:
        break;
    }
    return dsi_report_text(&full->printed, text_out);
}

ds_status ds_plan_pipeline(ds_ctx *ctx, const ds_plan_params *params, ds_config **config_out,
                           char **why_out)
{
    dsi_device device;
    dsi_buf why = dsi_buf_make(WHY_CEILING);
    DS_TRY(check(ctx, params));
    *config_out = NULL;
    if (why_out != NULL) {
        *why_out = NULL;
    }
    if (!dsi_stages_are_open(params->config)) {
        return DS_OK;
    }
    if (params->device != NULL) {
        DS_TRY(dsi_device_load(ctx, params->device, &device));
    }
    const dsi_report_request request = request_of(params, params->device != NULL ? &device : NULL);
    const ds_status status = dsi_stages_choose(ctx, &request, config_out, &why);
    if (status >= 0 && why_out != NULL) {
        *why_out = why.data; /* the caller's */
        return status;
    }
    dsi_buf_free(&why);
    return status;
}

ds_status ds_plan_report(ds_ctx *ctx, const ds_plan_params *params, ds_plan_format format,
                         bool *fits_out, char **text_out)
{
    dsi_device device;
    dsi_full_report full;
    ds_config *limited = NULL;
    DS_TRY(check(ctx, params));
    if (params->device != NULL) {
        DS_TRY(dsi_device_load(ctx, params->device, &device));
    }
    dsi_report_request request = request_of(params, params->device != NULL ? &device : NULL);
    DS_TRY(dsi_report_limit_device(ctx, &request, &limited));
    request.config = limited != NULL ? limited : request.config;
    ds_status status = dsi_full_report_make(ctx, &request, &full);
    if (status >= 0) {
        status = print(&full, format, text_out);
        if (status >= 0 && fits_out != NULL) {
            *fits_out = full.fits;
        }
        dsi_report_free(&full.report);
    }
    ds_config_destroy(&limited);
    return status;
}
