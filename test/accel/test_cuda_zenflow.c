/* SPDX-License-Identifier: Apache-2.0 */
/* labels: slow
 * ZenFlow on the accelerator `cuda` over the stand-in of libcuda: one result in each ZeRO stage,
 * residency and order, updated by the device or by the processor beside it, with the rest in the
 * phases of the step or concurrent with the next, and the processor's losses within the tolerance
 * of products summed in another order. No GPU is asked. */
#include "accel/accel.h"
#include "accel/cuda/cuda_launch.h"
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "common/standin_load.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { STEPS = 4, ROWS = 3 };

static ds_ctx *ctx;
static char *folder;
static standin_calls standin;

typedef struct result {
    uint64_t hash;
    double losses[STEPS];
} result;

typedef struct row {
    const char *accel;
    uint32_t stage;
    dsi_residency params;
    bool host; /* the processor updates what lives in host memory */
} row;

static result train(const ds_model *model, bool late, const row *r)
{
    result got = {0};
    ds_engine *engine = NULL;
    small_batch room;
    dsi_engine_spec spec = small_spec(DS_DTYPE_BF16);
    const ds_engine_params params = {.model = model, .seq_length = SMALL_SEQ, .seed = 5};
    CHECK_OK(ctx, dsi_accel_choose(ctx, r->accel, &spec.accel));
    spec.train.max_norm = 0.1;
    spec.train.zenflow = (dsi_zenflow_spec){.on = true,
                                            .ratio = 0.25,
                                            .auto_ratio = 0.99,
                                            .update_every = 2,
                                            .select_every = 2,
                                            .warm_up = 1,
                                            .overlap = late};
    spec.zero = (dsi_zero_spec){.stage = r->stage,
                                .reduce_each = true,
                                .comm_dtype = DS_DTYPE_BF16,
                                .reduce_bucket = 1000,
                                .gather_bucket = 1000,
                                .model_persistence = INT64_MAX,
                                .max_live = 1000,
                                .max_reuse_distance = 1000};
    spec.offload = small_away(folder, DSI_RESIDENCY_HOST, r->params);
    spec.offload.how.host = r->host;
    spec.host_cores = 1.0;
    CHECK_OK(ctx, dsi_engine_create(ctx, &params, &spec, &engine));
    for (int32_t step = 0; step < STEPS; ++step) {
        const ds_batch batch = small_feed(step, &room);
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
        got.losses[step] = ds_engine_loss(engine);
    }
    CHECK_OK(ctx, engine_hash(ctx, engine, &got.hash));
    ds_engine_destroy(&engine);
    return got;
}

static void one_result(bool late)
{
    static const row rows[ROWS] = {
        {"cuda", 1, DSI_RESIDENCY_DEVICE, false},
        {"cuda:graphs=0", 2, DSI_RESIDENCY_DEVICE, true},
        {"cuda", 3, DSI_RESIDENCY_HOST, true},
    };
    const row on_cpu = {"cpu", 1, DSI_RESIDENCY_DEVICE, false};
    ds_model *model = small_model(ctx, folder, small_llama);
    const result wanted = train(model, late, &on_cpu);
    result first = {0};
    for (size_t i = 0; i < ROWS; i += late ? 2 : 1) {
        char order[64];
        (void)snprintf(order, sizeof order, "seed=%zu,turn=%u", i + 1, 64u << (2 * i));
        standin.set(order);
        const result got = train(model, late, &rows[i]);
        first = i == 0 ? got : first;
        assert_true(got.hash == first.hash);
        assert_memory_equal(got.losses, first.losses, sizeof got.losses);
        for (int s = 0; s < STEPS; ++s) {
            if (!(fabs(got.losses[s] - wanted.losses[s]) <= 2e-2)) {
                fail_msg("row %zu, step %d: loss %.9g, on cpu %.9g", i, s, got.losses[s],
                         wanted.losses[s]);
            }
        }
    }
    ds_model_destroy(&model);
}

static void the_rest_in_the_step(void **state)
{
    (void)state;
    one_result(false);
}

static void the_rest_beside_the_next_steps(void **state)
{
    (void)state;
    one_result(true);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_rest_in_the_step),
        cmocka_unit_test(the_rest_beside_the_next_steps),
    };
    if (!standin_load(DS_BINARY_DIR, &standin)) {
        return 1;
    }
    ctx = check_ctx(2);
    folder = scratch_make();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return failed;
}
