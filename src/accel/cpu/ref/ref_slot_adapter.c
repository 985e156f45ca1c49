/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernel of slot_adapter: items are tokens. */
#include "accel/cpu/ref/ref_real.h"
#include "accel/cpu/slot_adapter_shape.h"

static void adapt_token(const ds_kernel_call *call, const slot_shape *s, int64_t t, int64_t slot,
                        real *down)
{
    for (int64_t r = 0; r < s->rank; ++r) {
        down[r] = R(0.0);
        for (int64_t c = 0; c < s->n_in; ++c) {
            down[r] += ref_get(&call->in[1], t * s->n_in + c) *
                       ref_get(&call->in[2], (slot * s->n_in + c) * s->rank + r);
        }
    }
    for (int64_t n = 0; n < s->n_out; ++n) {
        real sum = ref_get(&call->in[0], t * s->n_out + n);
        for (int64_t r = 0; r < s->rank; ++r) {
            sum += down[r] * ref_get(&call->in[3], (slot * s->rank + r) * s->n_out + n);
        }
        ref_set(&call->out[0], t * s->n_out + n, sum);
    }
}

static void adapt_tokens(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t thread)
{
    const slot_shape s = slot_shape_of(call->sig);
    const int32_t *slots = call->in[4].data;
    real *down = ref_slot(call, thread, s.rank);
    for (int64_t t = begin; t < end; ++t) {
        if (slots[t] >= 0) {
            adapt_token(call, &s, t, slots[t], down);
            continue;
        }
        for (int64_t n = t * s.n_out; n < (t + 1) * s.n_out; ++n) {
            ref_set(&call->out[0], n, ref_get(&call->in[0], n));
        }
    }
}

static size_t slot_adapter_work(const ds_kernel_sig *sig)
{
    return ref_slot_bytes(sig, slot_shape_of(sig).rank);
}

static ds_status slot_adapter_run(const ds_kernel_call *call)
{
    const slot_shape s = slot_shape_of(call->sig);
    DS_TRY(slot_check(call, &s));
    dsi_ref_for(call, s.n_tokens, adapt_tokens);
    return DS_OK;
}

REF_KERNEL(slot_adapter, slot_adapter_run, slot_adapter_work);
const ds_kernel *const DSI_REF(slot_adapter)[] = {&slot_adapter_kernel, NULL};
