/* SPDX-License-Identifier: Apache-2.0 */
/* What the rendezvous server answers: who joins, values, who is missing, notices of
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

/* Who has not joined the job. Returns the first of them. */
static uint32_t missing_text(const dsi_rdv_server *server, char *text, size_t n)
{
    size_t used = 0;
    uint32_t more = 0;
    uint32_t first = server->size;
    text[0] = '\0';
    for (uint32_t r = 0; r < server->size; ++r) {
        if (server->ranks[r].ever) {
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
    for (uint32_t r = 0; r < server->size; ++r) {
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
    const uint32_t size = server->size;
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

static bool waits_for(const rdv_conn *conn, const char *key, size_t n)
{
    return conn->waits && conn->wait_bytes == n && memcmp(conn->wait_key, key, n) == 0;
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
        if (waits_for(server->conns[c], frame->key, frame->key_bytes)) {
            server->conns[c]->waits = false;
            send_entry(server->conns[c], entry);
        }
    }
}

static void on_wait(dsi_rdv_server *server, rdv_conn *conn, const rdv_frame *frame)
{
    const rdv_entry *entry = rdv_store_get(&server->store, frame->key, frame->key_bytes);
    if (entry != NULL) {
        send_entry(conn, entry);
    } else {
        conn->waits = true;
        conn->wait_bytes = frame->key_bytes;
        memcpy(conn->wait_key, frame->key, frame->key_bytes);
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
        conn->waits = false;
    }
    switch (frame->kind) {
    case RDV_PUT:
        on_put(server, conn, frame);
        return;
    case RDV_WAIT:
        on_wait(server, conn, frame);
        return;
    case RDV_ASK:
        if (frame->rank >= server->size) {
            rdv_conn_send_text(conn, RDV_ERROR, 0, "no such rank");
            return;
        }
        rdv_server_status(server, frame->rank, text, DSI_RDV_TEXT_BYTES);
        rdv_conn_send_text(conn, RDV_DONE, frame->rank, text);
        return;
    case RDV_MISSING:
        missing = missing_text(server, text, sizeof text);
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
