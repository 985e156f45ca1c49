/* SPDX-License-Identifier: Apache-2.0 */
/* Writing a large file past the page cache. Inside of file_out.c.
 *
 * The caller fills one buffer while a thread writes the other: copies and checksums cost no time
 * that the disk could use, and no page cache is filled and flushed. A file system that cannot write
 * so is written through the page cache by the same thread.
 */
#ifndef DSI_IO_FILE_DIRECT_H
#define DSI_IO_FILE_DIRECT_H

#include <stddef.h>

/* Bytes that one such file holds while it is written. */
#define DSI_DIRECT_BYTES ((size_t)8 << 20)
/* Files below this gain nothing. */
#define DSI_DIRECT_MIN ((size_t)32 << 20)

typedef struct dsi_direct dsi_direct;

/* Takes over the writes of an empty file that is open for writing. NULL: not enough memory or no
 * thread; the caller writes by itself then. */
dsi_direct *dsi_direct_start(int fd);
/* Appends; 0, or the errno of a write that failed, at once or at any later call. The four calls
 * come from one thread; write and drain allocate nothing. */
int dsi_direct_write(dsi_direct *d, const void *data, size_t n);
/* Waits until every byte is with the file system; nothing is appended after it. */
int dsi_direct_drain(dsi_direct *d);
/* Ends the thread and frees; does not close the file. Accepts NULL and *d == NULL. */
void dsi_direct_end(dsi_direct **d);

#endif
