/* SPDX-License-Identifier: Apache-2.0 */
/* Optimizer steps against fp64 results (test/golden/op/optim.txt), on every kernel. */
#include "accel/cpu/cpu_features.h"
#include "accel/cpu/registry.h"
#include "common/check.h"
#include "op/harness.h"
#include "op/harness_golden.h"

#include <math.h>
#include <string.h>

enum { HYPER = 2, FACTOR = 3, STATES = 5 };

typedef struct golden {
    op_line head, start, hyper[16], grad[16], param[16];
    int n, n_steps;
    dsi_optim_attrs attrs;
    bool momentum;
} golden;

static bool read_golden(FILE *file, golden *g)
{
    if (!op_golden_next(file, &g->head)) {
        return false;
    }
    const double *x = g->head.x; /* adamw dampening nesterov momentum n steps */
    g->attrs = (dsi_optim_attrs){
        .eps = 1e-8, .adamw = (int64_t)x[0], .dampening = x[1], .nesterov = (int64_t)x[2]};
    g->momentum = x[3] != 0.0;
    g->n = (int)x[4];
    g->n_steps = (int)x[5];
    assert_true(op_golden_next(file, &g->start));
    for (int t = 0; t < g->n_steps; ++t) {
        assert_true(op_golden_next(file, &g->hyper[t]));
        assert_true(op_golden_next(file, &g->grad[t]));
        assert_true(op_golden_next(file, &g->param[t]));
    }
    return true;
}

static void set_floats(void *data, const op_line *line)
{
    for (int i = 0; i < line->n; ++i) {
        ((float *)data)[i] = (float)line->x[i];
    }
}

/* What the step wrote becomes the next step's input. */
static void carry(op_operands *o)
{
    memcpy(o->original[0], o->out[0].data, ds_meta_bytes(o->in_meta[0]));
    for (uint32_t s = 0; s < 2; ++s) {
        if (STATES + s < o->sig.n_in) {
            memcpy(o->original[STATES + s], o->out[2 + s].data,
                   ds_meta_bytes(o->in_meta[STATES + s]));
        }
    }
}

static void check_kernel(ds_ctx *ctx, const golden *g, op_operands *o, const ds_kernel *kernel)
{
    set_floats(o->original[0], &g->start);
    for (uint32_t i = STATES; i < o->sig.n_in; ++i) {
        memset(o->original[i], 0, ds_meta_bytes(o->in_meta[i]));
    }
    for (int t = 0; t < g->n_steps; ++t) {
        set_floats(o->original[1], &g->grad[t]);
        set_floats(o->original[HYPER], &g->hyper[t]);
        CHECK_OK(ctx, op_operands_run(ctx, o, kernel, false));
        for (int i = 0; i < g->n; ++i) {
            const double got = op_element(&o->out[0], i);
            if (!(fabs(got - g->param[t].x[i]) <= 2e-6)) {
                fail_msg("%s, kernel %s, step %d: parameter %d is %.9g, expected %.9g",
                         g->head.word[1], kernel->name, t + 1, i, got, g->param[t].x[i]);
            }
        }
        carry(o);
    }
}

static void steps_equal_double_precision(void **state)
{
    (void)state;
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    FILE *file = fopen(DS_SOURCE_DIR "/test/golden/op/optim.txt", "r");
    assert_non_null(file);
    static golden g;
    int n_cases = 0;
    while (read_golden(file, &g)) {
        char in[160];
        const char *op = g.head.word[2];
        if (strcmp(op, "lamb") == 0) { /* three operators: test_op_lamb */
            continue;
        }
        const bool two = strcmp(op, "adam") == 0;
        const bool one = two || strcmp(op, "sgd") != 0 || g.momentum;
        (void)snprintf(in, sizeof in, "f32[%d] f32[%d] f32[8] f32[]=1", g.n, g.n);
        for (int s = 0; s < (two ? 2 : one ? 1 : 0); ++s) {
            (void)snprintf(in + strlen(in), sizeof in - strlen(in), "%s f32[%d]0",
                           s == 0 ? " -" : "", g.n);
        }
        const op_case c = {
            .op = ds_op_find(op), .label = g.head.word[1], .in = in, .attrs = &g.attrs};
        op_operands o;
        CHECK_OK(ctx, op_operands_create(ctx, &c, DS_DTYPE_F32, &o));
        for (uint32_t k = 0;; ++k) {
            const ds_kernel *kernel = dsi_cpu_kernel_at(&o.sig, dsi_cpu_isa(), k);
            if (kernel == NULL) {
                break;
            }
            check_kernel(ctx, &g, &o, kernel);
        }
        op_operands_destroy(&o);
        ++n_cases;
    }
    assert_int_equal(n_cases, 8);
    (void)fclose(file);
    ds_ctx_destroy(&ctx);
}

/* Decay is decoupled or part of the gradient: both are scaled by the learning rate. */
static void zero_learning_rate_changes_no_parameter(void **state)
{
    (void)state;
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    static const char *const ops[] = {"adam", "sgd", "lion", "adagrad"};
    static const dsi_optim_attrs attrs = {.eps = 1e-8, .adamw = 1};
    for (uint32_t i = 0; i < 4; ++i) {
        const bool two = i == 0;
        const op_case c = {.op = ds_op_find(ops[i]),
                           .label = "lr 0",
                           .in = two ? "f32[33] f32[33] f32[8]h f32[]=1 - f32[33]+ f32[33]+"
                                     : "f32[33] f32[33] f32[8]h f32[]=1 - f32[33]+",
                           .attrs = &attrs};
        op_operands o;
        CHECK_OK(ctx, op_operands_create(ctx, &c, DS_DTYPE_F32, &o));
        ((float *)o.original[HYPER])[DSI_HYPER_LR] = 0.0f;
        CHECK_OK(ctx, op_operands_run(ctx, &o, op_reference(&o.sig), false));
        assert_memory_equal(o.out[0].data, o.original[0], ds_meta_bytes(o.in_meta[0]));
        op_operands_destroy(&o);
    }
    ds_ctx_destroy(&ctx);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(steps_equal_double_precision),
        cmocka_unit_test(zero_learning_rate_changes_no_parameter),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
