/* Matrix products in bf16 on AMX. See amx_plan.h for the cut, amx_tile.h for the inner loop.
 *
 * Each lane claims blocks of C one after another. While it computes one chunk of a block, side jobs
 * pack the next chunk of B (of the same block, or of the block that it claimed ahead), fetch the
 * next panel of A, and store the 32×32 results just finished.
 */
#include "accel/cpu/amx/amx_pack.h"
#include "accel/cpu/amx/amx_plan.h"
#include "accel/cpu/gemm_impl.h"
#include "accel/cpu/simd/gemm_finish.h"
#include "base/ticket.h"

typedef struct gemm_run {
    const dsi_gemm_params *p;
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

/* ---- side jobs --------------------------------------------------------------------------------
 */
typedef struct store_job { /* a unit is one row of a block of C */
    amx_side side;
    const dsi_gemm_params *p;
    const float *sums;
    int64_t row, column;
} store_job;

typedef struct fetch_job { /* a unit is one line */
    amx_side side;
    const char *base;
    int64_t lines; /* in a row */
    size_t stride; /* bytes */
} fetch_job;

typedef struct lane {
    gemm_run *run;
    char *b_buffer[2];
    char *a_panel;
    float *sums;
    float *stage[2];
    int stage_now;
    int b_now;
    store_job store;
    amx_pack_b pack;
    fetch_job fetch_a; /* next panel of A, into the second level */
    fetch_job fetch_c; /* lines of C about to be written */
    fetch_job fetch_s; /* partial sums needed next */
    bool key_valid;
    int64_t key_n, key_chunk; /* what b_buffer[b_now] holds */
} lane;

static void store_full_row_bf16(const dsi_gemm_params *p, const float *left, int64_t i, int64_t j)
{
    const vf x = gemm_value(p, DS_DTYPE_BF16, vf_load(left), i, j, VF_WIDTH);
    const vf y = gemm_value(p, DS_DTYPE_BF16, vf_load(left + 256), i, j + 16, VF_WIDTH);
    _mm512_storeu_si512((uint16_t *)p->c + i * p->ldc + j, (__m512i)_mm512_cvtne2ps_pbh(y, x));
}

static void run_store(amx_side *side, int64_t first, int64_t end)
{
    const store_job *job = (const store_job *)side;
    const dsi_gemm_params *p = job->p;
    const int64_t columns = p->n - job->column;
    for (int64_t r = first; r < end; ++r) {
        const float *left = job->sums + (r >> 4) * 512 + (r & 15) * 16;
        const int64_t i = job->row + r;
        if (columns >= 32 && p->c_dtype == DS_DTYPE_BF16) {
            store_full_row_bf16(p, left, i, job->column);
            continue;
        }
        gemm_finish(p, vf_load(left), i, job->column, columns < 16 ? (size_t)columns : 16);
        if (columns > 16) {
            gemm_finish(p, vf_load(left + 256), i, job->column + 16,
                        columns < 32 ? (size_t)columns - 16 : 16);
        }
    }
}

static void run_fetch_l2(amx_side *side, int64_t first, int64_t end)
{
    const fetch_job *job = (const fetch_job *)side;
    for (int64_t unit = first; unit < end; ++unit) {
        _mm_prefetch(job->base + (size_t)(unit / job->lines) * job->stride + unit % job->lines * 64,
                     _MM_HINT_T1);
    }
}

static void run_fetch_l1(amx_side *side, int64_t first, int64_t end)
{
    const fetch_job *job = (const fetch_job *)side;
    for (int64_t unit = first; unit < end; ++unit) {
        _mm_prefetch(job->base + unit * 64, _MM_HINT_T0);
    }
}

static void run_fetch_write(amx_side *side, int64_t first, int64_t end)
{
    const fetch_job *job = (const fetch_job *)side;
    for (int64_t unit = first; unit < end; ++unit) {
        const char *line =
            job->base + (size_t)(unit / job->lines) * job->stride + unit % job->lines * 64;
        __asm__ volatile("prefetchw (%0)" : : "r"(line));
    }
}

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

static void point_at_a(lane *l, const sweep *s, amx_block *block)
{
    const gemm_run *run = l->run;
    const dsi_gemm_params *p = run->p;
    if (run->plan.a_mode == AMX_A_DIRECT && (s->m + 1) * AMX_PANEL <= p->m) {
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
        amx_pack_a_rows(p, s->m * AMX_PANEL, s->step0, s->n_steps, l->a_panel);
        block->a0 = l->a_panel;
    }
    block->a1 = block->a0 + AMX_TILE_BYTES;
    block->a_stride = 64;
    block->a_step = AMX_STEP_BYTES;
}

/* Fetches what the sweep after s reads of A. */
static void start_fetching_a(lane *l, const sweep *s, int64_t n_steps)
{
    const gemm_run *run = l->run;
    const dsi_gemm_params *p = run->p;
    int64_t m = s->m;
    int64_t step = s->step0 + s->n_steps;
    const int64_t chunk_end = s->step0 - s->chunk_step + steps_of_chunk(&run->plan, s->x->chunk);
    if (step >= chunk_end) {
        step = s->step0 - s->chunk_step;
        ++m;
    }
    if (m >= s->x->m1) { /* the next item's, when it is the next chunk of this block */
        m = s->x->m0;
        step = chunk_end;
        if (step >= run->plan.n_steps) {
            amx_side_start(&l->fetch_a.side, 0, 1);
            return;
        }
    }
    const int64_t length = min_i64(run->plan.block_steps, run->plan.n_steps - step);
    if (run->plan.a_mode == AMX_A_PACKED) {
        l->fetch_a.base = run->work + (size_t)(m * run->plan.n_steps + step) * AMX_STEP_BYTES;
        l->fetch_a.lines = length * (AMX_STEP_BYTES / 64);
        l->fetch_a.stride = 0;
        amx_side_start(&l->fetch_a.side, l->fetch_a.lines, n_steps);
        return;
    }
    l->fetch_a.base =
        (const char *)((const uint16_t *)p->a + m * AMX_PANEL * p->lda + step * AMX_K);
    l->fetch_a.lines = length;
    l->fetch_a.stride = (size_t)p->lda * 2;
    amx_side_start(&l->fetch_a.side, length * min_i64(AMX_PANEL, p->m - m * AMX_PANEL), n_steps);
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

static void start_fetching_c(lane *l, const sweep *s, int64_t n)
{
    const dsi_gemm_params *p = l->run->p;
    const size_t bytes = p->c_dtype == DS_DTYPE_F32 ? 4 : 2;
    const int64_t row = s->m * AMX_PANEL;
    const int64_t column = n * AMX_PANEL;
    l->fetch_c.base = (const char *)p->c + (size_t)(row * p->ldc + column) * bytes;
    l->fetch_c.stride = (size_t)p->ldc * bytes;
    l->fetch_c.lines = bytes == 4 ? 2 : 1;
    amx_side_start(&l->fetch_c.side, l->fetch_c.lines * min_i64(AMX_PANEL, p->m - row), s->n_steps);
}

static void start_storing(lane *l, const sweep *s, int64_t n)
{
    const dsi_gemm_params *p = l->run->p;
    l->store.sums = l->stage[l->stage_now];
    l->store.row = s->m * AMX_PANEL;
    l->store.column = n * AMX_PANEL;
    amx_side_start(&l->store.side, min_i64(AMX_PANEL, p->m - l->store.row), s->n_steps);
    l->stage_now ^= 1;
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
        .sides = {&l->store.side, &l->pack.side, &l->fetch_a.side, &l->fetch_c.side,
                  &l->fetch_s.side},
    };
    point_at_a(l, s, &block);
    start_fetching_a(l, s, s->n_steps * (x->n1 - x->n0));
    for (int64_t n = x->n0; n < x->n1; ++n) {
        block.b = b_at(l, s, n);
        block.b_next = b_at(l, s, n + 1 < x->n1 ? n + 1 : x->n0);
        block.sum_in = s->first ? NULL : sums_at(l, s, n);
        block.sum_out = s->last ? l->stage[l->stage_now] : sums_at(l, s, n);
        if (s->last) {
            start_fetching_c(l, s, n);
        }
        if (!s->first && n + 1 < x->n1) {
            l->fetch_s.base = (const char *)sums_at(l, s, n + 1);
            amx_side_start(&l->fetch_s.side, AMX_STAGE * 4 / 64, s->n_steps);
        }
        multiply(l->run->p, &block, s->m, n);
        amx_side_drain(&l->store.side);
        if (s->last) {
            start_storing(l, s, n);
        }
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
    char *base = run->work + plan->a_bytes + index * plan->lane_bytes;
    lane l = {.run = run};
    l.stage[0] = (float *)(void *)base;
    l.stage[1] = l.stage[0] + AMX_STAGE;
    base += 2 * AMX_STAGE * sizeof(float);
    l.sums = (float *)(void *)base;
    base += plan->sums_bytes;
    l.a_panel = base;
    base += plan->panel_bytes;
    l.b_buffer[0] = base;
    l.b_buffer[1] = base + plan->b_bytes;
    l.store = (store_job){.side = {.run = run_store}, .p = run->p};
    l.fetch_a.side.run = run_fetch_l2;
    l.fetch_c.side.run = run_fetch_write;
    l.fetch_s.side.run = run_fetch_l1;
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
    amx_end();
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

static void run_gemm(dsi_pool *pool, const dsi_gemm_params *p, void *work)
{
    gemm_run run = {.p = p, .work = work};
    amx_plan_make(p, &run.plan);
    dsi_ticket_reset(&run.blocks);
    if (run.plan.a_mode == AMX_A_PACKED) {
        const int64_t groups = (run.plan.m_panels + PANELS_PER_TASK - 1) / PANELS_PER_TASK;
        dsi_pool_run(pool, pack_a_task, &run, (uint32_t)(groups * run.plan.n_steps));
    }
    dsi_pool_run(pool, lane_task, &run, run.plan.n_lanes);
}

static bool supports(const dsi_gemm_params *p)
{
    return p->a_dtype == DS_DTYPE_BF16 && p->b_dtype == DS_DTYPE_BF16 && p->k > 0 &&
           (p->m > 4 || p->b_packed); /* fewer rows are for gemm_vector.c */
}

static size_t work_bytes(const dsi_gemm_params *p)
{
    amx_plan plan;
    amx_plan_make(p, &plan);
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

const dsi_gemm_impl dsi_gemm_amx = {
    .name = "amx",
    .isa = DS_ISA_AMX,
    .supports = supports,
    .work_bytes = work_bytes,
    .run = run_gemm,
    .pack_bytes = pack_bytes,
    .pack = pack,
};
