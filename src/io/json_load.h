/* SPDX-License-Identifier: Apache-2.0 */
/* JSON texts by jansson with one kind of error message, in which memory that ran out is told from a
 * text that is wrong. */
#ifndef DSI_IO_JSON_LOAD_H
#define DSI_IO_JSON_LOAD_H

#include <deepspeed/status.h>
#include <jansson.h>

/* As json_loadb(), but a whole number beyond 64 bits is a real instead of an error: transformers
 * writes 1000000000000000019884624838656 where a length has no limit. NULL and *error when wrong.
 */
json_t *dsi_json_parse(const char *text, size_t n, size_t flags, json_error_t *error);

/* The text with "e0" behind each whole number beyond 64 bits, terminated; the caller frees it. NULL
 * when out of memory. */
char *dsi_json_widen(const char *text, size_t n);

/* Parses n bytes of a text of our own; duplicate keys are errors. label says what the text is,
 * for the message: "LABEL: line:column: reason". flags: jansson's. Errors: `status`, ERR_NOMEM. */
ds_status dsi_json_load(ds_ctx *ctx, const char *label, const char *text, size_t n, size_t flags,
                        ds_status status, json_t **root_out);

#endif
