/* SPDX-License-Identifier: Apache-2.0 */
/* Every kernel of this machine against the reference kernels, over the table of cases (in a brief
 * run the first and the last case of each operator, and one in N of the others). */
#include "common/check.h"
#include "op/harness.h"

#include <stdio.h>

static void kernels_agree_with_the_reference(void **state)
{
    (void)state;
    ds_ctx *one = check_ctx(1);
    ds_ctx *three = check_ctx(3);
    int failures = 0;
    for (const op_case *c = op_cases; c->op != NULL; ++c) {
        const bool first = c == op_cases || c->op != c[-1].op; /* taken, however brief */
        const bool last = c->op != c[1].op;
        if (first || last || check_long_row((size_t)(c - op_cases))) {
            failures += op_compare_case(one, three, c);
        }
    }
    ds_ctx_destroy(&one);
    ds_ctx_destroy(&three);
    assert_int_equal(failures, 0);
}

static void every_operator_has_a_case(void **state)
{
    (void)state;
    for (uint32_t i = 0; dsi_op_all()[i] != NULL; ++i) {
        bool found = (dsi_op_all()[i]->flags & (DS_OP_COMM | DS_OP_SWAP | DS_OP_RANKS)) != 0;
        /* no kernels: test_zero.c, test_offload.c, test_onebit.c, test_expert_parallel.c */
        for (const op_case *c = op_cases; c->op != NULL; ++c) {
            found = found || c->op == dsi_op_all()[i];
        }
        if (!found) {
            fail_msg("operator %s has no case in test/op/op_cases.c", dsi_op_all()[i]->name);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_operator_has_a_case),
        cmocka_unit_test(kernels_agree_with_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
