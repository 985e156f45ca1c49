/* SPDX-License-Identifier: Apache-2.0 */
/* data/permutation: a bijection of [0,n) for every n, seed and epoch tried. */
#include "common/check.h"
#include "data/permutation.h"

#include <stdbool.h>
#include <string.h>

static void is_a_bijection(void **state)
{
    (void)state;
    static const uint64_t sizes[] = {1, 2, 3, 4, 5, 16, 17, 255, 1000, 4096, 4097};
    for (size_t s = 0; s < sizeof sizes / sizeof *sizes; ++s) {
        for (uint64_t epoch = 0; epoch < 3; ++epoch) {
            bool seen[4097];
            memset(seen, 0, sizeof seen);
            for (uint64_t i = 0; i < sizes[s]; ++i) {
                const uint64_t image = dsi_permute(i, sizes[s], 7, epoch);
                assert_true(image < sizes[s]);
                assert_false(seen[image]);
                seen[image] = true;
            }
        }
    }
}

/* Nothing to permute ends, too. */
static void of_nothing(void **state)
{
    (void)state;
    assert_int_equal(dsi_permute(0, 0, 7, 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(is_a_bijection),
                                       cmocka_unit_test(of_nothing)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
