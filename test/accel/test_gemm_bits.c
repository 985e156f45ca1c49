/* SPDX-License-Identifier: Apache-2.0 */
/* The bits of a row of a matrix product depend on that row, on B and on the instruction set: not on
 * the other rows, on the number of threads, or on B being packed. Random shapes, layouts, dtypes
 * and epilogues; each row alone, random runs of rows and the whole, by every instruction set that
 * the machine has. DS_GEMM_BITS_CASES: how many cases (default 300).
 * labels: slow */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/gemm_impl.h"
#include "base/rng.h"
#include "common/check.h"
#include "op/isa.h"

#include <stdlib.h>
#include <string.h>

/* Linear congruential numbers are enough to choose cases. */
static uint32_t pick(uint32_t *state, uint32_t n)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % n;
}

static ds_dtype some_dtype(uint32_t *state)
{
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    return dtypes[pick(state, 3)];
}

static void *random_matrix(int64_t n, ds_dtype dtype, uint64_t seed)
{
    void *data = malloc((size_t)n * ds_dtype_bytes(dtype) + 1);
    assert_non_null(data);
    for (int64_t i = 0; i < n; ++i) {
        const uint32_t word = dsi_rng_u32(seed, 1, 0, (uint64_t)i);
        dsi_gemm_store(data, dtype, i, 2.0f * dsi_rng_unit(word) - 1.0f);
    }
    return data;
}

/* A product of all rows, and what it reads. */
typedef struct product {
    dsi_gemm_params p;
    void *a, *b, *bias, *residual;
    char *c; /* before the product: what it is added to */
    size_t row_bytes;
} product;

/* Mostly short sums and few columns; now and then several blocks of k, or many columns. */
static int64_t some_size(uint32_t *random, uint32_t most, uint32_t rare)
{
    return 1 + pick(random, pick(random, 8) == 0 ? rare : most);
}

static product make_product(uint32_t *random)
{
    product t = {.p = dsi_gemm_params_default()};
    dsi_gemm_params *p = &t.p;
    p->m = some_size(random, 12, 70);
    p->n = some_size(random, 90, 700);
    p->k = some_size(random, 200, 1500);
    p->a_dtype = some_dtype(random);
    p->b_dtype = pick(random, 4) == 0 ? some_dtype(random) : p->a_dtype;
    p->c_dtype = some_dtype(random);
    p->a_transposed = pick(random, 4) == 0;
    p->b_transposed = pick(random, 2) == 0;
    p->lda = (p->a_transposed ? p->m : p->k) + pick(random, 5);
    p->ldb = (p->b_transposed ? p->k : p->n) + pick(random, 5);
    p->ldc = p->n;
    p->alpha = pick(random, 4) == 0 ? 0.37f : 1.0f;
    p->accumulate = p->c_dtype == DS_DTYPE_F32 && pick(random, 4) == 0;
    t.a = random_matrix((p->a_transposed ? p->k : p->m) * p->lda, p->a_dtype, 1);
    t.b = random_matrix((p->b_transposed ? p->n : p->k) * p->ldb, p->b_dtype, 2);
    t.c = random_matrix(p->m * p->n, p->c_dtype, 3);
    t.row_bytes = (size_t)p->n * ds_dtype_bytes(p->c_dtype);
    if (pick(random, 3) == 0) {
        p->bias_dtype = some_dtype(random);
        t.bias = random_matrix(p->n, p->bias_dtype, 4);
    }
    if (!p->accumulate && pick(random, 3) == 0) {
        p->activation = DSI_GEMM_ACT_GELU_TANH;
    }
    if (!p->accumulate && pick(random, 3) == 0) {
        t.residual = random_matrix(p->m * p->n, p->c_dtype, 5);
    }
    p->b = t.b;
    p->bias = t.bias;
    return t;
}

static void free_product(product *t)
{
    free(t->a);
    free(t->b);
    free(t->bias);
    free(t->residual);
    free(t->c);
}

/* Rows [first,first+n) of the product, as a product of their own, into out. */
static void run_rows(dsi_pool *pool, const product *t, dsi_gemm_params p, int64_t first, int64_t n,
                     char *out)
{
    const int64_t at = p.a_transposed ? first : first * p.lda;
    const int64_t c_at = first * p.n;
    p.m = n;
    p.a = (const char *)t->a + (size_t)at * ds_dtype_bytes(p.a_dtype);
    p.c = out;
    p.residual =
        t->residual == NULL ? NULL : (char *)t->residual + (size_t)c_at * ds_dtype_bytes(p.c_dtype);
    p.ldres = p.n;
    memcpy(out, t->c + (size_t)first * t->row_bytes, (size_t)n * t->row_bytes);
    void *work = aligned_alloc(64, (dsi_gemm_work_bytes(&p) + 127) / 64 * 64);
    assert_non_null(work);
    dsi_gemm(pool, &p, work);
    free(work);
}

static void check_rows(dsi_pool *pool, const product *t, const dsi_gemm_params *p, int64_t first,
                       int64_t n, const char *whole, const char *what)
{
    char *rows = malloc((size_t)n * t->row_bytes);
    assert_non_null(rows);
    run_rows(pool, t, *p, first, n, rows);
    for (int64_t i = 0; i < n; ++i) {
        const char *want = whole + (size_t)(first + i) * t->row_bytes;
        if (memcmp(rows + (size_t)i * t->row_bytes, want, t->row_bytes) != 0) {
            fail_msg("%s: row %ld of %ld in rows [%ld,%ld) has other bits than in the whole (n %ld "
                     "k %ld, %s·%s→%s, layout %d%d, isa %s, threads %u)",
                     what, (long)(first + i), (long)p->m, (long)first, (long)(first + n),
                     (long)p->n, (long)p->k, ds_dtype_name(p->a_dtype), ds_dtype_name(p->b_dtype),
                     ds_dtype_name(p->c_dtype), p->a_transposed, p->b_transposed,
                     dsi_isa_print(p->isa).text, p->n_threads);
        }
    }
    free(rows);
}

static void check_packed(dsi_pool *pool, const product *t, dsi_gemm_params p, const char *whole)
{
    const size_t bytes = dsi_gemm_pack_bytes(&p);
    if (bytes == 0) {
        return;
    }
    void *packed = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(packed);
    dsi_gemm_pack(pool, &p, packed);
    p.b = packed;
    p.b_packed = true;
    check_rows(pool, t, &p, 0, p.m, whole, "packed");
    check_rows(pool, t, &p, p.m - 1, 1, whole, "packed, alone");
    free(packed);
}

static void check_isa(dsi_pool *pool, const product *t, ds_isa isa, uint32_t *random)
{
    static const uint32_t threads[] = {1, 2, 3, 4, 5, 7, 16};
    dsi_gemm_params p = t->p;
    p.isa = isa;
    char *whole = malloc((size_t)p.m * t->row_bytes);
    assert_non_null(whole);
    run_rows(pool, t, p, 0, p.m, whole);
    for (size_t i = 1; i < sizeof threads / sizeof threads[0]; ++i) {
        p.n_threads = threads[i];
        check_rows(pool, t, &p, 0, p.m, whole, "threads");
    }
    for (int64_t row = 0; row < p.m; ++row) {
        p.n_threads = threads[pick(random, 7)];
        check_rows(pool, t, &p, row, 1, whole, "alone");
    }
    for (int part = 0; part < 4; ++part) {
        const int64_t n = 1 + pick(random, part < 2 && p.m > 6 ? 6 : (uint32_t)p.m);
        const int64_t first = pick(random, (uint32_t)(p.m - n + 1));
        p.n_threads = threads[pick(random, 7)];
        check_rows(pool, t, &p, first, n, whole, "some");
    }
    check_packed(pool, t, p, whole);
    free(whole);
}

static void rows_are_independent(void **state)
{
    (void)state;
    const char *cases = getenv("DS_GEMM_BITS_CASES");
    const long n = cases != NULL ? atol(cases) : 300;
    dsi_pool *pool = NULL;
    uint32_t random = 20;
    assert_int_equal(dsi_pool_create(3, &pool), DS_OK);
    for (long i = 0; i < n; ++i) {
        product t = make_product(&random);
        for (uint32_t level = 0; dsi_cpu_has_level(level); ++level) {
            check_isa(pool, &t, dsi_isa_level(level), &random);
        }
        free_product(&t);
    }
    dsi_pool_destroy(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(rows_are_independent)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
