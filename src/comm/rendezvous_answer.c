/* SPDX-License-Identifier: Apache-2.0 */
/* What the rendezvous server answers: who joins, values, meetings, who is missing, notices of
 * death. On the server's thread; called by rendezvous_server.c. See rendezvous.h.
 */
#include "comm/rendezvous_server_impl.h"

#include "base/clock.h"

#include <stdio.h>
#include <string.h>

void rdv_server_notify(dsi_rdv_server *server, uint32_t rank, const char *reason)
{
    if (!server->failed) {
        server->failed = true;
        server->failed_rank = rank;
        (void)snprintf(server->reason, sizeof server->reason, "%s", reason);
    }
    for (uint32_t c = 0; c < server->n_conns; ++c) {
        rdv_conn *conn = server->conns[c];
        if (conn->joined && conn->rank != rank) {
            rdv_conn_send_text(conn, RDV_NOTICE, rank, reason);
        }
    }
}

/* ---- what is known of ranks ---- */

void rdv_server_status(const dsi_rdv_server *server, uint32_t r, char *text, size_t n)
{
    const rdv_rank *rank = &server->ranks[r];
    if (!rank->ever) {
        (void)snprintf(text, n, "rank %u (never came)", r);
        return;
    }
    (void)snprintf(text, n, "rank %u (%s, %sstep %llu, call %llu%s%s%s, last heard %.1f s ago)", r,
                   rank->address,
                   rank->dead   ? "dead, "
                   : rank->left ? "left, "
                                : "",
                   (unsigned long long)rank->step, (unsigned long long)rank->sequence,
                   rank->what[0] != '\0' ? ", \"" : "", rank->what,
                   rank->what[0] != '\0' ? "\"" : "", dsi_clock_seconds() - rank->heard);
}

/* Who is not in a meeting; with `joined` who has not joined the job. Returns the first of them. */
static uint32_t missing_text(const dsi_rdv_server *server, const rdv_meeting *meeting, bool joined,
                             char *text, size_t n)
{
    size_t used = 0;
    uint32_t more = 0;
    uint32_t first = server->store.size;
    text[0] = '\0';
    for (uint32_t r = 0; r < server->store.size; ++r) {
        const bool here = joined ? server->ranks[r].ever
                                 : meeting != NULL && (meeting->closed || meeting->here[r] != 0);
        if (here) {
            continue;
        }
        char one[256];
        first = r < first ? r : first;
        rdv_server_status(server, r, one, sizeof one);
        if (used + strlen(one) + 32 > n) {
            ++more;
            continue;
        }
        used += (size_t)snprintf(text + used, n - used, "%s%s", used > 0 ? ", " : "", one);
    }
    if (more > 0) {
        (void)snprintf(text + used, n - used, " and %u more", more);
    }
    return first;
}

/* The lowest rank that has joined, besides the one that asks; without another that one. */
static uint32_t lowest_here(const dsi_rdv_server *server, uint32_t asks)
{
    for (uint32_t r = 0; r < server->store.size; ++r) {
        if (r != asks && server->ranks[r].ever) {
            return r;
        }
    }
    return asks;
}

/* ---- joining ---- */

static void refuse(rdv_conn *conn, const char *why)
{
    rdv_conn_send_text(conn, RDV_REFUSE, 0, why);
    conn->ended = true;
}

void rdv_server_join(dsi_rdv_server *server, rdv_conn *conn, const rdv_frame *frame)
{
    uint8_t proof[RDV_PROOF_BYTES];
    char why[200];
    const uint32_t size = server->store.size;
    if (frame->kind != RDV_JOIN || frame->value_bytes != RDV_NONCE_BYTES + RDV_PROOF_BYTES) {
        conn->ended = true;
        return;
    }
    const uint8_t *nonce = frame->value;
    rdv_proof(server->secret, 'C', conn->nonce, nonce, frame->rank, (uint32_t)frame->number, proof);
    if (!rdv_same(proof, frame->value + RDV_NONCE_BYTES, RDV_PROOF_BYTES)) {
        refuse(conn, "the secret differs: DS_JOB_SECRET must be the same on all ranks");
        return;
    }
    if (frame->number != size || frame->rank >= size) {
        (void)snprintf(why, sizeof why, "it calls itself rank %u of %llu, this job has %u ranks",
                       frame->rank, (unsigned long long)frame->number, size);
        refuse(conn, why);
        return;
    }
    rdv_rank *rank = &server->ranks[frame->rank];
    if (rank->ever) {
        (void)snprintf(why, sizeof why, "rank %u %s from %s: two processes have the same rank",
                       frame->rank, rank->conn != NULL ? "is here already" : "was here already",
                       rank->address);
        refuse(conn, why);
        return;
    }
    conn->joined = true;
    conn->rank = frame->rank;
    *rank = (rdv_rank){.conn = conn, .ever = true, .heard = dsi_clock_seconds()};
    (void)snprintf(rank->address, sizeof rank->address, "%s", conn->address);
    rdv_proof(server->secret, 'K', conn->nonce, nonce, frame->rank, size, conn->in.key);
    memcpy(conn->out.key, conn->in.key, sizeof conn->out.key);
    rdv_proof(server->secret, 'S', conn->nonce, nonce, frame->rank, size, proof);
    rdv_conn_send(conn,
                  &(rdv_frame){.kind = RDV_WELCOME, .value = proof, .value_bytes = sizeof proof});
    conn->in.proved = conn->out.proved = true;
    if (server->failed) {
        rdv_conn_send_text(conn, RDV_NOTICE, server->failed_rank, server->reason);
    }
}

/* ---- requests ---- */

static void send_entry(rdv_conn *conn, const rdv_entry *entry)
{
    rdv_conn_send(conn, &(rdv_frame){.kind = RDV_DONE,
                                     .value = rdv_entry_value(entry),
                                     .value_bytes = entry->value_bytes});
}

static void open_request(rdv_conn *conn, const rdv_frame *frame)
{
    conn->open = frame->kind;
    conn->open_bytes = frame->key_bytes;
    memcpy(conn->open_key, frame->key, frame->key_bytes);
}

static bool waits_for(const rdv_conn *conn, rdv_kind kind, const char *key, size_t n)
{
    return conn->open == kind && conn->open_bytes == n && memcmp(conn->open_key, key, n) == 0;
}

static void on_put(dsi_rdv_server *server, rdv_conn *conn, const rdv_frame *frame)
{
    const char *why = rdv_store_put(&server->store, frame->key, frame->key_bytes, frame->value,
                                    frame->value_bytes);
    if (why != NULL) {
        rdv_conn_send_text(conn, RDV_ERROR, 0, why);
        return;
    }
    rdv_conn_send(conn, &(rdv_frame){.kind = RDV_DONE});
    const rdv_entry *entry = rdv_store_get(&server->store, frame->key, frame->key_bytes);
    for (uint32_t c = 0; c < server->n_conns; ++c) {
        if (waits_for(server->conns[c], RDV_WAIT, frame->key, frame->key_bytes)) {
            server->conns[c]->open = (rdv_kind)0;
            send_entry(server->conns[c], entry);
        }
    }
}

static void on_get(dsi_rdv_server *server, rdv_conn *conn, const rdv_frame *frame)
{
    const rdv_entry *entry = rdv_store_get(&server->store, frame->key, frame->key_bytes);
    if (entry != NULL) {
        send_entry(conn, entry);
    } else if (frame->kind == RDV_GET) {
        rdv_conn_send(conn, &(rdv_frame){.kind = RDV_ABSENT});
    } else {
        open_request(conn, frame);
    }
}

static void on_meet(dsi_rdv_server *server, rdv_conn *conn, const rdv_frame *frame)
{
    rdv_meeting *meeting = NULL;
    const char *why =
        rdv_store_meet(&server->store, frame->key, frame->key_bytes, frame->kind == RDV_DIGEST,
                       conn->rank, frame->number, &meeting);
    if (why != NULL) {
        rdv_conn_send_text(conn, RDV_ERROR, 0, why);
        return;
    }
    open_request(conn, frame);
    if (!meeting->closed) {
        return;
    }
    uint32_t usual = 0;
    uint32_t differs = server->store.size;
    if (meeting->is_digest) {
        rdv_meeting_differs(meeting, server->store.size, &usual, &differs);
    }
    const rdv_frame answer = {.kind = RDV_DONE,
                              .rank = usual,
                              .number = differs < server->store.size ? 1 + (uint64_t)differs : 0};
    for (uint32_t c = 0; c < server->n_conns; ++c) {
        if (waits_for(server->conns[c], frame->kind, frame->key, frame->key_bytes)) {
            server->conns[c]->open = (rdv_kind)0;
            rdv_conn_send(server->conns[c], &answer);
        }
    }
}

static void on_beat(rdv_rank *rank, const rdv_frame *frame)
{
    if (frame->value_bytes < 8) {
        return;
    }
    uint64_t step = 0;
    for (size_t i = 0; i < 8; ++i) {
        step |= (uint64_t)frame->value[i] << (8 * i);
    }
    rank->step = step;
    rank->sequence = frame->number;
    (void)snprintf(rank->what, sizeof rank->what, "%.*s", (int)(frame->value_bytes - 8),
                   (const char *)frame->value + 8);
}

static void on_abort(dsi_rdv_server *server, const rdv_conn *conn, const rdv_frame *frame)
{
    char reason[DSI_RDV_TEXT_BYTES];
    char who[32] = "";
    if (frame->number == 0) { /* else the text says it */
        (void)snprintf(who, sizeof who, "rank %u gives up: ", conn->rank);
    }
    (void)snprintf(reason, sizeof reason, "%s%.*s", who,
                   (int)(frame->value_bytes < 400 ? frame->value_bytes : 400),
                   (const char *)frame->value);
    rdv_server_notify(server, conn->rank, reason);
}

void rdv_server_request(dsi_rdv_server *server, rdv_conn *conn, const rdv_frame *frame)
{
    char text[8 * DSI_RDV_TEXT_BYTES];
    uint32_t missing;
    rdv_rank *rank = &server->ranks[conn->rank];
    rank->heard = dsi_clock_seconds();
    if (frame->kind < RDV_BEAT) { /* a request: it ends an open one, whose sender gave up */
        conn->serial = frame->serial;
        conn->open = (rdv_kind)0;
    }
    switch (frame->kind) {
    case RDV_PUT:
        on_put(server, conn, frame);
        return;
    case RDV_GET:
    case RDV_WAIT:
        on_get(server, conn, frame);
        return;
    case RDV_BARRIER:
    case RDV_DIGEST:
        on_meet(server, conn, frame);
        return;
    case RDV_ASK:
        if (frame->rank >= server->store.size) {
            rdv_conn_send_text(conn, RDV_ERROR, 0, "no such rank");
            return;
        }
        rdv_server_status(server, frame->rank, text, DSI_RDV_TEXT_BYTES);
        rdv_conn_send_text(conn, RDV_DONE, frame->rank, text);
        return;
    case RDV_MISSING:
        missing =
            missing_text(server, rdv_store_meeting(&server->store, frame->key, frame->key_bytes),
                         frame->key_bytes == 0, text, sizeof text);
        rdv_conn_send(conn, &(rdv_frame){.kind = RDV_DONE,
                                         .rank = lowest_here(server, conn->rank),
                                         .number = missing,
                                         .value = (const uint8_t *)text,
                                         .value_bytes = strlen(text)});
        return;
    case RDV_BEAT:
        on_beat(rank, frame);
        return;
    case RDV_ABORT:
        on_abort(server, conn, frame);
        return;
    case RDV_BYE:
        rank->left = true;
        conn->ended = true;
        return;
    default:
        conn->ended = true;
    }
}
