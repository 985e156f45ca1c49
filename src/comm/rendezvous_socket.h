/* SPDX-License-Identifier: Apache-2.0 */
/* TCP sockets of the rendezvous: addresses as text, listening, connecting. IPv4 and IPv6.
 *
 * Called by rendezvous_server.c and rendezvous_client.c.
 */
#ifndef DSI_COMM_RENDEZVOUS_SOCKET_H
#define DSI_COMM_RENDEZVOUS_SOCKET_H

#include "comm/rendezvous.h"
#include <sys/socket.h>

enum { RDV_ADDRESS_BYTES = 64 };

/* "10.0.0.1:2900", "[fe80::1]:2900". */
void rdv_address_text(const struct sockaddr *address, socklen_t n, char *text_out);

/* A listening socket, non-blocking. Without a secret: on the loopback address that host is (else
 * ERR_CONFIG); with one: on all addresses. *port_out is the port in use. */
ds_status rdv_listen(ds_ctx *ctx, const dsi_rdv_options *options, int *fd_out, uint16_t *port_out);

/* One round over the addresses of the host. DS_IN_PROGRESS: none answered, why_out says why for
 * each; try again later. Errors: ERR_CONFIG. */
ds_status rdv_connect(ds_ctx *ctx, const dsi_rdv_options *options, double timeout, int *fd_out,
                      char *why_out, size_t why_bytes);

/* No delay of small frames; a silent host is noticed by the kernel within 20 s. */
void rdv_tune(int fd);

#endif
