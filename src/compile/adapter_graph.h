/* SPDX-License-Identifier: Apache-2.0 */
/* An adapter as a rewrite of the logical graph, before gradients are taken: behind each linear
 * layer that it means stand A and B, whose product is added to the layer's output; the weights of
 * the model are frozen. docs/internals/adapter.md.
 */
#ifndef DSI_COMPILE_ADAPTER_GRAPH_H
#define DSI_COMPILE_ADAPTER_GRAPH_H

#include <deepspeed/adapter.h>

/* Replaces *graph, a forward graph that `trace` describes; adapter NULL: nothing. Cells
 * NAME.lora_A.weight (rank,in) and NAME.lora_B.weight (out,rank) are added unless they are there;
 * they belong to (`of`) the layer's weight. Parameters that belong to none are frozen, but for
 * those of modules_to_save. Errors: ERR_NOT_FOUND (nothing is named so), ERR_UNSUPPORTED naming the
 * module (a norm, a module that holds others; dropout where a layer is
 * computed in tiles). */
ds_status dsi_adapter_graph(const ds_adapter *adapter, const ds_trace *trace, ds_graph **graph);

#endif
