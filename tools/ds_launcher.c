/* SPDX-License-Identifier: Apache-2.0 */
/* deepspeed (also installed as ds): starts the ranks of a job. A thin main over src/launch. */
#include "common/launch_flags.h"
#include "common/output.h"
#include "common/tune_planner.h"
#include "launch/head.h"
#include "tune/tune.h"

#include <deepspeed/context.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

enum { EXIT_USAGE = 2, EXIT_FAILED = 3 };

/* Which lines are shown: set once the flags are read. */
typedef struct sink {
    ds_log_level level;
} sink;

static void write_line(void *user, ds_log_level level, const char *line)
{
    const sink *s = user;
    if (level <= s->level) {
        (void)fprintf(stderr, "deepspeed: %s\n", line);
    }
}

static ds_log_level level_of(const dsi_launch_options *o)
{
    if (o->quiet || strcmp(o->log_level, "error") == 0 || strcmp(o->log_level, "critical") == 0) {
        return DS_LOG_ERROR;
    }
    return strcmp(o->log_level, "debug") == 0     ? DS_LOG_TENSOR
           : strcmp(o->log_level, "warning") == 0 ? DS_LOG_WARN
                                                  : DS_LOG_JOB;
}

static int fail(ds_ctx *ctx, ds_status status)
{
    const char *text = ds_ctx_error(ctx);
    while (*text != '\0') { /* the hostfile's errors are a line each */
        const size_t n = strcspn(text, "\n");
        (void)fprintf(stderr, "deepspeed: %.*s\n", (int)n, text);
        text += n + (text[n] == '\n' ? 1 : 0);
    }
    return status == DS_ERR_IO || status == DS_ERR_NOMEM ? EXIT_FAILED : EXIT_USAGE;
}

/* The launcher's own words without those that belong to the search. */
static void own_flags(int n, char **argv, dsi_words *out)
{
    static const char *const mine[] = {"--autotuning", "--trial_seconds", "--device",
                                       "--rank_memory", "--dry_run"};
    for (int i = 0; i < n; ++i) {
        bool skip = strcmp(argv[i], "--") == 0;
        for (size_t k = 0; k < sizeof mine / sizeof mine[0] && !skip; ++k) {
            const size_t length = strlen(mine[k]);
            size_t at = 0;
            while (at < length && (argv[i][at] == mine[k][at] ||
                                   (at >= 2 && argv[i][at] == '-' && mine[k][at] == '_'))) {
                ++at;
            }
            const bool begins = k == 0 && at > 2; /* --autotuning may be abbreviated */
            skip = (at == length || begins) && (argv[i][at] == '\0' || argv[i][at] == '=');
            if (skip && argv[i][at] == '\0' && strcmp(mine[k], "--dry_run") != 0) {
                ++i; /* its value */
            }
        }
        if (!skip) {
            dsi_words_add(out, argv[i]);
        }
    }
}

static ds_status tune(ds_ctx *ctx, const dsi_launch_options *options, int argc, char **argv,
                      int *code)
{
    dsi_words own = {0};
    dsi_tune_params params = {.launch = options,
                              .own_flags = &own,
                              .run = strcmp(options->autotuning, "run") == 0,
                              .trial_seconds = options->trial_seconds,
                              .memory = options->rank_bytes,
                              .memory_of = "--rank_memory",
                              .device = options->device,
                              .planner = &tune_planner_ds_train};
    own_flags(argc - (int)options->command.n, argv, &own);
    ds_status status = dsi_words_check(ctx, &own);
    if (status >= 0 && params.memory == 0) {
        status = tune_find_memory(ctx, options, &params.memory);
        params.memory_of = "what is free here, shared";
    }
    params.trial_memory = params.memory;
    if (status >= 0 && params.device == NULL) {
        uint64_t bytes = 0;
        status = tune_find_device(ctx, options, &params.device, &bytes);
        if (params.device != NULL) {
            params.memory = bytes;
            params.memory_of = "the device's";
            params.device_memory = (size_t)bytes;
        }
    }
    status = status < 0 ? status : dsi_tune_run(ctx, &params, code);
    dsi_words_free(&own);
    return status;
}

int main(int argc, char **argv)
{
    output_guard("deepspeed");
    sink s = {.level = DS_LOG_JOB};
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1; /* the launcher forks: it must have no other thread */
    params.log = write_line;
    params.log_user = &s;
    params.level = DS_LOG_TENSOR;
    ds_ctx *ctx = NULL;
    (void)signal(SIGPIPE, SIG_IGN); /* a closed terminal must not end the job unreported */
    if (ds_ctx_create(&params, &ctx) < 0) {
        return EXIT_FAILED;
    }
    dsi_launch_options options;
    bool help = false;
    int code = 0;
    ds_status status = launch_flags_parse(ctx, argc, argv, &options, &help);
    if (status >= 0 && !help) {
        s.level = level_of(&options);
        status = options.autotuning != NULL ? tune(ctx, &options, argc, argv, &code)
                                            : dsi_head_run(ctx, &options, &code);
    }
    code = status < 0 ? fail(ctx, status) : code;
    dsi_words_free(&options.command);
    ds_ctx_destroy(&ctx);
    return code;
}
