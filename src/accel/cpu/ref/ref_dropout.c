/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernel of dropout: items are elements. */
#include "accel/cpu/ref/ref_real.h"
#include "base/rng.h"
#include "op/ops.h"

static void dropout_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_dropout_attrs *a = call->sig->attrs;
    const int64_t *rng = call->in[1].data;
    const ds_shape shape = call->in[0].meta.shape;
    const int64_t n = ds_shape_count(shape);
    const int64_t sample = shape.dims[0] > 0 ? n / shape.dims[0] : 0;
    const bool has_rows = a->n_rows > 0; /* a part of each sample's */
    const int64_t row = has_rows ? sample / shape.dims[1] : 0;
    const int64_t all = has_rows ? a->n_rows * row : sample;
    const int32_t *rows = has_rows ? call->in[2].data : NULL;
    const real factor = R(1.0) / (R(1.0) - (real)a->p);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t at = i % sample;
        const int64_t within = has_rows ? rows[at / row] * row + at % row : at;
        const int64_t element = (rng[2] + i / sample) * all + within;
        const uint32_t word =
            dsi_rng_u32((uint64_t)rng[0], (uint32_t)a->site, (uint32_t)rng[1], (uint64_t)element);
        const bool keep = dsi_rng_unit(word) >= (float)a->p;
        ref_set(&call->out[0], i, keep ? ref_get(&call->in[0], i) * factor : R(0.0));
    }
}

static ds_status dropout_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->in[0].meta.shape), dropout_range);
    return DS_OK;
}

REF_KERNEL(dropout, dropout_run, NULL);
const ds_kernel *const DSI_REF(dropout)[] = {&dropout_kernel, NULL};
