/* SPDX-License-Identifier: Apache-2.0 */
/* CPUID, XGETBV and the affinity of the process. See processor.h. */
#include "base/processor.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>
#if defined(__x86_64__)
#include <cpuid.h>
#endif

static dsi_processor processor; /* written once, under pthread_once */
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Register state that the system saves (XCR0). */
enum {
    SAVES_AVX = 0x6,     /* xmm and ymm */
    SAVES_AVX512 = 0xe6, /* masks, upper halves and zmm16 to 31 too */
    SAVES_AMX = 0x60000  /* tile configuration and data */
};

/* Where a feature is reported: register of leaf 1 or 7, subleaf 0 or 1, its bit. */
typedef struct feature_row {
    const char *name;
    uint32_t feature;
    enum { LEAF_1_C, LEAF_7_B, LEAF_7_C, LEAF_7_D, LEAF_7_1_A, WORDS } word;
    unsigned bit;
    uint32_t saves;
} feature_row;

static const feature_row rows[] = {
    {"avx2", DSI_CPU_AVX2, LEAF_7_B, 5, SAVES_AVX},
    {"fma", DSI_CPU_FMA, LEAF_1_C, 12, SAVES_AVX},
    {"f16c", DSI_CPU_F16C, LEAF_1_C, 29, SAVES_AVX},
    {"avx512f", DSI_CPU_AVX512F, LEAF_7_B, 16, SAVES_AVX512},
    {"avx512bw", DSI_CPU_AVX512BW, LEAF_7_B, 30, SAVES_AVX512},
    {"avx512dq", DSI_CPU_AVX512DQ, LEAF_7_B, 17, SAVES_AVX512},
    {"avx512vl", DSI_CPU_AVX512VL, LEAF_7_B, 31, SAVES_AVX512},
    {"avx512_bf16", DSI_CPU_AVX512_BF16, LEAF_7_1_A, 5, SAVES_AVX512},
    {"avx512_fp16", DSI_CPU_AVX512_FP16, LEAF_7_D, 23, SAVES_AVX512},
    {"amx_tile", DSI_CPU_AMX_TILE, LEAF_7_D, 24, SAVES_AMX},
    {"amx_bf16", DSI_CPU_AMX_BF16, LEAF_7_D, 22, SAVES_AMX},
    {"amx_int8", DSI_CPU_AMX_INT8, LEAF_7_D, 25, SAVES_AMX},
    {"avx512_vnni", DSI_CPU_AVX512_VNNI, LEAF_7_C, 11, SAVES_AVX512},
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

#if defined(__x86_64__)
static uint32_t saved_state(uint32_t leaf_1_c)
{
    uint32_t low = 0;
    uint32_t high = 0;
    if ((leaf_1_c & bit_OSXSAVE) != 0) {
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    }
    return low;
}

/* The brand of leaves 0x80000002 to 4, without the spaces around it. */
static void read_name(char name[64])
{
    uint32_t words[13] = {0};
    for (uint32_t i = 0; i < 3; ++i) {
        if (!__get_cpuid(0x80000002u + i, &words[4 * i], &words[4 * i + 1], &words[4 * i + 2],
                         &words[4 * i + 3])) {
            return;
        }
    }
    const char *text = (const char *)words;
    text += strspn(text, " ");
    size_t n = strlen(text);
    while (n > 0 && text[n - 1] == ' ') {
        --n;
    }
    if (n > 0) {
        (void)snprintf(name, 64, "%.*s", (int)n, text);
    }
}

static void ask(void)
{
    uint32_t words[WORDS] = {0};
    uint32_t a = 0;
    uint32_t b = 0;
    uint32_t c = 0;
    uint32_t d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d)) {
        words[LEAF_1_C] = c;
    }
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d)) {
        words[LEAF_7_B] = b;
        words[LEAF_7_C] = c;
        words[LEAF_7_D] = d;
    }
    if (__get_cpuid_count(7, 1, &a, &b, &c, &d)) {
        words[LEAF_7_1_A] = a;
    }
    const uint32_t saved = saved_state(words[LEAF_1_C]);
    for (size_t i = 0; i < N_ROWS; ++i) {
        const bool has = (words[rows[i].word] >> rows[i].bit & 1) != 0;
        processor.features |= has && (saved & rows[i].saves) == rows[i].saves ? rows[i].feature : 0;
    }
    read_name(processor.name);
}
#else
static void ask(void)
{
}
#endif

static void ask_once(void)
{
    (void)snprintf(processor.name, sizeof processor.name, "unknown");
    ask();
}

const dsi_processor *dsi_processor_get(void)
{
    (void)pthread_once(&once, ask_once);
    return &processor;
}

bool dsi_processor_has(uint32_t features)
{
    return (dsi_processor_get()->features & features) == features;
}

const char *dsi_processor_feature_name(size_t i)
{
    return i < N_ROWS ? rows[i].name : NULL;
}

uint32_t dsi_processor_n_cores(void)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    const bool known = sched_getaffinity(0, sizeof set, &set) == 0;
    const long n = known ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN); /* set: to 1024 */
    return n > 0 ? (uint32_t)n : 1;
}
