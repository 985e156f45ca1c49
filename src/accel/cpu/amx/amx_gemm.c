/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products in bf16 on AMX. See amx_plan.h for the cut, amx_tile.h for the inner loop.
 *
 * Each lane claims blocks of C one after another. While it computes one chunk of a block, side jobs
 * pack the next chunk of B (of the same block, or of the block that it claimed ahead) and store the
 * 32×32 results just finished.
 */
#include "accel/cpu/amx/amx_pack.h"
#include "accel/cpu/amx/amx_plan.h"
#include "accel/cpu/amx/amx_store.h"
#include "accel/cpu/gemm_impl.h"
#include "base/ticket.h"

typedef struct gemm_run {
    const dsi_gemm_params *p;   /* what the tiles compute */
    const dsi_gemm_params *out; /* what was asked for: epilogue and C */
    bool swapped;               /* p computes Cᵀ = Bᵀ·Aᵀ */
    amx_plan plan;
    char *work;
    dsi_ticket blocks;
} gemm_run;

/* A block of C at one chunk of k. */
typedef struct item {
    int64_t m0, m1; /* panels */
    int64_t n0, n1;
    int64_t chunk;
    uint32_t block; /* >= number of blocks: none left */
} item;

typedef struct lane {
    gemm_run *run;
    char *b_buffer[2];
    char *a_panel[2];
    int a_now;
    int64_t ahead_m, ahead_step; /* the panel that pack_a makes ready */
    float *sums;
    float *stage[2];
    int stage_now;
    float *pending;               /* where the sums still in the tiles go; NULL: nowhere */
    bool pending_is_last;         /* they are results, of the block at */
    int64_t pending_m, pending_n; /* these panels */
    int b_now;
    amx_store store;
    amx_pack_b pack;
    amx_pack_a pack_a;
    bool key_valid;
    int64_t key_n, key_chunk; /* what b_buffer[b_now] holds */
} lane;

/* ---- items ------------------------------------------------------------------------------------
 */
static int64_t min_i64(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static uint32_t n_blocks(const amx_plan *plan)
{
    return (uint32_t)(plan->n_mblocks * plan->n_nblocks);
}

static item claim(gemm_run *run)
{
    const amx_plan *plan = &run->plan;
    const uint32_t block = dsi_ticket_take(&run->blocks);
    const int64_t nb = block / plan->n_mblocks;
    const int64_t mb = block % plan->n_mblocks;
    return (item){
        .m0 = mb * plan->mb,
        .m1 = min_i64((mb + 1) * plan->mb, plan->m_panels),
        .n0 = nb * plan->nb,
        .n1 = min_i64((nb + 1) * plan->nb, plan->n_panels),
        .block = block,
    };
}

static item next_item(gemm_run *run, const item *now)
{
    if (now->chunk + 1 < run->plan.n_chunks) {
        item next = *now;
        ++next.chunk;
        return next;
    }
    return claim(run);
}

static int64_t steps_of_chunk(const amx_plan *plan, int64_t chunk)
{
    return min_i64(plan->chunk_steps, plan->n_steps - chunk * plan->chunk_steps);
}

/* Starts packing the chunk of B that x needs into the buffer not in use; nothing to do when B came
 * packed, or when the buffer in use already holds it. Returns whether the buffers swap at x. */
static bool start_packing(lane *l, const item *x, int64_t n_steps)
{
    const gemm_run *run = l->run;
    if (run->p->b_packed || x->block >= n_blocks(&run->plan) ||
        (l->key_valid && l->key_n == x->n0 && l->key_chunk == x->chunk)) {
        return false;
    }
    amx_pack_b_init(&l->pack, run->p, x->chunk * run->plan.chunk_steps,
                    steps_of_chunk(&run->plan, x->chunk), x->n0, x->n1 - x->n0,
                    run->plan.block_steps, l->b_buffer[l->b_now ^ 1]);
    amx_side_start(&l->pack.side, amx_pack_b_units(&l->pack), n_steps);
    return true;
}

static void swap_b(lane *l, const item *x)
{
    amx_side_drain(&l->pack.side);
    l->b_now ^= 1;
    l->key_valid = true;
    l->key_n = x->n0;
    l->key_chunk = x->chunk;
}

/* ---- one item ---------------------------------------------------------------------------------
 */
/* One panel of A against all panels of B in one block of k. */
typedef struct sweep {
    const item *x;
    int64_t m;     /* panel of A */
    int64_t step0; /* of k */
    int64_t n_steps;
    int64_t chunk_step; /* step0 counted from the start of the chunk */
    bool first, last;   /* block of k */
} sweep;

/* Whether tiles can be loaded from panel m of the matrix itself. */
static bool is_direct(const gemm_run *run, int64_t m)
{
    return run->plan.a_mode == AMX_A_DIRECT && (m + 1) * AMX_PANEL <= run->p->m;
}

/* Makes the copy of this panel the current one: made ahead, or now. */
static void take_panel(lane *l, const sweep *s)
{
    if (l->ahead_m != s->m || l->ahead_step != s->step0) {
        amx_pack_a_init(&l->pack_a, l->run->p, s->m * AMX_PANEL, s->step0, s->n_steps,
                        l->a_panel[l->a_now ^ 1]);
        amx_side_start(&l->pack_a.side, AMX_PANEL, 1);
    }
    amx_side_drain(&l->pack_a.side);
    l->a_now ^= 1;
}

static void point_at_a(lane *l, const sweep *s, amx_block *block)
{
    const gemm_run *run = l->run;
    const dsi_gemm_params *p = run->p;
    if (is_direct(run, s->m)) {
        const uint16_t *a = (const uint16_t *)p->a + s->m * AMX_PANEL * p->lda + s->step0 * AMX_K;
        block->a0 = (const char *)a;
        block->a1 = (const char *)(a + AMX_ROWS * p->lda);
        block->a_stride = (size_t)p->lda * 2;
        block->a_step = AMX_K * 2;
        return;
    }
    if (run->plan.a_mode == AMX_A_PACKED) {
        block->a0 = run->work + (size_t)(s->m * run->plan.n_steps + s->step0) * AMX_STEP_BYTES;
    } else {
        take_panel(l, s);
        block->a0 = l->a_panel[l->a_now];
    }
    block->a1 = block->a0 + AMX_TILE_BYTES;
    block->a_stride = 64;
    block->a_step = AMX_STEP_BYTES;
}

/* Begins to make ready what the sweep after s reads of A. */
static void start_packing_a(lane *l, const sweep *s, int64_t n_steps)
{
    const gemm_run *run = l->run;
    const amx_plan *plan = &run->plan;
    int64_t m = s->m;
    int64_t step = s->step0 + s->n_steps;
    const int64_t chunk0 = s->step0 - s->chunk_step;
    const int64_t chunk_end = chunk0 + steps_of_chunk(plan, s->x->chunk);
    if (step >= chunk_end) {
        step = chunk0;
        ++m;
    }
    if (m >= s->x->m1) { /* the next chunk of this block, if any */
        m = s->x->m0;
        step = chunk_end;
    }
    l->ahead_m = -1;
    amx_side_start(&l->pack_a.side, 0, 1);
    if (plan->a_mode == AMX_A_PACKED || step >= plan->n_steps) {
        return;
    }
    const bool direct = is_direct(run, m);
    amx_pack_a_init(&l->pack_a, run->p, m * AMX_PANEL, step,
                    min_i64(plan->block_steps, plan->n_steps - step),
                    direct ? NULL : l->a_panel[l->a_now ^ 1]);
    amx_side_start(&l->pack_a.side, AMX_PANEL, n_steps);
    if (!direct) {
        l->ahead_m = m;
        l->ahead_step = step;
    }
}

static float *sums_at(const lane *l, const sweep *s, int64_t n)
{
    const int64_t row = l->run->plan.n_chunks == 1 ? 0 : s->m - s->x->m0;
    return l->sums + (row * l->run->plan.nb + (n - s->x->n0)) * AMX_STAGE;
}

static const char *b_at(const lane *l, const sweep *s, int64_t n)
{
    const gemm_run *run = l->run;
    if (run->p->b_packed) {
        return (const char *)run->p->b +
               amx_b_offset(run->plan.n_panels, run->plan.n_steps, run->plan.n_steps, n, s->step0);
    }
    return l->b_buffer[l->b_now] + amx_b_offset(s->x->n1 - s->x->n0, run->plan.block_steps,
                                                steps_of_chunk(&run->plan, s->x->chunk),
                                                n - s->x->n0, s->chunk_step);
}

/* Begins to store the results that the next products push out of the tiles. */
static void start_storing(lane *l, int64_t n_steps)
{
    if (l->pending == NULL || !l->pending_is_last) {
        return;
    }
    amx_store_start(&l->store, l->pending, l->pending_m, l->pending_n, n_steps);
}

static void set_pending(lane *l, const sweep *s, int64_t n)
{
    l->pending_is_last = s->last;
    l->pending_m = s->m;
    l->pending_n = n;
    l->pending = s->last ? l->stage[l->stage_now] : sums_at(l, s, n);
    if (s->last) {
        l->stage_now ^= 1;
    }
}

static void multiply(const dsi_gemm_params *p, const amx_block *block, int64_t m, int64_t n)
{
    const bool two_rows = p->m - m * AMX_PANEL > AMX_ROWS;
    const bool two_columns = p->n - n * AMX_PANEL > AMX_ROWS;
    if (two_rows && two_columns) {
        amx_multiply(block, true, true);
    } else if (two_rows) {
        amx_multiply(block, true, false);
    } else if (two_columns) {
        amx_multiply(block, false, true);
    } else {
        amx_multiply(block, false, false);
    }
}

static void run_sweep(lane *l, const sweep *s)
{
    const item *x = s->x;
    amx_block block = {
        .n_steps = s->n_steps,
        .sides = {&l->store.side, &l->pack.side, &l->pack_a.side},
    };
    point_at_a(l, s, &block);
    start_packing_a(l, s, s->n_steps * (x->n1 - x->n0));
    for (int64_t n = x->n0; n < x->n1; ++n) {
        block.b = b_at(l, s, n);
        block.sum_in = s->first ? NULL : sums_at(l, s, n);
        block.pending = l->pending;
        start_storing(l, s->n_steps);
        multiply(l->run->p, &block, s->m, n);
        amx_side_drain(&l->store.side);
        set_pending(l, s, n);
    }
}

static void run_item(lane *l, const item *x)
{
    const amx_plan *plan = &l->run->plan;
    const int64_t chunk0 = x->chunk * plan->chunk_steps;
    const int64_t chunk_steps = steps_of_chunk(plan, x->chunk);
    for (int64_t m = x->m0; m < x->m1; ++m) {
        for (int64_t at = 0; at < chunk_steps; at += plan->block_steps) {
            const sweep s = {
                .x = x,
                .m = m,
                .step0 = chunk0 + at,
                .n_steps = min_i64(plan->block_steps, chunk_steps - at),
                .chunk_step = at,
                .first = chunk0 + at == 0,
                .last = chunk0 + at + plan->block_steps >= plan->n_steps,
            };
            run_sweep(l, &s);
        }
    }
}

static lane make_lane(gemm_run *run, uint32_t index)
{
    const amx_plan *plan = &run->plan;
    char *base = run->work + plan->a_bytes + plan->all_b_bytes + index * plan->lane_bytes;
    lane l = {.run = run};
    l.stage[0] = (float *)(void *)base;
    l.stage[1] = l.stage[0] + AMX_STAGE;
    base += 2 * AMX_STAGE * sizeof(float);
    l.sums = (float *)(void *)base;
    base += plan->sums_bytes;
    l.a_panel[0] = base;
    l.a_panel[1] = base + plan->panel_bytes;
    base += 2 * plan->panel_bytes;
    l.ahead_m = -1;
    l.b_buffer[0] = base;
    l.b_buffer[1] = base + plan->b_bytes;
    amx_store_init(&l.store, run->out, run->swapped);
    return l;
}

static void lane_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    gemm_run *run = arg;
    const uint32_t end = n_blocks(&run->plan);
    lane l = make_lane(run, task);
    item now = claim(run);
    if (now.block >= end) {
        return;
    }
    if (start_packing(&l, &now, 1)) {
        swap_b(&l, &now);
    }
    amx_begin();
    while (now.block < end) {
        const item next = next_item(run, &now);
        const int64_t steps =
            (now.m1 - now.m0) * (now.n1 - now.n0) * steps_of_chunk(&run->plan, now.chunk);
        const bool swap = start_packing(&l, &next, steps);
        run_item(&l, &now);
        if (swap) {
            swap_b(&l, &next);
        }
        now = next;
    }
    amx_leave(l.pending);
    amx_end();
    start_storing(&l, 1);
    amx_side_drain(&l.store.side);
}

/* ---- A packed before everything ----------------------------------------------------------------
 */
enum { PANELS_PER_TASK = 8 };

static void pack_a_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    const gemm_run *run = arg;
    const amx_plan *plan = &run->plan;
    const int64_t groups = (plan->m_panels + PANELS_PER_TASK - 1) / PANELS_PER_TASK;
    const int64_t panel0 = task % groups * PANELS_PER_TASK;
    amx_pack_a_columns(run->p, task / groups, panel0,
                       min_i64(panel0 + PANELS_PER_TASK, plan->m_panels),
                       (size_t)plan->n_steps * AMX_STEP_BYTES, run->work);
}

static bool supports(const dsi_gemm_params *p)
{
    return p->a_dtype == DS_DTYPE_BF16 && p->b_dtype == DS_DTYPE_BF16 &&
           p->k > 0; /* a single row too: tiles add in another order than vectors do */
}

/* Both operands stored with k outermost: that one must be transposed which the tiles take as A, so
 * let it be the smaller. Returns whether it is B: then *used computes Cᵀ. */
static bool orient(const dsi_gemm_params *p, dsi_gemm_params *used)
{
    *used = *p;
    if (!p->a_transposed || p->b_transposed || p->b_packed || p->m <= p->n) {
        return false;
    }
    used->m = p->n;
    used->n = p->m;
    used->a = p->b;
    used->lda = p->ldb;
    used->b = p->a;
    used->ldb = p->lda;
    return true;
}

static size_t work_bytes(const dsi_gemm_params *p)
{
    dsi_gemm_params used;
    amx_plan plan;
    (void)orient(p, &used);
    amx_plan_make(&used, &plan);
    return amx_plan_bytes(&plan);
}

/* ---- B packed for several products --------------------------------------------------------------
 */
static size_t pack_bytes(const dsi_gemm_params *p)
{
    const int64_t panels = (p->n + AMX_PANEL - 1) / AMX_PANEL;
    return (size_t)(panels * ((p->k + AMX_K - 1) / AMX_K)) * AMX_STEP_BYTES;
}

typedef struct pack_run {
    const dsi_gemm_params *p;
    char *out;
} pack_run;

static void pack_b_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    const pack_run *run = arg;
    const int64_t steps = (run->p->k + AMX_K - 1) / AMX_K;
    amx_pack_b job;
    amx_pack_b_init(&job, run->p, 0, steps, task, 1, steps,
                    run->out + (size_t)task * (size_t)steps * AMX_STEP_BYTES);
    amx_side_start(&job.side, amx_pack_b_units(&job), 1);
    amx_side_drain(&job.side);
}

static void pack(dsi_pool *pool, const dsi_gemm_params *p, void *packed)
{
    pack_run run = {.p = p, .out = packed};
    dsi_pool_run(pool, pack_b_task, &run, (uint32_t)((p->n + AMX_PANEL - 1) / AMX_PANEL));
}

static void run_gemm(dsi_pool *pool, const dsi_gemm_params *p, void *work)
{
    dsi_gemm_params used;
    gemm_run run = {.p = &used, .out = p, .work = work};
    run.swapped = orient(p, &used);
    amx_plan_make(&used, &run.plan);
    dsi_ticket_reset(&run.blocks);
    if (run.plan.a_mode == AMX_A_PACKED) {
        const int64_t groups = (run.plan.m_panels + PANELS_PER_TASK - 1) / PANELS_PER_TASK;
        dsi_pool_run(pool, pack_a_task, &run, (uint32_t)(groups * run.plan.n_steps));
    }
    if (run.plan.pack_b_first) {
        char *packed = run.work + run.plan.a_bytes;
        pack(pool, &used, packed);
        used.b = packed;
        used.b_packed = true;
    }
    dsi_pool_run(pool, lane_task, &run, run.plan.n_lanes);
}

const dsi_gemm_impl dsi_gemm_amx = {
    .name = "amx",
    .needs = DSI_NEEDS_AMX,
    .supports = supports,
    .work_bytes = work_bytes,
    .run = run_gemm,
    .pack_bytes = pack_bytes,
    .pack = pack,
};
