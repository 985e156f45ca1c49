/* Products of 1 to 4 rows (decoding): B is read once, as it lies in memory, at the speed of memory.
 *
 * B stored (n,k): tasks are of columns of C; each result is a dot product along a row of B, in
 * VF_WIDTH partial sums added at the end. B stored (k,n): tasks are of rows of B, one task a thread
 * of the plan; rows are added to the task's sums, and these added in order at the end. Either way a
 * task's rows are cut into STREAMS stretches that are read side by side, a line of each at a time:
 * four long streams with a prefetch 2 KiB ahead reach what a loop that only reads reaches. The
 * number of tasks is a function of the plan's threads. A is widened to fp32 once.
 */
#include "accel/cpu/gemm_impl.h"
#include "accel/cpu/simd/gemm_finish.h"
#include "accel/cpu/simd/simd_kernel.h"

enum {
    ROWS = 4,        /* of A at most */
    STREAMS = 4,     /* rows of B at once */
    COLUMNS = 512,   /* of a task over columns, at most: 8 KiB of sums */
    STRETCH = 4096,  /* columns of C whose sums are added to before the next: 16 KiB a row */
    LEAST_PART = 8,  /* rows of B of a task */
    FINISH = 1024,   /* columns that one task adds up */
    ALONE = 1 << 14, /* sums that one thread adds up sooner than another wakes */
    LINE_BYTES = 64,
    AHEAD_BYTES = 2048
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
    const int64_t part = (p->k + lanes - 1) / lanes;
    run->part = part <= LEAST_PART ? LEAST_PART : (part + STREAMS - 1) / STREAMS * STREAMS;
    run->n_parts = p->b_transposed || p->k == 0 ? 1 : (p->k + run->part - 1) / run->part;
    run->sums = work != NULL ? run->a + p->m * run->k_stride : NULL;
}

static void widen_a(const vector_run *run)
{
    const dsi_gemm_params *p = run->p;
    for (int64_t i = 0; i < p->m; ++i) {
        float *out = run->a + i * run->k_stride;
        for (int64_t k = 0; !p->a_transposed && k < p->k; k += VF_WIDTH) {
            const int64_t at = i * p->lda + k;
            const size_t n = (size_t)min_i64(VF_WIDTH, p->k - k);
            DSI_BY_TYPE(p->a_dtype, vf_store(out + k, vf_get_upto(p->a, T, (size_t)at, n)));
        }
        for (int64_t k = 0; p->a_transposed && k < run->k_stride; ++k) {
            out[k] = k < p->k ? dsi_gemm_load(p->a, p->a_dtype, k * p->lda + i) : 0.0f;
        }
    }
}

DSI_INLINE int64_t element_bytes(ds_dtype type)
{
    return type == DS_DTYPE_F32 ? 4 : 2;
}

DSI_INLINE void fetch(const dsi_gemm_params *p, ds_dtype type, int64_t at)
{
    _mm_prefetch((const char *)p->b + at * element_bytes(type) + AHEAD_BYTES, _MM_HINT_T0);
}

/* ---- B stored (n,k)
 * ------------------------------------------------------------------------------ */
/* sum[i][j] += A[i, k..k+n)·B[row j, k..k+n), n elements of a line; rows, dots, n: constants where
 * speed matters. */
DSI_INLINE void dot_line(const vector_run *run, ds_dtype type, const int64_t *at, int64_t k,
                         int64_t n, int rows, int dots, vf sum[ROWS][STREAMS])
{
    const void *b = run->p->b;
    for (int j = 0; j < dots; ++j) {
        fetch(run->p, type, at[j] + k);
    }
    for (int64_t v = 0; v < n; v += VF_WIDTH) {
        const size_t left = (size_t)min_i64(VF_WIDTH, n - v);
        for (int i = 0; i < rows; ++i) {
            const float *a = run->a + i * run->k_stride + k + v; /* padded with zeros */
            for (int j = 0; j < dots; ++j) {
                sum[i][j] = vf_fma(vf_load(a), gemm_get(b, type, at[j] + k + v, left), sum[i][j]);
            }
        }
    }
}

/* rows, dots: constants. out[i·STREAMS + j] = A[i]·B[n + j·apart] */
DSI_INLINE void dot_rows(const vector_run *run, ds_dtype type, int64_t n, int64_t apart, int rows,
                         int dots, float *out)
{
    const dsi_gemm_params *p = run->p;
    const int64_t line = LINE_BYTES / element_bytes(type);
    const int64_t whole = p->k / line * line;
    int64_t at[STREAMS];
    vf sum[ROWS][STREAMS];
    for (int j = 0; j < dots; ++j) {
        at[j] = (n + j * apart) * p->ldb;
        for (int i = 0; i < rows; ++i) {
            sum[i][j] = vf_zero();
        }
    }
    for (int64_t k = 0; k < whole; k += line) {
        dot_line(run, type, at, k, line, rows, dots, sum);
    }
    if (whole < p->k) {
        dot_line(run, type, at, whole, p->k - whole, rows, dots, sum);
    }
    for (int i = 0; i < rows; ++i) {
        for (int j = 0; j < dots; ++j) {
            out[i * STREAMS + j] = vf_sum(sum[i][j]);
        }
    }
}

DSI_INLINE void dot_task(const vector_run *run, ds_dtype type, int rows, int64_t n0, int64_t n1,
                         float *sums)
{
    float out[ROWS * STREAMS];
    const int64_t apart = (n1 - n0) / STREAMS;
    for (int64_t n = n0; n < n0 + apart; ++n) {
        dot_rows(run, type, n, apart, rows, STREAMS, out);
        for (int i = 0; i < rows; ++i) {
            for (int j = 0; j < STREAMS; ++j) {
                sums[i * COLUMNS + (n - n0) + j * apart] = out[i * STREAMS + j];
            }
        }
    }
    for (int64_t n = n0 + STREAMS * apart; n < n1; ++n) {
        dot_rows(run, type, n, 0, rows, 1, out);
        for (int i = 0; i < rows; ++i) {
            sums[i * COLUMNS + (n - n0)] = out[i * STREAMS];
        }
    }
}

/* ---- B stored (k,n)
 * ------------------------------------------------------------------------------ */
/* sums[i·n_stride + v] += Σ over j of a[i][j]·B[at[j] + v] for v in [0, n), n elements of a line;
 * rows, streams, n: constants where speed matters. */
DSI_INLINE void add_line(const vector_run *run, ds_dtype type, const int64_t *at, int64_t n,
                         int rows, int streams, vf a[ROWS][STREAMS], float *sums)
{
    for (int j = 0; j < streams; ++j) {
        fetch(run->p, type, at[j]);
    }
    for (int64_t v = 0; v < n; v += VF_WIDTH) {
        const size_t left = (size_t)min_i64(VF_WIDTH, n - v);
        vf b[STREAMS];
        for (int j = 0; j < streams; ++j) {
            b[j] = gemm_get(run->p->b, type, at[j] + v, left);
        }
        for (int i = 0; i < rows; ++i) {
            vf sum = vf_load(sums + i * run->n_stride + v);
            for (int j = 0; j < streams; ++j) {
                sum = vf_fma(a[i][j], b[j], sum);
            }
            vf_store(sums + i * run->n_stride + v, sum);
        }
    }
}

/* rows, streams: constants. Rows k, k + apart, … of B, columns [n0, n1). */
DSI_INLINE void add_rows(const vector_run *run, ds_dtype type, int rows, int streams, int64_t k,
                         int64_t apart, int64_t n0, int64_t n1, float *sums)
{
    const int64_t line = LINE_BYTES / element_bytes(type);
    const int64_t whole = n0 + (n1 - n0) / line * line;
    int64_t at[STREAMS];
    vf a[ROWS][STREAMS];
    for (int j = 0; j < streams; ++j) {
        at[j] = (k + j * apart) * run->p->ldb + n0;
        for (int i = 0; i < rows; ++i) {
            a[i][j] = vf_set(run->a[i * run->k_stride + k + j * apart]);
        }
    }
    for (int64_t n = n0; n < whole; n += line) {
        add_line(run, type, at, line, rows, streams, a, sums + n);
        for (int j = 0; j < streams; ++j) {
            at[j] += line;
        }
    }
    if (whole < n1) {
        add_line(run, type, at, n1 - whole, rows, streams, a, sums + whole);
    }
}

DSI_INLINE void add_task(const vector_run *run, ds_dtype type, int rows, int64_t k0, int64_t k1,
                         float *sums)
{
    const int64_t apart = (k1 - k0) / STREAMS;
    memset(sums, 0, sizeof(float) * (size_t)(rows * run->n_stride));
    for (int64_t n0 = 0; n0 < run->p->n; n0 += STRETCH) {
        const int64_t n1 = min_i64(n0 + STRETCH, run->p->n);
        for (int64_t k = k0; k < k0 + apart; ++k) {
            add_rows(run, type, rows, STREAMS, k, apart, n0, n1, sums);
        }
        for (int64_t k = k0 + STREAMS * apart; k < k1; ++k) {
            add_rows(run, type, rows, 1, k, 0, n0, n1, sums);
        }
    }
}

/* ---- tasks
 * --------------------------------------------------------------------------------------- */
/* from, to: columns of C, or rows of B. */
typedef void task_fn(const vector_run *run, int64_t from, int64_t to, float *sums);

/* A function for each case: in one they would share its registers. */
#define TASK(name, kind, TYPE, rows)                                                               \
    static void name(const vector_run *run, int64_t from, int64_t to, float *sums)                 \
    {                                                                                              \
        kind(run, TYPE, rows, from, to, sums);                                                     \
    }
#define TASKS(kind, TYPE, type)                                                                    \
    TASK(kind##_##type##_1, kind, TYPE, 1)                                                         \
    TASK(kind##_##type##_2, kind, TYPE, 2)                                                         \
    TASK(kind##_##type##_3, kind, TYPE, 3)                                                         \
    TASK(kind##_##type##_4, kind, TYPE, 4)                                                         \
    static task_fn *const kind##_##type[ROWS] = {kind##_##type##_1, kind##_##type##_2,             \
                                                 kind##_##type##_3, kind##_##type##_4};
TASKS(dot_task, DS_DTYPE_F32, f32)
TASKS(dot_task, DS_DTYPE_BF16, bf16)
TASKS(dot_task, DS_DTYPE_F16, f16)
TASKS(add_task, DS_DTYPE_F32, f32)
TASKS(add_task, DS_DTYPE_BF16, bf16)
TASKS(add_task, DS_DTYPE_F16, f16)

static void any_task(const vector_run *run, int64_t from, int64_t to, float *sums)
{
    const dsi_gemm_params *p = run->p;
    task_fn *const *fn = p->b_transposed ? dot_task_f32 : add_task_f32;
    if (p->b_dtype == DS_DTYPE_BF16) {
        fn = p->b_transposed ? dot_task_bf16 : add_task_bf16;
    } else if (p->b_dtype == DS_DTYPE_F16) {
        fn = p->b_transposed ? dot_task_f16 : add_task_f16;
    }
    fn[p->m - 1](run, from, to, sums);
}

static void column_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    const vector_run *run = arg;
    const dsi_gemm_params *p = run->p;
    _Alignas(64) float sums[ROWS * COLUMNS];
    const int64_t n0 = task * run->columns;
    const int64_t n1 = min_i64(n0 + run->columns, p->n);
    any_task(run, n0, n1, sums);
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
    any_task(run, k0, min_i64(k0 + run->part, run->p->k),
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
    const bool alone = run.n_parts * p->m * p->n <= ALONE;
    dsi_pool_run(alone ? NULL : pool, finish_task, &run, (uint32_t)((p->n + FINISH - 1) / FINISH));
}

const dsi_gemm_impl DSI_NAME(dsi_gemm_vector) = {
    .name = "vector",
    .isa = DSI_SIMD_ISA,
    .supports = supports,
    .work_bytes = work_bytes,
    .run = run_gemm,
};
