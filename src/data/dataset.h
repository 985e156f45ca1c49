/* Inside of ds_dataset: storage that several datasets may share, and the documents of one.
 *
 * Invariant: begin[0] .. begin[n_docs] ascend; document d is tokens [begin[d], begin[d+1]).
 */
#ifndef DSI_DATA_DATASET_H
#define DSI_DATA_DATASET_H

#include "data/permutation.h"
#include "io/file.h"
#include <deepspeed/data.h>

/* Token storage, shared by the parts of a split and counted. */
typedef struct dsi_tokens {
    uint32_t n_users;
    uint64_t n;            /* tokens */
    uint64_t room;         /* of ids, while reading */
    int32_t *ids;          /* owned; NULL when mapped */
    uint8_t *counted;      /* per token: counts in the loss; NULL: all do */
    dsi_map map;           /* .bin: the mapped file */
    uint32_t mapped_bytes; /* 1, 2, 4 or 8: width of an id there */
    bool mapped_signed;
} dsi_tokens;

struct ds_dataset {
    ds_ctx *ctx;
    dsi_tokens *tokens;
    uint64_t *begin; /* n_docs + 1 */
    uint64_t n_docs;
    bool has_kind; /* info.samples is known: some file was read */
    ds_dataset_info info;
};

/* Token `at` of the storage; -1 for a number of a mapped file that can be no id: negative, or above
 * INT32_MAX. */
int32_t dsi_tokens_get(const dsi_tokens *tokens, uint64_t at);

/* The document that token `at` is in; begin[0] <= at < begin[n_docs]. */
uint64_t dsi_dataset_document(const ds_dataset *dataset, uint64_t at);

/* A hash of documents and tokens, of some of them in large data: tells other data apart. */
uint64_t dsi_dataset_digest(const ds_dataset *dataset);
/* A hash of every document, token and flag; of mapped data beyond 256 MiB of blocks spread over it.
 */
uint64_t dsi_dataset_content(const ds_dataset *dataset);

/* Appends to a dataset under construction. counted NULL: all count. */
ds_status dsi_dataset_append(ds_dataset *dataset, const uint32_t *ids, const uint8_t *counted,
                             uint64_t n);

#endif
