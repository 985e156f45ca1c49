/* SPDX-License-Identifier: Apache-2.0 */
/* Programs: random ones against a recursive interpreter of the same blocks, failures in the midst
 * of a call, each invariant broken once, the text. */
#include "pipe/program.h"

#include "common/check.h"

#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;

/* ---- a client that writes down what it is asked to do ---- */

enum { TESTS = 3, ACTIONS = 3, LOG_BYTES = 4096 };

typedef struct recorder {
    char log[LOG_BYTES];
    size_t n;
    uint32_t holds;    /* bit of each test */
    uint32_t fails_in; /* actions and phases until one fails; 0: none does */
} recorder;

static ds_status note(recorder *r, char what)
{
    assert_true(r->n + 1 < LOG_BYTES);
    r->log[r->n++] = what;
    r->log[r->n] = '\0';
    return r->fails_in > 0 && --r->fails_in == 0 ? ds_fail(ctx, DS_ERR_IO, "failed") : DS_OK;
}

static ds_status act_a(void *r)
{
    return note(r, 'a');
}
static ds_status act_b(void *r)
{
    return note(r, 'b');
}
static ds_status act_c(void *r)
{
    return note(r, 'c');
}
static bool test_x(const void *r)
{
    return (((const recorder *)r)->holds & 1) != 0;
}
static bool test_y(const void *r)
{
    return (((const recorder *)r)->holds & 2) != 0;
}
static bool test_z(const void *r)
{
    return (((const recorder *)r)->holds & 4) != 0;
}

static const dsi_program_action actions[ACTIONS] = {{"a", act_a}, {"b", act_b}, {"c", act_c}};
static const dsi_program_test tests[TESTS] = {{"x", test_x}, {"y", test_y}, {"z", test_z}};

static ds_status run_phase(void *r, const dsi_instr *instr)
{
    return note(r, (char)('0' + instr->phase));
}

static ds_status start_phase(void *r, const dsi_instr *instr)
{
    (void)instr;
    return note(r, 's');
}

static dsi_program_client client_of(recorder *r)
{
    return (dsi_program_client){.user = r, .run = run_phase, .start = start_phase};
}

/* A plan with a backward phase, "norm", and "rest" on the side stream; no step of it runs. */
static dsi_plan make_plan(void)
{
    dsi_plan plan = {.side = 3};
    plan.phases = (dsi_phases){.items = {{"forward", 0, DS_PHASE_FORWARD},
                                         {"backward", 0, DS_PHASE_BACKWARD},
                                         {"norm", 0, DS_PHASE_STEP},
                                         {"rest", DS_PHASE_SIDE, DS_PHASE_STEP}},
                               .n = 4};
    for (uint32_t p = 0; p <= DS_MAX_PHASES; ++p) {
        plan.phase_begin[p] = p < 4 ? p : 4;
    }
    return plan;
}

/* ---- random programs ---- */

static uint32_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

/* Adds a random block to the program, and what it means under `holds` to `want`. */
static void add_block(dsi_program *p, uint64_t *seed, uint32_t depth, uint32_t holds, bool live,
                      char *want)
{
    const uint32_t n = next(seed) % 4;
    for (uint32_t i = 0; i < n; ++i) {
        const uint32_t kind = next(seed) % 4;
        const uint32_t which = next(seed) % 3;
        char text[2] = {0};
        if (kind == 0 && depth < 4) {
            dsi_program_if(p, &tests[which]);
            add_block(p, seed, depth + 1, holds, live && (holds >> which & 1) != 0, want);
            dsi_program_end(p);
            continue;
        }
        if (kind == 1) {
            dsi_program_start(p, 0);
            text[0] = 's';
        } else if (kind == 2) {
            dsi_program_run(p, 0, 2, 0);
            text[0] = '2';
        } else {
            dsi_program_do(p, &actions[which]);
            text[0] = (char)('a' + which);
        }
        if (live) {
            (void)strcat(want, text);
        }
    }
}

static void random_programs(void **state)
{
    const dsi_plan plan = make_plan();
    enum { ROUNDS = 2000, CALLS = 3 };
    (void)state;
    for (uint64_t round = 0; round < ROUNDS; ++round) {
        uint64_t seed = round * 2654435761u + 1;
        dsi_program p = {.name = "random", .plans = {{"plan", &plan}}, .n_plans = 1, .n_slots = 1};
        char want[CALLS][LOG_BYTES] = {{0}};
        recorder r = {.holds = next(&seed) % 8};
        for (uint32_t c = 0; c < CALLS; ++c) {
            dsi_program_await(&p, c, "call");
            add_block(&p, &seed, 0, r.holds, true, want[c]);
        }
        CHECK_OK(ctx, dsi_program_check(ctx, &p));
        const dsi_program_client client = client_of(&r);
        dsi_program_at at = 0;
        for (uint32_t i = 0; i < 2 * CALLS; ++i) {
            const uint32_t c = i % CALLS;
            const dsi_program_at before = at;
            CHECK_FAILS(ctx, dsi_program_call(ctx, &p, &client, (c + 1) % CALLS, &at), DS_ERR_STATE,
                        "call expected");
            assert_int_equal(at, before);
            const size_t n_want = strlen(want[c]);
            if (n_want > 0) { /* one that fails may be made again */
                r.fails_in = 1 + next(&seed) % (uint32_t)n_want;
                const uint32_t at_most = r.fails_in;
                CHECK_FAILS(ctx, dsi_program_call(ctx, &p, &client, c, &at), DS_ERR_IO, "failed");
                assert_int_equal(at, before);
                assert_true(r.n == at_most && strncmp(r.log, want[c], r.n) == 0);
            }
            r.n = 0;
            r.log[0] = '\0';
            r.fails_in = 0;
            CHECK_OK(ctx, dsi_program_call(ctx, &p, &client, c, &at));
            assert_string_equal(r.log, want[c]);
            r.n = 0;
            r.log[0] = '\0';
        }
        assert_int_equal(at, 0);
        dsi_program_free(&p);
    }
}

static void a_call_that_is_over(void **state)
{
    const dsi_plan plan = make_plan();
    dsi_program p = {.name = "once", .plans = {{"plan", &plan}}, .n_plans = 1, .n_slots = 1};
    recorder r = {.fails_in = 2};
    dsi_program_at at = 0;
    (void)state;
    dsi_program_await_once(&p, 7, "step");
    dsi_program_do(&p, &actions[0]);
    dsi_program_do(&p, &actions[1]);
    dsi_program_do(&p, &actions[2]);
    dsi_program_await(&p, 8, "forward");
    CHECK_OK(ctx, dsi_program_check(ctx, &p));
    const dsi_program_client client = client_of(&r);
    CHECK_FAILS(ctx, dsi_program_call(ctx, &p, &client, 7, &at), DS_ERR_IO, "failed");
    assert_string_equal(r.log, "ab");
    assert_int_equal(dsi_program_awaits(&p, at)->call, 8);
    dsi_program_free(&p);
}

/* ---- invariants ---- */

static void no_await(dsi_program *p)
{
    dsi_program_do(p, &actions[0]);
}
static void await_in_block(dsi_program *p)
{
    dsi_program_await(p, 0, "call");
    dsi_program_if(p, &tests[0]);
    dsi_program_await(p, 1, "call");
    dsi_program_end(p);
}
static void open_block(dsi_program *p)
{
    dsi_program_await(p, 0, "call");
    dsi_program_if(p, &tests[0]);
}
static void lone_end(dsi_program *p)
{
    dsi_program_await(p, 0, "call");
    dsi_program_end(p);
}
static void no_such_phase(dsi_program *p)
{
    dsi_program_await(p, 0, "call");
    dsi_program_run(p, 0, 9, 0);
}
static void no_such_slot(dsi_program *p)
{
    dsi_program_await(p, 0, "call");
    dsi_program_run(p, 0, DS_PHASE_FORWARD, 2);
}
static void twice_forward(dsi_program *p)
{
    dsi_program_await(p, 0, "call");
    dsi_program_run(p, 0, DS_PHASE_FORWARD, 0);
    dsi_program_run(p, 0, DS_PHASE_FORWARD, 1);
    dsi_program_run(p, 0, DS_PHASE_FORWARD, 0);
}
static void backward_of_another_slot(dsi_program *p)
{
    dsi_program_await(p, 0, "call");
    dsi_program_run(p, 0, DS_PHASE_FORWARD, 0);
    dsi_program_run(p, 0, DS_PHASE_BACKWARD, 1);
}
static void left_over(dsi_program *p)
{
    dsi_program_await(p, 0, "call");
    dsi_program_run(p, 0, DS_PHASE_FORWARD, 1);
}
static void side_is_run(dsi_program *p)
{
    dsi_program_await(p, 0, "call");
    dsi_program_run(p, 0, 3, 0);
}
static void too_long(dsi_program *p)
{
    dsi_program_await(p, 0, "call");
    for (int i = 0; i < DSI_PROGRAM_INSTRS; ++i) {
        dsi_program_do(p, &actions[0]);
    }
}

static void no_such_message(dsi_program *p)
{
    dsi_program_await(p, 0, "call");
    dsi_program_receive(p, 2, 0);
}
static void message_of_no_slot(dsi_program *p)
{
    dsi_program_await(p, 0, "call");
    dsi_program_send(p, 0, 2);
}
static void message_of_no_buffer(dsi_program *p)
{
    dsi_program_await(p, 0, "call");
    dsi_program_send(p, 1, 2); /* there are three, and two slots */
    dsi_program_sent(p, 1, 2);
    dsi_program_send(p, 1, 3);
}
static void sent_twice(dsi_program *p)
{
    dsi_program_await(p, 0, "call");
    dsi_program_send(p, 0, 1);
    dsi_program_sent(p, 1, 1);
    dsi_program_sent(p, 0, 0);
    dsi_program_send(p, 0, 1);
}
static void on_its_way(dsi_program *p)
{
    dsi_program_await(p, 0, "call");
    dsi_program_send(p, 1, 0);
    dsi_program_receive(p, 0, 0);
}

static void broken_programs(void **state)
{
    static const struct {
        void (*make)(dsi_program *p);
        ds_status status;
        const char *says;
    } cases[] = {
        {no_await, DS_ERR_GRAPH, "no call is awaited"},
        {await_in_block, DS_ERR_GRAPH, "instruction 2: a call is awaited within a block"},
        {open_block, DS_ERR_GRAPH, "instruction 1: a block without end"},
        {lone_end, DS_ERR_GRAPH, "an end of no block"},
        {no_such_phase, DS_ERR_GRAPH, "a phase that the plan does not have"},
        {no_such_slot, DS_ERR_GRAPH, "a plan or a slot"},
        {twice_forward, DS_ERR_GRAPH, "instruction 3: a slot's forward and backward"},
        {backward_of_another_slot, DS_ERR_GRAPH, "instruction 2: a slot's forward and backward"},
        {left_over, DS_ERR_GRAPH, "a slot is left"},
        {side_is_run, DS_ERR_GRAPH, "a side phase is started"},
        {too_long, DS_ERR_LIMIT, "more than 65536 instructions"},
        {no_such_message, DS_ERR_GRAPH, "instruction 1: a message or a slot"},
        {message_of_no_slot, DS_ERR_GRAPH, "instruction 1: a message or a slot"},
        {message_of_no_buffer, DS_ERR_GRAPH, "instruction 3: a message or a slot"},
        {sent_twice, DS_ERR_GRAPH, "instruction 4: a slot is sent again"},
        {on_its_way, DS_ERR_GRAPH, "a message is left on its way"},
    };
    static const dsi_program_message messages[] = {{"x", 1, 0}, {"y", 3, 3}};
    const dsi_plan plan = make_plan();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        dsi_program p = {.name = "bad",
                         .plans = {{"plan", &plan}},
                         .n_plans = 1,
                         .n_slots = 2,
                         .messages = messages,
                         .n_messages = 2};
        cases[i].make(&p);
        CHECK_FAILS(ctx, dsi_program_check(ctx, &p), cases[i].status, cases[i].says);
        dsi_program_free(&p);
    }
}

static void text(void **state)
{
    const dsi_plan plan = make_plan();
    static const dsi_program_message messages[] = {{"x", 1, 0}, {"y", 3, 3}};
    dsi_program p = {.name = "two",
                     .plans = {{"train", &plan}},
                     .n_plans = 1,
                     .n_slots = 2,
                     .messages = messages,
                     .n_messages = 2};
    dsi_buf text = dsi_buf_make(1 << 16);
    (void)state;
    dsi_program_await(&p, 0, "batch");
    dsi_program_run(&p, 0, DS_PHASE_FORWARD, 0);
    dsi_program_run(&p, 0, DS_PHASE_FORWARD, 1);
    dsi_program_run(&p, 0, DS_PHASE_BACKWARD, 0);
    dsi_program_run(&p, 0, DS_PHASE_BACKWARD, 1);
    dsi_program_await_once(&p, 1, "step");
    dsi_program_if(&p, &tests[0]);
    dsi_program_do(&p, &actions[1]);
    dsi_program_if(&p, &tests[2]);
    dsi_program_start(&p, 0);
    dsi_program_end(&p);
    dsi_program_end(&p);
    dsi_program_send(&p, 0, 1);
    dsi_program_receive(&p, 1, 0);
    dsi_program_sent(&p, 0, 1);
    CHECK_OK(ctx, dsi_program_check(ctx, &p));
    dsi_program_print(&p, &text);
    assert_string_equal(dsi_buf_text(&text), "program two, 2 slots\n"
                                             "   0  await batch\n"
                                             "   1    run   train forward, slot 0\n"
                                             "   2    run   train forward, slot 1\n"
                                             "   3    run   train backward, slot 0\n"
                                             "   4    run   train backward, slot 1\n"
                                             "   5  await step, once\n"
                                             "   6    if    x\n"
                                             "   7      do    b\n"
                                             "   8      if    z\n"
                                             "   9        start train rest\n"
                                             "  12    send  x to stage 1, slot 1\n"
                                             "  13    recv  y from stage 3, slot 0\n"
                                             "  14    sent  x to stage 1, slot 1\n");
    dsi_buf_free(&text);
    dsi_program_free(&p);
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
    const struct CMUnitTest all[] = {
        cmocka_unit_test(random_programs),
        cmocka_unit_test(a_call_that_is_over),
        cmocka_unit_test(broken_programs),
        cmocka_unit_test(text),
    };
    return cmocka_run_group_tests(all, setup, teardown);
}
