/* Matrix products with vector multiply-adds in fp32; other dtypes are widened while packing.
 *
 * Lanes (one a thread) claim blocks of C. For each block of k a lane packs its part of B into
 * panels of NR columns (second-level cache), then takes MR rows of A at a time (first-level cache)
 * over all panels. Partial sums of the block wait in the second-level cache when k has several
 * blocks. Each element is one chain of fused multiply-adds a block of k; blocks are added in order.
 */
#include "accel/cpu/gemm_impl.h"
#include "accel/cpu/simd/gemm_finish.h"
#include "accel/cpu/simd/gemm_transpose.h"
#include "base/ticket.h"

enum {
#if defined(__AVX512F__)
    MR = 14, /* 28 accumulators, 2 of B; A is broadcast from memory */
#else
    MR = 6, /* 12 accumulators, 2 of B, 1 of A */
#endif
    NV = 2, /* vectors in a row of C's tile */
    NR = NV * VF_WIDTH,
    KC = 256,
    A_STRIDE = KC + 16,  /* rows of a panel of A start in different sets of the cache */
    A_COLUMN = VF_WIDTH, /* of a panel of A stored (k,m) */
    A_FLOATS = A_STRIDE * MR > A_COLUMN *KC ? A_STRIDE *MR : A_COLUMN *KC,
    ROWS_M = 768, /* of a block of C, about */
    COLUMNS_N = 768,
    BLOCKS_A_LANE = 3
};

typedef struct simd_run {
    const dsi_gemm_params *p;
    char *work;
    int64_t mb, nb; /* rows and columns of a block: multiples of MR and NR */
    int64_t n_mblocks, n_nblocks;
    int64_t n_kblocks;
    uint32_t n_lanes;
    size_t sums_bytes;
    size_t lane_bytes;
    dsi_ticket blocks;
} simd_run;

static int64_t ceil_div(int64_t x, int64_t y)
{
    return (x + y - 1) / y;
}

static int64_t min_i64(int64_t x, int64_t y)
{
    return x < y ? x : y;
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
    run->n_kblocks = p->k > 0 ? ceil_div(p->k, KC) : 1;
    run->sums_bytes = run->n_kblocks > 1 ? (size_t)(run->mb * run->nb) * sizeof(float) : 0;
    run->lane_bytes = (size_t)(KC * run->nb + A_FLOATS) * sizeof(float) + run->sums_bytes;
    run->lane_bytes = (run->lane_bytes + 63) / 64 * 64;
}

/* ---- packing -----------------------------------------------------------------------------------
 */
DSI_INLINE vf get_some(const void *base, ds_dtype type, int64_t i, int64_t n)
{
    return n >= VF_WIDTH ? vf_get(base, type, (size_t)i)
           : n > 0       ? vf_get_n(base, type, (size_t)i, (size_t)n)
                         : vf_zero();
}

/* B stored (k,n): rows copied. One panel of NR columns. */
DSI_INLINE void pack_b_rows(const dsi_gemm_params *p, ds_dtype type, int64_t k0, int64_t kc,
                            int64_t n0, float *out)
{
    for (int64_t k = 0; k < kc; ++k) {
        const int64_t at = (k0 + k) * p->ldb + n0;
        for (int v = 0; v < NV; ++v) {
            const int64_t left = p->n - n0 - v * VF_WIDTH;
            vf_store(out + k * NR + v * VF_WIDTH, get_some(p->b, type, at + v * VF_WIDTH, left));
        }
    }
}

/* B stored (n,k): squares transposed. */
DSI_INLINE void pack_b_columns(const dsi_gemm_params *p, ds_dtype type, int64_t k0, int64_t kc,
                               int64_t n0, float *out)
{
    for (int v = 0; v < NV; ++v) {
        const int64_t n = n0 + v * VF_WIDTH;
        for (int64_t k = 0; k < kc; k += VF_WIDTH) {
            vf r[VF_WIDTH];
            for (int i = 0; i < VF_WIDTH; ++i) {
                r[i] = n + i < p->n ? get_some(p->b, type, (n + i) * p->ldb + k0 + k, kc - k)
                                    : vf_zero();
            }
            vf_transpose(r);
            for (int i = 0; i < VF_WIDTH && k + i < kc; ++i) {
                vf_store(out + (k + i) * NR + v * VF_WIDTH, r[i]);
            }
        }
    }
}

static void pack_b(const dsi_gemm_params *p, int64_t k0, int64_t kc, int64_t n0, float *out)
{
    if (p->b_transposed) {
        switch (p->b_dtype) {
        case DS_DTYPE_BF16:
            pack_b_columns(p, DS_DTYPE_BF16, k0, kc, n0, out);
            break;
        case DS_DTYPE_F16:
            pack_b_columns(p, DS_DTYPE_F16, k0, kc, n0, out);
            break;
        default:
            pack_b_columns(p, DS_DTYPE_F32, k0, kc, n0, out);
            break;
        }
        return;
    }
    switch (p->b_dtype) {
    case DS_DTYPE_BF16:
        pack_b_rows(p, DS_DTYPE_BF16, k0, kc, n0, out);
        break;
    case DS_DTYPE_F16:
        pack_b_rows(p, DS_DTYPE_F16, k0, kc, n0, out);
        break;
    default:
        pack_b_rows(p, DS_DTYPE_F32, k0, kc, n0, out);
        break;
    }
}

/* A stored (m,k): out[row·A_STRIDE + k]. Rows beyond the matrix are zero. */
static void pack_a_rows(const dsi_gemm_params *p, int64_t m0, int64_t k0, int64_t kc, float *out)
{
    for (int64_t i = 0; i < MR; ++i) {
        for (int64_t k = 0; k < kc; k += VF_WIDTH) {
            const vf v = m0 + i < p->m
                             ? get_some(p->a, p->a_dtype, (m0 + i) * p->lda + k0 + k, kc - k)
                             : vf_zero();
            vf_store(out + i * A_STRIDE + k, v);
        }
    }
}

/* A stored (k,m): out[k·A_COLUMN + row]. */
static void pack_a_columns(const dsi_gemm_params *p, int64_t m0, int64_t k0, int64_t kc, float *out)
{
    const int64_t rows = min_i64(MR, p->m - m0);
    for (int64_t k = 0; k < kc; ++k) {
        for (int64_t i = 0; i < MR; i += VF_WIDTH) {
            vf_store(out + k * A_COLUMN + i,
                     get_some(p->a, p->a_dtype, (k0 + k) * p->lda + m0 + i, rows - i));
        }
    }
}

/* ---- the inner loop
 * ------------------------------------------------------------------------------ */
/* row_step, k_step: constants, distances in a panel of A. */
DSI_INLINE void multiply(const float *a, int64_t row_step, int64_t k_step, const float *b,
                         int64_t kc, vf sum[MR][NV])
{
    for (int64_t k = 0; k < kc; ++k) {
        vf row[NV];
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) {
            row[v] = vf_load(b + v * VF_WIDTH);
        }
#pragma GCC unroll 14
        for (int i = 0; i < MR; ++i) {
            const vf x = vf_set(a[i * row_step]);
#pragma GCC unroll 2
            for (int v = 0; v < NV; ++v) {
                sum[i][v] = vf_fma(x, row[v], sum[i][v]);
            }
        }
        a += k_step;
        b += NR;
    }
}

typedef struct tile_place {
    int64_t m, n;     /* of C */
    float *sums;      /* MR × NR, used when k has several blocks */
    bool first, last; /* block of k */
} tile_place;

/* Not inlined: the epilogue is long, and the tile has 28 vectors. */
static __attribute__((noinline)) void finish_tile(const dsi_gemm_params *p, const tile_place *t,
                                                  const float *tile)
{
    const int64_t rows = min_i64(MR, p->m - t->m);
    const int64_t columns = min_i64(NR, p->n - t->n);
    for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; j += VF_WIDTH) {
            gemm_finish(p, vf_load(tile + i * NR + j), t->m + i, t->n + j,
                        (size_t)min_i64(VF_WIDTH, columns - j));
        }
    }
}

DSI_INLINE void put_tile(const dsi_gemm_params *p, const tile_place *t, vf sum[MR][NV])
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
        finish_tile(p, t, tile);
    }
}

static void run_tile(const dsi_gemm_params *p, const tile_place *t, const float *a, const float *b,
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
    if (p->a_transposed) {
        multiply(a, 1, A_COLUMN, b, kc, sum);
    } else {
        multiply(a, A_STRIDE, 1, b, kc, sum);
    }
    put_tile(p, t, sum);
}

/* ---- blocks
 * -------------------------------------------------------------------------------------- */
typedef struct simd_lane {
    float *b, *a, *sums;
} simd_lane;

static void run_k_block(const simd_run *run, const simd_lane *l, int64_t kb, int64_t m0, int64_t n0)
{
    const dsi_gemm_params *p = run->p;
    const int64_t m1 = min_i64(m0 + run->mb, p->m);
    const int64_t n1 = min_i64(n0 + run->nb, p->n);
    const int64_t k0 = kb * KC;
    const int64_t kc = min_i64(KC, p->k - k0);
    for (int64_t n = n0; n < n1; n += NR) {
        pack_b(p, k0, kc, n, l->b + (n - n0) * KC);
    }
    for (int64_t m = m0; m < m1; m += MR) {
        if (p->a_transposed) {
            pack_a_columns(p, m, k0, kc, l->a);
        } else {
            pack_a_rows(p, m, k0, kc, l->a);
        }
        for (int64_t n = n0; n < n1; n += NR) {
            const tile_place t = {
                .m = m,
                .n = n,
                .sums = l->sums + (m - m0) * run->nb + (n - n0) * MR,
                .first = kb == 0,
                .last = kb + 1 == run->n_kblocks,
            };
            run_tile(p, &t, l->a, l->b + (n - n0) * KC, kc);
        }
    }
}

static void lane_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    simd_run *run = arg;
    float *base = (float *)(void *)(run->work + task * run->lane_bytes);
    const simd_lane l = {
        .b = base,
        .sums = base + KC * run->nb,
        .a = base + KC * run->nb + (int64_t)(run->sums_bytes / sizeof(float)),
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
    return !p->b_packed;
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

#define DSI_GEMM_TEXT_2(isa) #isa
#define DSI_GEMM_TEXT(isa)   DSI_GEMM_TEXT_2(isa)

const dsi_gemm_impl DSI_NAME(dsi_gemm_simd) = {
    .name = DSI_GEMM_TEXT(DSI_ISA),
    .isa = DSI_SIMD_ISA,
    .supports = supports,
    .work_bytes = work_bytes,
    .run = run_gemm,
};
