/* SPDX-License-Identifier: Apache-2.0 */
/* What a server of a model is made of: its model, tokenizer and engine, from folders and files. See
 * front.h. */
#ifndef DS_TOOLS_SERVE_OPEN_H
#define DS_TOOLS_SERVE_OPEN_H

#include "common/unpacked.h"
#include "serve/front.h"

typedef struct parts {
    ds_model *model, *draft;
    const char *draft_folder; /* of the draft; where --draft_model is a name, draft_found */
    char *draft_found;
    ds_adapter *adapter;
    ds_tokenizer *tokenizer;
    ds_tokenizer_scratch *scratch;
    ds_chat *chat;
    unpacked unpacked; /* a GGUF file's model */
} parts;

/* ---- open.c ---- */
/* The model, its draft and adapter; o->model becomes the folder that was found. */
ds_status open_model(ds_ctx *ctx, serve_options *o, front *f, parts *p);
/* With the context of the HTTP thread, which alone uses them; but for decoding. */
ds_status open_tokenizer(const serve_options *o, front *f, parts *p);
/* The engine of that model, and what of it the front says. */
ds_status open_server(ds_ctx *ctx, const serve_options *o, front *f, const parts *p);
void parts_close(parts *p);

/* ---- no_pipes.c ---- */
/* An error where a file, or one of a folder's, is a device or a pipe, which would be waited for. */
ds_status no_pipes(ds_ctx *ctx, const char *path);

/* ---- renew.c ---- */
/* What the command line made is the first that is served; the next ones are loaded as it says. */
ds_status renew_first(ds_ctx *ctx, front *f, parts *p);

#endif
