/* SPDX-License-Identifier: Apache-2.0 */
/* The work of one step. See op_class.h. */
#include "cost/op_class.h"

const char *dsi_op_class_name(ds_op_class op_class)
{
    static const char *const names[] = {[DS_CLASS_UNSTATED] = "unstated",
#define X(id, text) [DS_CLASS_##id] = (text),
                                        DS_OP_CLASS_LIST(X)
#undef X
    };
    return op_class < DS_CLASS_COUNT ? names[op_class] : "unknown";
}

/* Of the first operand that has reals; of a product the first that is no scalar. */
static ds_dtype real_dtype(const ds_kernel_sig *sig, bool product)
{
    for (uint32_t i = 0; i < sig->n_in; ++i) {
        const ds_dtype dtype = sig->in[i].dtype;
        const bool real = dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16;
        if (real && !(product && sig->in[i].shape.n_dims == 0)) {
            return dtype;
        }
    }
    return DS_DTYPE_F32;
}

dsi_work dsi_work_of(const ds_kernel_sig *sig, const ds_cost *cost)
{
    const ds_op_class stated = sig->op->op_class;
    const ds_op_class op_class = stated != DS_CLASS_UNSTATED ? stated : DS_CLASS_ELEMENTWISE;
    const bool product = dsi_op_class_is_model(op_class);
    dsi_work work = {.op_class = op_class,
                     .dtype = real_dtype(sig, product),
                     .flops = cost->flops,
                     .bytes = cost->bytes};
    if (product) {
        work.m = cost->m;
        work.n = cost->n;
        work.k = cost->k;
    }
    return work;
}

bool dsi_op_class_is_model(ds_op_class op_class)
{
    return op_class >= DS_CLASS_LINEAR && op_class <= DS_CLASS_ATTENTION_BACKWARD;
}
