/* SPDX-License-Identifier: Apache-2.0 */
/* train/host_state: texts and values agree, and what is missing, of another type or out of range
 * is named, never read as zero. */
#include "common/check.h"
#include "train/host_state.h"

#include <string.h>

static ds_ctx *ctx;

static const dsi_host_state sample = {.global_steps = 12,
                                      .skipped_steps = 3,
                                      .global_samples = UINT64_C(1) << 60,
                                      .forced_lr = -1.0,
                                      .scale = 65536.0,
                                      .iteration = 12,
                                      .last_overflow = -1,
                                      .hysteresis_left = 2,
                                      .seed = UINT64_MAX};

static void round_trip(void **state)
{
    (void)state;
    char text[3][DSI_HOST_STATE_BYTES];
    dsi_host_state got;
    dsi_host_state_print(&sample, "engine", text[0]);
    dsi_host_state_print(&sample, "loss_scaler", text[1]);
    dsi_host_state_print(&sample, "random", text[2]);
    const dsi_host_state_texts texts = {text[0], text[1], text[2]};
    CHECK_OK(ctx, dsi_host_state_parse(ctx, "x", &texts, &got));
    assert_int_equal(got.global_steps, sample.global_steps);
    assert_int_equal(got.skipped_steps, sample.skipped_steps);
    assert_int_equal(got.global_samples, sample.global_samples);
    assert_true(got.forced_lr == sample.forced_lr && got.scale == sample.scale);
    assert_int_equal(got.iteration, sample.iteration);
    assert_int_equal(got.last_overflow, sample.last_overflow);
    assert_int_equal(got.hysteresis_left, sample.hysteresis_left);
    assert_true(got.seed == sample.seed);
}

static void refusals(void **state)
{
    (void)state;
#define ENGINE "{\"global_steps\":2,\"skipped_steps\":1,\"global_samples\":8,\"lr_override\":-1}"
#define ZENFLOW(members)                                                                           \
    "{\"global_steps\":2,\"skipped_steps\":1,\"global_samples\":8,\"lr_override\":-1,\"zenflow\":" \
    "{" members "}}"
#define RANDOM "{\"seed\":\"7\"}"
    static const struct {
        const char *engine, *scaler, *random, *says;
    } cases[] = {
        {NULL, NULL, RANDOM, "\"engine\" is missing"},
        {"[]", NULL, RANDOM, "\"engine\" is missing"},
        {ENGINE, NULL, "{}", "\"seed\""},
        {ENGINE, NULL, "{\"seed\":7}", "\"seed\""},
        {ENGINE, NULL, "{\"seed\":\"-7\"}", "\"seed\""},
        {ENGINE, NULL, "{\"seed\":\"7x\"}", "\"seed\""},
        {ENGINE, NULL, "{\"seed\":\"18446744073709551616\"}", "\"seed\""},
        {"{\"skipped_steps\":1}", NULL, RANDOM, "global_steps"},
        {"{\"global_steps\":-2,\"skipped_steps\":1,\"global_samples\":8,\"lr_override\":-1}", NULL,
         RANDOM, "global_steps"},
        {"{\"global_steps\":2,\"skipped_steps\":3,\"global_samples\":8,\"lr_override\":-1}", NULL,
         RANDOM, "at most"},
        {"{\"global_steps\":2,\"skipped_steps\":1,\"global_samples\":8,\"lr_override\":\"1\"}",
         NULL, RANDOM, "lr_override"},
        {"{\"global_steps\":9223372036854775807,\"skipped_steps\":1,\"global_samples\":8,"
         "\"lr_override\":-1}",
         NULL, RANDOM, "\"global_steps\" must be a whole number from 0 to 2^62"},
        {ZENFLOW("\"chosen\":1"), NULL, RANDOM, "waiting"},
        {ZENFLOW("\"chosen\":1,\"waiting\":9223372036854775807,\"chosen_updates\":1,\"rest_"
                 "updates\":1"),
         NULL, RANDOM, "\"waiting\" must be"},
        {ZENFLOW("\"chosen\":1,\"waiting\":1,\"chosen_updates\":1,\"rest_updates\":-1"), NULL,
         RANDOM, "rest_updates"},
        {ENGINE, "{\"scale\":0,\"iteration\":0,\"last_overflow\":-1,\"hysteresis_left\":1}", RANDOM,
         "above 0"},
        {ENGINE, "{\"scale\":1,\"iteration\":0,\"last_overflow\":-2,\"hysteresis_left\":1}", RANDOM,
         "last_overflow"},
        {ENGINE, "{\"scale\":1,\"iteration\":0.5,\"last_overflow\":-1,\"hysteresis_left\":1}",
         RANDOM, "iteration"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const dsi_host_state_texts texts = {cases[i].engine, cases[i].scaler, cases[i].random};
        dsi_host_state got;
        CHECK_FAILS(ctx, dsi_host_state_parse(ctx, "x", &texts, &got), DS_ERR_FORMAT,
                    cases[i].says);
    }
}

int main(void)
{
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    const struct CMUnitTest tests[] = {cmocka_unit_test(round_trip), cmocka_unit_test(refusals)};
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
