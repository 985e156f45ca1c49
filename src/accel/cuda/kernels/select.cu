/* SPDX-License-Identifier: Apache-2.0 */
/* compare, where and band: a thread an element, of floats, i32 or bool. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/select.h"

enum { I32 = 7, BOOL = 9 };      /* as ds_dtype has them */
enum { LT, LE, EQ, NE, GT, GE }; /* as op/ops.h has them */

/* Doubles hold them all. */
DSC_INLINE double number_at(const void *t, int dtype, int64_t i)
{
    return dtype == I32    ? (double)((const int32_t *)t)[i]
           : dtype == BOOL ? (((const uint8_t *)t)[i] != 0 ? 1.0 : 0.0)
                           : (double)dsc_get(t, dtype, i);
}

DSC_INLINE void set_number(void *t, int dtype, int64_t i, double x)
{
    if (dtype == I32) {
        ((int32_t *)t)[i] = (int32_t)x;
    } else if (dtype == BOOL) {
        ((uint8_t *)t)[i] = x != 0.0;
    } else {
        dsc_set(t, dtype, i, (float)x);
    }
}

DSC_INLINE void copy_number(void *to, const void *from, int dtype, int64_t i)
{
    if (dtype == BOOL) {
        ((uint8_t *)to)[i] = ((const uint8_t *)from)[i];
    } else if (dtype == I32 || dtype == DSC_F32) {
        ((uint32_t *)to)[i] = ((const uint32_t *)from)[i];
    } else {
        ((uint16_t *)to)[i] = ((const uint16_t *)from)[i];
    }
}

DSC_INLINE bool holds(int kind, double a, double b)
{
    return kind == LT   ? a < b
           : kind == LE ? a <= b
           : kind == EQ ? a == b
           : kind == NE ? a != b
           : kind == GT ? a > b
                        : a >= b;
}

DSC_INLINE void compare_all(const dsc_select_args *a)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const double right = a->b != NULL ? number_at(a->b, a->dtype, i) : a->value;
        ((uint8_t *)a->y)[i] = holds(a->kind, number_at(a->a, a->dtype, i), right) ? 1 : 0;
    }
}

DSC_INLINE void where_all(const dsc_select_args *a)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        int64_t at = 0;
        int64_t rest = i;
        for (int d = a->n_dims - 1; d >= 0; --d) {
            at += rest % a->dims[d] * a->strides[d];
            rest /= a->dims[d];
        }
        if ((number_at(a->mask, a->mask_dtype, at) != 0.0) != (a->inverse != 0)) {
            copy_number(a->y, a->a, a->dtype, i);
        } else if (a->b != NULL) {
            copy_number(a->y, a->b, a->dtype, i);
        } else {
            set_number(a->y, a->dtype, i, a->value);
        }
    }
}

DSC_INLINE void band_all(const dsc_select_args *a)
{
    for (int64_t i = dsc_index(); i < a->n; i += dsc_stride()) {
        const int64_t diagonal = i % a->columns - i / a->columns % a->rows;
        if (diagonal >= a->lower && diagonal <= a->upper) {
            copy_number(a->y, a->a, a->dtype, i);
        } else {
            set_number(a->y, a->dtype, i, a->value);
        }
    }
}

DSC_KERNEL(compare, dsc_select_args, compare_all(a))
DSC_KERNEL(where, dsc_select_args, where_all(a))
DSC_KERNEL(band, dsc_select_args, band_all(a))
