/* SPDX-License-Identifier: Apache-2.0 */
/* softmax and softmax_backward over the last dimension: rows in cache, sums in a fixed order. */
#include "accel/cpu/simd/simd_exp_rows.h"

typedef struct softmax_job {
    const void *a, *b; /* x; or dy and y */
    void *out;
    size_t C;
    ds_dtype type;
} softmax_job;

DSI_INLINE void softmax_row(const void *x, void *y, ds_dtype type, size_t C)
{
    const vf top = vf_set(row_max(x, type, C));
    const vf scale = vf_set(1.0f / row_exp_sum(x, type, C, top));
#define FULL(i, u)                                                                                 \
    vf_fetch(y, type, i);                                                                          \
    vf_put(y, type, i, vf_mul(vf_exp(vf_sub(vf_get(x, type, i), top)), scale))
#define TAIL(i, n)                                                                                 \
    vf_put_n(y, type, i, vf_mul(vf_exp(vf_sub(vf_get_n(x, type, i, n), top)), scale), n)
    FOR_ROW(C, FULL, TAIL);
#undef FULL
#undef TAIL
}

/* dx = y·(dy - Σ dy·y) */
DSI_INLINE void softmax_backward_row(const void *dy, const void *y, void *dx, ds_dtype type,
                                     size_t C)
{
    row_sum sum = row_sum_zero();
#define FULL(i, u)                                                                                 \
    do {                                                                                           \
        vf_fetch(dy, type, i);                                                                     \
        vf_fetch(y, type, i);                                                                      \
        sum.part[u] = vf_fma(vf_get(dy, type, i), vf_get(y, type, i), sum.part[u]);                \
    } while (0)
#define TAIL(i, n)                                                                                 \
    sum.part[0] = vf_fma(vf_get_n(dy, type, i, n), vf_get_n(y, type, i, n), sum.part[0])
    FOR_ROW(C, FULL, TAIL);
#undef FULL
#undef TAIL
    const vf dot = vf_set(row_sum_total(sum));
#define FULL(i, u)                                                                                 \
    vf_fetch(dx, type, i);                                                                         \
    vf_put(dx, type, i, vf_mul(vf_get(y, type, i), vf_sub(vf_get(dy, type, i), dot)))
#define TAIL(i, n)                                                                                 \
    vf_put_n(dx, type, i, vf_mul(vf_get_n(y, type, i, n), vf_sub(vf_get_n(dy, type, i, n), dot)), n)
    FOR_ROW(C, FULL, TAIL);
#undef FULL
#undef TAIL
}

DSI_INLINE void softmax_rows(const softmax_job *job, size_t first, size_t last, ds_dtype type)
{
    const size_t bytes = job->C * (type == DS_DTYPE_F32 ? 4 : 2);
    for (size_t row = first; row < last; ++row) {
        const char *a = (const char *)job->a + row * bytes;
        char *out = (char *)job->out + row * bytes;
        if (job->b == NULL) {
            softmax_row(a, out, type, job->C);
        } else {
            softmax_backward_row(a, (const char *)job->b + row * bytes, out, type, job->C);
        }
    }
}

static void softmax_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const softmax_job *job = opaque;
    (void)block;
    DSI_BY_TYPE(job->type, softmax_rows(job, first, last, T))
}

static ds_status run_softmax(const ds_kernel_call *call, const void *b)
{
    const ds_tensor *a = &call->in[0];
    const size_t C = (size_t)ds_shape_last(a->meta.shape);
    const size_t n_rows = (size_t)ds_shape_rows(a->meta.shape);
    const softmax_job job = {a->data, b, call->out[0].data, C, a->meta.dtype};
    if (C > 0) {
        for_rows(call->ctx, n_rows, row_blocks(n_rows, C, ELEMENT_GRAIN, 1024), softmax_block,
                 &job);
    }
    return DS_OK;
}

static ds_status softmax_run(const ds_kernel_call *call)
{
    return run_softmax(call, NULL);
}

static ds_status softmax_backward_run(const ds_kernel_call *call)
{
    return run_softmax(call, call->in[1].data);
}

DSI_SIMD_KERNEL(softmax, all_act_types, NULL, softmax_run);
DSI_SIMD_KERNEL(softmax_backward, all_act_types, NULL, softmax_backward_run);
