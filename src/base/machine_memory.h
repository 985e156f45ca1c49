/* SPDX-License-Identifier: Apache-2.0 */
/* How much memory there is for this process. */
#ifndef DSI_BASE_MACHINE_MEMORY_H
#define DSI_BASE_MACHINE_MEMORY_H

#include <stddef.h>

/* Bytes that this process may use: the machine's memory, or the limit of its control group, or of
 * one that holds that, when it is lower. 0: unknown. Any thread. Source: the Linux kernel's
 * Documentation/admin-guide/cgroup-v2.rst (memory.max), cgroup-v1/memory.rst (limit_in_bytes). */
size_t dsi_machine_memory(void);

/* The same from other files, for tests: /proc/meminfo, /proc/self/cgroup, /sys/fs/cgroup. */
size_t dsi_machine_memory_of(const char *meminfo, const char *groups, const char *root);

#endif
