/* SPDX-License-Identifier: Apache-2.0 */
/* Flags of the tokens of preferences. Written by data_preference.c, read by loader_preference.c. */
#ifndef DSI_DATA_PREFERENCE_H
#define DSI_DATA_PREFERENCE_H

/* Bits of a token's flags. */
enum {
    DSI_FLAG_COUNTS = 1,
    DSI_FLAG_UNDESIRED = 2 /* on a document's first token: the answer is not desired */
};

#endif
