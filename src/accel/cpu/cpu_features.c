/* SPDX-License-Identifier: Apache-2.0 */
/* The instruction set in use. See cpu_features.h. */
#include "accel/cpu/cpu_features.h"

#include "base/processor.h"
#include "op/isa.h"

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
    ds_isa isa = DS_ISA_REF;
    isa |= dsi_processor_has(DSI_CPU_SET_AVX2) ? DSI_NEEDS_AVX2 : DS_ISA_REF;
    isa |= dsi_processor_has(DSI_CPU_SET_AVX512) ? DSI_NEEDS_AVX512 : DS_ISA_REF;
    isa |= dsi_processor_has(DSI_CPU_SET_AVX512_VNNI) ? DSI_NEEDS_AVX512_VNNI : DS_ISA_REF;
    isa |= dsi_processor_has(DSI_CPU_SET_AVX512_BF16) ? DSI_NEEDS_AVX512_BF16 : DS_ISA_REF;
    return dsi_processor_has(DSI_CPU_SET_AMX) && tiles_permitted() ? isa | DSI_NEEDS_AMX : isa;
}

static ds_isa built(void)
{
    ds_isa isa = DS_ISA_REF;
#if defined(DSI_HAVE_amx)
    isa |= DSI_NEEDS_AMX;
#endif
#if defined(DSI_HAVE_avx512_bf16)
    isa |= DSI_NEEDS_AVX512_BF16;
#endif
#if defined(DSI_HAVE_avx512_vnni)
    isa |= DSI_NEEDS_AVX512_VNNI;
#endif
#if defined(DSI_HAVE_avx512)
    isa |= DSI_NEEDS_AVX512;
#endif
#if defined(DSI_HAVE_avx2)
    isa |= DSI_NEEDS_AVX2;
#endif
    return isa;
}

static ds_isa environment_cap(void)
{
    const char *value = getenv("DS_CPU_ISA");
    for (uint32_t i = 0; value != NULL && i < DSI_ISA_LEVELS; ++i) {
        if (strcasecmp(value, dsi_isa_level_name(i)) == 0) {
            return dsi_isa_level(i);
        }
    }
    return ~DS_ISA_REF;
}

ds_status dsi_cpu_isa_check(ds_ctx *ctx)
{
    const char *value = getenv("DS_CPU_ISA");
    char names[128] = "";
    size_t n = 0;
    for (uint32_t i = 0; i < DSI_ISA_LEVELS; ++i) {
        const char *name = dsi_isa_level_name(i);
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

static void detect_once(void)
{
    const ds_isa cap = built() & environment_cap();
    detected = cap == DS_ISA_REF ? DS_ISA_REF : detect() & cap;
}

ds_isa dsi_cpu_isa(void)
{
    (void)pthread_once(&once, detect_once);
    return detected;
}

ds_isa dsi_cpu_isa_capped(ds_isa cap)
{
    return cap & dsi_cpu_isa();
}

bool dsi_cpu_has_level(uint32_t index)
{
    return index < DSI_ISA_LEVELS && (dsi_isa_level(index) & ~dsi_cpu_isa()) == 0;
}
