/* SPDX-License-Identifier: Apache-2.0 */
/* What every operator's struct must hold: a name, a doc, attributes that its table covers, a
 * reference kernel; and refusals that name operator, operand, got and expected.
 * labels: slow */
#include "base/buf.h"
#include "common/check.h"
#include "ir/graph.h"
#include "ir/op_check.h"
#include "op/harness.h"

#include <string.h>

static void names_and_docs(void **state)
{
    (void)state;
    for (uint32_t i = 0; dsi_op_all()[i] != NULL; ++i) {
        const ds_op *op = dsi_op_all()[i];
        assert_int_equal(op->version, DS_OP_VERSION);
        assert_true(strspn(op->name, "abcdefghijklmnopqrstuvwxyz0123456789_") == strlen(op->name));
        assert_ptr_equal(ds_op_find(op->name), op); /* so names are unique */
        if (op->doc == NULL || strstr(op->doc, "→") == NULL || strlen(op->doc) < 8) {
            fail_msg("%s: doc must name inputs → outputs", op->name);
        }
        assert_non_null(op->infer);
        assert_true(op->n_in_min <= op->n_in_max && op->n_in_max <= DS_MAX_IN);
        assert_true(op->n_out >= 1 && op->n_out <= DS_MAX_OUT);
    }
    assert_null(ds_op_find("no_such_operator"));
}

/* Every 8 bytes of the attribute struct belong to exactly one row. */
static void attributes_cover_their_struct(void **state)
{
    (void)state;
    for (uint32_t i = 0; dsi_op_all()[i] != NULL; ++i) {
        const ds_op *op = dsi_op_all()[i];
        bool seen[512] = {false};
        for (uint32_t a = 0; a < op->n_attrs; ++a) {
            assert_true(op->attrs[a].offset % 8 == 0 && op->attrs[a].offset < op->attrs_bytes);
            assert_true(op->attrs[a].offset / 8 < sizeof seen);
            assert_false(seen[op->attrs[a].offset / 8]);
            seen[op->attrs[a].offset / 8] = true;
        }
        if (op->attrs_bytes != 8 * (size_t)op->n_attrs) {
            fail_msg("%s: the table has %u attributes, the struct %zu bytes", op->name, op->n_attrs,
                     op->attrs_bytes);
        }
    }
}

/* What passes, plans and costs ask of an operator, it says itself. */
static void facts_are_stated(void **state)
{
    (void)state;
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    for (uint32_t i = 0; dsi_op_all()[i] != NULL; ++i) {
        const ds_op *op = dsi_op_all()[i];
        const bool view = (op->flags & DS_OP_VIEW) != 0;
        const bool sends = (op->flags & DS_OP_COMM) != 0 && op->role != DS_ROLE_TAKE_SLICE;
        if (op->op_class == DS_CLASS_UNSTATED || op->op_class >= DS_CLASS_COUNT) {
            fail_msg("%s states no class", op->name);
        }
        if (op->role == DS_ROLE_UNSTATED || op->role >= DS_ROLE_COUNT) {
            fail_msg("%s states no role", op->name);
        }
        if (op->again != DS_AGAIN_CHEAP && op->again != DS_AGAIN_COSTLY) {
            fail_msg("%s does not state whether it is cheap to run again", op->name);
        }
        assert_int_equal(op->op_class == DS_CLASS_VIEW, view);
        assert_int_equal(op->op_class == DS_CLASS_COMM, sends);
        assert_int_equal(op->op_class == DS_CLASS_OPTIMIZER, op->role == DS_ROLE_UPDATE);
        assert_int_equal((op->flags & DS_OP_SWAP) != 0,
                         op->role == DS_ROLE_SWAP_IN || op->role == DS_ROLE_SWAP_OUT);
        if (op->place == NULL) {
            fail_msg("%s states no place rule", op->name);
        }
        CHECK_OK(ctx, dsi_op_check(ctx, op));
        assert_null(op->kernels); /* the mark of a custom operator */
    }
    ds_ctx_destroy(&ctx);
}

/* What ops.h declares is in the table: one that is left out would state its facts to nobody. */
static void the_table_is_whole(void **state)
{
    (void)state;
    static const char mark[] = "dsi_op_";
    ds_ctx *ctx = NULL;
    dsi_buf text = dsi_buf_make(1 << 20);
    uint32_t n_declared = 0;
    uint32_t n_listed = 0;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    CHECK_OK(ctx, dsi_buf_read_file(ctx, DS_SOURCE_DIR "/src/op/ops.h", &text));
    CHECK_OK(ctx, dsi_buf_read_file(ctx, DS_SOURCE_DIR "/src/op/constants.h", &text));
    CHECK_OK(ctx, dsi_buf_read_file(ctx, DS_SOURCE_DIR "/src/op/paged_state.h", &text));
    for (const char *at = strstr(dsi_buf_text(&text), "extern const ds_op "); at != NULL;
         at = strstr(at, "extern const ds_op ")) {
        const char *end = strchr(at, ';');
        for (at = strstr(at, mark); at != NULL && at < end; at = strstr(at, mark)) {
            char name[64] = "";
            at += strlen(mark);
            memcpy(name, at, strspn(at, "abcdefghijklmnopqrstuvwxyz0123456789_"));
            if (ds_op_find(name) == NULL) {
                fail_msg("%s is not in op_table.c", name);
            }
            ++n_declared;
        }
        at = end;
    }
    while (dsi_op_all()[n_listed] != NULL) {
        ++n_listed;
    }
    assert_int_equal(n_declared, n_listed);
    dsi_buf_free(&text);
    ds_ctx_destroy(&ctx);
}

static void every_operator_has_a_reference_kernel(void **state)
{
    (void)state;
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    for (const op_case *c = op_cases; c->op != NULL; ++c) {
        for (uint32_t d = 0; op_case_dtype(c, d) != DS_DTYPE_NONE; ++d) {
            op_operands o;
            CHECK_OK(ctx, op_operands_create(ctx, c, op_case_dtype(c, d), &o));
            if (op_reference(&o.sig) == NULL) {
                fail_msg("%s (%s) has no reference kernel", c->op->name, c->label);
            }
            ds_cost cost = {.flops = -1.0, .bytes = -1.0};
            if (c->op->cost != NULL) {
                const ds_infer infer = {ctx,       c->op,       c->attrs,  o.sig.n_in,
                                        o.in_meta, o.sig.n_out, o.out_meta};
                c->op->cost(&infer, &cost);
                assert_true(cost.flops >= 0.0 && cost.bytes >= 0.0);
            }
            op_operands_destroy(&o);
        }
    }
    ds_ctx_destroy(&ctx);
}

static ds_meta meta(ds_dtype dtype, ds_shape shape)
{
    return (ds_meta){dtype, shape};
}

static void refusals_name_operand_got_and_expected(void **state)
{
    (void)state;
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    ds_meta out[DS_MAX_OUT];
    const dsi_linear_attrs linear = {0};
    ds_meta in[3] = {meta(DS_DTYPE_BF16, ds_shape_2d(4, 8)),
                     meta(DS_DTYPE_BF16, ds_shape_2d(3, 9))};
    CHECK_FAILS(ctx, dsi_graph_infer(ctx, &dsi_op_linear, &linear, in, 2, out), DS_ERR_SHAPE,
                "linear: input 1 (w) is bf16[3,9], expected bf16[out,8]");
    in[1] = meta(DS_DTYPE_BF16, ds_shape_2d(3, 8));
    in[2] = meta(DS_DTYPE_F32, ds_shape_1d(3));
    CHECK_FAILS(ctx, dsi_graph_infer(ctx, &dsi_op_linear, &linear, in, 3, out), DS_ERR_SHAPE,
                "linear: input 2 (bias) is f32[3], expected bf16[3]");
    in[0] = meta(DS_DTYPE_I32, ds_shape_1d(3));
    CHECK_FAILS(ctx, dsi_graph_infer(ctx, &dsi_op_softmax, NULL, in, 1, out), DS_ERR_SHAPE,
                "softmax: input 0 (x) is i32[3], expected a float tensor");
    const dsi_attention_attrs heads = {.n_heads = 5, .n_kv_heads = 2, .head_dim = 8};
    CHECK_FAILS(ctx, dsi_graph_infer(ctx, &dsi_op_attention, &heads, in, 1, out), DS_ERR_ARG,
                "n_heads 5, n_kv_heads 2");
    const dsi_dropout_attrs p = {.p = 1.0};
    in[0] = meta(DS_DTYPE_F32, ds_shape_1d(3));
    in[1] = meta(DS_DTYPE_I64, ds_shape_1d(4));
    CHECK_FAILS(ctx, dsi_graph_infer(ctx, &dsi_op_dropout, &p, in, 2, out), DS_ERR_ARG,
                "p is 1, expected in [0,1)");
    ds_ctx_destroy(&ctx);
}

static const dsi_group_attrs four_experts = {.n_experts = 4};
static const dsi_grouped_attrs grouped = {.transposed = 0};
static const dsi_ce_attrs loss_attrs = {.ignore_index = -100};

/* Kernels refuse indices out of range by name. */
static void kernels_refuse_bad_indices(void **state)
{
    (void)state;
    static const op_case cases[] = {
        {.op = &dsi_op_embedding, .in = "f32[4,2] i32[3]=4"},
        {.op = &dsi_op_take_rows, .in = "f32[2,3,4] i32[2]=3"},
        {.op = &dsi_op_kv_write, .in = "f32[1,4,2] f32[1,2,2] i32[1]=3"},
        {.op = &dsi_op_cross_entropy, .in = "f32[3,4] i32[3]=-1", .attrs = &loss_attrs},
        {.op = &dsi_op_group_rows, .in = "i32[3,2]=4", .attrs = &four_experts},
        {.op = &dsi_op_spread_rows, .in = "f32[2,3] i32[2,2]=4"},
        {.op = &dsi_op_combine_rows, .in = "f32[4,3] i32[2,2]=-1"},
        {.op = &dsi_op_grouped_linear, .in = "f32[4,3] f32[2,5,3] i32[3]o5", .attrs = &grouped},
    };
    static const char *const words[] = {"id[0] is 4",      "index[0] is 3",  "positions 3 to 4",
                                        "target[0] is -1", "expert 0 is 4",  "place[0] is 4",
                                        "place[0] is -1",  "offsets[2] is 5"};
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    for (uint32_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        op_operands o;
        CHECK_OK(ctx, op_operands_create(ctx, &cases[i], DS_DTYPE_F32, &o));
        const ds_status status = op_operands_run(ctx, &o, op_reference(&o.sig), false);
        assert_true(status == DS_ERR_ARG || status == DS_ERR_LIMIT);
        assert_non_null(strstr(ds_ctx_error(ctx), words[i]));
        op_operands_destroy(&o);
    }
    ds_ctx_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(names_and_docs),
        cmocka_unit_test(attributes_cover_their_struct),
        cmocka_unit_test(facts_are_stated),
        cmocka_unit_test(the_table_is_whole),
        cmocka_unit_test(every_operator_has_a_reference_kernel),
        cmocka_unit_test(refusals_name_operand_got_and_expected),
        cmocka_unit_test(kernels_refuse_bad_indices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
