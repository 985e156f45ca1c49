/* SPDX-License-Identifier: Apache-2.0 */
/* Which row a word of the command line means. Only args.c includes it. */
#ifndef DSI_TOOLS_ARGS_FIND_H
#define DSI_TOOLS_ARGS_FIND_H

#include "common/args.h"

/* The row of the n bytes at name: of that name, else what another program calls so (spec->others),
 * else, where the spec allows it, the only one that begins so. *may_be_alone_out: without a value
 * the flag says nothing. Errors: ERR_ARG, with what to write instead. */
ds_status dsi_args_find(ds_ctx *ctx, const dsi_args_spec *spec, const char *name, size_t n,
                        const dsi_arg **row_out, bool *may_be_alone_out);

#endif
