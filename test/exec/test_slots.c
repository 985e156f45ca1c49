/* SPDX-License-Identifier: Apache-2.0 */
/* Slots: micro-batches in flight. Random schedules of a program over K slots give the losses and
 * the accumulated gradients, bit for bit, of one micro-batch after the other, whose backward phases
 * run in the same order. The checker finds what lies in a slot and should not.
 * labels: slow */
#include "accel/cpu/cpu_features.h"
#include "common/check.h"
#include "common/graph_run.h"
#include "pipe/program.h"

#include <stdlib.h>
#include <string.h>

enum { B = 2, T = 8, N = B * T, MICRO = 6, SCHEDULES = 12 };

static ds_ctx *ctx;

static uint32_t next(uint64_t *seed)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(*seed >> 33);
}

typedef struct inputs {
    int32_t tokens[MICRO][N], targets[MICRO][N], positions[N], first[N];
} inputs;

static inputs make_inputs(uint64_t seed)
{
    inputs in;
    for (int m = 0; m < MICRO; ++m) {
        for (int i = 0; i < N; ++i) {
            in.tokens[m][i] = (int32_t)(next(&seed) % 40);
            in.targets[m][i] = (int32_t)(next(&seed) % 40);
            in.positions[i] = i % T;
            in.first[i] = 0;
        }
    }
    return in;
}

/* ---- a client: micro-batches enter and leave in order ---- */

typedef struct client {
    graph_run run;
    const inputs *in;
    uint32_t entered, left; /* micro-batches */
    float loss[MICRO];
} client;

static ds_status put(client *c, const char *name, const int32_t *data)
{
    const ds_cell cell = ds_cells_find(c->run.cells, DS_CELL_INPUT, name);
    return dsi_exec_write(c->run.exec, cell, 0, data, N * sizeof *data);
}

static ds_status run_phase(void *user, const dsi_instr *instr)
{
    client *c = user;
    dsi_exec_set_slot(c->run.exec, instr->slot);
    if (instr->phase == DS_PHASE_FORWARD) {
        const uint32_t m = c->entered++;
        DS_TRY(put(c, "train/input_ids", c->in->tokens[m]));
        DS_TRY(put(c, "train/targets", c->in->targets[m]));
        DS_TRY(put(c, "train/positions", c->in->positions));
        DS_TRY(put(c, "train/first", c->in->first));
    }
    DS_TRY(dsi_exec_run(c->run.exec, c->run.id, instr->phase));
    if (instr->phase == DS_PHASE_BACKWARD) { /* others have run since this one's forward phase */
        double loss = 0.0;
        DS_TRY(dsi_exec_real(c->run.exec, c->run.id, "loss", &loss));
        c->loss[c->left++] = (float)loss;
    }
    return DS_OK;
}

/* Forward phases in order, backward phases in order, at most k in flight; micro-batch m is in slot
 * slots[m]. */
static dsi_program make_program(const client *c, uint32_t k, uint64_t *seed)
{
    dsi_program p = {
        .name = "in flight", .plans = {{"train", c->run.plan}}, .n_plans = 1, .n_slots = k};
    uint32_t slots[MICRO];
    uint32_t entered = 0;
    uint64_t taken = 0;
    dsi_program_await(&p, 0, "batch");
    for (uint32_t left = 0; left < MICRO;) {
        const bool can = entered < MICRO && entered - left < k;
        if (can && (entered == left || next(seed) % 2 == 0)) {
            uint32_t slot = next(seed) % k;
            while ((taken >> slot & 1) != 0) {
                slot = (slot + 1) % k;
            }
            taken |= (uint64_t)1 << slot;
            slots[entered++] = slot;
            dsi_program_run(&p, 0, DS_PHASE_FORWARD, slot);
        } else {
            taken &= ~((uint64_t)1 << slots[left]);
            dsi_program_run(&p, 0, DS_PHASE_BACKWARD, slots[left++]);
        }
    }
    return p;
}

static void open(client *c, const char *folder, const inputs *in, ds_dtype dtype, uint32_t k)
{
    const ref_batch batch = {.b = B,
                             .t = T,
                             .tokens = in->tokens[0],
                             .targets = in->targets[0],
                             .positions = in->positions,
                             .first = in->first};
    const graph_run_params params = {
        .dtype = dtype, .isa = DSI_NEEDS_AMX, .n_slots = k, .accumulation = MICRO};
    memset(c, 0, sizeof *c);
    c->in = in;
    graph_run_open(&c->run, ctx, folder, &batch, &params);
}

static void run(client *c, uint32_t k, uint64_t *seed)
{
    dsi_program p = make_program(c, k, seed);
    const dsi_program_client who = {.user = c, .run = run_phase};
    dsi_program_at at = 0;
    CHECK_OK(ctx, dsi_program_check(ctx, &p));
    for (ds_cell cell = 0; cell < ds_cells_count(c->run.cells); ++cell) {
        if (ds_cells_get(c->run.cells, cell)->kind == DS_CELL_GRAD) {
            CHECK_OK(ctx, dsi_exec_clear(c->run.exec, cell));
        }
    }
    c->entered = c->left = 0;
    CHECK_OK(ctx, dsi_program_call(ctx, &p, &who, 0, &at));
    assert_true(c->entered == MICRO && c->left == MICRO);
    dsi_program_free(&p);
}

static uint32_t assert_same(const client *a, const client *b)
{
    uint32_t n = 0;
    assert_memory_equal(a->loss, b->loss, sizeof a->loss);
    for (ds_cell cell = 0; cell < ds_cells_count(a->run.cells); ++cell) {
        const ds_cell_info *info = ds_cells_get(a->run.cells, cell);
        if (info->kind == DS_CELL_GRAD) {
            assert_memory_equal(dsi_exec_host_view(a->run.exec, cell),
                                dsi_exec_host_view(b->run.exec, cell), ds_meta_bytes(info->meta));
            ++n;
        }
    }
    return n;
}

static void in_flight(void **state)
{
    static const char *const folders[] = {"parity/gpt2", "parity/llama3", "parity/qwen3"};
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16};
    uint64_t seed = 20261123;
    (void)state;
    for (size_t f = 0; f < sizeof folders / sizeof folders[0]; ++f) {
        for (size_t d = 0; d < 2; ++d) {
            const inputs in = make_inputs(next(&seed));
            client one;
            open(&one, folders[f], &in, dtypes[d], 1);
            run(&one, 1, &seed);
            assert_true(one.loss[0] > 0.0f && one.loss[0] != one.loss[1]);
            for (uint32_t k = 2; k <= 4; ++k) {
                client many;
                open(&many, folders[f], &in, dtypes[d], k);
                assert_int_equal(many.run.plan->n_slots, k);
                for (int i = 0; i < SCHEDULES; ++i) {
                    run(&many, k, &seed);
                    assert_true(assert_same(&one, &many) > 4);
                }
                graph_run_close(&many.run);
            }
            graph_run_close(&one.run);
        }
    }
}

/* ---- the checker ---- */

/* The first operand of a phase in the arena that lies in the slot, or does not. */
static dsi_ref *find(dsi_plan *plan, ds_phase phase, bool inside)
{
    for (uint32_t s = plan->phase_begin[phase]; s < plan->phase_begin[phase + 1]; ++s) {
        const dsi_step *step = &plan->steps[s];
        for (uint32_t i = 0; i < step->n_in; ++i) {
            dsi_ref *ref = &plan->refs[step->in_at + i];
            const bool there = ref->offset >= plan->slot[0].range.offset &&
                               ref->offset < plan->slot[0].range.offset + plan->slot[0].range.bytes;
            if (ref->space == DSI_SPACE_ARENA && there == inside) {
                return ref;
            }
        }
    }
    return NULL;
}

/* Two slots may lie in one place, unless both are in flight at once. */
static void break_order(dsi_plan *plan)
{
    static const dsi_slot_event one_by_one[] = {{0, 0, false}, {0, 2, false}, {0, 2, true},
                                                {0, 1, false}, {0, 1, true},  {0, 0, true}};
    dsi_slot_event events[6];
    const size_t at = plan->slot[0].at[1];
    plan->slot[0].at[1] = plan->slot[0].at[2];
    CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH, "two slots in flight at once overlap");
    memcpy(events, one_by_one, sizeof events);
    plan->slot_events = (dsi_slot_events){events, 6};
    CHECK_OK(ctx, dsi_plan_check(plan));
    events[2] = one_by_one[3];
    events[3] = one_by_one[2];
    CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH, "two slots in flight at once overlap");
    memcpy(events, one_by_one, sizeof events);
    events[3].micro = 0; /* which is taken */
    CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH, "taken twice");
    memcpy(events, one_by_one, sizeof events);
    plan->slot_events.n = 5;
    CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH, "is not given back");
    plan->slot_events = (dsi_slot_events){0};
    plan->slot[0].at[1] = at;
}

static void broken_plans(void **state)
{
    const inputs in = make_inputs(7);
    client c;
    (void)state;
    open(&c, "parity/gpt2", &in, DS_DTYPE_F32, 3);
    dsi_plan *plan = c.run.plan;
    const dsi_range slot = plan->slot[0].range;
    CHECK_OK(ctx, dsi_plan_check(plan));
    dsi_ref *norm = find(plan, c.run.own.phases.norm, false);
    assert_non_null(norm);
    const size_t work = plan->steps[0].work_bytes;
    plan->steps[0].work_offset = plan->slot[0].at[1]; /* scratch in another slot */
    plan->steps[0].work_bytes = 64;
    CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH, "memory of a slot, and other memory");
    plan->steps[0].work_bytes = work;
    plan->slot[0].range.bytes =
        dsi_swap_block_bytes(slot.bytes / 2); /* what crosses lies behind the first */
    CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH, "slot");
    plan->slot[0].range = (dsi_range){0, slot.bytes}; /* and before it */
    CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH, "slot");
    plan->slot[0].range = slot;
    plan->pool.bytes -= 1;
    CHECK_FAILS(ctx, dsi_plan_check(plan), DS_ERR_GRAPH, "slots beyond the pool");
    plan->pool.bytes += 1;
    break_order(plan);
    CHECK_OK(ctx, dsi_plan_check(plan));
    graph_run_close(&c.run);
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
        cmocka_unit_test(in_flight),
        cmocka_unit_test(broken_plans),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
