/* SPDX-License-Identifier: Apache-2.0 */
/* Collects errors and notices about one configuration file, to report them together.
 *
 * Every part of config/ that finds something wrong adds it here and goes on. Messages live in the
 * arena. Past the ceiling errors are counted, not kept.
 */
#ifndef DSI_CONFIG_DIAG_H
#define DSI_CONFIG_DIAG_H

#include "config/config_node.h"

enum { DSI_DIAG_MAX_ERRORS = 50, DSI_DIAG_MAX_NOTICES = 500 };

typedef struct dsi_diag {
    uint32_t line, column; /* 0: about the file as a whole */
    const char *text;      /* one line with its place */
} dsi_diag;

typedef struct dsi_diags {
    const char *name; /* of the file, for messages */
    dsi_arena *arena; /* borrowed */
    dsi_diag errors[DSI_DIAG_MAX_ERRORS];
    dsi_diag *notices; /* room for DSI_DIAG_MAX_NOTICES */
    size_t n_errors;   /* all that were found, kept or not */
    size_t n_notices;
    bool no_places; /* lines are of a text that nobody wrote */
    bool no_memory; /* sticky: a message could not be kept */
} dsi_diags;

/* Adds one message. path may be NULL. line 0: without a place. */
void dsi_error_at(dsi_diags *diags, uint32_t line, uint32_t column, const char *path,
                  const char *format, ...) DS_PRINTF(5, 6);
void dsi_notice_at(dsi_diags *diags, uint32_t line, uint32_t column, const char *path,
                   const char *format, ...) DS_PRINTF(5, 6);

/* Orders errors and notices by place. */
void dsi_diags_sort(dsi_diags *diags);
/* Appends all errors, a line each, and how many more there are. */
void dsi_diags_write(const dsi_diags *diags, dsi_buf *buf);

#endif
