/* SPDX-License-Identifier: Apache-2.0 */
/* Names of instruction sets. See isa.h. */
#include "op/isa.h"

#include <stdio.h>

typedef struct named_bit {
    ds_isa bit;
    const char *name;
} named_bit;

/* Each level has the bits up to its own. */
static const named_bit names[DSI_ISA_LEVELS] = {{DS_ISA_REF, "ref"},
                                                {DS_ISA_AVX2, "avx2"},
                                                {DS_ISA_AVX512, "avx512"},
                                                {DS_ISA_AVX512_VNNI, "avx512_vnni"},
                                                {DS_ISA_AVX512_BF16, "avx512_bf16"},
                                                {DS_ISA_AMX, "amx"}};

const char *ds_isa_name(ds_isa bit)
{
    for (uint32_t i = 0; i < DSI_ISA_LEVELS; ++i) {
        if (names[i].bit == bit) {
            return names[i].name;
        }
    }
    return NULL;
}

ds_isa dsi_isa_level(uint32_t index)
{
    ds_isa set = DS_ISA_REF;
    for (uint32_t i = 0; i <= index && i < DSI_ISA_LEVELS; ++i) {
        set |= names[i].bit;
    }
    return set;
}

const char *dsi_isa_level_name(uint32_t index)
{
    return names[index < DSI_ISA_LEVELS ? index : DSI_ISA_LEVELS - 1].name;
}

static void put(dsi_isa_text *out, size_t *n, const char *name)
{
    const int more =
        snprintf(out->text + *n, sizeof out->text - *n, "%s%s", *n > 0 ? "+" : "", name);
    *n = more > 0 && *n + (size_t)more < sizeof out->text ? *n + (size_t)more : *n;
}

dsi_isa_text dsi_isa_print(ds_isa set)
{
    const ds_isa named = dsi_isa_level(DSI_ISA_LEVELS - 1);
    dsi_isa_text out = {""};
    size_t n = 0;
    for (uint32_t i = DSI_ISA_LEVELS; i-- > 0 && n == 0;) {
        if ((set & named) == dsi_isa_level(i) && (i > 0 || set == DS_ISA_REF)) {
            put(&out, &n, names[i].name);
        }
    }
    const bool level = n > 0;
    for (uint32_t i = 0; i < 64; ++i) {
        const ds_isa bit = (ds_isa)1 << i;
        char own[16];
        (void)snprintf(own, sizeof own, i < 32 ? "bit%u" : "own%u", i % 32);
        if ((set & bit) != 0 && !(level && (named & bit) != 0)) {
            put(&out, &n, ds_isa_name(bit) != NULL ? ds_isa_name(bit) : own);
        }
    }
    return out;
}
