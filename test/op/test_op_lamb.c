/* SPDX-License-Identifier: Apache-2.0 */
/* LAMB's three operators: against fp64 results (test/golden/op/optim.txt), and slices against the
 * whole, bit for bit, on every kernel. Through the engine: test_optimizer_golden. */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "base/exact_bins.h"
#include "base/half.h"
#include "base/rng.h"
#include "common/check.h"
#include "op/harness_golden.h"
#include "op/ops.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUMS = 2 * DSI_EXACT_WIDE, MOST_SLICES = 7 };

static ds_ctx *ctx;

static int set_up(void **state)
{
    (void)state;
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 3};
    return ds_ctx_create(&params, &ctx);
}

static int tear_down(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

/* A tensor, or a slice of it filled with zeros. */
typedef struct tensor_state {
    int64_t n;
    float *m, *v, *p, *g;
    uint16_t *narrow; /* bf16 parameter, where p is its master; else NULL */
    float hyper[DSI_HYPER_COUNT], factor;
    double sums[SUMS];
} tensor_state;

static tensor_state make(int64_t n, bool master)
{
    const size_t bytes = ((size_t)n + 64) * sizeof(float);
    tensor_state s = {.n = n,
                      .m = calloc(1, bytes),
                      .v = calloc(1, bytes),
                      .p = calloc(1, bytes),
                      .g = calloc(1, bytes),
                      .narrow = master ? calloc(1, bytes) : NULL,
                      .factor = 1.0f};
    return s;
}

static void destroy(tensor_state *s)
{
    free(s->m);
    free(s->v);
    free(s->p);
    free(s->g);
    free(s->narrow);
}

static ds_tensor floats(void *data, int64_t n)
{
    return (ds_tensor){data, {DS_DTYPE_F32, ds_shape_1d(n)}};
}

/* Kernel `index` of the operator; false when it has no more. */
static bool run(const ds_op *op, const dsi_optim_attrs *attrs, const ds_tensor *in, uint32_t n_in,
                const ds_tensor *out, uint32_t n_out, uint32_t index)
{
    ds_meta in_meta[DS_MAX_IN] = {{0}};
    ds_meta out_meta[DS_MAX_OUT] = {{0}};
    for (uint32_t i = 0; i < n_in; ++i) {
        in_meta[i] = in[i].meta;
    }
    for (uint32_t o = 0; o < n_out; ++o) {
        out_meta[o] = out[o].meta;
    }
    const ds_kernel_sig sig = {.op = op,
                               .attrs = attrs,
                               .n_in = n_in,
                               .n_out = n_out,
                               .in = in_meta,
                               .out = out_meta,
                               .n_threads = 3};
    const ds_kernel *kernel = dsi_cpu_kernel_at(&sig, dsi_cpu_isa(), index);
    if (kernel == NULL) {
        return false;
    }
    const size_t bytes = kernel->work_bytes != NULL ? kernel->work_bytes(&sig) : 0;
    void *work = aligned_alloc(64, (bytes + 127) / 64 * 64);
    const ds_kernel_call call = {.ctx = ctx, .sig = &sig, .in = in, .out = out, .work = work};
    CHECK_OK(ctx, kernel->run(&call));
    free(work);
    return true;
}

static bool moments_and_sums(tensor_state *s, const dsi_optim_attrs *attrs, uint32_t kernel)
{
    const ds_tensor hyper = floats(s->hyper, DSI_HYPER_COUNT);
    const ds_tensor factor = {&s->factor, {DS_DTYPE_F32, {0}}};
    const ds_tensor m = floats(s->m, s->n);
    const ds_tensor v = floats(s->v, s->n);
    const ds_tensor none = {0};
    const ds_tensor first[6] = {m, floats(s->g, s->n), hyper, factor, none, v};
    const ds_tensor made[3] = {m, none, v};
    const ds_tensor second[4] = {m, v, floats(s->p, s->n), hyper};
    const ds_tensor sums = {s->sums, {DS_DTYPE_F64, ds_shape_1d(SUMS)}};
    return run(&dsi_op_lamb_moments, attrs, first, 6, made, 3, kernel) &&
           run(&dsi_op_lamb_sums, attrs, second, 4, &sums, 1, kernel);
}

static bool update(tensor_state *s, const dsi_optim_attrs *attrs, const double *sums,
                   uint32_t kernel)
{
    const ds_tensor all = {(void *)sums, {DS_DTYPE_F64, ds_shape_1d(SUMS)}};
    const ds_tensor weight = floats(s->p, s->n);
    const ds_tensor narrow = {s->narrow, {DS_DTYPE_BF16, ds_shape_1d(s->n)}};
    const ds_tensor none = {0};
    const bool master = s->narrow != NULL;
    const ds_tensor in[7] = {master ? narrow : weight,
                             all,
                             floats(s->hyper, DSI_HYPER_COUNT),
                             none,
                             master ? weight : none,
                             floats(s->m, s->n),
                             floats(s->v, s->n)};
    const ds_tensor out[2] = {in[0], in[4]};
    return run(&dsi_op_lamb, attrs, in, 7, out, 2, kernel);
}

/* ---- fp64 ------------------------------------------------------------------------------------ */

static void set_floats(float *data, const op_line *line)
{
    for (int i = 0; i < line->n; ++i) {
        data[i] = (float)line->x[i];
    }
}

static void test_golden(void **state)
{
    (void)state;
    static op_line head, start, hyper[16], grad[16], param[16];
    const dsi_optim_attrs attrs = {.eps = 1e-8, .max_coeff = 10.0, .min_coeff = 0.01};
    FILE *file = fopen(DS_SOURCE_DIR "/test/golden/op/optim.txt", "r");
    uint32_t n_kernels = 0;
    assert_non_null(file);
    while (op_golden_next(file, &head)) {
        const int n_steps = (int)head.x[5];
        assert_true(op_golden_next(file, &start));
        for (int t = 0; t < n_steps; ++t) {
            assert_true(op_golden_next(file, &hyper[t]) && op_golden_next(file, &grad[t]) &&
                        op_golden_next(file, &param[t]));
        }
        for (uint32_t k = 0; strcmp(head.word[2], "lamb") == 0; ++k) {
            tensor_state s = make((int64_t)head.x[4], false);
            bool more = true;
            set_floats(s.p, &start);
            for (int t = 0; t < n_steps && more; ++t) {
                set_floats(s.hyper, &hyper[t]);
                set_floats(s.g, &grad[t]);
                more = moments_and_sums(&s, &attrs, k) && update(&s, &attrs, s.sums, k);
                for (int64_t i = 0; more && i < s.n; ++i) {
                    assert_true(fabs((double)s.p[i] - param[t].x[i]) <= 2e-6);
                }
            }
            destroy(&s);
            n_kernels += more ? 1 : 0;
            if (!more) {
                break;
            }
        }
    }
    (void)fclose(file);
    assert_true(n_kernels >= 1);
}

/* ---- slices ---------------------------------------------------------------------------------- */

static const float hyper_of[DSI_HYPER_COUNT] = {0.02f, 0.9f, 0.95f, 0.1f, 0.19f, 0.3f, 0.0f, 0.0f};

static void fill(tensor_state *s, const tensor_state *whole, int64_t at, float scale)
{
    memcpy(s->hyper, hyper_of, sizeof s->hyper);
    for (int64_t i = 0; i < s->n; ++i) {
        const int64_t e = at + i;
        if (e < whole->n) { /* every 13th has had no gradient yet */
            const bool fresh = e % 13 == 0;
            s->m[i] = fresh ? 0.0f : 0.1f * scale * dsi_rng_normal(1, 1, (uint64_t)e);
            s->v[i] =
                fresh ? 0.0f : 0.1f * scale * scale * fabsf(dsi_rng_normal(1, 2, (uint64_t)e));
            s->g[i] = fresh ? 0.0f : scale * dsi_rng_normal(1, 3, (uint64_t)e);
            s->p[i] = dsi_rng_normal(1, 4, (uint64_t)e);
            if (s->narrow != NULL) {
                s->narrow[i] = dsi_f32_to_bf16(s->p[i]);
            }
        }
    }
}

/* What the slices hold, against the whole: of floats, or of bf16. */
static void check_slice(const tensor_state *s, const tensor_state *whole, int64_t at)
{
    const int64_t left = whole->n > at ? whole->n - at : 0;
    const size_t n = (size_t)(left < s->n ? left : s->n);
    const int64_t from = n > 0 ? at : 0;
    assert_memory_equal(s->m, whole->m + from, n * sizeof(float));
    assert_memory_equal(s->v, whole->v + from, n * sizeof(float));
    assert_memory_equal(s->p, whole->p + from, n * sizeof(float));
    if (s->narrow != NULL) {
        assert_memory_equal(s->narrow, whole->narrow + from, n * sizeof(uint16_t));
    }
    for (int64_t i = (int64_t)n; i < s->n; ++i) { /* what fills a slice stays 0 */
        assert_true(s->p[i] == 0.0f && s->m[i] == 0.0f);
    }
}

static bool check_cut(tensor_state *whole, const dsi_optim_attrs *attrs, uint32_t n_slices,
                      float scale, uint32_t kernel)
{
    const int64_t each = (whole->n + n_slices - 1) / n_slices;
    tensor_state s[MOST_SLICES];
    double parts[MOST_SLICES][SUMS];
    double sums[SUMS];
    bool more = true;
    for (uint32_t i = 0; i < n_slices; ++i) {
        s[i] = make(each, whole->narrow != NULL);
        fill(&s[i], whole, each * i, scale);
        more = more && moments_and_sums(&s[i], attrs, kernel);
        memcpy(parts[i], s[i].sums, sizeof parts[i]);
    }
    const ds_tensor all = {parts, {DS_DTYPE_F64, ds_shape_2d(n_slices, SUMS)}};
    const ds_tensor sum = {sums, {DS_DTYPE_F64, ds_shape_1d(SUMS)}};
    assert_true(run(&dsi_op_sum_parts, NULL, &all, 1, &sum, 1, 0));
    for (uint32_t i = 0; i < n_slices; ++i) {
        more = more && update(&s[i], attrs, sums, kernel);
        if (more) {
            check_slice(&s[i], whole, each * i);
        }
        destroy(&s[i]);
    }
    return more;
}

/* Any number of slices on any kernel: the bits of the whole on the reference. */
static void test_slices(void **state)
{
    (void)state;
    static const int64_t sizes[] = {1, 2, 37, 133, 4099, 70001};
    uint32_t n = 0;
    for (uint32_t c = 0; c < 6 * 3 * 2; ++c) {
        const dsi_optim_attrs attrs = {.eps = c % 3 == 0 ? 0.0 : 1e-6,
                                       .max_coeff = c % 3 == 2 ? 0.02 : 10.0,
                                       .min_coeff = 0.01};
        const float scale = c % 2 == 0 ? 1.0f : 1e-12f;
        uint32_t last = 0;
        tensor_state whole = make(sizes[c % 6], c / 18 != 0);
        fill(&whole, &whole, 0, scale);
        while (run(&dsi_op_lamb_sums, &attrs,
                   (const ds_tensor[4]){floats(whole.m, whole.n), floats(whole.v, whole.n),
                                        floats(whole.p, whole.n), floats(whole.hyper, 8)},
                   4, &(const ds_tensor){whole.sums, {DS_DTYPE_F64, ds_shape_1d(SUMS)}}, 1, last)) {
            ++last; /* the reference comes last */
        }
        assert_true(moments_and_sums(&whole, &attrs, last - 1));
        assert_true(update(&whole, &attrs, whole.sums, last - 1));
        assert_true(isfinite(whole.p[0]));
        for (uint32_t k = 0; k < last; ++k) {
            for (uint32_t slices = 1; slices <= MOST_SLICES; slices += slices < 3 ? 1 : 4) {
                assert_true(check_cut(&whole, &attrs, slices, scale, k));
                ++n;
            }
        }
        destroy(&whole);
    }
    assert_true(n >= 36 * 4);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_golden),
        cmocka_unit_test(test_slices),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
