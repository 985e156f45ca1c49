/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of activation, glu and their backward operators: items are elements. */
#include "accel/cpu/ref/ref_act.h"

static int64_t kind_of(const ds_kernel_call *call)
{
    const dsi_act_attrs *a = call->sig->attrs;
    return a->kind;
}

static void activation_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        ref_set(&call->out[0], i, ref_act(kind_of(call), ref_get(&call->in[0], i)));
    }
}

static void activation_backward_range(const ds_kernel_call *call, int64_t begin, int64_t end,
                                      uint32_t slot)
{
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const real slope = ref_act_derivative(kind_of(call), ref_get(&call->in[1], i));
        ref_set(&call->out[0], i, ref_get(&call->in[0], i) * slope);
    }
}

static void glu_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const real gate = ref_act(kind_of(call), ref_get(&call->in[0], i));
        ref_set(&call->out[0], i, gate * ref_get(&call->in[1], i));
    }
}

static void glu_backward_range(const ds_kernel_call *call, int64_t begin, int64_t end,
                               uint32_t slot)
{
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const real dy = ref_get(&call->in[0], i);
        const real gate = ref_get(&call->in[1], i);
        const real up = ref_get(&call->in[2], i);
        ref_set(&call->out[0], i, dy * up * ref_act_derivative(kind_of(call), gate));
        ref_set(&call->out[1], i, dy * ref_act(kind_of(call), gate));
    }
}

static ds_status over_elements(const ds_kernel_call *call, dsi_ref_fn fn)
{
    dsi_ref_for(call, ds_shape_count(call->out[0].meta.shape), fn);
    return DS_OK;
}

static ds_status activation_run(const ds_kernel_call *call)
{
    return over_elements(call, activation_range);
}

static ds_status activation_backward_run(const ds_kernel_call *call)
{
    return over_elements(call, activation_backward_range);
}

static ds_status glu_run(const ds_kernel_call *call)
{
    return over_elements(call, glu_range);
}

static ds_status glu_backward_run(const ds_kernel_call *call)
{
    return over_elements(call, glu_backward_range);
}

REF_KERNEL(activation, activation_run, NULL);
REF_KERNEL(activation_backward, activation_backward_run, NULL);
REF_KERNEL(glu, glu_run, NULL);
REF_KERNEL(glu_backward, glu_backward_run, NULL);
const ds_kernel *const DSI_REF(activation)[] = {&activation_kernel, &activation_backward_kernel,
                                                &glu_kernel, &glu_backward_kernel, NULL};
