/* SPDX-License-Identifier: Apache-2.0 */
/* attention and its gradient on every kernel of this machine against the reference, beyond the
 * sizes of test/op/op_cases.c: lengths around the block sizes, head dims, windows, documents,
 * groups, offsets, dropout. The operator harness runs each row in every dtype, and on one and three
 * threads for the same bits. */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "common/check.h"
#include "op/harness.h"

#include <math.h>
#include <stdio.h>

enum { OPERANDS_TEXT = 256 };

typedef struct shape {
    int b, tq, tk, h, kv, d; /* tk 0: tq */
    int packed, window, documents, causal;
    int offset; /* 0: none; else offsets are below it */
    double dropout;
    unsigned dtypes; /* 0: all */
    int one_key;     /* each query sees one key: q and k have no gradient, see below */
} shape;

static const shape shapes[] = {
    /* b tq tk h kv d */
    {2, 1, 0, 2, 1, 64, .causal = 1, .one_key = 1},
    {2, 3, 0, 2, 1, 64, .causal = 1},
    {1, 17, 0, 2, 2, 64, .packed = 1, .causal = 1},
    {2, 65, 0, 3, 3, 64, .packed = 1, .causal = 1},
    {1, 129, 0, 4, 2, 64, .causal = 1},
    {1, 129, 0, 4, 2, 64, .causal = 1, .documents = 1},
    {1, 200, 0, 2, 1, 64, .causal = 1, .window = 70},
    {1, 200, 0, 2, 1, 64, .causal = 1, .window = 1, .one_key = 1},
    {1, 300, 0, 1, 1, 128, .causal = 1, .window = 130, .documents = 1},
    {1, 500, 0, 2, 1, 64, .packed = 1, .causal = 1, .dtypes = OP_BF16},
    {1, 1000, 0, 1, 1, 64, .packed = 1, .causal = 1, .dtypes = OP_BF16},
    {1, 257, 0, 1, 1, 64, .packed = 1, .causal = 1, .dtypes = OP_F32},
    {1, 97, 0, 2, 1, 128, .causal = 1},
    {1, 97, 0, 2, 2, 80, .causal = 1, .packed = 1},
    {1, 70, 0, 2, 1, 256, .causal = 1},
    {1, 70, 0, 4, 1, 576, .causal = 1}, /* latent attention: one head of what keys are made of */
    {1, 70, 0, 2, 1, 40, .causal = 1},
    {1, 70, 0, 2, 1, 7, .causal = 1},
    {1, 50, 130, 2, 1, 32, .packed = 0},
    {1, 130, 50, 2, 1, 32, .packed = 0},
    {2, 70, 0, 2, 1, 64, .causal = 1, .dropout = 0.3},
    {2, 33, 47, 2, 1, 24, .dropout = 0.5},
    {1, 67, 0, 3, 3, 16, .packed = 1, .causal = 1, .window = 20, .dropout = 0.1},
    /* generation and prefill with a cell */
    {2, 1, 700, 4, 2, 64, .causal = 1, .offset = 700},
    {2, 1, 700, 4, 4, 80, .causal = 1, .offset = 700, .window = 300},
    {1, 4, 300, 4, 1, 128, .causal = 1, .offset = 290},
    {1, 1, 300, 16, 1, 576, .causal = 1, .offset = 299},
    {2, 40, 300, 4, 2, 64, .causal = 1, .offset = 260},
    {2, 40, 300, 4, 2, 64, .causal = 1, .offset = 260, .window = 33},
};

enum { N_SHAPES = sizeof shapes / sizeof shapes[0] };

static dsi_attention_attrs attrs_of(const shape *s)
{
    return (dsi_attention_attrs){.n_heads = s->h,
                                 .n_kv_heads = s->kv,
                                 .head_dim = s->d,
                                 .packed = s->packed,
                                 .causal = s->causal,
                                 .window = s->window,
                                 .scale = 1.5 / (double)(s->d < 16 ? 3 : s->d / 8),
                                 .dropout = s->dropout,
                                 .site = 11};
}

/* "q k v" or "packed - -". */
static void operands_text(const shape *s, char *text, size_t n)
{
    const int tk = s->tk > 0 ? s->tk : s->tq;
    if (s->packed != 0) {
        (void)snprintf(text, n, "act[%d,%d,%d] - -", s->b, s->tq, (s->h + 2 * s->kv) * s->d);
    } else {
        (void)snprintf(text, n, "act[%d,%d,%d] act[%d,%d,%d] act[%d,%d,%d]", s->b, s->tq,
                       s->h * s->d, s->b, tk, s->kv * s->d, s->b, tk, s->kv * s->d);
    }
}

static void first_text(const shape *s, char *text, size_t n)
{
    if (s->documents != 0) {
        (void)snprintf(text, n, "i32[%d,%d]d", s->b, s->tq);
    } else {
        (void)snprintf(text, n, "-");
    }
}

static void describe(const shape *s, char *text, size_t n)
{
    (void)snprintf(text, n, "B%d Tq%d Tk%d H%d KV%d D%d window %d offset %d dropout %g%s", s->b,
                   s->tq, s->tk, s->h, s->kv, s->d, s->window, s->offset, s->dropout,
                   s->documents != 0 ? " documents" : "");
}

static int forward_failures(ds_ctx *one, ds_ctx *three, const shape *s)
{
    const dsi_attention_attrs attrs = attrs_of(s);
    char qkv[OPERANDS_TEXT];
    char first[64];
    char offset[64] = "-";
    char in[2 * OPERANDS_TEXT];
    char label[OPERANDS_TEXT];
    operands_text(s, qkv, sizeof qkv);
    first_text(s, first, sizeof first);
    if (s->offset > 0) {
        (void)snprintf(offset, sizeof offset, "i32[%d]<%d", s->b, s->offset);
    }
    (void)snprintf(in, sizeof in, "%s %s %s %s", qkv, first, offset,
                   s->dropout > 0.0 ? "i64[4]r" : "-");
    describe(s, label, sizeof label);
    const op_case c = {.op = &dsi_op_attention,
                       .label = label,
                       .in = in,
                       .attrs = &attrs,
                       .flags = s->dtypes,
                       .loose = 2};
    return op_compare_case(one, three, &c);
}

static int backward_failures(ds_ctx *one, ds_ctx *three, const shape *s)
{
    const dsi_attention_attrs attrs = attrs_of(s);
    char qkv[OPERANDS_TEXT];
    char first[64];
    char in[3 * OPERANDS_TEXT];
    char label[OPERANDS_TEXT];
    operands_text(s, qkv, sizeof qkv);
    first_text(s, first, sizeof first);
    const int width = s->h * s->d;
    (void)snprintf(in, sizeof in, "act[%d,%d,%d] %s act[%d,%d,%d] stat[%d,%d,%d] %s %s", s->b,
                   s->tq, width, qkv, s->b, s->tq, width, s->b, s->h, s->tq, first,
                   s->dropout > 0.0 ? "i64[4]r" : "-");
    describe(s, label, sizeof label);
    const op_forward forward = {.op = &dsi_op_attention,
                                .attrs = &attrs,
                                .n_in = 6,
                                .from = {1, 2, 3, 6, -1, 7},
                                .to = {4, 5}};
    const op_case c = {.op = &dsi_op_attention_backward,
                       .label = label,
                       .in = in,
                       .attrs = &attrs,
                       .flags = s->dtypes,
                       .loose = 4,
                       .forward = &forward};
    return op_compare_case(one, three, &c);
}

static void kernels_agree_with_the_reference(void **state)
{
    (void)state;
    ds_ctx *one = check_ctx(1);
    ds_ctx *three = check_ctx(3);
    int failures = 0;
    for (int i = 0; i < N_SHAPES; ++i) {
        failures += forward_failures(one, three, &shapes[i]);
        failures += shapes[i].offset == 0 && shapes[i].one_key == 0
                        ? backward_failures(one, three, &shapes[i])
                        : 0;
    }
    ds_ctx_destroy(&one);
    ds_ctx_destroy(&three);
    assert_int_equal(failures, 0);
}

/* The probability of an only key is 1 whatever q and k: their gradients are zero up to the rounding
 * of two equal sums, too small for a comparison relative to the reference's own zeros. */
static void an_only_key_gives_no_gradient(void **state)
{
    (void)state;
    ds_ctx *ctx = check_ctx(1);
    const dsi_attention_attrs attrs = {
        .n_heads = 2, .n_kv_heads = 2, .head_dim = 64, .causal = 1, .window = 1, .scale = 0.125};
    const op_forward forward = {
        .op = &dsi_op_attention, .attrs = &attrs, .n_in = 3, .from = {1, 2, 3}, .to = {4, 5}};
    const op_case c = {
        .op = &dsi_op_attention_backward,
        .label = "one key",
        .in = "act[1,37,128] act[1,37,128] act[1,37,128] act[1,37,128] act[1,37,128] stat[1,2,37]",
        .attrs = &attrs,
        .forward = &forward};
    for (uint32_t t = 0; op_case_dtype(&c, t) != DS_DTYPE_NONE; ++t) {
        op_operands o;
        CHECK_OK(ctx, op_operands_create(ctx, &c, op_case_dtype(&c, t), &o));
        const ds_kernel *kernel = NULL;
        for (uint32_t k = 0; (kernel = dsi_cpu_kernel_at(&o.sig, dsi_cpu_isa(), k)) != NULL; ++k) {
            CHECK_OK(ctx, op_operands_run(ctx, &o, kernel, false));
            for (int64_t i = 0; i < 37 * 128; ++i) {
                const double rounding = o.act == DS_DTYPE_F32 ? 2e-6 : 0.05; /* of y */
                assert_true(fabs(op_element(&o.out[0], i)) <= rounding);
                assert_true(fabs(op_element(&o.out[1], i)) <= rounding);
                const double dy = op_element(&o.in[0], i);
                assert_true(fabs(op_element(&o.out[2], i) - dy) <= 1e-5 + 0.008 * fabs(dy));
            }
        }
        op_operands_destroy(&o);
    }
    ds_ctx_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_agree_with_the_reference),
        cmocka_unit_test(an_only_key_gives_no_gradient),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
