/* SPDX-License-Identifier: Apache-2.0 */
/* Folders: creation, removal, staging and replacement; paths. See file.h; dsi_folder_merge is in
 * file_merge.c. */
#include "io/file.h"

#include "io/file_temp.h"
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

char *dsi_path_join(const char *folder, const char *name)
{
    char *path = NULL;
    const size_t n = strlen(folder);
    const char *slash = n > 0 && folder[n - 1] == '/' ? "" : "/";
    return asprintf(&path, "%s%s%s", folder, slash, name) < 0 ? NULL : path;
}

char *dsi_path_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    if (slash == NULL) {
        return strdup(".");
    }
    return strndup(path, slash == path ? 1 : (size_t)(slash - path));
}

const char *dsi_path_name(const char *path)
{
    const char *slash = strrchr(path, '/');
    return slash != NULL ? slash + 1 : path;
}

bool dsi_path_is_plain(const char *name)
{
    const size_t n = strlen(name);
    if (n == 0 || n > 200 || strcmp(name, ".") == 0 || strcmp(name, "..") == 0) {
        return false;
    }
    for (size_t i = 0; i < n; ++i) {
        const unsigned char c = (unsigned char)name[i];
        if (c < 0x20 || c == 0x7f || c == '/') {
            return false;
        }
    }
    return true;
}

ds_status dsi_folder_sync(ds_ctx *ctx, const char *path)
{
    const int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) {
        return dsi_io_fail(ctx, "open folder", path, errno);
    }
    int rc;
    do {
        rc = fsync(fd);
    } while (rc != 0 && errno == EINTR);
    const int reason = errno;
    (void)close(fd);
    if (rc != 0 && reason != EINVAL && reason != ENOTSUP && reason != EROFS) {
        return dsi_io_fail(ctx, "sync folder", path, reason);
    }
    return DS_OK;
}

/* One level; what exists must be a folder. */
static ds_status make_one(ds_ctx *ctx, const char *path)
{
    struct stat st;
    if (mkdir(path, 0777) == 0) {
        char *above = dsi_path_folder(path);
        const ds_status status = above != NULL ? dsi_folder_sync(ctx, above) : DS_OK;
        free(above);
        return status;
    }
    const int reason = errno;
    if (reason == EEXIST && stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
        return DS_OK;
    }
    return dsi_io_fail(ctx, "create folder", path, reason == EEXIST ? ENOTDIR : reason);
}

ds_status dsi_folder_make(ds_ctx *ctx, const char *path)
{
    char *text = strdup(path);
    if (text == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory creating %s", path);
    }
    size_t n = strlen(text);
    while (n > 1 && text[n - 1] == '/') {
        text[--n] = '\0';
    }
    struct stat st;
    ds_status status = DS_OK;
    for (size_t i = 1; i < n && status == DS_OK; ++i) {
        if (text[i] == '/') {
            text[i] = '\0';
            status = stat(text, &st) == 0 ? DS_OK : make_one(ctx, text);
            text[i] = '/';
        }
    }
    if (status == DS_OK) {
        status = make_one(ctx, text);
    }
    free(text);
    return status;
}

/* Removes entry `name` of the folder `at`; never follows a link. 0 or errno. */
static int remove_at(int at, const char *name, int depth)
{
    if (unlinkat(at, name, 0) == 0 || errno == ENOENT) {
        return 0;
    }
    if (errno != EISDIR && errno != EPERM) {
        return errno;
    }
    if (depth > 16) {
        return ELOOP;
    }
    const int fd = openat(at, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0) {
        return errno;
    }
    DIR *dir = fdopendir(fd);
    if (dir == NULL) {
        const int reason = errno;
        (void)close(fd);
        return reason;
    }
    int reason = 0;
    for (const struct dirent *e = readdir(dir); e != NULL && reason == 0; e = readdir(dir)) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            reason = remove_at(dirfd(dir), e->d_name, depth + 1);
        }
    }
    (void)closedir(dir);
    if (reason == 0 && unlinkat(at, name, AT_REMOVEDIR) != 0 && errno != ENOENT) {
        reason = errno;
    }
    return reason;
}

ds_status dsi_folder_remove(ds_ctx *ctx, const char *path)
{
    const int reason = remove_at(AT_FDCWD, path, 0);
    return reason == 0 ? DS_OK : dsi_io_fail(ctx, "remove", path, reason);
}

ds_status dsi_folder_stage(ds_ctx *ctx, const char *parent, const char *name, dsi_stage *stage_out)
{
    dsi_stage stage = {.lock = -1};
    DS_TRY(dsi_temp_folder(ctx, parent, name, &stage.path, &stage.lock));
    *stage_out = stage;
    return DS_OK;
}

static void forget(dsi_stage *stage)
{
    if (stage->lock >= 0) {
        (void)close(stage->lock);
    }
    free(stage->path);
    *stage = (dsi_stage){.lock = -1};
}

void dsi_folder_unstage(dsi_stage *stage)
{
    if (stage->path != NULL) {
        (void)dsi_folder_remove(NULL, stage->path);
        forget(stage);
    }
}

static char *old_path(const char *parent, const char *name)
{
    char *path = NULL;
    return asprintf(&path, "%s/.%s%s", parent, name, DSI_OLD_MARK) < 0 ? NULL : path;
}

ds_status dsi_publish_prepare(ds_ctx *ctx, const char *parent, const char *name,
                              dsi_publish *publish_out)
{
    dsi_publish p = {.parent = strdup(parent),
                     .place = dsi_path_join(parent, name),
                     .old = old_path(parent, name)};
    if (p.parent == NULL || p.place == NULL || p.old == NULL) {
        (void)dsi_publish_end(ctx, &p, NULL);
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory writing %s/%s", parent, name);
    }
    *publish_out = p;
    return DS_OK;
}

/* Replaces `place` by `temp` by way of `old`. At every moment one of place and old is whole. */
static ds_status replace_by_steps(ds_ctx *ctx, dsi_publish *p, const char *temp)
{
    DS_TRY(dsi_folder_remove(ctx, p->old));
    if (rename(p->place, p->old) != 0) {
        return dsi_io_fail(ctx, "move aside", p->place, errno);
    }
    if (rename(temp, p->place) != 0) {
        const int reason = errno;
        (void)rename(p->old, p->place);
        return dsi_io_fail(ctx, "put in place", p->place, reason);
    }
    p->state = DSI_PUBLISH_OLD_LEFT;
    return dsi_folder_sync(ctx, p->parent);
}

static ds_status put_in_place(ds_ctx *ctx, dsi_publish *p, const char *temp, bool allow_exchange)
{
    struct stat st;
    if (renameat2(AT_FDCWD, temp, AT_FDCWD, p->place, RENAME_NOREPLACE) == 0) {
        p->state = DSI_PUBLISH_DONE;
        return dsi_folder_sync(ctx, p->parent);
    }
    if (lstat(p->place, &st) != 0) { /* nothing there: no such flag, or it failed */
        if (rename(temp, p->place) != 0) {
            return dsi_io_fail(ctx, "put in place", p->place, errno);
        }
        p->state = DSI_PUBLISH_DONE;
        return dsi_folder_sync(ctx, p->parent);
    }
    if (allow_exchange && renameat2(AT_FDCWD, temp, AT_FDCWD, p->place, RENAME_EXCHANGE) == 0) {
        p->state = DSI_PUBLISH_TEMP_LEFT;
        return dsi_folder_sync(ctx, p->parent);
    }
    return replace_by_steps(ctx, p, temp);
}

ds_status dsi_publish_run(ds_ctx *ctx, dsi_publish *p, const dsi_stage *stage, bool allow_exchange)
{
    DS_TRY(dsi_folder_sync(ctx, stage->path));
    return put_in_place(ctx, p, stage->path, allow_exchange);
}

ds_status dsi_publish_end(ds_ctx *ctx, dsi_publish *p, dsi_stage *stage)
{
    ds_status status = DS_OK;
    if (p->state == DSI_PUBLISH_OLD_LEFT) {
        status = dsi_folder_remove(ctx, p->old);
    } else if (p->state == DSI_PUBLISH_TEMP_LEFT) {
        status = dsi_folder_remove(ctx, stage->path);
    }
    if (stage != NULL && p->state == DSI_PUBLISH_NOT_YET) {
        dsi_folder_unstage(stage);
    } else if (stage != NULL) {
        forget(stage);
    }
    free(p->parent);
    free(p->place);
    free(p->old);
    *p = (dsi_publish){0};
    return status;
}

ds_status dsi_folder_publish(ds_ctx *ctx, dsi_stage *stage, const char *parent, const char *name,
                             bool allow_exchange)
{
    dsi_publish p = {0};
    ds_status status = dsi_publish_prepare(ctx, parent, name, &p);
    if (status == DS_OK) {
        status = dsi_publish_run(ctx, &p, stage, allow_exchange);
    }
    const ds_status end = dsi_publish_end(ctx, &p, stage);
    return status < 0 ? status : end;
}

ds_status dsi_folder_discard(ds_ctx *ctx, const char *parent, const char *name)
{
    dsi_stage aside = {.lock = -1};
    char *place = dsi_folder_resolve(parent, name);
    if (place == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory removing %s/%s", parent, name);
    }
    ds_status status = dsi_folder_stage(ctx, parent, name, &aside);
    if (status == DS_OK) {
        char *inside = dsi_path_join(aside.path, "removed");
        if (inside == NULL || rename(place, inside) != 0) {
            status = dsi_io_fail(ctx, "remove", place, inside == NULL ? ENOMEM : errno);
        }
        free(inside);
        dsi_folder_unstage(&aside);
    }
    free(place);
    return status;
}

char *dsi_folder_resolve(const char *parent, const char *name)
{
    char *place = dsi_path_join(parent, name);
    char *old = old_path(parent, name);
    struct stat st;
    if (place != NULL && old != NULL && lstat(place, &st) != 0 && lstat(old, &st) == 0) {
        free(place);
        return old;
    }
    free(old);
    return place;
}

void dsi_names_free(char **names, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        free(names[i]);
    }
    free(names);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static bool append_name(char ***names, size_t *n, const char *name)
{
    char **grown = realloc(*names, (*n + 1) * sizeof *grown);
    char *copy = strdup(name);
    if (grown != NULL) {
        *names = grown;
    }
    if (grown == NULL || copy == NULL) {
        free(copy);
        return false;
    }
    grown[(*n)++] = copy;
    return true;
}

ds_status dsi_folder_list(ds_ctx *ctx, const char *folder, char ***names_out, size_t *n_out)
{
    char **names = NULL;
    size_t n = 0;
    DIR *dir = opendir(folder);
    if (dir == NULL) {
        return dsi_io_fail(ctx, "list folder", folder, errno);
    }
    bool enough = true;
    for (const struct dirent *e = readdir(dir); e != NULL && enough; e = readdir(dir)) {
        if (strcmp(e->d_name, ".") != 0 && strcmp(e->d_name, "..") != 0) {
            enough = append_name(&names, &n, e->d_name);
        }
    }
    (void)closedir(dir);
    if (!enough) {
        dsi_names_free(names, n);
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory listing %s", folder);
    }
    if (n > 0) {
        qsort(names, n, sizeof *names, compare_names);
    }
    *names_out = names;
    *n_out = n;
    return DS_OK;
}
