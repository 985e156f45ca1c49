/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of linear and linear_dw. */
#include "accel/cpu/ref/ref_act.h"
#include "accel/cpu/ref/ref_dot.h"
#include "base/blocks.h"
#include "base/packed.h"

/* ---- linear: items are panels of output columns ------------------------------------------------
 */
static size_t linear_work(const ds_kernel_sig *sig)
{
    return ref_slot_bytes(sig, (REF_PANEL + 1) * ds_shape_last(sig->in[0].shape));
}

/* Everything after the sum, for element `at` of row-major y in column o. */
static void linear_finish(const ds_kernel_call *call, int64_t at, int64_t o, real sum)
{
    const dsi_linear_attrs *a = call->sig->attrs;
    const ds_tensor *y = &call->out[0];
    const ds_tensor *pre = ref_out(call, 1);
    if (ref_has(call, 2)) {
        sum = sum + ref_get(&call->in[2], o);
    }
    if (pre != NULL) {
        ref_set(pre, at, sum);
        sum = ref_round(pre->meta.dtype, sum);
    }
    sum = ref_act(a->activation, sum);
    if (ref_has(call, 3)) {
        sum = sum + ref_get(&call->in[3], at);
    }
    ref_set(y, at, sum);
}

static void linear_panels(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_linear_attrs *a = call->sig->attrs;
    const ref_matrix w = ref_matrix_of(&call->in[1], a->transposed);
    const int64_t n_rows = ds_shape_rows(call->in[0].meta.shape);
    real *panel = ref_slot(call, slot, (REF_PANEL + 1) * w.n_in);
    real *buffer = panel + REF_PANEL * w.n_in;
    for (int64_t p = begin; p < end; ++p) {
        const int64_t column = p * REF_PANEL;
        ref_pack_panel(&w, column, panel);
        for (int64_t n = 0; n < n_rows; ++n) {
            real sums[REF_PANEL];
            ref_dot_panel(ref_row(&call->in[0], n * w.n_in, w.n_in, buffer), panel, w.n_in, sums);
            for (int64_t j = 0; j < REF_PANEL && column + j < w.n_out; ++j) {
                linear_finish(call, n * w.n_out + column + j, column + j, sums[j]);
            }
        }
    }
}

static ds_status linear_run(const ds_kernel_call *call)
{
    const int64_t o = ds_shape_last(call->out[0].meta.shape);
    dsi_ref_for(call, (o + REF_PANEL - 1) / REF_PANEL, linear_panels);
    return DS_OK;
}

/* ---- linear_dw: items are blocks of output columns ---------------------------------------------
 */
enum { DW_BLOCK = 4 };

static size_t linear_dw_work(const ds_kernel_sig *sig)
{
    return ref_slot_bytes(sig, (DW_BLOCK + 1) * ds_shape_last(sig->in[0].shape));
}

/* sums[j·k + i] = Σ over rows of dy(row, column+j)·x(row, i). */
static void dw_sums(const ds_kernel_call *call, int64_t column, int64_t n, real *sums, real *buffer)
{
    const ds_tensor *x = &call->in[0];
    const ds_tensor *dy = &call->in[1];
    const int64_t k = ds_shape_last(x->meta.shape);
    const int64_t o = ds_shape_last(dy->meta.shape);
    const int64_t n_rows = ds_shape_rows(x->meta.shape);
    for (int64_t i = 0; i < n * k; ++i) {
        sums[i] = R(0.0);
    }
    for (int64_t row = 0; row < n_rows; ++row) {
        const real *xr = ref_row(x, row * k, k, buffer);
        for (int64_t j = 0; j < n; ++j) {
            const real d = ref_get(dy, row * o + column + j);
            real *s = sums + j * k;
            for (int64_t i = 0; i < k; ++i) {
                s[i] += d * xr[i];
            }
        }
    }
}

static void add_and_set(const ds_tensor *out, const ds_tensor *in, int64_t at, real sum)
{
    ref_set(out, at, in != NULL ? sum + ref_get(in, at) : sum);
}

static void dbias(const ds_kernel_call *call, int64_t column)
{
    const ds_tensor *dy = &call->in[1];
    const int64_t o = ds_shape_last(dy->meta.shape);
    const int64_t n_rows = ds_shape_rows(dy->meta.shape);
    real sum = R(0.0);
    for (int64_t row = 0; row < n_rows; ++row) {
        sum += ref_get(dy, row * o + column);
    }
    add_and_set(&call->out[1], ref_in(call, 3), column, sum);
}

static void linear_dw_blocks(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_linear_dw_attrs *a = call->sig->attrs;
    const ref_matrix dw = ref_matrix_of(&call->out[0], a->transposed);
    real *sums = ref_slot(call, slot, (DW_BLOCK + 1) * dw.n_in);
    for (int64_t b = begin; b < end; ++b) {
        const int64_t column = b * DW_BLOCK;
        const int64_t n = dw.n_out - column < DW_BLOCK ? dw.n_out - column : DW_BLOCK;
        dw_sums(call, column, n, sums, sums + DW_BLOCK * dw.n_in);
        for (int64_t j = 0; j < n; ++j) {
            for (int64_t i = 0; i < dw.n_in; ++i) {
                add_and_set(dw.t, ref_in(call, 2), ref_matrix_at(&dw, i, column + j),
                            sums[j * dw.n_in + i]);
            }
            if (ref_out(call, 1) != NULL) {
                dbias(call, column + j);
            }
        }
    }
}

static ds_status linear_dw_run(const ds_kernel_call *call)
{
    const int64_t o = ds_shape_last(call->in[1].meta.shape);
    dsi_ref_for(call, (o + DW_BLOCK - 1) / DW_BLOCK, linear_dw_blocks);
    return DS_OK;
}

/* ---- linear_packed: items are panels of output columns -----------------------------------------
 */

/* Element (k, column) of w as x's dtype holds it. */
static real packed_element(const ds_kernel_call *call, int64_t k, int64_t column)
{
    const dsi_linear_packed_attrs *a = call->sig->attrs;
    const ds_packed w = {(ds_packing)a->format, 0, a->rows, a->columns};
    const int64_t at = a->transposed != 0 ? k * a->columns + column : column * a->columns + k;
    float value;
    dsi_packed_read(&w, call->in[1].data, at, 1, &value);
    return ref_round(call->in[0].meta.dtype, (real)value);
}

static void linear_packed_panels(const ds_kernel_call *call, int64_t begin, int64_t end,
                                 uint32_t slot)
{
    const int64_t n_in = ds_shape_last(call->in[0].meta.shape);
    const int64_t n_out = ds_shape_last(call->out[0].meta.shape);
    const int64_t n_rows = ds_shape_rows(call->in[0].meta.shape);
    real *panel = ref_slot(call, slot, (REF_PANEL + 1) * n_in);
    real *buffer = panel + REF_PANEL * n_in;
    for (int64_t p = begin; p < end; ++p) {
        const int64_t column = p * REF_PANEL;
        for (int64_t i = 0; i < REF_PANEL * n_in; ++i) {
            const int64_t k = i / REF_PANEL, o = column + i % REF_PANEL;
            panel[i] = o < n_out ? packed_element(call, k, o) : R(0.0);
        }
        for (int64_t n = 0; n < n_rows; ++n) {
            real sums[REF_PANEL];
            ref_dot_panel(ref_row(&call->in[0], n * n_in, n_in, buffer), panel, n_in, sums);
            for (int64_t j = 0; j < REF_PANEL && column + j < n_out; ++j) {
                const real bias = ref_has(call, 2) ? ref_get(&call->in[2], column + j) : R(0.0);
                ref_set(&call->out[0], n * n_out + column + j,
                        ref_has(call, 2) ? sums[j] + bias : sums[j]);
            }
        }
    }
}

static ds_status linear_packed_run(const ds_kernel_call *call)
{
    const int64_t o = ds_shape_last(call->out[0].meta.shape);
    dsi_ref_for(call, (o + REF_PANEL - 1) / REF_PANEL, linear_packed_panels);
    return DS_OK;
}

/* A weight in blocks is ref_block_linear.c's. */
static bool linear_supports(const ds_kernel_sig *sig)
{
    return ref_supports(sig) && !dsi_is_blocks(sig->in[1].dtype);
}

static const ds_kernel linear_kernel = {.version = DS_OP_VERSION,
                                        .name = "ref",
                                        .op = "linear",
                                        .needs = DS_ISA_REF,
                                        .supports = linear_supports,
                                        .work_bytes = linear_work,
                                        .run = linear_run};
REF_KERNEL(linear_dw, linear_dw_run, linear_dw_work);
REF_KERNEL(linear_packed, linear_packed_run, linear_work);
const ds_kernel *const DSI_REF(linear)[] = {&linear_kernel, &linear_dw_kernel,
                                            &linear_packed_kernel, NULL};
