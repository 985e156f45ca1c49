/* SPDX-License-Identifier: Apache-2.0 */
/* Norms on AVX2 and AVX-512 against fp64, at odd widths; the same bits on any number of threads. */
#include "accel/simd_check.h"

static const int64_t widths[] = {1, 5, 16, 33, 64, 131, 768};
enum { N_WIDTHS = sizeof widths / sizeof widths[0], N_ROWS = 70 };

static void near(double got, double want, double tolerance, const char *what)
{
    if (!(fabs(got - want) <= tolerance)) {
        fail_msg("%s: got %.9g, expected %.9g within %.2g", what, got, want, tolerance);
    }
}

static void statistics(const ds_tensor *x, int64_t row, int64_t C, bool centered, double *mean_out,
                       double *rstd_out)
{
    double sum = 0.0;
    double squares = 0.0;
    for (int64_t c = 0; centered && c < C; ++c) {
        sum += (double)read_element(x->data, x->meta.dtype, (size_t)(row * C + c));
    }
    *mean_out = sum / (double)C;
    for (int64_t c = 0; c < C; ++c) {
        const double d =
            (double)read_element(x->data, x->meta.dtype, (size_t)(row * C + c)) - *mean_out;
        squares += d * d;
    }
    *rstd_out = 1.0 / sqrt(squares / (double)C + 1e-5);
}

static void forward_case(ds_ctx *ctx, ds_isa isa, ds_dtype type, int64_t C, bool centered)
{
    const dsi_norm_attrs attrs = {.eps = 1e-5};
    const ds_tensor in[3] = {noise(type, ds_shape_2d(N_ROWS, C), 1, 2.0f),
                             noise(type, ds_shape_1d(C), 2, 1.0f),
                             noise(type, ds_shape_1d(C), 3, 1.0f)};
    const ds_tensor y = new_tensor(type, ds_shape_2d(N_ROWS, C));
    const ds_tensor mean = new_tensor(DS_DTYPE_F32, ds_shape_1d(N_ROWS));
    const ds_tensor rstd = new_tensor(DS_DTYPE_F32, ds_shape_1d(N_ROWS));
    const ds_tensor out[3] = {y, centered ? mean : rstd, rstd};
    if (run_at(ctx, isa, centered ? "layer_norm" : "rms_norm", &attrs, in, centered ? 3 : 2, out,
               centered ? 3 : 2)) {
        for (int64_t r = 0; r < N_ROWS; ++r) {
            double mu = 0.0;
            double rs = 0.0;
            statistics(&in[0], r, C, centered, &mu, &rs);
            near((double)((float *)rstd.data)[r], rs, 4e-6 * rs, "rstd");
            if (centered) {
                near((double)((float *)mean.data)[r], mu, 1e-6, "mean");
            }
            for (int64_t c = 0; c < C; ++c) {
                const size_t i = (size_t)(r * C + c);
                const double b = centered ? (double)read_element(in[2].data, type, (size_t)c) : 0.0;
                const double want = ((double)read_element(in[0].data, type, i) - mu) * rs *
                                        (double)read_element(in[1].data, type, (size_t)c) +
                                    b;
                near((double)read_element(y.data, type, i), want,
                     fabs(want) * type_step(type) + 2e-5, "y");
            }
        }
    }
    free(in[0].data);
    free(in[1].data);
    free(in[2].data);
    free(y.data);
    free(mean.data);
    free(rstd.data);
}

static void forward_is_right(void **state)
{
    (void)state;
    ds_ctx *ctx = new_ctx(3);
    FOR_ISAS(isa) FOR_TYPES(type)
    {
        for (int w = 0; w < N_WIDTHS; ++w) {
            forward_case(ctx, isa, type, widths[w], true);
            forward_case(ctx, isa, type, widths[w], false);
        }
    }
    ds_ctx_destroy(&ctx);
}

typedef struct backward_set {
    ds_tensor in[6]; /* dy, x, w, mean, rstd, dres */
    ds_tensor dx, dw, db;
} backward_set;

static backward_set backward_inputs(ds_dtype type, int64_t C, bool centered)
{
    backward_set s = {
        {noise(type, ds_shape_2d(N_ROWS, C), 4, 1.0f), noise(type, ds_shape_2d(N_ROWS, C), 5, 2.0f),
         noise(type, ds_shape_1d(C), 6, 1.0f), new_tensor(DS_DTYPE_F32, ds_shape_1d(N_ROWS)),
         new_tensor(DS_DTYPE_F32, ds_shape_1d(N_ROWS)),
         noise(type, ds_shape_2d(N_ROWS, C), 7, 1.0f)},
        new_tensor(type, ds_shape_2d(N_ROWS, C)),
        new_tensor(DS_DTYPE_F32, ds_shape_1d(C)),
        new_tensor(DS_DTYPE_F32, ds_shape_1d(C))};
    for (int64_t r = 0; r < N_ROWS; ++r) {
        double mean = 0.0;
        double rstd = 0.0;
        statistics(&s.in[1], r, C, centered, &mean, &rstd);
        ((float *)s.in[3].data)[r] = (float)mean;
        ((float *)s.in[4].data)[r] = (float)rstd;
    }
    return s;
}

static void free_set(backward_set *s)
{
    for (int i = 0; i < 6; ++i) {
        free(s->in[i].data);
    }
    free(s->dx.data);
    free(s->dw.data);
    free(s->db.data);
}

static bool run_backward(ds_ctx *ctx, ds_isa isa, const backward_set *s, bool centered,
                         bool residual)
{
    const dsi_norm_backward_attrs attrs = {centered};
    const dsi_norm_attrs eps = {.eps = 1e-5};
    const ds_tensor out[3] = {s->dx, s->dw, s->db};
    const ds_tensor last = residual ? s->in[5] : absent;
    const ds_tensor layer[6] = {s->in[0], s->in[1], s->in[2], s->in[3], s->in[4], last};
    const ds_tensor rms[5] = {s->in[0], s->in[1], s->in[2], s->in[4], last};
    return centered ? run_at(ctx, isa, "layer_norm_backward", &attrs, layer, 6, out, 3)
                    : run_at(ctx, isa, "rms_norm_backward", &eps, rms, 5, out, 2);
}

static void check_backward(const backward_set *s, int64_t C, bool centered, bool residual)
{
    const ds_dtype type = s->dx.meta.dtype;
    double *dw = calloc((size_t)C, sizeof *dw);
    double *db = calloc((size_t)C, sizeof *db);
    assert_non_null(dw);
    assert_non_null(db);
    for (int64_t r = 0; r < N_ROWS; ++r) {
        const double mu = centered ? (double)((float *)s->in[3].data)[r] : 0.0;
        const double rs = (double)((float *)s->in[4].data)[r];
        double m1 = 0.0;
        double m2 = 0.0;
        for (int pass = 0; pass < 2; ++pass) {
            for (int64_t c = 0; c < C; ++c) {
                const size_t i = (size_t)(r * C + c);
                const double dy = (double)read_element(s->in[0].data, type, i);
                const double hat = ((double)read_element(s->in[1].data, type, i) - mu) * rs;
                const double dyw = dy * (double)read_element(s->in[2].data, type, (size_t)c);
                if (pass == 0) {
                    m1 += centered ? dyw / (double)C : 0.0;
                    m2 += dyw * hat / (double)C;
                    dw[c] += dy * hat;
                    db[c] += dy;
                    continue;
                }
                const double dres = residual ? (double)read_element(s->in[5].data, type, i) : 0.0;
                const double want = rs * (dyw - m1 - hat * m2) + dres;
                near((double)read_element(s->dx.data, type, i), want,
                     fabs(want) * type_step(type) + 1e-3 * (C == 1) + 1e-5, "dx");
            }
        }
    }
    for (int64_t c = 0; c < C; ++c) {
        near((double)((float *)s->dw.data)[c], dw[c], 5e-5, "dw");
        if (centered) {
            near((double)((float *)s->db.data)[c], db[c], 5e-5, "db");
        }
    }
    free(dw);
    free(db);
}

static void backward_is_right(void **state)
{
    (void)state;
    ds_ctx *ctx = new_ctx(3);
    FOR_ISAS(isa) FOR_TYPES(type)
    {
        for (int k = 0; k < 4 * N_WIDTHS; ++k) {
            const int64_t C = widths[k / 4];
            const bool centered = (k & 1) != 0;
            const bool residual = (k & 2) != 0;
            backward_set s = backward_inputs(type, C, centered);
            if (run_backward(ctx, isa, &s, centered, residual)) {
                check_backward(&s, C, centered, residual);
            }
            free_set(&s);
        }
    }
    ds_ctx_destroy(&ctx);
}

static void threads_do_not_matter(void **state)
{
    (void)state;
    FOR_ISAS(isa)
    {
        ds_ctx *one = new_ctx(1);
        ds_ctx *four = new_ctx(4);
        backward_set a = backward_inputs(DS_DTYPE_BF16, 131, true);
        backward_set b = backward_inputs(DS_DTYPE_BF16, 131, true);
        if (run_backward(one, isa, &a, true, true) && run_backward(four, isa, &b, true, true)) {
            assert_memory_equal(a.dw.data, b.dw.data, ds_meta_bytes(a.dw.meta));
            assert_memory_equal(a.db.data, b.db.data, ds_meta_bytes(a.db.meta));
            assert_memory_equal(a.dx.data, b.dx.data, ds_meta_bytes(a.dx.meta));
        }
        free_set(&a);
        free_set(&b);
        ds_ctx_destroy(&one);
        ds_ctx_destroy(&four);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(forward_is_right),
        cmocka_unit_test(backward_is_right),
        cmocka_unit_test(threads_do_not_matter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
