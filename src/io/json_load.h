/* JSON texts by jansson with one kind of error message, in which memory that ran out is told from a
 * text that is wrong. */
#ifndef DSI_IO_JSON_LOAD_H
#define DSI_IO_JSON_LOAD_H

#include <deepspeed/status.h>
#include <jansson.h>

/* Parses n bytes; duplicate keys are errors. label says what the text is, for the message: "LABEL:
 * line:column: reason". flags: jansson's. Errors: `status`, ERR_NOMEM. */
ds_status dsi_json_load(ds_ctx *ctx, const char *label, const char *text, size_t n, size_t flags,
                        ds_status status, json_t **root_out);

#endif
