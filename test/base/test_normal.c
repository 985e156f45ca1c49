/* SPDX-License-Identifier: Apache-2.0 */
/* Normal deviates: the same bits on every instruction set and for any split, and the distribution.
 */
#include "base/rng.h"
#include "common/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 1 << 20 };

static void same_bits_everywhere(void **state)
{
    static float all[3][1000];
    (void)state;
    for (int widest = 0; widest < 3; ++widest) {
        dsi_rng_normals_with(widest, 42, 7, 5, 0.02f, all[widest], 1000);
    }
    assert_memory_equal(all[0], all[1], sizeof all[0]);
    assert_memory_equal(all[0], all[2], sizeof all[0]);
    for (uint64_t i = 0; i < 1000; ++i) { /* one by one */
        float one;
        dsi_rng_normals(42, 7, 5 + i, 0.02f, &one, 1);
        assert_true(one == all[0][i]);
        dsi_rng_normals(42, 7, 5 + i, 1.0f, &one, 1);
        assert_true(one == dsi_rng_normal(42, 7, 5 + i));
    }
    assert_true(dsi_rng_normal(42, 8, 5) != dsi_rng_normal(42, 7, 5));
    assert_true(dsi_rng_normal(43, 7, 5) != dsi_rng_normal(42, 7, 5));
}

static int ascending(const void *a, const void *b)
{
    const float x = *(const float *)a;
    const float y = *(const float *)b;
    return x < y ? -1 : x > y;
}

/* Moments, neighbours without correlation, and Kolmogorov and Smirnov's distance. */
static void distribution(void **state)
{
    float *z = malloc(N * sizeof *z);
    double sum[5] = {0};
    double neighbours = 0.0;
    double distance = 0.0;
    (void)state;
    assert_non_null(z);
    dsi_rng_normals(1, 2, 0, 1.0f, z, N);
    for (size_t i = 0; i < N; ++i) {
        const double x = (double)z[i];
        sum[1] += x;
        sum[2] += x * x;
        sum[3] += x * x * x;
        sum[4] += x * x * x * x;
        neighbours += i > 0 ? x * (double)z[i - 1] : 0.0;
    }
    const double sigma = 1.0 / sqrt(N); /* of a mean of N unit variates */
    assert_true(fabs(sum[1] / N) < 4.0 * sigma);
    assert_true(fabs(sum[2] / N - 1.0) < 4.0 * sqrt(2.0) * sigma);
    assert_true(fabs(sum[3] / N) < 4.0 * sqrt(15.0) * sigma);
    assert_true(fabs(sum[4] / N - 3.0) < 4.0 * sqrt(96.0) * sigma);
    assert_true(fabs(neighbours / N) < 4.0 * sigma);
    qsort(z, N, sizeof *z, ascending);
    for (size_t i = 0; i < N; ++i) {
        const double p = 0.5 * erfc(-(double)z[i] / sqrt(2.0));
        const double d = fmax(fabs(p - (double)i / N), fabs(p - (double)(i + 1) / N));
        distance = fmax(distance, d);
    }
    assert_true(distance < 1.95 * sigma); /* 1 in 1000 for a true normal; the seed is fixed */
    free(z);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(same_bits_everywhere),
        cmocka_unit_test(distribution),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
