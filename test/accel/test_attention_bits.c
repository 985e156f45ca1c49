/* SPDX-License-Identifier: Apache-2.0 */
/* The bits of a query's result depend on the query and on the keys that it sees: not on the queries
 * beside it, on where it lies in a block of them, or on the number of threads. Random prompts over
 * a KV cell: all queries at once against random runs of them with the offset of the first, by every
 * instruction set that the machine has; runs of one to four queries are steps of generation. In
 * bf16 on tiles these have an order of their own and must agree among themselves.
 * DS_ATTENTION_BITS_CASES: how many.
 * labels: slow */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/half.h"
#include "base/rng.h"
#include "common/check.h"
#include "op/isa.h"
#include "op/ops.h"

#include <stdlib.h>
#include <string.h>

enum { N_INPUTS = 6, FEW = 4, TILES = 8 };

/* Linear congruential numbers are enough to choose cases. */
static uint32_t pick(uint32_t *state, uint32_t n)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % n;
}

typedef struct prompt {
    dsi_attention_attrs attrs;
    ds_dtype type;
    int64_t n_queries, n_keys; /* keys behind the last query are never seen */
    char *q, *k, *v;
} prompt;

static char *random_tensor(int64_t n, ds_dtype type, float scale, uint64_t seed)
{
    char *data = malloc((size_t)n * ds_dtype_bytes(type));
    assert_non_null(data);
    for (int64_t i = 0; i < n; ++i) {
        const float x = scale * (2.0f * dsi_rng_unit(dsi_rng_u32(seed, 1, 0, (uint64_t)i)) - 1.0f);
        if (type == DS_DTYPE_F32) {
            ((float *)(void *)data)[i] = x;
        } else {
            ((uint16_t *)(void *)data)[i] =
                type == DS_DTYPE_BF16 ? dsi_f32_to_bf16(x) : dsi_f32_to_f16(x);
        }
    }
    return data;
}

static prompt make_prompt(uint32_t *random)
{
    static const ds_dtype types[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    static const int64_t dims[] = {7, 16, 40, 64, 80, 128, 288};
    const int64_t kv = 1 + pick(random, 2);
    prompt t = {.attrs = {.n_heads = kv * (1 + pick(random, 3)),
                          .n_kv_heads = kv,
                          .head_dim = dims[pick(random, 7)],
                          .causal = 1,
                          .window = pick(random, 3) == 0 ? 1 + pick(random, 200) : 0},
                .type = types[pick(random, 3)],
                .n_queries = 1 + pick(random, pick(random, 4) == 0 ? 700 : 150)};
    t.attrs.scale = 0.3;
    t.n_keys = t.n_queries + pick(random, 40);
    t.q = random_tensor(t.n_queries * t.attrs.n_heads * t.attrs.head_dim, t.type, 3.0f, 1);
    t.k = random_tensor(t.n_keys * kv * t.attrs.head_dim, t.type, 1.0f, 2);
    t.v = random_tensor(t.n_keys * kv * t.attrs.head_dim, t.type, 1.0f, 3);
    return t;
}

/* y and lse of queries [first,first+n). */
typedef struct result {
    char *y;
    float *lse; /* (head, query) */
} result;

static result attend(ds_ctx *ctx, const prompt *t, ds_isa isa, int64_t first, int64_t n)
{
    const int64_t width = t->attrs.n_heads * t->attrs.head_dim;
    const int64_t kv_width = t->attrs.n_kv_heads * t->attrs.head_dim;
    const size_t row = (size_t)width * ds_dtype_bytes(t->type);
    int32_t offset = (int32_t)first;
    const ds_meta in[N_INPUTS] = {{t->type, ds_shape_3d(1, n, width)},
                                  {t->type, ds_shape_3d(1, t->n_keys, kv_width)},
                                  {t->type, ds_shape_3d(1, t->n_keys, kv_width)},
                                  {DS_DTYPE_NONE, {0, {0}}},
                                  {DS_DTYPE_I32, ds_shape_1d(1)},
                                  {DS_DTYPE_NONE, {0, {0}}}};
    const ds_meta out[2] = {{t->type, ds_shape_3d(1, n, width)},
                            {DS_DTYPE_F32, ds_shape_3d(1, t->attrs.n_heads, n)}};
    const ds_kernel_sig sig = {.op = &dsi_op_attention,
                               .attrs = &t->attrs,
                               .n_in = N_INPUTS,
                               .n_out = 2,
                               .in = in,
                               .out = out,
                               .n_threads = ds_ctx_n_threads(ctx)};
    const ds_kernel *kernel = dsi_cpu_kernel_choose(&sig, isa);
    const size_t bytes = kernel->work_bytes != NULL ? kernel->work_bytes(&sig) : 0;
    void *work = aligned_alloc(64, bytes / 64 * 64 + 64);
    result r = {malloc((size_t)n * row), malloc((size_t)(t->attrs.n_heads * n) * sizeof(float))};
    assert_true(work != NULL && r.y != NULL && r.lse != NULL);
    const ds_tensor inputs[N_INPUTS] = {{.meta = in[0], .data = t->q + (size_t)first * row},
                                        {.meta = in[1], .data = t->k},
                                        {.meta = in[2], .data = t->v},
                                        {.meta = in[3], .data = NULL},
                                        {.meta = in[4], .data = &offset},
                                        {.meta = in[5], .data = NULL}};
    const ds_tensor outputs[2] = {{.meta = out[0], .data = r.y}, {.meta = out[1], .data = r.lse}};
    const ds_kernel_call call = {ctx, &sig, inputs, outputs, work};
    assert_int_equal(kernel->run(&call), DS_OK);
    free(work);
    return r;
}

static void free_result(result *r)
{
    free(r->y);
    free(r->lse);
}

static void check_run(ds_ctx *ctx, const prompt *t, ds_isa isa, int64_t first, int64_t n,
                      const result *whole)
{
    const size_t row = (size_t)(t->attrs.n_heads * t->attrs.head_dim) * ds_dtype_bytes(t->type);
    result r = attend(ctx, t, isa, first, n);
    for (int64_t i = 0; i < n; ++i) {
        bool same = memcmp(r.y + (size_t)i * row, whole->y + (size_t)(first + i) * row, row) == 0;
        for (int64_t h = 0; h < t->attrs.n_heads; ++h) {
            same = same && memcmp(&r.lse[h * n + i], &whole->lse[h * t->n_queries + first + i],
                                  sizeof(float)) == 0;
        }
        if (!same) {
            fail_msg(
                "query %ld of %ld has other bits in queries [%ld,%ld) than in all (%s, isa %s, "
                "d %ld, heads %ld of %ld, window %ld, threads %u)",
                (long)(first + i), (long)t->n_queries, (long)first, (long)(first + n),
                ds_dtype_name(t->type), dsi_isa_print(isa).text, (long)t->attrs.head_dim,
                (long)t->attrs.n_heads, (long)t->attrs.n_kv_heads, (long)t->attrs.window,
                ds_ctx_n_threads(ctx));
        }
    }
    free_result(&r);
}

/* Fewer queries than this are computed in another order: those of the tiles of bf16. */
static int64_t least_of(const prompt *t, ds_isa isa)
{
    return t->type == DS_DTYPE_BF16 && (isa & DS_ISA_AVX512_BF16) != 0 ? TILES : 1;
}

/* Up to four queries more than the least. */
static int64_t attn_few(int64_t n_queries, int64_t least)
{
    return n_queries < least + FEW - 1 ? n_queries : least + FEW - 1;
}

static void check_isa(ds_ctx *const ctx[3], const prompt *t, ds_isa isa, uint32_t *random)
{
    const int64_t least = least_of(t, isa);
    if (t->n_queries < least) {
        return;
    }
    result whole = attend(ctx[0], t, isa, 0, t->n_queries);
    for (int part = 0; part < 5; ++part) {
        const int64_t most = part < 3 ? t->n_queries : attn_few(t->n_queries, least);
        const int64_t n = least + pick(random, (uint32_t)(most - least + 1));
        const int64_t first = part == 0 ? 0 : pick(random, (uint32_t)(t->n_queries - n + 1));
        check_run(ctx[pick(random, 3)], t, isa, first, n, &whole);
    }
    free_result(&whole);
}

/* Steps of generation: two to four queries against each alone. */
static void check_few(ds_ctx *const ctx[3], const prompt *t, ds_isa isa, uint32_t *random)
{
    prompt few = *t;
    few.n_queries = t->n_queries < FEW ? t->n_queries : FEW;
    result whole = attend(ctx[0], &few, isa, 0, few.n_queries);
    for (int64_t i = 0; i < few.n_queries; ++i) {
        check_run(ctx[pick(random, 3)], &few, isa, i, 1, &whole);
    }
    free_result(&whole);
}

static void queries_are_independent(void **state)
{
    (void)state;
    const char *cases = getenv("DS_ATTENTION_BITS_CASES");
    const long n = cases != NULL ? atol(cases) : 60;
    ds_ctx *ctx[3] = {check_ctx(1), check_ctx(3), check_ctx(7)};
    uint32_t random = 7;
    for (long i = 0; i < n; ++i) {
        prompt t = make_prompt(&random);
        for (uint32_t level = 0; dsi_cpu_has_level(level); ++level) {
            check_isa(ctx, &t, dsi_isa_level(level), &random);
            check_few(ctx, &t, dsi_isa_level(level), &random);
        }
        free(t.q);
        free(t.k);
        free(t.v);
    }
    for (int i = 0; i < 3; ++i) {
        ds_ctx_destroy(&ctx[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(queries_are_independent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
