/* SPDX-License-Identifier: Apache-2.0 */
/* Packing of bf16 operands for the tile loop. See amx_pack.h. */
#include "accel/cpu/amx/amx_pack.h"
#include "accel/cpu/simd/gemm_transpose.h"

#include <string.h>

enum { PAIRS_AHEAD = 4, STEPS_AHEAD = 2 };

/* ---- B stored (k,n): a unit is one pair of rows of one panel, panels fastest ----------------- */
static inline __attribute__((always_inline)) void
pack_pair(const dsi_gemm_params *p, const uint16_t *row, int64_t k, __mmask32 columns, char *out)
{
    const __m512i even = _mm512_maskz_loadu_epi16(k < p->k ? columns : 0, row);
    const __m512i odd = _mm512_maskz_loadu_epi16(k + 1 < p->k ? columns : 0, row + p->ldb);
    _mm_prefetch((const char *)(row + 2 * PAIRS_AHEAD * p->ldb), _MM_HINT_T0);
    _mm_prefetch((const char *)(row + (2 * PAIRS_AHEAD + 1) * p->ldb), _MM_HINT_T0);
    __m512i low;
    __m512i high;
    gemm_interleave(even, odd, &low, &high);
    _mm512_store_si512(out, low);
    _mm512_store_si512(out + AMX_TILE_BYTES, high);
}

static void run_pairs(amx_side *side, int64_t first, int64_t end)
{
    amx_pack_b *job = (amx_pack_b *)side;
    const dsi_gemm_params *p = job->p;
    for (int64_t unit = first; unit < end; ++unit) {
        if (job->panel == 0) { /* a new pair of rows: where its first panel goes */
            const int64_t step = job->pair >> 4;
            job->to = job->out + (job->pair & 15) * 64 +
                      amx_b_offset(job->n_panels, job->block_steps, job->n_steps, 0, step);
            job->panel_bytes =
                amx_b_offset(job->n_panels, job->block_steps, job->n_steps, 1, step) -
                amx_b_offset(job->n_panels, job->block_steps, job->n_steps, 0, step);
        }
        const int64_t k = job->step0 * AMX_K + 2 * job->pair;
        const int64_t n = (job->panel0 + job->panel) * AMX_PANEL;
        pack_pair(p, (const uint16_t *)p->b + k * p->ldb + n, k, gemm_first(p->n - n), job->to);
        job->to += job->panel_bytes;
        if (++job->panel == job->n_panels) {
            job->panel = 0;
            ++job->pair;
        }
    }
}

/* ---- B stored (n,k): a unit is one tile, steps fastest --------------------------------------- */
static void pack_tile(const amx_pack_b *job, int64_t half, int64_t step)
{
    const dsi_gemm_params *p = job->p;
    const int64_t k = (job->step0 + step) * AMX_K;
    const int64_t n = job->panel0 * AMX_PANEL + half * AMX_ROWS;
    const __mmask32 ks = gemm_first(p->k - k);
    const uint16_t *row = (const uint16_t *)p->b + n * p->ldb + k;
    __m512i r[16];
    for (int i = 0; i < 16; ++i) {
        r[i] = _mm512_maskz_loadu_epi16(n + i < p->n ? ks : 0, row + i * p->ldb);
        _mm_prefetch((const char *)(row + i * p->ldb + STEPS_AHEAD * AMX_K), _MM_HINT_T0);
    }
    gemm_transpose(r);
    char *out = job->out + (half & 1) * AMX_TILE_BYTES +
                amx_b_offset(job->n_panels, job->block_steps, job->n_steps, half >> 1, step);
    for (int i = 0; i < 16; ++i) {
        _mm512_store_si512(out + i * 64, r[i]);
    }
}

static void run_tiles(amx_side *side, int64_t first, int64_t end)
{
    const amx_pack_b *job = (const amx_pack_b *)side;
    for (int64_t unit = first; unit < end; ++unit) {
        pack_tile(job, unit / job->n_steps, unit % job->n_steps);
    }
}

void amx_pack_b_init(amx_pack_b *job, const dsi_gemm_params *p, int64_t step0, int64_t n_steps,
                     int64_t panel0, int64_t n_panels, int64_t block_steps, char *out)
{
    *job = (amx_pack_b){
        .side = {.run = p->b_transposed ? run_tiles : run_pairs},
        .p = p,
        .step0 = step0,
        .n_steps = n_steps,
        .panel0 = panel0,
        .n_panels = n_panels,
        .block_steps = block_steps,
        .out = out,
    };
}

int64_t amx_pack_b_units(const amx_pack_b *job)
{
    return job->p->b_transposed ? 2 * job->n_panels * job->n_steps
                                : AMX_ROWS * job->n_panels * job->n_steps;
}

/* ---- A --------------------------------------------------------------------------------------- */
static void pack_row(const amx_pack_a *job, int64_t i)
{
    const dsi_gemm_params *p = job->p;
    const uint16_t *row = (const uint16_t *)p->a + (job->row0 + i) * p->lda + job->step0 * AMX_K;
    char *to = job->out + i * 64; /* the second tile follows the first */
    for (int64_t step = 0; step < job->n_steps; ++step) {
        const int64_t left = p->k - (job->step0 + step) * AMX_K;
        const __mmask32 ks = job->row0 + i < p->m ? gemm_first(left) : 0;
        _mm512_store_si512(to, _mm512_maskz_loadu_epi16(ks, row));
        _mm_prefetch((const char *)(row + AMX_PANEL * p->lda), _MM_HINT_T1); /* the next panel */
        row += AMX_K;
        to += AMX_STEP_BYTES;
    }
}

static void fetch_row(const amx_pack_a *job, int64_t i)
{
    const dsi_gemm_params *p = job->p;
    const uint16_t *row = (const uint16_t *)p->a + (job->row0 + i) * p->lda + job->step0 * AMX_K;
    for (int64_t step = 0; step < job->n_steps; ++step) {
        _mm_prefetch((const char *)(row + step * AMX_K), _MM_HINT_T1);
    }
}

static void run_rows(amx_side *side, int64_t first, int64_t end)
{
    const amx_pack_a *job = (const amx_pack_a *)side;
    for (int64_t i = first; i < end; ++i) {
        if (job->out != NULL) {
            pack_row(job, i);
        } else {
            fetch_row(job, i);
        }
    }
}

void amx_pack_a_init(amx_pack_a *job, const dsi_gemm_params *p, int64_t row0, int64_t step0,
                     int64_t n_steps, char *out)
{
    *job = (amx_pack_a){
        .side = {.run = run_rows},
        .p = p,
        .row0 = row0,
        .step0 = step0,
        .n_steps = n_steps,
        .out = out,
    };
}

void amx_pack_a_columns(const dsi_gemm_params *p, int64_t step, int64_t panel0, int64_t panel1,
                        size_t panel_bytes, char *out)
{
    const int64_t k = step * AMX_K;
    for (int64_t panel = panel0; panel < panel1; ++panel) {
        const int64_t m = panel * AMX_PANEL;
        const __mmask32 rows = gemm_first(p->m - m);
        const uint16_t *from = (const uint16_t *)p->a + k * p->lda + m;
        __m512i low[16];
        __m512i high[16];
        for (int i = 0; i < 16; ++i) {
            const uint16_t *pair = from + 2 * i * p->lda;
            const __m512i even = _mm512_maskz_loadu_epi16(k + 2 * i < p->k ? rows : 0, pair);
            const __m512i odd =
                _mm512_maskz_loadu_epi16(k + 2 * i + 1 < p->k ? rows : 0, pair + p->lda);
            gemm_interleave(even, odd, &low[i], &high[i]);
        }
        gemm_transpose(low);
        gemm_transpose(high);
        char *to = out + (size_t)panel * panel_bytes + (size_t)step * AMX_STEP_BYTES;
        for (int i = 0; i < 16; ++i) {
            _mm512_store_si512(to + i * 64, low[i]);
            _mm512_store_si512(to + AMX_TILE_BYTES + i * 64, high[i]);
        }
    }
}
