/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of learning-rate schedules: the input is laid over the parameters; what passes the check
 * gives a rate for any number of updates. */
#include "fuzz/fuzz_files.h"

#include <deepspeed/schedule.h>

static int64_t take_int(const uint8_t **data, size_t *n)
{
    int64_t value = 0;
    const size_t bytes = *n < sizeof value ? *n : sizeof value;
    memcpy(&value, *data, bytes);
    *data += bytes;
    *n -= bytes;
    return value;
}

static double take_real(const uint8_t **data, size_t *n)
{
    const int64_t bits = take_int(data, n);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t kind = size > 0 ? data[0] : 0;
    const uint8_t *at = data + (size > 0);
    size_t n = size - (size > 0);
    ds_schedule_params p = ds_schedule_default(kind % DS_SCHEDULE_KIND_COUNT);
    int64_t *const ints[] = {&p.last_batch_iteration,
                             &p.warmup_num_steps,
                             &p.total_num_steps,
                             &p.cycle_first_stair_count,
                             &p.cycle_second_stair_count,
                             &p.lr_range_test_step_size,
                             &p.timescale,
                             &p.num_decay_steps,
                             &p.num_stable_steps};
    double *const reals[] = {&p.warmup_min_lr,
                             &p.warmup_max_lr,
                             &p.warmup_min_ratio,
                             &p.cos_min_ratio,
                             &p.cycle_min_lr,
                             &p.cycle_max_lr,
                             &p.decay_lr_rate,
                             &p.cycle_first_step_size,
                             &p.cycle_second_step_size,
                             &p.decay_step_size,
                             &p.cycle_min_mom,
                             &p.cycle_max_mom,
                             &p.decay_mom_rate,
                             &p.lr_range_test_min_lr,
                             &p.lr_range_test_step_rate,
                             &p.num_cycles,
                             &p.min_lr,
                             &p.min_lr_rate,
                             &p.default_lr,
                             &p.warmup_lr_rate,
                             &p.lr_end,
                             &p.power,
                             &p.min_lr_ratio};
    for (size_t i = 0; i < sizeof ints / sizeof ints[0] && n > 0; ++i) {
        *ints[i] = take_int(&at, &n);
    }
    for (size_t i = 0; i < sizeof reals / sizeof reals[0] && n > 0; ++i) {
        *reals[i] = take_real(&at, &n);
    }
    p.warmup_type = kind & 0x40 ? DS_WARMUP_LINEAR : DS_WARMUP_LOG;
    p.warmup_ramp = p.decay_ramp = (ds_ramp)(kind >> 5);
    p.cycle_momentum = (kind & 0x80) != 0;
    p.lr_range_test_staircase = (kind & 0x20) != 0;
    if (ds_schedule_check(fuzz_context(), &p) >= 0) {
        static const int64_t updates[] = {0, 1, 2, 999, 1000, 1 << 20, INT64_C(1) << 50};
        for (size_t i = 0; i < sizeof updates / sizeof updates[0]; ++i) {
            const ds_schedule_point point = ds_schedule_at(&p, 1e-3, updates[i]);
            fuzz_require(point.lr == point.lr, "the rate is no number");
        }
    } else {
        fuzz_require(*ds_ctx_error(fuzz_context()) != '\0', "an error without a message");
    }
    return 0;
}
