/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers that point to nothing: the kernels of src/accel/cuda that read them report operator,
 * element and value, and touch nothing outside of their operands (the harness has canaries); what
 * no kernel takes. On the host layer. */
#include "accel/cuda/cuda_launch.h"
#include "common/check.h"
#include "op/harness.h"
#include "op/paged_state.h"

#include <string.h>

#define ATTRS(type, ...)                                                                           \
    &(const type)                                                                                  \
    {                                                                                              \
        __VA_ARGS__                                                                                \
    }

/* One number of one operand of a case, what it becomes, and what is said. */
typedef struct row {
    op_case c;
    uint32_t operand;
    int32_t at, value;
    const char *said;
} row;

static void refuse(ds_ctx *ctx, const row *r, ds_dtype dtype)
{
    op_operands o;
    const ds_kernel *kernel;
    CHECK_OK(ctx, op_operands_create(ctx, &r->c, dtype, &o));
    ((int32_t *)o.original[r->operand])[r->at] = r->value;
    for (uint32_t i = 0; (kernel = dsc_kernel_at(&o.sig, i)) != NULL; ++i) {
        CHECK_FAILS(ctx, op_operands_run(ctx, &o, kernel, false), DS_ERR_ARG, r->said);
    }
    assert_non_null(dsc_kernel_at(&o.sig, 0));
    op_operands_destroy(&o);
}

static void what_points_to_nothing_is_named(void **state)
{
    static const dsi_parts_attrs parts = {1};
    static const dsi_paged_attrs paged = {
        .n_heads = 3, .n_kv_heads = 3, .head_dim = 8, .scale = 0.35};
    static const dsi_delta_attrs delta = {
        .n_heads = 4, .n_key_heads = 2, .key_dim = 3, .scale = 0.35, .eps = 1e-6};
    static const char attention[] =
        "act[1,9,24] act[4,5,24] act[4,5,24] i32[3,2]<4 i32[9]<3 i32[1,9]=9";
    const row rows[] = {
        {{&dsi_op_spread_rows, "place", "act[15,33] i32[15,2]s", &parts, 0, 0, NULL, 0},
         1,
         7,
         30,
         "spread_rows: element 7 is 30"},
        {{&dsi_op_combine_rows, "place", "act[30,33] i32[15,2]s", &parts, 0, 0, NULL, 0},
         1,
         7,
         -1,
         "combine_rows: element 7 is -1"},
        {{&dsi_op_combine_rows_dw, "place", "act[15,33] act[30,33] i32[15,2]s", &parts, 0, 0, NULL,
          0},
         2,
         0,
         1 << 30,
         "combine_rows_dw: element 0 is 1073741824"},
        {{&dsi_op_group_rows, "expert", "i32[40,2]<5", ATTRS(dsi_group_attrs, .n_experts = 5), 0, 0,
          NULL, 0},
         0,
         79,
         5,
         "group_rows: element 79 is 5"},
        {{&dsi_op_route_backward, "expert", "stat[7,2] act[7,5] i32[7,2]p",
          ATTRS(dsi_route_attrs, .n_chosen = 2, .factor = 1.0), 0, 0, NULL, 0},
         2,
         3,
         -7,
         "route_backward: element 3 is -7"},
        {{&dsi_op_grouped_linear, "offsets fall", "act[40,17] act[5,33,17] i32[6]e40",
          ATTRS(dsi_grouped_attrs, .transposed = 0), 0, 0, NULL, 0},
         2,
         2,
         41,
         "grouped_linear: element 2 is 41"},
        {{&dsi_op_grouped_linear_dw, "offsets begin", "act[40,17] act[40,33] i32[6]e40",
          ATTRS(dsi_grouped_attrs, .transposed = 0), 0, 0, NULL, 0},
         2,
         0,
         -3,
         "grouped_linear_dw: element 0 is -3"},
        {{&dsi_op_paged_write, "slot", "act[3,9,33] act[1,7,33] i32[7]s",
          ATTRS(dsi_paged_write_attrs, .head_dim = 0), 0, 0, NULL, 0},
         2,
         4,
         27,
         "paged_write: element 4 is 27"},
        {{&dsi_op_paged_write, "slot of codes", "i8[3,9,74]q33 act[1,7,66] i32[7]s",
          ATTRS(dsi_paged_write_attrs, .head_dim = 33), 0, 0, NULL, 0},
         2,
         4,
         -2,
         "paged_write: element 4 is -2"},
        {{&dsi_op_paged_attention, "sequence", attention, &paged, 0, 0, NULL, 0},
         4,
         5,
         3,
         "paged_attention: element 5 is 3"},
        {{&dsi_op_paged_attention, "position", attention, &paged, 0, 0, NULL, 0},
         5,
         8,
         10,
         "paged_attention: element 8 is 10"},
        {{&dsi_op_embedding_blocks, "id", "q8_0[37,96] i32[7]<37",
          ATTRS(dsi_embedding_blocks_attrs, .dtype = DS_DTYPE_BF16), 0, 0, NULL, 0},
         1,
         6,
         37,
         "embedding_blocks: element 6 is 37"},
        {{&dsi_op_slot_adapter, "slot", "act[1,7,33] act[1,7,19] act[3,19,5] act[3,5,33] i32[7]<3",
          NULL, 0, 0, NULL, 0},
         4,
         2,
         3,
         "slot_adapter: element 2 is 3"},
        {{&dsi_op_paged_causal_conv, "sequence",
          "act[1,9,35] act[35,1,4] act[4,3,35] i32[9]o3 i32[1,9]p", NULL, 0, 0, NULL, 0},
         3,
         8,
         4,
         "paged_causal_conv: element 8 is 4"},
        {{&dsi_op_paged_causal_conv, "a second run",
          "act[1,9,35] act[35,1,4] act[4,3,35] i32[9]o3 i32[1,9]p", NULL, 0, 0, NULL, 0},
         3,
         8,
         1,
         "paged_causal_conv: element 8 is 1"},
        {{&dsi_op_paged_causal_conv, "position",
          "act[1,9,35] act[35,1,4] act[4,3,35] i32[9]o3 i32[1,9]p", NULL, 0, 0, NULL, 0},
         4,
         6,
         9,
         "paged_causal_conv: element 6 is 9"},
        {{&dsi_op_paged_causal_conv, "position",
          "act[1,9,35] act[35,1,4] act[4,3,35] i32[9]o3 i32[1,9]p", NULL, 0, 0, NULL, 0},
         4,
         5,
         -1,
         "paged_causal_conv: element 5 is -1"},
        {{&dsi_op_paged_delta_rule, "sequence",
          "act[1,9,6] act[1,9,6] act[1,9,20] stat[1,9,4]~0.1 act[1,9,4]+ stat[4,4,3,5] i32[9]o3 "
          "i32[1,9]p",
          &delta, 0, 0, NULL, 0},
         6,
         8,
         4,
         "paged_delta_rule: element 8 is 4"},
        {{&dsi_op_paged_delta_rule, "a second run",
          "act[1,9,6] act[1,9,6] act[1,9,20] stat[1,9,4]~0.1 act[1,9,4]+ stat[4,4,3,5] i32[9]o3 "
          "i32[1,9]p",
          &delta, 0, 0, NULL, 0},
         6,
         8,
         1,
         "paged_delta_rule: element 8 is 1"},
        {{&dsi_op_paged_delta_rule, "position",
          "act[1,9,6] act[1,9,6] act[1,9,20] stat[1,9,4]~0.1 act[1,9,4]+ stat[4,4,3,5] i32[9]o3 "
          "i32[1,9]p",
          &delta, 0, 0, NULL, 0},
         7,
         6,
         9,
         "paged_delta_rule: element 6 is 9"},
        {{&dsi_op_paged_delta_rule, "position",
          "act[1,9,6] act[1,9,6] act[1,9,20] stat[1,9,4]~0.1 act[1,9,4]+ stat[4,4,3,5] i32[9]o3 "
          "i32[1,9]p",
          &delta, 0, 0, NULL, 0},
         7,
         5,
         -1,
         "paged_delta_rule: element 5 is -1"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        refuse(*state, &rows[i], DS_DTYPE_F32);
        refuse(*state, &rows[i], DS_DTYPE_BF16);
    }
}

/* Tokens and targets below and above what there is. */
static void tokens_and_targets_that_there_are_not(void **state)
{
    static const dsi_linear_ce_attrs head = {.ce.ignore_index = -100};
    static const dsi_ce_attrs loss = {.ignore_index = -100};
    const row rows[] = {
        {{&dsi_op_embedding, "id", "act[11,33] i32[2,7]<11", NULL, 0, 0, NULL, 0},
         1,
         13,
         11,
         "embedding: element 13 is 11"},
        {{&dsi_op_embedding, "id", "act[11,33] i32[2,7]<11", NULL, 0, 0, NULL, 0},
         1,
         0,
         -1,
         "embedding: element 0 is -1"},
        {{&dsi_op_embedding_dw, "id", "i32[3,50]<11 act[3,50,33]",
          ATTRS(dsi_embedding_dw_attrs, .n_rows = 11), 0, 0, NULL, 0},
         0,
         149,
         INT32_MIN,
         "embedding_dw: element 149 is -2147483648"},
        {{&dsi_op_linear_cross_entropy, "target", "act[2,9,33] act[67,33] i32[2,9]<67", &head, 0, 0,
          NULL, 0},
         2,
         17,
         67,
         "linear_cross_entropy: element 17 is 67"},
        {{&dsi_op_cross_entropy, "target", "act[9,31] i32[9]<31m", &loss, 0, 0, NULL, 0},
         1,
         0,
         -99,
         "cross_entropy: element 0 is -99"},
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        refuse(*state, &rows[i], DS_DTYPE_F32);
        refuse(*state, &rows[i], DS_DTYPE_BF16);
    }
}

/* Of every block of a sequence that some token reads. */
static void a_block_that_there_is_not_is_named(void **state)
{
    const row r = {
        {&dsi_op_paged_attention, "block",
         "act[1,9,24] act[4,5,24] act[4,5,24] i32[1,2]<4 i32[9]0 i32[1,9]p",
         ATTRS(dsi_paged_attrs, .n_heads = 3, .n_kv_heads = 3, .head_dim = 8, .scale = 0.35), 0, 0,
         NULL, 0},
        3,
        1,
        4,
        "paged_attention: element 1 is 4"};
    refuse(*state, &r, DS_DTYPE_F32);
    refuse(*state, &r, DS_DTYPE_F16);
}

static void what_no_kernel_takes(void **state)
{
    const op_case cases[] = {
        {&dsi_op_route, "too many experts", "act[3,513]",
         ATTRS(dsi_route_attrs, .n_chosen = 1, .factor = 1.0), 0, 0, NULL, 0},
        {&dsi_op_paged_attention, "too wide a head",
         "act[1,1,520] act[2,5,520] act[2,5,520] i32[1,2]<2 i32[1]0 i32[1,1]0",
         ATTRS(dsi_paged_attrs, .n_heads = 1, .n_kv_heads = 1, .head_dim = 520, .scale = 0.1), 0, 0,
         NULL, 0},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        op_operands o;
        CHECK_OK(*state, op_operands_create(*state, &cases[i], DS_DTYPE_F32, &o));
        assert_null(dsc_kernel_at(&o.sig, 0));
        op_operands_destroy(&o);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_points_to_nothing_is_named),
        cmocka_unit_test(tokens_and_targets_that_there_are_not),
        cmocka_unit_test(a_block_that_there_is_not_is_named),
        cmocka_unit_test(what_no_kernel_takes),
    };
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
