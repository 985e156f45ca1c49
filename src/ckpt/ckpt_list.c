/* SPDX-License-Identifier: Apache-2.0 */
/* The save folder: which checkpoints it holds, which to offer when one is broken, which to remove.
 */
#include "ckpt/ckpt_deepspeed.h"
#include "ckpt/ckpt_distcp.h"
#include "ckpt/ckpt_foreign.h"
#include "ckpt/ckpt_internal.h"

#include <deepspeed/context.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ds_checkpoint_list_free(ds_checkpoint_entry *list, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        free(list[i].tag);
    }
    free(list);
}

static int compare_entries(const void *a, const void *b)
{
    const ds_checkpoint_entry *x = a;
    const ds_checkpoint_entry *y = b;
    return x->step != y->step ? (x->step < y->step ? -1 : 1) : strcmp(x->tag, y->tag);
}

/* The tag that an entry of the folder may stand for, from malloc; NULL when for none. A folder that
 * a killed replacement left aside stands for its tag while that is absent. */
static char *tag_of_name(const char *dir, const char *name)
{
    const size_t n = strlen(name);
    const size_t n_old = strlen(".ds_old");
    char *tag = NULL;
    if (name[0] == '.' && n > n_old + 1 && strcmp(name + n - n_old, ".ds_old") == 0) {
        tag = strndup(name + 1, n - n_old - 1);
        char *place = tag != NULL ? dsi_folder_resolve(dir, tag) : NULL;
        const bool stands = place != NULL && strcmp(dsi_path_name(place), name) == 0;
        free(place);
        if (!stands) {
            free(tag);
            tag = NULL;
        }
    } else if (dsi_ckpt_is_tag(name)) {
        tag = strdup(name);
    }
    return tag;
}

static bool has_manifest(const char *dir, const char *tag)
{
    char *folder = dsi_folder_resolve(dir, tag);
    char *path = folder != NULL ? dsi_path_join(folder, DSI_CKPT_MANIFEST) : NULL;
    dsi_map map;
    const bool there = path != NULL && dsi_map_open(NULL, path, 0, &map) == DS_OK;
    if (there) {
        dsi_map_close(&map);
    }
    free(path);
    free(folder);
    return there;
}

static void look_at(const char *dir, const char *latest, ds_checkpoint_entry *entry)
{
    ds_checkpoint *c = NULL;
    entry->latest = strcmp(entry->tag, latest) == 0;
    if (dsi_ckpt_open_tag(NULL, dir, entry->tag, DSI_CKPT_LAZY, &c) == DS_OK) {
        const ds_checkpoint_info *info = ds_checkpoint_get_info(c);
        entry->n_elsewhere = (uint32_t)dsi_ckpt_n_absent(c);
        entry->whole = entry->n_elsewhere == 0;
        entry->step = info->step;
        entry->bytes = info->bytes;
        ds_checkpoint_close(&c);
    }
}

ds_status ds_checkpoint_list(ds_ctx *ctx, const char *dir, ds_checkpoint_entry **list_out,
                             size_t *n_out)
{
    char **names = NULL;
    size_t n_names = 0;
    char latest[256] = "";
    DS_TRY(dsi_folder_list(ctx, dir, &names, &n_names));
    (void)dsi_ckpt_read_latest(NULL, dir, latest);
    ds_checkpoint_entry *list = calloc(n_names + 1, sizeof *list);
    size_t n = 0;
    for (size_t i = 0; i < n_names && list != NULL; ++i) {
        char *tag = tag_of_name(dir, names[i]);
        if (tag != NULL && has_manifest(dir, tag)) {
            list[n].tag = tag;
            look_at(dir, latest, &list[n++]);
        } else {
            free(tag);
        }
    }
    dsi_names_free(names, n_names);
    if (list == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory listing %s", dir);
    }
    qsort(list, n, sizeof *list, compare_entries);
    *list_out = list;
    *n_out = n;
    return DS_OK;
}

/* Whether all checksums of a checkpoint hold. */
static bool is_sound(const char *dir, const char *tag)
{
    ds_checkpoint *c = NULL;
    if (dsi_ckpt_open_tag(NULL, dir, tag, DSI_CKPT_WHOLE, &c) < 0) {
        return false;
    }
    const bool sound = ds_checkpoint_verify(c) == DS_OK;
    ds_checkpoint_close(&c);
    return sound;
}

/* Whether dir/tag is a checkpoint of DeepSpeed for Python that can be read. */
static bool is_readable(const char *dir, const char *tag)
{
    char *folder = tag != NULL ? dsi_path_join(dir, tag) : NULL;
    const bool readable = folder != NULL && dsi_ckpt_deepspeed_is(folder);
    free(folder);
    return readable;
}

ds_status dsi_ckpt_fail_with_offer(ds_ctx *ctx, ds_status status, const char *dir, const char *tag)
{
    ds_checkpoint_entry *list = NULL;
    size_t n = 0;
    char message[2048];
    if (ctx == NULL) {
        return status;
    }
    (void)snprintf(message, sizeof message, "%s", ds_ctx_error(ctx));
    if (is_readable(dir, tag)) {
        return status; /* of its reader, which names the file */
    }
    if (status == DS_ERR_NOT_FOUND && dsi_ckpt_foreign(ctx, dir, tag) < 0) {
        return DS_ERR_UNSUPPORTED;
    }
    if (ds_checkpoint_list(NULL, dir, &list, &n) < 0) {
        return status;
    }
    const ds_checkpoint_entry *offer = NULL;
    for (size_t i = n; i-- > 0 && offer == NULL;) {
        if (list[i].whole && strcmp(list[i].tag, tag) != 0 && is_sound(dir, list[i].tag)) {
            offer = &list[i];
        }
    }
    if (offer != NULL) {
        status = ds_fail(ctx, status,
                         "%s; the newest whole checkpoint there is '%s' (step %llu): "
                         "--resume %s loads it",
                         message, offer->tag, (unsigned long long)offer->step, offer->tag);
    } else {
        status = ds_fail(ctx, status, "%s; %s holds no other whole checkpoint", message, dir);
    }
    ds_checkpoint_list_free(list, n);
    return status;
}

/* A folder of torch.distributed.checkpoint is one checkpoint: its name is the tag. */
static ds_status open_itself(ds_ctx *ctx, const char *folder, ds_checkpoint **ckpt_out)
{
    char *path = realpath(folder, NULL);
    char *slash = path != NULL ? strrchr(path, '/') : NULL;
    if (slash == NULL) {
        free(path);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the name of %s", folder);
    }
    *slash = '\0';
    const ds_status status =
        dsi_ckpt_open_tag(ctx, slash > path ? path : "/", slash + 1, DSI_CKPT_WHOLE, ckpt_out);
    free(path);
    return status;
}

ds_status ds_checkpoint_open(ds_ctx *ctx, const char *dir, const char *tag,
                             ds_checkpoint **ckpt_out)
{
    char latest[256] = "";
    ds_status status = DS_OK;
    if (tag == NULL && dsi_ckpt_distcp_is(dir)) {
        return open_itself(ctx, dir, ckpt_out);
    }
    if (tag == NULL) {
        status = dsi_ckpt_read_latest(ctx, dir, latest);
        tag = latest;
    }
    if (status == DS_OK) {
        status = dsi_ckpt_open_tag(ctx, dir, tag, DSI_CKPT_WHOLE, ckpt_out);
    }
    return status < 0 && status != DS_ERR_NOMEM ? dsi_ckpt_fail_with_offer(ctx, status, dir, tag)
                                                : status;
}

/* What a run may remove: whole, or this host's part of what was whole when it was saved. */
static bool is_removable(const ds_checkpoint_entry *entry)
{
    return entry->whole || entry->n_elsewhere > 0;
}

ds_status ds_checkpoint_keep(ds_ctx *ctx, const char *dir, size_t n_keep)
{
    return dsi_ckpt_keep_with(ctx, dir, n_keep, NULL);
}

ds_status dsi_ckpt_keep_with(ds_ctx *ctx, const char *dir, size_t n_keep, const char *tag)
{
    ds_checkpoint_entry *list = NULL;
    size_t n = 0;
    size_t n_whole = 0;
    size_t newest = 0;
    if (n_keep == 0) {
        return ds_fail(ctx, DS_ERR_ARG, "%s: at least one checkpoint must be kept", dir);
    }
    DS_TRY(ds_checkpoint_list(ctx, dir, &list, &n));
    for (size_t i = 0; i < n; ++i) {
        n_whole += is_removable(&list[i]);
        newest = is_removable(&list[i]) ? i : newest;
    }
    ds_status status = DS_OK;
    for (size_t i = 0; i < n && n_whole > n_keep && status == DS_OK; ++i) {
        const bool stays =
            list[i].latest || i == newest || (tag != NULL && strcmp(list[i].tag, tag) == 0);
        if (is_removable(&list[i]) && !stays) {
            status = dsi_folder_discard(ctx, dir, list[i].tag);
            --n_whole;
        }
    }
    ds_checkpoint_list_free(list, n);
    return status;
}
