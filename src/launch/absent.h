/* SPDX-License-Identifier: Apache-2.0 */
/* A rank that ends well before the ranks have met would leave the others waiting: the launcher
 * alone knows that it will not come. In its place stands a process that reports it to them. See
 * supervise.h. */
#ifndef DSI_LAUNCH_ABSENT_H
#define DSI_LAUNCH_ABSENT_H

#include "launch/supervise.h"

enum { DSI_ABSENT_TAKEN = 10 }; /* exit code of that process: a rank waited, and has been told */

/* Starts it for a task that ended with exit code 0; its environment is the task's. Returns the
 * process, 0 when there is none: the others then wait as long as they would have. It ends by itself
 * when a rank has been told, or when it learns that the task's rank had joined; else the launcher
 * ends it with what is left over. */
pid_t dsi_absent_start(const dsi_task *task, const char *host);

#endif
