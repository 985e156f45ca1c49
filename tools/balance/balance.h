/* SPDX-License-Identifier: Apache-2.0 */
/* ds_serve as the front of several replicas: it has no model, but passes requests to servers that
 * do.
 *
 * Two threads, as in serve/front.h: the HTTP thread reads requests and writes answers; the relay
 * thread is one poll loop over the sockets of the replicas, the outputs of those that it started,
 * and its probes. Everything below is under balance.lock, which the relay thread holds but while it
 * polls.
 *
 * Invariants:
 *   1 a request whose answer has begun is never sent to another replica; its client is told;
 *   2 one that was sent whole and lost goes to one more replica, not to a third: it may be what
 *     ended them;
 *   3 a connection that waits is suspended, and resumed by the relay thread alone;
 *   4 of a stream whole frames are passed on: what a replica that is lost has begun is not shown.
 */
#ifndef DS_TOOLS_BALANCE_H
#define DS_TOOLS_BALANCE_H

#include "launch/hosts.h"
#include "launch/process.h"
#include "load/load.h"
#include "serve/front.h"

#include <netdb.h>

enum {
    BALANCE_MOST = 256,         /* replicas */
    BALANCE_MARK_BYTES = 256,   /* of a prompt's begin, a mark each */
    BALANCE_MARKS = 512,        /* of a prompt */
    BALANCE_PREFIXES = 1 << 16, /* marks that are remembered */
    BALANCE_WHY = 480,          /* bytes of a reason */
    BALANCE_WRONG_USE = 2,      /* ds_serve's exit code */
    BALANCE_SLACK = 4,          /* requests more that a replica may have for its cache */
    BALANCE_AHEAD = 1 << 20     /* bytes that a slow client may be behind */
};

typedef struct balance balance;

/* ---- call.c: one HTTP exchange with a replica ---- */
typedef enum call_place { CALL_NONE, CALL_SENDS, CALL_READS, CALL_ENDED } call_place;

typedef struct call {
    call_place place;
    dsi_link link; /* its fd -1: none */
    dsi_buf text;
    size_t n_sent;
    load_http http;
    bool reached;          /* the connection was made, its handshake, too */
    char why[BALANCE_WHY]; /* it failed: why; "": it ended well */
    load_take_fn take;
    void (*header)(void *user, const char *line);
    void *user;
} call;

/* Connects to one of the addresses and sends call->text, with a trust by https to who has this
 * name. A refusal is seen later, by call_turn. */
void call_begin(call *c, const struct addrinfo *to, const dsi_trust *trust, const char *name);
/* What poll is to wait for. */
short call_events(const call *c);
/* poll said so. Afterwards the place is CALL_ENDED, with why, or it goes on. */
void call_turn(call *c, short events);
/* Closes the connection; the buffers stay. */
void call_stop(call *c);
void call_free(call *c);

/* ---- replicas ---- */
typedef enum replica_state {
    REPLICA_STARTS, /* it has not answered yet */
    REPLICA_UP,
    REPLICA_DOWN, /* it does not answer, or says that it ends; probes go on */
    REPLICA_ENDED /* a process of ours that is gone */
} replica_state;

typedef struct replica {
    balance *b;
    size_t index;
    char label[200]; /* "replica 1 (http://host:port)" */
    char host[256], port[8], key[512];
    const dsi_trust *trust;   /* of https; NULL: http */
    struct addrinfo *address; /* NULL: its port is not known yet */
    replica_state state;
    char why[BALANCE_WHY]; /* DOWN or ENDED */
    json_t *models;        /* what /v1/models listed; NULL: not asked yet */
    dsi_buf metrics;       /* of the last probe */
    int64_t n_running, n_taken;
    /* its probe: /health, then once /v1/models, then /metrics */
    call probe;
    int probe_step;
    double probe_due, probe_began;
    dsi_buf probed;
    /* of ours: its process */
    bool own;
    dsi_process process;
    dsi_words argv;
    char *program;
    dsi_buf line[2]; /* of its outputs, not whole yet */
    bool told;       /* its first line came */
    /* its next life, see restart.c */
    size_t n_beside;           /* replicas of its machine */
    bool was_up;               /* one that never was is not started again */
    bool refused;              /* it ended at once: it was used wrongly */
    double up_since;           /* 0: it is not, in this life */
    double restart_due;        /* 0: it is not started again */
    int64_t n_row, n_restarts; /* restarts since it was well; in all */
    /* weights, see visit.c */
    char *wanted; /* the folder that it should have; NULL: that of its start */
    bool stale;   /* it may have other weights */
} replica;

/* ---- route.c: which replica; pure ---- */
typedef struct route_view {
    bool may; /* it is up, has the model, was not tried */
    int64_t n_running, n_taken;
} route_view;

typedef struct route_prefixes {
    struct {
        uint64_t mark;
        uint32_t replica; /* + 1; 0: empty */
    } items[BALANCE_PREFIXES];
} route_prefixes;

typedef struct route_marks {
    uint64_t items[BALANCE_MARKS];
    size_t n;
    uint64_t state;
    size_t n_bytes;
} route_marks;

void route_mark(route_marks *marks, const void *data, size_t n);
/* The replica for a prompt with these marks; SIZE_MAX: none may. *cached_out: blocks of its prefix
 * that the replica has had. */
size_t route_pick(const route_prefixes *prefixes, const route_view *views, size_t n,
                  const route_marks *marks, size_t *cached_out);
void route_remember(route_prefixes *prefixes, const route_marks *marks, size_t k);

/* ---- visit.c: a request that goes to each replica in turn ---- */
typedef enum visit_kind { VISIT_SLOTS, VISIT_RELOAD } visit_kind;

/* What a reload did to a replica. */
typedef enum visit_fate {
    FATE_NONE, /* it was not asked */
    FATE_LOADED,
    FATE_KEPT, /* it refused, or went back */
    FATE_LOST  /* it did not answer, and may have loaded it */
} visit_fate;

typedef struct visit {
    visit_kind kind;
    size_t next; /* where it is, or goes */
    json_t *slots;
    /* of a reload */
    char *path;    /* NULL: what each of them serves */
    bool own_only; /* those that the front started */
    bool back;     /* one failed: the others go back */
    visit_fate fate[BALANCE_MOST];
    char *was[BALANCE_MOST]; /* what those served that were asked, where path is given */
    size_t n_done;
    dsi_buf why;
    unsigned status;
    double began, call_began;
} visit;

typedef struct ask ask;
visit *visit_make(visit_kind kind, const char *path);
void visit_free(visit *v);
/* To the first replica, or to the end. With the lock, as the next three. */
void visit_begin(ask *a);
/* Of a reload: a replica that answers for too long is lost. */
void visit_tick(ask *a, double now);
/* Its call ended well. */
void visit_turn(ask *a);
/* Its replica failed. */
void visit_lost(ask *a, const char *why);

/* ---- requests ---- */
struct ask {
    struct ask *next;
    balance *b;
    struct MHD_Connection *connection;
    int fd;
    int holders; /* HTTP thread, relay thread */
    const char *method;
    char path[2048];
    visit *visit;    /* NULL: it goes to one */
    dsi_buf sent;    /* the body's bytes */
    char model[512]; /* "": any */
    route_marks marks;
    bool of_response;
    /* by the relay thread */
    replica *at; /* NULL: not sent */
    call call;
    bool tried[BALANCE_MOST];
    int n_lost;   /* replicas that it was lost on */
    bool begun;   /* bytes of an answer that will be passed on came */
    bool streams; /* that answer is a stream, */
    bool ended;   /* whose last frame came, if not its connection's end */
    bool suspended, gone, done;
    unsigned status;
    char type[128], ignored[1024], request_id[128];
    dsi_buf out;
    size_t n_whole; /* of a stream: bytes of it up to the end of a frame, which may be passed on */
    size_t n_seen;  /* in which frames' ends were looked for */
    size_t n_out;   /* of the whole ones, the client has */
};

struct balance {
    ds_ctx *ctx; /* of the main thread, then of the relay thread */
    const serve_options *o;
    pthread_mutex_t lock;
    int wake; /* eventfd */
    door door;
    replica *replicas;
    size_t n;
    dsi_words env, ssh_args;
    dsi_trust *upstream_trust, *replica_trust; /* of https; NULL: none */
    char replica_cert[DSI_TLS_PEM_BYTES], replica_secret[DSI_TLS_PEM_BYTES]; /* --replica_tls */
    route_prefixes *prefixes;
    ask *queued, **queued_end, *running;
    int64_t n_asks;
    bool stop, settled, all_ended, reloads;
    json_t *folders; /* of reloads, by the model's name: for those whose name was not known then */
    int64_t n_moved, n_told, n_prefix; /* for /metrics */
    double began;
    int64_t created;
};

/* Fills labels, addresses, states; starts processes. Before any thread. Errors name the flag. */
ds_status replicas_open(ds_ctx *ctx, balance *b);
/* Lines of outputs, ends of processes. With the lock. */
void replica_hear(replica *r, short out, short err);
/* Those that were started here load their weights anew, one after the other. */
void replicas_reload(balance *b);
/* The name in its certificate. */
const char *replica_tls_name(const replica *r);
/* Starts the process of r, whose flags are there. With the lock, once the relay thread runs. */
ds_status replica_start(ds_ctx *ctx, replica *r);
/* They are asked to end, and waited for. */
void replicas_close(balance *b);
/* DOWN or ENDED, with its requests moved or told. With the lock. */
void replica_fails(replica *r, replica_state state, const char *why);
bool replica_has(const replica *r, const char *model);
/* It is up, with the weights that it should have, and has the model. */
bool replica_serves(const replica *r, const char *model);
/* Its model that is no adapter: name; the folder or file by its own word. NULL: not known. */
const char *replica_base(const replica *r);
const char *replica_folder(const replica *r);
void replica_put_folder(replica *r, const char *path);
void replica_want(replica *r, const char *path);

/* ---- restart.c: replicas that have ended ---- */
/* One of ours ended: whether and when it is started again. With the lock. */
void restart_plan(replica *r);
/* Starts those that are due. Of the main thread: what it starts ends with the thread. */
void restart_due(balance *b);

/* ---- relay.c: the relay thread ---- */
void *relay_run(void *balance);
void relay_wake(balance *b);
/* The replica of a request that runs there failed. With the lock. */
void ask_lost(ask *a, const char *why);
void ask_release(ask *a);
/* With the lock: to replica k; it runs nowhere any more; it ends with an error of the front's own;
 * its client sees what came. */
void ask_send(ask *a, size_t k);
void ask_leave(ask *a);
void ask_fail(ask *a, unsigned status, const char *code, const char *message);
void ask_wake(ask *a);

/* ---- probe.c ---- */
/* Begins a probe that is due, ends one that takes too long. With the lock. */
void probe_tick(replica *r, double now);
void probe_turn(replica *r, short events);

/* ---- balance_http.c: paths and bodies ---- */
ds_status balance_listen(ds_ctx *ctx, balance *b);

/* ---- balance_pages.c: what the front says itself. With the lock ---- */
void pages_health(balance *b, dsi_buf *out, unsigned *status_out);
void pages_ready(balance *b, dsi_buf *out, unsigned *status_out);
void pages_models(balance *b, dsi_buf *out, unsigned *status_out);
/* false: there is no such model. */
bool pages_model(balance *b, const char *name, dsi_buf *out);
void pages_metrics(balance *b, dsi_buf *out);

/* ---- balance.c ---- */
/* The whole of it: until a signal. */
ds_status balance_run(ds_ctx *ctx, const serve_options *o);

#endif
