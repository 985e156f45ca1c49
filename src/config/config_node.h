/* SPDX-License-Identifier: Apache-2.0 */
/* The tree that a configuration file is read into: values with their place in the file.
 *
 * The reader makes it (config_read.c), everything in config/ reads it. Nodes and texts live in the
 * arena of their ds_config. A node is const once read, except for what config_migrate.c rewrites.
 */
#ifndef DSI_CONFIG_NODE_H
#define DSI_CONFIG_NODE_H

#include "base/arena.h"
#include "base/buf.h"
#include <stdint.h>

typedef enum dsi_node_kind {
    DSI_NODE_NULL,
    DSI_NODE_BOOL,
    DSI_NODE_INT,
    DSI_NODE_REAL,
    DSI_NODE_TEXT,
    DSI_NODE_LIST,
    DSI_NODE_OBJECT
} dsi_node_kind;

typedef struct dsi_node dsi_node;
struct dsi_node {
    dsi_node_kind kind;
    uint32_t line, column;         /* of the value, from 1; 0: not from a file */
    uint32_t key_line, key_column; /* of its key in an object */
    const char *key;               /* in an object, else NULL */
    union {
        bool truth;
        int64_t integer;
        double real;
        const char *text; /* UTF-8 without zero bytes */
    } as;
    dsi_node *first, *last; /* children of LIST and OBJECT */
    dsi_node *next;         /* sibling */
    uint32_t n_children;
};

/* The member of an object, NULL when absent or when object is NULL or no object. */
dsi_node *dsi_node_find(const dsi_node *object, const char *key);
/* New nodes without a place. NULL when out of memory. */
dsi_node *dsi_node_make(dsi_arena *arena, dsi_node_kind kind);
dsi_node *dsi_node_make_int(dsi_arena *arena, int64_t value);
dsi_node *dsi_node_make_real(dsi_arena *arena, double value);
dsi_node *dsi_node_make_bool(dsi_arena *arena, bool value);
dsi_node *dsi_node_make_text(dsi_arena *arena, const char *text);
void dsi_node_add(dsi_node *parent, dsi_node *child);

bool dsi_node_is_number(const dsi_node *node); /* INT or REAL */
bool dsi_node_is_text(const dsi_node *node, const char *text);
double dsi_node_real(const dsi_node *node); /* of a number, else 0 */
/* Whether the node is a number without fraction that fits; *value_out is set then. */
bool dsi_node_int(const dsi_node *node, int64_t *value_out);
/* Same value: numbers by magnitude, lists and objects member by member. */
bool dsi_node_equal(const dsi_node *a, const dsi_node *b);

/* Appends the node as JSON on one line. Numbers read back to the same value. */
void dsi_node_json(dsi_buf *buf, const dsi_node *node);
void dsi_buf_real(dsi_buf *buf, double value); /* the shortest text that reads back */
/* What a message says was found: "the string \"auto\"", "12", "a list of 3". */
void dsi_node_describe(dsi_buf *buf, const dsi_node *node);

#endif
