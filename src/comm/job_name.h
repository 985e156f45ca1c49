/* SPDX-License-Identifier: Apache-2.0 */
/* What names a job among those of a user on one host, from the environment. Called by comm_open.c
 * and shm_meet.c. */
#ifndef DSI_COMM_JOB_NAME_H
#define DSI_COMM_JOB_NAME_H

#include <stddef.h>

enum { DSI_JOB_NAME_BYTES = 2400, DSI_JOB_CARD_BYTES = 1024 };

/* The name of the meeting: the launcher's where it started the ranks, else of all variables that
 * tell jobs apart. The same on all ranks. */
void dsi_job_name(char name[DSI_JOB_NAME_BYTES]);

/* Those variables, a line "NAME=VALUE" each, long values cut: ranks that meet have the same. */
void dsi_job_card(char card[DSI_JOB_CARD_BYTES]);

#endif
