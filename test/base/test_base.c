/* SPDX-License-Identifier: Apache-2.0 */
/* labels: threads
 * base/: half precision against arithmetic, the pool, the arena's ceiling, Philox known answers. */
#include "base/arena.h"
#include "base/context.h"
#include "base/half.h"
#include "base/rng.h"
#include "common/check.h"

#include <deepspeed/tensor.h>
#include <math.h>
#include <string.h>

static void half_round_trips(void **state)
{
    (void)state;
    for (uint32_t h = 0; h < 65536; ++h) {
        const float f = dsi_f16_to_f32((uint16_t)h);
        const float b = dsi_bf16_to_f32((uint16_t)h);
        if (!isnan(f)) {
            assert_int_equal(dsi_f32_to_f16(f), h);
        }
        if (!isnan(b)) {
            assert_int_equal(dsi_f32_to_bf16(b), h);
        }
    }
    assert_int_equal(dsi_f32_to_f16(65519.0f), 0x7bff);
    assert_int_equal(dsi_f32_to_f16(65520.0f), 0x7c00);
    assert_int_equal(dsi_f32_to_bf16(1.00390625f), 0x3f80); /* a tie goes to even */
}

static void count_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    ((uint32_t *)arg)[task] += task + 1;
}

static void pool_runs_each_task_once(void **state)
{
    (void)state;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 4;
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    for (int round = 0; round < 2000; ++round) {
        uint32_t counts[37] = {0};
        dsi_pool_run(dsi_ctx_pool(ctx), count_task, counts, 37);
        for (uint32_t i = 0; i < 37; ++i) {
            assert_int_equal(counts[i], i + 1);
        }
    }
    ds_ctx_destroy(&ctx);
    assert_null(ctx);
}

static void arena_stops_at_ceiling(void **state)
{
    (void)state;
    dsi_arena *arena = NULL;
    assert_int_equal(dsi_arena_create(1000, &arena), DS_OK);
    assert_non_null(dsi_arena_alloc(arena, 500));
    assert_null(dsi_arena_alloc(arena, 501));
    assert_null(dsi_arena_array(arena, SIZE_MAX / 2, 3));
    dsi_arena_destroy(&arena);
}

static void philox_known_answer(void **state)
{
    (void)state; /* Random123's kat_vectors for philox4x32 with 10 rounds */
    const uint32_t zero[4] = {0, 0, 0, 0};
    const dsi_philox a = dsi_philox4x32(0, zero);
    assert_int_equal(a.v[0], 0x6627e8d5);
    assert_int_equal(a.v[1], 0xe169c58d);
    const uint32_t pi[4] = {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344};
    const dsi_philox b = dsi_philox4x32(0x299f31d0a4093822ull, pi);
    assert_int_equal(b.v[0], 0xd16cfe09);
    assert_int_equal(b.v[3], 0x24126ea1);
}

static void errors_are_recorded(void **state)
{
    (void)state;
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    CHECK_FAILS(ctx, ds_fail(ctx, DS_ERR_CONFIG, "key %s", "zero"), DS_ERR_CONFIG, "key zero");
    assert_non_null(strstr(ds_ctx_error_place(ctx), "test_base.c"));
    ds_ctx_destroy(&ctx);
}

static void sizes_saturate(void **state)
{
    (void)state;
    const ds_meta meta = {DS_DTYPE_F32, ds_shape_3d(INT64_MAX / 2, 8, 8)};
    assert_true(ds_meta_bytes(meta) == SIZE_MAX);
    assert_int_equal(ds_dtype_from_name("bfloat16"), DS_DTYPE_BF16);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(half_round_trips),       cmocka_unit_test(pool_runs_each_task_once),
        cmocka_unit_test(arena_stops_at_ceiling), cmocka_unit_test(philox_known_answer),
        cmocka_unit_test(errors_are_recorded),    cmocka_unit_test(sizes_saturate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
