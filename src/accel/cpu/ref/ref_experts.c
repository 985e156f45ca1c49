/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of spread_rows, combine_rows and the products of experts with their rows. */
#include "accel/cpu/grouped.h"
#include "accel/cpu/ref/ref_dot.h"
#include "op/ops.h"

/* ---- rows: items are tokens --------------------------------------------------------------------
 */
static void spread_tokens(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int64_t c = ds_shape_last(call->in[0].meta.shape);
    const int64_t k = ds_shape_last(call->in[1].meta.shape);
    const int32_t *place = call->in[1].data;
    const ds_tensor *weights = ref_in(call, 2);
    (void)slot;
    for (int64_t i = begin * k; i < end * k; ++i) {
        for (int64_t j = 0; j < c; ++j) {
            const real x = ref_get(&call->in[0], i / k * c + j);
            ref_set(&call->out[0], place[i] * c + j, weights != NULL ? x * ref_get(weights, i) : x);
        }
    }
}

static ds_status spread_rows_run(const ds_kernel_call *call)
{
    const ds_tensor *place = &call->in[1];
    DS_TRY(dsi_grouped_check_place(call, place, ds_shape_count(place->meta.shape)));
    dsi_ref_for(call, ds_shape_rows(place->meta.shape), spread_tokens);
    return DS_OK;
}

static void combine_tokens(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int64_t c = ds_shape_last(call->in[0].meta.shape);
    const int64_t k = ds_shape_last(call->in[1].meta.shape);
    const int32_t *place = call->in[1].data;
    const ds_tensor *weights = ref_in(call, 2);
    (void)slot;
    for (int64_t token = begin; token < end; ++token) {
        for (int64_t j = 0; j < c; ++j) {
            real sum = R(0.0);
            for (int64_t i = token * k; i < (token + 1) * k; ++i) {
                const real x = ref_get(&call->in[0], place[i] * c + j);
                sum += weights != NULL ? x * ref_get(weights, i) : x;
            }
            ref_set(&call->out[0], token * c + j, sum);
        }
    }
}

static ds_status combine_rows_run(const ds_kernel_call *call)
{
    const ds_tensor *place = &call->in[1];
    DS_TRY(dsi_grouped_check_place(call, place, call->in[0].meta.shape.dims[0]));
    dsi_ref_for(call, ds_shape_rows(place->meta.shape), combine_tokens);
    return DS_OK;
}

static void combine_dw_tokens(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const int64_t c = ds_shape_last(call->in[0].meta.shape);
    const int64_t k = ds_shape_last(call->in[2].meta.shape);
    const int32_t *place = call->in[2].data;
    (void)slot;
    for (int64_t i = begin * k; i < end * k; ++i) {
        real sum = R(0.0);
        for (int64_t j = 0; j < c; ++j) {
            sum += ref_get(&call->in[0], i / k * c + j) * ref_get(&call->in[1], place[i] * c + j);
        }
        ref_set(&call->out[0], i, sum);
    }
}

static ds_status combine_rows_dw_run(const ds_kernel_call *call)
{
    const ds_tensor *place = &call->in[2];
    DS_TRY(dsi_grouped_check_place(call, place, call->in[1].meta.shape.dims[0]));
    dsi_ref_for(call, ds_shape_rows(place->meta.shape), combine_dw_tokens);
    return DS_OK;
}

/* ---- grouped_linear: items are panels of output columns ----------------------------------------
 */
static size_t grouped_linear_work(const ds_kernel_sig *sig)
{
    return ref_slot_bytes(sig, (REF_PANEL + 1) * ds_shape_last(sig->in[0].shape));
}

/* The rows of segment e, of a source and an expert, times one panel of the weight, as linear
 * computes them. */
static void expert_panel(const ds_kernel_call *call, int64_t e, int64_t column, real *panel)
{
    const dsi_grouped_attrs *a = call->sig->attrs;
    const int32_t *offsets = call->in[2].data;
    ds_tensor one = call->in[1];
    const int64_t expert = e % one.meta.shape.dims[0];
    one.meta.shape = ds_shape_2d(one.meta.shape.dims[1], one.meta.shape.dims[2]);
    one.data = (char *)one.data + (size_t)expert * ds_meta_bytes(one.meta);
    const ref_matrix w = ref_matrix_of(&one, a->transposed);
    real *buffer = panel + REF_PANEL * w.n_in;
    ref_pack_panel(&w, column, panel);
    for (int64_t row = offsets[e]; row < offsets[e + 1]; ++row) {
        real sums[REF_PANEL];
        ref_dot_panel(ref_row(&call->in[0], row * w.n_in, w.n_in, buffer), panel, w.n_in, sums);
        for (int64_t j = 0; j < REF_PANEL && column + j < w.n_out; ++j) {
            ref_set(&call->out[0], row * w.n_out + column + j, sums[j]);
        }
    }
}

static void grouped_panels(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ds_shape x = call->in[0].meta.shape;
    const int64_t n_out = ds_shape_last(call->out[0].meta.shape);
    const int64_t n_segments = call->in[2].meta.shape.dims[0] - 1;
    const int32_t *offsets = call->in[2].data;
    real *panel = ref_slot(call, slot, (REF_PANEL + 1) * x.dims[1]);
    for (int64_t p = begin; p < end; ++p) {
        for (int64_t e = 0; e < n_segments; ++e) {
            if (offsets[e] < offsets[e + 1]) {
                expert_panel(call, e, p * REF_PANEL, panel);
            }
        }
        for (int64_t row = offsets[n_segments]; row < x.dims[0]; ++row) {
            for (int64_t j = p * REF_PANEL; j < (p + 1) * REF_PANEL && j < n_out; ++j) {
                ref_set(&call->out[0], row * n_out + j, R(0.0));
            }
        }
    }
}

static ds_status grouped_linear_run(const ds_kernel_call *call)
{
    const int64_t o = ds_shape_last(call->out[0].meta.shape);
    DS_TRY(dsi_grouped_check_offsets(call, &call->in[2], call->in[0].meta.shape.dims[0]));
    dsi_ref_for(call, (o + REF_PANEL - 1) / REF_PANEL, grouped_panels);
    return DS_OK;
}

/* ---- grouped_linear_dw: items are output columns of an expert ----------------------------------
 */
static int64_t sources_of(const ds_kernel_sig *sig)
{
    const dsi_grouped_attrs *a = sig->attrs;
    return a->sources > 1 ? a->sources : 1;
}

/* A total and a part, and a total for each sum of sources that is open. */
static size_t grouped_linear_dw_work(const ds_kernel_sig *sig)
{
    return ref_slot_bytes(sig, (2 + dsi_grouped_depth(sources_of(sig))) *
                                   ds_shape_last(sig->in[0].shape));
}

/* total[i] += Σ over rows [begin,end) of dy(row, column)·x(row, i). */
static void add_part(const ds_kernel_call *call, int64_t begin, int64_t end, int64_t column,
                     real *total, real *part)
{
    const int64_t k = ds_shape_last(call->in[0].meta.shape);
    const int64_t o = ds_shape_last(call->in[1].meta.shape);
    for (int64_t i = 0; i < k; ++i) {
        part[i] = R(0.0);
    }
    for (int64_t row = begin; row < end; ++row) {
        const real d = ref_get(&call->in[1], row * o + column);
        for (int64_t i = 0; i < k; ++i) {
            part[i] += d * ref_get(&call->in[0], row * k + i);
        }
    }
    for (int64_t i = 0; i < k; ++i) {
        total[i] += part[i];
    }
}

/* A column of an expert over the rows of sources [begin,end), in the canonical order. rows: of k
 * numbers each, the first for the result; on entry what the first source's sum begins with. */
static void sum_sources(const ds_kernel_call *call, int64_t expert, int64_t column, int64_t begin,
                        int64_t end, real *rows, real *part)
{
    const int64_t k = ds_shape_last(call->in[0].meta.shape);
    const int64_t n_experts = call->out[0].meta.shape.dims[0];
    const int32_t *offsets = (const int32_t *)call->in[2].data + begin * n_experts + expert;
    if (end - begin > 1) {
        const int64_t middle = begin + dsi_grouped_left(end - begin);
        sum_sources(call, expert, column, begin, middle, rows, part);
        for (int64_t i = 0; i < k; ++i) {
            rows[k + i] = R(0.0);
        }
        sum_sources(call, expert, column, middle, end, rows + k, part);
        for (int64_t i = 0; i < k; ++i) {
            rows[i] += rows[k + i];
        }
        return;
    }
    for (int64_t row = offsets[0]; row < offsets[1]; row += DSI_GROUPED_SUM) {
        const int64_t last = dsi_grouped_part_end(row, offsets[1], DSI_GROUPED_SUM);
        add_part(call, row, last, column, rows, part);
    }
}

static void grouped_dw_columns(const ds_kernel_call *call, int64_t begin, int64_t end,
                               uint32_t slot)
{
    const dsi_grouped_attrs *a = call->sig->attrs;
    const int64_t k = ds_shape_last(call->in[0].meta.shape);
    const int64_t o = ds_shape_last(call->in[1].meta.shape);
    const int64_t n_sources = sources_of(call->sig);
    const ds_tensor *before = ref_in(call, 3);
    real *part = ref_slot(call, slot, (2 + dsi_grouped_depth(n_sources)) * k);
    real *total = part + k;
    for (int64_t item = begin; item < end; ++item) {
        const int64_t e = item / o;
        const int64_t column = item % o;
        const int64_t at = e * o * k + (a->transposed != 0 ? column : column * k);
        const int64_t step = a->transposed != 0 ? o : 1;
        for (int64_t i = 0; i < k; ++i) {
            total[i] = before != NULL && n_sources == 1 ? ref_get(before, at + i * step) : R(0.0);
        }
        sum_sources(call, e, column, 0, n_sources, total, part);
        for (int64_t i = 0; i < k; ++i) {
            const bool adds = before != NULL && n_sources > 1;
            ref_set(&call->out[0], at + i * step,
                    adds ? ref_get(before, at + i * step) + total[i] : total[i]);
        }
    }
}

static ds_status grouped_linear_dw_run(const ds_kernel_call *call)
{
    const int64_t n_experts = call->out[0].meta.shape.dims[0];
    DS_TRY(dsi_grouped_check_offsets(call, &call->in[2], call->in[0].meta.shape.dims[0]));
    dsi_ref_for(call, n_experts * ds_shape_last(call->in[1].meta.shape), grouped_dw_columns);
    return DS_OK;
}

REF_KERNEL(spread_rows, spread_rows_run, NULL);
REF_KERNEL(combine_rows, combine_rows_run, NULL);
REF_KERNEL(combine_rows_dw, combine_rows_dw_run, NULL);
REF_KERNEL(grouped_linear, grouped_linear_run, grouped_linear_work);
REF_KERNEL(grouped_linear_dw, grouped_linear_dw_run, grouped_linear_dw_work);
const ds_kernel *const DSI_REF(experts)[] = {&spread_rows_kernel,       &combine_rows_kernel,
                                             &combine_rows_dw_kernel,   &grouped_linear_kernel,
                                             &grouped_linear_dw_kernel, NULL};
