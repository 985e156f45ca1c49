/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the kernel ended a process for want of memory. Called by supervise.c.
 *
 * Evidence, best first: the kernel log names the process (readable for root, mostly); the count of
 * kills in this control group rose (memory.events of version 2, memory.oom_control of version 1);
 * the count of the whole machine rose (/proc/vmstat), which is said to be no proof.
 */
#ifndef DSI_LAUNCH_OOM_H
#define DSI_LAUNCH_OOM_H

#include "base/buf.h"
#include <stdint.h>
#include <sys/types.h>

enum { DSI_OOM_PATH = 1024 };

typedef struct dsi_oom {
    char cgroup[DSI_OOM_PATH]; /* file with the count "oom_kill N"; "" when there is none */
    int64_t cgroup_kills;      /* at the start */
    int64_t machine_kills;     /* at the start; -1: unknown */
    int kernel_log;            /* /dev/kmsg, placed after its newest line; -1: not readable */
} dsi_oom;

/* root: "" or a folder before /proc and /sys, for tests. Never fails: what cannot be read gives no
 * evidence. */
void dsi_oom_start(dsi_oom *oom, const char *root);
/* Whether pid, which ended by SIGKILL that the launcher did not send, was killed for want of
 * memory; appends how that is known ("the kernel log says: …"). */
bool dsi_oom_killed(dsi_oom *oom, const char *root, pid_t pid, dsi_buf *how);
void dsi_oom_stop(dsi_oom *oom);

#endif
