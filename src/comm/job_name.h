/* SPDX-License-Identifier: Apache-2.0 */
/* What names a job among those of a user on one host, from the environment. Called by comm_open.c
 * and shm_meet.c. */
#ifndef DSI_COMM_JOB_NAME_H
#define DSI_COMM_JOB_NAME_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DSI_JOB_NAME_BYTES = 2400, DSI_JOB_CARD_BYTES = 1024, DSI_JOB_PLACE_BYTES = 512 };

#define DSI_CARD_SECRET "DS_JOB_SECRET"

/* The name of the meeting: the launcher's where it started the ranks, else of all variables that
 * tell jobs apart. The same on all ranks. */
void dsi_job_name(char name[DSI_JOB_NAME_BYTES]);

/* Those variables, a line "NAME=VALUE" each, long values cut, of the secret a digest: ranks that
 * meet have the same. */
void dsi_job_card(char card[DSI_JOB_CARD_BYTES]);

/* Whether a rank's card is another than that of rank 0; text_out then names the first difference.
 */
bool dsi_job_card_differs(const char *of_0, const char *of_rank, uint32_t rank, char *text_out,
                          size_t n);

/* User, MASTER_ADDR and MASTER_PORT; "" without a port. */
void dsi_job_place(char place[DSI_JOB_PLACE_BYTES]);

#endif
