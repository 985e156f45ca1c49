/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products: every implementation that this machine can run against the plain one, in all
 * dtypes, layouts and epilogues, at odd sizes and strides; guards around everything written, NaN
 * around everything that must not be read; packed B; the split of the work against the threads. */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/gemm_impl.h"
#include "base/rng.h"
#include "common/check.h"
#include "op/isa.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { GUARD = 64, RED_ZONE = 16384 };

/* Linear congruential numbers are enough to choose cases. */
static uint32_t pick(uint32_t *state, uint32_t n)
{
    *state = *state * 1664525u + 1013904223u;
    return (*state >> 8) % n;
}

typedef struct matrix {
    void *base;
    void *data; /* 64 guard bytes in */
    int64_t rows, columns, ld;
    ds_dtype dtype;
    size_t bytes;
} matrix;

static matrix make_matrix(int64_t rows, int64_t columns, int64_t ld, ds_dtype dtype)
{
    matrix x = {.rows = rows, .columns = columns, .ld = ld, .dtype = dtype};
    x.bytes = (size_t)(rows * ld) * ds_dtype_bytes(dtype);
    x.base = malloc(x.bytes + 2 * GUARD);
    assert_non_null(x.base);
    memset(x.base, 0xff, x.bytes + 2 * GUARD); /* NaN in every dtype */
    x.data = (char *)x.base + GUARD;
    return x;
}

static void fill(const matrix *x, uint64_t seed)
{
    for (int64_t i = 0; i < x->rows; ++i) {
        for (int64_t j = 0; j < x->columns; ++j) {
            const uint32_t word = dsi_rng_u32(seed, 1, 0, (uint64_t)(i * x->columns + j));
            dsi_gemm_store(x->data, x->dtype, i * x->ld + j, 2.0f * dsi_rng_unit(word) - 1.0f);
        }
    }
}

static matrix copy_matrix(const matrix *x)
{
    matrix y = make_matrix(x->rows, x->columns, x->ld, x->dtype);
    memcpy(y.base, x->base, x->bytes + 2 * GUARD);
    return y;
}

/* Everything outside rows × columns is still 0xff. */
static void check_guards(const matrix *x)
{
    const size_t size = ds_dtype_bytes(x->dtype);
    const unsigned char *bytes = x->base;
    for (size_t at = 0; at < x->bytes + 2 * GUARD; ++at) {
        const int64_t element = at < GUARD ? -1 : (int64_t)((at - GUARD) / size);
        const bool inside =
            element >= 0 && element < x->rows * x->ld && element % x->ld < x->columns;
        if (!inside && bytes[at] != 0xff) {
            fail_msg("byte %zu outside the matrix was written", at);
        }
    }
}

typedef struct gemm_case {
    dsi_gemm_params p;
    matrix a, b, c, bias, pre, residual;
    double scale; /* bound of Σ|a·b| and of what is added */
} gemm_case;

static double unit_of(ds_dtype dtype)
{
    return dtype == DS_DTYPE_BF16 ? 0x1p-8 : dtype == DS_DTYPE_F16 ? 0x1p-11 : 0x1p-24;
}

static int64_t some_stride(uint32_t *state, int64_t n)
{
    return n + (int64_t)(pick(state, 2) * pick(state, 40));
}

static ds_dtype some_dtype(uint32_t *state)
{
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    return dtypes[pick(state, 3)];
}

static void add_epilogue(gemm_case *t, uint32_t *state)
{
    dsi_gemm_params *p = &t->p;
    if (p->c_dtype == DS_DTYPE_F32 && pick(state, 3) == 0) {
        p->accumulate = true;
    }
    if (pick(state, 2) == 0) {
        p->bias_dtype = some_dtype(state);
        t->bias = make_matrix(1, p->n, p->n, p->bias_dtype);
        fill(&t->bias, 11);
        p->bias = t->bias.data;
    }
    p->alpha = pick(state, 2) == 0 ? 0.37f : 1.0f;
    if (p->accumulate) {
        return;
    }
    if (pick(state, 3) == 0) {
        p->activation = DSI_GEMM_ACT_GELU_TANH;
    }
    if (pick(state, 3) == 0) {
        p->ldpre = some_stride(state, p->n);
        t->pre = make_matrix(p->m, p->n, p->ldpre, p->c_dtype);
        p->pre = t->pre.data;
    }
    if (pick(state, 3) == 0) {
        p->ldres = some_stride(state, p->n);
        t->residual = make_matrix(p->m, p->n, p->ldres, p->c_dtype);
        fill(&t->residual, 12);
        p->residual = t->residual.data;
    }
}

static gemm_case make_case(int64_t m, int64_t n, int64_t k, ds_dtype ab, ds_dtype c,
                           uint32_t *state)
{
    gemm_case t = {.p = dsi_gemm_params_default()};
    dsi_gemm_params *p = &t.p;
    p->m = m;
    p->n = n;
    p->k = k;
    p->a_dtype = ab;
    p->b_dtype = pick(state, 6) == 0 ? some_dtype(state) : ab;
    p->c_dtype = c;
    p->a_transposed = pick(state, 2) == 0;
    p->b_transposed = pick(state, 2) == 0;
    p->n_threads = 1 + pick(state, 3);
    p->lda = some_stride(state, p->a_transposed ? m : k);
    p->ldb = some_stride(state, p->b_transposed ? k : n);
    p->ldc = some_stride(state, n);
    t.a = make_matrix(p->a_transposed ? k : m, p->a_transposed ? m : k, p->lda, p->a_dtype);
    t.b = make_matrix(p->b_transposed ? n : k, p->b_transposed ? k : n, p->ldb, p->b_dtype);
    t.c = make_matrix(m, n, p->ldc, c);
    fill(&t.a, 1);
    fill(&t.b, 2);
    p->a = t.a.data;
    p->b = t.b.data;
    add_epilogue(&t, state);
    if (p->accumulate) {
        fill(&t.c, 3);
    }
    t.scale = 0.26 * (double)k + 3.0;
    return t;
}

static void free_case(gemm_case *t)
{
    free(t->a.base);
    free(t->b.base);
    free(t->c.base);
    free(t->bias.base);
    free(t->pre.base);
    free(t->residual.base);
}

static void compare(const gemm_case *t, const matrix *got, const matrix *want, const char *name,
                    const char *what)
{
    const dsi_gemm_params *p = &t->p;
    const double sum_error = t->scale * 0x1p-24 * (4.0 + 0.5 * sqrt((double)p->k));
    for (int64_t i = 0; i < want->rows; ++i) {
        for (int64_t j = 0; j < want->columns; ++j) {
            const double x = (double)dsi_gemm_load(got->data, got->dtype, i * got->ld + j);
            const double y = (double)dsi_gemm_load(want->data, want->dtype, i * want->ld + j);
            /* a pre-activation or a result on the edge between two roundings may go either way */
            const double rounding = unit_of(p->c_dtype) * (p->pre != NULL ? 6.0 : 2.2);
            const double allowed =
                2.0 * sum_error + rounding * (fabs(y) + (p->pre != NULL ? 1.0 : 0.0));
            if (!(fabs(x - y) <= allowed)) {
                fail_msg(
                    "%s %s[%ld,%ld] = %.9g, want %.9g (m %ld n %ld k %ld, %s·%s→%s, layout "
                    "%d%d, alpha %g, accumulate %d, bias %d, pre %d, act %d, res %d, lanes %u)",
                    name, what, (long)i, (long)j, x, y, (long)p->m, (long)p->n, (long)p->k,
                    ds_dtype_name(p->a_dtype), ds_dtype_name(p->b_dtype), ds_dtype_name(p->c_dtype),
                    p->a_transposed, p->b_transposed, (double)p->alpha, p->accumulate,
                    p->bias != NULL, p->pre != NULL, (int)p->activation, p->residual != NULL,
                    p->n_threads);
            }
        }
    }
    check_guards(got);
}

/* Runs p with C and pre in fresh copies; the workspace is exactly as large as asked for. */
static void run_guarded(dsi_pool *pool, const gemm_case *t, const dsi_gemm_params *base, matrix *c,
                        matrix *pre)
{
    dsi_gemm_params p = *base;
    *c = copy_matrix(&t->c);
    *pre = p.pre != NULL ? copy_matrix(&t->pre) : (matrix){0};
    p.c = c->data;
    p.pre = pre->data;
    const size_t bytes = dsi_gemm_work_bytes(&p);
    const size_t padded = (bytes + 63) / 64 * 64 + RED_ZONE;
    unsigned char *work = aligned_alloc(64, padded);
    assert_non_null(work);
    memset(work, 0xff, padded);
    dsi_gemm(pool, &p, work);
    for (size_t i = bytes; i < padded; ++i) {
        assert_int_equal(work[i], 0xff);
    }
    free(work);
}

static bool same_bytes(const matrix *x, const matrix *y)
{
    return x->base == NULL || memcmp(x->base, y->base, x->bytes + 2 * GUARD) == 0;
}

static void check_isa(dsi_pool *pool, const gemm_case *t, ds_isa isa, const matrix *want_c,
                      const matrix *want_pre)
{
    dsi_gemm_params p = t->p;
    p.isa = isa;
    const char *name = dsi_gemm_choose(&p)->name;
    matrix c;
    matrix pre;
    run_guarded(pool, t, &p, &c, &pre);
    if (p.pre != NULL) {
        compare(t, &pre, want_pre, name, "pre");
    }
    compare(t, &c, want_c, name, "c");
    matrix alone_c;
    matrix alone_pre;
    run_guarded(NULL, t, &p, &alone_c, &alone_pre); /* any pool gives the same bits */
    assert_true(same_bytes(&alone_c, &c) && same_bytes(&alone_pre, &pre));
    free(alone_c.base);
    free(alone_pre.base);
    const size_t packed_bytes = dsi_gemm_pack_bytes(&p);
    if (packed_bytes > 0) {
        void *packed = aligned_alloc(64, (packed_bytes + 63) / 64 * 64);
        assert_non_null(packed);
        dsi_gemm_pack(pool, &p, packed);
        dsi_gemm_params q = p;
        q.b = packed;
        q.b_packed = true;
        run_guarded(pool, t, &q, &alone_c, &alone_pre);
        compare(t, &alone_c, want_c, name, "c with packed b");
        free(alone_c.base);
        free(alone_pre.base);
        free(packed);
    }
    free(c.base);
    free(pre.base);
}

static void check_case(dsi_pool *pool, gemm_case *t)
{
    dsi_gemm_params p = t->p;
    p.isa = DS_ISA_REF;
    matrix want_c;
    matrix want_pre;
    run_guarded(pool, t, &p, &want_c, &want_pre);
    for (uint32_t level = 1; dsi_cpu_has_level(level); ++level) {
        check_isa(pool, t, dsi_isa_level(level), &want_c, &want_pre);
    }
    free(want_c.base);
    free(want_pre.base);
    free_case(t);
}

static dsi_pool *make_pool(void)
{
    dsi_pool *pool = NULL;
    assert_int_equal(dsi_pool_create(3, &pool), DS_OK);
    return pool;
}

static void odd_sizes_agree(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 47, 64, 65, 97, 131};
    dsi_pool *pool = make_pool();
    uint32_t random = 1;
    for (int round = 0; round < 400; ++round) {
        gemm_case t =
            make_case(sizes[pick(&random, 16)], sizes[pick(&random, 16)], sizes[pick(&random, 16)],
                      some_dtype(&random), some_dtype(&random), &random);
        check_case(pool, &t);
    }
    dsi_pool_destroy(&pool);
}

/* Large enough that k, m and n are cut into several blocks and chunks. */
static void blocked_sizes_agree(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{33, 70, 1500}, {65, 800, 300}, {1100, 40, 530},
                                       {1, 1111, 777}, {3, 515, 1030}, {130, 130, 2100}};
    dsi_pool *pool = make_pool();
    uint32_t random = 77;
    for (int round = 0; round < 24; ++round) {
        const int64_t *s = sizes[round % 6];
        const ds_dtype ab = round < 12 ? DS_DTYPE_BF16 : some_dtype(&random);
        gemm_case t = make_case(s[0], s[1], s[2], ab, some_dtype(&random), &random);
        check_case(pool, &t);
    }
    dsi_pool_destroy(&pool);
}

/* An empty sum still gets its epilogue; an empty result touches nothing. */
static void empty_sizes_work(void **state)
{
    (void)state;
    static const int64_t sizes[][3] = {{5, 37, 0}, {0, 7, 9}, {7, 0, 9}, {0, 0, 0}, {1, 3, 0}};
    dsi_pool *pool = make_pool();
    uint32_t random = 5;
    for (int round = 0; round < 30; ++round) {
        const int64_t *s = sizes[round % 5];
        gemm_case t =
            make_case(s[0], s[1], s[2], some_dtype(&random), some_dtype(&random), &random);
        check_case(pool, &t);
    }
    dsi_pool_destroy(&pool);
}

static const char *chosen(ds_isa isa, int64_t m, ds_dtype a, ds_dtype b)
{
    dsi_gemm_params p = dsi_gemm_params_default();
    p.m = m;
    p.n = 64;
    p.k = 64;
    p.a_dtype = a;
    p.b_dtype = b;
    p.c_dtype = DS_DTYPE_F32;
    p.isa = isa;
    return dsi_gemm_choose(&p)->name;
}

/* What each instruction set multiplies with, where the machine has it. */
static void levels_choose(void **state)
{
    (void)state;
    static const struct {
        ds_isa isa;
        int64_t m;
        ds_dtype a, b;
        const char *name;
    } cases[] = {
        {DS_ISA_REF, 64, DS_DTYPE_BF16, DS_DTYPE_BF16, "ref"},
        {DSI_NEEDS_AVX2, 64, DS_DTYPE_BF16, DS_DTYPE_BF16, "avx2"},
        {DSI_NEEDS_AVX512, 64, DS_DTYPE_BF16, DS_DTYPE_BF16, "avx512"},
        {DSI_NEEDS_AVX512_BF16, 64, DS_DTYPE_BF16, DS_DTYPE_BF16, "avx512_bf16"},
        {DSI_NEEDS_AVX512_BF16, 64, DS_DTYPE_BF16, DS_DTYPE_F32, "avx512"},
        {DSI_NEEDS_AVX512_BF16, 64, DS_DTYPE_F32, DS_DTYPE_BF16, "avx512"},
        {DSI_NEEDS_AVX512_BF16, 64, DS_DTYPE_F16, DS_DTYPE_F16, "avx512"},
        {DSI_NEEDS_AVX512_BF16, 4, DS_DTYPE_BF16, DS_DTYPE_BF16, "vector"},
        {DSI_NEEDS_AMX, 64, DS_DTYPE_BF16, DS_DTYPE_BF16, "amx"},
        {DSI_NEEDS_AMX, 64, DS_DTYPE_F32, DS_DTYPE_F32, "avx512"},
        {DSI_NEEDS_AMX, 4, DS_DTYPE_BF16, DS_DTYPE_BF16, "amx"},
        {DSI_NEEDS_AMX, 4, DS_DTYPE_F32, DS_DTYPE_F32, "vector"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        if ((cases[i].isa & ~dsi_cpu_isa()) == 0) {
            assert_string_equal(chosen(cases[i].isa, cases[i].m, cases[i].a, cases[i].b),
                                cases[i].name);
        }
    }
}

/* Residual and C may be the same matrix. */
static void residual_in_place(void **state)
{
    (void)state;
    dsi_pool *pool = make_pool();
    uint32_t random = 9;
    for (uint32_t level = 0; dsi_cpu_has_level(level); ++level) {
        gemm_case t = make_case(50, 70, 40, DS_DTYPE_BF16, DS_DTYPE_BF16, &random);
        t.p.accumulate = false;
        t.p.pre = NULL;
        t.p.isa = dsi_isa_level(level);
        matrix c = copy_matrix(&t.c);
        fill(&c, 21);
        matrix residual = copy_matrix(&c);
        t.p.ldres = t.p.ldc;
        t.p.residual = residual.data;
        matrix want;
        matrix unused;
        run_guarded(pool, &t, &t.p, &want, &unused);
        void *work = aligned_alloc(64, dsi_gemm_work_bytes(&t.p) + 64);
        t.p.c = c.data;
        t.p.residual = c.data;
        dsi_gemm(pool, &t.p, work);
        assert_true(same_bytes(&want, &c));
        free(work);
        free(want.base);
        free(c.base);
        free(residual.base);
        free_case(&t);
    }
    dsi_pool_destroy(&pool);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(odd_sizes_agree),   cmocka_unit_test(blocked_sizes_agree),
        cmocka_unit_test(empty_sizes_work),  cmocka_unit_test(levels_choose),
        cmocka_unit_test(residual_in_place),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
