/* ds_plan: what a run costs, before it runs. A thin main over src/train/plan_report.h. */
#include "common/plan_run.h"

#include <stdio.h>
#include <stdlib.h>

enum { EXIT_FITS = 0, EXIT_FAILED = 1, EXIT_USE = 2, EXIT_TOO_LARGE = 3 };

static ds_status report(plan_run *run, int *code)
{
    dsi_plan_report made;
    char *text = NULL;
    DS_TRY(dsi_report_make(run->ctx, &run->request, &made));
    ds_status status = dsi_report_text(&made, &text);
    if (status >= 0) {
        (void)fputs(text, stdout);
        const size_t memory = run->request.memory;
        *code = memory > 0 && dsi_report_need(&made) > memory ? EXIT_TOO_LARGE : EXIT_FITS;
    }
    free(text);
    dsi_report_free(&made);
    return status;
}

int main(int argc, char **argv)
{
    ds_ctx *ctx = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    plan_options options;
    plan_run run = {0};
    bool help = false;
    int code = EXIT_USE;
    params.n_threads = 1;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return EXIT_FAILED;
    }
    ds_status status = plan_options_parse(ctx, argc, argv, &options, &help);
    if (status >= 0 && !help) {
        code = EXIT_FAILED;
        status = plan_run_open(ctx, &options, &run);
        status = status < 0 ? status : report(&run, &code);
        plan_run_close(&run);
    }
    if (status < 0) {
        (void)fprintf(stderr, "ds_plan: %s\n", ds_ctx_error(ctx));
    }
    plan_options_free(&options);
    ds_ctx_destroy(&ctx);
    return status >= 0 && help ? EXIT_FITS : code;
}
