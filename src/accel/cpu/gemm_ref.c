/* SPDX-License-Identifier: Apache-2.0 */
/* The plain matrix product: the oracle of every faster one. Sums left to right over k in fp32,
 * multiply then add, one rounding each. */
#include "accel/cpu/gemm_impl.h"

#include <math.h>

enum { ROWS_PER_TASK = 16 };

static float gelu_tanh(float x)
{
    const float inner = 0.797884560802865f * (x + 0.044715f * x * x * x);
    return 0.5f * x * (1.0f + tanhf(inner));
}

static float sum_over_k(const dsi_gemm_params *p, int64_t i, int64_t j)
{
    const int64_t a_first = p->a_transposed ? i : i * p->lda;
    const int64_t a_step = p->a_transposed ? p->lda : 1;
    const int64_t b_first = p->b_transposed ? j * p->ldb : j;
    const int64_t b_step = p->b_transposed ? 1 : p->ldb;
    float sum = 0.0f;
    for (int64_t k = 0; k < p->k; ++k) {
        const float a = dsi_gemm_load(p->a, p->a_dtype, a_first + k * a_step);
        const float b = dsi_gemm_load(p->b, p->b_dtype, b_first + k * b_step);
        sum += a * b;
    }
    return sum;
}

static void finish(const dsi_gemm_params *p, int64_t i, int64_t j, float sum)
{
    const int64_t at = i * p->ldc + j;
    float v = p->alpha * sum;
    if (p->accumulate) {
        v += (p->addend != NULL ? p->addend : (const float *)p->c)[at];
    }
    if (p->bias != NULL) {
        v += dsi_gemm_load(p->bias, p->bias_dtype, j);
    }
    if (p->pre != NULL) {
        dsi_gemm_store(p->pre, p->c_dtype, i * p->ldpre + j, v);
        v = dsi_gemm_load(p->pre, p->c_dtype, i * p->ldpre + j);
    }
    if (p->activation == DSI_GEMM_ACT_GELU_TANH) {
        v = gelu_tanh(v);
    }
    if (p->residual != NULL) {
        v += dsi_gemm_load(p->residual, p->c_dtype, i * p->ldres + j);
    }
    dsi_gemm_store(p->c, p->c_dtype, at, v);
}

static void rows_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    const dsi_gemm_params *p = arg;
    const int64_t first = (int64_t)task * ROWS_PER_TASK;
    const int64_t end = first + ROWS_PER_TASK < p->m ? first + ROWS_PER_TASK : p->m;
    for (int64_t i = first; i < end; ++i) {
        for (int64_t j = 0; j < p->n; ++j) {
            finish(p, i, j, sum_over_k(p, i, j));
        }
    }
}

static bool supports(const dsi_gemm_params *p)
{
    return !p->b_packed;
}

static void run(dsi_pool *pool, const dsi_gemm_params *p, void *work)
{
    (void)work;
    dsi_gemm_params copy = *p;
    dsi_pool_run(pool, rows_task, &copy, (uint32_t)((p->m + ROWS_PER_TASK - 1) / ROWS_PER_TASK));
}

const dsi_gemm_impl dsi_gemm_ref = {
    .name = "ref",
    .needs = DS_ISA_REF,
    .supports = supports,
    .run = run,
};
