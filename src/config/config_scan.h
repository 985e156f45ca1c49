/* SPDX-License-Identifier: Apache-2.0 */
/* The words of the JSON and HJSON reader: white space, comments, strings, numbers. Used by
 * config_read.c alone.
 *
 * Invariants: pos <= n; every byte is read through scan_at(), which gives -1 past the end; a
 * function that returns NULL or false has recorded the error. Columns count bytes from 1.
 */
#ifndef DSI_CONFIG_SCAN_H
#define DSI_CONFIG_SCAN_H

#include "config/config_diag.h"
#include "config/config_read.h"
#include <locale.h>

typedef struct dsi_scan {
    dsi_diags *diags;
    const char *text;
    size_t n;
    size_t pos;
    uint32_t line;
    size_t line_start;
    uint32_t depth;
    uint32_t n_nodes;
    bool failed;
    uint32_t open_line; /* of a string without quotes that ends with a bracket; 0: none */
    locale_t c_locale;  /* numbers have a point in every locale */
    dsi_buf scratch;    /* the string being read */
} dsi_scan;

int dsi_scan_peek(const dsi_scan *r);
uint32_t dsi_scan_column(const dsi_scan *r, size_t pos);
/* Steps over one byte and keeps count of lines. */
void dsi_scan_step(dsi_scan *r);
/* Records an error at the current place, the first one only; NULL. */
void *dsi_scan_bad(dsi_scan *r, const char *expected);
void *dsi_scan_no_memory(dsi_scan *r);
/* Steps over white space and comments. */
bool dsi_scan_skip(dsi_scan *r);
/* A node at the current place. */
dsi_node *dsi_scan_node(dsi_scan *r, dsi_node_kind kind);

/* A string in double or single quotes; the current place is the opening one. */
const char *dsi_scan_quoted(dsi_scan *r);
/* Whether three single quotes stand here; and the lines between two of these. */
bool dsi_scan_at_multiline(const dsi_scan *r);
const char *dsi_scan_multiline(dsi_scan *r);
/* A keyword or number up to a delimiter, or else the rest of the line as a string. */
dsi_node *dsi_scan_unquoted(dsi_scan *r);

#endif
