/* SPDX-License-Identifier: Apache-2.0 */
/* Data sets of preferences: flags of their tokens, and what a model without training says of their
 * answers. Used by data_preference.c, the loader, and the engine's reference (engine_reference.c).
 */
#ifndef DSI_DATA_PREFERENCE_H
#define DSI_DATA_PREFERENCE_H

#include "data/dataset.h"

/* Bits of a token's flags. */
enum {
    DSI_FLAG_COUNTS = 1,
    DSI_FLAG_UNDESIRED = 2 /* on a document's first token: the answer is not desired */
};

#endif
