/* SPDX-License-Identifier: Apache-2.0 */
/* Files of any kind as tokens for a row: the rules between a source and a store. See data_take.c.
 * Called by dataset.c and by the data cache. */
#ifndef DSI_DATA_TAKE_H
#define DSI_DATA_TAKE_H

#include "data/source.h"

#include <deepspeed/data.h>

typedef struct dsi_take {
    /* n > 0 tokens: a document, or more of the last one (joins). counted NULL: all count. */
    ds_status (*add)(void *user, const uint32_t *ids, const uint8_t *counted, uint64_t n,
                     bool joins);
    /* The two log-probabilities of the pair that was added last. NULL: there is no place for them.
     */
    ds_status (*reference)(void *user, const float logps[2]);
    void *user;
    /* what was taken */
    ds_dataset_info info;
    uint64_t longest;               /* tokens of a document */
    uint64_t n_last;                /* of the last one */
    bool has_kind;                  /* info.samples is known: some document was read */
    uint64_t n_pairs, n_references; /* of preferences; of them with columns of the reference */
} dsi_take;

/* One document, or more of the last one, into take->add; counts it. */
ds_status dsi_take_add(dsi_take *take, const uint32_t *ids, const uint8_t *counted, uint64_t n,
                       bool joins);
/* A row of preferences: its documents, cut, or left out. data_preference.c. */
ds_status dsi_take_preference(ds_ctx *ctx, const ds_dataset_params *params, const char *path,
                              dsi_take *take, const dsi_document *row);
/* Reads all files, in order, into take->add; a sample that is too long is cut or dropped, one that
 * teaches nothing is left out. Errors: those of ds_dataset_open. */
ds_status dsi_take_files(ds_ctx *ctx, const ds_dataset_params *params, dsi_take *take);
/* Calls the params' progress, if there is one. */
ds_status dsi_take_say(const ds_dataset_params *params, ds_dataset_stage stage, uint64_t done,
                       uint64_t all, uint64_t n_tokens);
/* Whether the path names indexed data. */
bool dsi_take_is_indexed(const char *path);

#endif
