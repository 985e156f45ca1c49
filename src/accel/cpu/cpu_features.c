/* SPDX-License-Identifier: Apache-2.0 */
/* The instruction set in use. See cpu_features.h. */
#include "accel/cpu/cpu_features.h"

#include "base/processor.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#if defined(__x86_64__)
#include <sys/syscall.h>
#include <unistd.h>
#endif

static ds_isa detected = DS_ISA_REF; /* written once, under pthread_once */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Asks the kernel to let this process use AMX tiles. */
static bool tiles_permitted(void)
{
#if defined(__x86_64__)
    enum { REQUEST_PERMISSION = 0x1023, TILE_DATA = 18 }; /* ARCH_REQ_XCOMP_PERM, XFEATURE */
    return syscall(SYS_arch_prctl, REQUEST_PERMISSION, TILE_DATA) == 0;
#else
    return false;
#endif
}

static ds_isa detect(void)
{
    static const uint32_t needs[DS_ISA_COUNT] = {[DS_ISA_AVX2] = DSI_CPU_SET_AVX2,
                                                 [DS_ISA_AVX512] = DSI_CPU_SET_AVX512,
                                                 [DS_ISA_AVX512_BF16] = DSI_CPU_SET_AVX512_BF16,
                                                 [DS_ISA_AMX] = DSI_CPU_SET_AMX};
    ds_isa isa = DS_ISA_REF;
    while (isa + 1 < DS_ISA_COUNT && dsi_processor_has(needs[isa + 1])) {
        isa += 1;
    }
    return isa == DS_ISA_AMX && !tiles_permitted() ? DS_ISA_AVX512_BF16 : isa;
}

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
