/* SPDX-License-Identifier: Apache-2.0 */
/* Gradient rules of every operator against finite differences in fp64. */
#include "common/check.h"
#include "op/harness.h"

static void gradient_rules_agree_with_differences(void **state)
{
    (void)state;
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    int failures = 0;
    for (const op_case *c = op_cases; c->op != NULL; ++c) {
        failures += op_grad_case(ctx, c);
    }
    ds_ctx_destroy(&ctx);
    assert_int_equal(failures, 0);
}

static void every_gradient_rule_has_a_case(void **state)
{
    (void)state;
    for (uint32_t i = 0; dsi_op_all()[i] != NULL; ++i) {
        const ds_op *op = dsi_op_all()[i];
        bool found = op->grad == NULL;
        for (const op_case *c = op_cases; c->op != NULL; ++c) {
            found = found || (c->op == op && (c->flags & OP_NO_GRAD) == 0);
        }
        /* every trial casts its output; a straight gradient is by intent not that of a step
         * function, nor is none where DoRA has none */
        const bool straight = op == &dsi_op_fake_quant || op == &dsi_op_fake_quant_rows ||
                              op == &dsi_op_top_mask || op == &dsi_op_weight_norms;
        /* what goes between ranks is no kernel: test_expert_parallel runs both ways */
        const bool of_ranks = (op->flags & DS_OP_RANKS) != 0;
        if (!found && op != &dsi_op_cast && !straight && !of_ranks) {
            fail_msg("the gradient rule of %s has no case in test/op/op_cases.c", op->name);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_gradient_rule_has_a_case),
        cmocka_unit_test(gradient_rules_agree_with_differences),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
