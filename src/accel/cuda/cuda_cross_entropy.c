/* SPDX-License-Identifier: Apache-2.0 */
/* Glue of kernels/cross_entropy.cu: logits are made by the products of cuda_linear.c, some rows at
 * a time, and are whole only where they are kept. All operators of the family use the same products
 * over the same rows, so that kept logits change no bit.
 */
#include "accel/cuda/cuda_launch.h"
#include "accel/cuda/kernels/cross_entropy.h"

enum { LOGITS = 1 << 24, LEAST_ROWS = 64 };

static size_t aligned(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

/* Rows whose logits are there at a time. */
static int64_t rows_at_once(int64_t rows, int64_t v)
{
    const int64_t fit = v > 0 ? LOGITS / v / LEAST_ROWS * LEAST_ROWS : LEAST_ROWS;
    const int64_t some = fit < LEAST_ROWS ? LEAST_ROWS : fit;
    return rows < some ? rows : some;
}

static bool is_transposed(const ds_kernel_sig *sig)
{
    return ((const dsi_ce_attrs *)sig->attrs)->transposed != 0;
}

static int64_t vocabulary(const ds_kernel_sig *sig, const ds_meta *w)
{
    return w->shape.dims[is_transposed(sig) ? 1 : 0];
}

/* ---- forward: x, w, targets, [count] → loss, lse, count, [logits] --------------------------- */

static bool is_forward(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && sig->in[1].dtype == sig->in[0].dtype &&
           (sig->n_out < 4 || sig->out[3].dtype == DS_DTYPE_NONE ||
            sig->out[3].dtype == DS_DTYPE_F32);
}

static bool keeps(const ds_kernel_sig *sig)
{
    return sig->n_out > 3 && sig->out[3].dtype != DS_DTYPE_NONE;
}

/* The rows' losses, then the logits of some rows. */
static size_t forward_work(const ds_kernel_sig *sig)
{
    const int64_t rows = ds_shape_rows(sig->in[0].shape);
    const int64_t v = vocabulary(sig, &sig->in[1]);
    const size_t logits = keeps(sig) ? 0 : (size_t)(rows_at_once(rows, v) * v) * sizeof(float);
    return aligned((size_t)rows * sizeof(float)) + logits + 64;
}

static ds_status forward_run(const ds_kernel_call *call)
{
    const ds_kernel_sig *sig = call->sig;
    const ds_meta *x = &call->in[0].meta;
    const int64_t rows = ds_shape_rows(x->shape);
    const int64_t columns = ds_shape_last(x->shape);
    const int64_t v = vocabulary(sig, &call->in[1].meta);
    const int64_t some = rows_at_once(rows, v);
    float *kept = dsc_out(call, 3);
    float *own = (float *)((char *)call->work + aligned((size_t)rows * sizeof(float)));
    dsc_ce_args args = {.targets = dsc_in(call, 2),
                        .lse = dsc_out(call, 1),
                        .losses = call->work,
                        .count_given = dsc_in(call, 3),
                        .loss = dsc_out(call, 0),
                        .count = dsc_out(call, 2),
                        .fault = dsc_fault_of(call),
                        .call = (uint64_t)(uintptr_t)call,
                        .all = rows,
                        .v = v,
                        .ignore = ((const dsi_ce_attrs *)sig->attrs)->ignore_index};
    for (int64_t first = 0; first < rows; first += some) {
        float *z = kept != NULL ? kept + first * v : own;
        args.z = z;
        args.first = first;
        args.rows = rows - first < some ? rows - first : some;
        const dsc_product p = {.x = (const char *)dsc_in(call, 0) +
                                    (size_t)(first * columns) * ds_dtype_bytes(x->dtype),
                               .w = dsc_in(call, 1),
                               .y = z,
                               .rows = args.rows,
                               .n_in = columns,
                               .n_out = v,
                               .dtype = x->dtype,
                               .y_dtype = DS_DTYPE_F32,
                               .transposed = is_transposed(sig)};
        DS_TRY(dsc_multiply(call, &p));
        const dsc_shape shape = dsc_block_an_item(args.rows, v);
        DS_TRY(dsc_launch(call, DSC_FN_ce_rows_f32, &shape, &args, sizeof args));
    }
    const dsc_shape one = dsc_block_an_item(1, DSC_BLOCK);
    return dsc_launch(call, DSC_FN_ce_loss, &one, &args, sizeof args);
}

/* ---- backward ------------------------------------------------------------------------------- */

/* Operands of the three backward operators; numbers of inputs, -1: absent. */
typedef struct backward {
    const void *x, *w;
    const float *logits; /* kept, or NULL */
    void *dx;
    float *dw;
    const float *dw_in;
    int64_t rows, columns, v;
    ds_dtype dtype;
} backward;

static size_t some_bytes(int64_t rows, int64_t v, ds_dtype dtype, bool kept)
{
    const size_t n = (size_t)(rows_at_once(rows, v) * v);
    return (kept ? 0 : aligned(n * sizeof(float))) + n * ds_dtype_bytes(dtype) + 64;
}

static ds_status run_backward(const ds_kernel_call *call, const backward *b)
{
    const int64_t some = rows_at_once(b->rows, b->v);
    const size_t width = ds_dtype_bytes(b->dtype);
    const bool transposed = is_transposed(call->sig);
    float *z = b->logits != NULL ? NULL : call->work;
    void *dz = b->logits != NULL
                   ? call->work
                   : (char *)call->work + aligned((size_t)(some * b->v) * sizeof(float));
    dsc_ce_args args = {.targets = dsc_in(call, 3),
                        .lse = (float *)(uintptr_t)dsc_in(call, 4),
                        .dz = dz,
                        .dloss = dsc_in(call, 0),
                        .count = (float *)(uintptr_t)dsc_in(call, 5),
                        .all = b->rows,
                        .v = b->v,
                        .ignore = ((const dsi_ce_attrs *)call->sig->attrs)->ignore_index};
    for (int64_t first = 0; first < b->rows; first += some) {
        const size_t at = (size_t)(first * b->columns) * width;
        const char *x = b->x != NULL ? (const char *)b->x + at : NULL;
        args.first = first;
        args.rows = b->rows - first < some ? b->rows - first : some;
        args.z = b->logits != NULL ? b->logits + first * b->v : z;
        dsc_product p = {.x = x,
                         .w = b->w,
                         .y = z,
                         .rows = args.rows,
                         .n_in = b->columns,
                         .n_out = b->v,
                         .dtype = b->dtype,
                         .y_dtype = DS_DTYPE_F32,
                         .transposed = transposed};
        DS_TRY(b->logits == NULL ? dsc_multiply(call, &p) : DS_OK);
        const dsc_shape all = dsc_over_items(args.rows * b->v);
        DS_TRY(dsc_launch(call, dsc_of_dtype(DSC_FN_ce_dlogits_f32, b->dtype), &all, &args,
                          sizeof args));
        p.x = dz;
        p.y = (char *)b->dx + at;
        p.n_in = b->v;
        p.n_out = b->columns;
        p.y_dtype = b->dtype;
        p.transposed = !transposed;
        DS_TRY(b->dx != NULL ? dsc_multiply(call, &p) : DS_OK);
        DS_TRY(b->dw != NULL ? dsc_multiply_rows(call, x, dz, b->dtype, args.rows, b->columns, b->v,
                                                 transposed, first > 0 ? b->dw : b->dw_in, b->dw)
                             : DS_OK);
    }
    return DS_OK;
}

/* dloss, x, w, targets, lse, count, [dw_in] → [dx], [dw] */
static bool is_backward(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[1].dtype) && sig->in[2].dtype == sig->in[1].dtype;
}

static size_t backward_work(const ds_kernel_sig *sig)
{
    return some_bytes(ds_shape_rows(sig->in[1].shape), vocabulary(sig, &sig->in[2]),
                      sig->in[1].dtype, false);
}

static ds_status backward_run(const ds_kernel_call *call)
{
    const ds_meta *x = &call->in[1].meta;
    const backward b = {.x = dsc_in(call, 1),
                        .w = dsc_in(call, 2),
                        .dx = dsc_out(call, 0),
                        .dw = dsc_out(call, 1),
                        .dw_in = dsc_in(call, 6),
                        .rows = ds_shape_rows(x->shape),
                        .columns = ds_shape_last(x->shape),
                        .v = vocabulary(call->sig, &call->in[2].meta),
                        .dtype = x->dtype};
    return run_backward(call, &b);
}

/* dloss, w, logits, targets, lse, count → dx */
static bool is_dx(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[1].dtype) && sig->in[2].dtype == DS_DTYPE_F32 &&
           sig->out[0].dtype == sig->in[1].dtype;
}

static size_t dx_work(const ds_kernel_sig *sig)
{
    return some_bytes(ds_shape_rows(sig->in[2].shape), ds_shape_last(sig->in[2].shape),
                      sig->in[1].dtype, true);
}

static ds_status dx_run(const ds_kernel_call *call)
{
    const ds_meta *logits = &call->in[2].meta;
    const backward b = {.w = dsc_in(call, 1),
                        .logits = dsc_in(call, 2),
                        .dx = dsc_out(call, 0),
                        .rows = ds_shape_rows(logits->shape),
                        .columns = ds_shape_last(call->out[0].meta.shape),
                        .v = ds_shape_last(logits->shape),
                        .dtype = call->in[1].meta.dtype};
    return run_backward(call, &b);
}

/* dloss, x, logits, targets, lse, count, [dw_in] → dw */
static bool is_dw(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[1].dtype) && sig->in[2].dtype == DS_DTYPE_F32;
}

static ds_status dw_run(const ds_kernel_call *call)
{
    const ds_meta *logits = &call->in[2].meta;
    const ds_meta *x = &call->in[1].meta;
    const backward b = {.x = dsc_in(call, 1),
                        .logits = dsc_in(call, 2),
                        .dw = dsc_out(call, 0),
                        .dw_in = dsc_in(call, 6),
                        .rows = ds_shape_rows(logits->shape),
                        .columns = ds_shape_last(x->shape),
                        .v = ds_shape_last(logits->shape),
                        .dtype = x->dtype};
    return run_backward(call, &b);
}

DSC_ROW_WORK(linear_cross_entropy, is_forward, forward_work, forward_run);
DSC_ROW_WORK(linear_cross_entropy_backward, is_backward, backward_work, backward_run);
DSC_ROW_WORK(linear_cross_entropy_dx, is_dx, dx_work, dx_run);
DSC_ROW_WORK(linear_cross_entropy_dw, is_dw, dx_work, dw_run);
const ds_kernel *const dsc_cross_entropy_kernels[] = {
    &linear_cross_entropy_kernel, &linear_cross_entropy_backward_kernel,
    &linear_cross_entropy_dx_kernel, &linear_cross_entropy_dw_kernel, NULL};
