/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of Muon's own steps: docs/internals/optim.md, operation by operation. */
#include "accel/cpu/ref/ref_real.h"
#include "base/exact_bins.h"
#include "op/ops.h"

enum { IN_PARAM, IN_DIRECTION, IN_HYPER, IN_FACTOR, IN_MASTER };

/* Elements of a matrix, the last two dims. */
static int64_t matrix_size(ds_shape shape)
{
    return shape.dims[shape.n_dims - 2] * shape.dims[shape.n_dims - 1];
}

/* Matrices begin … end - 1; a norm is the same however the work is split. */
static void unit_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ds_tensor *x = &call->in[0];
    const ds_dtype dtype = call->out[0].meta.dtype;
    const int64_t n = matrix_size(x->meta.shape);
    (void)slot;
    for (int64_t at = begin * n; at < end * n; at += n) {
        dsi_exact_bins bins = {{0.0}};
        for (int64_t i = 0; i < n; ++i) {
            dsi_exact_bins_add(&bins, ref_round(dtype, ref_get(x, at + i)));
            if (i % DSI_EXACT_BLOCK == DSI_EXACT_BLOCK - 1) {
                dsi_exact_bins_carry(&bins);
            }
        }
        dsi_exact_bins_carry(&bins);
        const float norm = ref_round(dtype, (float)sqrt(dsi_exact_bins_total(bins.at)));
        const float divisor = ref_round(dtype, norm + 1e-7f);
        for (int64_t i = 0; i < n; ++i) {
            ref_set(&call->out[0], at + i, ref_round(dtype, ref_get(x, at + i)) / divisor);
        }
    }
}

static void muon_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const float *hyper = call->in[IN_HYPER].data;
    const float lr = hyper[DSI_HYPER_LR];
    const float decay = 1.0f - lr * hyper[DSI_HYPER_WEIGHT_DECAY];
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float p = ref_get(&call->in[ref_has(call, IN_MASTER) ? IN_MASTER : IN_PARAM], i);
        const float next = fmaf(-lr, ref_get(&call->in[IN_DIRECTION], i), p * decay);
        ref_set(&call->out[0], i, next);
        if (ref_out(call, 1) != NULL) {
            ref_set(&call->out[1], i, next);
        }
    }
}

static ds_status unit_matrix_run(const ds_kernel_call *call)
{
    const ds_shape shape = call->in[0].meta.shape;
    const int64_t n = matrix_size(shape);
    dsi_ref_for(call, n > 0 ? ds_shape_count(shape) / n : 0, unit_range);
    return DS_OK;
}

static ds_status muon_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->in[IN_PARAM].meta.shape), muon_range);
    return DS_OK;
}

#define MUON_KERNEL(op_name)                                                                       \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "ref",                                      \
                                               .op = #op_name,                                     \
                                               .needs = DS_ISA_REF,                                \
                                               .run = op_name##_run}

MUON_KERNEL(unit_matrix);
MUON_KERNEL(muon);

const ds_kernel *const DSI_REF(muon)[] = {&unit_matrix_kernel, &muon_kernel, NULL};
