/* SPDX-License-Identifier: Apache-2.0 */
/* The rendezvous of a job: a small key-value store over TCP through which ranks meet, compare
 * digests, say where they stand, and learn who died. The only protocol of ours on a wire; tensors
 * never pass here.
 *
 * The server runs in rank 0 or in the launcher; net_open.c and the launcher call this. Each side
 * proves that it knows the secret of the job (HMAC-SHA256 of both sides' random numbers), and every
 * later frame carries a code that only the two can make. Without a secret only loopback addresses
 * are served and joined. docs/internals/rendezvous.md has the protocol.
 *
 * Thread rule: server and client have a thread of their own each; any thread may call them,
 * requests of one client are served one at a time.
 */
#ifndef DSI_COMM_RENDEZVOUS_H
#define DSI_COMM_RENDEZVOUS_H

#include <deepspeed/context.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
    DSI_RDV_KEY_BYTES = 200,       /* longest key: printable ASCII, no space */
    DSI_RDV_VALUE_BYTES = 1 << 20, /* largest value */
    DSI_RDV_TEXT_BYTES = 512,      /* what, reasons, status texts */
    DSI_RDV_MAX_RANKS = 65536
};

#define DSI_RDV_STORE_BYTES ((size_t)256 << 20) /* all keys and values of a job */

typedef struct dsi_rdv_options {
    const char *host;   /* MASTER_ADDR: a name, an IPv4 or IPv6 address */
    uint16_t port;      /* MASTER_PORT; 0 (server only): any free one */
    const char *secret; /* DS_JOB_SECRET; NULL or "": none, then only loopback */
    uint32_t size;      /* ranks of the job */
    uint32_t rank;      /* client only */
    double timeout;     /* client only: seconds to keep trying to join */
} dsi_rdv_options;

/* ---- server ---- */

typedef struct dsi_rdv_server dsi_rdv_server;

/* Listens, on every address when there is a secret, and starts the thread. ctx is used for errors
 * of this call alone. Errors: ERR_CONFIG (a secret is needed), ERR_IO (address and reason). */
ds_status dsi_rdv_serve(ds_ctx *ctx, const dsi_rdv_options *options, dsi_rdv_server **server_out);
uint16_t dsi_rdv_server_port(const dsi_rdv_server *server);
/* Before it closes, waits up to `linger` seconds for the ranks to leave. Accepts NULL. */
void dsi_rdv_server_stop(dsi_rdv_server **server, double linger);

/* ---- client ---- */

typedef struct dsi_rdv dsi_rdv;

/* Connects and proves; retries until the timeout, since the server may start later. Errors:
 * ERR_PEER with every address tried and its reason; ERR_CONFIG when the server refuses (secret,
 * size, a rank that is there already). */
ds_status dsi_rdv_join(ds_ctx *ctx, const dsi_rdv_options *options, dsi_rdv **rdv_out);

/* Says good-bye, so that nobody takes the closed connection for a death; frees. Accepts NULL. */
void dsi_rdv_leave(dsi_rdv **rdv);

ds_status dsi_rdv_put(dsi_rdv *rdv, const char *key, const void *value, size_t n);

/* Where this rank stands: sent by the client's thread with each heartbeat (twice a second). */
void dsi_rdv_beat(dsi_rdv *rdv, uint64_t step, uint64_t sequence, const char *what);

/* What is known of a rank, as text: "rank 3 (10.0.0.2, step 12, call 55, "grad layer 3", last heard
 * 0.4 s ago)". text_out has DSI_RDV_TEXT_BYTES. */
ds_status dsi_rdv_status(dsi_rdv *rdv, uint32_t rank, double timeout, char *text_out);

/* Ends every other rank's waits with ERR_PEER and this reason. */
void dsi_rdv_abort(dsi_rdv *rdv, const char *reason);
/* The same in the place of a rank that is gone: the text is whole, it says which one. */
void dsi_rdv_abort_for(dsi_rdv *rdv, const char *text);

/* Waits until a key is there that rank `from` puts; a copy is made, the caller frees it. timeout in
 * seconds. Meanwhile, and at the end, says which ranks have not joined. Errors: ERR_PEER: not there
 * in time, or a rank died. */
ds_status dsi_rdv_get_from(dsi_rdv *rdv, uint32_t from, const char *key, double timeout,
                           void **value_out, size_t *n_out);

/* Waits until a rank besides this one has joined. Errors: ERR_PEER. */
ds_status dsi_rdv_wait_for_another(dsi_rdv *rdv);

/* Whether some rank died, gave up, or the server is gone: the reason in text_out
 * (DSI_RDV_TEXT_BYTES). A few nanoseconds when all is well. *rank_out (may be NULL): who,
 * UINT32_MAX for the server. */
bool dsi_rdv_failed(dsi_rdv *rdv, char *text_out, uint32_t *rank_out);

/* A TCP port of this host that nobody has now, for a server that is started later. It is not among
 * those that the kernel gives to outgoing connections, one of which could take it meanwhile.
 * Errors: ERR_IO. */
ds_status dsi_rdv_free_port(ds_ctx *ctx, uint16_t *port_out);

#endif
