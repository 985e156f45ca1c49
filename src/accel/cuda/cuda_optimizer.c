/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/optimizer.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/optimizer.h"

enum { IN_PARAM, IN_GRAD, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE };
enum { OUT_PARAM, OUT_MASTER, OUT_STATE };

/* The kernels know one dtype for all states. */
static bool is_supported(const ds_kernel_sig *sig)
{
    for (uint32_t i = IN_STATE; i < sig->n_in; ++i) {
        if (sig->in[i].dtype != sig->in[IN_STATE].dtype) {
            return false;
        }
    }
    return dsc_is_act(sig->in[IN_PARAM].dtype) && dsc_is_act(sig->in[IN_GRAD].dtype);
}

static ds_status run(const ds_kernel_call *call, dsc_fn fn)
{
    const dsi_optim_attrs *attrs = call->sig->attrs;
    const dsc_optimizer_args args = {
        .param = dsc_out(call, OUT_PARAM),
        .master = dsc_out(call, OUT_MASTER),
        .state = {dsc_out(call, OUT_STATE), dsc_out(call, OUT_STATE + 1),
                  dsc_out(call, OUT_STATE + 2)},
        .grad = dsc_in(call, IN_GRAD),
        .hyper = dsc_in(call, IN_HYPER),
        .factor = dsc_in(call, IN_FACTOR),
        .n = ds_shape_count(call->in[IN_PARAM].meta.shape),
        .param_dtype = (int32_t)call->in[IN_PARAM].meta.dtype,
        .grad_dtype = (int32_t)call->in[IN_GRAD].meta.dtype,
        .state_dtype = IN_STATE < call->sig->n_in ? (int32_t)call->in[IN_STATE].meta.dtype : 0,
        .eps = (float)attrs->eps,
        .undamped = (float)(1.0 - attrs->dampening),
        .adamw = attrs->adamw != 0,
        .nesterov = attrs->nesterov != 0};
    const dsc_shape shape = dsc_over_items(args.n);
    return dsc_launch(call, fn, &shape, &args, sizeof args);
}

#define UPDATE(name)                                                                               \
    static ds_status name##_run(const ds_kernel_call *call)                                        \
    {                                                                                              \
        return run(call, DSC_FN_##name);                                                           \
    }                                                                                              \
    DSC_ROW(name, is_supported, name##_run)

UPDATE(adam);
UPDATE(ademamix);
UPDATE(sgd);
UPDATE(lion);
UPDATE(adagrad);
const ds_kernel *const dsc_optimizer_kernels[] = {&adam_kernel, &ademamix_kernel, &sgd_kernel,
                                                  &lion_kernel, &adagrad_kernel,  NULL};
