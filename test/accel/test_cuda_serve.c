/* SPDX-License-Identifier: Apache-2.0 */
/* Serving with the accelerator `cuda` over the stand-in of libcuda: keys and values in blocks, of
 * float dtypes and in codes, experts, products with weights in blocks. Logits are as near to those
 * of the processor in fp32 as its own in the same dtypes; a sequence has the same bits alone and
 * beside others, in one piece and in two. No GPU is asked.
 * labels: slow */
#include "common/parity.h"
#include "common/standin_load.h"

#include <deepspeed/serve.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { IDS = 12, FIRST = 7, OTHER = 5 };

static standin_calls standin;

/* How a model is served. */
typedef struct way {
    const char *model;
    ds_dtype dtype, kv_type, quantize;
} way;

static void make_ids(const parity_case *p, uint32_t *ids)
{
    uint64_t seed = 11;
    for (int i = 0; i < IDS + OTHER; ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (uint32_t)((seed >> 33) % (uint64_t)p->vocab);
    }
}

static ds_server *serve(ds_ctx *ctx, const parity_case *p, const way *w, const char *accelerator)
{
    ds_server *server = NULL;
    const ds_serve_params params = {.source = {.model = p->model,
                                               .weights = p->folder,
                                               .dtype = w->dtype,
                                               .quantize = w->quantize,
                                               .accelerator = accelerator},
                                    .max_sequences = 4,
                                    .kv_type = w->kv_type};
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
    return server;
}

/* Behind FIRST ids and the rest, with another sequence beside the rest where there is to be one;
 * pieces: 1 or 2. */
static void logits_of(ds_ctx *ctx, const parity_case *p, ds_server *server, bool beside, int pieces,
                      float *out)
{
    uint32_t ids[IDS + OTHER];
    const float *logits = NULL;
    const size_t first = pieces == 2 ? FIRST : 0;
    make_ids(p, ids);
    if (first > 0) {
        CHECK_OK(ctx, ds_serve_put(server, 1, (uint64_t[]){1}, ids, (size_t[]){first}, &logits));
    }
    CHECK_OK(ctx, ds_serve_put(server, beside ? 2 : 1, (uint64_t[]){1, 2}, ids + first,
                               (size_t[]){IDS - first, OTHER}, &logits));
    memcpy(out, logits, (size_t)p->vocab * sizeof *out);
    for (uint64_t id = 1; id <= (beside ? 2u : 1u); ++id) {
        CHECK_OK(ctx, ds_serve_flush(server, id));
    }
}

static double root_mean_square(const float *a, const float *b, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        const double d = (double)a[i] - (b != NULL ? (double)b[i] : 0.0);
        sum += d * d;
    }
    return sqrt(sum / (double)n);
}

static void check_way(ds_ctx *ctx, const way *w)
{
    parity_case p;
    parity_open(ctx, w->model, &p);
    const size_t n = (size_t)p.vocab;
    const way exact = {w->model, DS_DTYPE_F32, DS_DTYPE_F32, DS_DTYPE_NONE};
    float *all = calloc(5 * n, sizeof *all);
    assert_non_null(all);
    ds_server *in_f32 = serve(ctx, &p, &exact, "cpu");
    ds_server *cpu = serve(ctx, &p, w, "cpu");
    ds_server *cuda = serve(ctx, &p, w, "cuda");
    standin.set("seed=3,turn=64");
    logits_of(ctx, &p, cpu, false, 1, all);
    logits_of(ctx, &p, cuda, false, 1, all + n);
    logits_of(ctx, &p, cuda, true, 1, all + 2 * n);
    logits_of(ctx, &p, cuda, false, 2, all + 3 * n);
    logits_of(ctx, &p, in_f32, false, 1, all + 4 * n);
    const double size = root_mean_square(all + 4 * n, NULL, p.vocab);
    const double off = root_mean_square(all + n, all + 4 * n, p.vocab);
    const double off_cpu = root_mean_square(all, all + 4 * n, p.vocab);
    print_message("%s: logits of %.3g off by %.3g, on cpu by %.3g\n", w->model, size, off, off_cpu);
    assert_true(size > 0.0 && off <= 1.5 * off_cpu + 1e-5 * size);
    assert_memory_equal(all + n, all + 2 * n, n * sizeof *all);
    assert_memory_equal(all + n, all + 3 * n, n * sizeof *all);
    ds_serve_destroy(&in_f32);
    ds_serve_destroy(&cuda);
    ds_serve_destroy(&cpu);
    free(all);
    parity_close(&p);
}

static void logits_are_the_processors(void **state)
{
    static const way ways[] = {
        {"llama3", DS_DTYPE_F32, DS_DTYPE_F32, DS_DTYPE_NONE},
        {"llama3", DS_DTYPE_BF16, DS_DTYPE_BF16, DS_DTYPE_NONE},
        {"llama3", DS_DTYPE_BF16, DS_DTYPE_I8, DS_DTYPE_Q8_0},
        {"llama3", DS_DTYPE_F32, DS_DTYPE_F32, DS_DTYPE_Q5_1},
        {"mixtral", DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_NONE},
        {"mixtral", DS_DTYPE_F16, DS_DTYPE_F16, DS_DTYPE_NONE},
    };
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; ++i) {
        check_way(*state, &ways[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(logits_are_the_processors)};
    return standin_load(DS_BINARY_DIR, &standin)
               ? cmocka_run_group_tests(tests, check_set_up, check_tear_down)
               : 1;
}
