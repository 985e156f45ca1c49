/* SPDX-License-Identifier: Apache-2.0 */
/* Texts of a golden file ({"source": ids, "ids": ids, "logprobs": numbers}), asked of a server all
 * at a time. For tests. */
#ifndef DS_TEST_SERVED_TEXTS_H
#define DS_TEST_SERVED_TEXTS_H

#include <deepspeed/serve.h>
#include <jansson.h>

enum { SERVED_TEXTS = 32, SERVED_IDS = 128 };

typedef struct served_text {
    const json_t *text; /* borrowed */
    uint64_t adapter;   /* 0: none */
} served_text;

/* n <= SERVED_TEXTS: greedy ids are the golden ones, and log-probabilities those under `key`, no
 * further off than `most`. */
void served_texts_expect(ds_ctx *ctx, ds_server *server, const served_text *texts, size_t n,
                         const char *key, double most);
/* Reads a list of ids, at most SERVED_IDS; returns how many. */
size_t served_ids(const json_t *row, const char *name, uint32_t *ids);

#endif
