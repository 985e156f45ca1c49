/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/causal_conv.cu, decay.cu and delta_rule*.cu. */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/recurrence.h"

_Static_assert((int)DSC_DELTA_CHUNK == (int)DSI_DELTA_CHUNK, "positions of a chunk");

static bool is_act(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype);
}

static uint64_t name_of(const ds_kernel_call *call)
{
    return (uint64_t)(uintptr_t)call;
}

/* ---- causal_conv: x, w, [first] → y ------------------------------------------------------------
 */

/* at: the input x. */
static dsc_conv_args conv_args(const ds_kernel_call *call, uint32_t at)
{
    const ds_shape x = call->in[at].meta.shape;
    const ds_meta *w = &call->in[at + 1].meta;
    return (dsc_conv_args){.x = dsc_in(call, at),
                           .w = dsc_in(call, at + 1),
                           .fault = dsc_fault_of(call),
                           .call = name_of(call),
                           .n_batch = x.dims[0],
                           .length = x.dims[1],
                           .channels = x.dims[2],
                           .k = w->shape.dims[2],
                           .w_dtype = (int32_t)w->dtype};
}

static ds_status launch_conv(const ds_kernel_call *call, dsc_fn first, int64_t n,
                             const dsc_conv_args *args)
{
    const dsc_shape shape = dsc_over_items(n);
    return dsc_launch(call, dsc_of_dtype(first, call->in[0].meta.dtype), &shape, args,
                      sizeof *args);
}

static ds_status causal_conv_run(const ds_kernel_call *call)
{
    dsc_conv_args args = conv_args(call, 0);
    args.first = dsc_in(call, 2);
    args.y = dsc_out(call, 0);
    return launch_conv(call, DSC_FN_causal_conv_f32, ds_shape_count(call->in[0].meta.shape), &args);
}

/* dy, x, w, [first] → dx, dw */
static ds_status causal_conv_backward_run(const ds_kernel_call *call)
{
    const ds_dtype dtype = call->in[0].meta.dtype;
    dsc_conv_args args = conv_args(call, 1);
    args.first = dsc_in(call, 3);
    args.dy = dsc_in(call, 0);
    args.dx = dsc_out(call, 0);
    args.dw = dsc_out(call, 1);
    args.dw_dtype = (int32_t)call->out[1].meta.dtype;
    const dsc_shape strips = dsc_block_an_item((args.channels + 31) / 32 * args.k, DSC_BLOCK);
    DS_TRY(launch_conv(call, DSC_FN_causal_conv_dx_f32, ds_shape_count(call->in[0].meta.shape),
                       &args));
    return dsc_launch(call, dsc_of_dtype(DSC_FN_causal_conv_dw_f32, dtype), &strips, &args,
                      sizeof args);
}

/* x, w, cell, offset, last → y, cell */
static dsc_conv_args cell_args(const ds_kernel_call *call)
{
    dsc_conv_args args = conv_args(call, 0);
    args.y = dsc_out(call, 0);
    args.cell = dsc_out(call, 1);
    args.cell_dtype = (int32_t)call->out[1].meta.dtype;
    args.n_cells = call->out[1].meta.shape.dims[0];
    return args;
}

static ds_status causal_conv_step_run(const ds_kernel_call *call)
{
    dsc_conv_args args = cell_args(call);
    args.offset = dsc_in(call, 3);
    args.last = dsc_in(call, 4);
    return launch_conv(call, DSC_FN_causal_conv_step_f32, args.n_batch * args.channels, &args);
}

/* x, w, cell, sequence, position → y, cell */
static ds_status paged_causal_conv_run(const ds_kernel_call *call)
{
    dsc_conv_args args = cell_args(call);
    args.sequence = dsc_in(call, 3);
    args.position = dsc_in(call, 4);
    return launch_conv(call, DSC_FN_paged_causal_conv_f32, args.length * args.channels, &args);
}

/* ---- decay: a, a_log, dt → g; backward: dg, a, a_log, dt → da, da_log, ddt ---------------------
 */

static dsc_decay_args decay_args(const ds_kernel_call *call, uint32_t at)
{
    const ds_shape a = call->in[at].meta.shape;
    return (dsc_decay_args){.a = dsc_in(call, at),
                            .a_log = dsc_in(call, at + 1),
                            .dt = dsc_in(call, at + 2),
                            .rows = ds_shape_rows(a),
                            .heads = ds_shape_last(a),
                            .rate_dtype = (int32_t)call->in[at + 1].meta.dtype,
                            .dt_dtype = (int32_t)call->in[at + 2].meta.dtype};
}

static ds_status decay_run(const ds_kernel_call *call)
{
    dsc_decay_args args = decay_args(call, 0);
    args.g = dsc_out(call, 0);
    args.g_dtype = (int32_t)call->out[0].meta.dtype;
    const dsc_shape shape = dsc_over_items(args.rows * args.heads);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_decay_f32, call->in[0].meta.dtype), &shape, &args,
                      sizeof args);
}

static bool is_decay_backward(const ds_kernel_sig *sig)
{
    return sig->in[0].dtype == DS_DTYPE_F32 && dsc_is_act(sig->in[1].dtype);
}

static ds_status decay_backward_run(const ds_kernel_call *call)
{
    dsc_decay_args args = decay_args(call, 1);
    args.dg = dsc_in(call, 0);
    args.da = dsc_out(call, 0);
    args.da_log = dsc_out(call, 1);
    args.ddt = dsc_out(call, 2);
    args.da_log_dtype = (int32_t)call->out[1].meta.dtype;
    args.ddt_dtype = (int32_t)call->out[2].meta.dtype;
    const dsc_shape shape = dsc_block_an_item(args.heads, args.rows);
    return dsc_launch(call, dsc_of_dtype(DSC_FN_decay_backward_f32, call->in[1].meta.dtype), &shape,
                      &args, sizeof args);
}

/* ---- delta_rule: q, k, v, g, beta, [first] → y, states -----------------------------------------
 */

static int64_t value_dim(const ds_kernel_sig *sig, uint32_t at)
{
    const dsi_delta_attrs *attrs = sig->attrs;
    return ds_shape_last(sig->in[at + 2].shape) / attrs->n_heads;
}

static bool is_delta_at(const ds_kernel_sig *sig, uint32_t at)
{
    const dsi_delta_attrs *attrs = sig->attrs;
    return dsc_is_act(sig->in[at].dtype) && sig->in[at + 3].dtype == DS_DTYPE_F32 &&
           attrs->key_dim <= DSC_DELTA_DIM;
}

static bool is_delta(const ds_kernel_sig *sig)
{
    return is_delta_at(sig, 0);
}

static bool is_delta_backward(const ds_kernel_sig *sig)
{
    return is_delta_at(sig, 1) && value_dim(sig, 1) <= DSC_DELTA_DIM;
}

/* at: the input q. */
static dsc_delta_args delta_args(const ds_kernel_call *call, uint32_t at)
{
    const dsi_delta_attrs *attrs = call->sig->attrs;
    const ds_shape q = call->in[at].meta.shape;
    return (dsc_delta_args){.q = dsc_in(call, at),
                            .k = dsc_in(call, at + 1),
                            .v = dsc_in(call, at + 2),
                            .g = dsc_in(call, at + 3),
                            .beta = dsc_in(call, at + 4),
                            .fault = dsc_fault_of(call),
                            .call = name_of(call),
                            .n_batch = q.dims[0],
                            .length = q.dims[1],
                            .heads = attrs->n_heads,
                            .key_heads = attrs->n_key_heads,
                            .key_dim = attrs->key_dim,
                            .value_dim = value_dim(call->sig, at),
                            .n_chunks = (q.dims[1] + DSC_DELTA_CHUNK - 1) / DSC_DELTA_CHUNK,
                            .scale = (float)attrs->scale,
                            .eps = (float)attrs->eps};
}

/* n: what has a block for each 32 columns of each head. */
static ds_status launch_columns(const ds_kernel_call *call, dsc_fn first, int64_t n,
                                const dsc_delta_args *args)
{
    const int64_t strips = (args->value_dim + 31) / 32;
    const dsc_shape shape = dsc_block_an_item(n * args->heads * strips, 32 * DSC_DELTA_WARPS);
    return dsc_launch(call, dsc_of_dtype(first, call->in[0].meta.dtype), &shape, args,
                      sizeof *args);
}

static ds_status delta_rule_run(const ds_kernel_call *call)
{
    dsc_delta_args args = delta_args(call, 0);
    args.first = dsc_in(call, 5);
    args.y = dsc_out(call, 0);
    args.states = dsc_out(call, 1);
    return launch_columns(call, DSC_FN_delta_rule_f32, args.n_batch, &args);
}

/* q, k, v, g, beta, cell, offset, last → y, cell */
static ds_status delta_rule_step_run(const ds_kernel_call *call)
{
    dsc_delta_args args = delta_args(call, 0);
    args.offset = dsc_in(call, 6);
    args.last = dsc_in(call, 7);
    args.y = dsc_out(call, 0);
    args.cell = dsc_out(call, 1);
    return launch_columns(call, DSC_FN_delta_rule_step_f32, args.n_batch, &args);
}

/* q, k, v, g, beta, cell, sequence, position → y, cell */
static ds_status paged_delta_rule_run(const ds_kernel_call *call)
{
    dsc_delta_args args = delta_args(call, 0);
    args.sequence = dsc_in(call, 6);
    args.position = dsc_in(call, 7);
    args.y = dsc_out(call, 0);
    args.cell = dsc_out(call, 1);
    args.n_cells = call->out[1].meta.shape.dims[0];
    return launch_columns(call, DSC_FN_paged_delta_rule_f32, args.length, &args);
}

/* Blocks of delta_rule_back at most: each has room for the states of a chunk. */
enum { MOST_HEADS = 132 };

static int64_t n_rooms(const dsi_delta_attrs *attrs, ds_shape q)
{
    const int64_t heads = q.dims[0] * attrs->n_heads;
    return heads < MOST_HEADS ? heads : MOST_HEADS;
}

static int64_t room_floats(int64_t key_dim, int64_t values)
{
    return (DSC_DELTA_CHUNK + 2) * key_dim * values + DSC_DELTA_CHUNK * values;
}

/* The rooms, then what each head of values adds to queries and to keys. */
static size_t delta_backward_work(const ds_kernel_sig *sig)
{
    const dsi_delta_attrs *attrs = sig->attrs;
    const ds_shape q = sig->in[1].shape;
    const int64_t parts = q.dims[0] * attrs->n_heads * q.dims[1] * attrs->key_dim;
    const int64_t rooms = n_rooms(attrs, q) * room_floats(attrs->key_dim, value_dim(sig, 1));
    return (size_t)(rooms + 2 * parts) * sizeof(float) + 64;
}

/* dy, q, k, v, g, beta, states, [first] → dq, dk, dv, dg, dbeta */
static ds_status delta_rule_backward_run(const ds_kernel_call *call)
{
    const dsi_delta_attrs *attrs = call->sig->attrs;
    const ds_dtype dtype = call->in[1].meta.dtype;
    const int64_t rooms = n_rooms(attrs, call->in[1].meta.shape);
    dsc_delta_args args = delta_args(call, 1);
    args.dy = dsc_in(call, 0);
    args.states = (float *)(uintptr_t)dsc_in(call, 6); /* are read */
    args.first = dsc_in(call, 7);
    args.work = call->work;
    args.dq_parts = args.work + rooms * room_floats(args.key_dim, args.value_dim);
    args.dk_parts = args.dq_parts + args.n_batch * args.heads * args.length * args.key_dim;
    args.dq = dsc_out(call, 0);
    args.dk = dsc_out(call, 1);
    args.dv = dsc_out(call, 2);
    args.dg = dsc_out(call, 3);
    args.dbeta = dsc_out(call, 4);
    const dsc_shape by_head = dsc_block_an_item(rooms, 32 * DSC_DELTA_WARPS);
    const dsc_shape by_key =
        dsc_block_an_item(args.n_batch * args.length * args.key_heads, 32 * DSC_DELTA_WARPS);
    DS_TRY(dsc_launch(call, dsc_of_dtype(DSC_FN_delta_rule_back_f32, dtype), &by_head, &args,
                      sizeof args));
    return dsc_launch(call, dsc_of_dtype(DSC_FN_delta_rule_units_f32, dtype), &by_key, &args,
                      sizeof args);
}

DSC_ROW(causal_conv, is_act, causal_conv_run);
DSC_ROW(causal_conv_backward, is_act, causal_conv_backward_run);
DSC_ROW(causal_conv_step, is_act, causal_conv_step_run);
DSC_ROW(paged_causal_conv, is_act, paged_causal_conv_run);
DSC_ROW(decay, is_act, decay_run);
DSC_ROW(decay_backward, is_decay_backward, decay_backward_run);
DSC_ROW(delta_rule, is_delta, delta_rule_run);
DSC_ROW_WORK(delta_rule_backward, is_delta_backward, delta_backward_work, delta_rule_backward_run);
DSC_ROW(delta_rule_step, is_delta, delta_rule_step_run);
DSC_ROW(paged_delta_rule, is_delta, paged_delta_rule_run);
const ds_kernel *const dsc_recurrence_kernels[] = {&causal_conv_kernel,
                                                   &causal_conv_backward_kernel,
                                                   &causal_conv_step_kernel,
                                                   &paged_causal_conv_kernel,
                                                   &decay_kernel,
                                                   &decay_backward_kernel,
                                                   &delta_rule_kernel,
                                                   &delta_rule_backward_kernel,
                                                   &delta_rule_step_kernel,
                                                   &paged_delta_rule_kernel,
                                                   NULL};
