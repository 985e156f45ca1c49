/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of optimizers' operators. See op_update.h. */
#include "op/op_update.h"

enum { PARAM, OWN, HYPER, FACTOR, MASTER, STATE, STATE_SQ };

ds_status dsi_op_need_state(const ds_infer *call, uint32_t i, const char *name, ds_shape shape)
{
    const bool narrow = dsi_op_in(call, i).dtype == DS_DTYPE_BF16;
    return dsi_op_need(call, i, name, narrow ? DS_DTYPE_BF16 : DS_DTYPE_F32, shape);
}

ds_status dsi_op_need_hyper(const ds_infer *call, uint32_t i)
{
    return dsi_op_need(call, i, "hyper", DS_DTYPE_F32, ds_shape_1d(DSI_HYPER_COUNT));
}

ds_status dsi_op_need_absent(const ds_infer *call, uint32_t i, const char *name)
{
    return dsi_op_has(call, i) ? dsi_op_bad(call, i, name, "none") : DS_OK;
}

ds_status dsi_op_infer_weights(ds_infer *call)
{
    DS_TRY(dsi_op_need_float(call, PARAM, "param", 0));
    const ds_meta param = call->in[PARAM];
    if (param.dtype == DS_DTYPE_F64) {
        return dsi_op_bad(call, PARAM, "param", "f32, bf16 or f16");
    }
    DS_TRY(dsi_op_may(call, MASTER, "master", DS_DTYPE_F32, param.shape));
    if (param.dtype == DS_DTYPE_F32 && dsi_op_has(call, MASTER)) {
        return dsi_op_bad(call, MASTER, "master", "none, since param is f32");
    }
    call->out[0] = param;
    call->out[1] = dsi_op_in(call, MASTER);
    return DS_OK;
}

ds_status dsi_op_infer_adam(ds_infer *call)
{
    DS_TRY(dsi_op_infer_weights(call));
    const ds_shape shape = call->in[PARAM].shape;
    DS_TRY(dsi_op_need_hyper(call, HYPER));
    DS_TRY(dsi_op_need_absent(call, FACTOR, "factor"));
    DS_TRY(dsi_op_need_state(call, STATE, "exp_avg", shape));
    return dsi_op_need_state(call, STATE_SQ, "exp_avg_sq", shape);
}
