/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel of weight_norms: rows side by side, each summed in order in double. It is the only
 * one: a step does it once for each layer, whatever the number of tokens. */
#include "accel/cpu/ref/ref_real.h"
#include "base/packed.h"
#include "op/ops.h"

enum { PIECE = 256 };

/* A row and a row of a. */
static size_t norms_work(const ds_kernel_sig *sig)
{
    return ref_slot_bytes(sig, 2 * sig->in[1].shape.dims[1]);
}

/* Row o of w. */
static void read_row(const ds_kernel_call *call, int64_t o, int64_t n, real *row)
{
    const dsi_weight_norms_attrs *at = call->sig->attrs;
    const ds_packed packed = {(ds_packing)at->format, 0, at->rows, at->columns};
    const ds_tensor *w = &call->in[0];
    if (at->format != DS_PACKING_NONE) {
        for (int64_t k = 0; k < n; k += PIECE) {
            float piece[PIECE];
            const int64_t count = n - k < PIECE ? n - k : PIECE;
            dsi_packed_read(&packed, w->data, o * n + k, count, piece);
            for (int64_t i = 0; i < count; ++i) {
                row[k + i] = ref_round(call->in[1].meta.dtype, (real)piece[i]);
            }
        }
        return;
    }
    for (int64_t k = 0; k < n; ++k) {
        row[k] = ref_get(w, at->transposed != 0 ? k * w->meta.shape.dims[1] + o : o * n + k);
    }
}

static void norms_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_weight_norms_attrs *at = call->sig->attrs;
    const ds_tensor *a = &call->in[1];
    const int64_t rank = a->meta.shape.dims[0], n = a->meta.shape.dims[1];
    real *row = ref_slot(call, slot, 2 * n);
    real *added = row + n;
    for (int64_t o = begin; o < end; ++o) {
        double sum = 0.0;
        read_row(call, o, n, row);
        for (int64_t k = 0; k < n; ++k) {
            added[k] = R(0.0);
        }
        for (int64_t r = 0; r < rank; ++r) {
            const real b = ref_get(&call->in[2], o * rank + r);
            for (int64_t k = 0; k < n; ++k) {
                added[k] += b * ref_get(a, r * n + k);
            }
        }
        for (int64_t k = 0; k < n; ++k) {
            const real x = row[k] + (real)at->scale * added[k];
            sum += (double)x * (double)x;
        }
        ref_set(&call->out[0], o, (real)sum);
    }
}

static ds_status norms_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, call->out[0].meta.shape.dims[0], norms_range);
    return DS_OK;
}

REF_KERNEL(weight_norms, norms_run, norms_work);
const ds_kernel *const DSI_REF(weight_norms)[] = {&weight_norms_kernel, NULL};
