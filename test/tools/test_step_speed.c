/* SPDX-License-Identifier: Apache-2.0 */
/* Tokens a second: the steps that warm up are left out, the newest count. */
#include "common/check.h"
#include "tools/common/step_speed.h"

static void warm_up_is_left_out(void **state)
{
    step_speed s = {0};
    (void)state;
    assert_true(step_speed_rate(&s) == 0.0 && step_speed_seconds(&s) == 0.0);
    step_speed_add(&s, 100.0, 10.0);
    assert_true(step_speed_rate(&s) == 10.0);
    step_speed_add(&s, 100.0, 4.0);
    assert_true(step_speed_rate(&s) == 25.0); /* the first step is not in it */
    for (int i = 0; i < 5; ++i) {
        step_speed_add(&s, 100.0, 0.25);
        assert_true(step_speed_rate(&s) == 400.0 && step_speed_seconds(&s) == 0.25);
    }
}

static void the_newest_count(void **state)
{
    step_speed s = {0};
    (void)state;
    for (int i = 0; i < 100; ++i) {
        step_speed_add(&s, 8.0, 1.0);
    }
    for (int i = 0; i < STEP_SPEED_WINDOW / 2; ++i) {
        step_speed_add(&s, 8.0, 3.0);
    }
    assert_true(step_speed_rate(&s) == 4.0); /* half of the window each */
    for (int i = 0; i < STEP_SPEED_WINDOW / 2; ++i) {
        step_speed_add(&s, 8.0, 3.0);
    }
    assert_true(step_speed_seconds(&s) == 3.0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(warm_up_is_left_out),
        cmocka_unit_test(the_newest_count),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
