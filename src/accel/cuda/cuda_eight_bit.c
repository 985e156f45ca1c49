/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/eight_bit.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/eight_bit.h"
#include "base/dynamic_map.h"

#include <string.h>

_Static_assert((int)DSC_8BIT_BLOCK == (int)DSI_8BIT_BLOCK && (int)DSC_8BIT_BLOCK == DSC_BLOCK &&
                   (int)DSI_DYNAMIC_MAP == 256,
               "a thread an element of a block");

_Static_assert(sizeof(dsc_8bit_args) <= 4096, "what every device takes as arguments of a kernel");

enum { IN_PARAM, IN_GRAD, IN_HYPER, IN_FACTOR, IN_MASTER, IN_STATE };
enum { OUT_PARAM, OUT_MASTER, OUT_STATE };
enum { OF_GRAD, OF_HYPER, OF_FACTOR };

static bool is_update(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[IN_PARAM].dtype) && dsc_is_act(sig->in[IN_GRAD].dtype);
}

static bool is_direction(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[OF_GRAD].dtype) && sig->out[0].dtype == DS_DTYPE_F32;
}

/* in, out: the first state; behind the states are their magnitudes. */
static ds_status launch(const ds_kernel_call *call, uint32_t n_states, uint32_t in, uint32_t out,
                        dsc_8bit_args *args)
{
    args->n_states = (int32_t)n_states;
    for (uint32_t k = 0; k < n_states; ++k) {
        args->codes_in[k] = dsc_in(call, in + k);
        args->sizes_in[k] = dsc_in(call, in + n_states + k);
        args->codes[k] = dsc_out(call, out + k);
        args->sizes[k] = dsc_out(call, out + n_states + k);
    }
    memcpy(args->maps[0], dsi_dynamic_map(true), sizeof args->maps[0]);
    memcpy(args->maps[1], dsi_dynamic_map(false), sizeof args->maps[1]);
    const dsc_shape shape =
        dsc_block_an_item((args->update.n + DSC_8BIT_BLOCK - 1) / DSC_8BIT_BLOCK, DSC_8BIT_BLOCK);
    return dsc_launch(call, DSC_FN_eight_bit, &shape, args, sizeof *args);
}

static dsc_optimizer_args update_args(const ds_kernel_call *call)
{
    return (dsc_optimizer_args){.param = dsc_out(call, OUT_PARAM),
                                .master = dsc_out(call, OUT_MASTER),
                                .grad = dsc_in(call, IN_GRAD),
                                .hyper = dsc_in(call, IN_HYPER),
                                .factor = dsc_in(call, IN_FACTOR),
                                .n = ds_shape_count(call->in[IN_PARAM].meta.shape),
                                .param_dtype = (int32_t)call->in[IN_PARAM].meta.dtype,
                                .grad_dtype = (int32_t)call->in[IN_GRAD].meta.dtype};
}

static ds_status run_update(const ds_kernel_call *call, uint32_t n_states)
{
    dsc_8bit_args args = {.update = update_args(call)};
    args.update.eps = (float)((const dsi_optim_attrs *)call->sig->attrs)->eps;
    return launch(call, n_states, IN_STATE, OUT_STATE, &args);
}

static ds_status run_direction(const ds_kernel_call *call, uint32_t n_states)
{
    const dsi_optim_attrs *attrs = call->sig->attrs;
    dsc_8bit_args args = {.update = {.grad = dsc_in(call, OF_GRAD),
                                     .hyper = dsc_in(call, OF_HYPER),
                                     .factor = dsc_in(call, OF_FACTOR),
                                     .n = ds_shape_count(call->in[OF_GRAD].meta.shape),
                                     .grad_dtype = (int32_t)call->in[OF_GRAD].meta.dtype,
                                     .eps = (float)attrs->eps},
                          .direction = dsc_out(call, 0)};
    return launch(call, n_states, OF_FACTOR + 1, 1, &args);
}

static ds_status adam_8bit_run(const ds_kernel_call *call)
{
    return run_update(call, 2);
}

static ds_status ademamix_8bit_run(const ds_kernel_call *call)
{
    return run_update(call, 3);
}

static ds_status adam_8bit_direction_run(const ds_kernel_call *call)
{
    return run_direction(call, 2);
}

static ds_status ademamix_8bit_direction_run(const ds_kernel_call *call)
{
    return run_direction(call, 3);
}

static ds_status adam_8bit_step_run(const ds_kernel_call *call)
{
    const dsi_8bit_step_attrs *attrs = call->sig->attrs;
    const dsc_8bit_step_args args = {.update = update_args(call), .mixes = attrs->mixes != 0};
    const dsc_shape shape = dsc_over_items(args.update.n);
    return dsc_launch(call, DSC_FN_eight_bit_step, &shape, &args, sizeof args);
}

DSC_ROW(adam_8bit, is_update, adam_8bit_run);
DSC_ROW(ademamix_8bit, is_update, ademamix_8bit_run);
DSC_ROW(adam_8bit_direction, is_direction, adam_8bit_direction_run);
DSC_ROW(ademamix_8bit_direction, is_direction, ademamix_8bit_direction_run);
DSC_ROW(adam_8bit_step, is_update, adam_8bit_step_run);
const ds_kernel *const dsc_eight_bit_kernels[] = {
    &adam_8bit_kernel,      &ademamix_8bit_kernel,           &adam_8bit_direction_kernel,
    &adam_8bit_step_kernel, &ademamix_8bit_direction_kernel, NULL};
