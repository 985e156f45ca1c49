/* SPDX-License-Identifier: Apache-2.0 */
/* compression_training as a rewrite of the logical graph, before gradients are taken: the weight
 * that a layer uses becomes its quantized or pruned form, its input the quantized one. What changes
 * with the steps is in scalar cells that the host writes before each forward pass; no step is
 * planned anew. docs/internals/compress.md.
 *
 * Layers are linears, embeddings and heads; a layer's name is Hugging Face's, its weight's without
 * ".weight", and "lm_head" for a head that is tied to an embedding.
 */
#ifndef DSI_COMPILE_COMPRESS_GRAPH_H
#define DSI_COMPILE_COMPRESS_GRAPH_H

#include "config/config_values.h"

#include <deepspeed/graph.h>

/* A mask that is made once, of the first weights. */
typedef struct dsi_compress_mask {
    ds_cell cell, param;
    double ratio;
    int64_t by, transposed; /* as in dsi_top_mask_attrs */
} dsi_compress_mask;

typedef struct dsi_compress_masks {
    dsi_compress_mask *items; /* free() */
    uint32_t n;
} dsi_compress_masks;

/* Replaces *graph, a forward graph. Cells that it needs are added to the graph's table unless they
 * are there: SCALAR control cells, MASK cells, and PARAM cells of trained scores, which belong to
 * (`of`) their weight. masks_out may be NULL. Errors: ERR_CONFIG naming the key: a group that no
 * layer matches, a layer in two groups of a technique, an expression that is none, sizes that
 * groups or heads do not divide. */
ds_status dsi_compress_graph(const ds_config_compression *how, ds_graph **graph,
                             dsi_compress_masks *masks_out);

/* The name of a group's control cell: f32 (DSI_QUANT_COUNT) of weights, else f32 (): whether it is
 * in force. text: room for n bytes. And that of the key of random numbers, i64 (2). */
const char *dsi_compress_control_name(const ds_compress_group *group, char *text, size_t n);
#define DSI_COMPRESS_DRAW "compress.draw"

/* compress_schedule.c: the control cell of a group behind so many updates. */
void dsi_compress_control(const ds_compress_group *group, int64_t updates, float *control_out);

/* compress_match.c: whether one of the lines of `patterns` is found in a name; ERR_CONFIG when one
 * is no regular expression. which_out: the line, or -1. */
ds_status dsi_compress_match(ds_ctx *ctx, const char *key, const char *patterns, const char *name,
                             int *which_out);

#endif
