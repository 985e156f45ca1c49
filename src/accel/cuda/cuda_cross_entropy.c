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

/* ---- forward: x, w, targets, [count] → loss, lse, count, [logits] ---------------------------
 * Of linear_logprob: x, w, targets → logp, lse. Of a part: x, w, targets, rows → terms, rows. */

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

/* What all have. */
static dsc_ce_args forward_args(const ds_kernel_call *call)
{
    return (dsc_ce_args){.targets = dsc_in(call, 2),
                         .fault = dsc_fault_of(call),
                         .call = (uint64_t)(uintptr_t)call,
                         .all = ds_shape_rows(call->in[0].meta.shape),
                         .v = vocabulary(call->sig, &call->in[1].meta),
                         .ignore = ((const dsi_ce_attrs *)call->sig->attrs)->ignore_index};
}

/* Logits of x (in 0) and w (in 1), whole in `kept` or some rows at a time in `own`, and a kernel
 * over each row of them. */
static ds_status over_rows(const ds_kernel_call *call, dsc_fn fn, dsc_ce_args *args, float *kept,
                           float *own)
{
    const ds_kernel_sig *sig = call->sig;
    const ds_meta *x = &call->in[0].meta;
    const int64_t rows = args->all;
    const int64_t columns = ds_shape_last(x->shape);
    const int64_t v = args->v;
    const int64_t some = rows_at_once(rows, v);
    for (int64_t first = 0; first < rows; first += some) {
        float *z = kept != NULL ? kept + first * v : own;
        args->z = z;
        args->first = first;
        args->rows = rows - first < some ? rows - first : some;
        const dsc_product p = {.x = (const char *)dsc_in(call, 0) +
                                    (size_t)(first * columns) * ds_dtype_bytes(x->dtype),
                               .w = dsc_in(call, 1),
                               .y = z,
                               .rows = args->rows,
                               .n_in = columns,
                               .n_out = v,
                               .dtype = x->dtype,
                               .y_dtype = DS_DTYPE_F32,
                               .transposed = is_transposed(sig)};
        DS_TRY(dsc_multiply(call, &p));
        const dsc_shape shape = dsc_block_an_item(args->rows, v);
        DS_TRY(dsc_launch(call, fn, &shape, args, sizeof *args));
    }
    return DS_OK;
}

static ds_status forward_run(const ds_kernel_call *call)
{
    const dsc_shape one = dsc_block_an_item(1, DSC_BLOCK);
    dsc_ce_args args = forward_args(call);
    args.lse = dsc_out(call, 1);
    args.losses = call->work;
    args.count_given = dsc_in(call, 3);
    args.loss = dsc_out(call, 0);
    args.count = dsc_out(call, 2);
    float *own = (float *)((char *)call->work + aligned((size_t)args.all * sizeof(float)));
    DS_TRY(over_rows(call, DSC_FN_ce_rows_f32, &args, dsc_out(call, 3), own));
    return dsc_launch(call, DSC_FN_ce_loss, &one, &args, sizeof args);
}

static bool is_logprob(const ds_kernel_sig *sig)
{
    return dsc_is_act(sig->in[0].dtype) && sig->in[1].dtype == sig->in[0].dtype;
}

/* The logits of some rows. */
static size_t logprob_work(const ds_kernel_sig *sig)
{
    const int64_t v = vocabulary(sig, &sig->in[1]);
    return (size_t)(rows_at_once(ds_shape_rows(sig->in[0].shape), v) * v) * sizeof(float) + 64;
}

static ds_status logprob_run(const ds_kernel_call *call)
{
    dsc_ce_args args = forward_args(call);
    args.logp = dsc_out(call, 0);
    args.lse = dsc_out(call, 1);
    return over_rows(call, DSC_FN_ce_rows_f32, &args, NULL, call->work);
}

static int64_t whole_vocabulary(const ds_kernel_call *call)
{
    return ((const dsi_ce_part_attrs *)call->sig->attrs)->n_rows;
}

static ds_status part_run(const ds_kernel_call *call)
{
    dsc_ce_args args = forward_args(call);
    args.terms = dsc_out(call, 0);
    args.first_row = dsc_in(call, 3);
    args.n_all = whole_vocabulary(call);
    DS_TRY(dsc_copy_whole(call, 1, &call->in[3]));
    return over_rows(call, DSC_FN_ce_part_rows, &args, NULL, call->work);
}

/* terms, targets, [count] → loss, lse, count */
static bool is_join(const ds_kernel_sig *sig)
{
    return sig->in[0].dtype == DS_DTYPE_F32;
}

static size_t join_work(const ds_kernel_sig *sig)
{
    return (size_t)ds_shape_count(sig->in[1].shape) * sizeof(float) + 64;
}

static ds_status join_run(const ds_kernel_call *call)
{
    const int64_t rows = ds_shape_count(call->in[1].meta.shape);
    const int64_t n_terms = ds_shape_count(call->in[0].meta.shape);
    const dsc_ce_args args = {.terms = (float *)(uintptr_t)dsc_in(call, 0), /* are read */
                              .targets = dsc_in(call, 1),
                              .count_given = dsc_in(call, 2),
                              .lse = dsc_out(call, 1),
                              .losses = call->work,
                              .loss = dsc_out(call, 0),
                              .count = dsc_out(call, 2),
                              .all = rows,
                              .n_parts = rows > 0 ? n_terms / (2 * rows) : 0,
                              .ignore = ((const dsi_ce_attrs *)call->sig->attrs)->ignore_index};
    const dsc_shape by_row = dsc_over_items(rows);
    const dsc_shape one = dsc_block_an_item(1, DSC_BLOCK);
    DS_TRY(dsc_launch(call, DSC_FN_ce_join, &by_row, &args, sizeof args));
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
    const float *dlogp;       /* of linear_logprob; or NULL */
    const int32_t *first_row; /* of a part; or NULL */
    int64_t n_all;            /* likewise */
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
                        .count = b->dlogp == NULL ? (float *)(uintptr_t)dsc_in(call, 5) : NULL,
                        .dlogp = b->dlogp,
                        .first_row = b->first_row,
                        .n_all = b->n_all,
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

/* dw_in: which input it is. */
static backward backward_of(const ds_kernel_call *call, uint32_t dw_in)
{
    const ds_meta *x = &call->in[1].meta;
    return (backward){.x = dsc_in(call, 1),
                      .w = dsc_in(call, 2),
                      .dx = dsc_out(call, 0),
                      .dw = dsc_out(call, 1),
                      .dw_in = dsc_in(call, dw_in),
                      .rows = ds_shape_rows(x->shape),
                      .columns = ds_shape_last(x->shape),
                      .v = vocabulary(call->sig, &call->in[2].meta),
                      .dtype = x->dtype};
}

static ds_status backward_run(const ds_kernel_call *call)
{
    const backward b = backward_of(call, 6);
    return run_backward(call, &b);
}

/* dlogp, x, w, targets, lse, [dw_in] → [dx], [dw] */
static ds_status logprob_backward_run(const ds_kernel_call *call)
{
    backward b = backward_of(call, 5);
    b.dlogp = dsc_in(call, 0);
    return run_backward(call, &b);
}

/* dloss, x, w, targets, lse, count, rows, [dw_in] → [dx], [dw] */
static ds_status part_backward_run(const ds_kernel_call *call)
{
    backward b = backward_of(call, 7);
    b.first_row = dsc_in(call, 6);
    b.n_all = whole_vocabulary(call);
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
DSC_ROW_WORK(linear_logprob, is_logprob, logprob_work, logprob_run);
DSC_ROW_WORK(linear_logprob_backward, is_backward, backward_work, logprob_backward_run);
DSC_ROW_WORK(linear_cross_entropy_part, is_logprob, logprob_work, part_run);
DSC_ROW_WORK(cross_entropy_join, is_join, join_work, join_run);
DSC_ROW_WORK(linear_cross_entropy_part_backward, is_backward, backward_work, part_backward_run);
DSC_ROW_WORK(linear_cross_entropy_dx, is_dx, dx_work, dx_run);
DSC_ROW_WORK(linear_cross_entropy_dw, is_dw, dx_work, dw_run);
const ds_kernel *const dsc_cross_entropy_kernels[] = {&linear_cross_entropy_kernel,
                                                      &linear_cross_entropy_backward_kernel,
                                                      &linear_cross_entropy_dx_kernel,
                                                      &linear_cross_entropy_dw_kernel,
                                                      &linear_logprob_kernel,
                                                      &linear_logprob_backward_kernel,
                                                      &linear_cross_entropy_part_kernel,
                                                      &cross_entropy_join_kernel,
                                                      &linear_cross_entropy_part_backward_kernel,
                                                      NULL};
