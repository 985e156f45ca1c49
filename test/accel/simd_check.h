/* SPDX-License-Identifier: Apache-2.0 */
/* For tests of the vector kernels: tensors of random numbers, running one kernel of each set. */
#ifndef DS_TEST_SIMD_CHECK_H
#define DS_TEST_SIMD_CHECK_H

#include "accel/cpu/registry.h"
#include "base/half.h"
#include "base/rng.h"
#include "common/check.h"
#include "op/isa.h"
#include "op/ops.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { CHECK_GUARD = 64 }; /* bytes after each array that must stay as they are */

static inline bool cpu_has(ds_isa isa)
{
#if defined(__x86_64__)
    return isa == DSI_NEEDS_AVX2 ? __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")
                                 : __builtin_cpu_supports("avx512bw") != 0;
#else
    (void)isa;
    return false;
#endif
}

static inline float read_element(const void *data, ds_dtype type, size_t i)
{
    switch (type) {
    case DS_DTYPE_BF16:
        return dsi_bf16_to_f32(((const uint16_t *)data)[i]);
    case DS_DTYPE_F16:
        return dsi_f16_to_f32(((const uint16_t *)data)[i]);
    default:
        return ((const float *)data)[i];
    }
}

static inline void write_element(void *data, ds_dtype type, size_t i, float v)
{
    switch (type) {
    case DS_DTYPE_BF16:
        ((uint16_t *)data)[i] = dsi_f32_to_bf16(v);
        break;
    case DS_DTYPE_F16:
        ((uint16_t *)data)[i] = dsi_f32_to_f16(v);
        break;
    default:
        ((float *)data)[i] = v;
        break;
    }
}

/* A tensor with guard bytes behind it; free(t.data). */
static inline ds_tensor new_tensor(ds_dtype type, ds_shape shape)
{
    const ds_meta meta = {type, shape};
    const size_t bytes = ds_meta_bytes(meta);
    char *data = malloc(bytes + CHECK_GUARD);
    assert_non_null(data);
    memset(data, 0, bytes);
    memset(data + bytes, 0x5a, CHECK_GUARD);
    return (ds_tensor){data, meta};
}

static inline ds_tensor noise(ds_dtype type, ds_shape shape, uint32_t site, float scale)
{
    ds_tensor t = new_tensor(type, shape);
    const size_t n = (size_t)ds_shape_count(shape);
    for (size_t i = 0; i < n; ++i) {
        write_element(t.data, type, i, scale * dsi_rng_normal(7, site, i));
    }
    return t;
}

static inline void check_guard(const ds_tensor *t)
{
    const char *end = (const char *)t->data + ds_meta_bytes(t->meta);
    for (int i = 0; t->data != NULL && i < CHECK_GUARD; ++i) {
        assert_int_equal(end[i], 0x5a);
    }
}

static const ds_tensor absent = {NULL, {DS_DTYPE_NONE, {0, {0}}}};

/* Runs the kernel of exactly `isa` for the operator; false when the processor lacks it. */
static inline bool run_at(ds_ctx *ctx, ds_isa isa, const char *op_name, const void *attrs,
                          const ds_tensor *in, uint32_t n_in, const ds_tensor *out, uint32_t n_out)
{
    if (isa != DS_ISA_REF && !cpu_has(isa)) {
        return false;
    }
    const ds_op op = {.version = DS_OP_VERSION, .name = op_name};
    ds_meta in_meta[DS_MAX_IN];
    ds_meta out_meta[DS_MAX_OUT];
    for (uint32_t i = 0; i < n_in; ++i) {
        in_meta[i] = in[i].meta;
    }
    for (uint32_t i = 0; i < n_out; ++i) {
        out_meta[i] = out[i].meta;
    }
    const ds_kernel_sig sig = {&op, attrs, n_in, n_out, in_meta, out_meta, ds_ctx_n_threads(ctx)};
    const ds_kernel *kernel = dsi_cpu_kernel_choose(&sig, isa);
    if (kernel == NULL || kernel->needs != isa) {
        fail_msg("no %s kernel for %s", dsi_isa_print(isa).text, op_name);
        return false;
    }
    const size_t bytes = kernel->work_bytes != NULL ? kernel->work_bytes(&sig) : 0;
    char *work = bytes > 0 ? aligned_alloc(64, (bytes + 127) / 64 * 64) : NULL;
    if (work != NULL) {
        memset(work, 0xff, (bytes + 127) / 64 * 64);
    }
    const ds_kernel_call call = {ctx, &sig, in, out, work};
    CHECK_OK(ctx, kernel->run(&call));
    for (size_t i = bytes; work != NULL && i < (bytes + 127) / 64 * 64; ++i) {
        assert_int_equal((unsigned char)work[i], 0xff);
    }
    free(work);
    for (uint32_t i = 0; i < n_out; ++i) {
        check_guard(&out[i]);
    }
    return true;
}

/* What rounding to a type may cost, relative. */
static inline double type_step(ds_dtype type)
{
    return type == DS_DTYPE_BF16 ? 0x1p-8 : type == DS_DTYPE_F16 ? 0x1p-11 : 0x1p-24;
}

static inline ds_ctx *new_ctx(uint32_t n_threads)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = n_threads;
    ds_ctx *ctx = NULL;
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    return ctx;
}

static const ds_isa check_isas[] = {DSI_NEEDS_AVX2, DSI_NEEDS_AVX512};
static const ds_dtype check_types[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16};

#define FOR_ISAS(isa)                                                                              \
    for (size_t isa##_i = 0; isa##_i < 2; ++isa##_i)                                               \
        for (ds_isa isa = check_isas[isa##_i], isa##_once = isa; isa##_once == isa;                \
             isa##_once = ~isa)
#define FOR_TYPES(type)                                                                            \
    for (size_t type##_i = 0; type##_i < 3; ++type##_i)                                            \
        for (ds_dtype type = check_types[type##_i], type##_once = type; type##_once == type;       \
             type##_once = DS_DTYPE_COUNT)

#endif
