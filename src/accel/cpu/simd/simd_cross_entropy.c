/* SPDX-License-Identifier: Apache-2.0 */
/* cross_entropy and cross_entropy_backward on whole logits. The form fused with the output
 * projection is with the matrix products.
 */
#include "accel/cpu/simd/simd_exp_rows.h"
#include "accel/cpu/simd/targets.h"

typedef struct ce_job {
    const void *logits;
    const int32_t *targets;
    int32_t ignore;
    const float *lse_in; /* backward */
    float *lse, *losses; /* forward */
    void *dx;
    float scale; /* dloss/count */
    size_t V;
    ds_dtype type;
} ce_job;

static float element_at(const void *x, ds_dtype type, size_t i)
{
    float lanes[VF_WIDTH];
    vf_store(lanes, vf_get_n(x, type, i, 1));
    return lanes[0];
}

DSI_INLINE void ce_rows(const ce_job *job, size_t first, size_t last, ds_dtype type)
{
    const size_t bytes = job->V * (type == DS_DTYPE_F32 ? 4 : 2);
    for (size_t row = first; row < last; ++row) {
        const char *x = (const char *)job->logits + row * bytes;
        const float top = row_max(x, type, job->V);
        const float lse = top + logf(row_exp_sum(x, type, job->V, vf_set(top)));
        const int32_t target = job->targets[row];
        job->lse[row] = lse;
        job->losses[row] = target == job->ignore ? 0.0f : lse - element_at(x, type, (size_t)target);
    }
}

static void ce_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const ce_job *job = opaque;
    (void)block;
    DSI_BY_TYPE(job->type, ce_rows(job, first, last, T))
}

/* dx = (e^(x-lse) - [target])·scale, 0 in ignored rows */
DSI_INLINE void ce_backward_row(const ce_job *job, const void *x, void *dx, size_t row,
                                ds_dtype type)
{
    const bool counts = job->targets[row] != job->ignore;
    const vf lse = vf_set(job->lse_in[row]);
    const vf scale = vf_set(counts ? job->scale : 0.0f);
#define FULL(i, u)                                                                                 \
    vf_fetch(x, type, i);                                                                          \
    vf_fetch(dx, type, i);                                                                         \
    vf_put(dx, type, i, vf_mul(vf_exp(vf_sub(vf_get(x, type, i), lse)), scale))
#define TAIL(i, n)                                                                                 \
    vf_put_n(dx, type, i, vf_mul(vf_exp(vf_sub(vf_get_n(x, type, i, n), lse)), scale), n)
    FOR_ROW(job->V, FULL, TAIL);
#undef FULL
#undef TAIL
    if (counts) {
        const size_t t = (size_t)job->targets[row];
        const vf p = vf_exp(vf_sub(vf_get_n(x, type, t, 1), lse));
        vf_put_n(dx, type, t, vf_mul(vf_sub(p, vf_set(1.0f)), scale), 1);
    }
}

DSI_INLINE void ce_backward_rows(const ce_job *job, size_t first, size_t last, ds_dtype type)
{
    const size_t bytes = job->V * (type == DS_DTYPE_F32 ? 4 : 2);
    for (size_t row = first; row < last; ++row) {
        ce_backward_row(job, (const char *)job->logits + row * bytes, (char *)job->dx + row * bytes,
                        row, type);
    }
}

static void ce_backward_block(const void *opaque, size_t first, size_t last, size_t block)
{
    const ce_job *job = opaque;
    (void)block;
    DSI_BY_TYPE(job->type, ce_backward_rows(job, first, last, T))
}

static size_t cross_entropy_work(const ds_kernel_sig *sig)
{
    return (size_t)ds_shape_rows(sig->in[0].shape) * sizeof(float);
}

static ds_status cross_entropy_run(const ds_kernel_call *call)
{
    const ds_tensor *logits = &call->in[0];
    const size_t n = (size_t)ds_shape_rows(logits->meta.shape);
    const ce_job job = {
        .logits = logits->data,
        .targets = call->in[1].data,
        .ignore = (int32_t)((const dsi_ce_attrs *)call->sig->attrs)->ignore_index,
        .lse = call->out[1].data,
        .losses = call->work,
        .V = (size_t)ds_shape_last(logits->meta.shape),
        .type = logits->meta.dtype,
    };
    DS_TRY(ce_check_targets(call, &call->in[1], (int64_t)job.V));
    for_rows(call->ctx, n, row_blocks(n, job.V, ELEMENT_GRAIN, 1024), ce_block, &job);
    double sum = 0.0;
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) {
        sum += (double)job.losses[i];
        count += job.targets[i] != job.ignore;
    }
    const bool counted = ((const dsi_ce_attrs *)call->sig->attrs)->counted != 0;
    const float rows = counted ? *(const float *)call->in[2].data : (float)count;
    *(float *)call->out[0].data = rows > 0.0f ? (float)(sum / (double)rows) : 0.0f;
    *(float *)call->out[2].data = rows;
    return DS_OK;
}

static ds_status cross_entropy_backward_run(const ds_kernel_call *call)
{
    const ds_tensor *logits = &call->in[1];
    const size_t n = (size_t)ds_shape_rows(logits->meta.shape);
    const float count = *(const float *)call->in[4].data;
    const ce_job job = {
        .logits = logits->data,
        .targets = call->in[2].data,
        .ignore = (int32_t)((const dsi_ce_attrs *)call->sig->attrs)->ignore_index,
        .lse_in = call->in[3].data,
        .dx = call->out[0].data,
        .scale = count > 0.0f ? *(const float *)call->in[0].data / count : 0.0f,
        .V = (size_t)ds_shape_last(logits->meta.shape),
        .type = logits->meta.dtype,
    };
    DS_TRY(ce_check_targets(call, &call->in[2], (int64_t)job.V));
    for_rows(call->ctx, n, row_blocks(n, job.V, ELEMENT_GRAIN, 1024), ce_backward_block, &job);
    return DS_OK;
}

static bool cross_entropy_supports(const ds_kernel_sig *sig)
{
    return is_act_type(sig->in[0].dtype);
}

static bool cross_entropy_backward_supports(const ds_kernel_sig *sig)
{
    return is_act_type(sig->in[1].dtype);
}

DSI_SIMD_KERNEL(cross_entropy, cross_entropy_supports, cross_entropy_work, cross_entropy_run);
DSI_SIMD_KERNEL(cross_entropy_backward, cross_entropy_backward_supports, NULL,
                cross_entropy_backward_run);
