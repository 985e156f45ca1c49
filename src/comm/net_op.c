/* SPDX-License-Identifier: Apache-2.0 */
/* A call under way: its messages, phase by phase. See net_impl.h. Called by net_comm.c. */
#include "comm/net_impl.h"

#include "base/clock.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CLASS_FIRST, CLASS_SECOND, CLASS_PAIR, STAGE_ALIGN = 64 };

static bool takes_part(const net_group *group, const net_op *op, uint32_t peer)
{
    return peer != group->head.rank && (!dsi_coll_is_pair(op->call.kind) || peer == op->call.peer);
}

static uint32_t tag_of(const net_group *group, const net_op *op)
{
    const bool pair = dsi_coll_is_pair(op->call.kind);
    const uint32_t kind = pair ? CLASS_PAIR : op->phase == NET_SECOND ? CLASS_SECOND : CLASS_FIRST;
    const uint32_t number = pair ? 0 : op->tag_number % (1u << NET_NUMBER_BITS);
    return (group->id << NET_NUMBER_BITS | number) << 2 | kind;
}

static ds_status no_memory(const net_group *group)
{
    return ds_fail(group->head.ctx, DS_ERR_NOMEM, "no memory for a call of %u ranks",
                   group->head.size);
}

static size_t align_up(size_t n)
{
    return (n + STAGE_ALIGN - 1) / STAGE_ALIGN * STAGE_ALIGN;
}

ds_status net_op_stage(net_group *group, net_op *op, size_t bytes)
{
    if (bytes > op->stage_bytes) {
        void *more = NULL;
        if (posix_memalign(&more, STAGE_ALIGN, align_up(bytes)) != 0) {
            return no_memory(group);
        }
        free(op->stage);
        op->stage = more;
        op->stage_bytes = bytes;
    }
    op->stage_used = 0;
    return DS_OK;
}

static char *stage_take(net_op *op, size_t bytes)
{
    char *at = op->stage + op->stage_used;
    op->stage_used += align_up(bytes);
    return at;
}

/* Memory that depends on the number of ranks only; kept from call to call. */
static ds_status make_tables(net_group *group, net_op *op)
{
    const uint32_t size = group->head.size;
    if (op->packets_in != NULL) {
        return DS_OK;
    }
    op->packets_out = calloc(size, sizeof *op->packets_out);
    op->here = calloc(size, sizeof *op->here);
    op->base = calloc(size, sizeof *op->base);
    op->inputs = calloc(size, sizeof *op->inputs);
    op->packets_in = calloc(size, sizeof *op->packets_in);
    if (op->packets_in == NULL || op->packets_out == NULL || op->here == NULL || op->base == NULL ||
        op->inputs == NULL) {
        net_op_free(op);
        return no_memory(group);
    }
    return DS_OK;
}

static ds_status post(net_group *group, net_op *op, net_message message, char *data)
{
    dsi_wire *wire = group->world->wire;
    const uint32_t to = group->members[message.peer];
    if (op->n_messages == op->max_messages) {
        const uint32_t most = op->max_messages > 0 ? 2 * op->max_messages : 32;
        net_message *more = realloc(op->messages, most * sizeof *more);
        if (more == NULL) {
            return no_memory(group);
        }
        op->messages = more;
        op->max_messages = most;
    }
    const uint32_t tag = tag_of(group, op);
    const int failed = message.receive
                           ? wire->ops->recv(wire, to, tag, data, message.bytes, &message.handle)
                           : wire->ops->send(wire, to, tag, data, message.bytes, &message.handle);
    if (failed < 0) {
        char text[200];
        return net_fail_wire(group->world, dsi_call_info_text(&op->info, text, sizeof text));
    }
    message.open = message.handle != 0;
    op->n_open += message.open ? 1 : 0;
    op->messages[op->n_messages++] = message;
    return DS_OK;
}

/* Data of any length, in messages of at most DSI_WIRE_MESSAGE_BYTES. */
static ds_status post_data(net_group *group, net_op *op, uint32_t peer, bool receive, char *data,
                           size_t bytes)
{
    while (bytes > 0) {
        const size_t n = bytes < DSI_WIRE_MESSAGE_BYTES ? bytes : DSI_WIRE_MESSAGE_BYTES;
        DS_TRY(post(group, op, (net_message){.peer = peer, .receive = receive, .bytes = n}, data));
        data += n;
        bytes -= n;
    }
    return DS_OK;
}

static void pack(const net_group *group, const net_op *op, uint32_t peer, char *to)
{
    for (uint32_t i = 0; i < op->call.n_parts; ++i) {
        const net_piece from = net_send_piece(group, op, peer, i);
        if (from.bytes > 0) {
            memcpy(to, from.at, from.bytes);
            to += from.bytes;
        }
    }
}

static bool is_inline(const net_op *op, size_t bytes)
{
    return op->phase == NET_FIRST && bytes <= NET_INLINE;
}

/* Whether all peers get the same bytes, so that they are packed once. */
static bool same_for_all(const net_op *op)
{
    return op->call.kind == DS_COMM_ALL_GATHER || op->phase == NET_SECOND;
}

/* Received data goes straight to its place when the call has one tensor that is not reduced. */
static bool recv_in_place(const net_op *op)
{
    return op->call.n_parts == 1 && !(dsi_coll_reduces(op->call.kind) && op->phase == NET_FIRST);
}

/* Staging of a phase: packed sends, and receives that have no place. */
static size_t stage_need(const net_group *group, const net_op *op)
{
    size_t need = 0;
    bool packed = false;
    for (uint32_t r = 0; r < group->head.size; ++r) {
        if (!takes_part(group, op, r)) {
            continue;
        }
        const size_t n_out = net_send_bytes(group, op, r);
        const size_t n_in = net_recv_bytes(group, op, r);
        if (!is_inline(op, n_out) && op->call.n_parts > 1 && !(same_for_all(op) && packed)) {
            need += align_up(n_out);
            packed = n_out > 0;
        }
        need += is_inline(op, n_in) || recv_in_place(op) ? 0 : align_up(n_in);
    }
    return need;
}

static ds_status post_receives(net_group *group, net_op *op, uint32_t peer)
{
    const size_t bytes = net_recv_bytes(group, op, peer);
    net_packet *packet = &op->packets_in[peer];
    if (op->phase == NET_FIRST) {
        const net_message head = {
            .peer = peer, .receive = true, .is_head = true, .bytes = sizeof *packet};
        DS_TRY(post(group, op, head, (char *)packet));
    }
    op->base[peer] = NULL;
    if (bytes == 0) {
        return DS_OK;
    }
    if (is_inline(op, bytes)) {
        op->base[peer] = packet->data;
        return DS_OK;
    }
    char *to = NULL;
    if (recv_in_place(op)) {
        to = net_recv_piece(group, op, peer, 0).at;
    } else {
        to = op->base[peer] = stage_take(op, bytes);
    }
    return post_data(group, op, peer, true, to, bytes);
}

static ds_status post_sends(net_group *group, net_op *op, uint32_t peer, char **packed)
{
    const size_t bytes = net_send_bytes(group, op, peer);
    net_packet *packet = &op->packets_out[peer];
    const bool in_line = is_inline(op, bytes);
    if (op->phase == NET_FIRST) {
        packet->head = (net_head){.info = op->info, .bytes = bytes};
        if (in_line) {
            pack(group, op, peer, packet->data);
        }
        const net_message head = {
            .peer = peer, .is_head = true, .bytes = sizeof packet->head + (in_line ? bytes : 0)};
        DS_TRY(post(group, op, head, (char *)packet));
    }
    if (in_line || bytes == 0) {
        return DS_OK;
    }
    if (op->call.n_parts == 1) {
        return post_data(group, op, peer, false, net_send_piece(group, op, peer, 0).at, bytes);
    }
    if (*packed == NULL || !same_for_all(op)) {
        *packed = stage_take(op, bytes);
        pack(group, op, peer, *packed);
    }
    return post_data(group, op, peer, false, *packed, bytes);
}

/* Receives first, then sends, each beginning with the next rank, so that not all send to rank 0 at
 * the same time. */
static ds_status begin_phase(net_group *group, net_op *op)
{
    const uint32_t size = group->head.size;
    const bool receives = op->call.kind != DS_COMM_SEND;
    const bool sends = op->call.kind != DS_COMM_RECV;
    char *packed = NULL;
    op->n_messages = op->n_open = 0;
    DS_TRY(net_op_stage(group, op, stage_need(group, op)));
    for (uint32_t step = 1; step < size && receives; ++step) {
        const uint32_t peer = (group->head.rank + size - step) % size;
        if (takes_part(group, op, peer)) {
            DS_TRY(post_receives(group, op, peer));
        }
    }
    for (uint32_t step = 1; step < size && sends; ++step) {
        const uint32_t peer = (group->head.rank + step) % size;
        if (takes_part(group, op, peer)) {
            DS_TRY(post_sends(group, op, peer, &packed));
        }
    }
    return DS_OK;
}

ds_status net_op_begin(net_group *group, net_op *op, const dsi_comm_call *call)
{
    DS_TRY(make_tables(group, op));
    op->call = *call;
    op->phase = NET_FIRST;
    op->sliced = net_is_sliced(group, call);
    op->begin = op->arrived = dsi_clock_seconds();
    dsi_call_describe(call, group->head.sequence, &op->info);
    for (uint32_t r = 0; r < group->head.size; ++r) {
        op->here[r] = !takes_part(group, op, r) || call->kind == DS_COMM_SEND;
        op->base[r] = NULL;
    }
    return begin_phase(group, op);
}

/* Both sides of an all-to-all must expect the same amount; other kinds agree by their digest. */
static ds_status on_head(const net_group *group, net_op *op, uint32_t peer, size_t bytes)
{
    const net_head *head = &op->packets_in[peer].head;
    const size_t expected = net_recv_bytes(group, op, peer);
    op->here[peer] = true;
    op->arrived = dsi_clock_seconds();
    if (bytes < sizeof *head || head->info.digest != op->info.digest) {
        return net_fail_disagree(group, op, peer);
    }
    if (head->bytes != expected) {
        return net_fail(
            group->world,
            "ranks disagree about all_to_all (call %llu): %s sends %llu bytes to "
            "%s, which expects %zu",
            (unsigned long long)op->info.number,
            net_rank_name(group->world, group->members[peer]).text, (unsigned long long)head->bytes,
            net_rank_name(group->world, group->members[group->head.rank]).text, expected);
    }
    return DS_OK;
}

static ds_status end_phase(net_group *group, net_op *op)
{
    net_finish_phase(group, op);
    if (op->phase == NET_FIRST && op->sliced) {
        op->phase = NET_SECOND;
        return begin_phase(group, op);
    }
    op->phase = NET_DONE;
    op->end = dsi_clock_seconds();
    return DS_OK;
}

ds_status net_op_advance(net_group *group, net_op *op)
{
    dsi_wire *wire = group->world->wire;
    for (uint32_t i = 0; i < op->n_messages && op->n_open > 0; ++i) {
        net_message *message = &op->messages[i];
        size_t n = 0;
        if (!message->open) {
            continue;
        }
        const int done = wire->ops->test(wire, message->handle, group->members[message->peer], &n);
        if (done < 0) {
            char text[200];
            return net_fail_wire(group->world, dsi_call_info_text(&op->info, text, sizeof text));
        }
        if (done == 0) {
            continue;
        }
        message->open = false;
        --op->n_open;
        if (message->receive && message->is_head) {
            DS_TRY(on_head(group, op, message->peer, n));
        } else if (message->receive && n != message->bytes) {
            return net_fail(group->world, "%s sent %zu bytes, expected %zu",
                            net_rank_name(group->world, group->members[message->peer]).text, n,
                            message->bytes);
        }
    }
    return op->n_open == 0 ? end_phase(group, op) : DS_OK;
}

void net_op_cancel(net_group *group, net_op *op)
{
    dsi_wire *wire = group->world->wire;
    for (uint32_t i = 0; i < op->n_messages; ++i) {
        if (op->messages[i].open) {
            wire->ops->cancel(wire, op->messages[i].handle);
            op->messages[i].open = false;
        }
    }
    op->n_open = 0;
}

void net_op_free(net_op *op)
{
    free(op->packets_in);
    free(op->packets_out);
    free(op->here);
    free(op->base);
    free(op->inputs);
    free(op->messages);
    free(op->stage);
    *op = (net_op){.used = false};
}
