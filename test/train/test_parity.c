/* SPDX-License-Identifier: Apache-2.0 */
/* The engine against transformers: logits, gradients, AdamW steps. (Graphs alone, and against ref/:
 * test/models.)
 * Goldens: test/golden/parity. Tolerances are the project's contract:
 *   fp32 logits 1e-5 (largest difference over largest reference), gradients 1e-4 relative norm,
 *   losses of AdamW 1e-5 in the first ten steps and 1e-4 in all twenty; bf16 and f16 logits at
 * most 1.25 times as far from the fp32 ones (root mean square) as transformers' logits in the same
 * dtype.
 * labels: slow */
#include "accel/cpu/cpu_features.h"
#include "base/half.h"
#include "common/parity.h"

#include <math.h>
#include <stdlib.h>

static void check_close(const char *name, const char *what, double got, double limit)
{
    print_message("%-14s %-48s %.2e\n", name, what, got);
    if (!(got <= limit)) {
        fail_msg("%s: %s: %g is above %g", name, what, got, limit);
    }
}

static void logits_of(ds_ctx *ctx, const parity_case *p, ds_isa isa)
{
    const size_t n = (size_t)(p->n_batch * p->n_seq * p->vocab);
    float *got = parity_logits(ctx, p, DS_DTYPE_F32, isa);
    check_close(p->name, "logits",
                check_relative_difference(got, golden_f32(&p->golden, "logits"), n), 1e-5);
    free(got);
}

static double rms_error(const float *got, const float *want, size_t n)
{
    double sum = 0.0;
    for (size_t i = 0; i < n; ++i) {
        sum += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
    }
    return sqrt(sum / (double)n);
}

/* The root-mean-square error against the fp32 logits, over that of transformers in the same dtype.
 */
static void half_logits_of(ds_ctx *ctx, const parity_case *p, ds_dtype dtype, const char *golden)
{
    const size_t n = (size_t)(p->n_batch * p->n_seq * p->vocab);
    const float *exact = golden_f32(&p->golden, "logits");
    const uint16_t *half = golden_find(&p->golden, golden)->data;
    float *theirs = malloc(n * sizeof *theirs);
    float *got = parity_logits(ctx, p, dtype, dsi_cpu_isa());
    assert_non_null(theirs);
    for (size_t i = 0; i < n; ++i) {
        theirs[i] = dtype == DS_DTYPE_BF16 ? dsi_bf16_to_f32(half[i]) : dsi_f16_to_f32(half[i]);
    }
    check_close(p->name, golden, rms_error(got, exact, n) / rms_error(theirs, exact, n), 1.25);
    free(theirs);
    free(got);
}

static void logits(void **state)
{
    ds_ctx *ctx = *state;
    for (int i = 0; i < PARITY_N; ++i) {
        parity_case p;
        parity_open(ctx, parity_variants[i], &p);
        logits_of(ctx, &p, DS_ISA_REF);
        logits_of(ctx, &p, dsi_cpu_isa());
        half_logits_of(ctx, &p, DS_DTYPE_BF16, "logits_bf16");
        half_logits_of(ctx, &p, DS_DTYPE_F16, "logits_f16");
        parity_close(&p);
    }
}

/* |got - want| over |want|; the plain norm where the true gradient is zero. */
static double gradient_error(const float *got, const float *want, size_t n)
{
    double difference = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < n; ++i) {
        difference += ((double)got[i] - (double)want[i]) * ((double)got[i] - (double)want[i]);
        norm += (double)want[i] * (double)want[i];
    }
    return sqrt(norm) < 1e-7 ? sqrt(difference) : sqrt(difference / norm);
}

static void check_gradients(ds_ctx *ctx, const parity_case *p, ds_engine *engine)
{
    golden_file grads = golden_read("parity/%s/grads.safetensors", p->name);
    double worst = 0.0;
    assert_true(grads.n_tensors > 0);
    for (size_t i = 0; i < grads.n_tensors; ++i) {
        const golden_tensor *want = &grads.tensors[i];
        float *got = malloc(want->count * sizeof *got);
        assert_non_null(got);
        CHECK_OK(ctx, ds_engine_get(engine, DS_CELL_GRAD, want->name, got, want->count));
        worst = fmax(worst, gradient_error(got, want->data, want->count));
        free(got);
    }
    check_close(p->name, "worst gradient", worst, 1e-4);
    golden_close(&grads);
}

static void train_steps(ds_ctx *ctx, const parity_case *p, ds_isa isa)
{
    const dsi_engine_spec spec = parity_spec(p, DS_DTYPE_F32, isa);
    const json_t *losses = json_object_get(p->scalars, "adamw_losses");
    ds_engine *engine = parity_engine(ctx, p, &spec);
    const size_t n = json_array_size(losses);
    double worst = 0.0;
    assert_int_equal(n, 20);
    for (size_t s = 0; s < n; ++s) {
        const double want = json_number_value(json_array_get(losses, s));
        CHECK_OK(ctx, ds_engine_forward(engine, &p->batch));
        worst = fmax(worst, fabs(ds_engine_loss(engine) - want) / want);
        CHECK_OK(ctx, ds_engine_backward(engine));
        if (s == 0) {
            check_gradients(ctx, p, engine);
        }
        CHECK_OK(ctx, ds_engine_step(engine));
        if (s == 9) {
            check_close(p->name, "ten AdamW losses", worst, 1e-5);
        }
    }
    check_close(p->name, "twenty AdamW losses", worst, 1e-4);
    ds_engine_destroy(&engine);
}

static void gradients_and_steps(void **state)
{
    ds_ctx *ctx = *state;
    for (int i = 0; i < PARITY_N; ++i) {
        parity_case p;
        parity_open(ctx, parity_variants[i], &p);
        train_steps(ctx, &p, DS_ISA_REF);
        train_steps(ctx, &p, dsi_cpu_isa());
        parity_close(&p);
    }
}

static int make_ctx(void **state)
{
    ds_ctx *ctx = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 2;
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    *state = ctx;
    return 0;
}

static int drop_ctx(void **state)
{
    ds_ctx *ctx = *state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(logits),
        cmocka_unit_test(gradients_and_steps),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
