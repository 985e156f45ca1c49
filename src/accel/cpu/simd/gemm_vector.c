/* Products of 1 to 4 rows (decoding): B is read once, as it lies in memory, at the speed of memory.
 *
 * The columns of C are cut into tasks. B stored (n,k): each result is a dot product along a row of
 * B, in VF_WIDTH partial sums added at the end. B stored (k,n): rows of B are added, eight at a
 * time, to sums that stay in the first-level cache. A is widened to fp32 once.
 */
#include "accel/cpu/gemm_impl.h"
#include "accel/cpu/simd/gemm_finish.h"

enum {
    ROWS = 4,      /* of A at most */
    DOTS = 4,      /* rows of B at once */
    GROUP = 8,     /* rows of B added at once */
    COLUMNS = 512, /* of a task, at most: 8 KiB of sums */
    AHEAD_BYTES = 2048
};

typedef struct vector_run {
    const dsi_gemm_params *p;
    float *a; /* (m, k_stride) */
    int64_t k_stride;
    int64_t columns; /* of a task: a multiple of 64 */
} vector_run;

static int64_t min_i64(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static void make_run(const dsi_gemm_params *p, void *work, vector_run *run)
{
    const int64_t lanes = p->n_threads > 0 ? p->n_threads : 1;
    const int64_t share = (p->n + 4 * lanes - 1) / (4 * lanes);
    *run = (vector_run){.p = p, .a = work, .k_stride = (p->k + 15) / 16 * 16};
    run->columns = min_i64(COLUMNS, (share + 63) / 64 * 64);
}

static void widen_a(const vector_run *run)
{
    const dsi_gemm_params *p = run->p;
    for (int64_t i = 0; i < p->m; ++i) {
        for (int64_t k = 0; k < run->k_stride; ++k) {
            const int64_t at = p->a_transposed ? k * p->lda + i : i * p->lda + k;
            run->a[i * run->k_stride + k] = k < p->k ? dsi_gemm_load(p->a, p->a_dtype, at) : 0.0f;
        }
    }
}

/* ---- B stored (n,k)
 * ------------------------------------------------------------------------------ */
/* rows, dots: constants. out[i·DOTS + j] = A[i]·B[n+j] */
DSI_INLINE void dot_rows(const vector_run *run, ds_dtype type, int64_t n, int rows, int dots,
                         float *out)
{
    const dsi_gemm_params *p = run->p;
    const size_t size = type == DS_DTYPE_F32 ? 4 : 2;
    vf sum[ROWS][DOTS];
    for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < dots; ++j) {
            sum[i][j] = vf_zero();
        }
    }
    const int64_t whole = p->k / VF_WIDTH * VF_WIDTH;
    for (int64_t k = 0; k < whole; k += VF_WIDTH) {
        for (int j = 0; j < dots; ++j) {
            const int64_t at = (n + j) * p->ldb + k;
            if ((size_t)k * size % 64 == 0) {
                _mm_prefetch((const char *)p->b + (size_t)at * size + AHEAD_BYTES, _MM_HINT_T0);
            }
            const vf b = vf_get(p->b, type, (size_t)at);
            for (int i = 0; i < rows; ++i) {
                sum[i][j] = vf_fma(vf_load(run->a + i * run->k_stride + k), b, sum[i][j]);
            }
        }
    }
    for (int j = 0; j < dots && whole < p->k; ++j) {
        const vf b =
            vf_get_n(p->b, type, (size_t)((n + j) * p->ldb + whole), (size_t)(p->k - whole));
        for (int i = 0; i < rows; ++i) {
            const vf a = vf_load_n(run->a + i * run->k_stride + whole, (size_t)(p->k - whole));
            sum[i][j] = vf_fma(a, b, sum[i][j]);
        }
    }
    for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < dots; ++j) {
            out[i * DOTS + j] = vf_sum(sum[i][j]);
        }
    }
}

DSI_INLINE void dot_task(const vector_run *run, ds_dtype type, int rows, int64_t n0, int64_t n1,
                         float *sums)
{
    float out[ROWS * DOTS];
    int64_t n = n0;
    for (; n + DOTS <= n1; n += DOTS) {
        dot_rows(run, type, n, rows, DOTS, out);
        for (int i = 0; i < rows; ++i) {
            memcpy(sums + i * COLUMNS + (n - n0), out + i * DOTS, sizeof(float) * DOTS);
        }
    }
    for (; n < n1; ++n) {
        dot_rows(run, type, n, rows, 1, out);
        for (int i = 0; i < rows; ++i) {
            sums[i * COLUMNS + (n - n0)] = out[i * DOTS];
        }
    }
}

/* ---- B stored (k,n)
 * ------------------------------------------------------------------------------ */
/* sums[i] += Σ over `group` rows of B from k. columns: a multiple of VF_WIDTH but for the last. */
DSI_INLINE void add_rows(const vector_run *run, ds_dtype type, int rows, int group, int64_t k,
                         int64_t n0, int64_t n1, float *sums)
{
    const dsi_gemm_params *p = run->p;
    const size_t size = type == DS_DTYPE_F32 ? 4 : 2;
    for (int64_t n = n0; n < n1; n += VF_WIDTH) {
        const size_t left = (size_t)min_i64(VF_WIDTH, n1 - n);
        vf sum[ROWS];
        for (int i = 0; i < rows; ++i) {
            sum[i] = vf_load(sums + i * COLUMNS + (n - n0));
        }
        for (int g = 0; g < group; ++g) {
            const int64_t at = (k + g) * p->ldb + n;
            if ((size_t)(n - n0) * size % 64 == 0) {
                _mm_prefetch((const char *)p->b + (size_t)(at + GROUP * p->ldb) * size,
                             _MM_HINT_T0);
            }
            const vf b = gemm_get(p->b, type, at, left);
            for (int i = 0; i < rows; ++i) {
                sum[i] = vf_fma(vf_set(run->a[i * run->k_stride + k + g]), b, sum[i]);
            }
        }
        for (int i = 0; i < rows; ++i) {
            vf_store(sums + i * COLUMNS + (n - n0), sum[i]);
        }
    }
}

DSI_INLINE void add_task(const vector_run *run, ds_dtype type, int rows, int64_t n0, int64_t n1,
                         float *sums)
{
    memset(sums, 0, sizeof(float) * ROWS * COLUMNS);
    const int64_t k_end = run->p->k;
    int64_t k = 0;
    for (; k + GROUP <= k_end; k += GROUP) {
        add_rows(run, type, rows, GROUP, k, n0, n1, sums);
    }
    for (; k < k_end; ++k) {
        add_rows(run, type, rows, 1, k, n0, n1, sums);
    }
}

/* ---- tasks
 * --------------------------------------------------------------------------------------- */
DSI_INLINE void some_rows(const vector_run *run, ds_dtype type, int rows, int64_t n0, int64_t n1,
                          float *sums)
{
    if (run->p->b_transposed) {
        dot_task(run, type, rows, n0, n1, sums);
    } else {
        add_task(run, type, rows, n0, n1, sums);
    }
}

DSI_INLINE void any_rows(const vector_run *run, ds_dtype type, int64_t n0, int64_t n1, float *sums)
{
    switch (run->p->m) {
    case 1:
        some_rows(run, type, 1, n0, n1, sums);
        break;
    case 2:
        some_rows(run, type, 2, n0, n1, sums);
        break;
    case 3:
        some_rows(run, type, 3, n0, n1, sums);
        break;
    default:
        some_rows(run, type, 4, n0, n1, sums);
        break;
    }
}

static void column_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    const vector_run *run = arg;
    const dsi_gemm_params *p = run->p;
    _Alignas(64) float sums[ROWS * COLUMNS];
    const int64_t n0 = task * run->columns;
    const int64_t n1 = min_i64(n0 + run->columns, p->n);
    switch (p->b_dtype) {
    case DS_DTYPE_BF16:
        any_rows(run, DS_DTYPE_BF16, n0, n1, sums);
        break;
    case DS_DTYPE_F16:
        any_rows(run, DS_DTYPE_F16, n0, n1, sums);
        break;
    default:
        any_rows(run, DS_DTYPE_F32, n0, n1, sums);
        break;
    }
    for (int64_t i = 0; i < p->m; ++i) {
        for (int64_t n = n0; n < n1; n += VF_WIDTH) {
            const size_t left = (size_t)min_i64(VF_WIDTH, n1 - n);
            gemm_finish(p, vf_load_n(sums + i * COLUMNS + (n - n0), left), i, n, left);
        }
    }
}

static bool supports(const dsi_gemm_params *p)
{
    return p->m <= ROWS && !p->b_packed;
}

static size_t work_bytes(const dsi_gemm_params *p)
{
    return (size_t)(p->m * ((p->k + 15) / 16 * 16)) * sizeof(float);
}

static void run_gemm(dsi_pool *pool, const dsi_gemm_params *p, void *work)
{
    vector_run run;
    make_run(p, work, &run);
    widen_a(&run);
    dsi_pool_run(pool, column_task, &run, (uint32_t)((p->n + run.columns - 1) / run.columns));
}

const dsi_gemm_impl DSI_NAME(dsi_gemm_vector) = {
    .name = "vector",
    .isa = DSI_SIMD_ISA,
    .supports = supports,
    .work_bytes = work_bytes,
    .run = run_gemm,
};
