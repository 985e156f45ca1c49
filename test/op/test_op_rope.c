/* SPDX-License-Identifier: Apache-2.0 */
/* rope_table against transformers' rotary embeddings (test/golden/op/rope.txt). */
#include "common/check.h"
#include "op/harness.h"
#include "op/harness_golden.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static dsi_rope_table_attrs attrs_of(const op_line *l)
{
    return (dsi_rope_table_attrs){.head_dim = (int64_t)l->x[0],
                                  .theta = l->x[1],
                                  .scaling = (int64_t)l->x[2],
                                  .factor = l->x[3],
                                  .low_freq_factor = l->x[4],
                                  .high_freq_factor = l->x[5],
                                  .original_max_positions = (int64_t)l->x[6],
                                  .beta_fast = l->x[7],
                                  .beta_slow = l->x[8],
                                  .attention_factor = l->x[9],
                                  .mscale = l->x[10],
                                  .mscale_all_dim = l->x[11],
                                  .truncate = (int64_t)l->x[12]};
}

static void check_case(ds_ctx *ctx, FILE *file, const op_line *head)
{
    const dsi_rope_table_attrs attrs = attrs_of(head);
    static op_line positions, row;
    assert_true(op_golden_next(file, &positions));
    char in[32];
    (void)snprintf(in, sizeof in, "i32[1,%d]", positions.n);
    const op_case c = {.op = &dsi_op_rope_table, .label = head->word[1], .in = in, .attrs = &attrs};
    op_operands o;
    CHECK_OK(ctx, op_operands_create(ctx, &c, DS_DTYPE_F32, &o));
    for (int i = 0; i < positions.n; ++i) {
        ((int32_t *)o.original[0])[i] = (int32_t)positions.x[i];
    }
    CHECK_OK(ctx, op_operands_run(ctx, &o, op_reference(&o.sig), false));
    for (int p = 0; p < positions.n; ++p) {
        assert_true(op_golden_next(file, &row));
        assert_int_equal(row.n, attrs.head_dim);
        for (int i = 0; i < row.n; ++i) {
            const double got = op_element(&o.out[0], p * attrs.head_dim + i);
            /* a frequency may differ by one step of fp32, which the position multiplies */
            const double tolerance = 2e-7 + 7e-8 * positions.x[p];
            if (!(fabs(got - row.x[i]) <= tolerance)) {
                fail_msg("%s: position %g, element %d is %.9g, expected %.9g", head->word[1],
                         positions.x[p], i, got, row.x[i]);
            }
        }
    }
    op_operands_destroy(&o);
}

static void tables_equal_transformers(void **state)
{
    (void)state;
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    FILE *file = fopen(DS_SOURCE_DIR "/test/golden/op/rope.txt", "r");
    assert_non_null(file);
    static op_line line;
    int n_cases = 0;
    while (op_golden_next(file, &line)) {
        assert_string_equal(line.word[0], "case");
        check_case(ctx, file, &line);
        ++n_cases;
    }
    assert_int_equal(n_cases, 9);
    (void)fclose(file);
    ds_ctx_destroy(&ctx);
}

/* Rotating forward and back gives x again, to rounding. */
static void inverse_undoes_rope(void **state)
{
    (void)state;
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    static const dsi_rope_table_attrs table = {.head_dim = 16, .theta = 10000.0};
    static const dsi_rope_attrs there = {.head_dim = 16};
    static const dsi_rope_attrs back = {.head_dim = 16, .inverse = 1};
    const op_case make = {
        .op = &dsi_op_rope_table, .label = "", .in = "i32[2,9]p", .attrs = &table};
    const op_case turn = {
        .op = &dsi_op_rope, .label = "", .in = "f32[2,9,48] f32[2,9,16]", .attrs = &there};
    op_operands t, x;
    CHECK_OK(ctx, op_operands_create(ctx, &make, DS_DTYPE_F32, &t));
    CHECK_OK(ctx, op_operands_run(ctx, &t, op_reference(&t.sig), false));
    CHECK_OK(ctx, op_operands_create(ctx, &turn, DS_DTYPE_F32, &x));
    memcpy(x.original[1], t.out[0].data, ds_meta_bytes(x.in_meta[1]));
    CHECK_OK(ctx, op_operands_run(ctx, &x, op_reference(&x.sig), false));
    const size_t n = (size_t)ds_shape_count(x.in_meta[0].shape);
    float *before = malloc(n * sizeof *before);
    assert_non_null(before);
    memcpy(before, x.original[0], n * sizeof *before);
    memcpy(x.original[0], x.out[0].data, n * sizeof *before);
    x.sig.attrs = &back;
    CHECK_OK(ctx, op_operands_run(ctx, &x, op_reference(&x.sig), false));
    assert_true(check_relative_difference(x.out[0].data, before, n) < 1e-6);
    free(before);
    op_operands_destroy(&t);
    op_operands_destroy(&x);
    ds_ctx_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tables_equal_transformers),
        cmocka_unit_test(inverse_undoes_rope),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
