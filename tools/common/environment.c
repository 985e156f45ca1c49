/* What every tool reads of the environment, checked when it starts. See environment.h. */
#include "common/environment.h"

#include "accel/cpu/cpu_features.h"
#include "base/number.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_THREADS = 4096, MOST_RESTARTS = 1000000, EXIT_USE = 2 };

/* One word of those with | between them. */
static ds_status check_word(ds_ctx *ctx, const char *name, const char *words)
{
    const char *text = getenv(name);
    if (text == NULL || text[0] == '\0') {
        return DS_OK;
    }
    const size_t n = strlen(text);
    const char *first = strchr(text, '|') == NULL ? words : NULL; /* several are no word */
    for (const char *at = first; at != NULL; at = strchr(at, '|')) {
        at += *at == '|';
        if (strncmp(at, text, n) == 0 && (at[n] == '|' || at[n] == '\0')) {
            return DS_OK;
        }
    }
    return ds_fail(ctx, DS_ERR_CONFIG,
                   "the environment's %s is \"%.60s\", expected one of %s; change it, or unset it",
                   name, text, words);
}

ds_status environment_threads(ds_ctx *ctx, uint32_t *threads_out)
{
    int64_t n = 0;
    DS_TRY(dsi_number_env(ctx, "DS_THREADS", 1, MOST_THREADS, 0, &n));
    *threads_out = (uint32_t)n;
    return DS_OK;
}

/* Modules that are not there are looked for elsewhere: a folder that is none would do nothing. */
static ds_status check_folder(ds_ctx *ctx, const char *name)
{
    const char *path = getenv(name);
    struct stat st;
    if (path == NULL || path[0] == '\0' || (stat(path, &st) == 0 && S_ISDIR(st.st_mode))) {
        return DS_OK;
    }
    return ds_fail(ctx, DS_ERR_CONFIG,
                   "the environment's %s is \"%.200s\", which is no folder; change it, or unset it",
                   name, path);
}

static ds_status check_all(ds_ctx *ctx)
{
    uint32_t threads = 0;
    int64_t restarts = 0;
    DS_TRY(dsi_cpu_isa_check(ctx));
    DS_TRY(environment_threads(ctx, &threads));
    DS_TRY(dsi_number_env(ctx, "DS_RESTART_COUNT", 0, MOST_RESTARTS, 0, &restarts));
    DS_TRY(check_word(ctx, "DS_ACCELERATOR", "cpu|cuda"));
    DS_TRY(check_word(ctx, "DS_MPI", "openmpi|mpich"));
    DS_TRY(check_word(ctx, "DS_RENDEZVOUS", "launcher"));
    DS_TRY(check_word(ctx, "DS_AUTOTUNING_TRIAL", "1"));
    return check_folder(ctx, "DS_MODULE_PATH");
}

void environment_check(const char *program)
{
    ds_ctx_params params = ds_ctx_params_default();
    ds_ctx *ctx = NULL;
    params.n_threads = 1;
    if (ds_ctx_create(&params, &ctx) < 0) {
        (void)fprintf(stderr, "%s: no memory\n", program);
        exit(EXIT_FAILURE);
    }
    if (check_all(ctx) < 0) {
        (void)fprintf(stderr, "%s: %s\n", program, ds_ctx_error(ctx));
        exit(EXIT_USE);
    }
    ds_ctx_destroy(&ctx);
}
