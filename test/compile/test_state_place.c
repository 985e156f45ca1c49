/* SPDX-License-Identifier: Apache-2.0 */
/* Where super_offload's optimizer states are: the choice against every split, links of two speeds,
 * an explicit ratio; and the bits of a run, which no split changes.
 * labels: slow */
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/scratch.h"
#include "common/small_run.h"
#include "compile/state_place.h"
#include "report/plan_report.h"
#include "train/engine.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static ds_ctx *ctx;
static char *folder;

static const char gpt2[] = "{\"model_type\": \"gpt2\", \"vocab_size\": 8192, \"n_positions\": 256, "
                           "\"n_embd\": 512, \"n_layer\": 8, \"n_head\": 8}";

/* ratio below 0: not given. */
static ds_config *config_of(double ratio)
{
    char text[640];
    char given[40] = "";
    ds_config *config = NULL;
    if (ratio >= 0.0) {
        (void)snprintf(given, sizeof given, ", \"ratio\": %.15g", ratio);
    }
    (void)snprintf(text, sizeof text,
                   "{\"train_micro_batch_size_per_gpu\": 8, \"bf16\": {\"enabled\": true}, "
                   "\"gradient_clipping\": 1.0, \"zero_optimization\": {\"stage\": 3, "
                   "\"stage3_param_persistence_threshold\": 1000, \"offload_optimizer\": "
                   "{\"device\": \"cpu\", \"super_offload\": true%s}}, "
                   "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}}",
                   given);
    CHECK_OK(ctx, ds_config_load_text(ctx, "test", text, strlen(text), NULL, &config));
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    return config;
}

/* host: of its link, bytes/s; memory and Adam keep up with it. */
static dsi_device device_of(double host)
{
    dsi_device device;
    CHECK_OK(ctx, dsi_device_find(ctx, "h100-sxm", &device));
    device.host_link = host;
    device.host_bandwidth = 8.0 * host;
    device.host_adam = host / 10.0;
    return device;
}

/* The planned step, 0 where it does not fit; *place_out may be NULL. */
static double plan_needs(const dsi_device *device, double ratio, size_t memory,
                         dsi_state_place *place, size_t needs[2])
{
    ds_model *model = small_model(ctx, folder, gpt2);
    ds_config *config = config_of(ratio);
    const dsi_report_request request = {.model = model,
                                        .config = config,
                                        .seq_length = 256,
                                        .n_ranks = 1,
                                        .n_nodes = 1,
                                        .n_threads = 1,
                                        .device = device,
                                        .memory = memory};
    dsi_plan_report report;
    CHECK_OK(ctx, dsi_report_make(ctx, &request, &report));
    const double seconds = dsi_report_lacks(&report, NULL) ? 0.0 : report.step_time;
    if (place != NULL) {
        *place = report.plan.place;
        assert_true(place->on == (ratio < 0.0));
    }
    if (needs != NULL) { /* of the device, of its host */
        needs[0] = dsi_report_need(&report);
        needs[1] = report.total[DSI_RESIDENCY_HOST];
    }
    dsi_report_free(&report);
    ds_config_destroy(&config);
    ds_model_destroy(&model);
    return seconds;
}

static double plan(const dsi_device *device, double ratio, size_t memory, dsi_state_place *place)
{
    return plan_needs(device, ratio, memory, place, NULL);
}

/* The split is that of its ratio, and no other of a hundred is faster than the best by more than a
 * bucket's worth; all on the host and all on the device never are. */
static void the_choice_is_the_fastest(void **state)
{
    static const double hosts[] = {10e9, 60e9, 400e9};
    (void)state;
    for (int h = 0; h < 3; ++h) {
        const dsi_device device = device_of(hosts[h]);
        dsi_state_place place;
        const double chosen = plan(&device, -1.0, 0, &place);
        assert_true(chosen > 0.0 && chosen == place.seconds);
        assert_true(plan(&device, place.ratio, 0, NULL) == chosen);
        assert_true(plan(&device, 1.0, 0, NULL) == place.host_seconds);
        assert_true(plan(&device, 0.0, 0, NULL) == place.device_seconds);
        assert_true(chosen <= place.host_seconds && chosen <= place.device_seconds);
        for (int k = 0; k <= 16; ++k) {
            const double other = plan(&device, (double)k / 16.0, 0, NULL);
            if (chosen > 1.02 * other) {
                fail_msg("host %g: ratio %g takes %g s, ratio %g was chosen with %g s", hosts[h],
                         (double)k / 16.0, other, place.ratio, chosen);
            }
        }
    }
}

/* A faster link leaves less on the device; a slower step than all on the host is never chosen. */
static void a_slow_link_keeps_more(void **state)
{
    const dsi_device slow = device_of(10e9);
    const dsi_device fast = device_of(400e9);
    dsi_state_place kept[2];
    (void)state;
    (void)plan(&slow, -1.0, 0, &kept[0]);
    (void)plan(&fast, -1.0, 0, &kept[1]);
    assert_true(kept[0].kept > kept[1].kept);
    assert_true(kept[0].n_kept > 0 && kept[1].n_kept < kept[1].n_buckets);
}

/* What does not fit is not chosen, and the line says by how much. */
static void memory_bounds_it(void **state)
{
    const dsi_device slow = device_of(10e9);
    char text[DSI_STATE_PLACE_BYTES];
    dsi_state_place all;
    dsi_state_place some;
    (void)state;
    (void)plan(&slow, -1.0, 0, &all);
    assert_int_equal(all.n_kept, all.n_buckets);
    assert_int_equal(all.lacks, 0);
    for (size_t mib = 1400; mib > 900; mib -= 50) {
        const double seconds = plan(&slow, -1.0, mib << 20, &some);
        if (some.n_kept > 0 && some.n_kept < some.n_buckets) {
            assert_true(seconds > 0.0 && some.lacks > 0 && some.seconds >= all.seconds);
            dsi_state_place_text(&some, text);
            assert_non_null(strstr(text, "all on the device lacks"));
            return;
        }
    }
    fail_msg("no memory keeps a part");
}

/* ---- bits ------------------------------------------------------------------------------------ */

static uint64_t train(const char *accel, double ratio, uint32_t *host_out)
{
    small_batch data;
    uint64_t hash = 0;
    dsi_engine_spec spec = small_spec(DS_DTYPE_BF16);
    CHECK_OK(ctx, dsi_accel_choose(ctx, accel, &spec.accel));
    spec.train.max_norm = 0.1;
    spec.host_cores = 1.0;
    if (ratio >= 0.0) {
        spec.offload = small_away(folder, DSI_RESIDENCY_HOST, DSI_RESIDENCY_DEVICE);
        spec.offload.how.host = true;
        spec.offload.by_gradient = true;
        spec.offload.ratio = ratio;
        spec.train.speculative = true;
    }
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = small_engine(ctx, model, &spec);
    for (int32_t step = 0; step < 2; ++step) {
        const ds_batch batch = small_feed(step, &data);
        CHECK_OK(ctx, ds_engine_forward(engine, &batch));
        CHECK_OK(ctx, ds_engine_backward(engine));
        CHECK_OK(ctx, ds_engine_step(engine));
    }
    CHECK_OK(ctx, engine_hash(ctx, engine, &hash));
    *host_out = 0;
    for (uint32_t s = 0; s < engine->train_plan->n_steps; ++s) {
        *host_out += engine->train_plan->steps[s].on_host ? 1 : 0;
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
    return hash;
}

static void no_split_changes_a_bit(void **state)
{
    static const char *const accels[] = {"cpu", "sim:seed=1", "sim:seed=2,turn=64"};
    static const double ratios[] = {0.0, 0.3, 0.7, 1.0};
    uint32_t before = 0;
    uint32_t n = 0;
    (void)state;
    const uint64_t wanted = train("cpu", -1.0, &n);
    for (int a = 0; a < 3; ++a) {
        before = 0;
        for (int r = 0; r < 4; ++r) {
            const uint64_t got = train(accels[a], ratios[r], &n);
            if (got != wanted) {
                fail_msg("%s, ratio %g: other bits", accels[a], ratios[r]);
            }
            assert_true(r == 0 ? n == 0 : n > before);
            before = n;
        }
    }
}

/* Between a host too small for few buckets kept and a device too small for many: what fits is
 * found, wherever it lies, and is as the ratio's own plan. */
static void few_fit(void **state)
{
    static const double ratios[] = {0.85, 0.6, 0.35, 0.1};
    (void)state;
    for (size_t i = 0; i < sizeof ratios / sizeof ratios[0]; ++i) {
        dsi_device device = device_of(60e9);
        size_t least[2];
        size_t most[2];
        dsi_state_place place;
        (void)plan_needs(&device, ratios[i] + 0.08, 0, NULL, least);
        (void)plan_needs(&device, ratios[i] - 0.08, 0, NULL, most);
        device.host_memory_bytes = (double)least[1];
        const double seconds = plan(&device, -1.0, most[0], &place);
        assert_true(seconds > 0.0 && seconds == place.seconds);
        assert_true(fabs(place.ratio - ratios[i]) < 0.16);
        assert_true(plan(&device, place.ratio, most[0], NULL) == seconds);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_choice_is_the_fastest), cmocka_unit_test(a_slow_link_keeps_more),
        cmocka_unit_test(memory_bounds_it),          cmocka_unit_test(few_fit),
        cmocka_unit_test(no_split_changes_a_bit),
    };
    ctx = check_ctx(2);
    folder = scratch_make();
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return failed;
}
