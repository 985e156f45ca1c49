/* SPDX-License-Identifier: Apache-2.0 */
/* The shared-memory communicator: starting, moving, waiting. See shm_impl.h for the invariants. */
#include "base/clock.h"
#include "comm/rank_names.h"
#include "comm/shm_impl.h"
#include <sched.h>
#include <stdio.h>
#include <string.h>

enum { SPINS = 40000 /* one to two milliseconds */, SPINS_CROWDED = 60, YIELDS = 4 };
#define LOOK_SECONDS 0.1

static void lock(shm_comm *comm)
{
    while (atomic_flag_test_and_set_explicit(&comm->lock, memory_order_acquire)) {
        (void)sched_yield();
    }
}

static bool try_lock(shm_comm *comm)
{
    return !atomic_flag_test_and_set_explicit(&comm->lock, memory_order_acquire);
}

static void unlock(shm_comm *comm)
{
    atomic_flag_clear_explicit(&comm->lock, memory_order_release);
}

static uint64_t mix(uint64_t hash, uint64_t word)
{
    hash = (hash ^ word) * UINT64_C(0x9E3779B97F4A7C15);
    return hash ^ hash >> 31;
}

/* Whether every `out` of the call lies in symmetric memory (all) or none does. */
static void outs_in_regions(const shm_comm *comm, const dsi_comm_call *call, bool *all_out,
                            bool *none_out)
{
    const size_t width = ds_dtype_bytes(call->dtype);
    *all_out = *none_out = true;
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        if (part->count > 0) {
            const bool inside = shm_encode(comm, part->out, part->count * width) != SHM_NOWHERE;
            *all_out = *all_out && inside;
            *none_out = *none_out && !inside;
        }
    }
}

/* Addresses of the parts fit beside the announcement. */
static bool table_fits(const shm_comm *comm, const dsi_comm_call *call)
{
    const size_t lists = call->kind == DS_COMM_ALL_REDUCE ? 2 : 1;
    return shm_table_begin(comm, call) + lists * call->n_parts <= SHM_INLINE / sizeof(uint64_t);
}

/* How the call goes; the same on every rank, or their digests differ. An all-to-all that is not in
 * place is decided when the totals of all are known. */
static void choose_mode(shm_comm *comm, shm_op *op)
{
    const dsi_comm_call *call = &op->call;
    const uint32_t size = comm->head.size;
    const size_t width = ds_dtype_bytes(call->dtype);
    op->mode = SHM_MODE_STAGED;
    op->total = shm_stream_length(
        call, size, call->kind == DS_COMM_ALL_GATHER ? shm_slice_length : shm_part_length);
    op->total *= width; /* here: bytes */
    const bool may_pull = comm->scratch != NULL && call->kind != DS_COMM_ALL_TO_ALL &&
                          !call->symmetric && table_fits(comm, call);
    const bool gathers = may_pull && call->kind == DS_COMM_ALL_GATHER;
    const size_t most = call->symmetric ? SHM_INLINE_SYMMETRIC
                        : gathers       ? SHM_INLINE_GATHER
                                        : SHM_INLINE;
    if (call->kind != DS_COMM_ALL_TO_ALL && op->total <= most) {
        op->mode = SHM_MODE_INLINE;
    } else if (call->symmetric && table_fits(comm, call)) {
        bool all = false;
        bool none = true;
        if (call->kind == DS_COMM_ALL_REDUCE) {
            outs_in_regions(comm, call, &all, &none);
        }
        op->push = all;
        op->mode = all || (none && size <= 3) || call->kind != DS_COMM_ALL_REDUCE ? SHM_MODE_PLACE
                                                                                  : SHM_MODE_STAGED;
    }
    const bool tables = op->mode == SHM_MODE_PLACE;
    op->data_begin =
        (tables ? shm_table_begin(comm, call) + call->n_parts : size) * sizeof(uint64_t);
    const size_t pull_from = gathers                        ? SHM_INLINE_GATHER
                             : dsi_coll_reduces(call->kind) ? SHM_PULL_SUMS_FROM
                                                            : SHM_PULL_FROM;
    if (op->mode == SHM_MODE_STAGED && may_pull && op->total >= pull_from) {
        op->mode = SHM_MODE_PULL;
    }
    op->digest = mix(dsi_call_digest(call), (uint64_t)op->mode << 1 | (op->push ? 1 : 0));
}

/* The addresses of the operands for other ranks; to NULL: only checks them. */
static ds_status write_addresses(shm_comm *comm, const shm_op *op, uint64_t *to)
{
    const dsi_comm_call *call = &op->call;
    const size_t width = ds_dtype_bytes(call->dtype);
    for (uint32_t i = 0; i < call->n_parts; ++i) {
        const dsi_comm_part *part = &call->parts[i];
        const size_t n = dsi_part_in_count(call, part, comm->head.rank, comm->head.size);
        const uint64_t in = n > 0 ? shm_encode(comm, part->in, n * width) : 0;
        if (to != NULL) {
            to[i] = in;
        }
        if (to != NULL && op->push) {
            to[call->n_parts + i] =
                part->count > 0 ? shm_encode(comm, part->out, part->count * width) : 0;
        }
        if (in == SHM_NOWHERE) {
            return ds_fail(comm->head.ctx, DS_ERR_ARG,
                           "%s \"%s\": `in` of part %u does not lie in symmetric memory of this "
                           "communicator or its parents",
                           dsi_coll_name(call->kind), call->what != NULL ? call->what : "", i);
        }
    }
    return DS_OK;
}

/* Whether an all-to-all with this many bytes on each rank pulls. */
static bool pulls_exchange(const shm_comm *comm, const dsi_comm_call *call, uint64_t bytes)
{
    return comm->scratch != NULL && bytes >= SHM_PULL_FROM && table_fits(comm, call);
}

/* Whether the operands of an all-to-all may travel beside the announcement of a rank. */
static bool exchange_fits(const shm_op *op, uint64_t elements)
{
    const size_t width = ds_dtype_bytes(op->call.dtype);
    const size_t most = op->mode == SHM_MODE_PLACE ? SHM_INLINE_SYMMETRIC : SHM_INLINE;
    return op->data_begin <= SHM_INLINE && elements <= most / width &&
           elements * width <= SHM_INLINE - op->data_begin;
}

/* Totals for each rank, then the counts of each part when they fit, and addresses when peers might
 * pull; returns whether the operands may follow the totals. */
static bool write_totals(shm_comm *comm, const shm_op *op, uint64_t *to)
{
    const dsi_comm_call *call = &op->call;
    const uint32_t size = comm->head.size;
    uint64_t sum = 0;
    for (uint32_t r = 0; r < size; ++r) {
        to[r] = 0;
        for (uint32_t i = 0; i < call->n_parts; ++i) {
            to[r] += call->parts[i].counts_in[r];
        }
        sum += to[r];
    }
    const bool pulls =
        op->mode != SHM_MODE_PLACE && pulls_exchange(comm, call, sum * ds_dtype_bytes(call->dtype));
    for (uint32_t i = 0; i < call->n_parts && (pulls || op->mode == SHM_MODE_PLACE); ++i) {
        memcpy(to + (size_t)size * (i + 1), call->parts[i].counts_in, size * sizeof *to);
    }
    if (pulls) {
        shm_pull_write(comm, call, to + shm_table_begin(comm, call));
    }
    return exchange_fits(op, sum);
}

/* Announces the call to the others. IN: the slot is free on every rank. */
static void announce(shm_comm *comm, shm_op *op)
{
    shm_block *own = shm_own(comm);
    const uint32_t place = (uint32_t)(op->number % SHM_SLOTS);
    shm_slot *slot = &own->slots[place];
    unsigned char *beside = own->beside[place];
    const bool exchange = op->call.kind == DS_COMM_ALL_TO_ALL;
    if (exchange) {
        const bool fits = write_totals(comm, op, (uint64_t *)(void *)beside);
        if (fits) {
            shm_inline_write(comm, op, beside + op->data_begin);
        }
    }
    if (op->mode == SHM_MODE_PLACE) {
        uint64_t *table = (uint64_t *)(void *)beside + shm_table_begin(comm, &op->call);
        (void)write_addresses(comm, op, table);
    } else if (op->mode == SHM_MODE_PULL) {
        shm_pull_write(comm, &op->call,
                       (uint64_t *)(void *)beside + shm_table_begin(comm, &op->call));
    } else if (op->mode == SHM_MODE_INLINE) {
        shm_inline_write(comm, op, op->total <= SHM_TINY ? slot->tiny : beside);
    }
    dsi_call_info *info = &own->infos[place];
    dsi_call_describe(&op->call, comm->head.sequence, info);
    slot->digest = op->digest;
    slot->when = op->begin;
    atomic_store(&slot->posted, op->number);
    comm->n_posted = op->number;
    shm_ring_all(comm);
}

/* The lowest `done` of all ranks, as far as it matters. */
static bool all_done(shm_comm *comm, uint64_t number)
{
    if (comm->known_done >= number) {
        return true;
    }
    uint64_t least = UINT64_MAX;
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        const uint64_t done =
            r == comm->head.rank ? comm->n_done : atomic_load(&shm_block_of(comm, r)->done.value);
        least = done < least ? done : least;
    }
    comm->known_done = least;
    return least >= number;
}

static bool slot_is_free(shm_comm *comm, uint64_t number)
{
    return number <= SHM_SLOTS || all_done(comm, number - SHM_SLOTS);
}

/* Whether all ranks have announced the call; ERR_PEER when one announced another. */
static ds_status all_here(shm_comm *comm, shm_op *op, bool *here_out)
{
    const uint32_t place = (uint32_t)(op->number % SHM_SLOTS);
    double last = op->begin;
    *here_out = true;
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        const shm_block *block = shm_block_of(comm, r);
        const shm_slot *slot = &block->slots[place];
        if (r == comm->head.rank) {
            continue;
        }
        if (atomic_load_explicit(&slot->posted, memory_order_acquire) < op->number) {
            *here_out = false;
            continue;
        }
        if (slot->digest != op->digest) {
            return shm_disagree(comm, &shm_own(comm)->infos[place], r, &block->infos[place]);
        }
        last = slot->when > last ? slot->when : last;
    }
    op->arrived = *here_out ? last : 0.0;
    return DS_OK;
}

/* All-to-all: pairs must agree; and small ones go inline. */
static ds_status settle_exchange(shm_comm *comm, shm_op *op)
{
    const uint32_t place = (uint32_t)(op->number % SHM_SLOTS);
    const size_t width = ds_dtype_bytes(op->call.dtype);
    bool fits = true;
    bool pulls = true;
    for (uint32_t r = 0; r < comm->head.size; ++r) {
        const shm_block *block = shm_block_of(comm, r);
        const uint64_t *totals = (const uint64_t *)(const void *)block->beside[place];
        uint64_t sum = 0;
        uint64_t expected = 0;
        for (uint32_t b = 0; b < comm->head.size; ++b) {
            sum += totals[b];
        }
        for (uint32_t i = 0; i < op->call.n_parts; ++i) {
            expected += op->call.parts[i].counts_out[r];
        }
        if (totals[comm->head.rank] != expected) {
            char reason[320];
            (void)snprintf(reason, sizeof reason,
                           "ranks disagree in all_to_all \"%.80s\": %s sends %llu elements to "
                           "%s, which expects %llu",
                           op->call.what != NULL ? op->call.what : "",
                           dsi_comm_rank_name(&comm->head, r).text,
                           (unsigned long long)totals[comm->head.rank],
                           dsi_comm_rank_name(&comm->head, comm->head.rank).text,
                           (unsigned long long)expected);
            return shm_fail_comm(comm, reason);
        }
        fits = fits && exchange_fits(op, sum);
        pulls = pulls && pulls_exchange(comm, &op->call, sum * width);
    }
    if (fits) {
        op->mode = SHM_MODE_INLINE;
    } else if (op->mode != SHM_MODE_PLACE) {
        op->mode = pulls ? SHM_MODE_PULL : SHM_MODE_STAGED;
    }
    return DS_OK;
}

/* The call ends when every rank is done: until then operands are read where they lie. */
static bool reads_others(const shm_op *op)
{
    return op->mode == SHM_MODE_PLACE || op->mode == SHM_MODE_PULL;
}

static void set_done(shm_comm *comm, shm_op *op)
{
    comm->n_done = op->number;
    atomic_store(&shm_own(comm)->done.value, op->number);
    if (reads_others(op) || op->number % (SHM_SLOTS / 2) == 0) {
        shm_ring_all(comm); /* others wait for it: in place always, for a slot now and then */
    }
}

/* The next collective in order. */
static ds_status work(shm_comm *comm, bool *moved)
{
    while (comm->n_done < comm->n_posted) {
        shm_op *op = &comm->ops[(comm->n_done + 1) % SHM_OPS];
        if (op->arrived == 0.0) {
            bool here;
            DS_TRY(all_here(comm, op, &here));
            if (!here) {
                return DS_OK;
            }
            if (op->call.kind == DS_COMM_ALL_TO_ALL) {
                DS_TRY(settle_exchange(comm, op));
            }
            if (op->mode == SHM_MODE_STAGED) {
                shm_staged_begin(comm, op);
            }
        }
        bool finished = true;
        if (op->mode == SHM_MODE_INLINE) {
            shm_inline_work(comm, op);
        } else if (op->mode == SHM_MODE_PLACE) {
            shm_place_work(comm, op);
        } else if (op->mode == SHM_MODE_PULL) {
            DS_TRY(shm_pull_work(comm, op, &finished));
        } else {
            *moved = shm_staged_work(comm, op, &finished) || *moved;
        }
        if (!finished) {
            return DS_OK;
        }
        *moved = true;
        set_done(comm, op);
    }
    return DS_OK;
}

static void post_queued(shm_comm *comm, bool *moved)
{
    while (comm->n_posted < comm->n_started && slot_is_free(comm, comm->n_posted + 1)) {
        announce(comm, &comm->ops[(comm->n_posted + 1) % SHM_OPS]);
        *moved = true;
    }
}

/* Moves everything of the communicator that can be moved. */
static ds_status progress(shm_comm *comm, bool *moved)
{
    post_queued(comm, moved);
    DS_TRY(work(comm, moved));
    if (comm->oldest_pair < comm->n_pairs) {
        DS_TRY(shm_pair_progress(comm, moved));
    }
    return DS_OK;
}

static ds_status start_locked(shm_comm *comm, const dsi_comm_call *call,
                              dsi_comm_ticket *ticket_out)
{
    bool moved = false;
    if (comm->failed) {
        return ds_fail(comm->head.ctx, DS_ERR_PEER, "%s", comm->reason);
    }
    if (dsi_coll_is_pair(call->kind)) {
        uint64_t number = 0;
        DS_TRY(shm_pair_start(comm, call, &number));
        *ticket_out = number << 1 | 1;
        return shm_pair_progress(comm, &moved);
    }
    const uint64_t number = comm->n_started + 1;
    shm_op *op = &comm->ops[number % SHM_OPS];
    if (op->number != 0) {
        return ds_fail(comm->head.ctx, DS_ERR_LIMIT, "%d calls are started and not waited for",
                       SHM_OPS);
    }
    op->call = *call;
    op->arrived = 0.0;
    op->push = false;
    op->begin = dsi_clock_seconds();
    choose_mode(comm, op);
    if (op->mode == SHM_MODE_PLACE) {
        DS_TRY(write_addresses(comm, op, NULL));
    }
    op->number = number;
    comm->n_started = number;
    *ticket_out = number << 1;
    post_queued(comm, &moved);
    return DS_OK;
}

static ds_status shm_start(dsi_comm *head, const dsi_comm_call *call, dsi_comm_ticket *ticket_out)
{
    shm_comm *comm = (shm_comm *)head;
    lock(comm);
    const ds_status status = start_locked(comm, call, ticket_out);
    unlock(comm);
    return status;
}

/* Whether a collective is over for this rank, or a message. */
static bool is_complete(shm_comm *comm, const shm_op *op, const shm_pair_op *pair)
{
    if (pair != NULL) {
        return pair->complete;
    }
    return comm->n_done >= op->number && (!reads_others(op) || all_done(comm, op->number));
}

/* Moves what other communicators of this process have started: their peers may wait for that
 * before they come to what this rank waits for. Failures show at their own waits. */
static bool help_others(shm_comm *comm)
{
    bool moved = false;
    (void)pthread_mutex_lock(&comm->job->lock);
    for (shm_comm *other = comm->job->first; other != NULL; other = other->next) {
        if (other != comm && !other->failed && try_lock(other)) {
            (void)progress(other, &moved);
            unlock(other);
        }
    }
    (void)pthread_mutex_unlock(&comm->job->lock);
    return moved;
}

typedef struct watch {
    const shm_op *op;
    const shm_pair_op *pair;
    double limit; /* 0: none yet */
    double next_look;
} watch;

/* Looks for trouble: for an abort at once, for the dead and the late from time to time. */
static ds_status look(shm_comm *comm, watch *w)
{
    const double now = dsi_clock_seconds();
    if (w->next_look == 0.0) {
        w->next_look = now + LOOK_SECONDS;
        w->limit = comm->head.timeout > 0.0 ? now + comm->head.timeout : 0.0;
    }
    if (now < w->next_look && atomic_load(&comm->job->world->shared->aborted) != 2) {
        return DS_OK;
    }
    w->next_look = now + LOOK_SECONDS;
    return shm_look_around(comm, w->op, w->pair, w->limit > 0.0 && now > w->limit);
}

/* Spins, then sleeps, until the call is complete. */
static ds_status wait_until_complete(shm_comm *comm, watch *w)
{
    const uint32_t spins = comm->job->crowded ? SPINS_CROWDED : SPINS;
    for (uint32_t idle = 0;;) {
        bool moved = false;
        DS_TRY(progress(comm, &moved));
        if (is_complete(comm, w->op, w->pair)) {
            return DS_OK;
        }
        if (comm->failed) {
            return ds_fail(comm->head.ctx, DS_ERR_PEER, "%s", comm->reason);
        }
        if (moved) {
            idle = 0;
            continue;
        }
        if (++idle < spins) {
            shm_relax();
            continue;
        }
        if (comm->job->crowded && idle < spins + YIELDS) {
            (void)sched_yield();
            continue;
        }
        DS_TRY(look(comm, w));
        const uint32_t rings = shm_bell_begin(comm->job);
        ds_status status = progress(comm, &moved);
        moved = help_others(comm) || moved;
        if (status == DS_OK && !moved && !is_complete(comm, w->op, w->pair)) {
            unlock(comm);
            shm_sleep(comm->job, rings);
            lock(comm);
        }
        shm_bell_end(comm->job);
        DS_TRY(status);
        idle = 0;
    }
}

static ds_status wait_locked(shm_comm *comm, dsi_comm_ticket ticket, dsi_comm_times *times_out)
{
    const uint64_t number = ticket >> 1;
    const bool is_pair = (ticket & 1) != 0;
    shm_op *op = is_pair ? NULL : &comm->ops[number % SHM_OPS];
    shm_pair_op *pair = is_pair ? &comm->pairs[number % SHM_OPS] : NULL;
    if (number == 0 ||
        (is_pair ? number > comm->n_pairs || pair->number == 0 : op->number != number)) {
        return ds_fail(comm->head.ctx, DS_ERR_ARG, "ticket %llu was not started or is waited for",
                       (unsigned long long)ticket);
    }
    watch w = {.op = op, .pair = pair};
    shm_block *own = shm_own(comm);
    atomic_store_explicit(&own->waiting, number, memory_order_relaxed);
    const ds_status status = wait_until_complete(comm, &w);
    atomic_store_explicit(&own->waiting, 0, memory_order_relaxed);
    DS_TRY(status);
    if (times_out != NULL) {
        const double begin = is_pair ? pair->begin : op->begin;
        const double arrived = is_pair ? pair->arrived : op->arrived;
        const double end = is_pair ? pair->end : dsi_clock_seconds();
        *times_out = (dsi_comm_times){end - begin, arrived - begin};
    }
    if (is_pair) {
        pair->number = 0;
    } else {
        op->number = 0;
    }
    return DS_OK;
}

static ds_status shm_wait(dsi_comm *head, dsi_comm_ticket ticket, dsi_comm_times *times_out)
{
    shm_comm *comm = (shm_comm *)head;
    lock(comm);
    const ds_status status = wait_locked(comm, ticket, times_out);
    unlock(comm);
    return status;
}

static ds_status test_locked(shm_comm *comm, dsi_comm_ticket ticket, bool late, bool *done_out)
{
    const uint64_t number = ticket >> 1;
    const bool is_pair = (ticket & 1) != 0;
    shm_op *op = is_pair ? NULL : &comm->ops[number % SHM_OPS];
    shm_pair_op *pair = is_pair ? &comm->pairs[number % SHM_OPS] : NULL;
    bool moved = false;
    *done_out = false;
    DS_TRY(progress(comm, &moved));
    (void)help_others(comm);
    if (number == 0) {
        return DS_OK;
    }
    *done_out = is_complete(comm, op, pair);
    if (!*done_out && (late || atomic_load(&comm->job->world->shared->aborted) == 2)) {
        return shm_look_around(comm, op, pair, late);
    }
    return comm->failed ? ds_fail(comm->head.ctx, DS_ERR_PEER, "%s", comm->reason) : DS_OK;
}

static ds_status shm_test(dsi_comm *head, dsi_comm_ticket ticket, bool late, bool *done_out)
{
    shm_comm *comm = (shm_comm *)head;
    lock(comm);
    const ds_status status = test_locked(comm, ticket, late, done_out);
    unlock(comm);
    return status;
}

static void shm_abort(dsi_comm *head, const char *reason)
{
    shm_abort_job((shm_comm *)head, reason);
}

static void shm_away(dsi_comm *head, double until)
{
    const shm_comm *comm = (const shm_comm *)head;
    const int thread = head->twin ? 1 : 0;
    atomic_store(&shm_own(comm->job->world)->away_until[thread], (uint64_t)(until * 1e3));
}

const dsi_transport dsi_shm_transport = {
    .version = DSI_TRANSPORT_VERSION,
    .name = "shm",
    .start = shm_start,
    .wait = shm_wait,
    .split = shm_split,
    .test = shm_test,
    .symmetric = shm_symmetric,
    .away = shm_away,
    .abort = shm_abort,
    .destroy = shm_destroy,
};
