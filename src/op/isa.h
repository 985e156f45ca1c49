/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of instruction sets as words: those that a processor has are one of a few sets, each inside
 * of the next, which have the name of what the next one before lacks. For DS_CPU_ISA, printed plans
 * and ranks that compare theirs; kernels are chosen by bits alone.
 */
#ifndef DSI_OP_ISA_H
#define DSI_OP_ISA_H

#include <deepspeed/op.h>

enum { DSI_ISA_LEVELS = 6, DSI_ISA_TEXT = 160 };

/* Set `index` in [0,DSI_ISA_LEVELS), the smallest first; its name is that of its newest bit. */
ds_isa dsi_isa_level(uint32_t index);
const char *dsi_isa_level_name(uint32_t index);

typedef struct dsi_isa_text {
    char text[DSI_ISA_TEXT];
} dsi_isa_text;

/* A set as text: a level's name, or names with "+" between them; bits of an accelerator as "own0".
 */
dsi_isa_text dsi_isa_print(ds_isa set);

#endif
