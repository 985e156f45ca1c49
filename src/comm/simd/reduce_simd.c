/* SPDX-License-Identifier: Apache-2.0 */
/* reduce_block.h compiled for one instruction set (DSI_ISA); dsi_reduce chooses among them. */
#include "comm/reduce_block.h"

#define NAME_OF(isa) dsi_reduce_block_##isa
#define NAME(isa)    NAME_OF(isa)

void NAME(DSI_ISA)(const dsi_reduce_job *job, const void *const *in, size_t begin, size_t n,
                   void *out);

void NAME(DSI_ISA)(const dsi_reduce_job *job, const void *const *in, size_t begin, size_t n,
                   void *out)
{
    reduce_block(job, in, begin, n, out);
}
