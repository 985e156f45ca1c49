/* SPDX-License-Identifier: Apache-2.0 */
/* Products of 1 to 4 rows (decoding), or 8 where B is stored (n,k): B is read once as it lies in
 * memory, at the speed of memory.
 *
 * Every sum has the order of gemm_order.h, so that a row has the bits that it has among many; tasks
 * follow the shape, never the number of threads. Lanes are columns of C. B stored (k,n): a task is
 * one block of k and some columns; STREAMS elements of k are read side by side and added to the
 * sums, and the blocks are added in order at the end. B stored (n,k): a task is some columns; rows
 * are turned in registers (gemm_turn.h), NR of them at a time, whose sums stay in registers. A is
 * packed once.
 */
#include "accel/cpu/gemm_impl.h"
#include "accel/cpu/simd/gemm_finish.h"
#include "accel/cpu/simd/gemm_turn.h"
#include "accel/cpu/simd/simd_kernel.h"

#define HINT _MM_HINT_T1 /* the second-level cache: more can be on its way there */

enum {
    ROWS = 8,              /* of A at most, B stored (n,k) */
    PAIRED = VF_WIDTH / 4, /* rows of A at most whose turns go in pairs: registers */
    WIDE_ROWS = 4,         /* likewise, B stored (k,n) */
    STREAMS = 4,           /* elements of k at once, B stored (k,n) */
    WIDE = 512,            /* columns of a task at most, B stored (k,n) */
    TASKS = 64,            /* B stored (n,k): so many, where columns suffice */
    FINISH = 1024,         /* columns that one task adds up */
    ALONE = 1 << 14,       /* sums that one thread adds up sooner than another wakes */
    AHEAD_BYTES = 16384,
    AHEAD_ROW = 4096,
    QUARTER_BYTES = VF_WIDTH * TURN_BYTES / TURN_QUARTERS, /* asked for while as much is read */
    LINE_BYTES = 64,
    STAGE_ROW = KC * 4 + TURN_BYTES, /* bytes; rows start in different sets of the cache */
};

typedef struct vector_run {
    const dsi_gemm_params *p;
    packed *a;    /* (m, k_stride) */
    int64_t rows; /* of a: from 5 on 8, those behind m are zero */
    int64_t k_elements, k_stride;
    float *sums; /* B stored (k,n): (n_blocks, m, n_stride) */
    int64_t n_stride, n_blocks;
    int64_t columns; /* of a task */
    int64_t ahead;   /* bytes to what is asked for, B stored (k,n): some rows */
} vector_run;

static int64_t ceil_div(int64_t x, int64_t y)
{
    return (x + y - 1) / y;
}

static void make_run(const dsi_gemm_params *p, void *work, vector_run *run)
{
    const int64_t size = p->b_dtype == DS_DTYPE_F32 ? 4 : 2;
    *run = (vector_run){.p = p, .a = work, .k_elements = ceil_div(p->k, K_STEP)};
    run->rows = p->m > WIDE_ROWS ? ROWS : p->m;
    run->k_stride = ceil_div(run->k_elements, 16) * 16;
    run->n_blocks = run->k_elements > 0 ? ceil_div(run->k_elements, KC) : 1;
    const int64_t parts = p->b_transposed ? TASKS : ceil_div(p->n, WIDE);
    run->columns = p->n > 0 ? ceil_div(ceil_div(p->n, parts), 64) * 64 : 64;
    run->n_stride = ceil_div(p->n, run->columns) * run->columns;
    run->ahead = (AHEAD_BYTES / (run->columns * size) + STREAMS * K_STEP) * p->ldb * size;
    run->sums = work != NULL ? (float *)(void *)(run->a + run->rows * run->k_stride) : NULL;
}

/* A's rows as elements, zero behind the last k. */
static void pack_a(const vector_run *run)
{
    const dsi_gemm_params *p = run->p;
    const int64_t row_step = p->a_transposed ? 1 : p->lda;
    const int64_t k_step = p->a_transposed ? p->lda : 1;
    for (int64_t i = 0; i < p->m; ++i) {
        packed *out = run->a + i * run->k_stride;
#if defined(DSI_ISA_avx512_bf16)
        const uint16_t *from = (const uint16_t *)p->a + i * row_step;
        for (int64_t k = 0; k < p->k; k += 2) {
            const uint32_t high = k + 1 < p->k ? from[(k + 1) * k_step] : 0;
            out[k / 2] = from[k * k_step] | high << 16;
        }
#else
        for (int64_t k = 0; !p->a_transposed && k < p->k; k += VF_WIDTH) {
            const size_t at = (size_t)(i * p->lda + k);
            const size_t n = (size_t)min_i64(VF_WIDTH, p->k - k);
            DSI_BY_TYPE(p->a_dtype, vf_store(out + k, vf_get_upto(p->a, T, at, n)));
        }
        for (int64_t k = 0; p->a_transposed && k < p->k; ++k) {
            out[k] = dsi_gemm_load(p->a, p->a_dtype, i * row_step + k * k_step);
        }
#endif
    }
    memset(run->a + p->m * run->k_stride, 0,
           sizeof(packed) * (size_t)((run->rows - p->m) * run->k_stride));
}

DSI_INLINE int64_t element_bytes(ds_dtype type)
{
    return K_STEP * (type == DS_DTYPE_F32 ? 4 : 2);
}

/* ---- B stored (n,k)
 * ------------------------------------------------------------------------------ */
/* NR rows of B from an element on, as they lie. */
typedef struct tall_block {
    const char *at;
    int64_t stride; /* bytes between rows */
    int64_t k0, n;  /* elements */
} tall_block;

/* What comes next, asked for in the order in which it lies: `width` bytes of a row, then of the row
 * behind it. Reading NR rows side by side is far from what memory likes; this is not. */
typedef struct tall_ahead {
    const char *row, *at;
    int64_t width, stride;
} tall_ahead;

/* Called when a quarter's bytes behind x->at have been asked for. */
DSI_INLINE void move_ahead(tall_ahead *x)
{
    x->at += QUARTER_BYTES;
    if (x->at - x->row >= x->width) {
        x->row += x->stride;
        x->at = x->row;
    }
}

/* VF_WIDTH rows of B as they are loaded, for vector v of the columns. */
typedef struct turn {
    vi rows[TURN_QUARTERS][4];
    const packed *a; /* row 0 of A at the first element */
    int v;
} turn;

DSI_INLINE void turn_begin(const vector_run *run, const tall_block *b, ds_dtype type, int v,
                           int64_t k, turn *t)
{
    t->a = run->a + b->k0 + k;
    t->v = v;
    turn_rows(b->at + v * VF_WIDTH * b->stride + k * element_bytes(type), b->stride, t->rows);
}

/* sum[i] += A[i]·B over element e of quarter q, whose words are given. */
DSI_INLINE void turn_add(const vector_run *run, ds_dtype type, int rows, const turn *t, int q,
                         const vi words[4], int64_t e, vf sum[ROWS][NV])
{
    const packed_vf x = turn_element(words, type, e);
    const packed *a = t->a + q * turn_elements(type) / TURN_QUARTERS + e;
#pragma GCC unroll 8
    for (int i = 0; i < rows; ++i) {
        sum[i][t->v] = packed_fma(packed_set(a[i * run->k_stride]), x, sum[i][t->v]);
    }
}

/* The last half of one turn beside the first half of another: a chain of multiply-adds alone waits
 * for itself. It reads two quarters and asks for one, so that of what comes next the first half of
 * the rows is asked for: one row of A takes 7 % longer where all are
 * (docs/measurements/quantized.md). */
DSI_INLINE void add_halves(const vector_run *run, ds_dtype type, int rows, const turn *last,
                           const turn *first, tall_ahead *ahead, vf sum[ROWS][NV])
{
#pragma GCC unroll 2
    for (int q = 0; q < TURN_QUARTERS / 2; ++q) {
        vi old[4];
        vi new[4];
        turn_square(last->rows[TURN_QUARTERS / 2 + q], old);
        turn_square(first->rows[q], new);
#pragma GCC unroll 8
        for (int64_t e = 0; e < turn_elements(type) / TURN_QUARTERS; ++e) {
            if (e < QUARTER_BYTES / LINE_BYTES) {
                _mm_prefetch(ahead->at + e * LINE_BYTES, HINT);
            }
            turn_add(run, type, rows, last, TURN_QUARTERS / 2 + q, old, e, sum);
            turn_add(run, type, rows, first, q, new, e, sum);
        }
        move_ahead(ahead);
    }
}

/* A half of a turn alone, from quarter q on. */
DSI_INLINE void add_half(const vector_run *run, ds_dtype type, int rows, const turn *t, int q,
                         tall_ahead *ahead, vf sum[ROWS][NV])
{
#pragma GCC unroll 2
    for (int i = q; i < q + TURN_QUARTERS / 2; ++i) {
        vi words[4];
        turn_square(t->rows[i], words);
#pragma GCC unroll 8
        for (int64_t e = 0; e < turn_elements(type) / TURN_QUARTERS; ++e) {
            if (e < QUARTER_BYTES / LINE_BYTES) {
                _mm_prefetch(ahead->at + e * LINE_BYTES, HINT);
            }
            turn_add(run, type, rows, t, i, words, e, sum);
        }
        move_ahead(ahead);
    }
}

/* The first n elements of a turn, alone. */
DSI_INLINE void add_turn(const vector_run *run, const tall_block *b, tall_ahead *ahead,
                         ds_dtype type, int rows, int v, int64_t k, int64_t n, vf sum[ROWS][NV])
{
    const packed *a = run->a + b->k0 + k;
#pragma GCC unroll 4
    for (int q = 0; q < TURN_QUARTERS; ++q) {
        for (int64_t line = 0; line < QUARTER_BYTES; line += LINE_BYTES) {
            _mm_prefetch(ahead->at + line, HINT);
        }
        move_ahead(ahead);
    }
    vi words[VF_WIDTH];
    turn_words(b->at + v * VF_WIDTH * b->stride + k * element_bytes(type), b->stride, words);
#pragma GCC unroll 32
    for (int64_t e = 0; e < n; ++e) {
        const packed_vf x = turn_element(words, type, e);
#pragma GCC unroll 8
        for (int i = 0; i < rows; ++i) {
            sum[i][v] = packed_fma(packed_set(a[i * run->k_stride + e]), x, sum[i][v]);
        }
    }
}

/* The sums of n whole turns. rows: a constant. */
DSI_INLINE void add_turns(const vector_run *run, const tall_block *b, tall_ahead *ahead,
                          ds_dtype type, int rows, int64_t n, vf sum[ROWS][NV])
{
    const int64_t in_turn = turn_elements(type);
    turn low;
    turn high;
    if (rows > PAIRED) {
        for (int64_t k = 0; k < n * in_turn; k += in_turn) {
            add_turn(run, b, ahead, type, rows, 0, k, in_turn, sum);
            add_turn(run, b, ahead, type, rows, 1, k, in_turn, sum);
        }
        return;
    }
    turn_begin(run, b, type, 0, 0, &low);
    add_half(run, type, rows, &low, 0, ahead, sum);
    for (int64_t i = 1; i < n; ++i) {
        turn_begin(run, b, type, 1, (i - 1) * in_turn, &high);
        add_halves(run, type, rows, &low, &high, ahead, sum);
        turn_begin(run, b, type, 0, i * in_turn, &low);
        add_halves(run, type, rows, &high, &low, ahead, sum);
    }
    turn_begin(run, b, type, 1, (n - 1) * in_turn, &high);
    add_halves(run, type, rows, &low, &high, ahead, sum);
    add_half(run, type, rows, &high, TURN_QUARTERS / 2, ahead, sum);
}

/* The sums of one block of k. rows: a constant. */
DSI_INLINE void dot_block(const vector_run *run, const tall_block *b, tall_ahead *ahead,
                          ds_dtype type, int rows, vf sum[ROWS][NV])
{
    const int64_t turns = b->n / turn_elements(type);
    const int64_t k = turns * turn_elements(type);
    for (int i = 0; i < rows; ++i) {
        for (int v = 0; v < NV; ++v) {
            sum[i][v] = vf_zero();
        }
    }
    if (turns > 0) {
        add_turns(run, b, ahead, type, rows, turns, sum);
    }
    if (k < b->n) { /* staged: what lies behind it may be read */
        add_turn(run, b, ahead, type, rows, 0, k, b->n - k, sum);
        add_turn(run, b, ahead, type, rows, 1, k, b->n - k, sum);
    }
}

/* Columns n0.. of one block of k, copied with zeros beyond B's edges, where whole loads would run
 * past them. */
static void stage(const vector_run *run, int64_t n0, tall_block *b, char *out)
{
    const dsi_gemm_params *p = run->p;
    const int64_t size = p->b_dtype == DS_DTYPE_F32 ? 4 : 2;
    const int64_t bytes = min_i64(b->n * K_STEP, p->k - b->k0 * K_STEP) * size;
    for (int64_t i = 0; i < NR; ++i, out += STAGE_ROW) {
        const int64_t copied = n0 + i < p->n ? bytes : 0;
        if (copied > 0) {
            memcpy(out, b->at + i * b->stride, (size_t)copied);
        }
        memset(out + copied, 0, (size_t)(STAGE_ROW - copied));
    }
    b->at = out - NR * STAGE_ROW;
    b->stride = STAGE_ROW;
}

/* The sums of columns [n0,n0+NR). rows: a constant. */
DSI_INLINE void dot_tile(const vector_run *run, ds_dtype type, int rows, int64_t n0,
                         vf total[ROWS][NV])
{
    _Alignas(64) char staged[NR * STAGE_ROW];
    const dsi_gemm_params *p = run->p;
    const int64_t stride = p->ldb * (type == DS_DTYPE_F32 ? 4 : 2);
    const int64_t blocks = ceil_div(run->k_elements + 1, KC);
    const int64_t panel = /* of k: what is asked for at once, NR rows of about 4 KiB */
        ceil_div(blocks, ceil_div(blocks * KC * element_bytes(type), AHEAD_ROW)) * KC;
    const char *row = (const char *)p->b + n0 * stride;
    tall_ahead ahead = {row, row, panel * element_bytes(type), stride};
    for (int64_t k0 = 0; k0 == 0 || k0 < run->k_elements; k0 += KC) {
        if (k0 % panel == 0) {
            const bool last = k0 + panel >= run->k_elements;
            ahead.row = last ? row + NR * stride : row + (k0 + panel) * element_bytes(type);
            ahead.at = ahead.row;
            ahead.width =
                min_i64(panel, run->k_elements - (last ? 0 : k0 + panel)) * element_bytes(type);
        }
        tall_block b = {.at = row + k0 * element_bytes(type),
                        .stride = stride,
                        .k0 = k0,
                        .n = min_i64(KC, run->k_elements - k0)};
        if (n0 + NR > p->n || b.n % turn_elements(type) != 0 ||
            (k0 + KC >= run->k_elements && p->k % K_STEP != 0)) {
            stage(run, n0, &b, staged);
        }
        vf sum[ROWS][NV];
        dot_block(run, &b, &ahead, type, rows, sum);
        for (int i = 0; i < rows; ++i) {
            for (int v = 0; v < NV; ++v) {
                total[i][v] = k0 == 0 ? sum[i][v] : vf_add(total[i][v], sum[i][v]);
            }
        }
    }
}

DSI_INLINE void dot_task(const vector_run *run, ds_dtype type, int rows, int64_t n0, int64_t n1,
                         int64_t block)
{
    (void)block;
    for (; n0 < n1; n0 += NR) {
        vf total[ROWS][NV];
        dot_tile(run, type, rows, n0, total);
        for (int i = 0; i < rows && i < run->p->m; ++i) {
            for (int v = 0; v < NV && n0 + v * VF_WIDTH < n1; ++v) {
                const int64_t n = n0 + v * VF_WIDTH;
                gemm_finish(run->p, total[i][v], i, n, (size_t)min_i64(VF_WIDTH, n1 - n));
            }
        }
    }
}

/* ---- B stored (k,n)
 * ------------------------------------------------------------------------------ */
/* Where an element of k lies: row `at` of B and, of a pair, the row `stride` bytes behind it. */
typedef struct wide_row {
    const char *at;
    int64_t stride;
} wide_row;

/* NR columns of an element; those from `left` on are zero. whole: a constant, left is NR and a pair
 * has both. */
DSI_INLINE void row_vectors(const wide_row *row, ds_dtype type, int64_t byte, bool whole,
                            int64_t left, packed_vf out[NV])
{
#if defined(DSI_ISA_avx512_bf16)
    (void)type;
    const char *at = row->at + byte;
    const __mmask32 mask = gemm_first(left);
    const __m512i even = whole ? _mm512_loadu_si512(at) : _mm512_maskz_loadu_epi16(mask, at);
    const __m512i odd =
        whole ? _mm512_loadu_si512(at + row->stride)
              : _mm512_maskz_loadu_epi16(row->stride > 0 ? mask : 0, at + row->stride);
    __m512i low;
    __m512i high;
    gemm_interleave(even, odd, &low, &high);
    out[0] = (__m512bh)low;
    out[1] = (__m512bh)high;
#else
#pragma GCC unroll 2
    for (int v = 0; v < NV; ++v) {
        const int64_t some = whole ? VF_WIDTH : left - v * VF_WIDTH;
        out[v] = some >= VF_WIDTH ? vf_get(row->at + byte, type, (size_t)(v * VF_WIDTH))
                 : some > 0 ? vf_get_n(row->at + byte, type, (size_t)(v * VF_WIDTH), (size_t)some)
                            : vf_zero();
    }
#endif
}

/* NR columns: sums[i·n_stride + …] += A[i]·B over the elements, in order. rows, streams, whole:
 * constants. */
DSI_INLINE void add_columns(const vector_run *run, const wide_row row[STREAMS],
                            packed_vf a[WIDE_ROWS][STREAMS], ds_dtype type, int rows, int streams,
                            int64_t byte, bool whole, int64_t left, float *sums)
{
    packed_vf b[STREAMS][NV];
#pragma GCC unroll 4
    for (int j = 0; j < streams; ++j) {
        for (int line = 0; line < NR * (type == DS_DTYPE_F32 ? 4 : 2); line += LINE_BYTES) {
            _mm_prefetch(row[j].at + byte + run->ahead + line, HINT);
            if (K_STEP > 1) {
                _mm_prefetch(row[j].at + row[j].stride + byte + run->ahead + line, HINT);
            }
        }
        row_vectors(&row[j], type, byte, whole, left, b[j]);
    }
#pragma GCC unroll 4
    for (int i = 0; i < rows; ++i) {
#pragma GCC unroll 2
        for (int v = 0; v < NV; ++v) {
            float *at = sums + i * run->n_stride + v * VF_WIDTH;
            vf sum = vf_load(at);
#pragma GCC unroll 4
            for (int j = 0; j < streams; ++j) {
                sum = packed_fma(a[i][j], b[j][v], sum);
            }
            vf_store(at, sum);
        }
    }
}

/* sums += A·B over elements k, k+1, …, `streams` of them, columns [n0,n1). rows, streams:
 * constants. */
DSI_INLINE void add_rows(const vector_run *run, ds_dtype type, int rows, int streams, int64_t k,
                         int64_t n0, int64_t n1, float *sums)
{
    const dsi_gemm_params *p = run->p;
    const int64_t size = type == DS_DTYPE_F32 ? 4 : 2;
    const int64_t stride = p->ldb * size;
    packed_vf a[WIDE_ROWS][STREAMS];
    wide_row row[STREAMS];
#pragma GCC unroll 4
    for (int j = 0; j < streams; ++j) {
        row[j].at = (const char *)p->b + (k + j) * K_STEP * stride + n0 * size;
        row[j].stride = (k + j + 1) * K_STEP <= p->k ? stride : 0; /* 0: the last k is odd */
#pragma GCC unroll 4
        for (int i = 0; i < rows; ++i) {
            a[i][j] = packed_set(run->a[i * run->k_stride + k + j]);
        }
    }
    const int64_t columns = n1 - n0;
    const bool both = streams > 1 || K_STEP == 1; /* of every pair */
    int64_t n = 0;
    for (; both && n + NR <= columns; n += NR) {
        add_columns(run, row, a, type, rows, streams, n * size, true, NR, sums + n);
    }
    for (; n < columns; n += NR) {
        add_columns(run, row, a, type, rows, streams, n * size, false, columns - n, sums + n);
    }
}

/* The sums of block `block` of k, columns [n0,n1), into the workspace. */
DSI_INLINE void add_task(const vector_run *run, ds_dtype type, int rows, int64_t n0, int64_t n1,
                         int64_t block)
{
    float *sums = run->sums + block * rows * run->n_stride + n0;
    const int64_t k1 = min_i64((block + 1) * KC, run->k_elements);
    int64_t k = block * KC;
    for (int i = 0; i < rows; ++i) {
        memset(sums + i * run->n_stride, 0, sizeof(float) * (size_t)run->columns);
    }
    for (; k + STREAMS <= k1 && (k + STREAMS) * K_STEP <= run->p->k; k += STREAMS) {
        add_rows(run, type, rows, STREAMS, k, n0, n1, sums);
    }
    for (; k < k1; ++k) {
        add_rows(run, type, rows, 1, k, n0, n1, sums);
    }
}

/* Adds the sums of the blocks in their order. */
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
            for (int64_t block = 1; block < run->n_blocks; ++block) {
                sum = vf_add(sum, vf_load(at + block * p->m * run->n_stride));
            }
            gemm_finish(p, sum, i, n, (size_t)min_i64(VF_WIDTH, n1 - n));
        }
    }
}

/* ---- tasks
 * --------------------------------------------------------------------------------------- */
/* Columns [n0,n1) of C; of one block of k where B is stored (k,n). */
typedef void task_fn(const vector_run *run, int64_t n0, int64_t n1, int64_t block);

/* A function for each case: in one they would share its registers. */
#define TASK(name, kind, TYPE, rows)                                                               \
    static void name(const vector_run *run, int64_t n0, int64_t n1, int64_t block)                 \
    {                                                                                              \
        kind(run, TYPE, rows, n0, n1, block);                                                      \
    }
#define TASKS_OF(kind, TYPE, type)                                                                 \
    TASK(kind##_##type##_1, kind, TYPE, 1)                                                         \
    TASK(kind##_##type##_2, kind, TYPE, 2)                                                         \
    TASK(kind##_##type##_3, kind, TYPE, 3)                                                         \
    TASK(kind##_##type##_4, kind, TYPE, 4)                                                         \
    static task_fn *const kind##_##type[WIDE_ROWS] = {kind##_##type##_1, kind##_##type##_2,        \
                                                      kind##_##type##_3, kind##_##type##_4};
#define TALL_TASKS(TYPE, type)                                                                     \
    TASKS_OF(dot_task, TYPE, type) TASK(dot_task_##type##_8, dot_task, TYPE, 8)
TALL_TASKS(DS_DTYPE_BF16, bf16)
TASKS_OF(add_task, DS_DTYPE_BF16, bf16)
#if !defined(DSI_ISA_avx512_bf16)
TALL_TASKS(DS_DTYPE_F32, f32)
TASKS_OF(add_task, DS_DTYPE_F32, f32)
TALL_TASKS(DS_DTYPE_F16, f16)
TASKS_OF(add_task, DS_DTYPE_F16, f16)
#endif

static task_fn *task_of(const vector_run *run)
{
    const dsi_gemm_params *p = run->p;
    task_fn *const *fn = p->b_transposed ? dot_task_bf16 : add_task_bf16;
    task_fn *many = dot_task_bf16_8;
#if !defined(DSI_ISA_avx512_bf16)
    if (p->b_dtype == DS_DTYPE_F32) {
        fn = p->b_transposed ? dot_task_f32 : add_task_f32;
        many = dot_task_f32_8;
    } else if (p->b_dtype == DS_DTYPE_F16) {
        fn = p->b_transposed ? dot_task_f16 : add_task_f16;
        many = dot_task_f16_8;
    }
#endif
    return run->rows == ROWS ? many : fn[run->rows - 1];
}

static void column_task(void *arg, uint32_t task, uint32_t thread)
{
    (void)thread;
    const vector_run *run = arg;
    const int64_t strips = run->n_stride / run->columns;
    const int64_t n0 = task % strips * run->columns;
    task_of(run)(run, n0, min_i64(n0 + run->columns, run->p->n), task / strips);
}

static bool supports(const dsi_gemm_params *p)
{
    return p->m <= (p->b_transposed ? ROWS : WIDE_ROWS) && !p->b_packed && packed_supports(p);
}

static size_t work_bytes(const dsi_gemm_params *p)
{
    vector_run run;
    make_run(p, NULL, &run);
    const int64_t sums = p->b_transposed ? 0 : run.n_blocks * p->m * run.n_stride;
    return (size_t)(run.rows * run.k_stride + sums) * sizeof(float);
}

static void run_gemm(dsi_pool *pool, const dsi_gemm_params *p, void *work)
{
    vector_run run;
    make_run(p, work, &run);
    pack_a(&run);
    const int64_t strips = run.n_stride / run.columns;
    if (p->b_transposed) {
        dsi_pool_run(pool, column_task, &run, (uint32_t)strips);
        return;
    }
    dsi_pool_run(pool, column_task, &run, (uint32_t)(strips * run.n_blocks));
    const bool alone = run.n_blocks * p->m * p->n <= ALONE;
    dsi_pool_run(alone ? NULL : pool, finish_task, &run, (uint32_t)ceil_div(p->n, FINISH));
}

const dsi_gemm_impl DSI_NAME(dsi_gemm_vector) = {
    .name = "vector",
    .needs = DSI_SIMD_ISA,
    .supports = supports,
    .work_bytes = work_bytes,
    .run = run_gemm,
};
