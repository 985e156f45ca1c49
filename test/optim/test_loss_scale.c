/* SPDX-License-Identifier: Apache-2.0 */
/* The dynamic loss scaler against DeepSpeed's (test/golden/optim/loss_scale.json). */
#include "common/check.h"
#include "common/golden.h"
#include "optim/loss_scale.h"

static void check_case(ds_ctx *ctx, size_t index, const json_t *c)
{
    const json_t *settings = json_object_get(c, "settings");
    const json_t *flags = json_object_get(c, "overflow");
    const json_t *scales = json_object_get(c, "scales");
    const json_t *fails_at = json_object_get(c, "fails_at");
    const size_t n = json_array_size(scales);
    dsi_loss_scale s = dsi_loss_scale_dynamic(
        golden_number(settings, "init_scale"), (int64_t)golden_number(settings, "scale_window"),
        golden_number(settings, "min_scale"), (int64_t)golden_number(settings, "delayed_shift"),
        json_is_true(json_object_get(settings, "consecutive_hysteresis")));
    for (size_t i = 0; i < n; ++i) {
        const bool overflow = json_integer_value(json_array_get(flags, i)) != 0;
        const double want = json_number_value(json_array_get(scales, i));
        CHECK_OK(ctx, dsi_loss_scale_update(ctx, &s, overflow));
        if (s.scale != want) {
            fail_msg("case %zu, step %zu: scale is %g, DeepSpeed's %g", index, i, s.scale, want);
        }
    }
    if (fails_at != NULL) {
        assert_int_equal(json_integer_value(fails_at), n);
        CHECK_FAILS(ctx, dsi_loss_scale_update(ctx, &s, true), DS_ERR_NUMERIC, "smallest");
    } else {
        assert_int_equal(n, json_array_size(flags));
    }
}

static void scales_equal(void **state)
{
    json_t *cases = golden_json("optim/loss_scale.json");
    ds_ctx *ctx = NULL;
    (void)state;
    assert_int_equal(ds_ctx_create(NULL, &ctx), DS_OK);
    assert_int_equal(json_array_size(cases), 8);
    for (size_t i = 0; i < json_array_size(cases); ++i) {
        check_case(ctx, i, json_array_get(cases, i));
    }
    ds_ctx_destroy(&ctx);
    json_decref(cases);
}

static void static_scale_stays(void **state)
{
    dsi_loss_scale s = dsi_loss_scale_static(128.0);
    (void)state;
    for (int i = 0; i < 8; ++i) {
        assert_int_equal(dsi_loss_scale_update(NULL, &s, i % 3 == 0), DS_OK);
        assert_true(s.scale == 128.0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(scales_equal),
                                       cmocka_unit_test(static_scale_stays)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
