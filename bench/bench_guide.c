/* SPDX-License-Identifier: Apache-2.0 */
/* Masks of structured output: microseconds of a core for each token, over random JSON schemas and a
 * vocabulary as large as today's.
 *
 * usage: bench_guide TOKENIZER [words] [schemas]
 * The vocabulary is the tokenizer's words, Han characters alone and in pairs, and pairs of the
 * tokenizer's words, until there are so many (default 128000). A text of each schema (default 500)
 * is drawn at random; every mask on the way is timed, and how long the schema took to be read.
 */
#include "base/buf.h"
#include "common/schema_valid.h"
#include "guide/guide.h"

#include <deepspeed/context.h>
#include <deepspeed/tokenizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { MOST_TOKENS = 200, MOST_BYTES = 1 << 28, HAN = 0x4e00, N_HAN = 20000, N_PAIRS = 10000 };

static void check(ds_ctx *ctx, ds_status status)
{
    if (status < 0) {
        (void)fprintf(stderr, "bench_guide: %s\n", ds_ctx_error(ctx));
        exit(1);
    }
}

static double core_seconds(void)
{
    struct timespec now;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

/* ---- the vocabulary ---- */
typedef struct words {
    dsi_buf bytes;
    size_t *ends;
    uint32_t n, most;
} words;

static void add(words *w, const char *text, size_t n)
{
    if (w->n < w->most) {
        dsi_buf_append(&w->bytes, text, n);
        w->ends[w->n++] = w->bytes.size;
    }
}

static size_t han(char *text, uint32_t i)
{
    const uint32_t c = HAN + i % N_HAN;
    text[0] = (char)(0xe0 | c >> 12);
    text[1] = (char)(0x80 | (c >> 6 & 0x3f));
    text[2] = (char)(0x80 | (c & 0x3f));
    return 3;
}

static dsi_vocabulary *make_vocabulary(ds_ctx *ctx, const ds_tokenizer *tokenizer, uint32_t most)
{
    words w = {.bytes = dsi_buf_make(MOST_BYTES), .most = most - 1};
    const uint32_t own = ds_tokenizer_vocab_size(tokenizer);
    uint64_t seed = 1;
    char text[8];
    w.ends = malloc(most * sizeof *w.ends);
    for (uint32_t id = 0; id < own && w.ends != NULL; ++id) {
        char *word = NULL;
        size_t n = 0;
        check(ctx, ds_tokenizer_decode(tokenizer, &id, 1, 0, &word, &n));
        add(&w, word, n);
        free(word);
    }
    const uint32_t single = w.n;
    for (uint32_t i = 0; i < N_HAN; ++i) {
        add(&w, text, han(text, i));
    }
    for (uint32_t i = 0; i < N_PAIRS; ++i) {
        const size_t n = han(text, (uint32_t)schema_below(&seed, N_HAN));
        add(&w, text, n + han(text + n, (uint32_t)schema_below(&seed, N_HAN)));
    }
    while (w.n < w.most && single > 1) {
        char both[256];
        size_t n = 0;
        for (int k = 0; k < 2; ++k) {
            const uint32_t id = 1 + (uint32_t)schema_below(&seed, single - 1);
            const size_t from = w.ends[id - 1];
            const size_t size = w.ends[id] - from < 100 ? w.ends[id] - from : 100;
            memcpy(both + n, w.bytes.data + from, size);
            n += size;
        }
        add(&w, both, n);
    }
    const char **texts = malloc(most * sizeof *texts);
    size_t *sizes = malloc(most * sizeof *sizes);
    dsi_vocabulary *made = NULL;
    for (uint32_t i = 0; i < w.n && texts != NULL && sizes != NULL; ++i) {
        const size_t from = i > 0 ? w.ends[i - 1] : 0;
        texts[i] = w.bytes.data + from;
        sizes[i] = w.ends[i] - from;
    }
    if (w.ends == NULL || texts == NULL || sizes == NULL || w.bytes.failed) {
        (void)fprintf(stderr, "bench_guide: no memory\n");
        exit(1);
    }
    texts[w.n] = "";
    sizes[w.n] = 0;
    check(ctx, dsi_vocabulary_of(ctx, texts, sizes, w.n + 1, &made));
    free(texts);
    free(sizes);
    free(w.ends);
    dsi_buf_free(&w.bytes);
    return made;
}

/* ---- texts ---- */
typedef struct times {
    double *mask;
    size_t n, room;
    double read, longest_read;
} times;

/* Of what is allowed one at random, closing what is open the more eagerly the longer the text is.
 */
static uint32_t draw(const dsi_vocabulary *w, const float *logits, size_t n, uint64_t *seed)
{
    uint32_t best = w->n;
    double most = -1.0;
    for (uint32_t id = 0; id < w->n; ++id) {
        const uint8_t first = w->at[id] < w->at[id + 1] ? w->bytes[w->at[id]] : '}';
        const bool closes = first == '}' || first == ']' || first == '"';
        if (logits[id] == 0.0f) {
            const double like =
                (double)schema_below(seed, 1000) * (closes ? 1.0 + 0.05 * (double)n : 1.0);
            best = like > most ? id : best;
            most = like > most ? like : most;
        }
    }
    return best;
}

static void one_text(ds_ctx *ctx, const dsi_vocabulary *w, uint64_t k, float *logits, times *t)
{
    json_t *schema = schema_random(k);
    char *form = json_dumps(schema, JSON_COMPACT);
    const uint32_t end = w->n - 1;
    uint32_t ids[MOST_TOKENS];
    uint64_t seed = k;
    dsi_guide *guide = NULL;
    const double begin = core_seconds();
    check(ctx, dsi_guide_create(ctx, w, DSI_GUIDE_SCHEMA, form, strlen(form), &guide));
    const double read = core_seconds() - begin;
    t->read += read;
    t->longest_read = read > t->longest_read ? read : t->longest_read;
    for (size_t n = 0; n < MOST_TOKENS && t->n < t->room; ++n) {
        memset(logits, 0, w->n * sizeof *logits);
        const double from = core_seconds();
        dsi_guide_mask(guide, ids, n, &end, 1, logits, w->n);
        t->mask[t->n++] = core_seconds() - from;
        ids[n] = draw(w, logits, n, &seed);
        if (ids[n] >= end) {
            break;
        }
    }
    dsi_guide_destroy(&guide);
    free(form);
    json_decref(schema);
}

static int by_value(const void *a, const void *b)
{
    const double x = *(const double *)a;
    const double y = *(const double *)b;
    return (x > y) - (x < y);
}

int main(int argc, char **argv)
{
    if (argc < 2) {
        (void)fprintf(stderr, "usage: bench_guide TOKENIZER [words] [schemas]\n");
        return 2;
    }
    const uint32_t n_words = argc > 2 ? (uint32_t)strtoul(argv[2], NULL, 10) : 128000;
    const uint64_t n_schemas = argc > 3 ? strtoull(argv[3], NULL, 10) : 500;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    ds_ctx *ctx = NULL;
    ds_tokenizer *tokenizer = NULL;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    check(ctx, ds_tokenizer_open(ctx, argv[1], &tokenizer));
    dsi_vocabulary *w = make_vocabulary(ctx, tokenizer, n_words < 1000 ? 1000 : n_words);
    times t = {.room = n_schemas * MOST_TOKENS};
    t.mask = malloc((t.room + 1) * sizeof *t.mask);
    float *logits = malloc(w->n * sizeof *logits);
    for (uint64_t k = 0; k < n_schemas && t.mask != NULL && logits != NULL; ++k) {
        one_text(ctx, w, k, logits, &t);
    }
    double sum = 0.0;
    for (size_t i = 0; i < t.n; ++i) {
        sum += t.mask[i];
    }
    if (t.n > 0) {
        qsort(t.mask, t.n, sizeof *t.mask, by_value);
        printf("%u words, %llu schemas, %zu masks of a core: mean %.1f us, median %.1f, p90 %.1f, "
               "p99 %.1f, "
               "longest %.1f; a schema is read in %.2f ms, the longest in %.2f\n",
               w->n, (unsigned long long)n_schemas, t.n, 1e6 * sum / (double)t.n,
               1e6 * t.mask[t.n / 2], 1e6 * t.mask[t.n * 9 / 10], 1e6 * t.mask[t.n * 99 / 100],
               1e6 * t.mask[t.n - 1], 1e3 * t.read / (double)n_schemas, 1e3 * t.longest_read);
    }
    free(t.mask);
    free(logits);
    dsi_vocabulary_destroy(&w);
    ds_tokenizer_close(&tokenizer);
    ds_ctx_destroy(&ctx);
    return 0;
}
