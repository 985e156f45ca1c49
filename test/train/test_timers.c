/* SPDX-License-Identifier: Apache-2.0 */
/* wall_clock_breakdown: the times of a step are of that step alone, all its micro-batches. */
#include "base/clock.h"
#include "common/parity.h"

#include <string.h>

static void run_step(ds_ctx *ctx, ds_engine *engine, const parity_case *p)
{
    for (int64_t i = 0; i < ds_engine_accumulation(engine); ++i) {
        CHECK_OK(ctx, ds_engine_forward(engine, &p->batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
    }
}

static void times_are_of_one_step(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    parity_open(ctx, "llama3", &p);
    dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, DS_ISA_REF);
    spec.train.accumulation = 2;
    spec.wall_clock_breakdown = true;
    ds_engine *engine = parity_engine(ctx, &p, &spec);
    assert_true(ds_engine_step_times(engine).forward == 0.0);
    for (int step = 0; step < 20; ++step) {
        const double start = dsi_clock_seconds();
        run_step(ctx, engine, &p);
        const double all = 1e3 * (dsi_clock_seconds() - start);
        const ds_engine_times t = ds_engine_step_times(engine);
        assert_true(t.forward > 0.0 && t.backward_inner > 0.0 && t.step > 0.0);
        assert_true(t.backward == t.backward_inner && t.backward_allreduce == 0.0);
        assert_true(t.forward + t.backward + t.step <= all);
        assert_true(t.forward + t.backward + t.step > 0.05 * all); /* milliseconds */
    }
    CHECK_OK(ctx, ds_engine_forward(engine, &p.batch)); /* counts for the step that it belongs to */
    const ds_engine_times before = ds_engine_step_times(engine);
    CHECK_OK(ctx, ds_engine_backward(engine));
    CHECK_OK(ctx, ds_engine_step(engine)); /* no boundary */
    const ds_engine_times after = ds_engine_step_times(engine);
    assert_memory_equal(&before, &after, sizeof before);
    ds_engine_destroy(&engine);
    parity_close(&p);
}

static void off_by_default(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    parity_open(ctx, "llama3", &p);
    const dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, DS_ISA_REF);
    ds_engine *engine = parity_engine(ctx, &p, &spec);
    run_step(ctx, engine, &p);
    const ds_engine_times t = ds_engine_step_times(engine);
    assert_true(t.forward == 0.0 && t.backward == 0.0 && t.step == 0.0);
    ds_engine_destroy(&engine);
    parity_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(times_are_of_one_step),
        cmocka_unit_test(off_by_default),
    };
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
