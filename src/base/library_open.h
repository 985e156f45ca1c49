/* SPDX-License-Identifier: Apache-2.0 */
/* Shared objects, opened only where their file is whole: the loader maps what the headers of a file
 * promise, and a process that touches what a cut file lacks is killed by SIGBUS. Called by
 * module.c, accel_module.c and, in the module of cuda, library_load.c; it uses nothing of the
 * library.
 */
#ifndef DSI_BASE_LIBRARY_OPEN_H
#define DSI_BASE_LIBRARY_OPEN_H

#include <stdbool.h>
#include <stddef.h>

/* As dlopen: name is a path, or, without a slash, looked for as the loader does; of those, the
 * files that LD_LIBRARY_PATH leads to are checked, the system's are not. NULL: why says why not,
 * *there_out whether there is something of that name. */
void *dsi_library_open(const char *name, int mode, bool *there_out, char *why, size_t n);

#endif
