/* SPDX-License-Identifier: Apache-2.0 */
/* Pages that stand alone: their style, their small script, and texts escaped. No page refers to
 * anything outside of itself. Used by the pages of runs and of plans. */
#ifndef DSI_MONITOR_HTML_H
#define DSI_MONITOR_HTML_H

#include "base/buf.h"

/* Appends text as content or attribute value: markup and control characters are escaped, bytes that
 * are not UTF-8 are replaced. NULL: nothing. */
void dsi_html_text(dsi_buf *page, const char *text);
/* The same as the inside of a JSON string in a <script>. */
void dsi_html_json(dsi_buf *page, const char *text);
/* The beginning of a page up to <main>; kind: what wrote it ("run report"), by which it is known
 * again (dsi_html_is_ours). */
void dsi_html_begin(dsi_buf *page, const char *title, const char *kind);
/* script: with that which shows figures under the pointer. */
void dsi_html_end(dsi_buf *page, bool script);
/* A figure with its name. note may be NULL; tone: "", "good", "warn" or "bad". */
void dsi_html_tile(dsi_buf *page, const char *name, const char *value, const char *note,
                   const char *tone);

/* OK when nothing is at `path`, or a page of this kind; ERR_STATE else: it would be lost. Pipes and
 * devices are no files to lose. */
ds_status dsi_html_check(ds_ctx *ctx, const char *path, const char *kind);

#endif
