/* SPDX-License-Identifier: Apache-2.0 */
/* Rows to a cache of tokens, against the tokenizer alone on the same texts in memory.
 *
 * usage: bench_data TOKENIZER ROWS.jsonl FOLDER [threads] [rounds]
 * Both use all threads given (default 2); rounds alternate. "Alone" encodes the texts of all rows,
 * which were read before, in parts on each thread. "Cache" is ds_dataset_open with an empty cache
 * in FOLDER: reading, JSON, encoding, writing, sync. Prints medians in MB of text a second, and
 * their ratio.
 */
#include "base/clock.h"
#include "io/file.h"

#include <deepspeed/context.h>
#include <deepspeed/data.h>
#include <deepspeed/op.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_ROUNDS = 31, PART = 64, MOST_THREADS = 256 };

typedef struct texts {
    char **items;
    size_t n, room, bytes;
    const ds_tokenizer *tok;
    ds_tokenizer_scratch *scratch[MOST_THREADS];
    uint64_t n_tokens[MOST_THREADS];
} texts;

static void check(ds_ctx *ctx, ds_status status)
{
    if (status < 0) {
        (void)fprintf(stderr, "bench_data: %s\n", ds_ctx_error(ctx));
        exit(1);
    }
}

/* Of all threads; other work on the machine does not count. */
static double cpu_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (double)now.tv_sec + (double)now.tv_nsec * 1e-9;
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median(double *values, int n)
{
    qsort(values, (size_t)n, sizeof *values, by_value);
    return values[n / 2];
}

static void read_texts(const char *path, texts *t)
{
    char *line = NULL;
    size_t room = 0;
    FILE *file = fopen(path, "rb");
    while (file != NULL && getline(&line, &room, file) > 0) {
        json_t *row = json_loads(line, 0, NULL);
        const char *text = json_string_value(json_object_get(row, "text"));
        if (t->n == t->room) {
            t->room = t->room * 2 + 1024;
            t->items = realloc(t->items, t->room * sizeof *t->items);
        }
        if (text == NULL || t->items == NULL) {
            (void)fprintf(stderr, "bench_data: %s: no rows with \"text\"\n", path);
            exit(1);
        }
        t->bytes += strlen(text);
        t->items[t->n++] = strdup(text);
        json_decref(row);
    }
    free(line);
    if (file != NULL) {
        (void)fclose(file);
    }
}

static void encode_part(void *arg, uint32_t task, uint32_t thread)
{
    texts *t = arg;
    const size_t begin = (size_t)task * PART;
    const size_t end = begin + PART < t->n ? begin + PART : t->n;
    for (size_t i = begin; i < end; ++i) {
        ds_tokens tokens;
        (void)ds_tokenizer_encode(t->tok, t->scratch[thread], t->items[i], strlen(t->items[i]), 0,
                                  &tokens);
        t->n_tokens[thread] += tokens.n;
    }
}

static double run_alone(ds_ctx *ctx, texts *t)
{
    const double start = dsi_clock_seconds();
    for (uint32_t i = 0; i < ds_ctx_n_threads(ctx); ++i) {
        check(ctx, ds_tokenizer_scratch_create(t->tok, 0, &t->scratch[i]));
    }
    ds_parallel(ctx, encode_part, t, (uint32_t)((t->n + PART - 1) / PART));
    for (uint32_t i = 0; i < ds_ctx_n_threads(ctx); ++i) {
        ds_tokenizer_scratch_destroy(&t->scratch[i]);
    }
    return dsi_clock_seconds() - start;
}

static double run_cache(ds_ctx *ctx, const texts *t, const char *path, const char *folder)
{
    ds_dataset *data = NULL;
    const ds_dataset_params params = {
        .files = &path, .n_files = 1, .tokenizer = t->tok, .seq_length = 1024, .cache = folder};
    check(ctx, dsi_folder_remove(ctx, folder));
    const double start = dsi_clock_seconds();
    check(ctx, ds_dataset_open(ctx, &params, &data));
    const double seconds = dsi_clock_seconds() - start;
    ds_dataset_close(&data);
    return seconds;
}

int main(int argc, char **argv)
{
    ds_ctx *ctx = NULL;
    ds_tokenizer *tok = NULL;
    texts t = {0};
    double alone[MOST_ROUNDS];
    double cache[MOST_ROUNDS];
    double ratio[MOST_ROUNDS];
    double cpu[MOST_ROUNDS];
    ds_ctx_params params = ds_ctx_params_default();
    if (argc < 4) {
        (void)fprintf(stderr, "usage: bench_data TOKENIZER ROWS.jsonl FOLDER [threads] [rounds]\n");
        return 2;
    }
    params.n_threads = argc > 4 ? (uint32_t)atoi(argv[4]) : 2;
    params.level = DS_LOG_WARN;
    int rounds = argc > 5 ? atoi(argv[5]) : 5;
    rounds = rounds < 1 ? 1 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    check(NULL, ds_ctx_create(&params, &ctx));
    check(ctx, ds_tokenizer_open(ctx, argv[1], &tok));
    read_texts(argv[2], &t);
    t.tok = tok;
    for (int i = 0; i < rounds; ++i) {
        const double start = cpu_seconds();
        alone[i] = run_alone(ctx, &t);
        const double middle = cpu_seconds();
        cache[i] = run_cache(ctx, &t, argv[2], argv[3]);
        ratio[i] = alone[i] / cache[i];
        cpu[i] = (middle - start) / (cpu_seconds() - middle);
    }
    const double mb = (double)t.bytes * 1e-6;
    (void)printf(
        "%zu rows, %.0f MB of text, %u threads: alone %.1f MB/s, cache %.1f MB/s, ratio of "
        "the time %.2f, of processor time %.2f\n",
        t.n, mb, params.n_threads, mb / median(alone, rounds), mb / median(cache, rounds),
        median(ratio, rounds), median(cpu, rounds));
    ds_tokenizer_close(&tok);
    ds_ctx_destroy(&ctx);
    return 0;
}
