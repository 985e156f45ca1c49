/* SPDX-License-Identifier: Apache-2.0 */
/* How a network world fails: once, with one reason that every rank learns over the rendezvous. The
 * thread that finds it may not be the one whose call it is. */
#include "comm/net_impl.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

ds_status net_fail(net_world *world, const char *format, ...)
{
    if (!world->failed) {
        va_list args;
        va_start(args, format);
        (void)vsnprintf(world->reason, sizeof world->reason, format, args);
        va_end(args);
        world->failed = true;
        if (world->rdv != NULL) {
            dsi_rdv_abort(world->rdv, world->reason);
        }
    }
    return DS_ERR_PEER;
}

dsi_rank_name net_rank_name(const net_world *world, uint32_t rank)
{
    dsi_rank_name number;
    if (world->named != NULL) {
        return dsi_comm_rank_name(world->named, rank);
    }
    (void)snprintf(number.text, sizeof number.text, "rank %u", rank);
    return number;
}

/* The rendezvous knows numbers alone: the name takes the place of the one that its text begins
 * with. */
static void put_name(const net_world *world, char text[DSI_RDV_TEXT_BYTES])
{
    char rest[DSI_RDV_TEXT_BYTES];
    unsigned rank = 0;
    int n = 0;
    if (world->named != NULL && sscanf(text, "rank %u%n", &rank, &n) == 1 &&
        rank < world->named->size) {
        (void)snprintf(rest, sizeof rest, "%s", text + n);
        (void)snprintf(text, DSI_RDV_TEXT_BYTES, "%s%.400s", net_rank_name(world, rank).text, rest);
    }
}

ds_status net_told(const net_group *group, ds_status status)
{
    return status == DS_ERR_PEER ? ds_fail(group->head.ctx, status, "%s", group->world->reason)
                                 : status;
}

ds_status net_check(net_world *world)
{
    if (!world->failed && world->rdv != NULL) {
        char text[DSI_RDV_TEXT_BYTES];
        if (dsi_rdv_failed(world->rdv, text, NULL)) {
            world->failed = true; /* all know it already */
            put_name(world, text);
            memcpy(world->reason, text, sizeof world->reason);
        }
    }
    return world->failed ? DS_ERR_PEER : DS_OK;
}

/* What the rendezvous knows of a rank, or its bare number. */
static void rank_text(const net_world *world, uint32_t rank, char *text)
{
    if (world->rdv == NULL || dsi_rdv_status(world->rdv, rank, 2.0, text) != DS_OK) {
        (void)snprintf(text, DSI_RDV_TEXT_BYTES, "rank %u", rank);
    }
    put_name(world, text);
}

ds_status net_fail_wire(net_world *world, const char *call)
{
    const dsi_wire *wire = world->wire;
    /* A death, or why a rank gave up, says more than the connection that broke with it; it may come
     * a little later. */
    for (int i = 0; i < 100 && world->rdv != NULL; ++i) {
        DS_TRY(net_check(world));
        (void)nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    DS_TRY(net_check(world));
    if (wire->error_peer == DSI_WIRE_NOBODY) {
        return net_fail(world, "%.160s: %.300s", call, wire->error);
    }
    char text[DSI_RDV_TEXT_BYTES];
    rank_text(world, wire->error_peer, text);
    return net_fail(world, "%.160s: lost %.200s: %.120s", call, text, wire->error);
}

ds_status net_fail_disagree(const net_group *group, const net_op *op, uint32_t peer)
{
    char mine[200];
    char theirs[200];
    dsi_call_info info = op->packets_in[peer].head.info;
    info.what[sizeof info.what - 1] = '\0';
    return net_fail(group->world, "ranks disagree: %s calls %.160s, %s calls %.160s",
                    net_rank_name(group->world, group->members[group->head.rank]).text,
                    dsi_call_info_text(&op->info, mine, sizeof mine),
                    net_rank_name(group->world, group->members[peer]).text,
                    dsi_call_info_text(&info, theirs, sizeof theirs));
}

ds_status net_fail_late(const net_group *group, const net_op *op, double waited)
{
    char call[200];
    char missing[DSI_RDV_TEXT_BYTES] = "";
    size_t used = 0;
    for (uint32_t r = 0; r < group->head.size; ++r) {
        if (op->here[r] || used + 140 > sizeof missing) {
            continue;
        }
        char text[DSI_RDV_TEXT_BYTES];
        rank_text(group->world, group->members[r], text);
        used += (size_t)snprintf(missing + used, sizeof missing - used, "%s%.130s",
                                 used > 0 ? ", " : "", text);
    }
    for (uint32_t i = 0; used == 0 && i < op->n_messages; ++i) {
        const net_message *message = &op->messages[i];
        if (message->open) {
            used += (size_t)snprintf(
                missing, sizeof missing, "the data %s %s", message->receive ? "of" : "for",
                net_rank_name(group->world, group->members[message->peer]).text);
        }
    }
    return net_fail(group->world, "%.160s: %s waited %.1f s; missing: %s",
                    dsi_call_info_text(&op->info, call, sizeof call),
                    net_rank_name(group->world, group->members[group->head.rank]).text, waited,
                    missing);
}
