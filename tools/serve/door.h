/* SPDX-License-Identifier: Apache-2.0 */
/* The door of a server of a model, and of a front of replicas: the port, keys, paths, bodies in,
 * answers out.
 *
 * One HTTP thread calls all of it. An exchange is a request of a connection; what it waits for, a
 * job of front.h or an ask of balance.h, is its owner's.
 */
#ifndef DS_TOOLS_SERVE_DOOR_H
#define DS_TOOLS_SERVE_DOOR_H

#include "base/buf.h"
#include "serve/serve_options.h"

#include <jansson.h>
#include <microhttpd.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

typedef struct door door;
typedef struct exchange exchange;

/* An error for the client. */
typedef struct api_error {
    unsigned status;
    const char *type, *code; /* code NULL: none */
    char param[64];          /* "" none */
    char message[512];
} api_error;

/* ---- door.c: from a connection to a route ---- */
enum {
    ROUTE_OPEN = 1,   /* without a key */
    ROUTE_PREFIX = 2, /* and what stands behind the path */
    ROUTE_BARE = 4    /* of a front: the replica does not know "model" there */
};

typedef struct route {
    const char *method, *path;
    enum MHD_Result (*answer)(exchange *x, const char *behind); /* behind the path of a prefix */
    unsigned flags;
} route;

/* Of a connection. */
struct exchange {
    door *door;
    struct MHD_Connection *connection;
    const route *route; /* NULL: there is none */
    dsi_buf body;
    dsi_buf ignored; /* names of fields without effect, for a header */
    bool seen, refused;
    void *waits; /* the job or ask that it waits for; NULL: none */
};

struct door {
    void *owner; /* a front, or a balance */
    const serve_options *options;
    const route *routes; /* [n_routes] */
    size_t n_routes;
    const char *unknown; /* the message where no path fits */
    /* An exchange that waited goes on; its connection ends before that. */
    enum MHD_Result (*resume)(exchange *x);
    void (*drop)(void *waits);
    dsi_buf key_file, cert_file, secret_file;
    char **keys; /* [n_keys], of key_file; none: everybody may ask */
    size_t n_keys;
    const char *tls_cert, *tls_key; /* PEM; NULL: without TLS */
    struct MHD_Daemon *daemon;
    atomic_long n_exchanges; /* requests that have begun and are not answered whole */
    size_t n_body;           /* bytes of bodies; of the HTTP thread alone */
    pthread_mutex_t *lock;   /* the owner's */
    bool draining;           /* no new text begins. With the lock */
    int64_t n_answers[6];    /* by first digit of the status. With the lock */
};

/* Reads the keys and certificates that the options name. Freed with door_close, also after an
 * error. */
ds_status door_prepare(ds_ctx *ctx, const serve_options *o, door *d);
void door_close(door *d);
/* The body as an object, a new reference. NULL: *e is filled. */
json_t *door_json(const exchange *x, api_error *e);
/* The body is not needed any more. */
void door_drop_body(exchange *x);
/* The callbacks of listen.c. */
enum MHD_Result door_handle(void *door, struct MHD_Connection *c, const char *path,
                            const char *method, const char *version, const char *data,
                            size_t *n_data, void **of_exchange);
void *door_begin(void *door, const char *uri, struct MHD_Connection *c);
void door_end(void *door, struct MHD_Connection *c, void **of_exchange,
              enum MHD_RequestTerminationCode code);

/* ---- reply.c: an answer: status, headers, errors ---- */
bool api_fail(api_error *e, unsigned status, const char *code, const char *param,
              const char *format, ...) __attribute__((format(printf, 5, 6)));
/* Names a member without effect, once, for the header of reply_response. */
void api_ignore(dsi_buf *ignored, const char *name);
void api_error_print(const api_error *e, dsi_buf *out);
/* NULL: no memory, the connection is closed. */
enum MHD_Result reply_response(exchange *x, unsigned status, struct MHD_Response *response);
/* Takes the text over. */
enum MHD_Result reply_text(exchange *x, unsigned status, const char *type, dsi_buf *text);
/* As reply_text, of JSON. */
enum MHD_Result reply_json(exchange *x, unsigned status, dsi_buf *text);
enum MHD_Result reply_error(exchange *x, const api_error *e);
enum MHD_Result reply_refusal(exchange *x, unsigned status, const char *code, const char *message);
/* An answer of such a text, without a status yet; the text is taken over. */
struct MHD_Response *reply_whole(dsi_buf *text, const char *type);
/* One whose text comes piece by piece from read(user, ...). */
struct MHD_Response *reply_stream(MHD_ContentReaderCallback read, void *user, const char *type);

/* ---- listen.c: the port, signals ---- */
ds_status listen_start(ds_ctx *ctx, door *d);
/* The port that it listens on. */
unsigned listen_port(const door *d);
/* Ends it: no new connection is made, what came is answered first, for at most 2 s. */
void listen_end(door *d);
/* Those that end it, and SIGHUP, wait from now on, in all threads that are made. */
void listen_hold_signals(sigset_t *signals);
/* Every connection needs a descriptor. */
void listen_raise_descriptors(int64_t n_connections);

#endif
