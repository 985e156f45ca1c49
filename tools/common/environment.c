/* SPDX-License-Identifier: Apache-2.0 */
/* What every tool reads of the environment, checked when it starts. See environment.h. */
#include "common/environment.h"

#include "accel/cpu/cpu_features.h"
#include "base/number.h"
#include "base/processor.h"
#include "comm/comm.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { MOST_THREADS = 4096, MOST_RESTARTS = 1000000, EXIT_USE = 2 };

/* Whether a rank may have its own. */
typedef enum variable_may {
    OWN,    /* it changes no result */
    SAME,   /* it is compared (environment_text) */
    EFFECT, /* what comes of it is compared (engine_agree.c): hosts may need their own to be equal
             */
} variable_may;

/* A variable; what the launcher gives each rank and what tells jobs apart is comm's (comm_open.c,
 * job_name.c). */
typedef struct variable {
    const char *name;
    const char *words; /* that it may be, | between them; NULL: see min and max */
    int64_t min, max;  /* of a number; both 0: see folder */
    bool folder;       /* it names a folder; else the reader checks it */
    variable_may ranks;
} variable;

static const variable variables[] = {
    {.name = "DS_CPU_ISA", .ranks = EFFECT},
    {.name = "DS_THREADS", .min = 1, .max = MOST_THREADS, .ranks = EFFECT},
    {.name = "DS_AUTOTUNING_TRIAL", .words = "1", .ranks = SAME},
    {.name = "DS_RESTART_COUNT", .max = MOST_RESTARTS, .ranks = SAME},
    {.name = "DS_RANK_MEMORY", .min = 1, .max = INT64_MAX, .ranks = OWN},
    {.name = "DS_ACCELERATOR", .words = "cpu|cuda", .ranks = OWN}, /* of the launcher */
    {.name = "DS_MPI", .words = "openmpi|mpich", .ranks = OWN},    /* how a rank finds the module */
    {.name = "DS_MODULE_PATH", .folder = true, .ranks = OWN},
    {.name = "DS_CUDA_CACHE_SECONDS", .max = 86400, .ranks = OWN},
    {.name = "DS_RENDEZVOUS", .words = "launcher", .ranks = OWN}, /* rank 0's */
};

enum { N_VARIABLES = sizeof variables / sizeof variables[0] };

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

static ds_status check_one(ds_ctx *ctx, const variable *v)
{
    int64_t number = 0;
    if (v->words != NULL) {
        return check_word(ctx, v->name, v->words);
    }
    if (v->max > 0) {
        return dsi_number_env(ctx, v->name, v->min, v->max, 0, &number);
    }
    return v->folder ? check_folder(ctx, v->name) : DS_OK;
}

static ds_status check_all(ds_ctx *ctx)
{
    DS_TRY(dsi_cpu_isa_check(ctx));
    for (size_t i = 0; i < N_VARIABLES; ++i) {
        DS_TRY(check_one(ctx, &variables[i]));
    }
    return DS_OK;
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

char *environment_text(void)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    for (size_t i = 0; out != NULL && i < N_VARIABLES; ++i) {
        const char *value = getenv(variables[i].name);
        if (variables[i].ranks == SAME) {
            (void)fprintf(out, "%s: %s\n", variables[i].name, value != NULL ? value : "");
        }
    }
    if (out == NULL || fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}

ds_status environment_context(ds_ctx *ctx, int64_t threads, ds_ctx_params *params_out,
                              uint32_t *local_rank_out)
{
    dsi_comm_world world;
    DS_TRY(dsi_comm_world_read(ctx, &world));
    ds_ctx_params params = ds_ctx_params_default();
    params.rank = world.rank;
    params.world_size = world.size;
    params.n_threads = (uint32_t)threads;
    if (params.n_threads == 0) {
        DS_TRY(environment_threads(ctx, &params.n_threads));
    }
    if (params.n_threads == 0 && world.local_size > 1) {
        const uint32_t cores = dsi_processor_n_cores();
        params.n_threads = cores > world.local_size ? cores / world.local_size : 1;
    }
    if (world.rank != 0) {
        params.level = DS_LOG_WARN;
    }
    if (local_rank_out != NULL) {
        *local_rank_out = world.local_rank;
    }
    *params_out = params;
    return DS_OK;
}
