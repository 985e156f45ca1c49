/* SPDX-License-Identifier: Apache-2.0 */
/* A vector of numbers that a configuration gives, as what longrope divides each frequency by. */
#ifndef DSI_OP_CONSTANTS_H
#define DSI_OP_CONSTANTS_H

#include <deepspeed/op.h>

enum { DSI_MOST_CONSTANTS = 128 };

typedef struct dsi_constants_attrs {
    int64_t n;
    double v[DSI_MOST_CONSTANTS]; /* those behind n are 0 */
} dsi_constants_attrs;
/* constants: → f32 (n) */
extern const ds_op dsi_op_constants;

#endif
