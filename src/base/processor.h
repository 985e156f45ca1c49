/* SPDX-License-Identifier: Apache-2.0 */
/* The processor that this process runs on: the one place that asks it and the system. Called by
 * whoever chooses a kernel, counts threads or reports on the machine.
 *
 * A feature is had when the processor has its instructions and the system saves its registers. Not
 * here: which kernels were built, DS_CPU_ISA, and the kernel's permission for AMX tiles
 * (accel/cpu/cpu_features.h).
 */
#ifndef DSI_BASE_PROCESSOR_H
#define DSI_BASE_PROCESSOR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DSI_CPU_AVX2 = 1 << 0,
    DSI_CPU_FMA = 1 << 1,
    DSI_CPU_F16C = 1 << 2,
    DSI_CPU_AVX512F = 1 << 3,
    DSI_CPU_AVX512BW = 1 << 4,
    DSI_CPU_AVX512DQ = 1 << 5,
    DSI_CPU_AVX512VL = 1 << 6,
    DSI_CPU_AVX512_BF16 = 1 << 7,
    DSI_CPU_AVX512_FP16 = 1 << 8,
    DSI_CPU_AMX_TILE = 1 << 9,
    DSI_CPU_AMX_BF16 = 1 << 10,
    DSI_CPU_AMX_INT8 = 1 << 11,
    DSI_CPU_AVX512_VNNI = 1 << 12,
    /* what kernels of a set are compiled for (cmake/sources.cmake) */
    DSI_CPU_SET_AVX2 = DSI_CPU_AVX2 | DSI_CPU_FMA | DSI_CPU_F16C,
    DSI_CPU_SET_AVX512 =
        DSI_CPU_SET_AVX2 | DSI_CPU_AVX512F | DSI_CPU_AVX512BW | DSI_CPU_AVX512DQ | DSI_CPU_AVX512VL,
    DSI_CPU_SET_AVX512_VNNI = DSI_CPU_SET_AVX512 | DSI_CPU_AVX512_VNNI,
    DSI_CPU_SET_AVX512_BF16 = DSI_CPU_SET_AVX512_VNNI | DSI_CPU_AVX512_BF16,
    DSI_CPU_SET_AMX = DSI_CPU_SET_AVX512_BF16 | DSI_CPU_AMX_TILE | DSI_CPU_AMX_BF16
};

typedef struct dsi_processor {
    uint32_t features; /* of DSI_CPU_*; 0 on other processors than x86-64 */
    char name[64];     /* its own words; "unknown" */
} dsi_processor;

/* Asked once: in a virtual machine the host answers each CPUID, which takes long. Any thread. */
const dsi_processor *dsi_processor_get(void);

/* Whether it has all of these features. */
bool dsi_processor_has(uint32_t features);

/* The system's word for the i-th feature, "avx512_bf16"; NULL past the last. */
const char *dsi_processor_feature_name(size_t i);

/* Cores that this process may run on now, at least 1. */
uint32_t dsi_processor_n_cores(void);

#endif
