/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizer speed on one thread: opening, and encoding a text.
 *
 * usage: bench_tokenizer TOKENIZER TEXT [rounds]
 * Prints medians: milliseconds to open, megabytes of text a second with a fresh scratch and with a
 * warm one. bench_tokenizer.py compares with the `tokenizers` package, both in one run.
 */
#include "base/buf.h"
#include "base/clock.h"

#include <deepspeed/context.h>
#include <deepspeed/tokenizer.h>
#include <stdio.h>
#include <stdlib.h>

enum { MOST_ROUNDS = 99 };

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

static void check(ds_ctx *ctx, ds_status status)
{
    if (status < 0) {
        (void)fprintf(stderr, "bench_tokenizer: %s\n", ds_ctx_error(ctx));
        exit(1);
    }
}

/* Seconds to encode the text once. */
static double encode_once(ds_ctx *ctx, const ds_tokenizer *tok, ds_tokenizer_scratch *scratch,
                          const dsi_buf *text, size_t *n_out)
{
    ds_tokens tokens;
    const double start = dsi_clock_seconds();
    check(ctx, ds_tokenizer_encode(tok, scratch, dsi_buf_text(text), text->size, 0, &tokens));
    *n_out = tokens.n;
    return dsi_clock_seconds() - start;
}

int main(int argc, char **argv)
{
    if (argc < 3) {
        (void)fprintf(stderr, "usage: bench_tokenizer TOKENIZER TEXT [rounds]\n");
        return 2;
    }
    int rounds = argc > 3 ? atoi(argv[3]) : 9;
    rounds = rounds < 1 ? 1 : rounds > MOST_ROUNDS ? MOST_ROUNDS : rounds;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    ds_ctx *ctx = NULL;
    check(NULL, ds_ctx_create(&params, &ctx));
    dsi_buf text = dsi_buf_make((size_t)1 << 30);
    check(ctx, dsi_buf_read_file(ctx, argv[2], &text));
    double open[MOST_ROUNDS];
    double cold[MOST_ROUNDS];
    double warm[MOST_ROUNDS];
    size_t n = 0;
    for (int i = 0; i < rounds; ++i) {
        ds_tokenizer *tok = NULL;
        ds_tokenizer_scratch *scratch = NULL;
        const double start = dsi_clock_seconds();
        check(ctx, ds_tokenizer_open(ctx, argv[1], &tok));
        open[i] = dsi_clock_seconds() - start;
        check(ctx, ds_tokenizer_scratch_create(tok, 0, &scratch));
        cold[i] = encode_once(ctx, tok, scratch, &text, &n);
        warm[i] = encode_once(ctx, tok, scratch, &text, &n);
        ds_tokenizer_scratch_destroy(&scratch);
        ds_tokenizer_close(&tok);
    }
    const double mb = (double)text.size * 1e-6;
    (void)printf("open %.1f ms, cold %.1f MB/s, warm %.1f MB/s, %zu bytes, %zu tokens\n",
                 median(open, rounds) * 1e3, mb / median(cold, rounds), mb / median(warm, rounds),
                 text.size, n);
    dsi_buf_free(&text);
    ds_ctx_destroy(&ctx);
    return 0;
}
