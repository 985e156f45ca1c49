/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of W&B and of Comet share: names drawn at random, and numbers as JSON. */
#ifndef DSI_MONITOR_OFFLINE_NAME_H
#define DSI_MONITOR_OFFLINE_NAME_H

#include <deepspeed/status.h>
#include <stddef.h>

enum { DSI_OFFLINE_NAME = 64 /* most letters of a name */, DSI_OFFLINE_NUMBER = 40 };

#define DSI_OFFLINE_WORD "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"

/* n of these letters (at most 256 of them, n at most DSI_OFFLINE_NAME). Errors: ERR_IO. */
ds_status dsi_offline_random(ds_ctx *ctx, const char *letters, size_t n, char *text);
/* A number as JSON that gives back its bits; "NaN", "Infinity" and "-Infinity" as texts, as both
 * packages write them. Returns text. */
const char *dsi_offline_number(double value, char text[DSI_OFFLINE_NUMBER]);

#endif
