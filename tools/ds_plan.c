/* SPDX-License-Identifier: Apache-2.0 */
/* ds_plan: what a run costs, before it runs. A thin main over src/train/plan_*.h; flags, diff and
 * estimate are in tools/common/plan_*.c. */
#include "common/hub_flag.h"
#include "common/output.h"
#include "common/plan_run.h"
#include "monitor/html.h"
#include "report/plan_print.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_FITS = 0, EXIT_FAILED = 1, EXIT_USE = 2, EXIT_TOO_LARGE = 3, PATH_BYTES = 4096 };

/* Writes what `make` gave, and frees it. */
static ds_status put(ds_ctx *ctx, const char *path, ds_status made, char *text)
{
    const ds_status status = made < 0 ? made : output_put(ctx, path, text, strlen(text));
    free(text);
    return status;
}

static ds_status print_all(const plan_run *run, const dsi_printed *printed)
{
    const plan_options *o = run->options;
    char *text = NULL;
    ds_status made = DS_OK;
    if (o->json != NULL) {
        made = dsi_report_json(printed, &text);
        DS_TRY(put(run->ctx, o->json, made, text));
    } else {
        made = dsi_report_text(printed, &text);
        DS_TRY(put(run->ctx, "-", made, text));
    }
    text = NULL;
    if (o->html != NULL) {
        made = dsi_report_html(printed, &text);
        DS_TRY(put(run->ctx, o->html, made, text));
    }
    text = NULL;
    if (o->trace != NULL) {
        made = dsi_report_trace(printed->report, &text);
        DS_TRY(put(run->ctx, o->trace, made, text));
    }
    return DS_OK;
}

static ds_status report(const plan_run *run, int *code)
{
    dsi_full_report full;
    DS_TRY(dsi_full_report_make(run->ctx, &run->request, &full));
    const ds_status status = print_all(run, &full.printed);
    dsi_report_free(&full.report);
    *code = status < 0 ? EXIT_FAILED : full.fits ? EXIT_FITS : EXIT_TOO_LARGE;
    return status;
}

/* Writes the configuration of the best candidate, and reports it. */
static ds_status take_best(plan_run *run, const dsi_fit *fit)
{
    dsi_setting settings[DSI_CANDIDATE_SETTINGS];
    const uint32_t n = dsi_candidate_settings(&fit->tried[fit->best], settings);
    const char *path = run->options->output != NULL ? run->options->output : "-";
    ds_config *fitted = NULL;
    char *text = NULL;
    const ds_status made = dsi_config_text_with(run->ctx, run->config, settings, n, &text);
    DS_TRY(put(run->ctx, path, made, text));
    DS_TRY(dsi_config_with(run->ctx, run->config, settings, n, run->request.n_ranks,
                           ds_model_get_info(run->model)->hidden_size, &fitted));
    ds_config_destroy(&run->config);
    run->config = fitted;
    run->request.config = fitted;
    return DS_OK;
}

static ds_status fit(plan_run *run, int *code)
{
    const dsi_fit_scope scope = {.stage = true,
                                 .recompute = true,
                                 .offload = true,
                                 .nvme_path = run->options->nvme_path,
                                 .free_batch = run->free_batch,
                                 .share = true};
    dsi_fit found;
    char *text = NULL;
    DS_TRY(dsi_fit_search(run->ctx, &run->request, &scope, &found));
    const ds_status made = dsi_fit_text(run->ctx, &found, run->request.memory, &text);
    ds_status status = put(run->ctx, "-", made, text);
    *code = EXIT_TOO_LARGE;
    if (status >= 0 && found.best != UINT32_MAX) {
        status = take_best(run, &found);
        status = status < 0 ? status : report(run, code);
    }
    dsi_fit_free(&found);
    return status;
}

static ds_status plan(ds_ctx *ctx, const plan_options *options, int *code)
{
    plan_run run;
    ds_status status = plan_run_open(ctx, options, options->deepspeed_config, &run);
    if (status >= 0) {
        status = options->fit ? fit(&run, code) : report(&run, code);
    }
    plan_run_close(&run);
    return status;
}

static ds_status run_command(ds_ctx *ctx, const plan_options *options, int *code)
{
    *code = EXIT_FITS;
    switch (options->command) {
    case PLAN_DIFF:
        return plan_diff(ctx, options);
    case PLAN_ESTIMATE:
        return plan_estimate(ctx, options);
    case PLAN_REPORT:
        break;
    }
    return plan(ctx, options, code);
}

/* How a plan's timeline begins; that of a run is a measurement, and no plan makes it again. */
static const char timeline_mark[] = "{\"displayTimeUnit\":\"ms\",\"traceEvents\":[\n"
                                    "{\"ph\":\"M\",\"pid\":100,\"tid\":1,\"name\":\"process_name\","
                                    "\"args\":{\"name\":\"planned rank\"}}";

/* Before the work whose result they will hold. */
static ds_status check_outputs(ds_ctx *ctx, const plan_options *o)
{
    static const char *const flags[] = {"json", "html", "trace", "output"};
    const char *const paths[] = {o->json, o->html, o->trace, o->output};
    char config[PATH_BYTES];
    (void)snprintf(config, sizeof config, "%s/config.json", o->model != NULL ? o->model : "");
    const char *const inputs[] = {o->model != NULL ? config : o->model_config, o->deepspeed_config,
                                  o->device, o->files[0], o->files[1]};
    for (size_t i = 0; i < sizeof paths / sizeof *paths; ++i) {
        DS_TRY(hub_flag_spare(ctx, o->model_found, flags[i], paths[i]));
        DS_TRY(output_not_input(ctx, paths[i], inputs, sizeof inputs / sizeof *inputs));
        DS_TRY(paths[i] != NULL ? output_check(ctx, paths[i]) : DS_OK);
    }
    const bool page = o->html != NULL && strcmp(o->html, "-") != 0 && !o->overwrite;
    DS_TRY(page ? dsi_html_check(ctx, o->html, DSI_PLAN_PAGE_KIND) : DS_OK);
    DS_TRY(output_free(ctx, o->json, "{\n  \"ds_plan\": ", o->overwrite));
    DS_TRY(output_free(ctx, o->trace, timeline_mark, o->overwrite));
    return output_free(ctx, o->output, NULL, o->overwrite);
}

int main(int argc, char **argv)
{
    output_guard("ds_plan");
    ds_ctx *ctx = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    plan_options options;
    bool help = false;
    int code = EXIT_USE;
    params.n_threads = 1;
    if (argc > 1 && strcmp(argv[1], "serve") == 0) {
        return plan_serve(argc - 1, argv + 1);
    }
    if (ds_ctx_create(&params, &ctx) < 0) {
        return EXIT_FAILED;
    }
    ds_status status = plan_options_parse(ctx, argc, argv, &options, &help);
    if (status >= 0 && !help) {
        status = hub_flag_find(ctx, "model", &options.model, options.model_revision, DS_HUB_CONFIG,
                               &options.model_found);
        status = status < 0 ? status
                            : hub_flag_find(ctx, "teacher", &options.teacher.teacher, NULL,
                                            DS_HUB_CONFIG, &options.teacher.found);
        status = status < 0 ? status : check_outputs(ctx, &options);
        code = status < 0 ? EXIT_FAILED : code;
    }
    if (status >= 0 && !help) {
        status = run_command(ctx, &options, &code);
        code = status < 0 ? EXIT_FAILED : code;
    }
    if (status < 0) {
        (void)fprintf(stderr, "ds_plan: %s\n", ds_ctx_error(ctx));
    }
    plan_options_free(&options);
    ds_ctx_destroy(&ctx);
    return status >= 0 && help ? EXIT_FITS : code;
}
