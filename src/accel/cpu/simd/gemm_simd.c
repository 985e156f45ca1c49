/* SPDX-License-Identifier: Apache-2.0 */
/* Matrix products with vector multiply-adds in fp32; other dtypes are widened while packing. For
 * avx512_bf16 the same with dot products of pairs of bf16, summed in fp32: k counts pairs.
 *
 * Lanes (one a thread) claim blocks of C. For each block of k a lane packs its part of B into
 * panels of NR columns, then takes A_PANELS panels of MR rows of A at a time over all panels of B.
 * AVX2: those rows of A lie in the second-level cache, the panel of B in the first. AVX-512, whose
 * second-level cache is larger: one panel of A in the first, B in the second. Partial sums of the
 * block wait beside them when k has several blocks. Each element is one chain of fused
 * multiply-adds a block of k; blocks are added in order.
 */
#include "accel/cpu/gemm_impl.h"
#include "accel/cpu/simd/gemm_finish.h"
#if defined(DSI_ISA_avx512_bf16)
#include "accel/cpu/simd/gemm_pairs.h"
#else
#include "accel/cpu/simd/gemm_panels.h"
#endif
#include "base/ticket.h"

enum {
#if defined(__AVX512F__)
    A_PANELS = 1, /* packed together */
    FETCH_A = 1,  /* tiles ask for what the next panels of A are made of */
    FETCH_B = 0,  /* tiles ask for the next panel of B */
#else
    A_PANELS = 24, /* 147 KiB */
    FETCH_A = 0,
    FETCH_B = 1,
#endif
    ROWS_M = 1024, /* of a block of C, about */
    COLUMNS_N = 768,
    BLOCKS_A_LANE = 3,
    LINE_FLOATS = 16,
    LINE_BYTES = 64
};

typedef struct simd_run {
    const dsi_gemm_params *p;
    char *work;
    int64_t mb, nb; /* rows and columns of a block: multiples of MR and NR */
    int64_t n_mblocks, n_nblocks;
    int64_t n_kblocks;
    uint32_t n_lanes;
    bool plain; /* C is the sums, rounded, nothing else */
    size_t sums_bytes;
    size_t lane_bytes;
    dsi_ticket blocks;
} simd_run;

static int64_t ceil_div(int64_t x, int64_t y)
{
    return (x + y - 1) / y;
}

/* n cut into equal parts of at most `limit`, rounded up to `unit`. */
static int64_t even_part(int64_t n, int64_t limit, int64_t unit)
{
    const int64_t part = n > 0 ? ceil_div(n, ceil_div(n, limit)) : 1;
    return ceil_div(part, unit) * unit;
}

static void make_run(const dsi_gemm_params *p, simd_run *run)
{
    *run = (simd_run){.p = p, .n_lanes = p->n_threads > 0 ? p->n_threads : 1};
    int64_t rows = ROWS_M;
    int64_t columns = COLUMNS_N;
    const int64_t want = run->n_lanes == 1 ? 1 : (int64_t)run->n_lanes * BLOCKS_A_LANE;
    while (ceil_div(p->m, rows) * ceil_div(p->n, columns) < want &&
           (rows > 4 * MR || columns > 2 * NR)) {
        if (rows > 4 * MR && (rows >= columns || columns <= 2 * NR)) {
            rows /= 2;
        } else {
            columns /= 2;
        }
    }
    run->mb = even_part(p->m, rows, MR);
    run->nb = even_part(p->n, columns, NR);
    run->n_mblocks = ceil_div(p->m, run->mb);
    run->n_nblocks = ceil_div(p->n, run->nb);
    run->n_kblocks = p->k > 0 ? ceil_div(p->k, KC * K_STEP) : 1;
    run->plain = p->alpha == 1.0f && !p->accumulate && p->bias == NULL && p->pre == NULL &&
                 p->activation == DSI_GEMM_ACT_NONE && p->residual == NULL;
    run->sums_bytes = run->n_kblocks > 1 ? (size_t)(run->mb * run->nb) * sizeof(float) : 0;
    run->lane_bytes =
        (size_t)(KC * run->nb + min_i64(A_PANELS, run->mb / MR) * A_FLOATS) * sizeof(packed) +
        run->sums_bytes;
    run->lane_bytes = (run->lane_bytes + 63) / 64 * 64;
}

/* ---- the inner loop
 * ------------------------------------------------------------------------------ */
/* row_step, k_step: constants, distances in a panel of A. */
DSI_INLINE void multiply_step(const packed *a, int64_t row_step, const packed *b, vf sum[MR][NV])
{
    packed_vf row[NV];
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) {
        row[v] = packed_load(b + v * VF_WIDTH);
    }
#pragma GCC unroll 14
    for (int i = 0; i < MR; ++i) {
        const packed_vf x = packed_set(a[i * row_step]);
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) {
            sum[i][v] = packed_fma(x, row[v], sum[i][v]);
        }
    }
}

DSI_INLINE void multiply(const packed *a, int64_t row_step, int64_t k_step, const packed *b,
                         int64_t kc, vf sum[MR][NV])
{
    int64_t k = 0;
#if !defined(__AVX512F__) /* by fours: 7 to 11 % on a Zen 3 shared with other guests */
    for (; k + 4 <= kc; k += 4, a += 4 * k_step, b += 4 * NR) {
#pragma GCC unroll 4
        for (int i = 0; i < 4; ++i) {
            multiply_step(a + i * k_step, row_step, b + i * NR, sum);
        }
    }
#endif
    for (; k < kc; ++k, a += k_step, b += NR) {
        multiply_step(a, row_step, b, sum);
    }
}

typedef struct tile_place {
    int64_t m, n;     /* of C */
    float *sums;      /* MR × NR, used when k has several blocks */
    bool first, last; /* block of k */
} tile_place;

/* The whole rows of a tile, just rounded. */
DSI_INLINE void store_rows(const dsi_gemm_params *p, ds_dtype type, const tile_place *t,
                           int64_t rows, const float *tile)
{
    for (int64_t i = 0; i < rows; ++i, tile += NR) {
        for (int v = 0; v < NR; v += VF_WIDTH) {
            vf_put(p->c, type, (size_t)((t->m + i) * p->ldc + t->n + v), vf_load(tile + v));
        }
    }
}

/* Not inlined: the epilogue is long, and the tile has 28 vectors. */
static __attribute__((noinline)) void finish_tile(const simd_run *run, const tile_place *t,
                                                  const float *tile)
{
    const dsi_gemm_params *p = run->p;
    const int64_t rows = min_i64(MR, p->m - t->m);
    const int64_t columns = min_i64(NR, p->n - t->n);
    if (run->plain && columns == NR) {
        switch (p->c_dtype) {
        case DS_DTYPE_BF16:
            store_rows(p, DS_DTYPE_BF16, t, rows, tile);
            break;
        case DS_DTYPE_F16:
            store_rows(p, DS_DTYPE_F16, t, rows, tile);
            break;
        default:
            store_rows(p, DS_DTYPE_F32, t, rows, tile);
            break;
        }
        return;
    }
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; j += VF_WIDTH) {
            gemm_finish(p, vf_load(tile + i * NR + j), t->m + i, t->n + j,
                        (size_t)min_i64(VF_WIDTH, columns - j));
        }
    }
}

DSI_INLINE void put_tile(const simd_run *run, const tile_place *t, vf sum[MR][NV])
{
    _Alignas(64) float tile[MR * NR];
    float *to = t->last ? tile : t->sums;
#pragma GCC unroll 14
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) {
            const int at = i * NR + v * VF_WIDTH;
            vf_store(to + at, t->first ? sum[i][v] : vf_add(vf_load(t->sums + at), sum[i][v]));
        }
    }
    if (t->last) {
        finish_tile(run, t, tile);
    }
}

/* The lines that put_tile() will touch, asked for while the tile is computed. */
DSI_INLINE void fetch_tile(const dsi_gemm_params *p, const tile_place *t)
{
    if (!t->first) {
        for (int i = 0; i < MR * NR; i += LINE_FLOATS) {
            _mm_prefetch((const char *)(t->sums + i), _MM_HINT_T0);
        }
    }
    if (t->last) {
        const int64_t size = p->c_dtype == DS_DTYPE_F32 ? 4 : 2;
        const char *c = (const char *)p->c + (t->m * p->ldc + t->n) * size;
        for (int i = 0; i < MR; ++i) {
            _mm_prefetch(c + i * p->ldc * size, _MM_HINT_T0);
        }
    }
}

static void run_tile(const simd_run *run, const tile_place *t, const packed *a, const packed *b,
                     int64_t kc)
{
    vf sum[MR][NV];
#pragma GCC unroll 14
    for (int i = 0; i < MR; ++i) {
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) {
            sum[i][v] = vf_zero();
        }
    }
    if (run->p->a_transposed) {
        multiply(a, 1, A_COLUMN_K, b, kc, sum);
    } else {
        multiply(a, A_ROW, A_K, b, kc, sum);
    }
    put_tile(run, t, sum);
}

/* ---- blocks
 * -------------------------------------------------------------------------------------- */
typedef struct simd_lane {
    packed *b, *a;
    float *sums;
} simd_lane;

/* Rows t->m..end of A, packed, times one panel of B; meanwhile the panel of B behind it comes
 * nearer. Moves t down, in place: reading a copy would wait for the stores of the tile before. */
static void run_panel(const simd_run *run, tile_place *t, int64_t end, const packed *a,
                      const packed *b, int64_t kc)
{
    const packed *next = b + KC * NR;
    const int64_t share = ceil_div(kc * NR, ceil_div(end - t->m, MR) * LINE_FLOATS);
    for (; t->m < end; t->m += MR, t->sums += MR * run->nb, a += A_FLOATS) {
        fetch_tile(run->p, t);
        for (int64_t i = 0; FETCH_B && i < share; ++i, next += LINE_FLOATS) {
            _mm_prefetch((const char *)next, _MM_HINT_T1);
        }
        run_tile(run, t, a, b, kc);
    }
}

/* Asks for what the panels of A's rows m0..m1 are made of, elements k0..k0+kc of k. Inlined: gcc 12
 * takes a function that only prefetches for one without effect, and drops its calls. */
DSI_INLINE void fetch_a(const dsi_gemm_params *p, int64_t m0, int64_t m1, int64_t k0, int64_t kc)
{
    const int64_t size = p->a_dtype == DS_DTYPE_F32 ? 4 : 2;
    const int64_t ks = kc * K_STEP;
    const int64_t first = p->a_transposed ? k0 * K_STEP * p->lda + m0 : m0 * p->lda + k0 * K_STEP;
    const int64_t rows = p->a_transposed ? ks : m1 - m0;
    const int64_t bytes = (p->a_transposed ? m1 - m0 : ks) * size;
    const char *row = (const char *)p->a + first * size;
    for (int64_t i = 0; i < rows; ++i, row += p->lda * size) {
        for (int64_t at = LINE_BYTES; at < bytes; at += LINE_BYTES) {
            _mm_prefetch(row + at - 1, _MM_HINT_T0);
        }
        _mm_prefetch(row + bytes - 1, _MM_HINT_T0);
    }
}

/* What the next panels of A are made of, asked for in n_shares parts. */
typedef struct a_ahead {
    int64_t m0, m1, k0, kc;
    int64_t k, sum, n_shares;
} a_ahead;

DSI_INLINE void fetch_share(const dsi_gemm_params *p, a_ahead *x)
{
    x->sum += ceil_div(x->kc, VF_WIDTH);
    for (; x->sum >= x->n_shares; x->sum -= x->n_shares, x->k += VF_WIDTH) {
        fetch_a(p, x->m0, x->m1, x->k0 + x->k, min_i64(VF_WIDTH, x->kc - x->k));
    }
}

static void run_k_block(const simd_run *run, const simd_lane *l, int64_t kb, int64_t m0, int64_t n0)
{
    const dsi_gemm_params *p = run->p;
    const int64_t m1 = min_i64(m0 + run->mb, p->m);
    const int64_t n1 = min_i64(n0 + run->nb, p->n);
    const int64_t k0 = kb * KC;
    const int64_t kc = min_i64(KC, ceil_div(p->k, K_STEP) - k0);
    for (int64_t n = n0; n < n1; n += NR) {
        pack_b(p, k0, kc, n, l->b + (n - n0) * KC);
    }
    for (int64_t m = m0; m < m1; m += A_PANELS * MR) {
        const int64_t end = min_i64(m + A_PANELS * MR, m1);
        pack_a(p, m, end, k0, kc, l->a);
        tile_place t = {.first = kb == 0, .last = kb + 1 == run->n_kblocks};
        a_ahead next = {end, min_i64(end + A_PANELS * MR, m1), k0, kc, 0, 0, ceil_div(n1 - n0, NR)};
        for (t.n = n0; t.n < n1; t.n += NR) {
            t.m = m;
            t.sums = l->sums + (m - m0) * run->nb + (t.n - n0) * MR;
            if (FETCH_A && end < m1) {
                fetch_share(p, &next);
            }
            run_panel(run, &t, end, l->a, l->b + (t.n - n0) * KC, kc);
        }
    }
}

static void lane_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    simd_run *run = arg;
    char *base = run->work + task * run->lane_bytes;
    const simd_lane l = {
        .sums = (float *)(void *)base,
        .b = (packed *)(void *)(base + run->sums_bytes),
        .a = (packed *)(void *)(base + run->sums_bytes) + KC * run->nb,
    };
    const uint32_t end = (uint32_t)(run->n_mblocks * run->n_nblocks);
    for (uint32_t block = dsi_ticket_take(&run->blocks); block < end;
         block = dsi_ticket_take(&run->blocks)) {
        const int64_t m0 = block % run->n_mblocks * run->mb;
        const int64_t n0 = block / run->n_mblocks * run->nb;
        for (int64_t kb = 0; kb < run->n_kblocks; ++kb) {
            run_k_block(run, &l, kb, m0, n0);
        }
    }
}

static bool supports(const dsi_gemm_params *p)
{
    return !p->b_packed && packed_supports(p);
}

static size_t work_bytes(const dsi_gemm_params *p)
{
    simd_run run;
    make_run(p, &run);
    return run.n_lanes * run.lane_bytes;
}

static void run_gemm(dsi_pool *pool, const dsi_gemm_params *p, void *work)
{
    simd_run run;
    make_run(p, &run);
    run.work = work;
    dsi_ticket_reset(&run.blocks);
    dsi_pool_run(pool, lane_task, &run, run.n_lanes);
}

const dsi_gemm_impl DSI_NAME(dsi_gemm_simd) = {
    .name = DSI_ISA_TEXT,
    .needs = DSI_SIMD_ISA,
    .supports = supports,
    .work_bytes = work_bytes,
    .run = run_gemm,
};
