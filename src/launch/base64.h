/* SPDX-License-Identifier: Apache-2.0 */
/* URL-safe base64 with padding (RFC 4648, section 5): for what launchers pass to one another. */
#ifndef DSI_LAUNCH_BASE64_H
#define DSI_LAUNCH_BASE64_H

#include "base/buf.h"

void dsi_base64_encode(dsi_buf *buf, const void *data, size_t n);
/* Appends the bytes of the text; false when it is no base64. */
bool dsi_base64_decode(dsi_buf *buf, const char *text, size_t n);

#endif
