/* SPDX-License-Identifier: Apache-2.0 */
/* The known word nearest to a misspelt one: for "did you mean" in errors about keys and flags. */
#ifndef DSI_BASE_NEAREST_H
#define DSI_BASE_NEAREST_H

#include <stdbool.h>
#include <stddef.h>

/* Collects the best of the candidates offered so far. Start with {word}. */
typedef struct dsi_nearest {
    const char *word; /* what the user wrote */
    const char *best; /* NULL: nothing near enough; else one of the offered, borrowed */
    size_t distance;
} dsi_nearest;

/* Takes the candidate when it is nearer than the best and near enough to be worth naming: at most a
 * third of its letters differ, or one word contains the other. */
void dsi_nearest_offer(dsi_nearest *nearest, const char *candidate);

/* Whether the word looks like the best one misspelt: it is as near as that by its letters, and does
 * not only contain it. */
bool dsi_nearest_is_slip(const dsi_nearest *nearest);

#endif
