/* SPDX-License-Identifier: Apache-2.0 */
/* Largest singular values: known ones come back, vectors are orthonormal, w·v = s·u and wᵀ·u = s·v;
 * wide and tall matrices, some of low rank, and zero. */
#include "base/rng.h"
#include "base/top_svd.h"
#include "common/check.h"

#include <math.h>
#include <stdlib.h>

static ds_ctx *ctx;

static double product(const double *a, const double *b, int64_t n)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        sum += a[i] * b[i];
    }
    return sum;
}

/* w·v - s·u and wᵀ·u - s·v, the largest element. */
static double residual(const float *w, int64_t m, int64_t n, const double *u, double s,
                       const double *v)
{
    double most = 0.0;
    for (int64_t i = 0; i < m; ++i) {
        double sum = -s * u[i];
        for (int64_t j = 0; j < n; ++j) {
            sum += (double)w[i * n + j] * v[j];
        }
        most = fabs(sum) > most ? fabs(sum) : most;
    }
    for (int64_t j = 0; j < n; ++j) {
        double sum = -s * v[j];
        for (int64_t i = 0; i < m; ++i) {
            sum += (double)w[i * n + j] * u[i];
        }
        most = fabs(sum) > most ? fabs(sum) : most;
    }
    return most;
}

/* rank: of the matrix, a sum of so many products; 0: zeros. */
static void check(int64_t m, int64_t n, int64_t rank, int64_t r)
{
    float *w = calloc((size_t)(m * n), sizeof *w);
    double *u = malloc((size_t)(r * m) * sizeof *u);
    double *v = malloc((size_t)(r * n) * sizeof *v);
    double *s = malloc((size_t)r * sizeof *s);
    for (int64_t k = 0; k < rank; ++k) {
        for (int64_t i = 0; i < m * n; ++i) {
            w[i] += dsi_rng_normal(3, (uint32_t)(2 * k), (uint64_t)(i / n)) *
                    dsi_rng_normal(3, (uint32_t)(2 * k + 1), (uint64_t)(i % n));
        }
    }
    CHECK_OK(ctx, dsi_top_svd(ctx, w, m, n, r, u, s, v));
    for (int64_t i = 0; i < r; ++i) {
        assert_true(i == 0 || s[i] <= s[i - 1]);
        assert_true(s[i] >= 0.0 && (i < rank || s[i] < 1e-6 * (s[0] + 1.0)));
        assert_true(i >= rank || s[i] > 1e-3);
        assert_true(residual(w, m, n, u + i * m, s[i], v + i * n) <= 2e-7 * s[0] + 1e-12);
        for (int64_t k = 0; k <= i && i < rank; ++k) {
            const double want = k == i ? 1.0 : 0.0;
            assert_true(fabs(product(u + i * m, u + k * m, m) - want) < 1e-9);
            assert_true(fabs(product(v + i * n, v + k * n, n) - want) < 1e-9);
        }
    }
    free(w);
    free(u);
    free(v);
    free(s);
}

static void values_and_vectors(void **state)
{
    (void)state;
    check(1, 1, 1, 1);
    check(5, 1, 1, 1);
    check(1, 7, 1, 1);
    check(16, 16, 16, 16);
    check(16, 64, 16, 3);
    check(64, 16, 16, 16);
    check(200, 300, 90, 8);
    check(300, 150, 4, 8);
    check(30, 40, 0, 5);
}

static void numbers_are_finite(void **state)
{
    const float w[4] = {1.0f, INFINITY, 2.0f, 3.0f};
    double u[2], s[1], v[2];
    (void)state;
    CHECK_FAILS(ctx, dsi_top_svd(ctx, w, 2, 2, 1, u, s, v), DS_ERR_NUMERIC, "not finite");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_and_vectors),
        cmocka_unit_test(numbers_are_finite),
    };
    ctx = check_ctx(1);
    const int failures = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failures;
}
