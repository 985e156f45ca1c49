/* SPDX-License-Identifier: Apache-2.0 */
/* The shape of a row: the schema's tree with lists and maps found, and what cannot be read left
 * out. Made by shape.c, walked by assemble.c.
 *
 * Levels are Parquet's (Dremel's): a node that is optional is there from definition level `def` on;
 * an element of a list is there from `item_def` on, and a further element of the same list has
 * repetition level `rep`. Source: parquet-format's LogicalTypes.md, with its rules for lists of
 * older writers.
 */
#ifndef DSI_DATA_PARQUET_SHAPE_H
#define DSI_DATA_PARQUET_SHAPE_H

#include "data/parquet/parquet_meta.h"

typedef enum dsi_shape_kind {
    DSI_SHAPE_LEAF,
    DSI_SHAPE_STRUCT,
    DSI_SHAPE_LIST, /* one child: the element */
    DSI_SHAPE_MAP   /* two children: key and value */
} dsi_shape_kind;

typedef struct dsi_shape {
    dsi_shape_kind kind;
    const dsi_parquet_element *element; /* name; of a leaf also its meaning */
    bool optional;
    uint32_t def;           /* where optional */
    uint32_t rep, item_def; /* of lists and maps */
    uint32_t leaf;          /* of a leaf: its column; else the first column below that is read */
    struct dsi_shape *child, *next;
} dsi_shape;

typedef struct dsi_shape_leaf {
    dsi_parquet_physical type;
    uint32_t max_def, max_rep;
    bool read; /* a leaf of the shape */
} dsi_shape_leaf;

/* parquet_json.c */
bool dsi_parquet_is_utf8(const uint8_t *text, size_t n);

/* The root is a struct; leaves_out has meta->n_leaves. Both are in the arena. Logs what is left
 * out. */
ds_status dsi_shape_make(ds_ctx *ctx, const char *path, const dsi_parquet_meta *meta,
                         dsi_arena *arena, dsi_shape **root_out, dsi_shape_leaf **leaves_out);

#endif
