/* SPDX-License-Identifier: Apache-2.0 */
/* Which machine this is, since which start: equal on all processes of one running kernel, and never
 * on two. For what asks whether files, clocks or memory are the same. */
#ifndef DSI_BASE_MACHINE_ID_H
#define DSI_BASE_MACHINE_ID_H

#include <stdint.h>

/* A hash of the kernel's boot id. Where that cannot be read, a random number of this process: it
 * then shares nothing with the others, which costs time and is never wrong. Any thread; the same
 * at each call. */
uint64_t dsi_machine_id(void);

/* The same of another file, for tests: a random number at each call where it has no line. */
uint64_t dsi_machine_id_of(const char *path);

#endif
