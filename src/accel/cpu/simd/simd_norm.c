/* SPDX-License-Identifier: Apache-2.0 */
/* layer_norm and rms_norm: a pass for the mean, one for the variance, one for the output, each over
 * a row that is in cache.
 */
#include "accel/cpu/simd/simd_rows.h"

#include <math.h>

typedef struct norm_job {
    const void *x;
    void *y;
    const float *w, *b; /* widened; b zeros when absent */
    float *mean, *rstd; /* mean NULL: rms */
    size_t C;
    ds_dtype type;
    float eps;
} norm_job;

DSI_INLINE float row_mean(const void *x, ds_dtype type, size_t C)
{
    row_sum sum = row_sum_zero();
#define FULL(i, u)                                                                                 \
    do {                                                                                           \
        vf_fetch(x, type, i);                                                                      \
        sum.part[u] = vf_add(sum.part[u], vf_get(x, type, i));                                     \
    } while (0)
#define TAIL(i, n) sum.part[0] = vf_add(sum.part[0], vf_get_n(x, type, i, n))
    FOR_ROW(C, FULL, TAIL);
#undef FULL
#undef TAIL
    return row_sum_total(sum) / (float)C;
}

/* Mean of (x-mean)². */
DSI_INLINE float row_variance(const void *x, ds_dtype type, size_t C, float mean, bool fetch)
{
    const vf mu = vf_set(mean);
    row_sum sum = row_sum_zero();
#define FULL(i, u)                                                                                 \
    do {                                                                                           \
        const vf d = vf_sub(vf_get(x, type, i), mu);                                               \
        if (fetch) {                                                                               \
            vf_fetch(x, type, i);                                                                  \
        }                                                                                          \
        sum.part[u] = vf_fma(d, d, sum.part[u]);                                                   \
    } while (0)
#define TAIL(i, n)                                                                                 \
    do {                                                                                           \
        const vf d = vf_sub(vf_get_n(x, type, i, n), mu);                                          \
        const vf kept = vf_select(vm_first(n), d, vf_zero());                                      \
        sum.part[0] = vf_fma(kept, kept, sum.part[0]);                                             \
    } while (0)
    FOR_ROW(C, FULL, TAIL);
#undef FULL
#undef TAIL
    return row_sum_total(sum) / (float)C;
}

DSI_INLINE void norm_row(const norm_job *job, size_t row, ds_dtype type, bool centered)
{
    const size_t C = job->C;
    const size_t bytes = type == DS_DTYPE_F32 ? 4 : 2;
    const void *x = (const char *)job->x + row * C * bytes;
    void *y = (char *)job->y + row * C * bytes;
    const float mean = centered ? row_mean(x, type, C) : 0.0f;
    const float rstd = 1.0f / sqrtf(row_variance(x, type, C, mean, !centered) + job->eps);
    const vf mu = vf_set(mean);
    const vf r = vf_set(rstd);
#define NORMED(v, w, b)                                                                            \
    (centered ? vf_fma(vf_mul(vf_sub(v, mu), r), w, b) : vf_mul(vf_mul(v, r), w))
#define FULL(i, u)                                                                                 \
    vf_fetch(y, type, i);                                                                          \
    vf_put(y, type, i,                                                                             \
           NORMED(vf_get(x, type, i), vf_load(job->w + (i)),                                       \
                  centered ? vf_load(job->b + (i)) : vf_zero()))
#define TAIL(i, n)                                                                                 \
    vf_put_n(y, type, i,                                                                           \
             NORMED(vf_get_n(x, type, i, n), vf_load_n(job->w + (i), n),                           \
                    centered ? vf_load_n(job->b + (i), n) : vf_zero()),                            \
             n)
    FOR_ROW(C, FULL, TAIL);
#undef FULL
#undef TAIL
#undef NORMED
    job->rstd[row] = rstd;
    if (centered) {
        job->mean[row] = mean;
    }
}

DSI_INLINE void norm_rows(const norm_job *job, size_t first, size_t last, ds_dtype type)
{
    for (size_t row = first; row < last; ++row) {
        if (job->mean != NULL) {
            norm_row(job, row, type, true);
        } else {
            norm_row(job, row, type, false);
        }
    }
}

static void norm_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const norm_job *job = opaque;
    (void)block;
    DSI_BY_TYPE(job->type, norm_rows(job, first, last, T))
}

static size_t norm_work(const ds_kernel_sig *sig)
{
    return 2 * sizeof(float) * (size_t)ds_shape_last(sig->in[0].shape);
}

static ds_status run_norm(const ds_kernel_call *call, const ds_tensor *b, float *mean, float *rstd)
{
    const ds_tensor *x = &call->in[0];
    const size_t C = (size_t)ds_shape_last(x->meta.shape);
    const size_t n_rows = (size_t)ds_shape_rows(x->meta.shape);
    float *w = call->work;
    if (C == 0 || n_rows == 0) {
        return DS_OK;
    }
    widen_weight(w, input_at(call, 1), C, ((const dsi_norm_attrs *)call->sig->attrs)->shift);
    if (b != NULL) {
        widen(w + C, b, C);
    } else {
        memset(w + C, 0, C * sizeof *w);
    }
    const norm_job job = {x->data,
                          call->out[0].data,
                          w,
                          w + C,
                          mean,
                          rstd,
                          C,
                          x->meta.dtype,
                          (float)((const dsi_norm_attrs *)call->sig->attrs)->eps};
    for_rows(call->ctx, n_rows, row_blocks(n_rows, C, ELEMENT_GRAIN, 1024), norm_block, &job);
    return DS_OK;
}

static ds_status layer_norm_run(const ds_kernel_call *call)
{
    return run_norm(call, input_at(call, 2), call->out[1].data, call->out[2].data);
}

static ds_status rms_norm_run(const ds_kernel_call *call)
{
    return run_norm(call, NULL, NULL, call->out[1].data);
}

DSI_SIMD_KERNEL(layer_norm, all_act_types, norm_work, layer_norm_run);
DSI_SIMD_KERNEL(rms_norm, all_act_types, norm_work, rms_norm_run);
