/* SPDX-License-Identifier: Apache-2.0 */
/* Reading members of a tokenizer.json; see tokenizer_form.c. */
#ifndef DSI_DATA_TOKENIZER_FORM_H
#define DSI_DATA_TOKENIZER_FORM_H

#include "data/tokenizer.h"

/* A member of an object as text; *n_out bytes; false when absent or not a string. */
bool dsi_form_text(const json_t *object, const char *key, const char **text_out, size_t *n_out);
/* An error unless the member is a list of objects. */
ds_status dsi_form_list(ds_tokenizer *tok, const char *path, const json_t *object, const char *key);
/* The "type" of a component, "" without. */
const char *dsi_form_type(const json_t *component);
/* A member that must be there, true or false. */
ds_status dsi_form_flag(ds_tokenizer *tok, const char *path, const json_t *object, const char *key,
                        bool *out);
/* One that may be absent. */
ds_status dsi_form_flag_or(ds_tokenizer *tok, const char *path, const json_t *object,
                           const char *key, bool otherwise, bool *out);
/* One that may be absent or null. */
ds_status dsi_form_option(ds_tokenizer *tok, const char *path, const json_t *object,
                          const char *key, bool otherwise, bool *out);
/* A string of the file, kept in the arena. */
ds_status dsi_form_keep(ds_tokenizer *tok, const char *path, const char *text, size_t n,
                        const char **kept_out);
/* A member that must be a text, kept in the arena. */
ds_status dsi_form_keep_member(ds_tokenizer *tok, const char *path, const json_t *object,
                               const char *key, const char **text_out, size_t *n_out);
/* The error for a part whose name is not known. */
ds_status dsi_form_unsupported(ds_tokenizer *tok, const char *path, const char *part,
                               const char *name, const char *known);

#endif
