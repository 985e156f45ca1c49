/* SPDX-License-Identifier: Apache-2.0 */
/* The record of what a save folder held when a run began. See ckpt_begun.h.
 *
 * A checkpoint of the record is known by its tag and the inode of its folder: a new one of the same
 * tag is another folder, exchanged for it in one step.
 */
#include "ckpt/ckpt_begun.h"

#include "ckpt/ckpt_internal.h"

#include <deepspeed/checkpoint.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define RECORD ".ds_begun"

typedef struct begun {
    bool there;
    char *text; /* of the record, between newlines; "" when there is none */
    ds_checkpoint_entry *list;
    size_t n;
} begun;

static void close_begun(begun *b)
{
    free(b->text);
    ds_checkpoint_list_free(b->list, b->n);
    *b = (begun){0};
}

static ds_status no_memory(ds_ctx *ctx, const char *dir)
{
    return ds_fail(ctx, DS_ERR_NOMEM, "out of memory reading %s", dir);
}

/* "\nINODE TAG\n"; false when the folder cannot be seen. */
static bool line_of(const char *dir, const char *tag, char line[300])
{
    char *folder = dsi_folder_resolve(dir, tag);
    struct stat st;
    const bool seen = folder != NULL && stat(folder, &st) == 0;
    if (seen) {
        (void)snprintf(line, 300, "\n%" PRIu64 " %s\n", (uint64_t)st.st_ino, tag);
    }
    free(folder);
    return seen;
}

static bool is_old(const begun *b, const char *dir, const char *tag)
{
    char line[300];
    return line_of(dir, tag, line) && strstr(b->text, line) != NULL;
}

/* The newest checkpoint that the run which began has saved; NULL: none yet. */
static const ds_checkpoint_entry *newest_new(const begun *b, const char *dir)
{
    for (size_t i = b->there ? b->n : 0; i-- > 0;) {
        const bool right = b->list[i].whole || b->list[i].n_elsewhere > 0;
        if (right && !is_old(b, dir, b->list[i].tag)) {
            return &b->list[i];
        }
    }
    return NULL;
}

static ds_status open_begun(ds_ctx *ctx, const char *dir, begun *out)
{
    char *path = dsi_path_join(dir, RECORD);
    dsi_map map = {0};
    begun b = {0};
    if (path == NULL) {
        return no_memory(ctx, dir);
    }
    ds_status status = dsi_map_open(ctx, path, DSI_MAP_NO_LINK, &map);
    b.there = status == DS_OK;
    free(path);
    if (status < 0 && status != DS_ERR_NOT_FOUND) {
        return status;
    }
    const int n = (int)(map.size < INT32_MAX ? map.size : INT32_MAX);
    if (asprintf(&b.text, "\n%.*s", n, n > 0 ? (const char *)map.data : "") < 0) {
        b.text = NULL;
        status = no_memory(ctx, dir);
    } else {
        status = b.there ? ds_checkpoint_list(ctx, dir, &b.list, &b.n) : DS_OK;
    }
    dsi_map_close(&map);
    if (status < 0) {
        close_begun(&b);
        return status;
    }
    *out = b;
    return DS_OK;
}

ds_status dsi_ckpt_begun_write(ds_ctx *ctx, const char *dir)
{
    ds_checkpoint_entry *list = NULL;
    size_t n = 0;
    char line[300];
    DS_TRY(ds_checkpoint_list(ctx, dir, &list, &n));
    dsi_buf text = dsi_buf_make(DSI_CKPT_MANIFEST_BYTES);
    char *path = dsi_path_join(dir, RECORD);
    ds_status status = path != NULL ? DS_OK : no_memory(ctx, dir);
    for (size_t i = 0; i < n; ++i) {
        if (line_of(dir, list[i].tag, line)) {
            dsi_buf_puts(&text, line + 1);
        }
    }
    if (status == DS_OK && text.failed) {
        status = no_memory(ctx, dir);
    }
    if (status == DS_OK) {
        status = dsi_file_replace(ctx, path, text.data, text.size);
    }
    dsi_buf_free(&text);
    free(path);
    ds_checkpoint_list_free(list, n);
    return status;
}

ds_status dsi_ckpt_begun_has_new(ds_ctx *ctx, const char *dir, bool *has_new_out)
{
    begun b;
    DS_TRY(open_begun(ctx, dir, &b));
    *has_new_out = newest_new(&b, dir) != NULL;
    close_begun(&b);
    return DS_OK;
}

/* A crash between a checkpoint's name and `latest` leaves that at an old one, or nowhere. */
static ds_status move_latest(ds_ctx *ctx, const char *dir, const begun *b, const char *tag)
{
    for (size_t i = 0; i < b->n; ++i) {
        if (b->list[i].latest && !is_old(b, dir, b->list[i].tag)) {
            return DS_OK;
        }
    }
    char *path = dsi_path_join(dir, DSI_CKPT_LATEST);
    const ds_status status =
        path != NULL ? dsi_file_replace(ctx, path, tag, strlen(tag)) : no_memory(ctx, dir);
    free(path);
    return status;
}

/* The record stays, empty: the inodes of what was removed may be given to new checkpoints, which
 * must not be taken for old ones. */
static ds_status empty_record(ds_ctx *ctx, const char *dir)
{
    char *path = dsi_path_join(dir, RECORD);
    const ds_status status =
        path != NULL ? dsi_file_replace(ctx, path, "", 0) : no_memory(ctx, dir);
    free(path);
    return status;
}

ds_status dsi_ckpt_begun_settle(ds_ctx *ctx, const char *dir)
{
    begun b;
    DS_TRY(open_begun(ctx, dir, &b));
    const ds_checkpoint_entry *mine = newest_new(&b, dir);
    ds_status status = mine != NULL ? move_latest(ctx, dir, &b, mine->tag) : DS_OK;
    for (size_t i = 0; i < b.n && mine != NULL && status == DS_OK; ++i) {
        if (is_old(&b, dir, b.list[i].tag)) {
            status = dsi_folder_discard(ctx, dir, b.list[i].tag);
            status = status == DS_ERR_NOT_FOUND ? DS_OK : status; /* another rank was first */
        }
    }
    if (mine != NULL && status == DS_OK && strlen(b.text) > 1) {
        status = empty_record(ctx, dir);
    }
    close_begun(&b);
    return status;
}

void dsi_ckpt_begun_end(const char *dir)
{
    char *path = dsi_path_join(dir, RECORD);
    if (path != NULL) {
        (void)unlink(path);
    }
    free(path);
}
