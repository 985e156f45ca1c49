/* SPDX-License-Identifier: Apache-2.0 */
/* What stands where an output is to go, and how it is therefore written. */
#ifndef DSI_IO_FILE_PLACE_H
#define DSI_IO_FILE_PLACE_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <sys/stat.h>

typedef enum dsi_place_form {
    DSI_PLACE_FILE,  /* a regular file, or nothing: replaced whole, from beside it */
    DSI_PLACE_STREAM /* a pipe, a device, or a descriptor of this process: written as it is */
} dsi_place_form;

typedef struct dsi_place {
    dsi_place_form kind;
    char *path;     /* every link at its end followed: renaming to it replaces no link */
    int descriptor; /* that the path names, such as 1 for /dev/stdout; -1: none */
    bool taken;     /* FILE: a file is there, and `st` says what it is */
    struct stat st;
} dsi_place;

/* Looks, and opens nothing: a pipe's reader sees no end of file. What nobody may write, a folder
 * and a disk are refused. The caller frees the place. */
ds_status dsi_place_look(ds_ctx *ctx, const char *path, dsi_place *place_out);
/* Opens it for writing where it is, with open's `flags` besides; a pipe waits for its reader.
 * path: what messages call it. */
ds_status dsi_place_open(ds_ctx *ctx, const dsi_place *place, const char *path, int flags,
                         int *fd_out);
/* Gives the file `fd`, which is to replace the one there, its owner and mode, as far as the system
 * lets this process. */
void dsi_place_dress(const dsi_place *place, int fd);
void dsi_place_free(dsi_place *place);

#endif
