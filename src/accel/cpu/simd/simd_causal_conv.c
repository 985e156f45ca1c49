/* SPDX-License-Identifier: Apache-2.0 */
/* causal_conv and its gradient: lanes are channels. Rows are split over threads, and for the
 * gradient of the weights blocks of channels, each sum in the reference's order. */
#include "accel/cpu/ref/ref_documents.h"
#include "accel/cpu/simd/simd_kernel.h"

enum { MOST_WIDTH = 16 }; /* of the convolution */

typedef struct layout {
    const ds_tensor *x;
    const int32_t *first; /* NULL: absent */
    const float *w;       /* (K,C) */
    size_t b, t, c, k;
} layout;

/* x at input `at`, then w, of which work becomes the transpose. */
static layout layout_of(const ds_kernel_call *call, uint32_t at, uint32_t first)
{
    const int64_t *x = call->in[at].meta.shape.dims;
    return (layout){.x = &call->in[at],
                    .first = ref_has(call, first) ? call->in[first].data : NULL,
                    .w = call->work,
                    .b = (size_t)x[0],
                    .t = (size_t)x[1],
                    .c = (size_t)x[2],
                    .k = (size_t)call->in[at + 1].meta.shape.dims[2]};
}

static void turn_weight(const ds_kernel_call *call, const layout *l, const ds_tensor *w)
{
    float *to = call->work;
    for (size_t c = 0; c < l->c; ++c) {
        for (size_t j = 0; j < l->k; ++j) {
            to[j * l->c + c] = ref_get(w, (int64_t)(c * l->k + j));
        }
    }
}

static size_t weight_work(const ds_kernel_sig *sig, uint32_t at)
{
    return (size_t)ds_shape_count(sig->in[at].shape) * sizeof(float);
}

static size_t forward_work(const ds_kernel_sig *sig)
{
    return weight_work(sig, 1);
}

static size_t backward_work(const ds_kernel_sig *sig)
{
    return weight_work(sig, 2);
}

static void forward_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 0, 2);
    const ds_dtype type = l.x->meta.dtype;
    (void)slot;
    for (size_t row = (size_t)begin; row < (size_t)end; ++row) {
        const size_t t = row % l.t;
        const size_t since = t - (l.first != NULL ? (size_t)l.first[row] : 0);
        const size_t least = since < l.k - 1 ? l.k - 1 - since : 0;
        for (size_t c = 0; c < l.c; c += VF_WIDTH) {
            const size_t n = l.c - c < VF_WIDTH ? l.c - c : VF_WIDTH;
            vf sum = vf_zero();
            for (size_t j = least; j < l.k; ++j) {
                const size_t from = (row + j + 1 - l.k) * l.c + c;
                sum = vf_fma(vf_load_n(l.w + j * l.c + c, n), vf_get_upto(l.x->data, type, from, n),
                             sum);
            }
            vf_put_upto(call->out[0].data, type, row * l.c + c, sum, n);
        }
    }
}

static ds_status forward_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 0, 2);
    DS_TRY(ref_check_documents(call, l.first, (int64_t)l.b, (int64_t)l.t));
    turn_weight(call, &l, &call->in[1]);
    dsi_ref_for(call, (int64_t)(l.b * l.t), forward_rows);
    return DS_OK;
}

static void dx_rows(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 1, 3);
    const ds_dtype type = l.x->meta.dtype;
    (void)slot;
    for (size_t row = (size_t)begin; row < (size_t)end; ++row) {
        const size_t s = row % l.t;
        size_t reach = 1; /* positions from s on that read it */
        while (reach < l.k && s + reach < l.t &&
               (l.first == NULL || (size_t)l.first[row + reach] <= s)) {
            ++reach;
        }
        for (size_t c = 0; c < l.c; c += VF_WIDTH) {
            const size_t n = l.c - c < VF_WIDTH ? l.c - c : VF_WIDTH;
            vf sum = vf_zero();
            for (size_t back = reach; back > 0; --back) { /* the last position first, as j goes */
                const size_t j = l.k - back;
                sum =
                    vf_fma(vf_load_n(l.w + j * l.c + c, n),
                           vf_get_upto(call->in[0].data, type, (row + back - 1) * l.c + c, n), sum);
            }
            vf_put_upto(call->out[0].data, type, row * l.c + c, sum, n);
        }
    }
}

/* Items: vectors of channels. */
static void dw_channels(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const layout l = layout_of(call, 1, 3);
    const ds_dtype type = l.x->meta.dtype;
    float *dw = call->out[1].data;
    (void)slot;
    for (size_t c = (size_t)begin * VF_WIDTH; c < (size_t)end * VF_WIDTH && c < l.c;
         c += VF_WIDTH) {
        const size_t n = l.c - c < VF_WIDTH ? l.c - c : VF_WIDTH;
        vf sum[MOST_WIDTH];
        for (size_t j = 0; j < l.k; ++j) {
            sum[j] = vf_zero();
        }
        for (size_t row = 0; row < l.b * l.t; ++row) {
            const size_t since = row % l.t - (l.first != NULL ? (size_t)l.first[row] : 0);
            const vf dy = vf_get_upto(call->in[0].data, type, row * l.c + c, n);
            for (size_t j = since < l.k - 1 ? l.k - 1 - since : 0; j < l.k; ++j) {
                const size_t from = (row + j + 1 - l.k) * l.c + c;
                sum[j] = vf_fma(dy, vf_get_upto(l.x->data, type, from, n), sum[j]);
            }
        }
        for (size_t j = 0; j < l.k; ++j) {
            float lanes[VF_WIDTH];
            vf_store(lanes, sum[j]);
            for (size_t i = 0; i < n; ++i) {
                dw[(c + i) * l.k + j] = lanes[i];
            }
        }
    }
}

static ds_status backward_run(const ds_kernel_call *call)
{
    const layout l = layout_of(call, 1, 3);
    DS_TRY(ref_check_documents(call, l.first, (int64_t)l.b, (int64_t)l.t));
    turn_weight(call, &l, &call->in[2]);
    dsi_ref_for(call, (int64_t)(l.b * l.t), dx_rows);
    dsi_ref_for(call, (int64_t)((l.c + VF_WIDTH - 1) / VF_WIDTH), dw_channels);
    return DS_OK;
}

static bool supports(const ds_kernel_sig *sig)
{
    return is_act_type(sig->in[0].dtype);
}

static bool backward_supports(const ds_kernel_sig *sig)
{
    return supports(sig) && ds_shape_last(sig->in[2].shape) <= MOST_WIDTH;
}

DSI_SIMD_KERNEL(causal_conv, supports, forward_work, forward_run);
DSI_SIMD_KERNEL(causal_conv_backward, backward_supports, backward_work, backward_run);
