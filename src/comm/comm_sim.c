/* The simulated communicator. See sim.h.
 *
 * Invariants, all under world->lock:
 *  1. Rank r's collective number n lies in r's ring at n % RING, until every rank has read it.
 *  2. An operation's input is copied ("ready") between its start and its wait; from then on the
 *     copy alone is read, so a rank that is done may change its input at once.
 *  3. A rank computes its own results, from the copies of all, by the rules of comm.h written down
 *     as plainly as possible.
 *  4. world->failed is set once; every wait then ends with ERR_PEER and world->reason.
 */
#include "comm/sim.h"

#include "base/clock.h"
#include "base/rng.h"
#include "comm/comm_call.h"
#include "comm/reduce.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RING = 64, REASON_BYTES = 512 };

typedef enum sim_state { SIM_FREE, SIM_STARTED, SIM_READY, SIM_DONE } sim_state;

typedef struct sim_op {
    sim_state state;
    dsi_comm_ticket ticket; /* 0 after its wait */
    uint64_t number;        /* of collectives from 1; of messages to or from one peer from 1 */
    dsi_comm_call call;
    dsi_call_info info;
    void *copy; /* the parts' inputs one after another */
    size_t copy_bytes;
    size_t *counts;     /* of an all-to-all: counts_in of each part, one after another */
    uint32_t n_readers; /* ranks that computed from the copy */
    double begin, arrived, end;
} sim_op;

typedef struct sim_rank {
    sim_op coll[RING];
    sim_op pair[RING];
    uint64_t n_coll;
    uint64_t n_sent[DSI_SIM_MAX_RANKS], n_received[DSI_SIM_MAX_RANKS];
    bool lost, left;
} sim_rank;

typedef struct sim_world {
    pthread_mutex_t lock;
    pthread_cond_t moved;
    dsi_comm_sim_options options;
    uint32_t size, n_users;
    bool failed;
    char reason[REASON_BYTES];
    sim_rank *ranks;
    /* split: what each rank asked for, and the new worlds by color leader */
    uint32_t *colors, *keys;
    struct sim_world **children;
    uint64_t n_splits, n_asked, n_taken;
} sim_world;

typedef struct sim_comm {
    dsi_comm head;
    sim_world *world;
    uint64_t n_random;
} sim_comm;

static const dsi_transport sim_transport;

static uint32_t random_below(sim_comm *sim, uint32_t n)
{
    const uint64_t key = sim->world->options.seed;
    return n > 1 ? (uint32_t)dsi_rng_below(key, sim->head.rank, sim->n_random++, n) : 0;
}

static void delay(sim_comm *sim)
{
    const double most = sim->world->options.max_delay;
    if (most > 0.0 && random_below(sim, 2) == 0) {
        const double seconds = most * (double)random_below(sim, 1000) / 1000.0;
        const long nanoseconds = (long)(seconds * 1e9);
        const struct timespec span = {nanoseconds / 1000000000, nanoseconds % 1000000000};
        (void)nanosleep(&span, NULL);
    }
}

static ds_status fail_world(sim_comm *sim, const char *reason)
{
    sim_world *world = sim->world;
    if (!world->failed) {
        world->failed = true;
        (void)snprintf(world->reason, sizeof world->reason, "%s", reason);
    }
    (void)pthread_cond_broadcast(&world->moved);
    return ds_fail(sim->head.ctx, DS_ERR_PEER, "%s", world->reason);
}

/* Who among the ranks has not started collective `number`, and where each stands. */
static void missing_text(const sim_world *world, uint64_t number, char *text, size_t n)
{
    size_t used = 0;
    text[0] = '\0';
    for (uint32_t r = 0; r < world->size; ++r) {
        const sim_rank *rank = &world->ranks[r];
        if (rank->n_coll >= number || used >= n) {
            continue;
        }
        const sim_op *last = &rank->coll[rank->n_coll % RING];
        used +=
            (size_t)snprintf(text + used, n - used, "%srank %u%s (%llu calls started%s%s%s)",
                             used > 0 ? ", " : "", r, rank->lost ? ", lost" : "",
                             (unsigned long long)rank->n_coll, rank->n_coll > 0 ? ", last " : "",
                             rank->n_coll > 0 ? dsi_coll_name((dsi_coll)last->info.kind) : "",
                             rank->n_coll > 0 ? last->info.what : "");
    }
}

/* Waits for a change in the world; after the deadline or the loss of a needed rank it fails. */
static ds_status wait_for_change(sim_comm *sim, const sim_op *op, double deadline)
{
    sim_world *world = sim->world;
    if (world->failed) {
        return ds_fail(sim->head.ctx, DS_ERR_PEER, "%s", world->reason);
    }
    const bool late = deadline > 0.0 && dsi_clock_seconds() > deadline;
    bool gone = false;
    const bool pair = op != NULL && dsi_coll_is_pair(op->call.kind);
    for (uint32_t r = 0; r < world->size; ++r) {
        const sim_rank *rank = &world->ranks[r];
        const bool needed = pair ? r == op->call.peer : op == NULL || rank->n_coll < op->number;
        gone = gone || (needed && (rank->lost || rank->left));
    }
    if (late || gone) {
        char missing[REASON_BYTES / 2];
        char call[160];
        char reason[REASON_BYTES];
        if (pair) {
            (void)snprintf(missing, sizeof missing, "rank %u", op->call.peer);
        } else {
            missing_text(world, op != NULL ? op->number : UINT64_MAX, missing, sizeof missing);
        }
        (void)snprintf(reason, sizeof reason, "%.160s: rank %u waits; missing: %s",
                       op != NULL ? dsi_call_info_text(&op->info, call, sizeof call) : "a slot",
                       sim->head.rank, missing);
        return fail_world(sim, reason);
    }
    struct timespec until;
    (void)clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 20000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    (void)pthread_cond_timedwait(&world->moved, &world->lock, &until);
    return DS_OK;
}

/* Copies the inputs of all parts. */
static ds_status make_ready(sim_comm *sim, sim_op *op)
{
    const dsi_comm_call *call = &op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    size_t bytes = 0;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        bytes += dsi_part_in_count(call, &call->parts[i], sim->head.rank, sim->head.size) * width;
    }
    if (bytes > op->copy_bytes) {
        free(op->copy);
        op->copy = malloc(bytes);
        op->copy_bytes = op->copy != NULL ? bytes : 0;
        if (op->copy == NULL) {
            return ds_fail(sim->head.ctx, DS_ERR_NOMEM, "no %zu bytes for a simulated call", bytes);
        }
    }
    char *to = op->copy;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        const size_t n = dsi_part_in_count(call, part, sim->head.rank, sim->head.size) * width;
        if (n > 0) {
            memcpy(to, part->in, n);
            to += n;
        }
    }
    op->state = SIM_READY;
    (void)pthread_cond_broadcast(&sim->world->moved);
    return DS_OK;
}

static sim_op *coll_of(const sim_world *world, uint32_t rank, uint64_t number)
{
    return &world->ranks[rank].coll[number % RING];
}

/* IN: the ring slot's last user has been read by all. */
static bool slot_is_free(const sim_world *world, const sim_op *op)
{
    return op->state == SIM_FREE || (op->ticket == 0 && op->n_readers == world->size);
}

/* The data of rank `from` for rank `to` inside of a part of an all-to-all. */
static size_t before(const size_t *counts, uint32_t rank)
{
    size_t sum = 0;
    for (uint32_t r = 0; r < rank; ++r) {
        sum += counts[r];
    }
    return sum;
}

static void compute_reduction(const sim_comm *sim, const dsi_comm_call *call,
                              const dsi_comm_part *part, const char *const *ins)
{
    const size_t width = ds_dtype_bytes(call->dtype);
    const dsi_reduce_job job = {call->dtype, call->dtype, call->reduction, call->factor,
                                sim->head.size};
    const void *at[DSI_SIM_MAX_RANKS];
    const bool scatter = call->kind == DSI_COLL_REDUCE_SCATTER;
    const dsi_span own = scatter ? dsi_span_of(part->count, sim->head.rank, sim->head.size)
                                 : (dsi_span){0, part->count};
    for (uint32_t r = 0; r < sim->head.size; ++r) {
        at[r] = ins[r] + own.begin * width;
    }
    if (own.count > 0) {
        dsi_reduce(&job, at, part->out, own.count);
    }
    if (scatter) {
        const size_t padding = dsi_comm_slice(part->count, sim->head.size) - own.count;
        if (padding > 0) {
            memset((char *)part->out + own.count * width, 0, padding * width);
        }
    }
}

static void compute_part(const sim_comm *sim, const dsi_comm_call *call, const dsi_comm_part *part,
                         const size_t *const *theirs, const char *const *ins)
{
    const size_t width = ds_dtype_bytes(call->dtype);
    char *out = part->out;
    for (uint32_t r = 0; r < sim->head.size; ++r) {
        size_t from = 0;
        size_t n = 0;
        if (call->kind == DSI_COLL_ALL_GATHER) {
            const dsi_span span = dsi_span_of(part->count, r, sim->head.size);
            n = span.count;
            out = (char *)part->out + span.begin * width;
        } else if (call->kind == DSI_COLL_BROADCAST) {
            n = r == call->peer ? part->count : 0;
        } else if (call->kind == DSI_COLL_ALL_TO_ALL) {
            n = part->counts_out[r];
            from = before(theirs[r], sim->head.rank);
            out = (char *)part->out + before(part->counts_out, r) * width;
        }
        if (n > 0) {
            memcpy(out, ins[r] + from * width, n * width);
        }
    }
    if (dsi_coll_reduces(call->kind)) {
        compute_reduction(sim, call, part, ins);
    }
}

static ds_status disagree(sim_comm *sim, const sim_op *mine, uint32_t other, const sim_op *theirs)
{
    char a[160];
    char b[160];
    char reason[REASON_BYTES];
    (void)snprintf(reason, sizeof reason,
                   "ranks disagree: rank %u calls %.160s, rank %u calls %.160s", sim->head.rank,
                   dsi_call_info_text(&mine->info, a, sizeof a), other,
                   dsi_call_info_text(&theirs->info, b, sizeof b));
    return fail_world(sim, reason);
}

/* Whether all have copied their inputs of the collective; ERR_PEER when they disagree. */
static ds_status check_arrived(sim_comm *sim, const sim_op *op, bool *all_out)
{
    const sim_world *world = sim->world;
    *all_out = true;
    for (uint32_t r = 0; r < world->size; ++r) {
        const sim_op *other = coll_of(world, r, op->number);
        if (world->ranks[r].n_coll < op->number) {
            *all_out = false;
            continue;
        }
        if (other->info.digest != op->info.digest) {
            return disagree(sim, op, r, other);
        }
        *all_out = *all_out && other->state >= SIM_READY;
        for (uint32_t i = 0; op->call.kind == DSI_COLL_ALL_TO_ALL && i < op->call.n_parts; ++i) {
            if (other->counts[(size_t)i * world->size + sim->head.rank] !=
                op->call.parts[i].counts_out[r]) {
                return disagree(sim, op, r, other);
            }
        }
    }
    return DS_OK;
}

/* Computes this rank's results if every input is there. */
static ds_status try_compute(sim_comm *sim, sim_op *op)
{
    bool all;
    DS_TRY(check_arrived(sim, op, &all));
    if (!all) {
        return DS_OK;
    }
    const dsi_comm_call *call = &op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    const char *ins[DSI_SIM_MAX_RANKS];
    const size_t *counts[DSI_SIM_MAX_RANKS] = {NULL};
    op->arrived = op->begin;
    for (uint32_t r = 0; r < sim->head.size; ++r) {
        const sim_op *other = coll_of(sim->world, r, op->number);
        ins[r] = other->copy;
        op->arrived = other->begin > op->arrived ? other->begin : op->arrived;
    }
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        for (uint32_t r = 0; r < sim->head.size && call->kind == DSI_COLL_ALL_TO_ALL; ++r) {
            counts[r] = coll_of(sim->world, r, op->number)->counts + (size_t)i * sim->head.size;
        }
        compute_part(sim, call, &call->parts[i], counts, ins);
        for (uint32_t r = 0; r < sim->head.size; ++r) {
            ins[r] +=
                (counts[r] != NULL ? before(counts[r], sim->head.size)
                                   : dsi_part_in_count(call, &call->parts[i], r, sim->head.size)) *
                width;
        }
    }
    for (uint32_t r = 0; r < sim->head.size; ++r) {
        ++coll_of(sim->world, r, op->number)->n_readers;
    }
    op->state = SIM_DONE;
    op->end = dsi_clock_seconds();
    (void)pthread_cond_broadcast(&sim->world->moved);
    return DS_OK;
}

/* Joins a send and its receive when both are started; whoever comes second copies. */
static ds_status try_pair(sim_comm *sim, sim_op *op)
{
    sim_rank *peer = &sim->world->ranks[op->call.peer];
    for (uint32_t i = 0; i < RING && op->state != SIM_DONE; ++i) {
        sim_op *other = &peer->pair[i];
        if (other->state != SIM_STARTED || other->call.kind == op->call.kind ||
            other->call.peer != sim->head.rank || other->number != op->number) {
            continue;
        }
        if (other->info.digest != op->info.digest) {
            return disagree(sim, op, op->call.peer, other);
        }
        const sim_op *send = op->call.kind == DSI_COLL_SEND ? op : other;
        const sim_op *recv = send == op ? other : op;
        for (uint32_t p = 0; p < send->call.n_parts; ++p) {
            const size_t bytes = send->call.parts[p].count * ds_dtype_bytes(send->call.dtype);
            if (bytes > 0) {
                memcpy(recv->call.parts[p].out, send->call.parts[p].in, bytes);
            }
        }
        op->arrived = other->arrived = op->begin > other->begin ? op->begin : other->begin;
        op->state = other->state = SIM_DONE;
        op->end = other->end = dsi_clock_seconds();
        (void)pthread_cond_broadcast(&sim->world->moved);
    }
    return DS_OK;
}

/* A copy of the counts, which the caller may drop at its wait while others still read. */
static ds_status copy_counts(sim_comm *sim, sim_op *op)
{
    const dsi_comm_call *call = &op->call;
    const uint32_t size = sim->head.size;
    free(op->counts);
    op->counts = NULL;
    if (call->kind != DSI_COLL_ALL_TO_ALL) {
        return DS_OK;
    }
    op->counts = calloc((size_t)call->n_parts * size + 1, sizeof(size_t));
    if (op->counts == NULL) {
        return ds_fail(sim->head.ctx, DS_ERR_NOMEM, "no memory for a simulated call");
    }
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        memcpy(op->counts + (size_t)i * size, call->parts[i].counts_in, size * sizeof(size_t));
    }
    return DS_OK;
}

static ds_status claim(sim_comm *sim, const dsi_comm_call *call, sim_op **op_out)
{
    sim_world *world = sim->world;
    sim_rank *self = &world->ranks[sim->head.rank];
    sim_op *op = NULL;
    if (dsi_coll_is_pair(call->kind)) {
        for (uint32_t i = 0; i < RING && op == NULL; ++i) {
            op = self->pair[i].ticket == 0 ? &self->pair[i] : NULL;
        }
    } else {
        op = &self->coll[(self->n_coll + 1) % RING];
        op = op->ticket == 0 ? op : NULL;
    }
    if (op == NULL) {
        return ds_fail(sim->head.ctx, DS_ERR_LIMIT, "%d calls are started and not waited for",
                       RING);
    }
    const double deadline = sim->head.timeout > 0.0 ? dsi_clock_seconds() + sim->head.timeout : 0.0;
    while (!dsi_coll_is_pair(call->kind) && !slot_is_free(world, op)) {
        DS_TRY(wait_for_change(sim, NULL, deadline));
    }
    *op_out = op;
    return DS_OK;
}

static ds_status start_locked(sim_comm *sim, const dsi_comm_call *call, dsi_comm_ticket *ticket_out)
{
    sim_world *world = sim->world;
    sim_rank *self = &world->ranks[sim->head.rank];
    if (world->options.drop_at > 0 && sim->head.sequence >= world->options.drop_at &&
        sim->head.rank == world->options.drop_rank) {
        self->lost = true;
        (void)pthread_cond_broadcast(&world->moved);
        return ds_fail(sim->head.ctx, DS_ERR_INTERRUPTED,
                       "the simulation loses rank %u at call %llu", sim->head.rank,
                       (unsigned long long)sim->head.sequence);
    }
    if (world->failed) {
        return ds_fail(sim->head.ctx, DS_ERR_PEER, "%s", world->reason);
    }
    sim_op *op = NULL;
    DS_TRY(claim(sim, call, &op));
    void *copy = op->copy;
    const size_t copy_bytes = op->copy_bytes;
    size_t *counts = op->counts;
    *op = (sim_op){.state = SIM_STARTED,
                   .ticket = sim->head.sequence,
                   .call = *call,
                   .copy = copy,
                   .copy_bytes = copy_bytes,
                   .counts = counts,
                   .begin = dsi_clock_seconds()};
    dsi_call_describe(call, sim->head.sequence, &op->info);
    DS_TRY(copy_counts(sim, op));
    *ticket_out = op->ticket;
    if (dsi_coll_is_pair(call->kind)) {
        op->number = call->kind == DSI_COLL_SEND ? ++self->n_sent[call->peer]
                                                 : ++self->n_received[call->peer];
    } else {
        op->number = ++self->n_coll;
        if (!world->options.reorder || random_below(sim, 2) == 0) {
            DS_TRY(make_ready(sim, op));
        }
    }
    (void)pthread_cond_broadcast(&world->moved);
    return DS_OK;
}

static ds_status sim_start(dsi_comm *comm, const dsi_comm_call *call, dsi_comm_ticket *ticket_out)
{
    sim_comm *sim = (sim_comm *)comm;
    delay(sim);
    (void)pthread_mutex_lock(&sim->world->lock);
    const ds_status status = start_locked(sim, call, ticket_out);
    (void)pthread_mutex_unlock(&sim->world->lock);
    return status;
}

/* Moves what is started, in a random order when asked: first all inputs are copied (another rank
 * may wait for a later call than this one does), then results are made. */
static ds_status progress(sim_comm *sim, const sim_op *wanted)
{
    sim_rank *self = &sim->world->ranks[sim->head.rank];
    for (uint32_t i = 0; i < RING; ++i) {
        if (self->coll[i].state == SIM_STARTED) {
            DS_TRY(make_ready(sim, &self->coll[i]));
        }
    }
    const uint32_t first = sim->world->options.reorder ? random_below(sim, RING) : 0;
    for (uint32_t i = 0; i < RING; ++i) {
        sim_op *op = &self->coll[(first + i) % RING];
        const bool skip = op != wanted && sim->world->options.reorder && random_below(sim, 2) == 0;
        if (op->state == SIM_READY && !skip) {
            DS_TRY(try_compute(sim, op));
        }
        op = &self->pair[(first + i) % RING];
        if (op->state == SIM_STARTED && !skip) {
            DS_TRY(try_pair(sim, op));
        }
    }
    return DS_OK;
}

static sim_op *find_ticket(sim_rank *self, dsi_comm_ticket ticket)
{
    for (uint32_t i = 0; i < RING && ticket != 0; ++i) {
        if (self->coll[i].ticket == ticket) {
            return &self->coll[i];
        }
        if (self->pair[i].ticket == ticket) {
            return &self->pair[i];
        }
    }
    return NULL;
}

static ds_status wait_locked(sim_comm *sim, dsi_comm_ticket ticket, dsi_comm_times *times_out)
{
    sim_rank *self = &sim->world->ranks[sim->head.rank];
    sim_op *op = find_ticket(self, ticket);
    if (op == NULL) {
        return ds_fail(sim->head.ctx, DS_ERR_ARG, "ticket %llu was not started or is waited for",
                       (unsigned long long)ticket);
    }
    const double deadline = sim->head.timeout > 0.0 ? dsi_clock_seconds() + sim->head.timeout : 0.0;
    while (op->state != SIM_DONE) {
        DS_TRY(progress(sim, op));
        if (op->state != SIM_DONE) {
            DS_TRY(wait_for_change(sim, op, deadline));
        }
    }
    if (times_out != NULL) {
        *times_out = (dsi_comm_times){op->end - op->begin, op->arrived - op->begin};
    }
    op->ticket = 0;
    if (dsi_coll_is_pair(op->call.kind)) {
        op->state = SIM_FREE;
    }
    return DS_OK;
}

static ds_status sim_wait(dsi_comm *comm, dsi_comm_ticket ticket, dsi_comm_times *times_out)
{
    sim_comm *sim = (sim_comm *)comm;
    delay(sim);
    (void)pthread_mutex_lock(&sim->world->lock);
    const ds_status status = wait_locked(sim, ticket, times_out);
    (void)pthread_mutex_unlock(&sim->world->lock);
    delay(sim);
    return status;
}

static void free_world(sim_world *world)
{
    for (uint32_t r = 0; r < world->size && world->ranks != NULL; ++r) {
        for (uint32_t i = 0; i < RING; ++i) {
            free(world->ranks[r].coll[i].copy);
            free(world->ranks[r].coll[i].counts);
        }
    }
    (void)pthread_mutex_destroy(&world->lock);
    (void)pthread_cond_destroy(&world->moved);
    free(world->ranks);
    free(world->colors);
    free(world->keys);
    free(world->children);
    free(world);
}

static sim_world *make_world(uint32_t size, const dsi_comm_sim_options *options)
{
    sim_world *world = calloc(1, sizeof *world);
    if (world == NULL) {
        return NULL;
    }
    (void)pthread_mutex_init(&world->lock, NULL);
    (void)pthread_cond_init(&world->moved, NULL);
    world->size = size;
    world->options = *options;
    world->ranks = calloc(size, sizeof *world->ranks);
    world->colors = calloc(size, sizeof *world->colors);
    world->keys = calloc(size, sizeof *world->keys);
    world->children = calloc(size, sizeof(sim_world *));
    if (world->ranks == NULL || world->colors == NULL || world->keys == NULL ||
        world->children == NULL) {
        free_world(world);
        return NULL;
    }
    return world;
}

static ds_status make_comm(ds_ctx *ctx, sim_world *world, uint32_t rank, double timeout,
                           dsi_comm **comm_out)
{
    sim_comm *sim = calloc(1, sizeof *sim);
    if (sim == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a simulated communicator");
    }
    sim->head = (dsi_comm){.transport = &sim_transport,
                           .ctx = ctx,
                           .rank = rank,
                           .size = world->size,
                           .timeout = timeout};
    sim->world = world;
    ++world->n_users;
    *comm_out = &sim->head;
    return DS_OK;
}

static void sim_destroy(dsi_comm *comm)
{
    sim_comm *sim = (sim_comm *)comm;
    sim_world *world = sim->world;
    (void)pthread_mutex_lock(&world->lock);
    world->ranks[comm->rank].left = true;
    const bool last = --world->n_users == 0;
    (void)pthread_cond_broadcast(&world->moved);
    (void)pthread_mutex_unlock(&world->lock);
    if (last) {
        free_world(world);
    }
    free(sim);
}

static void sim_abort(dsi_comm *comm, const char *reason)
{
    sim_comm *sim = (sim_comm *)comm;
    char text[REASON_BYTES];
    (void)snprintf(text, sizeof text, "rank %u gives up: %.400s", comm->rank, reason);
    (void)pthread_mutex_lock(&sim->world->lock);
    if (!sim->world->failed) {
        sim->world->failed = true;
        memcpy(sim->world->reason, text, sizeof text);
    }
    (void)pthread_cond_broadcast(&sim->world->moved);
    (void)pthread_mutex_unlock(&sim->world->lock);
}

/* IN: colors and keys of all. The place of `rank` among those of its color, their number, and the
 * lowest rank of them. */
static uint32_t place_in_group(const sim_world *world, uint32_t rank, uint32_t *size_out,
                               uint32_t *lowest_out)
{
    uint32_t place = 0;
    *size_out = 0;
    *lowest_out = rank;
    for (uint32_t r = 0; r < world->size; ++r) {
        if (world->colors[r] != world->colors[rank]) {
            continue;
        }
        *lowest_out = r < *lowest_out ? r : *lowest_out;
        *size_out += 1;
        const bool earlier =
            world->keys[r] < world->keys[rank] || (world->keys[r] == world->keys[rank] && r < rank);
        place += earlier ? 1 : 0;
    }
    return place;
}

static ds_status split_locked(sim_comm *sim, uint32_t color, uint32_t key, dsi_comm **comm_out)
{
    sim_world *world = sim->world;
    const double deadline = sim->head.timeout > 0.0 ? dsi_clock_seconds() + sim->head.timeout : 0.0;
    while (world->n_taken > 0) { /* the split before this one is not over */
        DS_TRY(wait_for_change(sim, NULL, deadline));
    }
    world->colors[sim->head.rank] = color;
    world->keys[sim->head.rank] = key;
    const uint64_t this_split = world->n_splits;
    if (++world->n_asked == world->size) {
        ++world->n_splits;
        world->n_taken = world->size;
        (void)pthread_cond_broadcast(&world->moved);
    }
    while (world->n_splits == this_split) {
        DS_TRY(wait_for_change(sim, NULL, deadline));
    }
    ds_status status = DS_OK;
    *comm_out = NULL;
    if (color != DSI_COLOR_NONE) {
        uint32_t size;
        uint32_t lowest;
        const uint32_t place = place_in_group(world, sim->head.rank, &size, &lowest);
        if (world->children[lowest] == NULL) {
            dsi_comm_sim_options options = world->options;
            options.drop_at = 0;
            options.seed += 0x9E3779B9u * (lowest + 1) + world->n_splits;
            world->children[lowest] = make_world(size, &options);
        }
        status = world->children[lowest] == NULL
                     ? ds_fail(sim->head.ctx, DS_ERR_NOMEM, "no memory for a group")
                     : make_comm(sim->head.ctx, world->children[lowest], place, sim->head.timeout,
                                 comm_out);
    }
    if (--world->n_taken == 0) {
        world->n_asked = 0;
        memset(world->children, 0, world->size * sizeof(sim_world *));
        (void)pthread_cond_broadcast(&world->moved);
    }
    return status;
}

static ds_status sim_split(dsi_comm *comm, uint32_t color, uint32_t key, dsi_comm **comm_out)
{
    sim_comm *sim = (sim_comm *)comm;
    delay(sim);
    (void)pthread_mutex_lock(&sim->world->lock);
    const ds_status status = split_locked(sim, color, key, comm_out);
    (void)pthread_mutex_unlock(&sim->world->lock);
    return status;
}

static const dsi_transport sim_transport = {
    .version = DSI_TRANSPORT_VERSION,
    .name = "sim",
    .start = sim_start,
    .wait = sim_wait,
    .split = sim_split,
    .abort = sim_abort,
    .destroy = sim_destroy,
};

ds_status dsi_comm_sim_create(ds_ctx *const *ctxs, uint32_t size,
                              const dsi_comm_sim_options *options, dsi_comm **comms_out)
{
    const dsi_comm_sim_options defaults = {0};
    if (size == 0 || size > DSI_SIM_MAX_RANKS) {
        return ds_fail(size > 0 ? ctxs[0] : NULL, DS_ERR_ARG, "%u simulated ranks; 1 to %u", size,
                       DSI_SIM_MAX_RANKS);
    }
    sim_world *world = make_world(size, options != NULL ? options : &defaults);
    if (world == NULL) {
        return ds_fail(ctxs[0], DS_ERR_NOMEM, "no memory for %u simulated ranks", size);
    }
    for (uint32_t r = 0; r < size; ++r) {
        const ds_status status = make_comm(ctxs[r], world, r, 60.0, &comms_out[r]);
        if (status < 0) {
            for (uint32_t made = 0; made < r; ++made) {
                sim_destroy(comms_out[made]);
            }
            if (r == 0) {
                free_world(world);
            }
            return status;
        }
    }
    return DS_OK;
}
