/* SPDX-License-Identifier: Apache-2.0 */
/* Instruction set detection. See cpu_features.h. */
#include "accel/cpu/cpu_features.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

static ds_isa detected = DS_ISA_REF; /* written once, under pthread_once */
static pthread_once_t once = PTHREAD_ONCE_INIT;

#if defined(__x86_64__)
enum {
    XCR0_AVX = 0x6,                   /* xmm and ymm */
    XCR0_AVX512 = 0xe0,               /* masks, upper halves, zmm16-31 */
    XCR0_AMX = 0x60000,               /* tile configuration and data */
    ARCH_REQUEST_PERMISSION = 0x1023, /* arch_prctl ARCH_REQ_XCOMP_PERM */
    XFEATURE_TILE_DATA = 18
};

static uint64_t saved_state(void)
{
    uint32_t low = 0;
    uint32_t high = 0;
    __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (uint64_t)high << 32 | low;
}

static bool has_all(uint32_t word, uint32_t bits)
{
    return (word & bits) == bits;
}

static ds_isa detect(void)
{
    uint32_t a = 0;
    uint32_t b = 0;
    uint32_t c = 0;
    uint32_t d = 0;
    if (!__get_cpuid(1, &a, &b, &c, &d) ||
        !has_all(c, bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C)) {
        return DS_ISA_REF;
    }
    const uint64_t state = saved_state();
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || !has_all(b, bit_AVX2) ||
        (state & XCR0_AVX) != XCR0_AVX) {
        return DS_ISA_REF;
    }
    if (!has_all(b, bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL) ||
        (state & XCR0_AVX512) != XCR0_AVX512) {
        return DS_ISA_AVX2;
    }
    const uint32_t amx_tile = 1u << 24;
    const uint32_t amx_bf16 = 1u << 22;
    uint32_t a1 = 0;
    uint32_t unused = 0;
    (void)__get_cpuid_count(7, 1, &a1, &unused, &unused, &unused);
    const uint32_t avx512_bf16 = 1u << 5;
    if (!has_all(a1, avx512_bf16)) {
        return DS_ISA_AVX512;
    }
    if (!has_all(d, amx_tile | amx_bf16) || (state & XCR0_AMX) != XCR0_AMX ||
        syscall(SYS_arch_prctl, ARCH_REQUEST_PERMISSION, XFEATURE_TILE_DATA) != 0) {
        return DS_ISA_AVX512_BF16;
    }
    return DS_ISA_AMX;
}
#else
static ds_isa detect(void)
{
    return DS_ISA_REF;
}
#endif

static ds_isa highest_built(void)
{
#if defined(DSI_HAVE_amx)
    return DS_ISA_AMX;
#elif defined(DSI_HAVE_avx512_bf16)
    return DS_ISA_AVX512_BF16;
#elif defined(DSI_HAVE_avx512)
    return DS_ISA_AVX512;
#elif defined(DSI_HAVE_avx2)
    return DS_ISA_AVX2;
#else
    return DS_ISA_REF;
#endif
}

static ds_isa environment_cap(void)
{
    const char *value = getenv("DS_CPU_ISA");
    for (int i = 0; value != NULL && i < DS_ISA_COUNT; ++i) {
        if (strcasecmp(value, ds_isa_name((ds_isa)i)) == 0) {
            return (ds_isa)i;
        }
    }
    return DS_ISA_AMX;
}

ds_status dsi_cpu_isa_check(ds_ctx *ctx)
{
    const char *value = getenv("DS_CPU_ISA");
    char names[128] = "";
    size_t n = 0;
    for (int i = 0; i < DS_ISA_COUNT; ++i) {
        const char *name = ds_isa_name((ds_isa)i);
        if (value == NULL || value[0] == '\0' || strcasecmp(value, name) == 0) {
            return DS_OK;
        }
        n += (size_t)snprintf(names + n, n < sizeof names ? sizeof names - n : 0, "%s%s",
                              i > 0 ? ", " : "", name);
    }
    return ds_fail(ctx, DS_ERR_CONFIG,
                   "the environment's DS_CPU_ISA is \"%.60s\", expected one of %s; change it, or "
                   "unset it",
                   value, names);
}

static ds_isa lower(ds_isa x, ds_isa y)
{
    return x < y ? x : y;
}

static void detect_once(void)
{
    const ds_isa cap = lower(highest_built(), environment_cap());
    detected = cap == DS_ISA_REF ? DS_ISA_REF : lower(detect(), cap);
}

ds_isa dsi_cpu_isa(void)
{
    (void)pthread_once(&once, detect_once);
    return detected;
}

ds_isa dsi_cpu_isa_capped(ds_isa cap)
{
    return lower(cap, dsi_cpu_isa());
}
