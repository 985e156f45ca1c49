/* SPDX-License-Identifier: Apache-2.0 */
/* Modules Dense of sentence-transformers behind the vectors that a model learns: see ds_dense.
 * Called by task_loss.c. */
#include "model/family.h"
#include "nn/nn.h"

static ds_value function_of(ds_nn *nn, uint32_t function, ds_value x)
{
    switch ((ds_dense_function)function) {
    case DS_DENSE_TANH:
        return ds_nn_tanh(nn, x);
    case DS_DENSE_RELU:
        return ds_nn_relu(nn, x);
    case DS_DENSE_SIGMOID:
        return ds_nn_sigmoid(nn, x);
    case DS_DENSE_SILU:
        return ds_nn_activation(nn, x, DS_ACT_SILU);
    case DS_DENSE_GELU:
        return ds_nn_activation(nn, x, DS_ACT_GELU_ERF);
    case DS_DENSE_IDENTITY:
    case DS_DENSE_FUNCTIONS:
        break;
    }
    return x;
}

static ds_value one(ds_nn *nn, ds_value x, const ds_dense *d)
{
    const ds_linear_params whole = {.n_out = d->n_out, .bias = d->bias};
    const ds_linear_params plain = {.n_out = d->n_out};
    const ds_value y = function_of(nn, d->function, ds_nn_linear(nn, "linear", x, &whole));
    return !d->adds              ? y
           : d->n_in == d->n_out ? ds_nn_add(nn, y, x)
                                 : ds_nn_add(nn, y, ds_nn_linear(nn, "residual", x, &plain));
}

ds_value ds_model_dense(ds_nn *nn, ds_value rows, const ds_contrast *contrast)
{
    const ds_trace *t = ds_nn_trace(nn);
    if (contrast->n_dense == 0 || ds_nn_status(nn) < 0) {
        return rows;
    }
    if (t->head_ranks > 1) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "modules Dense behind embeddings with tensor parallelism are not built: set "
                   "tensor_parallel.autotp_size to 1");
        return rows;
    }
    ds_value x = ds_nn_cast(nn, rows, t->dtype);
    for (uint32_t i = 0; i < contrast->n_dense && ds_nn_status(nn) >= 0; ++i) {
        const ds_dense *d = &contrast->dense[i];
        const int64_t width = ds_shape_last(ds_nn_meta(nn, x).shape);
        if (d->n_in != width || d->n_out < 1 || d->function >= DS_DENSE_FUNCTIONS) {
            ds_nn_fail(nn, DS_ERR_ARG,
                       "ds_contrast.dense[%u] has n_in %lld, n_out %lld and function %u; vectors "
                       "before it have %lld numbers",
                       i, (long long)d->n_in, (long long)d->n_out, d->function, (long long)width);
            return rows;
        }
        ds_nn_push(nn, DSI_DENSE_SCOPE "%u", i);
        x = one(nn, x, d);
        ds_nn_pop(nn);
    }
    return ds_nn_cast(nn, x, DS_DTYPE_F32);
}
