/* SPDX-License-Identifier: Apache-2.0 */
/* Early updates: where nothing waits for all gradients, the backward pass updates each parameter.
 * The bits are those of updates behind the backward pass, wherever states live. Over several ranks:
 * test_zero_matrix.sh.
 * labels: slow */
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "compile/rank_plan.h"
#include "op/ops.h"
#include "train/engine.h"

#include <deepspeed/engine_states.h>

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { STEPS = 3 };

static ds_ctx *ctx;
static char *folder;

static dsi_offload_spec away(dsi_residency states, dsi_residency params)
{
    return small_away(folder, states, params);
}

/* early false: the same numbers, updated behind the backward pass. */
static dsi_engine_spec make_spec(bool early, dsi_residency states, dsi_residency params)
{
    dsi_engine_spec spec = small_spec(DS_DTYPE_BF16);
    spec.train.keep_nonfinite = early;
    spec.offload = away(states, params);
    return spec;
}

typedef struct result {
    uint64_t hash;
    double losses[STEPS], norms[STEPS], eval;
} result;

/* An evaluation between forward and backward may not touch what is read ahead. */
static void train(ds_engine *engine, int32_t first, int32_t n, result *got)
{
    small_batch data;
    for (int32_t step = first; step < first + n; ++step) {
        const ds_batch batch = small_feed(step, &data);
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx, ds_engine_eval_batch(engine, &batch, &got->eval, NULL));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_eval_batch(engine, &batch, &got->eval, NULL));
        CHECK_OK(ctx, ds_engine_step(engine));
        assert_true(ds_engine_was_step_applied(engine));
        got->losses[step % STEPS] = ds_engine_loss(engine);
        got->norms[step % STEPS] = ds_engine_grad_norm(engine);
    }
}

static result run(const char *config, dsi_engine_spec spec)
{
    result got = {0};
    ds_model *model = small_model(ctx, folder, config);
    ds_engine *engine = small_engine(ctx, model, &spec);
    train(engine, 0, STEPS, &got);
    CHECK_OK(ctx, engine_hash(ctx, engine, &got.hash));
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return got;
}

/* Weights, moments, losses; and among early ones norms to the bit and what evaluation sees. */
static void expect_same(const result *got, const result *kept, bool both_early, const char *what)
{
    bool same =
        got->hash == kept->hash && memcmp(got->losses, kept->losses, sizeof kept->losses) == 0;
    for (int i = 0; i < STEPS; ++i) {
        same = same &&
               fabs(got->norms[i] - kept->norms[i]) <= (both_early ? 0.0 : 2e-7 * kept->norms[i]);
    }
    if (!same || (both_early && got->eval != kept->eval)) {
        fail_msg("%s gives other bits", what);
    }
}

static void early_updates_change_no_bit(void **state)
{
    static const char *const configs[] = {small_gpt2, small_llama};
    static const dsi_residency places[] = {DSI_RESIDENCY_HOST, DSI_RESIDENCY_DISK};
    (void)state;
    for (int c = 0; c < 2; ++c) {
        for (int f32 = 0; f32 < 2; ++f32) {
            dsi_engine_spec spec = make_spec(false, DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_DEVICE);
            const ds_dtype dtype = f32 ? DS_DTYPE_F32 : DS_DTYPE_BF16;
            spec.train.dtype = spec.train.comm_dtype = dtype;
            spec.train.master = !f32;
            const result late = run(configs[c], spec);
            spec.train.keep_nonfinite = true;
            const result kept = run(configs[c], spec);
            expect_same(&kept, &late, false, "an early update in memory");
            for (int p = 0; p < 2; ++p) {
                for (int which = 1; which < 4; ++which) {
                    spec.offload = away((which & 1) != 0 ? places[p] : DSI_RESIDENCY_DEVICE,
                                        (which & 2) != 0 ? places[p] : DSI_RESIDENCY_DEVICE);
                    const result got = run(configs[c], spec);
                    expect_same(&got, &kept, true, "an early update of what lives elsewhere");
                }
            }
        }
    }
}

static void no_setting_changes_a_bit(void **state)
{
    const result kept =
        run(small_gpt2, make_spec(true, DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_DEVICE));
    (void)state;
    for (int i = 0; i < 9; ++i) {
        dsi_engine_spec spec =
            make_spec(true, DSI_RESIDENCY_DISK, i == 8 ? DSI_RESIDENCY_DEVICE : DSI_RESIDENCY_DISK);
        spec.offload.how.chunk = i == 0 ? 0 : 4096;
        spec.offload.how.reuse = i == 1 ? INT64_MAX : 0;
        spec.offload.read_ahead = i == 2 ? 0 : 20000;
        spec.offload.update_ahead = i == 3 ? 0 : i == 4 ? SIZE_MAX : 60000;
        spec.offload.write_behind = i == 5 ? 0 : 60000;
        spec.offload.defer = i != 6;
        spec.offload.ratio = i == 6 ? 0.4 : 1.0;
        spec.recompute.mode = i >= 7 ? DS_RECOMPUTE_FULL : DS_RECOMPUTE_NONE;
        spec.offload.how.activations = i == 7 ? DSI_RESIDENCY_DISK : DSI_RESIDENCY_DEVICE;
        spec.no_reuse = i == 4;
        const result got = run(small_gpt2, spec);
        char what[40];
        (void)snprintf(what, sizeof what, "setting %d of early updates", i);
        expect_same(&got, &kept, true, what);
    }
}

static void every_optimizer(void **state)
{
    static const ds_optimizer_kind kinds[] = {DS_OPTIMIZER_SGD, DS_OPTIMIZER_LION,
                                              DS_OPTIMIZER_ADAGRAD};
    (void)state;
    for (int i = 0; i < 3; ++i) {
        dsi_engine_spec spec = make_spec(false, DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_DEVICE);
        spec.train.optimizer = kinds[i];
        spec.train.momentum = true;
        const result late = run(small_llama, spec);
        spec.train.keep_nonfinite = true;
        spec.offload = away(DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK);
        const result got = run(small_llama, spec);
        expect_same(&got, &late, false, "an optimizer");
    }
}

/* What the host sets between the forward and the backward pass counts, though it may have been read
 * ahead before. */
static uint64_t set_in_between(dsi_engine_spec spec)
{
    enum { WIDTH = 48, WEIGHTS = 48 * 48 };
    static const char *const matrix = "transformer.h.1.attn.c_proj.weight";
    static const char *const vector = "transformer.ln_f.weight";
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = small_engine(ctx, model, &spec);
    float numbers[WEIGHTS];
    uint64_t hash = 0;
    for (int32_t step = 0; step < 2; ++step) {
        small_batch data;
        const ds_batch batch = small_feed(step, &data);
        for (int i = 0; i < WEIGHTS; ++i) {
            numbers[i] = (float)(i % 7 + step) * 0x1p-5f;
        }
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx,
                 ds_engine_set_full_optimizer_state(engine, vector, "exp_avg", numbers, WIDTH));
        CHECK_OK(ctx,
                 ds_engine_set_full_optimizer_state(engine, matrix, "exp_avg", numbers, WEIGHTS));
        CHECK_OK(ctx, ds_engine_set_full_fp32_param(engine, matrix, numbers, WEIGHTS));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
    }
    CHECK_OK(ctx, engine_hash(ctx, engine, &hash));
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return hash;
}

static void what_the_host_sets_counts(void **state)
{
    const uint64_t kept =
        set_in_between(make_spec(true, DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_DEVICE));
    (void)state;
    for (dsi_residency where = DSI_RESIDENCY_HOST; where <= DSI_RESIDENCY_DISK; ++where) {
        dsi_engine_spec spec = make_spec(true, where, DSI_RESIDENCY_DEVICE);
        spec.offload.threshold = 0;
        spec.offload.update_ahead = SIZE_MAX;
        assert_true(set_in_between(spec) == kept);
    }
}

/* What the host sets before a step may be on its way into memory when the backward pass asks for it
 * again. */
static void what_the_host_sets_before_a_step_is_brought_once(void **state)
{
    enum { WIDTH = 48, MANY = 40 };
    static const char *const vector = "transformer.ln_f.weight";
    dsi_engine_spec spec = make_spec(true, DSI_RESIDENCY_DISK, DSI_RESIDENCY_DEVICE);
    spec.offload.threshold = 0;
    spec.offload.update_ahead = 1 << 20;
    float numbers[WIDTH] = {0};
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = small_engine(ctx, model, &spec);
    (void)state;
    for (int32_t step = 0; step < MANY; ++step) {
        small_batch data;
        const ds_batch batch = small_feed(step, &data);
        CHECK_OK(ctx,
                 ds_engine_set_full_optimizer_state(engine, vector, "exp_avg", numbers, WIDTH));
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

/* Saved from the disk, loaded into memory, and the other way round. */
static void resumed_runs_agree(void **state)
{
    const dsi_engine_spec specs[] = {make_spec(true, DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_DEVICE),
                                     make_spec(true, DSI_RESIDENCY_DISK, DSI_RESIDENCY_DISK)};
    uint64_t hashes[4];
    result unused = {0};
    (void)state;
    for (int i = 0; i < 4; ++i) {
        ds_model *model = small_model(ctx, folder, small_gpt2);
        ds_engine *first = small_engine(ctx, model, &specs[i / 2]);
        char *save = scratch_make();
        train(first, 0, 2, &unused);
        CHECK_OK(ctx, ds_engine_save_checkpoint(first, save, "t", NULL));
        ds_engine_destroy(&first);
        ds_engine *second = small_engine(ctx, model, &specs[i % 2]);
        CHECK_OK(ctx, ds_engine_load_checkpoint(second, save, "t", NULL));
        train(second, 2, 2, &unused);
        CHECK_OK(ctx, engine_hash(ctx, second, &hashes[i]));
        ds_engine_destroy(&second);
        ds_model_destroy(&model);
        scratch_remove(save);
        assert_true(hashes[i] == hashes[0]);
    }
}

/* Each update stands behind its gradient, before the backward pass of the layers below. */
static void updates_start_with_the_backward_pass(void **state)
{
    const dsi_engine_spec spec = make_spec(true, DSI_RESIDENCY_DISK, DSI_RESIDENCY_DEVICE);
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = small_engine(ctx, model, &spec);
    const dsi_plan *plan = engine->train_plan;
    const uint32_t begin = plan->phase_begin[DS_PHASE_BACKWARD];
    const uint32_t end = plan->phase_begin[DS_PHASE_STEP];
    uint32_t first = end;
    uint32_t n = 0;
    (void)state;
    for (uint32_t s = begin; s < end; ++s) {
        if (plan->steps[s].op->role == DS_ROLE_UPDATE) {
            first = s < first ? s : first;
            ++n;
        }
    }
    assert_true(n > 30);
    assert_true(first - begin < (end - begin) / 4);
    assert_int_equal(plan->phase_begin[dsi_phases_find(&plan->phases, "update")],
                     plan->phase_begin[DS_MAX_PHASES]);
    for (ds_cell c = 0; c < ds_cells_count(engine->cells); ++c) {
        assert_true(ds_cells_get(engine->cells, c)->kind != DS_CELL_GRAD);
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

/* Steps of the forward phase that compute, before a step. */
static uint32_t computing_before(const dsi_plan *plan, uint32_t end)
{
    uint32_t n = 0;
    for (uint32_t s = 0; s < end; ++s) {
        n += plan->steps[s].kernel != NULL ? 1 : 0;
    }
    return n;
}

/* States of the first updates come while the forward pass computes, within the limit: with carry
 * that of writebacks is theirs too. */
static void the_forward_pass_brings_states(void **state)
{
    enum { LIMIT = 60000 };
    (void)state;
    for (int ahead = 0; ahead < 3; ++ahead) {
        const size_t limit = (size_t)ahead * LIMIT;
        dsi_engine_spec spec = make_spec(true, DSI_RESIDENCY_DISK, DSI_RESIDENCY_DEVICE);
        spec.offload.update_ahead = ahead > 0 ? LIMIT : 0;
        spec.offload.write_behind = LIMIT;
        spec.offload.defer = ahead == 2;
        ds_model *model = small_model(ctx, folder, small_gpt2);
        ds_engine *engine = small_engine(ctx, model, &spec);
        const dsi_plan *plan = engine->train_plan;
        const uint32_t end = plan->phase_begin[DS_PHASE_BACKWARD];
        const uint32_t n_all = computing_before(plan, end);
        size_t bytes = 0;
        size_t largest = 0;
        for (uint32_t s = 0; s < end; ++s) {
            const dsi_step *step = &plan->steps[s];
            if (step->op != &dsi_op_swap_in || step->kind == DSI_STEP_WAIT) {
                continue;
            }
            const size_t one = ds_meta_bytes(plan->refs[step->out_at].meta);
            assert_int_equal(step->kind, DSI_STEP_START);
            const uint32_t n = computing_before(plan, s); /* not longer in memory than it must */
            assert_true(n >= n_all / 3 && n < 2 * n_all / 3);
            bytes += one;
            largest = one > largest ? one : largest;
        }
        assert_true(bytes <= limit);
        assert_true(ahead == 0 || (largest > 0 && bytes > limit - LIMIT / 2));
        ds_engine_destroy(&engine);
        ds_model_destroy(&model);
    }
}

/* On several ranks an update does not wait for its own reduction: products of the layers below
 * stand between start and wait. */
static void reductions_have_time(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage <= 3; ++stage) {
        dsi_engine_spec spec = make_spec(true, DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_DEVICE);
        spec.overlap = true;
        spec.zero = (dsi_zero_spec){.mesh = dsi_mesh_data(2),
                                    .stage = stage,
                                    .reduce_each = true,
                                    .comm_dtype = DS_DTYPE_BF16,
                                    .reduce_bucket = 20000,
                                    .gather_bucket = 20000};
        ds_model *model = small_model(ctx, folder, small_gpt2);
        const dsi_rank_request request = {.model = model, .spec = &spec, .n_threads = 1};
        dsi_rank_plan rank;
        CHECK_OK(ctx, dsi_rank_plan_build(ctx, &request, &rank));
        const dsi_plan *plan = rank.train_plan;
        const uint32_t end = plan->phase_begin[DS_PHASE_STEP];
        uint32_t reductions = 0;
        uint32_t beside = 0;
        for (uint32_t s = plan->phase_begin[DS_PHASE_BACKWARD]; s < end; ++s) {
            const dsi_step *step = &plan->steps[s];
            const uint32_t start = step->start;
            if (step->kind != DSI_STEP_WAIT || (plan->steps[start].op != &dsi_op_reduce_scatter &&
                                                plan->steps[start].op != &dsi_op_all_reduce)) {
                continue;
            }
            bool product = false;
            for (uint32_t between = start; between < s; ++between) {
                product = product || strncmp(plan->steps[between].op->name, "linear", 6) == 0;
            }
            ++reductions;
            beside += product ? 1 : 0;
        }
        print_message("stage %u: %u of %u reductions beside products\n", stage, beside, reductions);
        assert_true(reductions > 5 && beside + 2 >= reductions);
        dsi_rank_plan_free(&rank);
        ds_model_destroy(&model);
    }
}

/* A step behind s of the same phase that reads the arena first. */
static uint32_t reader_behind(const dsi_plan *plan, uint32_t s)
{
    const uint32_t end = plan->phase_begin[DS_PHASE_STEP];
    for (++s; s < end; ++s) {
        const dsi_step *step = &plan->steps[s];
        if (step->kernel != NULL && step->n_in > 0 &&
            plan->refs[step->in_at].space == DSI_SPACE_ARENA) {
            return s;
        }
    }
    return end;
}

/* The use of a parameter in the backward pass before step s, or NULL. */
static const dsi_ref *use_before(const dsi_plan *plan, uint32_t s, ds_cell param)
{
    while (s-- > plan->phase_begin[DS_PHASE_BACKWARD]) {
        const dsi_step *step = &plan->steps[s];
        for (uint32_t i = 0; i < step->n_in; ++i) {
            const dsi_ref *ref = &plan->refs[step->in_at + i];
            if (ref->space == DSI_SPACE_CELL && ref->cell == param) {
                return ref;
            }
        }
    }
    return NULL;
}

/* A plan that uses a parameter behind its update is refused, which may be whole or by parts. */
static void an_update_too_early_is_refused(void **state)
{
    (void)state;
    for (int parts = 0; parts < 2; ++parts) {
        dsi_engine_spec spec = make_spec(true, DSI_RESIDENCY_DISK, DSI_RESIDENCY_DEVICE);
        spec.offload.how.chunk = parts ? 4096 : 0;
        ds_model *model = small_model(ctx, folder, small_gpt2);
        ds_engine *engine = small_engine(ctx, model, &spec);
        dsi_plan *plan = engine->train_plan;
        uint32_t n = 0;
        CHECK_OK(ctx, dsi_plan_check(plan));
        for (uint32_t s = 0; s < plan->phase_begin[DS_PHASE_STEP]; ++s) {
            const dsi_ref *out = &plan->refs[plan->steps[s].out_at];
            if (plan->steps[s].op->role != DS_ROLE_UPDATE) {
                continue;
            }
            const ds_cell parent = plan->cell_parent[out->cell];
            const dsi_ref *use = use_before(plan, s, parent != DS_NONE ? parent : out->cell);
            const uint32_t late = reader_behind(plan, s);
            if (use == NULL || late == plan->phase_begin[DS_PHASE_STEP] ||
                (parent != DS_NONE) != (parts == 1)) {
                continue;
            }
            const uint32_t at = plan->steps[late].in_at;
            const dsi_ref kept = plan->refs[at];
            plan->refs[at] = *use;
            CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH,
                        parts ? "invariant 11" : "invariant 3");
            plan->refs[at] = kept;
            ++n;
        }
        CHECK_OK(ctx, dsi_plan_check(plan));
        assert_true(n > 10);
        ds_engine_destroy(&engine);
        ds_model_destroy(&model);
    }
}

/* What the backward pass has used cannot change before the step. */
static void what_comes_too_late_is_named(void **state)
{
    const dsi_engine_spec spec = make_spec(true, DSI_RESIDENCY_DISK, DSI_RESIDENCY_DEVICE);
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = small_engine(ctx, model, &spec);
    small_batch data;
    float gradient[48];
    (void)state;
    const ds_batch batch = small_feed(0, &data);
    CHECK_FAILS(ctx, ds_engine_set_accumulation_boundary(engine, 0), DS_ERR_STATE,
                "nothing adds gradients");
    CHECK_OK(ctx, ds_engine_forward(engine, &batch));
    CHECK_OK(ctx, ds_engine_set_lr(engine, 2e-3));
    CHECK_OK(ctx, ds_engine_backward(engine));
    CHECK_FAILS(ctx, ds_engine_set_lr(engine, 1e-3), DS_ERR_STATE, "check_grad_overflow");
    CHECK_FAILS(ctx, ds_engine_get_full_grad(engine, "transformer.ln_f.weight", gradient, 48),
                DS_ERR_STATE, "used up in the backward pass");
    CHECK_FAILS(ctx, ds_engine_save_checkpoint(engine, folder, "t", NULL), DS_ERR_STATE, "");
    CHECK_OK(ctx, ds_engine_step(engine));
    CHECK_OK(ctx, ds_engine_set_lr(engine, 1e-3));
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}

/* A gradient that is not finite skips the step, unless the configuration says otherwise; the norm
 * is -1 either way. */
static void what_is_not_finite_is_applied_if_asked(void **state)
{
    (void)state;
    for (int early = 0; early < 2; ++early) {
        const dsi_engine_spec spec =
            make_spec(early != 0, DSI_RESIDENCY_DEVICE, DSI_RESIDENCY_DEVICE);
        ds_model *model = small_model(ctx, folder, small_gpt2);
        ds_engine *engine = small_engine(ctx, model, &spec);
        small_batch data;
        float weight[48];
        const ds_batch batch = small_feed(0, &data);
        for (int i = 0; i < 48; ++i) {
            weight[i] = INFINITY;
        }
        CHECK_OK(ctx, ds_engine_set_full_fp32_param(engine, "transformer.ln_f.weight", weight, 48));
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
        assert_int_equal(ds_engine_was_step_applied(engine), early);
        assert_int_equal(ds_engine_skipped_steps(engine), 1 - early);
        assert_true(ds_engine_grad_norm(engine) == -1.0);
        ds_engine_destroy(&engine);
        ds_model_destroy(&model);
    }
}

static int set_up(void **state)
{
    (void)state;
    folder = scratch_make();
    return ds_ctx_create(NULL, &ctx);
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
        cmocka_unit_test(early_updates_change_no_bit),
        cmocka_unit_test(no_setting_changes_a_bit),
        cmocka_unit_test(every_optimizer),
        cmocka_unit_test(resumed_runs_agree),
        cmocka_unit_test(what_the_host_sets_counts),
        cmocka_unit_test(what_the_host_sets_before_a_step_is_brought_once),
        cmocka_unit_test(updates_start_with_the_backward_pass),
        cmocka_unit_test(the_forward_pass_brings_states),
        cmocka_unit_test(reductions_have_time),
        cmocka_unit_test(an_update_too_early_is_refused),
        cmocka_unit_test(what_comes_too_late_is_named),
        cmocka_unit_test(what_is_not_finite_is_applied_if_asked),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
