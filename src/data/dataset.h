/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of ds_dataset: a run of tokens of a store, whole documents but for the first and the last
 * where a split cut them.
 */
#ifndef DSI_DATA_DATASET_H
#define DSI_DATA_DATASET_H

#include "data/permutation.h"
#include "data/token_store.h"
#include <deepspeed/data.h>

struct ds_dataset {
    ds_ctx *ctx;
    dsi_store *tokens;
    uint64_t first, end; /* tokens [first, end) of the store */
    uint64_t first_doc;  /* of the store: the one that `first` is in */
    uint64_t n_docs;
    uint64_t longest; /* tokens; no document is longer */
    ds_dataset_info info;
    uint32_t n_head;      /* of VALUES: entries before a document's tokens (schema_texts.c) */
    uint32_t n_parts;     /* of CONTRAST: documents of a draw */
    float *reference;     /* of preferences: two of each draw; NULL: none yet */
    uint64_t n_reference; /* numbers in it */
};

/* Document d is tokens [begin d, begin d+1) of the store; d <= n_docs. */
static inline uint64_t dsi_dataset_begin(const ds_dataset *dataset, uint64_t d)
{
    if (d == 0 || d >= dataset->n_docs) {
        return d == 0 ? dataset->first : dataset->end;
    }
    return dsi_store_begin(dataset->tokens, dataset->first_doc + d);
}

/* Documents of a draw: two of a pair. */
static inline uint64_t dsi_dataset_each(const ds_dataset *dataset)
{
    return dataset->info.rows == DS_ROWS_PAIRS      ? 2
           : dataset->info.rows == DS_ROWS_CONTRAST ? dataset->n_parts
                                                    : 1;
}

/* The document that token `at` is in; first <= at < end. */
uint64_t dsi_dataset_document(const ds_dataset *dataset, uint64_t at);

/* A hash of documents and tokens, of some of them in large data: tells other data apart. */
uint64_t dsi_dataset_digest(const ds_dataset *dataset);
/* A hash of the store's content and of which part of it this is. */
uint64_t dsi_dataset_content(const ds_dataset *dataset);

#endif
