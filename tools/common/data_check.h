/* SPDX-License-Identifier: Apache-2.0 */
/* ds_data check: what rows of training data are, read as ds_train reads them. */
#ifndef DSI_TOOLS_DATA_CHECK_H
#define DSI_TOOLS_DATA_CHECK_H

#include "data/data_files.h"

#include <deepspeed/chat.h>

#include <stdbool.h>

typedef struct data_check_options {
    const dsi_data_files *files;
    const char *tokenizer, *alpaca, *chat_template, *column_map; /* as the flags; the last two may
                                                                    be NULL */
    uint64_t skip_bad;
    bool append_eos;
} data_check_options;

/* What --alpaca means for data with this template, NULL: none. Error: ERR_ARG. */
ds_status data_alpaca(ds_ctx *ctx, const char *flag, const ds_chat *chat, uint64_t *alpaca_out);

/* Prints a table a file to stdout. Errors: those of opening and reading. */
ds_status data_check(ds_ctx *ctx, const data_check_options *options);

#endif
