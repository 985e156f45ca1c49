/* attention for a step of generation: a few queries against all the keys of a cell.
 *
 * Reading keys and values once is the whole cost, so lanes are d and operands are used where they
 * lie. A task is one kv head of one sample and SPAN keys, with all query heads of the group; its
 * result is a maximum, a sum and an output for each query. A second loop joins the spans in order.
 * Called by simd_attention.c.
 */
#include "accel/cpu/simd/simd_attention.h"

enum {
    SPAN = 256,       /* keys of a task: fixed, so that results do not depend on threads */
    MOST_QUERIES = 4, /* of an operator that counts as generation */
    AHEAD = 12,       /* keys between a prefetch and its use */
    Y_VECTORS = 4
};

typedef struct decode_job {
    const ds_kernel_call *call;
    attn_shape s;
    attn_data x;
    int64_t n_spans, width;
    float *top, *sum, *y; /* [sample][head][query][span], y with `width` floats */
    float *scratch;       /* [thread][SPAN + width] */
} decode_job;

bool DSI_NAME(dsi_attn_decodes)(const ds_kernel_sig *sig)
{
    const dsi_attention_attrs *a = sig->attrs;
    return sig->in[0].shape.dims[1] <= MOST_QUERIES && a->packed == 0 && a->dropout == 0.0;
}

static size_t carve(decode_job *job, const attn_shape *s, uint32_t n_threads, void *base)
{
    job->n_spans = (s->n_keys + SPAN - 1) / SPAN;
    job->width = attn_width(s->d);
    const size_t rows = (size_t)(s->n_batch * s->n_heads * s->n_queries * job->n_spans);
    attn_carver c = {base, 0};
    job->top = attn_carve(&c, rows * sizeof(float));
    job->sum = attn_carve(&c, rows * sizeof(float));
    job->y = attn_carve(&c, rows * (size_t)job->width * sizeof(float));
    job->scratch = attn_carve(&c, n_threads * (size_t)(SPAN + job->width) * sizeof(float));
    return c.bytes;
}

size_t DSI_NAME(dsi_attn_decode_work)(const ds_kernel_sig *sig)
{
    const attn_shape s = attn_shape_of(sig, 0);
    decode_job job;
    return carve(&job, &s, sig->n_threads, NULL);
}

/* Keys [begin,end) for one query: elements from `at` on, `stride` apart. */
typedef struct stretch {
    const void *base;
    int64_t at, stride, n, d;
} stretch;

DSI_INLINE void fetch(const stretch *x, ds_dtype type, int64_t j)
{
    const int64_t each = type == DS_DTYPE_F32 ? 4 : 2;
    const char *row = (const char *)x->base + (x->at + (j + AHEAD) * x->stride) * each;
    for (int64_t line = 0; j + AHEAD < x->n && line < x->d * each; line += 64) {
        _mm_prefetch(row + line, _MM_HINT_T0);
    }
}

/* scores[j] = factor·q·k_j; returns the highest. */
DSI_INLINE float score_keys(const stretch *k, const float *q, float factor, float *scores,
                            ds_dtype type)
{
    float top = ATTN_LOWEST;
    const int64_t whole = k->d / VF_WIDTH * VF_WIDTH;
    for (int64_t j = 0; j < k->n; ++j) {
        const size_t at = (size_t)(k->at + j * k->stride);
        vf a = vf_zero();
        fetch(k, type, j);
        for (int64_t c = 0; c < whole; c += VF_WIDTH) {
            a = vf_fma(vf_get(k->base, type, at + (size_t)c), vf_load(q + c), a);
        }
        if (whole < k->d) {
            a = vf_fma(vf_get_n(k->base, type, at + (size_t)whole, (size_t)(k->d - whole)),
                       vf_load(q + whole), a);
        }
        scores[j] = factor * vf_sum(a);
        top = scores[j] > top ? scores[j] : top;
    }
    return top;
}

/* scores to probabilities, in place; n rounded up may be written. Returns their sum. */
static float soften(float *scores, int64_t n, float top)
{
    vf sum = vf_zero();
    for (int64_t j = 0; j < n; j += VF_WIDTH) {
        const size_t left = (size_t)attn_min(VF_WIDTH, n - j);
        const vf p = attn_exp2(vf_sub(vf_load_n(scores + j, left), vf_set(top)));
        vf_store(scores + j, p);
        sum = vf_add(sum, vf_select(vm_first(left), p, vf_zero()));
    }
    return vf_sum(sum);
}

/* y[c..) = Σ p[j]·v_j[c..) for `vectors` whole vectors, or the n < VF_WIDTH elements of a part. */
DSI_INLINE void sum_values(const stretch *v, const float *p, int64_t c, int vectors, size_t part,
                           float *y, ds_dtype type)
{
    vf even[Y_VECTORS];
    vf odd[Y_VECTORS];
    for (int u = 0; u < vectors; ++u) {
        even[u] = vf_zero();
        odd[u] = vf_zero();
    }
    for (int64_t j = 0; j < v->n; ++j) {
        const size_t at = (size_t)(v->at + j * v->stride + c);
        const vf weight = vf_set(p[j]);
        vf *sum = j % 2 == 0 ? even : odd;
        if (c == 0) {
            fetch(v, type, j);
        }
        for (int u = 0; u < vectors; ++u) {
            const size_t from = at + (size_t)(u * VF_WIDTH);
            const vf x =
                part != 0 ? vf_get_n(v->base, type, from, part) : vf_get(v->base, type, from);
            sum[u] = vf_fma(weight, x, sum[u]);
        }
    }
    for (int u = 0; u < vectors; ++u) {
        vf_store(y + c + u * VF_WIDTH, vf_add(even[u], odd[u]));
    }
}

DSI_INLINE void attend_values(const stretch *v, const float *p, float *y, ds_dtype type)
{
    int64_t c = 0;
    for (; c + Y_VECTORS * VF_WIDTH <= v->d; c += Y_VECTORS * VF_WIDTH) {
        sum_values(v, p, c, Y_VECTORS, 0, y, type);
    }
    for (; c + VF_WIDTH <= v->d; c += VF_WIDTH) {
        sum_values(v, p, c, 1, 0, y, type);
    }
    if (c < v->d) {
        sum_values(v, p, c, 1, (size_t)(v->d - c), y, type);
    }
}

/* One query against its visible part of keys [k0,k1). */
DSI_INLINE void attend(const decode_job *job, int64_t b, int64_t h, int64_t i, int64_t k0,
                       float *scratch, ds_dtype type)
{
    const attn_shape *s = &job->s;
    attn_span seen = attn_visible(s, &job->x, b, i);
    seen.first = seen.first > k0 ? seen.first : k0;
    seen.last = attn_min(seen.last, k0 + SPAN);
    const int64_t row = attn_stat_at(s, b, h, i) * job->n_spans + k0 / SPAN;
    if (seen.first >= seen.last) {
        job->sum[row] = 0.0f;
        return;
    }
    float *scores = scratch;
    float *q = scratch + SPAN;
    attn_widen_rows(job->x.q, type, attn_query_at(s, s->q_stride, b, i, h), s->q_stride, 1, s->d, q,
                    job->width);
    stretch x = {job->x.k, attn_key_at(s, b, seen.first, h / s->group), s->kv_stride,
                 seen.last - seen.first, s->d};
    job->top[row] = score_keys(&x, q, (float)(s->a->scale * ATTN_LOG2E), scores, type);
    job->sum[row] = soften(scores, x.n, job->top[row]);
    x.base = job->x.v;
    attend_values(&x, scores, job->y + row * job->width, type);
}

static void span_task(void *arg, uint32_t task, uint32_t thread)
{
    const decode_job *job = arg;
    const attn_shape *s = &job->s;
    const int64_t heads = s->n_batch * s->n_kv;
    const int64_t b = task % heads / s->n_kv;
    const int64_t kv = task % heads % s->n_kv;
    const int64_t k0 = task / heads * SPAN;
    float *scratch = job->scratch + (int64_t)thread * (SPAN + job->width);
    for (int64_t h = kv * s->group; h < (kv + 1) * s->group; ++h) {
        for (int64_t i = 0; i < s->n_queries; ++i) {
            DSI_BY_TYPE(s->type, attend(job, b, h, i, k0, scratch, T))
        }
    }
}

/* Joins the spans of head h of sample b, query by query. */
static void join_query(const decode_job *job, int64_t b, int64_t h, int64_t i, float *y)
{
    const attn_shape *s = &job->s;
    const int64_t at = attn_stat_at(s, b, h, i);
    float *lse = job->call->out[1].data;
    float top = ATTN_LOWEST;
    for (int64_t n = at * job->n_spans; n < (at + 1) * job->n_spans; ++n) {
        top = job->sum[n] != 0.0f && job->top[n] > top ? job->top[n] : top;
    }
    float sum = 0.0f;
    memset(y, 0, (size_t)job->width * sizeof *y);
    for (int64_t n = at * job->n_spans; n < (at + 1) * job->n_spans; ++n) {
        if (job->sum[n] == 0.0f) {
            continue;
        }
        const float weight = exp2f(job->top[n] - top);
        sum = fmaf(weight, job->sum[n], sum);
        for (int64_t c = 0; c < job->width; c += VF_WIDTH) {
            vf_store(y + c,
                     vf_fma(vf_set(weight), vf_load(job->y + n * job->width + c), vf_load(y + c)));
        }
    }
    lse[at] = sum == 0.0f ? -INFINITY : top * (float)ATTN_LN2 + logf(sum);
    attn_narrow_row(y, sum == 0.0f ? 0.0f : 1.0f / sum, s->d, job->call->out[0].data, s->type,
                    attn_query_at(s, s->y_stride, b, i, h));
}

static void join_task(void *arg, uint32_t task, uint32_t thread)
{
    const decode_job *job = arg;
    const attn_shape *s = &job->s;
    float *y = job->scratch + (int64_t)thread * (SPAN + job->width);
    for (int64_t h = 0; h < s->n_heads; ++h) {
        for (int64_t i = 0; i < s->n_queries; ++i) {
            join_query(job, task, h, i, y);
        }
    }
}

ds_status DSI_NAME(dsi_attn_decode)(const ds_kernel_call *call)
{
    decode_job job = {.call = call, .s = attn_shape_of(call->sig, 0)};
    job.x = attn_data_of(call, &job.s, 0, 3, 4, 5);
    (void)carve(&job, &job.s, call->sig->n_threads, call->work);
    ds_parallel(call->ctx, span_task, &job, (uint32_t)(job.s.n_batch * job.s.n_kv * job.n_spans));
    ds_parallel(call->ctx, join_task, &job, (uint32_t)job.s.n_batch);
    return DS_OK;
}
