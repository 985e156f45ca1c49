/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/preference.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/preference_loss.h"

#include <deepspeed/preference.h>

_Static_assert((int)DSC_PREFERENCE_SIGMOID == (int)DS_PREFERENCE_SIGMOID &&
                   (int)DSC_PREFERENCE_APO_DOWN == (int)DS_PREFERENCE_APO_DOWN &&
                   (int)DSC_PREFERENCE_ORPO == (int)DS_PREFERENCE_ORPO &&
                   (int)DSC_PREFERENCE_KTO == (int)DS_PREFERENCE_KTO &&
                   (int)DS_PREFERENCE_APO_UNPAIRED == (int)DS_PREFERENCE_KTO + 1 &&
                   (int)DSC_PREFERENCE_LOSSES == (int)DS_PREFERENCE_LOSSES &&
                   (int)DSC_PREFERENCE_SUMS == (int)DSI_PREFERENCE_SUMS,
               "preference.cu has each loss; unpaired ones are the last two");

static bool is_forward(const ds_kernel_sig *sig)
{
    return sig->in[0].dtype == DS_DTYPE_F32;
}

static bool is_backward(const ds_kernel_sig *sig)
{
    return sig->in[1].dtype == DS_DTYPE_F32;
}

static size_t forward_work(const ds_kernel_sig *sig)
{
    return (size_t)sig->in[0].shape.dims[0] * sizeof(dsc_row_sum) + 64;
}

static size_t backward_work(const ds_kernel_sig *sig)
{
    return (size_t)sig->in[1].shape.dims[0] * sizeof(dsc_row_sum) + 64;
}

/* logp, counted, [targets], [ref], [labels], [kl] from input `at` on; the sums of rows are queued.
 */
static ds_status begin(const ds_kernel_call *call, uint32_t at, dsc_preference_args *args)
{
    const dsi_preference_attrs *attrs = call->sig->attrs;
    const ds_shape logp = call->in[at].meta.shape;
    *args = (dsc_preference_args){.logp = dsc_in(call, at),
                                  .counted = dsc_in(call, at + 1),
                                  .targets = dsc_in(call, at + 2),
                                  .ref = dsc_in(call, at + 3),
                                  .labels = dsc_in(call, at + 4),
                                  .kl = dsc_in(call, at + 5),
                                  .rows_sums = call->work,
                                  .rows = logp.dims[0],
                                  .length = logp.dims[1],
                                  .beta = attrs->beta,
                                  .label_smoothing = attrs->label_smoothing,
                                  .gamma = attrs->gamma,
                                  .center = attrs->center,
                                  .desirable_weight = attrs->desirable_weight,
                                  .undesirable_weight = attrs->undesirable_weight,
                                  .loss_is = (int32_t)attrs->loss,
                                  .paired = attrs->loss < DS_PREFERENCE_KTO};
    const dsc_shape shape = dsc_block_an_item(args->rows, DSC_PREFERENCE_THREADS);
    return dsc_launch(call, DSC_FN_preference_rows, &shape, args, sizeof *args);
}

static ds_status preference_run(const ds_kernel_call *call)
{
    const dsc_shape one = dsc_block_an_item(1, 32);
    dsc_preference_args args;
    DS_TRY(begin(call, 0, &args));
    args.loss = dsc_out(call, 0);
    args.count = dsc_out(call, 1);
    args.logps = dsc_out(call, 2);
    args.sums = dsc_out(call, 3);
    return dsc_launch(call, DSC_FN_preference_loss, &one, &args, sizeof args);
}

static ds_status preference_backward_run(const ds_kernel_call *call)
{
    dsc_preference_args args;
    DS_TRY(begin(call, 1, &args));
    args.dloss = dsc_in(call, 0);
    args.dlogp = dsc_out(call, 0);
    const dsc_shape shape = dsc_block_an_item(args.rows, DSC_PREFERENCE_THREADS);
    return dsc_launch(call, DSC_FN_preference_backward, &shape, &args, sizeof args);
}

DSC_ROW_WORK(preference, is_forward, forward_work, preference_run);
DSC_ROW_WORK(preference_backward, is_backward, backward_work, preference_backward_run);
const ds_kernel *const dsc_preference_kernels[] = {&preference_kernel, &preference_backward_kernel,
                                                   NULL};
