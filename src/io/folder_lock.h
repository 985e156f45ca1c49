/* SPDX-License-Identifier: Apache-2.0 */
/* A folder that one process at a time writes: a lock (flock) on DIR/.ds_lock.
 *
 * The file holds host, process id, its start and the boot id of its owner, for the message to a
 * second process. The kernel drops the lock with its owner, however that ends: what a killed
 * process leaves is a file that nobody holds, and the next one takes it over. A file system without
 * flock gives no lock: that is a warning. On NFS the lock holds between hosts (the client sends it
 * to the server; with the mount option local_lock it does not); Lustre needs the mount option
 * flock. A process may take a folder that it holds already: the second lock is empty.
 */
#ifndef DSI_IO_FOLDER_LOCK_H
#define DSI_IO_FOLDER_LOCK_H

#include <deepspeed/status.h>

typedef struct dsi_folder_lock {
    char *path; /* of the lock file; NULL: nothing is held */
    int fd;
} dsi_folder_lock;

/* Errors: ERR_STATE (another process holds it: names host and process id), ERR_IO, ERR_NOMEM. */
ds_status dsi_folder_lock_take(ds_ctx *ctx, const char *folder, dsi_folder_lock *lock_out);
/* Removes the file and lets go. Accepts an empty lock. */
void dsi_folder_lock_release(dsi_folder_lock *lock);

#endif
