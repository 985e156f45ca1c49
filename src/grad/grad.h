/* SPDX-License-Identifier: Apache-2.0 */
/* Reverse walk: from roots and their seeds to the gradient of every trainable parameter.
 *
 * Emits nodes of phase BACKWARD at the end of the graph by calling each operator's gradient rule.
 * Law 4a: a parameter's gradient is the fp32 sum of its uses' contributions in program order.
 */
#ifndef DSI_GRAD_GRAD_H
#define DSI_GRAD_GRAD_H

#include <deepspeed/op.h>

/* roots[i] receives the gradient seeds[i] (a value of its shape). d_cell_out: ds_cells_count
 * entries, filled with the f32 gradient of each trainable parameter's cell, DS_NONE where none
 * flows. */
ds_status dsi_grad_build(ds_graph *graph, const ds_value *roots, const ds_value *seeds,
                         uint32_t n_roots, ds_value *d_cell_out);

#endif
