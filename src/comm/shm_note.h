/* SPDX-License-Identifier: Apache-2.0 */
/* The datagrams with which processes of one host meet. Shared by shm_note.c, shm_meet.c and
 * shm_stand_in.c alone.
 *
 * Each rank binds a socket in the abstract name space (no file), named by a hash of the job's
 * secret and its rank. A datagram counts only when the kernel says that it comes from the same
 * user, and it carries a second hash of the secret. Sizes are fixed.
 */
#ifndef DSI_COMM_SHM_NOTE_H
#define DSI_COMM_SHM_NOTE_H

#include "comm/job_name.h"
#include "comm/shm_impl.h"

typedef enum shm_note_kind {
    NOTE_HELLO = 1, /* text: the card, see shm.h */
    NOTE_MEMORY,
    NOTE_REFUSED,
    NOTE_MISSING, /* rank 0 reports to those that wait with it who is missing; tag: the first of
                     them */
    NOTE_GONE     /* in the place of a rank that ended and never came: how it ended */
} shm_note_kind;

typedef struct shm_note {
    uint64_t magic, token, tag;
    uint32_t kind, rank, size, block_bytes;
    int64_t pid;
    char text[DSI_JOB_CARD_BYTES];
} shm_note;

/* What the job's meeting is called: socket names and token. */
void shm_note_name(const dsi_shm_params *params, shm_job *job);

/* Binds job->socket to this rank's name. Errors: ERR_PEER, a process is this rank already; ERR_IO.
 */
ds_status shm_note_open(ds_ctx *ctx, shm_job *job);

shm_note shm_note_make(const shm_job *job, shm_note_kind kind, uint64_t tag);

/* 0 or an errno. fd < 0: none goes along. Waits for room, but not with NOTE_MISSING. */
int shm_note_send(const shm_job *job, uint32_t to, const shm_note *what, int fd);

/* One datagram of ours; false after a tenth of a second without. *fd_out: -1 or the caller's. */
bool shm_note_receive(const shm_job *job, shm_note *what, int *fd_out);

#endif
