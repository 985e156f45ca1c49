/* SPDX-License-Identifier: Apache-2.0 */
/* CUDA C++ for the compiler of the host: what standin_nvrtc.c puts before a custom operator's
 * source. Threads, barriers and shuffles are the host layer's, which the stand-in of the driver
 * passes to standin_bind; a kernel's arguments are read as the driver lays them out. */
#include "accel/standin/device_table.h"

#include <string.h>

static const standin_device *standin_host;
extern "C" __attribute__((visibility("default"))) void standin_bind(const standin_device *device)
{
    standin_host = device;
}

#undef __shared__
#undef threadIdx
#undef blockIdx
#undef blockDim
#undef gridDim
#define __global__
#define __device__
#define __host__
#define __forceinline__ inline __attribute__((always_inline))
#define __shared__      static thread_local
#define __launch_bounds__(...)
#define threadIdx                           (standin_host->here()->thread)
#define blockIdx                            (standin_host->here()->block)
#define blockDim                            (standin_host->here()->block_dim)
#define gridDim                             (standin_host->here()->grid_dim)
#define __syncthreads()                     standin_host->syncthreads()
#define __syncwarp()                        standin_host->syncwarp()
#define __shfl_xor_sync(mask, value, lanes) standin_host->shfl_xor(mask, value, lanes)
#define __shfl_sync(mask, value, lane)      standin_host->shfl(mask, value, lane)

static inline float __uint_as_float(uint32_t bits)
{
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

static inline uint32_t __float_as_uint(float value)
{
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

/* What cvt does on a device. */
static inline float ds_from_f16(uint16_t bits)
{
    const uint32_t sign = (uint32_t)(bits & 0x8000u) << 16;
    const uint32_t rest = bits & 0x7fffu;
    if (rest >= 0x7c00u) {
        return __uint_as_float(sign | 0x7f800000u | (rest & 0x3ffu) << 13);
    }
    return __uint_as_float(sign | __float_as_uint(__uint_as_float(rest << 13) * 0x1p112f));
}

static inline uint16_t ds_to_f16(float value)
{
    const uint32_t bits = __float_as_uint(value);
    const uint16_t sign = (uint16_t)(bits >> 16 & 0x8000u);
    const float size = __uint_as_float(bits & 0x7fffffffu);
    if (!(size < 65520.0f)) {
        return (uint16_t)(sign | (size != size ? 0x7e00u : 0x7c00u));
    }
    if (size < 0x1p-14f) { /* counts of 2^-24, by the rounding of the sum */
        return (uint16_t)(sign | (__float_as_uint(size + 0.5f) - __float_as_uint(0.5f)));
    }
    const uint32_t whole = __float_as_uint(size) + 0xfffu + (__float_as_uint(size) >> 13 & 1u);
    return (uint16_t)(sign | ((whole >> 13) - (112u << 10)));
}

template <class... Left> struct standin_list {
};

template <class F, class... Done>
static void standin_go(F kernel, const char *, size_t, standin_list<>, Done... done)
{
    kernel(done...);
}

/* The next argument, at a multiple of its alignment, then the rest. */
template <class F, class T, class... Left, class... Done>
static void standin_go(F kernel, const char *memory, size_t at, standin_list<T, Left...>,
                       Done... done)
{
    T value;
    at = (at + alignof(T) - 1) / alignof(T) * alignof(T);
    memcpy(&value, memory + at, sizeof value);
    standin_go(kernel, memory, at + sizeof value, standin_list<Left...>{}, done..., value);
}

template <class... A> static void standin_call(void (*kernel)(A...), const void *memory)
{
    standin_go(kernel, static_cast<const char *>(memory), 0, standin_list<A...>{});
}
