/* SPDX-License-Identifier: Apache-2.0 */
/* Reads JSON and HJSON text into a tree. Called by config.c and by the fuzzer. */
#ifndef DSI_CONFIG_READ_H
#define DSI_CONFIG_READ_H

#include "config/config_diag.h"

enum {
    DSI_READ_MAX_BYTES = 4 << 20,
    DSI_READ_MAX_DEPTH = 64,
    DSI_READ_MAX_NODES = 100000,
    DSI_READ_MAX_MEMBERS = 2000 /* of one object */
};

/* Reads n bytes. The dialect is that of hjson-py 3.1: JSON, and comments (#, //, block), quotes of
 * either kind or none, multi-line strings in three single quotes, root braces and commas optional,
 * one trailing comma. Duplicate keys are errors, and reading goes on; a syntax error is one error,
 * and reading stops. *root_out is an object, or NULL after a syntax error or without memory
 * (diags->no_memory). */
dsi_node *dsi_config_read(dsi_diags *diags, const char *text, size_t n);

#endif
