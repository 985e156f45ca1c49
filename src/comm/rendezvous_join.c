/* SPDX-License-Identifier: Apache-2.0 */
/* How a rank joins the rendezvous and leaves it. See rendezvous.h. */
#include "comm/rendezvous_client.h"

#include "base/clock.h"
#include "comm/launcher_note.h"
#include "comm/meet_wait.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

static void free_rdv(dsi_rdv *rdv)
{
    if (rdv->fd >= 0) {
        (void)close(rdv->fd);
    }
    (void)pthread_mutex_destroy(&rdv->requests);
    (void)pthread_mutex_destroy(&rdv->write);
    (void)pthread_mutex_destroy(&rdv->state);
    (void)pthread_cond_destroy(&rdv->answered);
    free(rdv->read);
    free(rdv->frame);
    free(rdv->answer_value);
    free(rdv);
}

/* Proves both sides to one another. DS_IN_PROGRESS: no answer, closed at once; try again. */
static ds_status greet(dsi_rdv *rdv, const dsi_rdv_options *options, int milliseconds)
{
    uint8_t value[RDV_NONCE_BYTES + RDV_PROOF_BYTES];
    uint8_t server_nonce[RDV_NONCE_BYTES];
    uint8_t proof[RDV_PROOF_BYTES];
    rdv_frame frame;
    ds_status status = rdv_read(rdv, milliseconds, &frame);
    if (status == DS_IN_PROGRESS || status == DS_ERR_PEER) {
        return DS_IN_PROGRESS;
    }
    if (status < 0 || frame.kind != RDV_HELLO || frame.value_bytes != RDV_NONCE_BYTES) {
        return ds_fail(rdv->ctx, DS_ERR_CONFIG,
                       "what listens at %s is not the rendezvous of a job; MASTER_PORT is taken",
                       rdv->where);
    }
    memcpy(server_nonce, frame.value, sizeof server_nonce);
    if (getrandom(value, RDV_NONCE_BYTES, 0) != RDV_NONCE_BYTES) {
        return ds_fail(rdv->ctx, DS_ERR_IO, "no random numbers: %s", strerror(errno));
    }
    rdv_proof(options->secret, 'C', server_nonce, value, rdv->rank, rdv->size,
              value + RDV_NONCE_BYTES);
    (void)rdv_send(rdv, &(rdv_frame){.kind = RDV_JOIN,
                                     .rank = rdv->rank,
                                     .number = rdv->size,
                                     .value = value,
                                     .value_bytes = sizeof value});
    status = rdv_read(rdv, milliseconds, &frame);
    if (status == DS_IN_PROGRESS || status == DS_ERR_PEER) {
        return DS_IN_PROGRESS;
    }
    if (status == DS_OK && frame.kind == RDV_REFUSE) {
        return ds_fail(rdv->ctx, DS_ERR_CONFIG, "the rendezvous at %s refuses rank %u: %.*s",
                       rdv->where, rdv->rank, (int)frame.value_bytes, (const char *)frame.value);
    }
    rdv_proof(options->secret, 'S', server_nonce, value, rdv->rank, rdv->size, proof);
    if (status < 0 || frame.kind != RDV_WELCOME || frame.value_bytes != sizeof proof ||
        !rdv_same(proof, frame.value, sizeof proof)) {
        return ds_fail(rdv->ctx, DS_ERR_CONFIG,
                       "what listens at %s does not know the secret of this job (DS_JOB_SECRET)",
                       rdv->where);
    }
    rdv_proof(options->secret, 'K', server_nonce, value, rdv->rank, rdv->size, rdv->in.key);
    memcpy(rdv->out.key, rdv->in.key, sizeof rdv->out.key);
    rdv->in.proved = rdv->out.proved = true;
    return DS_OK;
}

static ds_status connect_and_greet(dsi_rdv *rdv, const dsi_rdv_options *options)
{
    char why[DSI_RDV_TEXT_BYTES] = "";
    char who[2 * DSI_RDV_TEXT_BYTES];
    dsi_meet_wait wait = dsi_meet_wait_begin(options->timeout);
    long pause = 10000000; /* 10 ms, growing to 0.5 s */
    for (;;) {
        const double left = dsi_meet_wait_left(&wait);
        const double patience = left < 5.0 ? (left > 0.1 ? left : 0.1) : 5.0;
        ds_status status = rdv_connect(rdv->ctx, options, patience, &rdv->fd, why, sizeof why);
        if (status == DS_OK) {
            status = greet(rdv, options, (int)(patience * 1000.0));
            if (status == DS_IN_PROGRESS) {
                (void)close(rdv->fd);
                rdv->fd = -1;
                rdv->read_bytes = rdv->handled_bytes = 0;
                (void)snprintf(why, sizeof why, "it closes the connection or does not answer");
            }
        }
        if (status != DS_IN_PROGRESS) {
            return status;
        }
        if (left <= 0.0) {
            dsi_launcher_report_absent(0, options->timeout);
            return ds_fail(
                rdv->ctx, DS_ERR_PEER,
                "rank 0 did not join within %g s: rank %u cannot reach the rendezvous at "
                "%s (%s). Is rank 0 running, are MASTER_ADDR and MASTER_PORT right, is "
                "the port open?",
                options->timeout, rdv->rank, rdv->where, why);
        }
        if (dsi_meet_wait_due(&wait)) {
            (void)snprintf(who, sizeof who, "rank 0, whose rendezvous is at %s (%s),", rdv->where,
                           why);
            dsi_meet_wait_say(rdv->ctx, &wait, rdv->rank, who);
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = pause}, NULL);
        pause = pause < 250000000 ? 2 * pause : 500000000;
    }
}

ds_status dsi_rdv_join(ds_ctx *ctx, const dsi_rdv_options *options, dsi_rdv **rdv_out)
{
    dsi_rdv *rdv = calloc(1, sizeof *rdv);
    if (rdv == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the rendezvous");
    }
    *rdv = (dsi_rdv){.ctx = ctx,
                     .rank = options->rank,
                     .size = options->size,
                     .fd = -1,
                     .in = {.direction = 'S'},
                     .out = {.direction = 'C'},
                     .read = malloc(RDV_FRAME_BYTES),
                     .frame = malloc(RDV_FRAME_BYTES)};
    (void)pthread_mutex_init(&rdv->requests, NULL);
    (void)pthread_mutex_init(&rdv->write, NULL);
    (void)pthread_mutex_init(&rdv->state, NULL);
    (void)pthread_cond_init(&rdv->answered, NULL);
    (void)snprintf(rdv->where, sizeof rdv->where, "%.50s port %u",
                   options->host != NULL ? options->host : "", options->port);
    ds_status status = DS_OK;
    if (rdv->read == NULL || rdv->frame == NULL) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory for the rendezvous");
    }
    if (status == DS_OK) {
        status = connect_and_greet(rdv, options);
    }
    if (status == DS_OK && pthread_create(&rdv->thread, NULL, rdv_run, rdv) != 0) {
        status = ds_fail(ctx, DS_ERR_NOMEM, "no thread for the rendezvous");
    }
    if (status != DS_OK) {
        free_rdv(rdv);
        return status;
    }
    *rdv_out = rdv;
    return DS_OK;
}

void dsi_rdv_leave(dsi_rdv **rdv_inout)
{
    dsi_rdv *rdv = rdv_inout != NULL ? *rdv_inout : NULL;
    if (rdv == NULL) {
        return;
    }
    (void)pthread_mutex_lock(&rdv->state);
    rdv->leaving = true;
    (void)pthread_mutex_unlock(&rdv->state);
    (void)rdv_send(rdv, &(rdv_frame){.kind = RDV_BYE, .rank = rdv->rank});
    (void)shutdown(rdv->fd, SHUT_WR);
    (void)pthread_join(rdv->thread, NULL);
    free_rdv(rdv);
    *rdv_inout = NULL;
}
