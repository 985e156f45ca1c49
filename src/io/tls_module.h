/* SPDX-License-Identifier: Apache-2.0 */
/* What the module libdeepspeed_tls.so gives: TLS over a socket, as a client. Built where GnuTLS is
 * (src/io/tls), loaded by link.c at the first address of https, so that the library neither links
 * nor needs it.
 *
 * No call waits on a socket that does not. Texts of errors are written to DSI_TLS_ERROR_BYTES.
 */
#ifndef DSI_IO_TLS_MODULE_H
#define DSI_IO_TLS_MODULE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define DSI_TLS_SYMBOL "dsi_tls_table"
enum { DSI_TLS_VERSION = 1, DSI_TLS_ERROR_BYTES = 512, DSI_TLS_PEM_BYTES = 2048 };

/* Instead of a number of bytes. */
enum { DSI_TLS_WAIT = -1, DSI_TLS_FAILED = -2 };

typedef struct dsi_tls_trust dsi_tls_trust;     /* whose certificates are taken */
typedef struct dsi_tls_session dsi_tls_session; /* of one connection */

typedef struct dsi_tls_ops {
    uint32_t version;
    /* ca_file: PEM; ca_text: the same as a text; both NULL: those of the machine. check false:
     * anybody's. NULL: error says why. */
    dsi_tls_trust *(*trust)(const char *ca_file, const char *ca_text, bool check, char *error);
    void (*distrust)(dsi_tls_trust *trust);
    /* host: a name or an address, for which the certificate must be. The trust outlives it. NULL:
     * error says why. */
    dsi_tls_session *(*begin)(dsi_tls_trust *trust, int fd, const char *host, char *error);
    /* 0: the handshake is done. */
    int (*handshake)(dsi_tls_session *session, char *error);
    /* Bytes; of recv 0 is the peer's end of the session. */
    ssize_t (*recv)(dsi_tls_session *session, void *data, size_t n, char *error);
    ssize_t (*send)(dsi_tls_session *session, const void *data, size_t n, char *error);
    bool (*waits_to_send)(const dsi_tls_session *session); /* behind DSI_TLS_WAIT; else to read */
    bool (*pending)(const dsi_tls_session *session); /* bytes that no poll would report are there */
    void (*end)(dsi_tls_session *session);           /* says goodbye; the socket stays open */
    /* A certificate for `host` that is its own authority, and its key: PEM, each of
     * DSI_TLS_PEM_BYTES. 0: they are there. */
    int (*self_sign)(const char *host, char *cert, char *key, char *error);
} dsi_tls_ops;

#endif
