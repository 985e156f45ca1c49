/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of the data of a job. See tune_rows.h. */
#include "common/tune_rows.h"

#include <errno.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

enum { MOST_SECONDS = 20 };

static const uint64_t most_bytes = (uint64_t)64 << 20;

static bool is_small(const dsi_data_files *files)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < files->n; ++i) {
        struct stat st;
        bytes += stat(files->paths[i], &st) == 0 ? (uint64_t)st.st_size : 0;
    }
    return bytes <= most_bytes;
}

static ds_status count(train_run *run, uint64_t *rows_out)
{
    DS_TRY(train_data_find(run));
    if (!is_small(&run->data_files)) {
        return DS_OK;
    }
    DS_TRY(train_tokenizer_open(run));
    DS_TRY(train_data_open(run));
    return train_data_rows(run, rows_out);
}

/* The child: ends by itself when it takes too long. */
static void tell_rows(const train_options *options, ds_model *model, int end)
{
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    train_run run = {
        .options = options, .model = model, .seq_length = train_seq_length(options, model)};
    uint64_t rows = 0;
    (void)alarm(MOST_SECONDS);
    if (ds_ctx_create(&params, &run.ctx) < 0 ||
        preference_read(run.ctx, &options->preference, &run.preference) < 0 ||
        count(&run, &rows) < 0) {
        rows = 0;
    }
    _exit(write(end, &rows, sizeof rows) == (ssize_t)sizeof rows ? 0 : 1);
}

uint64_t tune_count_rows(const train_options *options, ds_model *model)
{
    int ends[2];
    uint64_t rows = 0;
    if (pipe(ends) != 0) {
        return 0;
    }
    const pid_t child = fork();
    if (child == 0) {
        (void)close(ends[0]);
        tell_rows(options, model, ends[1]);
    }
    (void)close(ends[1]);
    ssize_t n = 0;
    do {
        n = read(ends[0], &rows, sizeof rows);
    } while (n < 0 && errno == EINTR);
    (void)close(ends[0]);
    while (child > 0 && waitpid(child, NULL, 0) < 0 && errno == EINTR) {
    }
    return n == (ssize_t)sizeof rows ? rows : 0;
}
