/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers of flags and of the environment: the whole text is one decimal number, or none. */
#include "base/number.h"
#include "common/check.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

static void whole_numbers(void **state)
{
    static const char *const wrong[] = {"",    " ",    "x",   "1x",  " 1",  "1 ",
                                        "1.0", "1e3",  "0x1", "--1", "+-1", "9223372036854775808",
                                        "+",   "1\n2", "nan"};
    uint64_t bits = 3;
    int64_t got = 77;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        assert_false(dsi_number_int(wrong[i], INT64_MIN, INT64_MAX, &got));
        assert_int_equal(got, 77); /* untouched */
    }
    for (int i = 0; i < 2000; ++i) {
        char text[32];
        bits = bits * UINT64_C(6364136223846793005) + 1;
        const int64_t want = (int64_t)(bits >> (i % 60)) * (i % 2 == 0 ? 1 : -1);
        (void)snprintf(text, sizeof text, "%s%" PRId64, want >= 0 && i % 3 == 0 ? "+" : "", want);
        assert_true(dsi_number_int(text, INT64_MIN, INT64_MAX, &got));
        assert_true(got == want);
        assert_true(dsi_number_int(text, want, want, &got));
        assert_false(want < INT64_MAX && dsi_number_int(text, want + 1, INT64_MAX, &got));
        assert_false(want > INT64_MIN && dsi_number_int(text, INT64_MIN, want - 1, &got));
    }
}

static void real_numbers(void **state)
{
    static const char *const wrong[] = {"",     ".",   "-",    "e5",      "1e",    "1e+",
                                        "0x10", "inf", "-inf", "nan",     "1e999", " 1",
                                        "1 ",   "1,5", "1..2", "infinity"};
    static const char *const right[] = {"0",    "-0", "1",     ".5",    "5.",    "1e3",
                                        "1E-3", "+2", "1e+10", "-.5e1", "1e-320"};
    double got = 77;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof wrong[0]; ++i) {
        assert_false(dsi_number_real(wrong[i], &got));
        assert_true(got == 77.0);
    }
    for (size_t i = 0; i < sizeof right / sizeof right[0]; ++i) {
        assert_true(dsi_number_real(right[i], &got));
        assert_true(got == strtod(right[i], NULL));
    }
    const char *end = dsi_number_start("2.5GB", &got);
    assert_true(got == 2.5);
    assert_string_equal(end, "GB");
    end = dsi_number_start("3e", &got); /* no exponent: its letter is what follows */
    assert_true(end == NULL || *end == 'e');
}

static void environment(void **state)
{
    ds_ctx *ctx = *state;
    int64_t got = 0;
    (void)unsetenv("DS_TEST_NUMBER");
    CHECK_OK(ctx, dsi_number_env(ctx, "DS_TEST_NUMBER", 1, 9, 5, &got));
    assert_int_equal(got, 5);
    (void)setenv("DS_TEST_NUMBER", "", 1);
    CHECK_OK(ctx, dsi_number_env(ctx, "DS_TEST_NUMBER", 1, 9, 6, &got));
    assert_int_equal(got, 6);
    (void)setenv("DS_TEST_NUMBER", "9", 1);
    CHECK_OK(ctx, dsi_number_env(ctx, "DS_TEST_NUMBER", 1, 9, 5, &got));
    assert_int_equal(got, 9);
    (void)setenv("DS_TEST_NUMBER", "10", 1);
    CHECK_FAILS(ctx, dsi_number_env(ctx, "DS_TEST_NUMBER", 1, 9, 5, &got), DS_ERR_CONFIG,
                "DS_TEST_NUMBER is \"10\", expected a whole number from 1 to 9");
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.level = DS_LOG_ERROR;
    params.n_threads = 1;
    return ds_ctx_create(&params, (ds_ctx **)state) < 0;
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(whole_numbers),
        cmocka_unit_test(real_numbers),
        cmocka_unit_test(environment),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
