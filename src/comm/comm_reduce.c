/* SPDX-License-Identifier: Apache-2.0 */
/* Reductions: the choice of the kernel, the mode of the processor, integers and fp64. See reduce.h.
 */
#include "comm/reduce.h"

#include "base/processor.h"
#include "comm/reduce_block.h"
#include "comm/stream_copy.h"
#include <pthread.h>
#include <string.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#ifdef DSI_HAVE_avx2
void dsi_reduce_block_avx2(const dsi_reduce_job *job, const void *const *in, size_t begin, size_t n,
                           void *out);
#endif
#ifdef DSI_HAVE_avx512
void dsi_reduce_block_avx512(const dsi_reduce_job *job, const void *const *in, size_t begin,
                             size_t n, void *out);
#endif

static dsi_reduce_block_fn best_kernel(void)
{
#ifdef DSI_HAVE_avx512
    if (dsi_processor_has(DSI_CPU_SET_AVX512)) {
        return dsi_reduce_block_avx512;
    }
#endif
#ifdef DSI_HAVE_avx2
    if (dsi_processor_has(DSI_CPU_SET_AVX2)) {
        return dsi_reduce_block_avx2;
    }
#endif
    return reduce_block;
}

static pthread_once_t once = PTHREAD_ONCE_INIT;
static dsi_reduce_block_fn chosen; /* written once, under pthread_once */

static void choose_kernel(void)
{
    chosen = best_kernel();
}

/* Chosen once. */
static dsi_reduce_block_fn real_kernel(void)
{
    (void)pthread_once(&once, choose_kernel);
    return chosen;
}

/* fp64 in the same tree. */
static void f64_block(const dsi_reduce_job *job, const void *const *in, size_t begin, size_t n,
                      void *out)
{
    double *to = (double *)out + begin;
    for (size_t i = 0; i < n; ++i) {
        double stack[REDUCE_LEVELS];
        uint32_t depth = 0;
        for (uint32_t r = 0; r < job->n; ++r) {
            const double x = ((const double *)in[r])[begin + i];
            if (job->reduction == DSI_REDUCE_MAX && r > 0) {
                stack[0] = x > stack[0] || x != x ? x : stack[0];
                continue;
            }
            stack[depth++] = x;
            for (uint32_t rest = r + 1; rest % 2 == 0; rest /= 2, --depth) {
                stack[depth - 2] = stack[depth - 2] + stack[depth - 1];
            }
        }
        for (; depth > 1; --depth) {
            stack[depth - 2] = stack[depth - 2] + stack[depth - 1];
        }
        const bool sum = job->reduction == DSI_REDUCE_SUM;
        const double value = sum ? stack[0] * (double)job->factor : stack[0];
        const uint64_t nan_bits = UINT64_C(0x7ff8000000000000);
        if (value == value) {
            to[i] = value;
        } else {
            memcpy(&to[i], &nan_bits, sizeof nan_bits);
        }
    }
}

/* Integers: sums wrap, in unsigned arithmetic. */
#define INTEGER_BLOCK(name, type, wide)                                                            \
    static void name(const dsi_reduce_job *job, const void *const *in, size_t begin, size_t n,     \
                     void *out)                                                                    \
    {                                                                                              \
        type acc[REDUCE_BLOCK];                                                                    \
        memcpy(acc, (const type *)in[0] + begin, n * sizeof(type));                                \
        for (uint32_t r = 1; r < job->n; ++r) {                                                    \
            const type *from = (const type *)in[r] + begin;                                        \
            for (size_t i = 0; i < n; ++i) {                                                       \
                acc[i] = job->reduction == DSI_REDUCE_SUM ? (type)((wide)acc[i] + (wide)from[i])   \
                         : from[i] > acc[i]               ? from[i]                                \
                                                          : acc[i];                                              \
            }                                                                                      \
        }                                                                                          \
        memcpy((type *)out + begin, acc, n * sizeof(type));                                        \
    }
INTEGER_BLOCK(i8_block, int8_t, uint32_t)
INTEGER_BLOCK(u8_block, uint8_t, uint32_t)
INTEGER_BLOCK(i32_block, int32_t, uint32_t)
INTEGER_BLOCK(i64_block, int64_t, uint64_t)

static dsi_reduce_block_fn kernel_of(ds_dtype dtype)
{
    switch (dtype) {
    case DS_DTYPE_F64:
        return f64_block;
    case DS_DTYPE_I8:
        return i8_block;
    case DS_DTYPE_U8:
    case DS_DTYPE_BOOL:
        return u8_block;
    case DS_DTYPE_I32:
        return i32_block;
    case DS_DTYPE_I64:
        return i64_block;
    default:
        return real_kernel();
    }
}

static uint32_t enter_mode(void)
{
#if defined(__x86_64__)
    const uint32_t mode = _mm_getcsr();
    _mm_setcsr(0x1f80u); /* gradual underflow, to nearest, no traps */
    return mode;
#else
    return 0;
#endif
}

static void leave_mode(uint32_t mode)
{
#if defined(__x86_64__)
    _mm_setcsr(mode);
#else
    (void)mode;
#endif
}

void dsi_reduce_to(const dsi_reduce_job *job, const void *const *in, void *const *outs,
                   uint32_t n_outs, size_t count)
{
    const dsi_reduce_block_fn kernel = kernel_of(job->in_dtype);
    const size_t width = ds_dtype_bytes(job->out_dtype);
    const uint32_t mode = enter_mode();
    for (size_t begin = 0; begin < count; begin += REDUCE_BLOCK) {
        const size_t n = count - begin < REDUCE_BLOCK ? count - begin : REDUCE_BLOCK;
        kernel(job, in, begin, n, outs[0]);
        for (uint32_t o = 1; o < n_outs; ++o) {
            memcpy((char *)outs[o] + begin * width, (const char *)outs[0] + begin * width,
                   n * width);
        }
    }
    leave_mode(mode);
}

void dsi_reduce_stream(const dsi_reduce_job *job, const void *const *in, void *const *outs,
                       uint32_t n_outs, size_t count)
{
    const dsi_reduce_block_fn kernel = kernel_of(job->in_dtype);
    const size_t in_width = ds_dtype_bytes(job->in_dtype);
    const size_t width = ds_dtype_bytes(job->out_dtype);
    const uint32_t mode = enter_mode();
    for (size_t begin = 0; begin < count; begin += REDUCE_BLOCK) {
        const size_t n = count - begin < REDUCE_BLOCK ? count - begin : REDUCE_BLOCK;
        _Alignas(64) char block[REDUCE_BLOCK * sizeof(double)];
        const void *at[DSI_REDUCE_STREAM_RANKS];
        for (uint32_t r = 0; r < job->n; ++r) {
            at[r] = (const char *)in[r] + begin * in_width;
        }
        kernel(job, at, 0, n, block);
        for (uint32_t o = 0; o < n_outs; ++o) {
            dsi_stream_copy((char *)outs[o] + begin * width, block, n * width);
        }
    }
    dsi_stream_fence();
    leave_mode(mode);
}

void dsi_reduce(const dsi_reduce_job *job, const void *const *in, void *out, size_t count)
{
    dsi_reduce_to(job, in, &out, 1, count);
}
