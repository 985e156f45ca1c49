/* SPDX-License-Identifier: Apache-2.0 */
/* Attention of `cuda` by mma, on the host layer, beside what test_cuda_kernels asks of it: a query
 * has the same bits whichever queries are beside it, what lies behind the keys that are seen is
 * nothing to it (here NaN), and steps that tiles are not made for get the plain kernel. */
#include "accel/cuda/host/launch_host.h"
#include "base/half.h"
#include "base/rng.h"
#include "common/check.h"
#include "op/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N_QUERIES = 70, N_KEYS = 90, N_INPUTS = 5, MOST = 4 * 136 };

typedef struct prompt {
    dsi_attention_attrs attrs;
    ds_dtype type;
    uint16_t q[N_QUERIES * MOST], k[N_KEYS * MOST], v[N_KEYS * MOST];
} prompt;

static void fill(uint16_t *t, int64_t n, ds_dtype type, uint64_t seed)
{
    for (int64_t i = 0; i < n; ++i) {
        const float x = 2.0f * dsi_rng_unit(dsi_rng_u32(seed, 1, 0, (uint64_t)i)) - 1.0f;
        t[i] = type == DS_DTYPE_BF16 ? dsi_f32_to_bf16(x) : dsi_f32_to_f16(x);
    }
}

static prompt *make_prompt(ds_dtype type, int64_t head_dim, int64_t n_heads, int64_t window)
{
    prompt *t = calloc(1, sizeof *t);
    assert_non_null(t);
    t->type = type;
    t->attrs = (dsi_attention_attrs){.n_heads = n_heads,
                                     .n_kv_heads = 2,
                                     .head_dim = head_dim,
                                     .causal = 1,
                                     .window = window,
                                     .scale = 0.3};
    fill(t->q, N_QUERIES * n_heads * head_dim, type, 1);
    fill(t->k, N_KEYS * 2 * head_dim, type, 2);
    fill(t->v, N_KEYS * 2 * head_dim, type, 3);
    for (int64_t i = N_QUERIES * 2 * head_dim; i < N_KEYS * 2 * head_dim; ++i) {
        t->k[i] = 0xffff;
        t->v[i] = 0xffff;
    }
    return t;
}

/* What the step of n queries is made of; in and out stay with the caller. */
static ds_kernel_sig sig_of(const prompt *t, int64_t n, ds_meta in[N_INPUTS], ds_meta out[2])
{
    const int64_t width = t->attrs.n_heads * t->attrs.head_dim;
    const int64_t kv_width = t->attrs.n_kv_heads * t->attrs.head_dim;
    in[0] = (ds_meta){t->type, ds_shape_3d(1, n, width)};
    in[1] = (ds_meta){t->type, ds_shape_3d(1, N_KEYS, kv_width)};
    in[2] = in[1];
    in[3] = (ds_meta){DS_DTYPE_NONE, {0, {0}}};
    in[4] = (ds_meta){DS_DTYPE_I32, ds_shape_1d(1)};
    out[0] = in[0];
    out[1] = (ds_meta){DS_DTYPE_F32, ds_shape_3d(1, t->attrs.n_heads, n)};
    return (ds_kernel_sig){.op = &dsi_op_attention,
                           .attrs = &t->attrs,
                           .n_in = N_INPUTS,
                           .n_out = 2,
                           .in = in,
                           .out = out,
                           .n_threads = 1};
}

/* y and lse of queries [first,first+n) by the kernel that the table has first. */
static void attend(ds_ctx *ctx, prompt *t, int64_t first, int64_t n, uint16_t *y, float *lse)
{
    ds_meta in[N_INPUTS];
    ds_meta out[2];
    int32_t offset = (int32_t)first;
    const ds_kernel_sig sig = sig_of(t, n, in, out);
    const ds_kernel *kernel = dsc_kernel_at(&sig, 0);
    assert_non_null(kernel);
    assert_string_equal(kernel->name, "cuda_mma");
    const ds_tensor inputs[N_INPUTS] = {
        {.meta = in[0], .data = t->q + first * t->attrs.n_heads * t->attrs.head_dim},
        {.meta = in[1], .data = t->k},
        {.meta = in[2], .data = t->v},
        {.meta = in[3], .data = NULL},
        {.meta = in[4], .data = &offset}};
    const ds_tensor outputs[2] = {{.meta = out[0], .data = y}, {.meta = out[1], .data = lse}};
    const ds_kernel_call call = {ctx, &sig, inputs, outputs, NULL};
    assert_int_equal(kernel->run(&call), DS_OK);
}

static void check_runs(ds_ctx *ctx, prompt *t)
{
    static const int64_t runs[][2] = {{0, 1}, {N_QUERIES - 1, 1}, {33, 5}, {3, 66}};
    const int64_t width = t->attrs.n_heads * t->attrs.head_dim;
    static uint16_t y[N_QUERIES * MOST];
    static uint16_t part[N_QUERIES * MOST];
    float lse[4 * N_QUERIES];
    float part_lse[4 * N_QUERIES];
    attend(ctx, t, 0, N_QUERIES, y, lse);
    for (int64_t i = 0; i < N_QUERIES * t->attrs.n_heads; ++i) {
        assert_true(isfinite(lse[i]));
    }
    for (size_t r = 0; r < sizeof runs / sizeof runs[0]; ++r) {
        const int64_t first = runs[r][0];
        const int64_t n = runs[r][1];
        attend(ctx, t, first, n, part, part_lse);
        assert_memory_equal(part, y + first * width, (size_t)(n * width) * sizeof *y);
        for (int64_t h = 0; h < t->attrs.n_heads; ++h) {
            assert_memory_equal(part_lse + h * n, lse + h * N_QUERIES + first,
                                (size_t)n * sizeof *lse);
        }
    }
}

static void a_query_has_the_same_bits_beside_any_others(void **state)
{
    ds_ctx *ctx = check_ctx(1);
    (void)state;
    for (int64_t window = 0; window <= 40; window += 40) {
        prompt *wide = make_prompt(DS_DTYPE_BF16, 128, 2, window);
        prompt *odd = make_prompt(DS_DTYPE_F16, 13, 4, window);
        check_runs(ctx, wide);
        check_runs(ctx, odd);
        free(wide);
        free(odd);
    }
    ds_ctx_destroy(&ctx);
}

/* Channel c of the values of key j, of the first head of keys, is `odd`: queries that see the key
 * get it in that channel; every other number keeps its bits. */
static void check_odd_value(ds_ctx *ctx, prompt *t, int64_t j, int64_t c, uint16_t odd)
{
    const int64_t d = t->attrs.head_dim;
    const int64_t width = t->attrs.n_heads * d;
    const int64_t group = t->attrs.n_heads / t->attrs.n_kv_heads;
    static uint16_t y[N_QUERIES * MOST];
    static uint16_t with[N_QUERIES * MOST];
    float lse[4 * N_QUERIES];
    float with_lse[4 * N_QUERIES];
    uint16_t *value = &t->v[j * t->attrs.n_kv_heads * d + c];
    const uint16_t kept = *value;
    attend(ctx, t, 0, N_QUERIES, y, lse);
    *value = odd;
    attend(ctx, t, 0, N_QUERIES, with, with_lse);
    *value = kept;
    assert_memory_equal(with_lse, lse, (size_t)(t->attrs.n_heads * N_QUERIES) * sizeof *lse);
    for (int64_t i = 0; i < N_QUERIES * width; ++i) {
        const int64_t query = i / width;
        const bool sees = query >= j && (t->attrs.window == 0 || query < j + t->attrs.window);
        if (sees && i % width / d < group && i % d == c) {
            const float got =
                t->type == DS_DTYPE_BF16 ? dsi_bf16_to_f32(with[i]) : dsi_f16_to_f32(with[i]);
            assert_true((odd & 0x7fu) == 0 ? isinf(got) : isnan(got));
        } else {
            assert_int_equal(with[i], y[i]);
        }
    }
}

static void a_value_that_is_not_finite_reaches_who_sees_it_alone(void **state)
{
    ds_ctx *ctx = check_ctx(1);
    (void)state;
    for (int64_t window = 0; window <= 11; window += 11) {
        prompt *wide = make_prompt(DS_DTYPE_BF16, 128, 2, window);
        prompt *odd = make_prompt(DS_DTYPE_F16, 13, 4, window);
        check_odd_value(ctx, wide, 40, 127, 0x7f80);
        check_odd_value(ctx, wide, 3, 8, 0xffff);
        check_odd_value(ctx, odd, 40, 12, 0x7c00);
        check_odd_value(ctx, odd, 69, 1, 0x7fff);
        free(wide);
        free(odd);
    }
    ds_ctx_destroy(&ctx);
}

static void other_steps_get_the_plain_kernel(void **state)
{
    static const struct {
        ds_dtype type;
        int64_t head_dim;
        const char *name;
    } cases[] = {{DS_DTYPE_BF16, 128, "cuda_mma"},
                 {DS_DTYPE_F16, 1, "cuda_mma"},
                 {DS_DTYPE_BF16, 136, "cuda"},
                 {DS_DTYPE_F32, 64, "cuda"}};
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        prompt t = {.type = cases[i].type,
                    .attrs = {.n_heads = 2, .n_kv_heads = 1, .head_dim = cases[i].head_dim}};
        ds_meta in[N_INPUTS];
        ds_meta out[2];
        ds_kernel_sig sig = sig_of(&t, 5, in, out);
        assert_string_equal(dsc_kernel_at(&sig, 0)->name, cases[i].name);
        t.attrs.cap = 30.0; /* not by mma */
        assert_string_equal(dsc_kernel_at(&sig, 0)->name, "cuda");
        t.attrs.cap = 0.0;
        t.attrs.all_keys = 100; /* likewise */
        assert_string_equal(dsc_kernel_at(&sig, 0)->name, "cuda");
        t.attrs.head_dim = 257; /* no kernel has it */
        assert_null(dsc_kernel_at(&sig, 0));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_query_has_the_same_bits_beside_any_others),
        cmocka_unit_test(a_value_that_is_not_finite_reaches_who_sees_it_alone),
        cmocka_unit_test(other_steps_get_the_plain_kernel),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
