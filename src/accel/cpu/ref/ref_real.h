/* SPDX-License-Identifier: Apache-2.0 */
/* What every reference kernel is written in: `real` arithmetic, and loads and stores that convert.
 *
 * The files of this folder are compiled twice. In the library real is float: f32, bf16 and f16
 * operands, fp32 arithmetic, one rounding where a result is stored. With DSI_REF_F64 real is double
 * and at least one operand is f64: the test of gradients by finite differences. The arithmetic is
 * stated in docs/internals/reference_numerics.md. These kernels are the definition of the
 * operators' results: they are never optimised at the price of clarity or order.
 */
#ifndef DSI_ACCEL_CPU_REF_REAL_H
#define DSI_ACCEL_CPU_REF_REAL_H

#include "accel/cpu/ref/ref_split.h"
#include "base/half.h"
#include <deepspeed/op.h>
#include <math.h>

#ifdef DSI_REF_F64
typedef double real;
#define DSI_REF(name) dsi_ref64_##name
#define R(literal)    literal
#define r_exp         exp
#define r_log         log
#define r_tanh        tanh
#define r_erf         erf
#define r_sqrt        sqrt
enum { REF_REAL = DS_DTYPE_F64 };
#else
typedef float real;
#define DSI_REF(name) dsi_ref_##name
#define R(literal)    literal##f
#define r_exp         expf
#define r_log         logf
#define r_tanh        tanhf
#define r_erf         erff
#define r_sqrt        sqrtf
enum { REF_REAL = DS_DTYPE_F32 };
#endif

static inline real ref_get(const ds_tensor *t, int64_t i)
{
    switch (t->meta.dtype) {
    case DS_DTYPE_F32:
        return (real)((const float *)t->data)[i];
    case DS_DTYPE_BF16:
        return (real)dsi_bf16_to_f32(((const uint16_t *)t->data)[i]);
    case DS_DTYPE_F16:
        return (real)dsi_f16_to_f32(((const uint16_t *)t->data)[i]);
    case DS_DTYPE_F64:
        return (real)((const double *)t->data)[i];
    default:
        return (real)NAN;
    }
}

static inline void ref_set(const ds_tensor *t, int64_t i, real value)
{
    switch (t->meta.dtype) {
    case DS_DTYPE_F32:
        ((float *)t->data)[i] = (float)value;
        break;
    case DS_DTYPE_BF16:
        ((uint16_t *)t->data)[i] = dsi_f32_to_bf16((float)value);
        break;
    case DS_DTYPE_F16:
        ((uint16_t *)t->data)[i] = dsi_f32_to_f16((float)value);
        break;
    case DS_DTYPE_F64:
        ((double *)t->data)[i] = (double)value;
        break;
    default:
        break;
    }
}

/* value as a tensor of this dtype would hold it. */
static inline real ref_round(ds_dtype dtype, real value)
{
    switch (dtype) {
    case DS_DTYPE_BF16:
        return (real)dsi_bf16_to_f32(dsi_f32_to_bf16((float)value));
    case DS_DTYPE_F16:
        return (real)dsi_f16_to_f32(dsi_f32_to_f16((float)value));
    default:
        return value;
    }
}

/* n elements from index at: the tensor's own memory when it holds reals, else copied to buffer. */
static inline const real *ref_row(const ds_tensor *t, int64_t at, int64_t n, real *buffer)
{
    if ((int)t->meta.dtype == (int)REF_REAL) {
        return (const real *)t->data + at;
    }
    for (int64_t i = 0; i < n; ++i) {
        buffer[i] = ref_get(t, at + i);
    }
    return buffer;
}

static inline bool ref_has(const ds_kernel_call *call, uint32_t i)
{
    return i < call->sig->n_in && call->in[i].data != NULL;
}

/* NULL when absent. */
static inline const ds_tensor *ref_in(const ds_kernel_call *call, uint32_t i)
{
    return ref_has(call, i) ? &call->in[i] : NULL;
}

static inline const ds_tensor *ref_out(const ds_kernel_call *call, uint32_t i)
{
    return i < call->sig->n_out && call->out[i].data != NULL ? &call->out[i] : NULL;
}

/* The workspace of one range: `each` reals. */
static inline real *ref_slot(const ds_kernel_call *call, uint32_t slot, int64_t each)
{
    return (real *)call->work + (size_t)slot * (size_t)each;
}

/* Bytes for one workspace of `each` reals a range. */
static inline size_t ref_slot_bytes(const ds_kernel_sig *sig, int64_t each)
{
    return (size_t)dsi_ref_slots(sig) * (size_t)each * sizeof(real);
}

static inline bool ref_supports(const ds_kernel_sig *sig)
{
    bool doubles = false;
    for (uint32_t i = 0; i < sig->n_in; ++i) {
        doubles = doubles || sig->in[i].dtype == DS_DTYPE_F64;
    }
    for (uint32_t i = 0; i < sig->n_out; ++i) {
        doubles = doubles || sig->out[i].dtype == DS_DTYPE_F64;
    }
    return doubles == ((int)REF_REAL == (int)DS_DTYPE_F64);
}

/* The kernel named "ref" of an operator. */
#define REF_KERNEL(op_name, run_fn, work_fn)                                                       \
    static const ds_kernel op_name##_kernel = {.version = DS_OP_VERSION,                           \
                                               .name = "ref",                                      \
                                               .op = #op_name,                                     \
                                               .needs = DS_ISA_REF,                                \
                                               .supports = ref_supports,                           \
                                               .work_bytes = (work_fn),                            \
                                               .run = (run_fn)}

#endif
