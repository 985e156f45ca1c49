/* SPDX-License-Identifier: Apache-2.0 */
/* The data cache: finds the entry of some files, or makes it. See data_cache.h.
 *
 * 1. An entry appears whole: written under a temporary name, synced, renamed. A killed maker leaves
 *    a folder that the next one removes.
 * 2. One process makes an entry while others wait for its lock (NAME.lock), which the kernel drops
 *    with its holder; the next then makes it. A file system without locks has each make its own,
 *    and the last to end gives it the name: both are the same.
 * 3. An entry that is damaged is reported and made anew.
 */
#include "data/data_cache.h"

#include "data/source.h"

#include <deepspeed/context.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { PAUSE_NS = 100000000, PACKED_FACTOR = 8 };

bool dsi_cache_wanted(const ds_dataset_params *params)
{
    uint64_t bytes = 0;
    if (params->cache == NULL || params->n_files == 0 ||
        (params->n_files == 1 && dsi_take_is_indexed(params->files[0]))) {
        return false;
    }
    for (uint32_t i = 0; i < params->n_files; ++i) {
        struct stat st;
        const char *path = params->files[i];
        const bool packed = dsi_path_ends(path, ".gz") || dsi_path_ends(path, ".zst") ||
                            dsi_path_ends(path, ".parquet");
        if (stat(path, &st) == 0) {
            bytes += (uint64_t)st.st_size * (packed ? PACKED_FACTOR : 1);
        }
    }
    return bytes >= params->cache_from_bytes;
}

/* The file is locked, and it still has its name. */
static bool try_lock(int fd, int *reason_out)
{
    struct stat st;
    *reason_out = 0;
    if (flock(fd, LOCK_EX | LOCK_NB) != 0) {
        *reason_out = errno;
        return false;
    }
    return fstat(fd, &st) == 0 && st.st_nlink > 0;
}

/* *fd_out -1: this file system has no locks. */
static ds_status lock(ds_ctx *ctx, const ds_dataset_params *params, const char *path, int *fd_out)
{
    bool said = false;
    for (;;) {
        int reason = 0;
        const int fd = open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666);
        if (fd < 0) {
            return dsi_cache_write_failed(ctx, dsi_io_fail(ctx, "write", path, errno));
        }
        if (try_lock(fd, &reason)) {
            *fd_out = fd;
            return DS_OK;
        }
        (void)close(fd);
        if (reason != 0 && reason != EWOULDBLOCK && reason != EINTR) {
            *fd_out = -1;
            return DS_OK;
        }
        if (reason == EWOULDBLOCK && !said) {
            said = true;
            ds_log(ctx, DS_LOG_JOB, "another process tokenizes this data: waiting for it (%s)",
                   path);
        }
        DS_TRY(dsi_take_say(params, DS_DATASET_WAITS, 0, 0, 0));
        (void)nanosleep(&(struct timespec){.tv_nsec = reason != 0 ? PAUSE_NS : 0}, NULL);
    }
}

static void unlock(const char *path, int fd)
{
    if (fd >= 0) {
        (void)unlink(path);
        (void)close(fd);
    }
}

/* Text first: which of both it is only its reader knows. ERR_NOT_FOUND: there is no good entry. */
static ds_status find(ds_ctx *ctx, const ds_dataset_params *params, const dsi_cache_key *key,
                      dsi_store *tokens, dsi_cache_meta *meta_out)
{
    const char *const names[2] = {key->plain, key->samples};
    for (size_t i = params->rows != DS_ROWS_TEXT; i < 2; ++i) {
        const ds_status status = dsi_cache_entry_map(ctx, params, names[i], tokens, meta_out);
        if (status >= 0) {
            ds_log(ctx, DS_LOG_JOB, "data: tokens of %s/%s", params->cache, names[i]);
        }
        if (status != DS_ERR_NOT_FOUND && status != DS_ERR_FORMAT) {
            return status;
        }
        if (status == DS_ERR_FORMAT) {
            ds_log(ctx, DS_LOG_WARN, "%s; it is made anew", ds_ctx_error(ctx));
        }
    }
    return DS_ERR_NOT_FOUND;
}

static ds_status make(ds_ctx *ctx, const ds_dataset_params *params, const dsi_cache_key *key)
{
    dsi_cache_writer *writer = NULL;
    const uint32_t n_ids =
        params->tokenizer != NULL ? ds_tokenizer_vocab_size(params->tokenizer) : 0;
    DS_TRY(dsi_cache_write_begin(ctx, params->cache, key->plain, n_ids, &writer));
    dsi_take take = {.add = dsi_cache_write_add, .user = writer};
    ds_status status = dsi_take_files(ctx, params, &take);
    if (status >= 0) {
        status = dsi_cache_key_check(ctx, params, key);
    }
    if (status >= 0) {
        status = dsi_cache_write_end(&writer, take.info.samples ? key->samples : key->plain, &take);
    }
    dsi_cache_write_abort(&writer);
    return status;
}

/* Under the lock: another process may have made it meanwhile. */
static ds_status find_or_make(ds_ctx *ctx, const ds_dataset_params *params,
                              const dsi_cache_key *key, bool locked, dsi_store *tokens,
                              dsi_cache_meta *meta_out)
{
    const ds_status found = find(ctx, params, key, tokens, meta_out);
    if (found != DS_ERR_NOT_FOUND) {
        return found;
    }
    if (locked) {
        dsi_folder_clean(params->cache, NULL);
    }
    ds_log(ctx, DS_LOG_JOB, "data: tokenized once, into %s", params->cache);
    DS_TRY(make(ctx, params, key));
    const ds_status made = find(ctx, params, key, tokens, meta_out);
    return made != DS_ERR_NOT_FOUND
               ? made
               : ds_fail(ctx, DS_ERR_IO, "the data cache in %s was removed, or damaged, at once",
                         params->cache);
}

ds_status dsi_cache_open(ds_ctx *ctx, const ds_dataset_params *params, dsi_store *tokens,
                         dsi_cache_meta *meta_out)
{
    dsi_cache_key key;
    char *path = NULL;
    int fd = -1;
    DS_TRY(dsi_cache_write_failed(ctx, dsi_folder_make(ctx, params->cache)));
    DS_TRY(dsi_cache_key_make(ctx, params, &key));
    const ds_status found = find(ctx, params, &key, tokens, meta_out);
    if (found != DS_ERR_NOT_FOUND) {
        return found;
    }
    if (asprintf(&path, "%s/%s.lock", params->cache, key.plain) < 0) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the data cache");
    }
    ds_status status = lock(ctx, params, path, &fd);
    if (status >= 0) {
        status = find_or_make(ctx, params, &key, fd >= 0, tokens, meta_out);
        unlock(path, fd);
    }
    free(path);
    return status;
}
