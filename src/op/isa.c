/* SPDX-License-Identifier: Apache-2.0 */
/* Names of instruction sets. */
#include <deepspeed/op.h>

const char *ds_isa_name(ds_isa isa)
{
    static const char *const names[DS_ISA_COUNT] = {"ref", "avx2", "avx512", "avx512_bf16", "amx"};
    return names[isa];
}
