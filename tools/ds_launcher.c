/* deepspeed (also installed as ds): starts the ranks of a job. A thin main over src/launch. */
#include "common/launch_flags.h"
#include "launch/head.h"

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

int main(int argc, char **argv)
{
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
        status = dsi_head_run(ctx, &options, &code);
    }
    code = status < 0 ? fail(ctx, status) : code;
    dsi_words_free(&options.command);
    ds_ctx_destroy(&ctx);
    return code;
}
