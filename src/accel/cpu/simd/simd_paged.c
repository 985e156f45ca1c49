/* SPDX-License-Identifier: Apache-2.0 */
/* paged_attention in fp32 vectors, for f32, bf16 and f16 operands, keys and values in codes too,
 * which become fp32 a block of keys at a time.
 *
 * Tokens that follow each other in a sequence are a run; a task is one kv head of a run of at most
 * MOST_RUN tokens, with all query heads of the group (or some of them, where there are fewer tasks
 * than threads). Blocks of keys are counted from position 0, each row goes over them by itself
 * (simd_attn_keys.h), and no sum crosses a task: a token has the same bits whatever runs beside it,
 * and those of `attention` in a step of generation.
 */
#include "accel/cpu/paged_shape.h"
#include "accel/cpu/simd/simd_attn_keys.h"

enum { MOST_RUN = 16 };

typedef struct paged_run {
    int32_t first, n; /* tokens */
} paged_run;

typedef struct paged_job {
    const ds_kernel_call *call;
    paged_shape s;
    paged_data x;
    ds_dtype type;
    int64_t width;
    paged_run *runs; /* [n_tokens] */
    int64_t n_runs;
    int64_t heads_each;     /* query heads of a task */
    float *turned, *scores; /* a thread's: [d][ATTN_KEYS], [ATTN_KEYS] */
    float *wide;            /* of cells in codes: [ATTN_KEYS][width] */
    float *q, *y;           /* [row][width], rows: heads of the group × tokens */
    float *top, *sum;       /* [row] */
} paged_job;

static size_t carve(paged_job *job, void *base)
{
    const size_t rows = (size_t)(job->s.group * MOST_RUN);
    const size_t row_bytes = (size_t)attn_width(job->s.d) * sizeof(float);
    attn_carver c = {base, 0};
    job->width = attn_width(job->s.d);
    job->turned = attn_carve(&c, row_bytes * ATTN_KEYS);
    job->scores = attn_carve(&c, ATTN_KEYS * sizeof(float));
    job->wide = attn_carve(&c, job->s.kv_type == DS_DTYPE_I8 ? row_bytes * ATTN_KEYS : 0);
    job->q = attn_carve(&c, rows * row_bytes);
    job->y = attn_carve(&c, rows * row_bytes);
    job->top = attn_carve(&c, rows * sizeof(float));
    job->sum = attn_carve(&c, rows * sizeof(float));
    return c.bytes;
}

static size_t runs_bytes(const paged_shape *s)
{
    return ((size_t)s->n_tokens * sizeof(paged_run) + 63) / 64 * 64;
}

static size_t work_bytes(const ds_kernel_sig *sig)
{
    paged_job job = {.s = paged_shape_of(sig)};
    return runs_bytes(&job.s) + carve(&job, NULL) * sig->n_threads;
}

/* Tokens that follow each other in one sequence. */
static void find_runs(paged_job *job)
{
    const paged_data *x = &job->x;
    for (int64_t t = 0; t < job->s.n_tokens; ++t) {
        paged_run *last = job->n_runs > 0 ? &job->runs[job->n_runs - 1] : NULL;
        if (x->sequence[t] < 0) {
            continue;
        }
        if (last != NULL && last->n < MOST_RUN && last->first + last->n == t &&
            x->sequence[t] == x->sequence[t - 1] && x->positions[t] == x->positions[t - 1] + 1) {
            last->n += 1;
        } else {
            job->runs[job->n_runs++] = (paged_run){(int32_t)t, 1};
        }
    }
}

/* Query heads from h0 on, of kv head kv, of a run. */
typedef struct paged_task {
    const paged_job *job; /* its pointers are this thread's */
    paged_run run;
    const int32_t *table;
    int64_t kv, h0, n_rows;
} paged_task;

static int64_t position_of(const paged_task *t, int64_t row)
{
    return t->job->x.positions[t->run.first] + row % t->run.n;
}

static int64_t query_of(const paged_task *t, int64_t row)
{
    const paged_shape *s = &t->job->s;
    return (t->run.first + row % t->run.n) * s->q_stride + (t->h0 + row / t->run.n) * s->d;
}

static attn_bend bend_of(const paged_job *job, int64_t h)
{
    const dsi_paged_attrs *a = job->s.a;
    return attn_bend_with(a->scale, a->cap, paged_slope(&job->s, &job->x, h),
                          a->alibi_rounded != 0);
}

/* What the scores of the first n keys of a block get, whose first is `distance` before the query.
 */
static void add_biases(const paged_shape *s, const float *bias, int64_t distance, int64_t n,
                       float *scores)
{
    for (int64_t j = 0; j < n; ++j) {
        scores[j] += bias[paged_bias_at(s, distance - j)];
    }
}

/* Of scores in the softmax: where they were bent, the scale is in them. */
static float factor_of(const paged_shape *s)
{
    return (float)((s->bends ? 1.0 : s->a->scale) * ATTN_LOG2E);
}

/* n rows of a cell, from element `at` on, as the attention reads them. */
DSI_INLINE stretch rows_of(const paged_job *job, uint32_t operand, int64_t at, int64_t n,
                           ds_dtype type)
{
    enum { ROWS_AHEAD = 4 };
    const paged_shape *s = &job->s;
    const void *data = job->call->in[operand].data;
    if (type != DS_DTYPE_I8) {
        return (stretch){data, at, s->kv_stride, n, s->d};
    }
    for (int64_t j = 0; j < n; ++j) {
        const int8_t *codes = (const int8_t *)data + at + j * s->kv_stride;
        const vf scale = vf_set(paged_scale(codes, s->d));
        for (int64_t c = 0; c < s->kv_head; c += 64) {
            _mm_prefetch((const char *)codes + ROWS_AHEAD * s->kv_stride + c, _MM_HINT_T0);
        }
        for (int64_t c = 0; c < s->d; c += VF_WIDTH) {
            int8_t some[VF_WIDTH] = {0};
            const int8_t *from = codes + c;
            if (s->d - c < VF_WIDTH) {
                memcpy(some, from, (size_t)(s->d - c));
                from = some;
            }
            vf_store(job->wide + j * job->width + c, vf_mul(vf_from_int(vi_load_i8(from)), scale));
        }
    }
    return (stretch){job->wide, 0, job->width, n, s->d};
}

/* Keys from k0 on, up to `end`, of the block that they lie in. */
DSI_INLINE void attend_block(const paged_task *t, int64_t k0, int64_t end, ds_dtype type)
{
    const paged_job *job = t->job;
    const paged_shape *s = &job->s;
    const int64_t n = attn_min(end - k0, ATTN_KEYS);
    const int64_t at =
        (t->table[k0 / s->block] * s->block + k0 % s->block) * s->kv_stride + t->kv * s->kv_head;
    const float factor = factor_of(s);
    const ds_dtype read = type == DS_DTYPE_I8 ? DS_DTYPE_F32 : type;
    const stretch k = rows_of(job, 1, at, n, type);
    turn_keys(&k, job->turned, read);
    const stretch all = rows_of(job, 2, at, n, type); /* where codes of keys were */
    for (int64_t row = 0; row < t->n_rows; ++row) {
        const int64_t position = position_of(t, row);
        const int64_t lowest = paged_first(s, position);
        const int64_t first = lowest > k0 ? lowest - k0 : 0;
        const int64_t last = attn_min(position + 1 - k0, n);
        if (first >= last) {
            continue;
        }
        float *y = job->y + row * job->width;
        score_keys(job->turned, job->q + row * job->width, s->d, job->scores);
        if (s->bends) {
            const attn_bend bend = bend_of(job, t->h0 + row / t->run.n);
            bend_scores(&bend, job->scores, s->a->alibi_rounded != 0 ? k0 : k0 - position);
        }
        if (s->n_distances > 0) {
            const int64_t h = t->h0 + row / t->run.n;
            add_biases(s, job->x.bias + h * s->n_distances, position - k0, last, job->scores);
        }
        const float alpha =
            soften(job->scores, first, last, factor, &job->top[row], &job->sum[row]);
        const stretch v = {all.base, all.at + first * all.stride, all.stride, last - first, s->d};
        attend_values(&v, job->scores + first, alpha, y, read);
    }
}

static void begin_rows(const paged_task *t)
{
    const paged_job *job = t->job;
    for (int64_t row = 0; row < t->n_rows; ++row) {
        attn_widen_rows(job->call->in[0].data, job->type, query_of(t, row), job->s.q_stride, 1,
                        job->s.d, job->q + row * job->width, job->width);
        memset(job->y + row * job->width, 0, (size_t)job->width * sizeof(float));
        job->top[row] = ATTN_LOWEST;
        job->sum[row] = 0.0f;
    }
}

static void run_task(void *arg, uint32_t task, uint32_t thread)
{
    paged_job job = *(const paged_job *)arg;
    const paged_shape *s = &job.s;
    const size_t each = carve(&job, NULL);
    (void)carve(&job, (char *)job.call->work + runs_bytes(s) + thread * each);
    /* later runs of a prompt, which see more, first */
    const int64_t parts = s->a->n_heads / job.heads_each;
    const int64_t h0 = task % parts * job.heads_each;
    const paged_run run = job.runs[job.n_runs - 1 - task / parts];
    const paged_task t = {.job = &job,
                          .run = run,
                          .table = job.x.tables + job.x.sequence[run.first] * s->n_table,
                          .kv = h0 / s->group,
                          .h0 = h0,
                          .n_rows = job.heads_each * run.n};
    const int64_t end = position_of(&t, run.n - 1) + 1;
    float *lse = job.call->out[1].data;
    begin_rows(&t);
    for (int64_t k0 = paged_first(s, position_of(&t, 0)) / ATTN_KEYS * ATTN_KEYS; k0 < end;
         k0 += ATTN_KEYS) {
        if (s->kv_type == DS_DTYPE_I8) {
            attend_block(&t, k0, end, DS_DTYPE_I8);
        } else {
            DSI_BY_TYPE(s->kv_type, attend_block(&t, k0, end, T))
        }
    }
    for (int64_t row = 0; row < t.n_rows; ++row) {
        attn_narrow_row(job.y + row * job.width, 1.0f / job.sum[row], s->d, job.call->out[0].data,
                        job.type, query_of(&t, row));
        lse[(t.h0 + row / run.n) * s->n_tokens + run.first + row % run.n] =
            job.top[row] * factor_of(s) * (float)ATTN_LN2 + logf(job.sum[row]);
    }
}

static bool supports(const ds_kernel_sig *sig)
{
    const paged_shape s = paged_shape_of(sig);
    return is_act_type(sig->in[0].dtype) && (is_act_type(s.kv_type) || s.kv_type == DS_DTYPE_I8) &&
           s.d <= ATTN_MOST_HEAD_DIM && s.a->scale > 0.0 && s.block % ATTN_KEYS == 0 &&
           s.n_tokens < INT32_MAX / 2;
}

static ds_status run(const ds_kernel_call *call)
{
    DS_TRY(attn_check_threads(call));
    paged_job job = {.call = call,
                     .s = paged_shape_of(call->sig),
                     .x = paged_data_of(call),
                     .type = call->sig->in[0].dtype,
                     .runs = call->work};
    DS_TRY(paged_check(call, &job.s, &job.x));
    find_runs(&job);
    float *lse = call->out[1].data;
    const size_t row = (size_t)job.s.q_stride * ds_dtype_bytes(job.type);
    for (int64_t t = 0; t < job.s.n_tokens; ++t) {
        if (job.x.sequence[t] < 0) {
            memset((char *)call->out[0].data + (size_t)t * row, 0, row);
            for (int64_t h = 0; h < job.s.a->n_heads; ++h) {
                lse[h * job.s.n_tokens + t] = -INFINITY;
            }
        }
    }
    const int64_t n_groups = job.n_runs * job.s.a->n_kv_heads;
    const uint32_t n_threads = call->sig->n_threads;
    job.heads_each =
        n_groups < n_threads ? attn_heads_each(job.s.group, n_groups, n_threads) : job.s.group;
    if (job.n_runs > 0) {
        ds_parallel(call->ctx, run_task, &job,
                    (uint32_t)(job.n_runs * (job.s.a->n_heads / job.heads_each)));
    }
    return DS_OK;
}

DSI_SIMD_KERNEL(paged_attention, supports, work_bytes, run);
