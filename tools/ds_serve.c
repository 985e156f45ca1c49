/* SPDX-License-Identifier: Apache-2.0 */
/* ds_serve: a model folder over HTTP, as OpenAI's clients speak it; or a front of several such. Its
 * flags are in serve/serve_options.c, what follows in serve/life.c and balance/balance.c. */
#include "balance/balance.h"
#include "common/environment.h"
#include "common/output.h"

#include <signal.h>
#include <stdlib.h>

enum { EXIT_USE = 2 };

/* One that comes while a model loads waits until that is served; in all threads. */
static void hold_reloads(void)
{
    sigset_t reload;
    (void)sigemptyset(&reload);
    (void)sigaddset(&reload, SIGHUP);
    (void)pthread_sigmask(SIG_BLOCK, &reload, NULL);
}

int main(int argc, char **argv)
{
    output_guard("ds_serve");
    hold_reloads();
    ds_ctx *ctx = NULL;
    serve_options o = {0};
    bool help = false;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return EXIT_FAILURE;
    }
    ds_status status = serve_options_parse(ctx, argc, argv, &o, &help);
    int code = status < 0 ? EXIT_USE : EXIT_SUCCESS;
    if (status >= 0 && !help) {
        ds_ctx_params params;
        status = o.control ? control_obey(ctx, &o) : DS_OK;
        status = status < 0 ? status : environment_context(ctx, o.threads, &params, NULL);
        if (serve_options_are_front(&o)) {
            params.n_threads = 1; /* it forks */
        }
        o.threads = params.n_threads;
        o.model_asked = o.model;
        if (status >= 0) {
            ds_ctx_destroy(&ctx);
            status = ds_ctx_create(&params, &ctx);
        }
        status = status < 0                    ? status
                 : serve_options_are_front(&o) ? balance_run(ctx, &o)
                                               : front_run(ctx, &o);
        code = status == DS_ERR_ARG ? EXIT_USE : status < 0 ? EXIT_FAILURE : EXIT_SUCCESS;
    }
    if (status < 0) {
        (void)fprintf(stderr, "ds_serve: %s\n", ds_ctx_error(ctx));
    }
    serve_options_free(&o);
    ds_ctx_destroy(&ctx);
    return code;
}
