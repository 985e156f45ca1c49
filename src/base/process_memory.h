/* SPDX-License-Identifier: Apache-2.0 */
/* What memory this process has, measured. Called for reports; allocates nothing. */
#ifndef DSI_BASE_PROCESS_MEMORY_H
#define DSI_BASE_PROCESS_MEMORY_H

#include <stddef.h>

/* Bytes; 0 where the system does not say. */
typedef struct dsi_process_memory {
    size_t anonymous; /* resident, of this process alone */
    size_t shared;    /* its part of resident shared memory */
    size_t files;     /* resident of mapped files: programs, libraries, weights */
    size_t peak;      /* the most that was resident, all together */
    size_t machine_used, machine_memory; /* of the machine: not available, all */
} dsi_process_memory;

void dsi_process_memory_read(dsi_process_memory *memory_out);

/* Gives freed memory of the allocator back to the system, where it can: after work that needed much
 * for a short time. */
void dsi_process_memory_trim(void);

/* Lets go of the pages of a file that is mapped to be read, and that were read: they come again
 * when they are. Other memory would lose its contents, also what shares its first and last page. */
void dsi_process_memory_release(const void *data, size_t bytes);

/* How many of these bytes of mapped memory are resident. */
size_t dsi_resident_bytes(const void *data, size_t bytes);

#endif
