/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for ranks to meet: who is missing is said while the others wait, not only at the end.
 * Used by shm_meet.c and rendezvous_wait.c and _join.c. */
#ifndef DSI_COMM_MEET_WAIT_H
#define DSI_COMM_MEET_WAIT_H

#include <deepspeed/context.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dsi_meet_wait {
    double begin, next; /* clock seconds: since when; of the next line */
    double timeout;     /* 0: for ever */
} dsi_meet_wait;

dsi_meet_wait dsi_meet_wait_begin(double timeout);

/* Whether the time is over; the seconds that are left, a large number where there is no end. */
bool dsi_meet_wait_over(const dsi_meet_wait *wait);
double dsi_meet_wait_left(const dsi_meet_wait *wait);

/* Whether a line is due: after 5 s, then whenever the wait has doubled. */
bool dsi_meet_wait_due(dsi_meet_wait *wait);

/* Logs "rank 0 waits for WHO since 5 s, …", with what ends it. */
void dsi_meet_wait_say(ds_ctx *ctx, const dsi_meet_wait *wait, uint32_t rank, const char *who);

/* "rank 1", "ranks 1, 3 and 5 more" of those whose `came` is false. */
void dsi_meet_missing(const bool *came, uint32_t size, char *text, size_t n);

#endif
