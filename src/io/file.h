/* SPDX-License-Identifier: Apache-2.0 */
/* Files that appear whole or not at all, folders likewise, and read-only maps.
 *
 * A staged file or folder is written under a temporary name beside its place
 * (".NAME.ds_tmp.1a2b3c4d"), synced, renamed, and the folder around it synced. The writer holds a
 * lock (flock) on what it stages, so that leftovers of a killed process are told from the work of a
 * living one, and are removed by the next writer. Every output whose path a user gives is begun by
 * dsi_file_stage or dsi_file_stream: both look at what is there and replace no link, no pipe and no
 * device. Folders are replaced and removed by their own name: no link at it is followed. Called by
 * safetensors, checkpoints, data files, metrics.
 */
#ifndef DSI_IO_FILE_H
#define DSI_IO_FILE_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

/* Records "cannot VERB PATH: reason" with a remedy for the common ones; ERR_NOT_FOUND for ENOENT,
 * ERR_NOMEM for ENOMEM, else ERR_IO. */
ds_status dsi_io_fail(ds_ctx *ctx, const char *verb, const char *path, int reason);

/* ---- writing ---- */

typedef struct dsi_file_out dsi_file_out;

/* Starts a file that replaces `path` at dsi_file_commit, and takes owner and mode of what was
 * there. A link stays, the file that it names is replaced, or made where there is none; a pipe, a
 * device or a descriptor of this process (/dev/stdout) is opened now and written as it is. Errors:
 * ERR_NOT_FOUND (no such folder), ERR_IO (a folder, a disk, no permission). */
ds_status dsi_file_stage(ds_ctx *ctx, const char *path, dsi_file_out **file_out);
/* Whether dsi_file_stage would start: for the time before the work. Nothing there changes, and a
 * pipe's reader sees nothing of it. */
ds_status dsi_file_check(ds_ctx *ctx, const char *path);
/* Opens a file that grows in its place while others read it, such as a log: emptied first, or
 * appended to. Places and errors as for dsi_file_stage; a descriptor of this process is not
 * emptied. */
ds_status dsi_file_stream(ds_ctx *ctx, const char *path, bool append, FILE **stream_out);
/* Starts a new file under its own name; an existing one is an error. For files inside of a staged
 * folder. */
ds_status dsi_file_create(ds_ctx *ctx, const char *path, dsi_file_out **file_out);
/* Asks the file system for the room, so that a full disk is known before the work is done. A large
 * file (32 MiB) that is reserved before its first write goes past the page cache, by way of buffers
 * and a thread made here. */
ds_status dsi_file_reserve(dsi_file_out *file, uint64_t bytes);
/* Writes all of it; short writes and interruptions are continued. */
ds_status dsi_file_write(dsi_file_out *file, const void *data, size_t n);
uint64_t dsi_file_size(const dsi_file_out *file);   /* bytes written so far */
uint64_t dsi_file_digest(const dsi_file_out *file); /* XXH3-64 of them */
/* Brings what was written to the disk, so that the sync to come is short. */
ds_status dsi_file_flush(dsi_file_out *file);
/* The name under which it is written until then, NULL for a pipe or a device; lasts as long as the
 * file. */
const char *dsi_file_staged(const dsi_file_out *file);
/* The file that commit replaces, links followed; NULL where it replaces none. */
const char *dsi_file_place(const dsi_file_out *file);
/* Syncs and puts it in its place. Neither this nor dsi_file_write allocates. What remains is
 * dsi_file_abort, which removes nothing after a success. */
ds_status dsi_file_finish(dsi_file_out *file);
/* The same, and frees *file whatever the outcome. */
ds_status dsi_file_commit(dsi_file_out **file);
/* Removes what was written and frees. Accepts NULL and *file == NULL. */
void dsi_file_abort(dsi_file_out **file);
/* Stage, write and commit of one piece. */
ds_status dsi_file_replace(ds_ctx *ctx, const char *path, const void *data, size_t n);
/* Copies a regular file, staged, through bounded memory. */
ds_status dsi_file_copy(ds_ctx *ctx, const char *from, const char *to);

/* ---- folders ---- */

typedef struct dsi_stage {
    char *path; /* of the temporary folder */
    int lock;   /* descriptor that holds the lock */
} dsi_stage;

/* Creates the folder and those above it, where they are missing. */
ds_status dsi_folder_make(ds_ctx *ctx, const char *path);
ds_status dsi_folder_sync(ds_ctx *ctx, const char *path);
/* Removes a file, a link or a whole tree. What is not there is no error. */
ds_status dsi_folder_remove(ds_ctx *ctx, const char *path);
/* Creates a staged folder inside of `parent`, to become parent/name. */
ds_status dsi_folder_stage(ds_ctx *ctx, const char *parent, const char *name, dsi_stage *stage_out);
/* Syncs the staged folder and makes it parent/name, replacing what is there in one step where the
 * file system can (renameat2), else by way of ".NAME.ds_old", which dsi_folder_clean and
 * dsi_folder_resolve know. allow_exchange false forces the second way (for tests). */
ds_status dsi_folder_publish(ds_ctx *ctx, dsi_stage *stage, const char *parent, const char *name,
                             bool allow_exchange);
/* The parts of dsi_folder_publish. Between prepare and end, run allocates nothing; what it replaced
 * is removed by end (the stage is gone then; one that was not published is removed). */
typedef struct dsi_publish {
    char *parent, *place, *old;
    enum {
        DSI_PUBLISH_NOT_YET,
        DSI_PUBLISH_DONE,
        DSI_PUBLISH_TEMP_LEFT, /* the replaced folder has the temporary name */
        DSI_PUBLISH_OLD_LEFT   /* … has the name `old` */
    } state;
} dsi_publish;
ds_status dsi_publish_prepare(ds_ctx *ctx, const char *parent, const char *name,
                              dsi_publish *publish_out);
ds_status dsi_publish_run(ds_ctx *ctx, dsi_publish *publish, const dsi_stage *stage,
                          bool allow_exchange);
ds_status dsi_publish_end(ds_ctx *ctx, dsi_publish *publish, dsi_stage *stage);
/* Whether files of these names can be put into the folder: what has such a name must be a file or a
 * link to one or to nothing; a pipe or a device is no part of a model or a checkpoint. Error:
 * ERR_IO and others of dsi_file_stage. */
ds_status dsi_folder_takes(ds_ctx *ctx, const char *folder, const char *const *names, size_t n);
/* Moves the files of the staged folder into an existing one, in the order of their names, each
 * replacing what has its name (see dsi_folder_takes, which is asked before anything moves), and
 * removes the stage. For folders that hold more than the staged
 * files. names_out gets the sorted names; the caller frees them with dsi_names_free. */
ds_status dsi_folder_merge(ds_ctx *ctx, dsi_stage *stage, const char *folder, char ***names_out,
                           size_t *n_out);
/* The sorted names in a folder, "." and ".." left out. */
ds_status dsi_folder_list(ds_ctx *ctx, const char *folder, char ***names_out, size_t *n_out);
void dsi_names_free(char **names, size_t n);
/* Removes the staged folder. Accepts an empty stage. */
void dsi_folder_unstage(dsi_stage *stage);
/* Removes parent/name, out of sight first: a killed removal leaves no half of it under its name. */
ds_status dsi_folder_discard(ds_ctx *ctx, const char *parent, const char *name);
/* Removes leftovers of killed writers in `parent`: of one name, or of all (name NULL). Those whose
 * writer lives stay. A folder that a killed replacement left as ".NAME.ds_old" gets its name back.
 * Best effort: what cannot be removed stays. */
void dsi_folder_clean(const char *parent, const char *name);
/* Path of parent/name, or of its ".ds_old" where a killed replacement left only that. The caller
 * frees it; NULL when out of memory. */
char *dsi_folder_resolve(const char *parent, const char *name);

/* "a/b" of "a" and "b", from malloc; NULL when out of memory. */
char *dsi_path_join(const char *folder, const char *name);
/* The folder part of a path ("." when there is none), from malloc. */
char *dsi_path_folder(const char *path);
/* The part after the last slash, borrowed. */
const char *dsi_path_name(const char *path);
/* Whether text is one plain file name: not empty, no slash, not "." or "..", no control character,
 * at most 200 bytes. Names from files and flags pass this before they touch a path. */
bool dsi_path_is_plain(const char *name);

/* ---- reading ---- */

typedef struct dsi_map {
    const uint8_t *data; /* of an empty file: of no bytes, yet not NULL */
    size_t size;
} dsi_map;

enum { DSI_MAP_NO_LINK = 1 }; /* a symbolic link is refused */

/* Maps a regular file read-only. Errors: ERR_NOT_FOUND, ERR_IO (no regular file, unreadable). */
ds_status dsi_map_open(ds_ctx *ctx, const char *path, uint32_t flags, dsi_map *map_out);
void dsi_map_close(dsi_map *map);

#endif
