/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of the network communicator: the shared world, its groups, calls under way.
 *
 * Shared by net_*.c alone. Invariants:
 *  1. The n-th collective of a group has the same tags on all of its ranks; every rank sends each
 *     other one a head that says what it calls. Data follows when it does not fit behind the head.
 *  2. A phase ends when all of its messages are done; only then the next one is begun, staging is
 *     moved, or results are written where data lay that was being sent.
 *  3. Whoever waits moves the calls of every group of the world.
 *  4. world->failed is set once; every later wait ends with ERR_PEER and its reason.
 *  5. What the groups of a world share, their calls under way, and the wire are touched with
 *     world->lock held: a thread that waits moves the calls of the other threads too. Nobody holds
 *     it while it sleeps or returns to the caller.
 */
#ifndef DSI_COMM_NET_IMPL_H
#define DSI_COMM_NET_IMPL_H

#include "comm/comm_call.h"
#include "comm/net.h"
#include "comm/rank_names.h"
#include "comm/rendezvous.h"
#include "comm/wire.h"

#include <pthread.h>

enum {
    NET_OPS = 64,        /* calls started and not waited for, of a group */
    NET_INLINE = 2048,   /* bytes of data that travel behind a head */
    NET_GROUP_BITS = 10, /* groups of a world */
    NET_NUMBER_BITS = 8  /* of calls; messages of one tag come in order, so this may wrap */
};

/* Two ranks exchange whole tensors up to this size, instead of slices and then results. */
#define NET_DIRECT_BYTES ((size_t)256 << 10)

typedef struct net_head {
    dsi_call_info info;
    uint64_t bytes; /* that this rank sends to the one that reads this */
} net_head;

typedef struct net_packet {
    net_head head;
    char data[NET_INLINE];
} net_packet;

typedef struct net_message {
    uint64_t handle;
    uint32_t peer; /* in the group */
    bool open, receive, is_head;
    size_t bytes;
} net_message;

typedef enum net_phase { NET_FIRST, NET_SECOND, NET_DONE } net_phase;

typedef struct net_op {
    bool used;
    dsi_comm_ticket ticket;
    dsi_comm_call call;
    dsi_call_info info;
    net_phase phase;
    bool sliced; /* ALL_REDUCE, BROADCAST: slices first, then the results of all */
    uint32_t tag_number;
    net_packet *packets_in, *packets_out; /* size of each */
    bool *here;                           /* size: whose head has come */
    char **base;                          /* size: received data of a peer, parts in a row; NULL:
                                             it went to its place at once */
    const void **inputs;                  /* size: of a reduction */
    net_message *messages;
    uint32_t n_messages, max_messages, n_open;
    char *stage;
    size_t stage_bytes, stage_used;
    double begin, arrived, end;
} net_op;

struct net_group;

/* What all groups of this process share. */
typedef struct net_world {
    ds_ctx *ctx; /* of the opening */
    pthread_mutex_t lock;
    dsi_wire *wire;
    dsi_rdv *rdv;            /* NULL: none */
    dsi_rdv_server *server;  /* of rank 0 */
    struct net_group *first; /* all groups */
    const dsi_comm *named;   /* a group of all ranks whose names they have; NULL: none */
    uint32_t n_users, next_id;
    bool failed;
    char reason[DSI_RDV_TEXT_BYTES];
} net_world;

typedef struct net_group {
    dsi_comm head;
    net_world *world;
    struct net_group *next;
    uint32_t id;
    uint32_t *members; /* size: ranks of the wire */
    uint32_t n_collectives;
    uint64_t active; /* bit i: ops[i] is used and not done */
    net_op ops[NET_OPS];
} net_group;

typedef struct net_piece {
    char *at;
    size_t bytes;
} net_piece;

/* net_piece.c: where the data of part `index` for and from a peer lies in a phase. Of a reduction's
 * receive `at` is NULL: it goes to staging. */
net_piece net_send_piece(const net_group *group, const net_op *op, uint32_t peer, uint32_t index);
net_piece net_recv_piece(const net_group *group, const net_op *op, uint32_t peer, uint32_t index);
size_t net_send_bytes(const net_group *group, const net_op *op, uint32_t peer);
size_t net_recv_bytes(const net_group *group, const net_op *op, uint32_t peer);
/* Whether the call is done in slices. */
bool net_is_sliced(const net_group *group, const dsi_comm_call *call);
/* What a phase has left to do when its messages are done: reductions, own copies. */
void net_finish_phase(const net_group *group, net_op *op);

/* net_op.c */
ds_status net_op_begin(net_group *group, net_op *op, const dsi_comm_call *call);
/* One round over the messages; may begin the next phase, or end the call. */
ds_status net_op_advance(net_group *group, net_op *op);
void net_op_cancel(net_group *group, net_op *op);
void net_op_free(net_op *op);
/* Makes the staging; only between phases. */
ds_status net_op_stage(net_group *group, net_op *op, size_t bytes);

/* net_fail.c. All with the lock held, by whatever thread moves the call: they leave the reason in
 * the world; net_told hands it to the context of the caller. */
ds_status net_fail(net_world *world, const char *format, ...) DS_PRINTF(2, 3);
/* A rank of the world in messages. */
dsi_rank_name net_rank_name(const net_world *world, uint32_t rank);
ds_status net_fail_wire(net_world *world, const char *call);
ds_status net_fail_disagree(const net_group *group, const net_op *op, uint32_t peer);
ds_status net_fail_late(const net_group *group, const net_op *op, double waited);
/* ERR_PEER when the world failed, here or by a notice of the rendezvous. */
ds_status net_check(net_world *world);
ds_status net_told(const net_group *group, ds_status status);

/* net_comm.c: a group of the world; takes over members on success. */
ds_status net_group_make(net_world *world, uint32_t *members, uint32_t size, uint32_t rank,
                         uint32_t id, double timeout, net_group **group_out);

/* net_split.c */
ds_status net_split(dsi_comm *comm, uint32_t color, uint32_t key, dsi_comm **comm_out);
ds_status net_twin(dsi_comm *comm, ds_ctx *ctx, dsi_comm **comm_out);

/* net_world.c: opens wire and rendezvous, and makes the group of all ranks. name: "mpi", "ucx". */
ds_status net_world_open(ds_ctx *ctx, const dsi_comm_world *place, const char *name,
                         dsi_comm **comm_out);
void net_world_release(net_world *world);

/* net_module.c: loads the module of a wire and opens it. */
ds_status net_module_open(ds_ctx *ctx, const char *name, const dsi_wire_setup *setup,
                          dsi_wire **wire_out);
/* Which MPI's launcher started this process: "openmpi", "mpich", NULL. */
const char *net_module_mpi(void);

#endif
