/* SPDX-License-Identifier: Apache-2.0 */
/* The ledger: bytes by kind at a step, the curve, the peak, the largest; against a plain sum. */
#include "common/check.h"
#include "cost/ledger.h"

#include <stdlib.h>

static ds_ctx *ctx;

enum { STEPS = 50, ENTRIES = 400, KINDS = DSI_MEMORY_KIND_COUNT };

static dsi_ledger *made(uint32_t seed)
{
    dsi_ledger *ledger = NULL;
    CHECK_OK(ctx, dsi_ledger_create(ctx, STEPS, &ledger));
    for (uint32_t i = 0; i < ENTRIES; ++i) {
        uint32_t r[5];
        for (int k = 0; k < 5; ++k) {
            seed = seed * 1664525u + 1013904223u;
            r[k] = seed >> 8;
        }
        const uint32_t first = r[0] % STEPS;
        const dsi_ledger_entry entry = {.kind = (dsi_memory_kind)(r[1] % KINDS),
                                        .residency = (dsi_residency)(r[2] % DSI_RESIDENCY_COUNT),
                                        .first = first,
                                        .last = first + r[3] % (STEPS - first),
                                        .bytes = r[4] % 1000,
                                        .name = "x",
                                        .what = "y"};
        CHECK_OK(ctx, dsi_ledger_add(ledger, &entry));
    }
    return ledger;
}

static size_t sum_of(const size_t *by_kind)
{
    size_t sum = 0;
    for (int k = 0; k < KINDS; ++k) {
        sum += by_kind[k];
    }
    return sum;
}

static void the_curve_is_the_sum_at_each_step(void **state)
{
    (void)state;
    size_t curve[STEPS * KINDS];
    dsi_ledger *ledger = made(7);
    for (int where = 0; where < DSI_RESIDENCY_COUNT; ++where) {
        size_t most = 0;
        size_t peak = 0;
        uint32_t at = 0;
        dsi_ledger_curve(ledger, (dsi_residency)where, curve);
        CHECK_OK(ctx, dsi_ledger_peak(ledger, (dsi_residency)where, &at, &peak));
        for (uint32_t s = 0; s < STEPS; ++s) {
            size_t bytes[KINDS];
            dsi_ledger_at(ledger, (dsi_residency)where, s, bytes);
            assert_memory_equal(bytes, &curve[s * KINDS], sizeof bytes);
            assert_true(s >= at || sum_of(bytes) < peak);
            most = sum_of(bytes) > most ? sum_of(bytes) : most;
        }
        assert_int_equal(most, peak);
        assert_int_equal(sum_of(&curve[at * KINDS]), peak);
    }
    dsi_ledger_destroy(&ledger);
}

static void the_largest_come_first(void **state)
{
    (void)state;
    uint32_t ids[ENTRIES];
    uint32_t ten[10];
    dsi_ledger *ledger = made(11);
    const uint32_t n = dsi_ledger_largest(ledger, DSI_RESIDENCY_DEVICE, 25, ids, ENTRIES);
    size_t sum = 0;
    for (uint32_t i = 0; i < n; ++i) {
        sum += ledger->entries[ids[i]].bytes;
        assert_true(i == 0 || ledger->entries[ids[i]].bytes <= ledger->entries[ids[i - 1]].bytes);
    }
    size_t bytes[KINDS];
    dsi_ledger_at(ledger, DSI_RESIDENCY_DEVICE, 25, bytes);
    assert_int_equal(sum, sum_of(bytes)); /* all that is there, nothing else */
    assert_int_equal(dsi_ledger_largest(ledger, DSI_RESIDENCY_DEVICE, 25, ten, 10), 10);
    assert_memory_equal(ten, ids, sizeof ten);
    dsi_ledger_destroy(&ledger);
}

static void a_wrong_life_is_refused(void **state)
{
    (void)state;
    dsi_ledger *ledger = made(1);
    const dsi_ledger_entry late = {.last = STEPS, .bytes = 1, .name = "x", .what = "y"};
    const dsi_ledger_entry turned = {.first = 3, .last = 2, .bytes = 1, .name = "x", .what = "y"};
    assert_int_equal(dsi_ledger_add(ledger, &late), DS_ERR_GRAPH);
    assert_int_equal(dsi_ledger_add(ledger, &turned), DS_ERR_GRAPH);
    dsi_ledger_destroy(&ledger);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_curve_is_the_sum_at_each_step),
        cmocka_unit_test(the_largest_come_first),
        cmocka_unit_test(a_wrong_life_is_refused),
    };
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
