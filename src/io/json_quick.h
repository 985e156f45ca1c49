/* SPDX-License-Identifier: Apache-2.0 */
/* A quick reader of common JSON; dsi_json_parse tries it first. */
#ifndef DSI_IO_JSON_QUICK_H
#define DSI_IO_JSON_QUICK_H

#include <jansson.h>

/* The object or list that json_loadb(text, n, JSON_ALLOW_NUL, …) gives, or NULL: what is there is
 * for jansson to read, and to report. Of equal keys the last counts. Any thread. */
json_t *dsi_json_quick(const char *text, size_t n);

#endif
