/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_parallel.partition_config for a model: which dims of each parameter tensor parallelism may
 * shard, and whether it did what the section asks. Called by rank_plan.c around dsi_tensor_rules().
 */
#ifndef DSI_COMPILE_TENSOR_SPECS_H
#define DSI_COMPILE_TENSOR_SPECS_H

#include "config/config_values.h"
#include "place/placement.h"

#include <deepspeed/graph.h>

/* Masks of dims into allowed_out[0 .. cells of the graph): all where no spec names the parameter.
 * Biases and other vectors go with their layer. graph: logical, forward. Errors: ERR_CONFIG names
 * the spec (an expression that is none; a dim that the layer has not; with strict_mode the linear
 * layer that none names). */
ds_status dsi_tensor_specs(const ds_config_tensor *config, const char *model_type,
                           const ds_graph *graph, uint8_t *allowed_out);

/* Whether what the specs name was sharded so. Errors: ERR_CONFIG names spec and parameter. */
ds_status dsi_tensor_specs_hold(const ds_config_tensor *config, const char *model_type,
                                const ds_graph *graph, const dsi_place_on *on);

#endif
