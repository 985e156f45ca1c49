/* SPDX-License-Identifier: Apache-2.0 */
/* Frozen parameters: no gradient, no state, and no work for what nobody reads; every other gradient
 * has the same bits as with nothing frozen. */
#include "accel/cpu/cpu_features.h"
#include "common/parity.h"
#include "op/ops.h"

#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;

static ds_engine *engine_of(const parity_case *p, ds_isa isa, const char *frozen)
{
    const dsi_engine_spec spec = parity_spec(p, DS_DTYPE_BF16, isa);
    const ds_engine_params params = {.model = p->model,
                                     .seq_length = p->n_seq,
                                     .weights = p->folder,
                                     .frozen = &frozen,
                                     .n_frozen = frozen != NULL ? 1 : 0,
                                     .memory_bytes = 1}; /* no room for kept logits */
    ds_engine *engine = NULL;
    CHECK_OK(ctx, dsi_engine_create(ctx, &params, &spec, &engine));
    CHECK_OK(ctx, ds_engine_forward(engine, &p->batch));
    CHECK_OK(ctx, ds_engine_backward(engine));
    return engine;
}

/* Gradients that `some` has: the same bits as in `all`. The others: not there. */
static void compare_gradients(const ds_engine *some, const ds_engine *all)
{
    uint32_t n_frozen = 0;
    for (ds_cell c = 0; c < ds_cells_count(all->cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(all->cells, c);
        const ds_cell other = ds_cells_find(some->cells, cell->kind, cell->name);
        if (cell->kind == DS_CELL_GRAD && other != DS_NONE) {
            assert_memory_equal(dsi_exec_host_view(some->exec, other),
                                dsi_exec_host_view(all->exec, c), ds_meta_bytes(cell->meta));
        }
        if (cell->kind == DS_CELL_PARAM && ds_cells_get(some->cells, other)->frozen) {
            assert_int_equal(ds_cells_find(some->cells, DS_CELL_GRAD, cell->name), DS_NONE);
            assert_int_equal(ds_cells_find(some->cells, DS_CELL_MASTER, cell->name), DS_NONE);
            assert_int_equal(ds_cells_find(some->cells, DS_CELL_EXP_AVG, cell->name), DS_NONE);
            ++n_frozen;
        }
    }
    assert_true(n_frozen > 0);
}

/* The step of an operator; fails when there is not exactly one. */
static const dsi_step *only_step(const ds_engine *engine, const ds_op *op)
{
    const dsi_step *found = NULL;
    for (uint32_t s = 0; s < engine->train_plan->n_steps; ++s) {
        if (engine->train_plan->steps[s].op == op) {
            assert_null(found);
            found = &engine->train_plan->steps[s];
        }
    }
    assert_non_null(found);
    return found;
}

static void check(const char *variant, const char *frozen, ds_isa isa, int has_dx, int has_dw)
{
    parity_case p;
    parity_open(ctx, variant, &p);
    ds_engine *all = engine_of(&p, isa, NULL);
    ds_engine *some = engine_of(&p, isa, frozen);
    compare_gradients(some, all);
    const dsi_step *full = only_step(all, &dsi_op_linear_cross_entropy_backward);
    const dsi_step *less = only_step(some, &dsi_op_linear_cross_entropy_backward);
    const dsi_ref *out = &some->train_plan->refs[less->out_at];
    assert_int_equal(out[0].space != DSI_SPACE_NONE, has_dx);
    assert_int_equal(out[1].space != DSI_SPACE_NONE, has_dw);
    assert_true(less->cost.flops == full->cost.flops * (1 + has_dx + has_dw) / 3);
    CHECK_OK(ctx, ds_engine_step(some));
    ds_engine_destroy(&some);
    ds_engine_destroy(&all);
    parity_close(&p);
}

static void heads(void **state)
{
    const ds_isa isas[] = {DS_ISA_REF, dsi_cpu_isa()};
    (void)state;
    for (int i = 0; i < 2; ++i) {
        check("gpt2", "transformer.wte.weight", isas[i], 1, 0); /* tied to the head */
        check("llama3", "lm_head.weight", isas[i], 1, 0);
        check("llama3", "model.*", isas[i], 0, 1);
        check("llama3", "model.layers.*", isas[i], 1, 1);
    }
}

/* A body that is frozen below what is trained has no backward pass at all. */
static void frozen_body_has_no_backward(void **state)
{
    parity_case p;
    (void)state;
    parity_open(ctx, "llama3", &p);
    ds_engine *engine = engine_of(&p, DS_ISA_REF, "model.*");
    const dsi_plan *plan = engine->train_plan;
    /* the head's gradient, and its rounding */
    assert_int_equal(plan->phase_begin[DS_PHASE_STEP] - plan->phase_begin[DS_PHASE_BACKWARD], 2);
    ds_engine_destroy(&engine);
    parity_close(&p);
}

static int make_ctx(void **state)
{
    (void)state;
    return ds_ctx_create(NULL, &ctx);
}

static int drop_ctx(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(heads),
        cmocka_unit_test(frozen_body_has_no_backward),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
