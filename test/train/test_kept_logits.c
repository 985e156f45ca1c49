/* SPDX-License-Identifier: Apache-2.0 */
/* Logits that the forward pass keeps: when it does, where the two gradients stand, and that no bit
 * changes. Kernels: test_op_forms. Over several ranks: test_zero_matrix.sh.
 * labels: slow */
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "compile/rank_plan.h"
#include "op/ops.h"
#include "train/engine.h"

#include <string.h>

enum { STEPS = 3 };

static ds_ctx *ctx;
static char *folder;

/* One row of the batch: as many tokens as the model is wide. */
static dsi_engine_spec make_spec(ds_dtype dtype)
{
    dsi_engine_spec spec = small_spec(dtype);
    assert_int_equal(SMALL_SEQ, SMALL_WIDTH);
    spec.train.batch = 1;
    return spec;
}

static uint32_t count_of(const dsi_plan *plan, const ds_op *op)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < plan->n_steps; ++s) {
        n += plan->steps[s].op == op && plan->steps[s].kind != DSI_STEP_WAIT ? 1 : 0;
    }
    return n;
}

/* The place of an operator's one step. */
static uint32_t place_of(const dsi_plan *plan, const ds_op *op)
{
    assert_int_equal(count_of(plan, op), 1);
    for (uint32_t s = 0;; ++s) {
        if (plan->steps[s].op == op) {
            return s;
        }
    }
}

static bool keeps(const dsi_plan *plan)
{
    const bool kept = count_of(plan, &dsi_op_linear_cross_entropy_backward) == 0;
    const dsi_step *loss = &plan->steps[place_of(plan, &dsi_op_linear_cross_entropy)];
    assert_true((plan->refs[loss->out_at + 3].space != DSI_SPACE_NONE) == kept);
    return kept;
}

static dsi_rank_plan plan_of(const char *config, const dsi_engine_spec *spec, const char *frozen)
{
    dsi_rank_plan plan;
    ds_model *model = small_model(ctx, folder, config);
    const dsi_rank_request request = {.model = model,
                                      .spec = spec,
                                      .frozen = &frozen,
                                      .n_frozen = frozen != NULL ? 1 : 0,
                                      .n_threads = 2};
    CHECK_OK(ctx, dsi_rank_plan_build(ctx, &request, &plan));
    ds_model_destroy(&model);
    return plan;
}

/* As many tokens as the model is wide keep their logits; more do where there is room; recomputation
 * does not, nor a device that is too small for them. An evaluation never does. */
static void which_are_kept(void **state)
{
    const dsi_engine_spec spec = make_spec(DS_DTYPE_BF16);
    (void)state;
    for (int i = 0; i < 7; ++i) {
        dsi_engine_spec other = spec;
        other.train.batch = i == 1 || i == 6 ? 2 : 1;
        other.room = i == 6 ? SIZE_MAX : 0;
        other.recompute.mode = i == 2   ? DS_RECOMPUTE_FULL
                               : i == 3 ? DS_RECOMPUTE_SELECTIVE
                               : i == 4 ? DS_RECOMPUTE_AUTO
                                        : DS_RECOMPUTE_NONE;
        other.device_memory = i == 4 || i == 5 ? SIZE_MAX : 0;
        dsi_rank_plan plan = plan_of(small_gpt2, &other, NULL);
        assert_int_equal(keeps(plan.train_plan), i == 0 || i >= 4);
        assert_int_equal(count_of(plan.eval_plan, &dsi_op_linear_cross_entropy_dx), 0);
        assert_true(!(i == 0 || i >= 4) || plan.choice.recompute == DS_RECOMPUTE_NONE);
        const size_t need = dsi_rank_mapped_bytes(&plan);
        dsi_rank_plan_free(&plan);
        other.device_memory = need - 1; /* what else there is to try comes next */
        plan = plan_of(small_gpt2, &other, NULL);
        assert_false(keeps(plan.train_plan));
        assert_true(i == 1 || i == 6 || dsi_rank_mapped_bytes(&plan) <= need);
        dsi_rank_plan_free(&plan);
    }
}

/* dx opens the backward pass. A head of its own has dw before any other product; tied to the
 * embeddings it has dw between the layers, so that their updates need not wait for it, and its own
 * not for it alone. */
static void where_the_gradients_stand(void **state)
{
    dsi_engine_spec spec = make_spec(DS_DTYPE_BF16);
    (void)state;
    spec.train.seq_length = SMALL_SEQ - 8; /* kept logits are smaller than dw */
    dsi_rank_plan own = plan_of(small_llama, &spec, NULL);
    const uint32_t dx = place_of(own.train_plan, &dsi_op_linear_cross_entropy_dx);
    assert_int_equal(dx, own.train_plan->phase_begin[DS_PHASE_BACKWARD]);
    for (uint32_t s = dx; s < place_of(own.train_plan, &dsi_op_linear_cross_entropy_dw); ++s) {
        assert_ptr_not_equal(own.train_plan->steps[s].op, &dsi_op_linear_dw);
    }
    dsi_rank_plan_free(&own);

    dsi_rank_plan tied = plan_of(small_gpt2, &spec, NULL);
    const dsi_plan *plan = tied.train_plan;
    const uint32_t dw = place_of(plan, &dsi_op_linear_cross_entropy_dw);
    uint32_t before = 0;
    uint32_t behind = 0;
    assert_int_equal(place_of(plan, &dsi_op_linear_cross_entropy_dx),
                     plan->phase_begin[DS_PHASE_BACKWARD]);
    for (uint32_t s = plan->phase_begin[DS_PHASE_BACKWARD];
         s < plan->phase_begin[DS_PHASE_BACKWARD + 1]; ++s) {
        const bool layer = plan->steps[s].op == &dsi_op_attention_backward;
        before += layer && s < dw ? 1 : 0;
        behind += layer && s > dw ? 1 : 0;
    }
    assert_true(before > 0 && behind > 0);
    dsi_rank_plan_free(&tied);
}

/* A frozen head has no dw; nothing below it to train, no dx. */
static void what_is_frozen_is_not_made(void **state)
{
    static const struct {
        const char *config, *frozen;
        uint32_t dx, dw;
    } rows[] = {{small_gpt2, "transformer.wte.weight", 1, 0},
                {small_llama, "lm_head.weight", 1, 0},
                {small_llama, "model.*", 0, 1},
                {small_llama, "model.layers.*", 1, 1}};
    const dsi_engine_spec spec = make_spec(DS_DTYPE_BF16);
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        dsi_rank_plan plan = plan_of(rows[i].config, &spec, rows[i].frozen);
        assert_true(keeps(plan.train_plan));
        assert_int_equal(count_of(plan.train_plan, &dsi_op_linear_cross_entropy_dx), rows[i].dx);
        assert_int_equal(count_of(plan.train_plan, &dsi_op_linear_cross_entropy_dw), rows[i].dw);
        dsi_rank_plan_free(&plan);
    }
}

typedef struct result {
    uint64_t hash;
    double losses[STEPS], flops;
} result;

static result run(const char *config, const dsi_engine_spec *spec, const char *frozen, bool kept)
{
    result got = {0};
    small_batch data;
    ds_model *model = small_model(ctx, folder, config);
    ds_engine *engine = NULL;
    const ds_engine_params params = {.model = model,
                                     .seq_length = SMALL_SEQ,
                                     .seed = 5,
                                     .frozen = &frozen,
                                     .n_frozen = frozen != NULL ? 1 : 0};
    CHECK_OK(ctx, dsi_engine_create(ctx, &params, spec, &engine));
    assert_int_equal(keeps(engine->train_plan), kept);
    for (int32_t step = 0; step < STEPS; ++step) {
        double loss = 0.0;
        const ds_batch two = small_feed(step, &data);
        for (int i = 0; i < 4; ++i) {
            data.tensors[i].tensor.meta.shape = ds_shape_2d(1, SMALL_SEQ);
        }
        CHECK_OK(ctx, ds_engine_forward(engine, &two));
        CHECK_OK(ctx, ds_engine_eval_batch(engine, &two, &loss, NULL)); /* keeps off the logits */
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
        got.losses[step] = ds_engine_loss(engine);
    }
    CHECK_OK(ctx, engine_hash(ctx, engine, &got.hash));
    got.flops = ds_engine_flops(engine);
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return got;
}

static void expect_same(const result *got, const result *want, const char *what)
{
    if (got->hash != want->hash || memcmp(got->losses, want->losses, sizeof want->losses) != 0) {
        fail_msg("%s gives other bits", what);
    }
}

/* In memory and on disk, updates late and early, every dtype: the bits of logits made again, which
 * a device memory just too small for kept ones asks for. */
static void no_bit_changes(void **state)
{
    static const char *const configs[] = {small_gpt2, small_llama, small_llama};
    static const char *const frozen[] = {NULL, NULL, "lm_head.weight"};
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};
    (void)state;
    for (int c = 0; c < 3; ++c) {
        for (int d = 0; d < 3; ++d) {
            dsi_engine_spec spec = make_spec(dtypes[d]);
            dsi_rank_plan plan = plan_of(configs[c], &spec, frozen[c]);
            const size_t need = dsi_rank_mapped_bytes(&plan);
            dsi_rank_plan_free(&plan);
            const result kept = run(configs[c], &spec, frozen[c], true);
            spec.device_memory = need - 1;
            const result again = run(configs[c], &spec, frozen[c], false);
            expect_same(&again, &kept, "a device with less memory");
            assert_true(again.flops > kept.flops);
            spec.device_memory = 0;
            spec.recompute.mode = DS_RECOMPUTE_FULL;
            const result full = run(configs[c], &spec, frozen[c], false);
            expect_same(&full, &kept, "recomputation");
            spec.recompute.mode = DS_RECOMPUTE_NONE;
            spec.offload = small_away(folder, DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
            for (int early = 0; early < 2; ++early) {
                spec.train.keep_nonfinite = early == 1;
                const result away = run(configs[c], &spec, frozen[c], true);
                expect_same(&away, &kept, early == 1 ? "an early update" : "offload");
            }
        }
    }
}

static int set_up(void **state)
{
    (void)state;
    ds_ctx_params params = ds_ctx_params_default();
    params.level = DS_LOG_ERROR;
    params.n_threads = 2;
    folder = scratch_make();
    return ds_ctx_create(&params, &ctx);
}

static int tear_down(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    scratch_remove(folder);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(which_are_kept),
        cmocka_unit_test(where_the_gradients_stand),
        cmocka_unit_test(what_is_frozen_is_not_made),
        cmocka_unit_test(no_bit_changes),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
