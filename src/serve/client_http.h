/* SPDX-License-Identifier: Apache-2.0 */
/* One exchange of MII's client (client.c) with a server: HTTP over a connection of its own, with
 * TLS where the address is https. */
#ifndef DSI_SERVE_CLIENT_HTTP_H
#define DSI_SERVE_CLIENT_HTTP_H

#include "base/buf.h"
#include "io/link.h"

#include <deepspeed/mii.h>

typedef struct dsi_client_peer {
    char *address;           /* as it was given */
    char *host, *port, *key; /* key NULL: none */
    dsi_trust *trust;        /* NULL: plain HTTP */
    double seconds;          /* without a byte of an answer */
} dsi_client_peer;

/* Of address, key and trust; what it fills is freed with dsi_client_peer_close, also after an
 * error. Errors: ERR_ARG, ERR_UNSUPPORTED. */
ds_status dsi_client_peer_open(ds_ctx *ctx, const ds_client_params *params, dsi_client_peer *peer);
void dsi_client_peer_close(dsi_client_peer *peer);
/* POST /mii/NAME: status and body of the answer. Errors: ERR_IO, ERR_FORMAT. */
ds_status dsi_client_post(ds_ctx *ctx, const dsi_client_peer *peer, const char *name,
                          const char *body, int *code_out, dsi_buf *body_out);

#endif
