/* SPDX-License-Identifier: Apache-2.0 */
/* The reserved words at the end of public structs must be zero: see version.h. */
#ifndef DSI_BASE_RESERVED_H
#define DSI_BASE_RESERVED_H

#include <deepspeed/status.h>
#include <stddef.h>

/* Errors: ERR_ARG names the type. */
ds_status dsi_reserved_check(ds_ctx *ctx, const char *type, const uint64_t *words, size_t n);

/* The same for a struct that `given` points to, not NULL. */
#define DSI_RESERVED_CHECK(ctx, type, given)                                                       \
    dsi_reserved_check((ctx), (type), (given)->reserved,                                           \
                       sizeof((given)->reserved) / sizeof((given)->reserved[0]))

#endif
