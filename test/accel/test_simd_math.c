/* SPDX-License-Identifier: Apache-2.0 */
/* exp, log, tanh, sigmoid and GELU of the vector kernels against the C library's fp64 functions,
 * over a grid of all fp32 bit patterns: errors in units of the last place.
 */
#include "accel/simd_check.h"
#include "op/isa.h"

enum { STRIDE = 4001 }; /* between bit patterns: prime, so that all exponents and low bits occur */

static double sigmoid(double x)
{
    return 1.0 / (1.0 + exp(-x));
}

typedef struct math_case {
    const char *op;
    double (*exact)(double);
    double lowest; /* arguments tested, NaN too */
    double ulps;
} math_case;

static const math_case math_cases[] = {
    {"exp", exp, -INFINITY, 1.0},
    {"log", log, -INFINITY, 1.0},
    {"tanh", tanh, -INFINITY, 1.5},
    {"sigmoid", sigmoid, -86.0, 3.0}, /* below, the result nears the subnormals */
};

/* Error of got in units of the last place of want; infinity when a class differs. */
static double ulps_between(float got, double want)
{
    const float near = (float)want;
    if (isnan(want)) {
        return isnan(got) ? 0.0 : INFINITY;
    }
    if (isinf(near)) {
        return got == near ? 0.0 : INFINITY;
    }
    if (fabsf(near) < 0x1p-126f) {
        return fabsf(got) <= 0x1p-125f ? 0.0 : INFINITY; /* may be flushed */
    }
    int exponent;
    (void)frexpf(near, &exponent);
    return fabs((double)got - want) / ldexp(1.0, exponent - 24);
}

static bool subnormal(float x)
{
    return x != 0.0f && fabsf(x) < 0x1p-126f;
}

static void check_math(ds_ctx *ctx, ds_isa isa, const math_case *c, const ds_tensor *x)
{
    const ds_tensor y = new_tensor(DS_DTYPE_F32, x->meta.shape);
    const size_t n = (size_t)ds_shape_count(x->meta.shape);
    const float *argument = x->data;
    if (run_at(ctx, isa, c->op, NULL, x, 1, &y, 1)) {
        for (size_t i = 0; i < n; ++i) {
            if (argument[i] < c->lowest || subnormal(argument[i])) {
                continue;
            }
            const double ulps = ulps_between(((float *)y.data)[i], c->exact((double)argument[i]));
            if (!(ulps <= c->ulps)) {
                fail_msg("%s(%a) on %s is %a: %.3g ulp", c->op, (double)argument[i],
                         dsi_isa_print(isa).text, (double)((float *)y.data)[i], ulps);
            }
        }
    }
    free(y.data);
}

static void functions_are_accurate(void **state)
{
    (void)state;
    ds_ctx *ctx = new_ctx(2);
    const int64_t n = UINT32_MAX / STRIDE;
    const ds_tensor x = new_tensor(DS_DTYPE_F32, ds_shape_1d(n));
    for (int64_t i = 0; i < n; ++i) {
        ((float *)x.data)[i] = dsi_bits_f32((uint32_t)i * STRIDE);
    }
    const float special[] = {0.0f, -0.0f, 1.0f, -1.0f, INFINITY, -INFINITY, NAN, 88.75f, -104.0f};
    memcpy(x.data, special, sizeof special);
    FOR_ISAS(isa)
    {
        for (size_t k = 0; k < sizeof math_cases / sizeof math_cases[0]; ++k) {
            check_math(ctx, isa, &math_cases[k], &x);
        }
    }
    free(x.data);
    ds_ctx_destroy(&ctx);
}

/* x·Φ(x) without cancellation. */
static double gelu(double x)
{
    return 0.5 * x * erfc(-x * 0.70710678118654752);
}

static double gelu_slope(double x)
{
    return 0.5 * erfc(-x * 0.70710678118654752) + x * exp(-0.5 * x * x) * 0.39894228040143268;
}

static void erf_form_is_accurate(void **state)
{
    enum { N = 200000 };
    (void)state;
    ds_ctx *ctx = new_ctx(2);
    const dsi_act_attrs attrs = {DSI_ACT_GELU_ERF};
    const ds_tensor x = new_tensor(DS_DTYPE_F32, ds_shape_1d(N));
    const ds_tensor one = new_tensor(DS_DTYPE_F32, ds_shape_1d(N));
    const ds_tensor y = new_tensor(DS_DTYPE_F32, ds_shape_1d(N));
    for (int i = 0; i < N; ++i) {
        ((float *)x.data)[i] = (float)(i - N / 2) * (12.0f / N);
        ((float *)one.data)[i] = 1.0f;
    }
    const ds_tensor back[2] = {one, x};
    FOR_ISAS(isa)
    {
        for (int slope = 0; slope < 2; ++slope) {
            const bool ran = slope == 0
                                 ? run_at(ctx, isa, "activation", &attrs, &x, 1, &y, 1)
                                 : run_at(ctx, isa, "activation_backward", &attrs, back, 2, &y, 1);
            for (int i = 0; ran && i < N; ++i) {
                const double argument = (double)((float *)x.data)[i];
                const double want = slope == 0 ? gelu(argument) : gelu_slope(argument);
                const double limit = 3e-7 * (fabs(want) > 1.0 ? fabs(want) : 1.0);
                if (!(fabs((double)((float *)y.data)[i] - want) <= limit)) {
                    fail_msg("gelu %d at %g on %s", slope, argument, dsi_isa_print(isa).text);
                }
            }
        }
    }
    free(x.data);
    free(one.data);
    free(y.data);
    ds_ctx_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(functions_are_accurate),
        cmocka_unit_test(erf_form_is_accurate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
