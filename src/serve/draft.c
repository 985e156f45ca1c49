/* SPDX-License-Identifier: Apache-2.0 */
/* Guesses of what a sequence goes on with: what followed its last ids where they stood before
 * ("prompt lookup"; as the n-gram drafts of others). A wrong guess costs its row of a batch and
 * nothing else.
 */
#include "serve/server.h"

#include <string.h>

enum { LONGEST = 3, SHORTEST = 2, MOST_LOOK = 4096 };

/* The end of the latest place before the last n ids where those stand; 0: there is none. */
static int64_t find(const dsi_sequence *q, int64_t n)
{
    const uint32_t *last = q->ids + q->n_ids - n;
    const int64_t first = q->n_ids > MOST_LOOK ? q->n_ids - MOST_LOOK : 0;
    for (int64_t at = q->n_ids - n - 1; at >= first; --at) {
        if (memcmp(q->ids + at, last, (size_t)n * sizeof *last) == 0) {
            return at + n;
        }
    }
    return 0;
}

void dsi_draft(dsi_sequence *q, int64_t most)
{
    int64_t at = 0;
    for (int64_t n = LONGEST; n >= SHORTEST && at == 0; --n) {
        at = n < q->n_ids ? find(q, n) : 0;
    }
    /* a place near the end goes on with the guess itself: a text that repeats */
    for (q->n_draft = 0; at > 0 && q->n_draft < most; ++q->n_draft) {
        q->ids[q->n_ids + q->n_draft] = q->ids[at + q->n_draft];
    }
}
