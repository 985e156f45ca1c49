/* SPDX-License-Identifier: Apache-2.0 */
/* The kernels of src/accel/cuda, on the host layer, against the reference kernels over the
 * harness's cases, with a block's threads in several orders; with DS_CUDA_ALL=1 over the large ones
 * too. labels: threads */
#include "accel/cuda/host/launch_host.h"
#include "common/check.h"
#include "op/harness.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A fiber a thread: these take minutes under a sanitizer. */
static bool is_large(const op_case *c)
{
    return strstr(c->label, "long") != NULL || strstr(c->label, "beyond") != NULL ||
           strstr(c->label, "strips") != NULL || strstr(c->label, "nf4_double, one row") != NULL;
}

/* DS_CUDA_OPS=NAMES, with blanks between them: of these operators alone; DS_CUDA_LABEL=TEXT: of the
 * cases that have it in their labels (test/long/cuda_barriers.py). */
static bool is_wanted(const op_case *c)
{
    const char *names = getenv("DS_CUDA_OPS");
    const char *label = getenv("DS_CUDA_LABEL");
    if (label != NULL && strstr(c->label, label) == NULL) {
        return false;
    }
    const size_t n = strlen(c->op->name);
    for (const char *at = names; at != NULL; at = strchr(at, ' ')) {
        at += *at == ' ' ? 1 : 0;
        if (strncmp(at, c->op->name, n) == 0 && (at[n] == ' ' || at[n] == 0)) {
            return true;
        }
    }
    return names == NULL;
}

static void kernels_agree_with_the_reference(void **state)
{
    (void)state;
    ds_ctx *one = check_ctx(1);
    ds_ctx *three = check_ctx(3);
    const bool all = getenv("DS_CUDA_ALL") != NULL;
    int failures = 0;
    uint32_t n = 0;
    uint32_t taken = 0;
    const ds_op *last = NULL; /* whose first case is taken, however brief */
    for (const op_case *c = op_cases; c->op != NULL; ++c) {
        const bool first = c->op != last;
        if ((all || !is_large(c)) && is_wanted(c) &&
            (first || check_long_row((size_t)(c - op_cases)))) {
            last = c->op;
            dsc_host_set_order(taken++ % 4);
            failures += op_compare_kernels(one, three, c, dsc_kernel_at, &n);
        }
    }
    dsc_host_set_order(0);
    ds_ctx_destroy(&one);
    ds_ctx_destroy(&three);
    print_message("%u runs of cases\n", n);
    assert_int_equal(failures, 0);
    assert_true(n > (getenv("DS_CUDA_OPS") != NULL ? 0 : 50));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(kernels_agree_with_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
