/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernels of compare, where and band: items are elements, integers beside floats. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

#include <string.h>

/* i32 and bool as doubles, which hold them all; floats as ref_get has them. */
static double value_at(const ds_tensor *t, int64_t i)
{
    switch (t->meta.dtype) {
    case DS_DTYPE_I32:
        return (double)((const int32_t *)t->data)[i];
    case DS_DTYPE_BOOL:
        return ((const uint8_t *)t->data)[i] != 0 ? 1.0 : 0.0;
    default:
        return (double)ref_get(t, i);
    }
}

static void set_number(const ds_tensor *t, int64_t i, double x)
{
    switch (t->meta.dtype) {
    case DS_DTYPE_I32:
        ((int32_t *)t->data)[i] = (int32_t)x;
        break;
    case DS_DTYPE_BOOL:
        ((uint8_t *)t->data)[i] = x != 0.0;
        break;
    default:
        ref_set(t, i, (real)x);
        break;
    }
}

/* Element i of `from` as it is. */
static void move(const ds_tensor *to, const ds_tensor *from, int64_t i)
{
    const size_t bytes = ds_dtype_bytes(to->meta.dtype);
    memmove((char *)to->data + (size_t)i * bytes, (const char *)from->data + (size_t)i * bytes,
            bytes);
}

static bool holds(int64_t kind, double a, double b)
{
    switch (kind) {
    case DSI_COMPARE_LT:
        return a < b;
    case DSI_COMPARE_LE:
        return a <= b;
    case DSI_COMPARE_EQ:
        return a == b;
    case DSI_COMPARE_NE:
        return a != b;
    case DSI_COMPARE_GT:
        return a > b;
    default:
        return a >= b;
    }
}

/* value as the operand would hold it in arithmetic: fp32 beside floats. */
static double number_beside(const ds_tensor *a, double value)
{
    const bool whole = a->meta.dtype == DS_DTYPE_I32 || a->meta.dtype == DS_DTYPE_BOOL;
    return whole ? value : (double)(real)value;
}

static void compare_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_compare_attrs *t = call->sig->attrs;
    const ds_tensor *b = ref_in(call, 1);
    const double value = number_beside(&call->in[0], t->value);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const double right = b != NULL ? value_at(b, i) : value;
        ((uint8_t *)call->out[0].data)[i] = holds(t->kind, value_at(&call->in[0], i), right);
    }
}

/* Element of the mask that meets element i of a: a dim of 1 repeats. */
static int64_t mask_index(ds_shape mask, ds_shape a, int64_t i)
{
    int64_t at = 0;
    int64_t step = 1;
    for (uint32_t d = 1; d <= a.n_dims; ++d) {
        const int64_t n = a.dims[a.n_dims - d];
        const int64_t here = i % n;
        i /= n;
        if (d <= mask.n_dims) {
            const int64_t m = mask.dims[mask.n_dims - d];
            at += m == 1 ? 0 : here * step;
            step *= m;
        }
    }
    return at;
}

static void where_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_where_attrs *t = call->sig->attrs;
    const ds_tensor *mask = &call->in[0];
    const ds_tensor *a = &call->in[1];
    const ds_tensor *b = ref_in(call, 2);
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t at = mask_index(mask->meta.shape, a->meta.shape, i);
        if ((value_at(mask, at) != 0.0) != (t->inverse != 0)) {
            move(&call->out[0], a, i);
        } else if (b != NULL) {
            move(&call->out[0], b, i);
        } else {
            set_number(&call->out[0], i, t->other);
        }
    }
}

static void band_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_band_attrs *t = call->sig->attrs;
    const ds_shape x = call->in[0].meta.shape;
    const int64_t columns = ds_shape_last(x);
    const int64_t rows = x.dims[x.n_dims - 2];
    (void)slot;
    for (int64_t i = begin; i < end; ++i) {
        const int64_t diagonal = i % columns - i / columns % rows;
        if (diagonal >= t->lower && diagonal <= t->upper) {
            move(&call->out[0], &call->in[0], i);
        } else {
            set_number(&call->out[0], i, t->other);
        }
    }
}

#define RUN(name)                                                                                  \
    static ds_status name##_run(const ds_kernel_call *call)                                        \
    {                                                                                              \
        dsi_ref_for(call, ds_shape_count(call->out[0].meta.shape), name##_range);                  \
        return DS_OK;                                                                              \
    }                                                                                              \
    REF_KERNEL(name, name##_run, NULL)

RUN(compare);
RUN(where);
RUN(band);
const ds_kernel *const DSI_REF(select)[] = {&compare_kernel, &where_kernel, &band_kernel, NULL};
