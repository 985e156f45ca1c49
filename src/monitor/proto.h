/* SPDX-License-Identifier: Apache-2.0 */
/* The wire format of protocol buffers, as far as records of runs need it: whole numbers, texts,
 * messages inside of messages. Fields are appended to a buffer in the order of the calls. */
#ifndef DSI_MONITOR_PROTO_H
#define DSI_MONITOR_PROTO_H

#include "base/buf.h"

#include <stdint.h>

void dsi_proto_whole(dsi_buf *out, uint32_t field, uint64_t value);
/* NULL writes nothing. */
void dsi_proto_text(dsi_buf *out, uint32_t field, const char *text);
/* A message as a field; what could not be built makes `out` fail too. */
void dsi_proto_message(dsi_buf *out, uint32_t field, const dsi_buf *message);

#endif
