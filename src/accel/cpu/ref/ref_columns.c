/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of columns that are taken apart from the rest of a weight, and of postpone. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

#include <string.h>

/* Which elements of the whole weight a tensor holds: [begin, end) in the order of rows. */
typedef struct part {
    int64_t begin, end, rows, columns;
} part;

static part part_of(const ds_kernel_call *call, const ds_tensor *x, const ds_tensor *rank)
{
    const dsi_columns_attrs *a = call->sig->attrs;
    part p = {0, a->rows * a->columns, a->rows, a->columns};
    if (x->meta.shape.n_dims == 1) {
        const int64_t n = x->meta.shape.dims[0];
        const int64_t end = p.end;
        p.begin = n * *(const int32_t *)rank->data;
        p.begin = p.begin < end ? p.begin : end;
        p.end = p.begin + n < end ? p.begin + n : end;
    }
    return p;
}

/* Element (row, column) of x, or -1 when it is not there. */
static int64_t place_in(const part *p, int64_t row, int64_t column)
{
    const int64_t at = row * p->columns + column;
    return column >= 0 && column < p->columns && at >= p->begin && at < p->end ? at - p->begin : -1;
}

/* ---- sums ------------------------------------------------------------------------------------ */

static void column_sums_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ds_tensor *x = &call->in[0];
    const part p = part_of(call, x, &call->in[2]);
    const float top = *(const float *)call->in[1].data;
    double *out = call->out[0].data;
    int exponent = 0;
    (void)slot;
    memset(out + begin, 0, (size_t)(end - begin) * sizeof *out);
    if (!(top > 0.0f) || !isfinite(top)) {
        return;
    }
    (void)frexp((double)top, &exponent);
    const double grid = ldexp(0x1.8p52, exponent - 30); /* (x + grid) - grid: x on the grid */
    const int64_t first = p.begin / p.columns;
    for (int64_t row = first; row * p.columns < p.end; ++row) {
        const int64_t at = row * p.columns - p.begin;
        const int64_t from = at + begin < 0 ? -at : begin;
        const int64_t most = p.end - p.begin - at;
        const int64_t to = end < most ? end : most;
        for (int64_t c = from; c < to; ++c) {
            out[c] += (fabs((double)ref_get(x, at + c)) + grid) - grid;
        }
    }
}

/* The sum of a column over what the ranks gave. */
static double sum_of(const ds_tensor *sums, int64_t columns, int64_t c)
{
    const double *data = sums->data;
    const int64_t n = ds_shape_count(sums->meta.shape) / columns;
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        sum += data[i * columns + c];
    }
    return sum;
}

/* ---- choice ---------------------------------------------------------------------------------- */

typedef struct ranked {
    double sum;
    int32_t column;
} ranked;

/* Whether a stands before b: the larger sum, of equal ones the first column. */
static bool before(ranked a, ranked b)
{
    return a.sum > b.sum || (a.sum == b.sum && a.column < b.column);
}

/* A heap whose top stands behind all others of it. */
static void sift_down(ranked *heap, int64_t n, int64_t at)
{
    for (int64_t child = 2 * at + 1; child < n; child = 2 * at + 1) {
        if (child + 1 < n && before(heap[child], heap[child + 1])) {
            child += 1;
        }
        if (!before(heap[at], heap[child])) {
            return;
        }
        const ranked item = heap[at];
        heap[at] = heap[child];
        heap[child] = item;
        at = child;
    }
}

static void choose_columns_range(const ds_kernel_call *call, int64_t begin, int64_t end,
                                 uint32_t slot)
{
    const dsi_columns_attrs *a = call->sig->attrs;
    const int64_t k = call->out[0].meta.shape.dims[0];
    int32_t *index = call->out[0].data;
    ranked *heap = call->work;
    bool *chosen = (bool *)(heap + k);
    int64_t n = 0;
    (void)begin;
    (void)end;
    (void)slot;
    for (int64_t c = 0; c < a->columns; ++c) {
        const ranked item = {sum_of(&call->in[1], a->columns, c), (int32_t)c};
        chosen[c] = false;
        if (n < k) {
            heap[n++] = item;
            for (int64_t at = n == k ? k / 2 : 0; at-- > 0;) {
                sift_down(heap, k, at);
            }
        } else if (before(item, heap[0])) {
            heap[0] = item;
            sift_down(heap, k, 0);
        }
    }
    for (int64_t i = 0; i < k; ++i) {
        chosen[heap[i].column] = true;
    }
    for (int64_t c = 0; c < a->columns; ++c) {
        if (chosen[c]) {
            *index++ = (int32_t)c;
        }
    }
}

static size_t choose_columns_work(const ds_kernel_sig *sig)
{
    const dsi_columns_attrs *a = sig->attrs;
    return (size_t)sig->out[0].shape.dims[0] * sizeof(ranked) + (size_t)a->columns * sizeof(bool);
}

static void weigh_columns_range(const ds_kernel_call *call, int64_t begin, int64_t end,
                                uint32_t slot)
{
    const dsi_columns_attrs *a = call->sig->attrs;
    const double *old = call->in[0].data;
    const int32_t *index = call->in[2].data;
    const int64_t k = call->in[2].meta.shape.dims[0];
    const bool more = *(const float *)call->in[3].data != 0.0f;
    double all = 0.0;
    double chosen = 0.0;
    (void)begin;
    (void)end;
    (void)slot;
    for (int64_t c = 0; c < a->columns; ++c) {
        all += sum_of(&call->in[1], a->columns, c);
    }
    for (int64_t i = 0; i < k; ++i) {
        const bool is = index[i] >= 0 && index[i] < a->columns;
        chosen += is ? sum_of(&call->in[1], a->columns, index[i]) : 0.0;
    }
    const double rest = (more ? old[0] : 0.0) + (all - chosen);
    const double kept = (more ? old[1] : 0.0) + chosen;
    double *out = call->out[0].data;
    out[0] = rest;
    out[1] = kept;
}

/* ---- taking and putting ---------------------------------------------------------------------- */

/* Items are rows. -0 is taken as 0: added to others' zeros it would become that. */
static void take_columns_range(const ds_kernel_call *call, int64_t begin, int64_t end,
                               uint32_t slot)
{
    const ds_tensor *x = &call->in[0];
    const int32_t *index = call->in[1].data;
    const part p = part_of(call, x, &call->in[2]);
    const int64_t k = call->out[0].meta.shape.dims[1];
    (void)slot;
    for (int64_t row = begin; row < end; ++row) {
        for (int64_t j = 0; j < k; ++j) {
            const int64_t at = place_in(&p, row, index[j]);
            ref_set(&call->out[0], row * k + j, at < 0 ? R(0.0) : ref_get(x, at) + R(0.0));
        }
    }
}

static void put_columns_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const ds_tensor *out = &call->out[0];
    const int32_t *index = call->in[2].data;
    const part p = part_of(call, out, &call->in[3]);
    const int64_t k = call->in[1].meta.shape.dims[1];
    (void)slot;
    for (int64_t row = begin; row < end; ++row) {
        for (int64_t j = 0; j < k; ++j) {
            const int64_t at = place_in(&p, row, index[j]);
            if (at >= 0) {
                ref_set(out, at, ref_get(&call->in[1], row * k + j));
            }
        }
    }
}

static void postpone_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const bool more = *(const float *)call->in[2].data != 0.0f;
    const float factor = *(const float *)call->in[3].data;
    const float *cell = call->in[0].data;
    float *out = call->out[0].data;
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const float x = ref_get(&call->in[1], i);
        out[i] = more ? fmaf(factor, x, cell[i]) : factor * x;
    }
}

/* ---- kernels --------------------------------------------------------------------------------- */

static ds_status column_sums_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, call->out[0].meta.shape.dims[0], column_sums_range);
    return DS_OK;
}

static ds_status choose_columns_run(const ds_kernel_call *call)
{
    dsi_ref_serial(call, choose_columns_range);
    return DS_OK;
}

static ds_status weigh_columns_run(const ds_kernel_call *call)
{
    dsi_ref_serial(call, weigh_columns_range);
    return DS_OK;
}

static ds_status take_columns_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, call->out[0].meta.shape.dims[0], take_columns_range);
    return DS_OK;
}

static ds_status put_columns_run(const ds_kernel_call *call)
{
    if (call->out[0].data != call->in[0].data) {
        memcpy(call->out[0].data, call->in[0].data, ds_meta_bytes(call->in[0].meta));
    }
    dsi_ref_for(call, call->in[1].meta.shape.dims[0], put_columns_range);
    return DS_OK;
}

static ds_status postpone_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_count(call->out[0].meta.shape), postpone_range);
    return DS_OK;
}

#define COLUMNS_KERNEL(op_name, work_fn)                                                           \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "ref",                                      \
                                               .op = #op_name,                                     \
                                               .needs = DS_ISA_REF,                                \
                                               .work_bytes = (work_fn),                            \
                                               .run = op_name##_run}

COLUMNS_KERNEL(column_sums, NULL);
COLUMNS_KERNEL(choose_columns, choose_columns_work);
COLUMNS_KERNEL(weigh_columns, NULL);
COLUMNS_KERNEL(take_columns, NULL);
COLUMNS_KERNEL(put_columns, NULL);
COLUMNS_KERNEL(postpone, NULL);

const ds_kernel *const DSI_REF(columns)[] = {&column_sums_kernel,
                                             &choose_columns_kernel,
                                             &weigh_columns_kernel,
                                             &take_columns_kernel,
                                             &put_columns_kernel,
                                             &postpone_kernel,
                                             NULL};
