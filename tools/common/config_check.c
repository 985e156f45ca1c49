/* SPDX-License-Identifier: Apache-2.0 */
/* ds_config check of a training configuration. See config_check.h. */
#include "common/config_check.h"

#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { RIGHT = 0, WRONG = 1, UNREADABLE = 3, ANY_WIDTH = 1024, MOST_RANKS = 1 << 20 };

static int64_t number_at(const ds_config *config, const char *path)
{
    const ds_config_item *item = ds_config_find(config, path);
    return item != NULL ? strtoll(item->value, NULL, 10) : 0; /* null and "auto": 0 */
}

/* The ranks that the three batch sizes of a file are for, where all three are numbers. */
static uint32_t ranks_of(ds_ctx *ctx, const char *file, const ds_config_params *params)
{
    ds_config *config = NULL;
    struct stat st;
    if (stat(file, &st) != 0 || !S_ISREG(st.st_mode) || /* a pipe is read once */
        ds_config_load_file(ctx, file, params, &config) < 0) {
        return 1; /* the check says why */
    }
    const int64_t total = number_at(config, "train_batch_size");
    const int64_t micro = number_at(config, "train_micro_batch_size_per_gpu");
    const int64_t steps = number_at(config, "gradient_accumulation_steps");
    const int64_t tp = number_at(config, "tensor_parallel.autotp_size");
    const int64_t one = micro * steps; /* both below 2^31 */
    const int64_t data = total > 0 && one > 0 && total % one == 0 ? total / one : 1;
    const int64_t sp = number_at(config, "sequence_parallel_size");
    const int64_t pp = number_at(config, "pipeline.stages");
    const int64_t shared = (pp > 1 && pp <= MOST_RANKS ? pp : 1) *
                           (tp > 1 && tp <= MOST_RANKS ? tp : 1) *
                           (sp > 1 && sp <= MOST_RANKS ? sp : 1);
    const int64_t ranks = data <= MOST_RANKS && shared <= MOST_RANKS ? data * shared : data;
    ds_config_destroy(&config);
    return ranks <= MOST_RANKS ? (uint32_t)ranks : 1;
}

static size_t n_lines(const char *text)
{
    size_t n = 1;
    for (const char *at = strchr(text, '\n'); at != NULL; at = strchr(at + 1, '\n')) {
        ++n;
    }
    return n;
}

static int refused(ds_ctx *ctx, const char *file, const ds_config_params *params)
{
    char *all = NULL;
    char *said = strdup(ds_ctx_error(ctx));
    size_t n_errors = 0;
    /* an error record is cut where a file has very many errors */
    const ds_status status = ds_config_check_file(ctx, file, params, 0, NULL, &n_errors, &all);
    const char *text = n_errors > 0 ? all : said != NULL ? said : "no memory";
    n_errors = n_errors > 0 ? n_errors : n_lines(text);
    if (status < 0) {
        (void)fprintf(stderr, "ds_config: %s\n", text);
    } else {
        (void)printf("%s\n%s: %zu error%s\n", text, file, n_errors, n_errors == 1 ? "" : "s");
    }
    free(said);
    free(all);
    return status < 0 ? UNREADABLE : WRONG;
}

int config_check(ds_ctx *ctx, const train_options *options, uint32_t world_size, const char *file)
{
    const ds_config_params params = {.allow_unknown_keys = options->allow_unknown_keys,
                                     .strict = options->strict};
    train_options o = *options;
    o.deepspeed_config = file;
    if (!o.trainer.hidden_size.known) {
        o.trainer.hidden_size = ds_known(ANY_WIDTH); /* a model replaces it */
    }
    const uint32_t ranks = world_size > 0 ? world_size : ranks_of(ctx, file, &params);
    train_run run;
    const ds_status status = train_check(ctx, ranks, &o, &run);
    int code = RIGHT;
    if (status < 0) {
        code = refused(ctx, file, &params);
    } else {
        const size_t n = ds_config_n_notices(run.config);
        (void)printf("%s: right for %u rank%s, %zu notice%s\n", file, ranks, ranks == 1 ? "" : "s",
                     n, n == 1 ? "" : "s");
    }
    train_teardown(&run);
    return code;
}
