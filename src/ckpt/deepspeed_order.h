/* SPDX-License-Identifier: Apache-2.0 */
/* Modules of transformers by model type, in their order: deepspeed_order.c. Also the names that a
 * list of layers (PipelineModule) is read by: ckpt_deepspeed_names.c. */
#ifndef DSI_CKPT_DEEPSPEED_ORDER_H
#define DSI_CKPT_DEEPSPEED_ORDER_H

#include <stddef.h>

/* Lists of modules, separated by blanks: before the layers, inside of one, behind the last. */
typedef struct dsi_module_order {
    const char *types; /* model types */
    const char *before, *layers, *inside, *after;
} dsi_module_order;

const dsi_module_order *dsi_module_orders(size_t *n_out);

#endif
