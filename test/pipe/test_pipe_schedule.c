/* SPDX-License-Identifier: Apache-2.0 */
/* Schedules: the lists of torch's and DeepSpeed's 1F1B, micro-batches in flight and idle time as
 * the formulas say, and lists that would wait for ever, which are refused. */
#include "common/check.h"

#include "pipe/pipe_schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;

static void print(const dsi_schedule *s, uint32_t stage, char *text, size_t room)
{
    dsi_turn turns[128];
    size_t n = 0;
    assert_true(2 * s->n_micro <= 128);
    dsi_schedule_turns(s, stage, turns);
    text[0] = '\0';
    for (uint32_t i = 0; i < 2 * s->n_micro; ++i) {
        n += (size_t)snprintf(text + n, room - n, "%s%u%c%u", i > 0 ? " " : "", stage,
                              turns[i].backward ? 'B' : 'F', turns[i].micro);
    }
}

/* Lists that torch's Schedule1F1B and ScheduleGPipe make for 2 and 4 stages, 4 micro-batches. */
static void lists(void **state)
{
    static const struct {
        dsi_schedule schedule;
        uint32_t stage;
        const char *text;
    } cases[] = {
        {{DSI_SCHEDULE_1F1B, 2, 4}, 0, "0F0 0F1 0B0 0F2 0B1 0F3 0B2 0B3"},
        {{DSI_SCHEDULE_1F1B, 2, 4}, 1, "1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3"},
        {{DSI_SCHEDULE_1F1B, 4, 4}, 0, "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3"},
        {{DSI_SCHEDULE_1F1B, 4, 4}, 2, "2F0 2F1 2B0 2F2 2B1 2F3 2B2 2B3"},
        {{DSI_SCHEDULE_1F1B, 4, 2}, 0, "0F0 0F1 0B0 0B1"},
        {{DSI_SCHEDULE_1F1B, 4, 1}, 3, "3F0 3B0"},
        {{DSI_SCHEDULE_GPIPE, 2, 3}, 1, "1F0 1F1 1F2 1B0 1B1 1B2"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char text[1024];
        print(&cases[i].schedule, cases[i].stage, text, sizeof text);
        assert_string_equal(text, cases[i].text);
    }
}

/* min(m, p-r) in flight, or m; (p-1)(F+B) idle: what Narayanan et al. 2021 and Huang et al. 2019
 * say. */
static void formulas(void **state)
{
    (void)state;
    for (uint32_t p = 1; p <= 9; ++p) {
        for (uint32_t m = 1; m <= 20; ++m) {
            for (int kind = DSI_SCHEDULE_1F1B; kind <= DSI_SCHEDULE_GPIPE; ++kind) {
                const dsi_schedule s = {(dsi_schedule_kind)kind, p, m};
                double seconds = 0.0;
                CHECK_OK(ctx, dsi_schedule_check(ctx, &s, NULL, 0, 1.0, 2.5, &seconds));
                assert_true(seconds == (m + p - 1) * 3.5);
                for (uint32_t r = 0; r < p; ++r) {
                    dsi_turn turns[64];
                    uint32_t most = 0;
                    uint32_t flying = 0;
                    dsi_schedule_turns(&s, r, turns);
                    for (uint32_t i = 0; i < 2 * m; ++i) {
                        flying += turns[i].backward ? -1 : 1;
                        most = flying > most ? flying : most;
                    }
                    const uint32_t left = m < p - r ? m : p - r;
                    assert_int_equal(most, kind == DSI_SCHEDULE_GPIPE ? m : left);
                    assert_int_equal(dsi_schedule_slots(&s, r), most);
                }
            }
        }
    }
}

/* A gradient that goes from the last stage to the first (tied weights): with a buffer for each
 * stage between, nothing waits for it. */
static void far_messages(void **state)
{
    (void)state;
    for (uint32_t p = 2; p <= 6; ++p) {
        const dsi_schedule s = {DSI_SCHEDULE_1F1B, p, 12};
        double seconds[3] = {0.0};
        for (uint32_t buffers = 1; buffers <= 2; ++buffers) {
            dsi_schedule_edge edges[16];
            uint32_t n = 0;
            for (uint32_t r = 1; r < p; ++r) {
                edges[n++] = (dsi_schedule_edge){r - 1, r, false, 1};
                edges[n++] = (dsi_schedule_edge){r, r - 1, true, 1};
            }
            edges[n++] = (dsi_schedule_edge){p - 1, 0, true, buffers == 1 ? 1 : p - 1};
            CHECK_OK(ctx, dsi_schedule_check(ctx, &s, edges, n, 1.0, 2.0, &seconds[buffers]));
        }
        assert_true(seconds[2] == (12 + p - 1) * 3.0);
        assert_true(p <= 2 ? seconds[1] == seconds[2] : seconds[1] > seconds[2]);
    }
}

/* The lists of all stages, to be broken. */
typedef struct set {
    dsi_turn turns[3][8];
    const dsi_turn *lists[3];
    uint32_t slots[3];
} set;

static set make(const dsi_schedule *s)
{
    set made;
    memset(&made, 0, sizeof made);
    for (uint32_t r = 0; r < s->n_stages; ++r) {
        dsi_schedule_turns(s, r, made.turns[r]);
        made.slots[r] = dsi_schedule_slots(s, r);
    }
    return made;
}

static ds_status run(const dsi_schedule *s, set *made)
{
    static const dsi_schedule_edge edges[] = {
        {0, 1, false, 0}, {1, 2, false, 0}, {1, 0, true, 0}, {2, 1, true, 0}};
    double seconds = 0.0;
    for (uint32_t r = 0; r < 3; ++r) {
        made->lists[r] = made->turns[r];
    }
    return dsi_schedule_run(ctx, s, made->lists, made->slots, edges, 4, 1.0, 2.0, &seconds);
}

static void lists_that_block(void **state)
{
    const dsi_schedule s = {DSI_SCHEDULE_1F1B, 3, 4};
    (void)state;
    set made = make(&s);
    CHECK_OK(ctx, run(&s, &made));
    /* the last stage keeps its gradients until it has seen more than the first may send */
    const dsi_turn late[8] = {{false, 0}, {false, 1}, {false, 2}, {false, 3},
                              {true, 0},  {true, 1},  {true, 2},  {true, 3}};
    memcpy(made.turns[2], late, sizeof late);
    made.slots[2] = 4;
    CHECK_FAILS(ctx, run(&s, &made), DS_ERR_GRAPH,
                "stage 0 would wait for ever at turn 3, the backward of micro-batch 0");
    made = make(&s);
    made.turns[1][0] = (dsi_turn){true, 0};
    CHECK_FAILS(ctx, run(&s, &made), DS_ERR_GRAPH, "stage 1, turn 0: backward of micro-batch 0");
    made = make(&s);
    made.turns[0][7] = (dsi_turn){true, 2}; /* one twice, one never */
    CHECK_FAILS(ctx, run(&s, &made), DS_ERR_GRAPH, "stage 0, turn 7");
    made = make(&s);
    made.slots[0] = 2; /* three are in flight */
    CHECK_FAILS(ctx, run(&s, &made), DS_ERR_GRAPH, "stage 0, turn 2: forward of micro-batch 2");
}

static int setup(void **state)
{
    (void)state;
    return ds_ctx_create(NULL, &ctx);
}

static int teardown(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(lists),
        cmocka_unit_test(formulas),
        cmocka_unit_test(far_messages),
        cmocka_unit_test(lists_that_block),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
