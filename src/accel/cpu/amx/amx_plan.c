/* SPDX-License-Identifier: Apache-2.0 */
/* How one product is cut. See amx_plan.h. */
#include "accel/cpu/amx/amx_plan.h"
#include "accel/cpu/amx/amx_tile.h"

/* In panels and steps; see docs/internals/gemm.md for how they were found. */
enum {
    BLOCK_STEPS = 8,  /* 16 KiB of A in the first-level cache */
    WHOLE_STEPS = 32, /* up to this k is one chunk */
    LONG_CHUNK = 16,  /* steps of a chunk beyond that */
    BLOCK_M = 8,      /* with one chunk */
    BLOCK_N = 16,
    LONG_BLOCK_M = 12, /* with several: partial sums stay in the second-level cache */
    LONG_BLOCK_N = 12,
    BLOCKS_A_LANE = 2 /* at least, to even out the lanes */
};

static int64_t ceil_div(int64_t x, int64_t y)
{
    return (x + y - 1) / y;
}

static int64_t max_i64(int64_t x, int64_t y)
{
    return x > y ? x : y;
}

/* The largest number of equal parts <= limit each. */
static int64_t even_part(int64_t n, int64_t limit)
{
    return n == 0 ? 1 : ceil_div(n, ceil_div(n, limit));
}

/* Rows of A at this stride spread over enough sets of the first-level cache to stay there. */
static bool stride_spreads(int64_t lda)
{
    const int64_t lines = lda * 2 / 64;
    return lda * 2 % 64 == 0 && lines % 16 != 0;
}

static amx_a_mode choose_a_mode(const dsi_gemm_params *p)
{
    if (p->a_transposed) {
        return AMX_A_PACKED;
    }
    return p->k % AMX_K == 0 && stride_spreads(p->lda) ? AMX_A_DIRECT : AMX_A_ROWS;
}

static void cut_k(const dsi_gemm_params *p, amx_plan *plan)
{
    plan->n_steps = max_i64(1, ceil_div(p->k, AMX_K));
    plan->block_steps = even_part(plan->n_steps, BLOCK_STEPS);
    plan->chunk_steps = plan->n_steps;
    if (plan->n_steps > WHOLE_STEPS) {
        plan->chunk_steps = max_i64(1, LONG_CHUNK / plan->block_steps) * plan->block_steps;
    }
    plan->n_chunks = ceil_div(plan->n_steps, plan->chunk_steps);
}

static void cut_c(const dsi_gemm_params *p, amx_plan *plan)
{
    plan->m_panels = ceil_div(p->m, AMX_PANEL);
    plan->n_panels = ceil_div(p->n, AMX_PANEL);
    plan->mb = even_part(plan->m_panels, plan->n_chunks == 1 ? BLOCK_M : LONG_BLOCK_M);
    plan->nb = even_part(plan->n_panels, plan->n_chunks == 1 ? BLOCK_N : LONG_BLOCK_N);
    const int64_t want = plan->n_lanes == 1 ? 1 : BLOCKS_A_LANE * (int64_t)plan->n_lanes;
    while (ceil_div(plan->m_panels, plan->mb) * ceil_div(plan->n_panels, plan->nb) < want &&
           (plan->mb > 2 || plan->nb > 4)) {
        if (plan->mb >= plan->nb) {
            plan->mb = ceil_div(plan->mb, 2);
        } else {
            plan->nb = ceil_div(plan->nb, 2);
        }
    }
    plan->n_mblocks = ceil_div(plan->m_panels, plan->mb);
    plan->n_nblocks = ceil_div(plan->n_panels, plan->nb);
}

void amx_plan_make(const dsi_gemm_params *p, amx_plan *plan_out)
{
    amx_plan plan = {.n_lanes = p->n_threads > 0 ? p->n_threads : 1};
    cut_k(p, &plan);
    cut_c(p, &plan);
    plan.a_mode = choose_a_mode(p);
    plan.a_bytes =
        plan.a_mode == AMX_A_PACKED ? (size_t)(plan.m_panels * plan.n_steps) * AMX_STEP_BYTES : 0;
    plan.pack_b_first = !p->b_packed && plan.n_chunks > 1 && plan.n_mblocks > 2;
    plan.all_b_bytes =
        plan.pack_b_first ? (size_t)(plan.n_panels * plan.n_steps) * AMX_STEP_BYTES : 0;
    plan.b_bytes = p->b_packed || plan.pack_b_first
                       ? 0
                       : (size_t)(plan.nb * plan.chunk_steps) * AMX_STEP_BYTES;
    plan.panel_bytes = plan.a_mode == AMX_A_PACKED ? 0 : (size_t)plan.block_steps * AMX_STEP_BYTES;
    const int64_t sums = plan.n_steps == plan.block_steps ? 0
                         : plan.n_chunks == 1             ? plan.nb
                                                          : plan.mb * plan.nb;
    plan.sums_bytes = (size_t)sums * AMX_STAGE * sizeof(float);
    plan.lane_bytes =
        2 * plan.b_bytes + 2 * plan.panel_bytes + plan.sums_bytes + 2 * AMX_STAGE * sizeof(float);
    *plan_out = plan;
}

size_t amx_plan_bytes(const amx_plan *plan)
{
    return plan->a_bytes + plan->all_b_bytes + plan->n_lanes * plan->lane_bytes;
}
