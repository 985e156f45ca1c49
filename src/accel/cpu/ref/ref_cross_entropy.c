/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of cross_entropy, linear_cross_entropy and linear_logprob with their backward
 * operators.
 *
 * Logits exist for a block of rows (forward, dx) or a panel of columns (dw) at a time only.
 */
#include "accel/cpu/ref/ref_dot.h"
#include "accel/cpu/ref/ref_rows.h"
#include "op/ops.h"

#include <string.h>

enum { ROW_BLOCK = 16 };

/* lse and the row's own loss: 0 when ignored. */
static void finish_row(const ds_kernel_call *call, const ds_tensor *targets, int64_t n,
                       const real *z, int64_t v, real *losses)
{
    const dsi_ce_attrs *a = call->sig->attrs;
    const int32_t target = ((const int32_t *)targets->data)[n];
    const real lse = ref_log_sum_exp(z, v);
    ref_set(&call->out[1], n, lse);
    losses[n] = target == a->ignore_index ? R(0.0) : lse - z[target];
}

/* Gradient of one logit; scale = dloss/count. */
static real dlogit(real z, real lse, bool is_target, real scale)
{
    const real p = r_exp(z - lse);
    return (is_target ? p - R(1.0) : p) * scale;
}

/* ---- cross_entropy ------------------------------------------------------------------------------
 */
static size_t cross_entropy_work(const ds_kernel_sig *sig)
{
    const ds_shape x = sig->in[0].shape;
    return ref_slot_bytes(sig, ds_shape_last(x)) + (size_t)ds_shape_rows(x) * sizeof(real);
}

/* The rows' losses lie behind the ranges' rows of logits. */
static void cross_entropy_rows(const ds_kernel_call *call, int64_t begin, int64_t end,
                               uint32_t slot)
{
    const int64_t v = ds_shape_last(call->in[0].meta.shape);
    real *buffer = ref_slot(call, slot, v);
    real *losses = ref_slot(call, dsi_ref_slots(call->sig), v);
    for (int64_t n = begin; n < end; ++n) {
        finish_row(call, &call->in[1], n, ref_row(&call->in[0], n * v, v, buffer), v, losses);
    }
}

static void cross_entropy_loss(const ds_kernel_call *call, int64_t begin, int64_t end,
                               uint32_t slot)
{
    const int64_t v = ds_shape_last(call->in[0].meta.shape);
    (void)begin;
    (void)end;
    (void)slot;
    ref_finish_loss(call, &call->in[1], &call->in[2], ref_slot(call, dsi_ref_slots(call->sig), v));
}

static ds_status cross_entropy_run(const ds_kernel_call *call)
{
    const ds_shape x = call->in[0].meta.shape;
    DS_TRY(ref_check_targets(call, &call->in[1], ds_shape_last(x)));
    dsi_ref_for(call, ds_shape_rows(x), cross_entropy_rows);
    dsi_ref_serial(call, cross_entropy_loss);
    return DS_OK;
}

static void cross_entropy_backward_rows(const ds_kernel_call *call, int64_t begin, int64_t end,
                                        uint32_t slot)
{
    const dsi_ce_attrs *a = call->sig->attrs;
    const ds_tensor *logits = &call->in[1];
    const int32_t *targets = call->in[2].data;
    const int64_t v = ds_shape_last(logits->meta.shape);
    const real scale = ref_loss_scale(&call->in[0], &call->in[4]);
    (void)slot;
    for (int64_t n = begin; n < end; ++n) {
        const real lse = ref_get(&call->in[3], n);
        const bool counts = targets[n] != a->ignore_index;
        for (int64_t i = 0; i < v; ++i) {
            const real z = ref_get(logits, n * v + i);
            ref_set(&call->out[0], n * v + i,
                    counts ? dlogit(z, lse, i == targets[n], scale) : R(0.0));
        }
    }
}

static ds_status cross_entropy_backward_run(const ds_kernel_call *call)
{
    const ds_shape x = call->in[1].meta.shape;
    DS_TRY(ref_check_targets(call, &call->in[2], ds_shape_last(x)));
    dsi_ref_for(call, ds_shape_rows(x), cross_entropy_backward_rows);
    return DS_OK;
}

/* ---- linear_cross_entropy: items are blocks of rows
 * ---------------------------------------------- */
/* Logits of rows [row, row+n), a panel of w at a time: z[r·V + v]. */
static void block_logits(const ds_tensor *x, const ref_matrix *w, int64_t row, int64_t n, real *z,
                         real *panel, real *buffer)
{
    for (int64_t column = 0; column < w->n_out; column += REF_PANEL) {
        const int64_t width = w->n_out - column < REF_PANEL ? w->n_out - column : REF_PANEL;
        ref_pack_panel(w, column, panel);
        for (int64_t r = 0; r < n; ++r) {
            real sums[REF_PANEL];
            const real *xr = ref_row(x, (row + r) * w->n_in, w->n_in, buffer);
            ref_dot_panel(xr, panel, w->n_in, sums);
            for (int64_t j = 0; j < width; ++j) {
                z[r * w->n_out + column + j] = sums[j];
            }
        }
    }
}

/* Workspace of a range of rows: logits, a panel, a row; the backward pass also uses dx rows. */
static int64_t row_reals(int64_t c, int64_t v)
{
    return ROW_BLOCK * v + (REF_PANEL + 1) * c + ROW_BLOCK * c;
}

static int64_t n_blocks(int64_t n, int64_t block)
{
    return (n + block - 1) / block;
}

static ref_matrix weight(const ds_kernel_call *call, uint32_t i)
{
    const dsi_ce_attrs *a = call->sig->attrs;
    return ref_matrix_of(&call->in[i], a->transposed);
}

/* Columns of the weight at input i. */
static int64_t vocabulary(const ds_kernel_sig *sig, uint32_t i)
{
    const dsi_ce_attrs *a = sig->attrs;
    return sig->in[i].shape.dims[a->transposed != 0 ? 1 : 0];
}

static size_t linear_cross_entropy_work(const ds_kernel_sig *sig)
{
    const int64_t c = ds_shape_last(sig->in[0].shape);
    const int64_t v = vocabulary(sig, 1);
    return ref_slot_bytes(sig, row_reals(c, v)) +
           (size_t)ds_shape_rows(sig->in[0].shape) * sizeof(real);
}

static void linear_cross_entropy_blocks(const ds_kernel_call *call, int64_t begin, int64_t end,
                                        uint32_t slot)
{
    const ref_matrix w = weight(call, 1);
    const bool keeps = ((const dsi_linear_ce_attrs *)call->sig->attrs)->keep != 0;
    const int64_t rows = ds_shape_rows(call->in[0].meta.shape);
    const int64_t each = row_reals(w.n_in, w.n_out);
    real *z = ref_slot(call, slot, each);
    real *panel = z + ROW_BLOCK * w.n_out;
    real *buffer = panel + REF_PANEL * w.n_in;
    real *losses = ref_slot(call, dsi_ref_slots(call->sig), each);
    for (int64_t b = begin; b < end; ++b) {
        const int64_t row = b * ROW_BLOCK;
        const int64_t n = rows - row < ROW_BLOCK ? rows - row : ROW_BLOCK;
        block_logits(&call->in[0], &w, row, n, z, panel, buffer);
        for (int64_t r = 0; r < n; ++r) {
            finish_row(call, &call->in[2], row + r, z + r * w.n_out, w.n_out, losses);
        }
        for (int64_t i = 0; i < n * w.n_out && keeps; ++i) {
            ref_set(&call->out[3], row * w.n_out + i, z[i]);
        }
    }
}

static void linear_cross_entropy_loss(const ds_kernel_call *call, int64_t begin, int64_t end,
                                      uint32_t slot)
{
    const ref_matrix w = weight(call, 1);
    (void)begin;
    (void)end;
    (void)slot;
    ref_finish_loss(call, &call->in[2], &call->in[3],
                    ref_slot(call, dsi_ref_slots(call->sig), row_reals(w.n_in, w.n_out)));
}

static ds_status linear_cross_entropy_run(const ds_kernel_call *call)
{
    const int64_t rows = ds_shape_rows(call->in[0].meta.shape);
    DS_TRY(ref_check_targets(call, &call->in[2], weight(call, 1).n_out));
    dsi_ref_for(call, n_blocks(rows, ROW_BLOCK), linear_cross_entropy_blocks);
    dsi_ref_serial(call, linear_cross_entropy_loss);
    return DS_OK;
}

/* ---- linear_logprob: a number for each row ----------------------------------------------------
 */
static void linear_logprob_blocks(const ds_kernel_call *call, int64_t begin, int64_t end,
                                  uint32_t slot)
{
    const dsi_ce_attrs *a = call->sig->attrs;
    const ref_matrix w = weight(call, 1);
    const int32_t *targets = call->in[2].data;
    const int64_t rows = ds_shape_rows(call->in[0].meta.shape);
    real *z = ref_slot(call, slot, row_reals(w.n_in, w.n_out));
    real *panel = z + ROW_BLOCK * w.n_out;
    real *buffer = panel + REF_PANEL * w.n_in;
    for (int64_t b = begin; b < end; ++b) {
        const int64_t row = b * ROW_BLOCK;
        const int64_t n = rows - row < ROW_BLOCK ? rows - row : ROW_BLOCK;
        block_logits(&call->in[0], &w, row, n, z, panel, buffer);
        for (int64_t r = 0; r < n; ++r) {
            const int32_t target = targets[row + r];
            const real *zr = z + r * w.n_out;
            const real lse = ref_log_sum_exp(zr, w.n_out);
            ref_set(&call->out[1], row + r, lse);
            ref_set(&call->out[0], row + r, target == a->ignore_index ? R(0.0) : zr[target] - lse);
        }
    }
}

static size_t linear_logprob_work(const ds_kernel_sig *sig)
{
    const int64_t c = ds_shape_last(sig->in[0].shape);
    return ref_slot_bytes(sig, row_reals(c, vocabulary(sig, 1)));
}

static ds_status linear_logprob_run(const ds_kernel_call *call)
{
    const int64_t rows = ds_shape_rows(call->in[0].meta.shape);
    DS_TRY(ref_check_targets(call, &call->in[2], weight(call, 1).n_out));
    dsi_ref_for(call, n_blocks(rows, ROW_BLOCK), linear_logprob_blocks);
    return DS_OK;
}

/* ---- by parts of the vocabulary --------------------------------------------------------------
 */
/* Targets are of the whole vocabulary. */
static int64_t first_row(const ds_tensor *rows)
{
    return ((const int32_t *)rows->data)[0];
}

/* Rows of a part that are of the vocabulary: behind them it is padded. */
static int64_t real_rows(int64_t n_part, int64_t first, int64_t n_all)
{
    return n_all - first < n_part ? n_all - first : n_part;
}

static size_t linear_cross_entropy_part_work(const ds_kernel_sig *sig)
{
    const int64_t c = ds_shape_last(sig->in[0].shape);
    return ref_slot_bytes(sig, row_reals(c, vocabulary(sig, 1)));
}

static void part_blocks(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ref_matrix w = weight(call, 1);
    const int32_t *targets = call->in[2].data;
    const int64_t first = first_row(&call->in[3]);
    const dsi_ce_part_attrs *a = call->sig->attrs;
    const int64_t v = real_rows(w.n_out, first, a->n_rows);
    const int64_t rows = ds_shape_rows(call->in[0].meta.shape);
    real *z = ref_slot(call, slot, row_reals(w.n_in, w.n_out));
    real *panel = z + ROW_BLOCK * w.n_out;
    real *buffer = panel + REF_PANEL * w.n_in;
    for (int64_t b = begin; b < end; ++b) {
        const int64_t row = b * ROW_BLOCK;
        const int64_t n = rows - row < ROW_BLOCK ? rows - row : ROW_BLOCK;
        block_logits(&call->in[0], &w, row, n, z, panel, buffer);
        for (int64_t r = 0; r < n; ++r) {
            const int64_t target = targets[row + r] - first;
            const bool here = target >= 0 && target < v;
            ref_set(&call->out[0], 2 * (row + r), ref_log_sum_exp(z + r * w.n_out, v));
            ref_set(&call->out[0], 2 * (row + r) + 1, here ? z[r * w.n_out + target] : -R(0.0));
        }
    }
}

static ds_status linear_cross_entropy_part_run(const ds_kernel_call *call)
{
    const dsi_ce_part_attrs *a = call->sig->attrs;
    DS_TRY(ref_check_targets(call, &call->in[2], a->n_rows));
    memcpy(call->out[1].data, call->in[3].data, ds_meta_bytes(call->in[3].meta));
    dsi_ref_for(call, n_blocks(ds_shape_rows(call->in[0].meta.shape), ROW_BLOCK), part_blocks);
    return DS_OK;
}

/* The parts in their order, then the rows in theirs. */
static ds_status cross_entropy_join_run(const ds_kernel_call *call)
{
    const dsi_ce_attrs *a = call->sig->attrs;
    const ds_tensor *terms = &call->in[0];
    const int32_t *targets = call->in[1].data;
    const int64_t rows = ds_shape_count(call->in[1].meta.shape);
    const int64_t n = rows > 0 ? ds_shape_count(terms->meta.shape) / (2 * rows) : 0;
    double loss = 0.0;
    int64_t count = 0;
    for (int64_t row = 0; row < rows; ++row) {
        real top = -(real)INFINITY;
        real sum = R(0.0);
        real hit = R(0.0);
        for (int64_t k = 0; k < n; ++k) {
            const real lse = ref_get(terms, 2 * (rows * k + row));
            top = lse > top || lse != lse ? lse : top;
        }
        for (int64_t k = 0; k < n; ++k) {
            sum += r_exp(ref_get(terms, 2 * (rows * k + row)) - top);
            hit += ref_get(terms, 2 * (rows * k + row) + 1);
        }
        const real lse = top + r_log(sum);
        ref_set(&call->out[1], row, lse);
        if (targets[row] != a->ignore_index) {
            loss += (double)(lse - hit);
            ++count;
        }
    }
    const real n_rows = a->counted != 0 ? ref_get(&call->in[2], 0) : (real)count;
    ref_set(&call->out[0], 0, (real)(n_rows > R(0.0) ? loss / (double)n_rows : 0.0));
    ref_set(&call->out[2], 0, n_rows);
    return DS_OK;
}

/* ---- backward: dloss, x, w, targets, lse, count, [dw_in] → [dx], [dw] -----------------------
 * Of linear_logprob: dlogp, x, w, targets, lse, [dw_in] → [dx], [dw]. Of kept logits: dloss, w or
 * x, logits, targets, lse, count, [dw_in] → dx or dw. */
typedef struct ref_loss {
    const ds_kernel_call *call;
    const ds_tensor *x, *logits; /* NULL: not there */
    const ds_tensor *targets, *lse, *start;
    const ds_tensor *dlogp;   /* of linear_logprob; NULL: `scale` is that of all rows */
    const ds_tensor *dx, *dw; /* NULL: not asked for */
    ref_matrix w;             /* of a dw alone: dw's shape, no numbers */
    ds_dtype type;            /* of x and w */
    int64_t rows;
    int64_t first; /* number of w's first row in the whole vocabulary, of n_all */
    int64_t n_all;
    real scale;
} ref_loss;

static const ds_tensor *made(const ds_kernel_call *call, uint32_t i)
{
    return call->out[i].data != NULL ? &call->out[i] : NULL;
}

static ref_loss loss_of(const ds_kernel_call *call)
{
    const dsi_ce_attrs *a = call->sig->attrs;
    const bool only_dx = call->sig->op == &dsi_op_linear_cross_entropy_dx;
    const bool only_dw = call->sig->op == &dsi_op_linear_cross_entropy_dw;
    const bool by_parts = call->sig->op == &dsi_op_linear_cross_entropy_part_backward;
    const bool by_rows = call->sig->op == &dsi_op_linear_logprob_backward;
    ref_loss l = {.call = call,
                  .targets = &call->in[3],
                  .lse = &call->in[4],
                  .type = call->in[1].meta.dtype,
                  .rows = ds_shape_count(call->in[3].meta.shape),
                  .dlogp = by_rows ? &call->in[0] : NULL,
                  .scale = by_rows ? R(0.0) : ref_loss_scale(&call->in[0], &call->in[5])};
    if (only_dx) {
        l.logits = &call->in[2];
        l.dx = made(call, 0);
        l.w = weight(call, 1);
    } else if (only_dw) {
        l.x = &call->in[1];
        l.logits = &call->in[2];
        l.dw = made(call, 0);
        l.w = ref_matrix_of(&call->out[0], a->transposed);
        l.start = ref_in(call, 6);
    } else {
        l.x = &call->in[1];
        l.dx = made(call, 0);
        l.dw = made(call, 1);
        l.w = weight(call, 2);
        l.start = ref_in(call, by_parts ? 7 : by_rows ? 5 : 6);
    }
    l.first = by_parts ? first_row(&call->in[6]) : 0;
    l.n_all = by_parts ? ((const dsi_ce_part_attrs *)call->sig->attrs)->n_rows : l.w.n_out;
    return l;
}

/* Gradient of logit v of row n, rounded to x's dtype; of padding 0. */
static real rounded_dlogit(const ref_loss *l, int64_t n, int64_t v, real z)
{
    const dsi_ce_attrs *a = l->call->sig->attrs;
    const int32_t target = ((const int32_t *)l->targets->data)[n];
    if (target == a->ignore_index || v >= l->n_all - l->first) {
        return R(0.0);
    }
    const real scale = l->dlogp != NULL ? -ref_get(l->dlogp, n) : l->scale;
    return ref_round(l->type, dlogit(z, ref_get(l->lse, n), v == target - l->first, scale));
}

static int64_t column_reals(int64_t c)
{
    return (2 * REF_PANEL + 1) * c;
}

static size_t backward_work(const ds_kernel_sig *sig)
{
    const bool only_dw = sig->op == &dsi_op_linear_cross_entropy_dw;
    const bool only_dx = sig->op == &dsi_op_linear_cross_entropy_dx;
    const int64_t v = only_dw ? ds_shape_last(sig->in[2].shape) : vocabulary(sig, only_dx ? 1 : 2);
    const int64_t c = only_dx ? ds_shape_count(sig->in[1].shape) / (v > 0 ? v : 1)
                              : ds_shape_last(sig->in[1].shape);
    const int64_t by_rows = row_reals(c, v);
    return ref_slot_bytes(sig, by_rows > column_reals(c) ? by_rows : column_reals(c));
}

static real *slot_of(const ref_loss *l, uint32_t slot)
{
    const int64_t by_rows = row_reals(l->w.n_in, l->w.n_out);
    const int64_t by_columns = column_reals(l->w.n_in);
    return ref_slot(l->call, slot, by_rows > by_columns ? by_rows : by_columns);
}

/* dx of a block of rows: each element summed over the vocabulary in order. */
static void dx_blocks(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ref_loss l = loss_of(call);
    const ref_matrix w = l.w;
    real *z = slot_of(&l, slot);
    real *panel = z + ROW_BLOCK * w.n_out;
    real *buffer = panel + REF_PANEL * w.n_in;
    real *dx = buffer + w.n_in;
    for (int64_t b = begin; b < end; ++b) {
        const int64_t row = b * ROW_BLOCK;
        const int64_t n = l.rows - row < ROW_BLOCK ? l.rows - row : ROW_BLOCK;
        if (l.logits == NULL) {
            block_logits(l.x, &w, row, n, z, panel, buffer);
        }
        for (int64_t i = 0; i < n * w.n_out && l.logits != NULL; ++i) {
            z[i] = ref_get(l.logits, row * w.n_out + i);
        }
        for (int64_t i = 0; i < n * w.n_in; ++i) {
            dx[i] = R(0.0);
        }
        for (int64_t v = 0; v < w.n_out; ++v) {
            for (int64_t i = 0; i < w.n_in; ++i) {
                buffer[i] = ref_get(w.t, ref_matrix_at(&w, i, v));
            }
            for (int64_t r = 0; r < n; ++r) {
                const real d = rounded_dlogit(&l, row + r, v, z[r * w.n_out + v]);
                for (int64_t i = 0; i < w.n_in; ++i) {
                    dx[r * w.n_in + i] += d * buffer[i];
                }
            }
        }
        for (int64_t i = 0; i < n * w.n_in; ++i) {
            ref_set(l.dx, row * w.n_in + i, dx[i]);
        }
    }
}

/* dw of panels of the vocabulary: each element summed over the rows in order. */
static void dw_panels(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ref_loss l = loss_of(call);
    const ref_matrix w = l.w;
    real *panel = slot_of(&l, slot);
    real *dw = panel + REF_PANEL * w.n_in;
    real *buffer = dw + REF_PANEL * w.n_in;
    for (int64_t p = begin; p < end; ++p) {
        const int64_t column = p * REF_PANEL;
        const int64_t width = w.n_out - column < REF_PANEL ? w.n_out - column : REF_PANEL;
        if (l.logits == NULL) {
            ref_pack_panel(&w, column, panel);
        }
        for (int64_t i = 0; i < REF_PANEL * w.n_in; ++i) {
            dw[i] = R(0.0);
        }
        for (int64_t n = 0; n < l.rows; ++n) {
            real z[REF_PANEL];
            const real *x = ref_row(l.x, n * w.n_in, w.n_in, buffer);
            if (l.logits == NULL) {
                ref_dot_panel(x, panel, w.n_in, z);
            }
            for (int64_t j = 0; j < width; ++j) {
                const real logit =
                    l.logits != NULL ? ref_get(l.logits, n * w.n_out + column + j) : z[j];
                const real d = rounded_dlogit(&l, n, column + j, logit);
                for (int64_t i = 0; i < w.n_in; ++i) {
                    dw[j * w.n_in + i] += d * x[i];
                }
            }
        }
        for (int64_t i = 0; i < width * w.n_in; ++i) {
            const int64_t at = ref_matrix_at(&w, i % w.n_in, column + i / w.n_in);
            ref_set(l.dw, at, l.start != NULL ? dw[i] + ref_get(l.start, at) : dw[i]);
        }
    }
}

static ds_status linear_cross_entropy_backward_run(const ds_kernel_call *call)
{
    const ref_loss l = loss_of(call);
    DS_TRY(ref_check_targets(call, l.targets, l.n_all));
    if (l.dx != NULL) {
        dsi_ref_for(call, n_blocks(l.rows, ROW_BLOCK), dx_blocks);
    }
    if (l.dw != NULL) {
        dsi_ref_for(call, n_blocks(l.w.n_out, REF_PANEL), dw_panels);
    }
    return DS_OK;
}

static ds_status count_targets_run(const ds_kernel_call *call)
{
    const dsi_ce_attrs *a = call->sig->attrs;
    const int32_t *targets = call->in[0].data;
    const int64_t n = ds_shape_count(call->in[0].meta.shape);
    int64_t count = 0;
    for (int64_t i = 0; i < n; ++i) {
        count += targets[i] != a->ignore_index;
    }
    *(float *)call->out[0].data = (float)count;
    return DS_OK;
}

REF_KERNEL(count_targets, count_targets_run, NULL);
REF_KERNEL(cross_entropy, cross_entropy_run, cross_entropy_work);
REF_KERNEL(cross_entropy_backward, cross_entropy_backward_run, NULL);
REF_KERNEL(linear_cross_entropy, linear_cross_entropy_run, linear_cross_entropy_work);
REF_KERNEL(linear_cross_entropy_backward, linear_cross_entropy_backward_run, backward_work);
REF_KERNEL(linear_cross_entropy_part, linear_cross_entropy_part_run,
           linear_cross_entropy_part_work);
REF_KERNEL(cross_entropy_join, cross_entropy_join_run, NULL);
REF_KERNEL(linear_cross_entropy_part_backward, linear_cross_entropy_backward_run, backward_work);
REF_KERNEL(linear_logprob, linear_logprob_run, linear_logprob_work);
REF_KERNEL(linear_logprob_backward, linear_cross_entropy_backward_run, backward_work);
REF_KERNEL(linear_cross_entropy_dx, linear_cross_entropy_backward_run, backward_work);
REF_KERNEL(linear_cross_entropy_dw, linear_cross_entropy_backward_run, backward_work);
const ds_kernel *const DSI_REF(cross_entropy)[] = {&count_targets_kernel,
                                                   &cross_entropy_kernel,
                                                   &cross_entropy_backward_kernel,
                                                   &linear_cross_entropy_kernel,
                                                   &linear_cross_entropy_backward_kernel,
                                                   &linear_cross_entropy_dx_kernel,
                                                   &linear_cross_entropy_dw_kernel,
                                                   &linear_cross_entropy_part_kernel,
                                                   &cross_entropy_join_kernel,
                                                   &linear_cross_entropy_part_backward_kernel,
                                                   &linear_logprob_kernel,
                                                   &linear_logprob_backward_kernel,
                                                   NULL};
