/* SPDX-License-Identifier: Apache-2.0 */
/* Lines of a conversation that begin with "/". */
#ifndef DSI_TOOLS_CHAT_COMMAND_H
#define DSI_TOOLS_CHAT_COMMAND_H

#include "common/chat_talk.h"

/* Does what the line says; *end_out: the conversation ends. Errors: ERR_ARG, those of writing. */
ds_status chat_command(ds_ctx *ctx, chat_talk *talk, const char *line, bool *end_out);

#endif
