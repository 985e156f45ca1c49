/* SPDX-License-Identifier: Apache-2.0 */
/* Times of collectives: hand-computed cases, and properties over a grid. */
#include "common/check.h"
#include "cost/device.h"

#include <math.h>
#include <string.h>

/* 1 µs a hop; 50 GB/s between, 10 GB/s to other nodes, reached by half. */
static const dsi_device two_levels = {
    .ranks_per_node = 4,
    .node = {"inside", 1e-6, 100e9, 0.5, 0.5, 0.5, false},
    .net = {"outside", 10e-6, 20e9, 0.5, 0.5, 0.5, false},
};

static void near(double got, double want)
{
    if (!(fabs(got - want) <= 1e-9 * fabs(want) + 1e-15)) {
        fail_msg("got %.12g, expected %.12g", got, want);
    }
}

static double seconds(const dsi_device *d, ds_comm_op kind, uint32_t n, uint32_t local,
                      double bytes)
{
    return dsi_time_collective(d, kind, (dsi_group){n, local}, bytes).seconds;
}

static void one_rank_costs_nothing(void **state)
{
    (void)state;
    const dsi_coll_time t =
        dsi_time_collective(&two_levels, DS_COMM_ALL_REDUCE, (dsi_group){1, 1}, 1e9);
    assert_true(t.seconds == 0.0);
    assert_string_equal(t.algorithm, "none");
}

static void rings_within_a_node(void **state)
{
    (void)state;
    /* 3 hops, 3/4 of 1 GB at 50 GB/s */
    near(seconds(&two_levels, DS_COMM_ALL_GATHER, 4, 4, 1e9), 3e-6 + 0.015);
    near(seconds(&two_levels, DS_COMM_REDUCE_SCATTER, 4, 4, 1e9), 3e-6 + 0.015);
    near(seconds(&two_levels, DS_COMM_ALL_REDUCE, 4, 4, 1e9), 6e-6 + 0.03);
    /* small: a tree has 4 hops, a ring 6 */
    const dsi_coll_time tree =
        dsi_time_collective(&two_levels, DS_COMM_ALL_REDUCE, (dsi_group){4, 4}, 1e3);
    assert_string_equal(tree.algorithm, "tree");
    near(tree.seconds, 4e-6 + 2e3 / 50e9);
}

static void switches_that_sum(void **state)
{
    (void)state;
    dsi_device d = two_levels;
    d.node.multicast = true;
    const dsi_coll_time t = dsi_time_collective(&d, DS_COMM_ALL_REDUCE, (dsi_group){4, 4}, 1e9);
    assert_string_equal(t.algorithm, "multicast");
    near(t.seconds, 4e-6 + 0.02);
}

static void memory_read_in_place(void **state)
{
    (void)state;
    dsi_device d = two_levels;
    d.in_place = true;
    const dsi_coll_time t = dsi_time_collective(&d, DS_COMM_ALL_REDUCE, (dsi_group){4, 4}, 1e9);
    assert_string_equal(t.algorithm, "direct");
    near(t.seconds, 1e-6 + 0.03);
}

static void nodes(void **state)
{
    (void)state;
    /* 2 nodes of 4, 8 GB gathered. Through all: 6 hops inside, 2 outside, 7/8 of 8 GB at the lesser
     * of 50 and 4 · 10 GB/s. One after the other: 3 + 1 hops, 1 GB outside at 10, 6 GB at 50. */
    const dsi_coll_time large =
        dsi_time_collective(&two_levels, DS_COMM_ALL_GATHER, (dsi_group){8, 4}, 8e9);
    assert_string_equal(large.algorithm, "ring");
    near(large.seconds, 26e-6 + 7.0 / 40.0);
    near(large.net_bytes, 1e9);
    near(large.node_bytes, 6e9);
    const dsi_coll_time small =
        dsi_time_collective(&two_levels, DS_COMM_ALL_GATHER, (dsi_group){8, 4}, 8e3);
    assert_string_equal(small.algorithm, "hierarchical");
    near(small.seconds, 3e-6 + 10e-6 + 1e3 / 10e9 + 6e3 / 50e9);
    /* one rank a node: nothing inside */
    const dsi_coll_time thin =
        dsi_time_collective(&two_levels, DS_COMM_ALL_GATHER, (dsi_group){4, 1}, 1e9);
    near(thin.seconds, 2 * 10e-6 + 0.75 / 10.0);
    near(thin.node_bytes, 0.0);
}

/* More bytes and more nodes never take less time; an all-reduce takes no less than its half. */
static void monotone(void **state)
{
    (void)state;
    for (uint32_t i = 0; dsi_device_at(i) != NULL; ++i) {
        const dsi_device *d = dsi_device_at(i);
        const uint32_t g = d->ranks_per_node;
        for (ds_comm_op kind = DS_COMM_ALL_REDUCE; kind <= DS_COMM_ALL_GATHER; ++kind) {
            for (uint32_t k = 1; k <= 512; k *= 2) {
                double before = 0.0;
                for (double bytes = 8.0; bytes < 1e11; bytes *= 3.7) {
                    const double t = seconds(d, kind, k * g, g, bytes);
                    assert_true(isfinite(t) && t > 0.0);
                    assert_true(t >= before);
                    assert_true(seconds(d, kind, 2 * k * g, g, bytes) >= t * 0.999);
                    assert_true(seconds(d, DS_COMM_ALL_REDUCE, k * g, g, bytes) >=
                                0.5 * seconds(d, DS_COMM_ALL_GATHER, k * g, g, bytes));
                    before = t;
                }
            }
        }
    }
}

/* What was measured on 8 H200 and on 4 nodes of 8 B200 (device_table.c, [N]): within a fifth. */
static void measured_elsewhere(void **state)
{
    (void)state;
    static const struct {
        const char *device;
        uint32_t ranks;
        double bytes, bus_rate;
    } rows[] = {{"h200", 8, 32768.0, 3.15e9},      {"h200", 8, 1073741824.0, 466e9},
                {"h200", 8, 17179869184.0, 482e9}, {"b200", 32, 32768.0, 0.65e9},
                {"b200", 32, 1073741824.0, 366e9}, {"b200", 32, 17179869184.0, 377e9},
                {"b200", 8, 17179869184.0, 839e9}};
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        dsi_device d;
        const double n = (double)rows[i].ranks;
        CHECK_OK(NULL, dsi_device_find(NULL, rows[i].device, &d));
        const double t = seconds(&d, DS_COMM_ALL_REDUCE, rows[i].ranks, 8, rows[i].bytes);
        const double want = 2.0 * (n - 1.0) / n * rows[i].bytes / rows[i].bus_rate;
        if (fabs(t / want - 1.0) > 0.2) {
            fail_msg("%s, %u ranks, %.0f bytes: %.1f us, measured %.1f us", rows[i].device,
                     rows[i].ranks, rows[i].bytes, 1e6 * t, 1e6 * want);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(one_rank_costs_nothing),
        cmocka_unit_test(rings_within_a_node),
        cmocka_unit_test(switches_that_sum),
        cmocka_unit_test(memory_read_in_place),
        cmocka_unit_test(nodes),
        cmocka_unit_test(monotone),
        cmocka_unit_test(measured_elsewhere),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
