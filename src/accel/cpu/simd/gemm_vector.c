/* Products of 1 to 4 rows (decoding): B is read once, as it lies in memory, at the speed of memory.
 *
 * B stored (n,k): tasks are of columns of C; each result is a dot product along a row of B, in
 * VF_WIDTH partial sums added at the end. B stored (k,n): tasks are of rows of B, so that each
 * reads one stretch of memory (strips of columns cost a miss of the address cache every few hundred
 * bytes); rows are added, eight at a time, to the task's sums, and these added in order at the
 * end. The number of tasks is a function of the plan's threads. A is widened to fp32 once.
 */
#include "accel/cpu/gemm_impl.h"
#include "accel/cpu/simd/gemm_finish.h"

enum {
    ROWS = 4,       /* of A at most */
    DOTS = 4,       /* rows of B at once */
    GROUP = 8,      /* rows of B added at once */
    COLUMNS = 512,  /* of a task over columns, at most: 8 KiB of sums */
    STRETCH = 1024, /* columns of B whose rows are added, next GROUP fetched: 2 KiB a row */
    LANE_TASKS = 4, /* over rows of B */
    FINISH = 1024,  /* columns that one task adds up */
    AHEAD_BYTES = 2048,
    MOST_AHEAD_BYTES = 16384
};

typedef struct vector_run {
    const dsi_gemm_params *p;
    float *a; /* (m, k_stride) */
    int64_t k_stride;
    int64_t columns; /* B (n,k): of a task; a multiple of 64 */
    float *sums;     /* B (k,n): (n_parts, m, n_stride) */
    int64_t n_stride, n_parts;
    int64_t part; /* rows of B of a task */
} vector_run;

static int64_t min_i64(int64_t x, int64_t y)
{
    return x < y ? x : y;
}

static int64_t round16(int64_t n)
{
    return (n + 15) / 16 * 16;
}

static void make_run(const dsi_gemm_params *p, void *work, vector_run *run)
{
    const int64_t lanes = p->n_threads > 0 ? p->n_threads : 1;
    const int64_t share = (p->n + 4 * lanes - 1) / (4 * lanes);
    *run = (vector_run){.p = p, .a = work, .k_stride = round16(p->k), .n_stride = round16(p->n)};
    run->columns = min_i64(COLUMNS, (share + 63) / 64 * 64);
    const int64_t part = (p->k + LANE_TASKS * lanes - 1) / (LANE_TASKS * lanes);
    run->part = part <= GROUP ? GROUP : (part + GROUP - 1) / GROUP * GROUP;
    run->n_parts = p->b_transposed || p->k == 0 ? 1 : (p->k + run->part - 1) / run->part;
    run->sums = work != NULL ? run->a + p->m * run->k_stride : NULL;
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
    const size_t next = (size_t)p->ldb * DOTS * size; /* where the next rows are */
    const size_t ahead = next <= MOST_AHEAD_BYTES ? next : AHEAD_BYTES;
    for (int64_t k = 0; k < whole; k += VF_WIDTH) {
        for (int j = 0; j < dots; ++j) {
            const int64_t at = (n + j) * p->ldb + k;
            if ((size_t)k * size % 64 == 0) {
                _mm_prefetch((const char *)p->b + (size_t)at * size + ahead, _MM_HINT_T0);
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
/* sums[i·n_stride + n] += Σ over `group` rows of B from k, for n in [n0, n1). */
DSI_INLINE void add_rows(const vector_run *run, ds_dtype type, int rows, int group, int64_t k,
                         int64_t n0, int64_t n1, float *sums)
{
    const dsi_gemm_params *p = run->p;
    const size_t size = type == DS_DTYPE_F32 ? 4 : 2;
    for (int64_t n = n0; n < n1; n += VF_WIDTH) {
        const size_t left = (size_t)min_i64(VF_WIDTH, n1 - n);
        vf sum[ROWS];
        for (int i = 0; i < rows; ++i) {
            sum[i] = vf_load(sums + i * run->n_stride + n);
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
            vf_store(sums + i * run->n_stride + n, sum[i]);
        }
    }
}

DSI_INLINE void add_task(const vector_run *run, ds_dtype type, int rows, int64_t k0, int64_t k1,
                         float *sums)
{
    memset(sums, 0, sizeof(float) * (size_t)(rows * run->n_stride));
    for (int64_t n0 = 0; n0 < run->p->n; n0 += STRETCH) {
        const int64_t n1 = min_i64(n0 + STRETCH, run->p->n);
        int64_t k = k0;
        for (; k + GROUP <= k1; k += GROUP) {
            add_rows(run, type, rows, GROUP, k, n0, n1, sums);
        }
        for (; k < k1; ++k) {
            add_rows(run, type, rows, 1, k, n0, n1, sums);
        }
    }
}

/* ---- tasks
 * --------------------------------------------------------------------------------------- */
/* from, to: columns of C, or rows of B. */
DSI_INLINE void some_rows(const vector_run *run, ds_dtype type, int rows, int64_t from, int64_t to,
                          float *sums)
{
    if (run->p->b_transposed) {
        dot_task(run, type, rows, from, to, sums);
    } else {
        add_task(run, type, rows, from, to, sums);
    }
}

DSI_INLINE void any_rows(const vector_run *run, ds_dtype type, int64_t from, int64_t to,
                         float *sums)
{
    switch (run->p->m) {
    case 1:
        some_rows(run, type, 1, from, to, sums);
        break;
    case 2:
        some_rows(run, type, 2, from, to, sums);
        break;
    case 3:
        some_rows(run, type, 3, from, to, sums);
        break;
    default:
        some_rows(run, type, 4, from, to, sums);
        break;
    }
}

static void any_type(const vector_run *run, int64_t from, int64_t to, float *sums)
{
    switch (run->p->b_dtype) {
    case DS_DTYPE_BF16:
        any_rows(run, DS_DTYPE_BF16, from, to, sums);
        break;
    case DS_DTYPE_F16:
        any_rows(run, DS_DTYPE_F16, from, to, sums);
        break;
    default:
        any_rows(run, DS_DTYPE_F32, from, to, sums);
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
    any_type(run, n0, n1, sums);
    for (int64_t i = 0; i < p->m; ++i) {
        for (int64_t n = n0; n < n1; n += VF_WIDTH) {
            const size_t left = (size_t)min_i64(VF_WIDTH, n1 - n);
            gemm_finish(p, vf_load_n(sums + i * COLUMNS + (n - n0), left), i, n, left);
        }
    }
}

static void part_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    const vector_run *run = arg;
    const int64_t k0 = task * run->part;
    any_type(run, k0, min_i64(k0 + run->part, run->p->k),
             run->sums + task * run->p->m * run->n_stride);
}

/* Adds the sums of the parts, in their order. */
static void finish_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    const vector_run *run = arg;
    const dsi_gemm_params *p = run->p;
    const int64_t n0 = (int64_t)task * FINISH;
    const int64_t n1 = min_i64(n0 + FINISH, p->n);
    for (int64_t i = 0; i < p->m; ++i) {
        for (int64_t n = n0; n < n1; n += VF_WIDTH) {
            const float *at = run->sums + i * run->n_stride + n;
            vf sum = vf_load(at);
            for (int64_t part = 1; part < run->n_parts; ++part) {
                sum = vf_add(sum, vf_load(at + part * p->m * run->n_stride));
            }
            gemm_finish(p, sum, i, n, (size_t)min_i64(VF_WIDTH, n1 - n));
        }
    }
}

static bool supports(const dsi_gemm_params *p)
{
    return p->m <= ROWS && !p->b_packed;
}

static size_t work_bytes(const dsi_gemm_params *p)
{
    vector_run run;
    make_run(p, NULL, &run);
    const int64_t sums = p->b_transposed ? 0 : run.n_parts * p->m * run.n_stride;
    return (size_t)(p->m * run.k_stride + sums) * sizeof(float);
}

static void run_gemm(dsi_pool *pool, const dsi_gemm_params *p, void *work)
{
    vector_run run;
    make_run(p, work, &run);
    widen_a(&run);
    if (p->b_transposed) {
        const int64_t n_tasks = (p->n + run.columns - 1) / run.columns;
        dsi_pool_run(pool, column_task, &run, (uint32_t)n_tasks);
        return;
    }
    dsi_pool_run(pool, part_task, &run, (uint32_t)run.n_parts);
    dsi_pool_run(pool, finish_task, &run, (uint32_t)((p->n + FINISH - 1) / FINISH));
}

const dsi_gemm_impl DSI_NAME(dsi_gemm_vector) = {
    .name = "vector",
    .isa = DSI_SIMD_ISA,
    .supports = supports,
    .work_bytes = work_bytes,
    .run = run_gemm,
};
