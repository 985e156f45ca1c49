/* SPDX-License-Identifier: Apache-2.0 */
/* A scanner for JSON that is too large to make a tree of.
 *
 * The tokenizer's reader walks with it to the large parts of a file and reads them in place. The
 * text is not trusted: every read is bounded by `end`, and what is not understood is an error with
 * file and line. Values that are skipped are only counted in brackets; somebody else checks them.
 */
#ifndef DSI_DATA_JSON_SCAN_H
#define DSI_DATA_JSON_SCAN_H

#include <deepspeed/context.h>
#include <stdbool.h>
#include <stddef.h>

typedef struct dsi_json_scan {
    ds_ctx *ctx;
    const char *path;
    const char *begin, *p, *end; /* p: where it reads next */
} dsi_json_scan;

/* Records ERR_FORMAT with file and line of p. */
ds_status dsi_json_scan_bad(const dsi_json_scan *r, const char *what);

void dsi_json_scan_space(dsi_json_scan *r);
/* Whether the next character, after white space, is c. */
bool dsi_json_scan_at(dsi_json_scan *r, char c);
/* Takes c. */
ds_status dsi_json_scan_expect(dsi_json_scan *r, char c);
/* Takes a string into *out, which has room for as many bytes as are left of the text; *out ends
 * behind it. */
ds_status dsi_json_scan_string(dsi_json_scan *r, char **out);
/* Takes any value. */
ds_status dsi_json_scan_skip(dsi_json_scan *r);

/* Takes one member of an object; r->p is at its value and must end behind it. The key is as in the
 * text, with its escapes. */
typedef ds_status (*dsi_json_member_fn)(dsi_json_scan *r, const char *key, size_t n_key, void *arg);

/* Walks through the object at p; p ends behind it. */
ds_status dsi_json_scan_members(dsi_json_scan *r, dsi_json_member_fn take, void *arg);

#endif
