/* SPDX-License-Identifier: Apache-2.0 */
/* Learning-rate schedules against DeepSpeed's own (test/golden/config/schedule.csv) and the
 * Trainer's (test/golden/optim/trainer_schedule.csv), and the checks of their parameters. */
#include "common/check.h"

#include <deepspeed/schedule.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OPTIMIZER_LR    0.02
#define OPTIMIZER_BETA1 0.7

typedef enum field_type { REAL, WHOLE, TRUTH } field_type;

static const struct {
    const char *key;
    field_type type;
    size_t offset;
} fields[] = {
#define FIELD(name, type)                                                                          \
    {                                                                                              \
#name, type, offsetof(ds_schedule_params, name)                                            \
    }
    FIELD(warmup_min_lr, REAL),
    FIELD(warmup_max_lr, REAL),
    FIELD(warmup_num_steps, WHOLE),
    FIELD(total_num_steps, WHOLE),
    FIELD(warmup_min_ratio, REAL),
    FIELD(cos_min_ratio, REAL),
    FIELD(cycle_min_lr, REAL),
    FIELD(cycle_max_lr, REAL),
    FIELD(decay_lr_rate, REAL),
    FIELD(cycle_first_step_size, REAL),
    FIELD(cycle_second_step_size, REAL),
    FIELD(cycle_first_stair_count, WHOLE),
    FIELD(cycle_second_stair_count, WHOLE),
    FIELD(decay_step_size, REAL),
    FIELD(cycle_momentum, TRUTH),
    FIELD(cycle_min_mom, REAL),
    FIELD(cycle_max_mom, REAL),
    FIELD(decay_mom_rate, REAL),
    FIELD(lr_range_test_min_lr, REAL),
    FIELD(lr_range_test_step_size, WHOLE),
    FIELD(lr_range_test_step_rate, REAL),
    FIELD(lr_range_test_staircase, TRUTH),
    FIELD(last_batch_iteration, WHOLE),
    FIELD(num_cycles, REAL),
    FIELD(min_lr, REAL),
    FIELD(min_lr_rate, REAL),
    FIELD(default_lr, REAL),
    FIELD(warmup_lr_rate, REAL),
    FIELD(lr_end, REAL),
    FIELD(power, REAL),
    FIELD(timescale, WHOLE),
    FIELD(num_decay_steps, WHOLE),
    FIELD(num_stable_steps, WHOLE),
    FIELD(min_lr_ratio, REAL),
#undef FIELD
};

static void set_field(ds_schedule_params *p, const char *key, const char *value)
{
    if (strcmp(key, "warmup_type") == 0) {
        p->warmup_type = strcmp(value, "linear") == 0 ? DS_WARMUP_LINEAR : DS_WARMUP_LOG;
        return;
    }
    if (strcmp(key, "warmup_ramp") == 0 || strcmp(key, "decay_ramp") == 0) {
        *(key[0] == 'w' ? &p->warmup_ramp : &p->decay_ramp) = (ds_ramp)atoi(value);
        return;
    }
    for (size_t i = 0; i < sizeof fields / sizeof fields[0]; ++i) {
        if (strcmp(fields[i].key, key) != 0) {
            continue;
        }
        char *at = (char *)p + fields[i].offset;
        const double real = strtod(value, NULL);
        const int64_t whole = strtoll(value, NULL, 10);
        const bool truth = whole != 0;
        switch (fields[i].type) {
        case REAL:
            memcpy(at, &real, sizeof real);
            return;
        case WHOLE:
            memcpy(at, &whole, sizeof whole);
            return;
        case TRUTH:
            memcpy(at, &truth, sizeof truth);
            return;
        }
    }
    fail_msg("no field %s", key);
}

/* "# WarmupLR warmup_num_steps=4 …" */
static ds_schedule_params read_header(char *line)
{
    char *rest = NULL;
    const char *name = strtok_r(line + 2, " \n", &rest);
    ds_schedule_params p = {0};
    for (int kind = DS_SCHEDULE_WARMUP; kind < DS_SCHEDULE_KIND_COUNT; ++kind) {
        if (strcmp(ds_schedule_kind_name((ds_schedule_kind)kind), name) == 0) {
            p = ds_schedule_default((ds_schedule_kind)kind);
        }
    }
    assert_int_not_equal(p.kind, DS_SCHEDULE_NONE);
    for (char *word = strtok_r(NULL, " \n", &rest); word != NULL;
         word = strtok_r(NULL, " \n", &rest)) {
        char *equals = strchr(word, '=');
        *equals = '\0';
        set_field(&p, word, equals + 1);
    }
    return p;
}

static void equals_deepspeed(void **state)
{
    FILE *file = fopen(DS_SOURCE_DIR "/test/golden/config/schedule.csv", "rb");
    assert_non_null(file);
    char line[1024];
    ds_schedule_params p = {0};
    size_t n_points = 0;
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] == '#') {
            p = read_header(line);
            CHECK_OK(*state, ds_schedule_check(*state, &p));
            continue;
        }
        long number, updates;
        double lr, beta;
        assert_int_equal(sscanf(line, "%ld,%ld,%lf,%lf", &number, &updates, &lr, &beta), 4);
        const ds_schedule_point point = ds_schedule_at(&p, OPTIMIZER_LR, updates);
        const double momentum = point.has_momentum ? point.momentum : OPTIMIZER_BETA1;
        if (fabs(point.lr - lr) > 1e-14 * (1 + fabs(lr)) || fabs(momentum - beta) > 1e-13) {
            fail_msg("case %ld, %ld updates: lr %.17g, expected %.17g; beta %.17g, expected %.17g",
                     number, updates, point.lr, lr, momentum, beta);
        }
        ++n_points;
    }
    (void)fclose(file);
    assert_true(n_points > 3000);
}

/* Whether a rate is the one that transformers gives. */
static void check_rate(const char *of, long updates, double lr, double expected)
{
    if (!(fabs(lr - expected) <= 1e-14 * (1e-3 + fabs(expected)))) {
        fail_msg("%s, %ld updates: lr %.17g, expected %.17g", of, updates, lr, expected);
    }
}

/* Three groups of parameters with rates of their own; min_lr and lr_end are over the first. */
static void equals_the_trainer(void **state)
{
    static const double group_lr[] = {0.02, 0.003, 1e-5};
    FILE *file = fopen(DS_SOURCE_DIR "/test/golden/optim/trainer_schedule.csv", "rb");
    assert_non_null(file);
    char line[1024];
    char header[1024] = "";
    ds_schedule_params p = {0};
    size_t n_points = 0;
    bool seen[DS_SCHEDULE_KIND_COUNT] = {false};
    while (fgets(line, sizeof line, file) != NULL) {
        if (line[0] == '#') {
            memcpy(header, line, sizeof header);
            p = read_header(line);
            seen[p.kind] = true;
            CHECK_OK(*state, ds_schedule_check(*state, &p));
            continue;
        }
        long updates;
        double lr[3];
        assert_int_equal(sscanf(line, "%ld,%lf,%lf,%lf", &updates, &lr[0], &lr[1], &lr[2]), 4);
        for (size_t g = 0; g < 3; ++g) {
            const ds_schedule_point point = ds_schedule_at(&p, group_lr[g], updates);
            assert_false(point.has_momentum);
            check_rate(header, updates, point.lr, lr[g]);
        }
        p.default_lr = NAN; /* of the first group it is the optimizer's */
        check_rate(header, updates, ds_schedule_at(&p, group_lr[0], updates).lr, lr[0]);
        p.default_lr = group_lr[0];
        ++n_points;
    }
    (void)fclose(file);
    assert_true(n_points > 3000);
    for (int kind = DS_SCHEDULE_LINEAR; kind < DS_SCHEDULE_KIND_COUNT; ++kind) {
        assert_true(seen[kind]);
    }
}

static void none_keeps_the_rate(void **state)
{
    (void)state;
    const ds_schedule_params p = ds_schedule_default(DS_SCHEDULE_NONE);
    const ds_schedule_point point = ds_schedule_at(&p, 0.5, 12);
    assert_true(point.lr == 0.5 && !point.has_momentum);
}

static void refuses_bad_parameters(void **state)
{
    ds_schedule_params p = ds_schedule_default(DS_SCHEDULE_WARMUP_DECAY);
    CHECK_FAILS(*state, ds_schedule_check(*state, &p), DS_ERR_CONFIG, "total_num_steps");
    p = ds_schedule_default(DS_SCHEDULE_ONE_CYCLE);
    CHECK_FAILS(*state, ds_schedule_check(*state, &p), DS_ERR_CONFIG, "cycle_min_lr");
    p.cycle_min_lr = p.cycle_max_lr = 0;
    p.cycle_first_step_size = 0;
    CHECK_FAILS(*state, ds_schedule_check(*state, &p), DS_ERR_CONFIG, "cycle_first_step_size");
    p = ds_schedule_default(DS_SCHEDULE_LR_RANGE_TEST);
    p.lr_range_test_step_size = 0;
    CHECK_FAILS(*state, ds_schedule_check(*state, &p), DS_ERR_CONFIG, "lr_range_test_step_size");
    p = ds_schedule_default(DS_SCHEDULE_WARMUP);
    p.warmup_num_steps = 0;
    CHECK_FAILS(*state, ds_schedule_check(*state, &p), DS_ERR_CONFIG, "warmup_num_steps");
}

static void refuses_bad_parameters_of_the_trainer(void **state)
{
    ds_schedule_params p = ds_schedule_default(DS_SCHEDULE_LINEAR);
    CHECK_FAILS(*state, ds_schedule_check(*state, &p), DS_ERR_CONFIG, "total_num_steps");
    p.total_num_steps = 10;
    CHECK_OK(*state, ds_schedule_check(*state, &p));
    p.warmup_num_steps = -1;
    CHECK_FAILS(*state, ds_schedule_check(*state, &p), DS_ERR_CONFIG, "warmup_num_steps");
    p = ds_schedule_default(DS_SCHEDULE_COSINE_WITH_MIN_LR);
    p.total_num_steps = 10;
    CHECK_FAILS(*state, ds_schedule_check(*state, &p), DS_ERR_CONFIG, "found neither");
    p.min_lr = p.min_lr_rate = 0.1;
    CHECK_FAILS(*state, ds_schedule_check(*state, &p), DS_ERR_CONFIG, "found both");
    p = ds_schedule_default(DS_SCHEDULE_WARMUP_STABLE_DECAY);
    p.total_num_steps = 10;
    CHECK_FAILS(*state, ds_schedule_check(*state, &p), DS_ERR_CONFIG, "num_decay_steps");
    p = ds_schedule_default(DS_SCHEDULE_POLYNOMIAL);
    p.total_num_steps = 10;
    p.power = NAN;
    CHECK_FAILS(*state, ds_schedule_check(*state, &p), DS_ERR_CONFIG, "power");
    p = ds_schedule_default(DS_SCHEDULE_KIND_COUNT);
    CHECK_FAILS(*state, ds_schedule_check(*state, &p), DS_ERR_CONFIG, "expected a schedule");
}

/* One update after a run whose warm-up is all of it: transformers divides by zero. */
static void ends_where_transformers_divides_by_zero(void **state)
{
    ds_schedule_params p = ds_schedule_default(DS_SCHEDULE_POLYNOMIAL);
    p.total_num_steps = p.warmup_num_steps = 10;
    CHECK_OK(*state, ds_schedule_check(*state, &p));
    check_rate("the end", 10, ds_schedule_at(&p, 0.5, 10).lr, 1e-7);
}

/* Values with which a rate would be no number, or the iteration overflow. */
static void refuses_what_overflows(void **state)
{
    const double odd[] = {NAN, INFINITY, -INFINITY, 1e300};
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; ++i) {
        ds_schedule_params cycle = ds_schedule_default(DS_SCHEDULE_ONE_CYCLE);
        cycle.cycle_min_lr = cycle.cycle_max_lr = 0;
        CHECK_OK(*state, ds_schedule_check(*state, &cycle));
        double *const numbers[] = {&cycle.cycle_max_lr,         &cycle.cycle_min_mom,
                                   &cycle.cycle_max_mom,        &cycle.decay_mom_rate,
                                   &cycle.decay_lr_rate,        &cycle.decay_step_size,
                                   &cycle.cycle_first_step_size};
        for (size_t k = 0; k < sizeof numbers / sizeof numbers[0]; ++k) {
            const double kept = *numbers[k];
            *numbers[k] = odd[i];
            CHECK_FAILS(*state, ds_schedule_check(*state, &cycle), DS_ERR_CONFIG, "expected");
            *numbers[k] = kept;
        }
        ds_schedule_params range = ds_schedule_default(DS_SCHEDULE_LR_RANGE_TEST);
        range.lr_range_test_step_rate = odd[i];
        CHECK_FAILS(*state, ds_schedule_check(*state, &range), DS_ERR_CONFIG, "step_rate");
    }
    ds_schedule_params p = ds_schedule_default(DS_SCHEDULE_ONE_CYCLE);
    p.cycle_min_lr = p.cycle_max_lr = 0;
    p.decay_lr_rate = -0.001; /* 1 + rate * interval passes 0 */
    CHECK_FAILS(*state, ds_schedule_check(*state, &p), DS_ERR_CONFIG, "decay_lr_rate");
    p.decay_lr_rate = 0;
    p.decay_step_size = 1e-310; /* the interval would be infinite */
    CHECK_FAILS(*state, ds_schedule_check(*state, &p), DS_ERR_CONFIG, "decay_step_size");
    p = ds_schedule_default(DS_SCHEDULE_WARMUP);
    p.last_batch_iteration = INT64_MAX;
    CHECK_FAILS(*state, ds_schedule_check(*state, &p), DS_ERR_CONFIG, "last_batch_iteration");
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    return ds_ctx_create(&params, (ds_ctx **)state);
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_deepspeed),
        cmocka_unit_test(equals_the_trainer),
        cmocka_unit_test(none_keeps_the_rate),
        cmocka_unit_test(ends_where_transformers_divides_by_zero),
        cmocka_unit_test(refuses_bad_parameters),
        cmocka_unit_test(refuses_bad_parameters_of_the_trainer),
        cmocka_unit_test(refuses_what_overflows),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
