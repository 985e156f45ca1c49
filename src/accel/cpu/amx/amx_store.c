/* SPDX-License-Identifier: Apache-2.0 */
/* Storing finished sums. See amx_store.h. */
#include "accel/cpu/amx/amx_store.h"
#include "accel/cpu/simd/gemm_finish.h"
#include "accel/cpu/simd/gemm_transpose.h"

static void widen_pair(__m512i pair, vf *x, vf *y)
{
    *x = vf_widen_bf16(_mm512_castsi512_si256(pair));
    *y = vf_widen_bf16(_mm512_extracti64x4_epi64(pair, 1));
}

/* gemm_value() for 32 columns at once, in bf16: conversions by the processor, whole lines. */
static void store_full_row_bf16(const dsi_gemm_params *p, const float *left, int64_t i, int64_t j)
{
    vf x = vf_mul(vf_load(left), vf_set(p->alpha));
    vf y = vf_mul(vf_load(left + 256), vf_set(p->alpha));
    if (p->accumulate) { /* the addend is no C, which is in bf16 */
        x = vf_add(x, vf_load(p->addend + i * p->ldc + j));
        y = vf_add(y, vf_load(p->addend + i * p->ldc + j + 16));
    }
    if (p->bias != NULL) {
        x = vf_add(x, vf_get(p->bias, p->bias_dtype, (size_t)j));
        y = vf_add(y, vf_get(p->bias, p->bias_dtype, (size_t)j + 16));
    }
    if (p->pre != NULL) {
        const __m512i pair = (__m512i)_mm512_cvtne2ps_pbh(y, x);
        _mm512_storeu_si512((uint16_t *)p->pre + i * p->ldpre + j, pair);
        widen_pair(pair, &x, &y);
    }
    if (p->activation == DSI_GEMM_ACT_GELU_TANH) {
        x = vf_gelu_tanh(x);
        y = vf_gelu_tanh(y);
    }
    if (p->residual != NULL) {
        vf u;
        vf v;
        widen_pair(_mm512_loadu_si512((const uint16_t *)p->residual + i * p->ldres + j), &u, &v);
        x = vf_add(x, u);
        y = vf_add(y, v);
    }
    _mm512_storeu_si512((uint16_t *)p->c + i * p->ldc + j, (__m512i)_mm512_cvtne2ps_pbh(y, x));
}

/* Nothing but the rounding: the case worth its own loop. */
static void store_plain_bf16(const amx_store *job, int64_t first, int64_t end)
{
    uint16_t *c = (uint16_t *)job->p->c + (job->row + first) * job->p->ldc + job->column;
    for (int64_t r = first; r < end; ++r) {
        const float *left = job->sums + (r >> 4) * 512 + (r & 15) * 16;
        _mm512_storeu_si512(c, (__m512i)_mm512_cvtne2ps_pbh(vf_load(left + 256), vf_load(left)));
        c += job->p->ldc;
    }
}

/* 32×32 sums in four tiles, in place. */
static void transpose_sums(float *sums)
{
    vf tiles[2][VF_WIDTH];
    for (int i = 0; i < 2; ++i) {
        for (int r = 0; r < VF_WIDTH; ++r) {
            tiles[0][r] = vf_load(sums + i * 768 + r * 16); /* on the diagonal */
        }
        vf_transpose(tiles[0]);
        for (int r = 0; r < VF_WIDTH; ++r) {
            vf_store(sums + i * 768 + r * 16, tiles[0][r]);
        }
    }
    for (int r = 0; r < VF_WIDTH; ++r) {
        tiles[0][r] = vf_load(sums + 256 + r * 16);
        tiles[1][r] = vf_load(sums + 512 + r * 16);
    }
    vf_transpose(tiles[0]);
    vf_transpose(tiles[1]);
    for (int r = 0; r < VF_WIDTH; ++r) {
        vf_store(sums + 512 + r * 16, tiles[0][r]);
        vf_store(sums + 256 + r * 16, tiles[1][r]);
    }
}

static void run_store(amx_side *side, int64_t first, int64_t end)
{
    const amx_store *job = (const amx_store *)side;
    if (job->swapped && first == 0) {
        transpose_sums(job->sums);
    }
    const dsi_gemm_params *p = job->p;
    const int64_t columns = p->n - job->column;
    if (job->plain && columns >= AMX_PANEL) {
        store_plain_bf16(job, first, end);
        return;
    }
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

static bool is_plain_bf16(const dsi_gemm_params *p)
{
    return p->c_dtype == DS_DTYPE_BF16 && p->alpha == 1.0f && !p->accumulate && p->bias == NULL &&
           p->pre == NULL && p->activation == DSI_GEMM_ACT_NONE && p->residual == NULL;
}

void amx_store_init(amx_store *job, const dsi_gemm_params *p, bool swapped)
{
    *job = (amx_store){
        .side = {.run = run_store},
        .p = p,
        .plain = is_plain_bf16(p),
        .swapped = swapped,
    };
}

void amx_store_start(amx_store *job, float *sums, int64_t m, int64_t n, int64_t n_steps)
{
    job->sums = sums;
    job->row = (job->swapped ? n : m) * AMX_PANEL;
    job->column = (job->swapped ? m : n) * AMX_PANEL;
    const int64_t left = job->p->m - job->row;
    amx_side_start(&job->side, left < AMX_PANEL ? left : AMX_PANEL, n_steps);
}
