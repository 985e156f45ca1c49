/* SPDX-License-Identifier: Apache-2.0 */
/* A connection to a server, plain or with TLS, under one interface: send, recv, what to poll for.
 * Used by the clients of HTTP: MII's (src/serve/client.c), the front of replicas (tools/balance),
 * ds_bench --serve (tools/load). It speaks no HTTP and finds no addresses.
 *
 * TLS is the module libdeepspeed_tls.so (tls_module.h), which is loaded with the first trust.
 */
#ifndef DSI_IO_LINK_H
#define DSI_IO_LINK_H

#include "io/tls_module.h"

#include <deepspeed/context.h>

/* Whose certificates are taken. NULL, where one is expected: no TLS. */
typedef struct dsi_trust dsi_trust;

typedef struct dsi_trust_params {
    const char *ca_file; /* PEM; default NULL: the authorities of this machine */
    const char *ca_text; /* instead of the file */
    bool insecure;       /* any certificate, of anybody */
    const char *hint;    /* ends the error of a certificate: what the user can do; borrowed for the
                            trust's life */
} dsi_trust_params;

/* Errors: ERR_UNSUPPORTED names the package that lacks; ERR_ARG the file. */
ds_status dsi_trust_open(ds_ctx *ctx, const dsi_trust_params *params, dsi_trust **trust_out);
void dsi_trust_close(dsi_trust **trust);

/* A certificate that is its own authority, and its key, PEM. Errors: ERR_UNSUPPORTED. */
ds_status dsi_trust_self_sign(ds_ctx *ctx, const char *host, char cert[DSI_TLS_PEM_BYTES],
                              char key[DSI_TLS_PEM_BYTES]);

typedef struct dsi_link {
    int fd; /* -1: none */
    const dsi_trust *trust;
    dsi_tls_session *session; /* NULL: plain */
    bool ready;               /* no handshake is left */
    char why[DSI_TLS_ERROR_BYTES];
} dsi_link;

/* Takes the socket, whose connection may still be on its way. host: a name or an address, for which
 * the certificate must be. An error is that of the first send. */
void dsi_link_open(dsi_link *l, int fd, const dsi_trust *trust, const char *host);
/* As send and recv, without signals; the first sends bring the handshake to its end. -1: errno, or,
 * where that is EPROTO, TLS failed; dsi_link_why has the words of both. */
ssize_t dsi_link_send(dsi_link *l, const void *data, size_t n);
ssize_t dsi_link_recv(dsi_link *l, void *data, size_t n);
const char *dsi_link_why(const dsi_link *l, int error);
/* What to poll for. */
short dsi_link_events(const dsi_link *l, bool reads, bool sends);
/* Bytes were read that poll does not report any more: recv again. */
bool dsi_link_pending(const dsi_link *l);
void dsi_link_close(dsi_link *l);

#endif
