/* SPDX-License-Identifier: Apache-2.0 */
/* Where the ranks of a save write: one temporary folder when all see the same save folder, else one
 * for each file system.
 *
 * Rank 0 makes the first. A rank that does not see it looks for one that a rank of its host made;
 * among those that it sees it takes the one of the lowest rank, so that hosts which share a folder
 * with each other, but not with rank 0, make one. The random name of the temporary folder tells
 * whether a rank sees the same file system.
 */
#include "ckpt/ckpt_writer.h"

#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { NAME_BYTES = 256 };

typedef struct place {
    char host[DSI_CKPT_HOST_BYTES];
    char name[NAME_BYTES]; /* of the temporary folder that this rank made; "" when none */
    uint32_t leader;       /* UINT32_MAX: not found yet */
    uint32_t pad;
} place;

static ds_status no_memory(const ds_checkpoint_writer *w)
{
    return ds_fail(w->ctx, DS_ERR_NOMEM, "out of memory saving a checkpoint");
}

static ds_status lead(ds_checkpoint_writer *w, place *mine)
{
    DS_TRY(dsi_folder_make(w->ctx, w->dir));
    dsi_folder_clean(w->dir, NULL);
    DS_TRY(dsi_folder_stage(w->ctx, w->dir, w->m.info.tag, &w->stage));
    w->leads = true;
    const char *name = dsi_path_name(w->stage.path);
    const size_t n = strlen(name);
    if (n >= NAME_BYTES) {
        return ds_fail(w->ctx, DS_ERR_LIMIT, "the name %s is too long", name);
    }
    memcpy(mine->name, name, n + 1);
    mine->leader = w->group.rank;
    return DS_OK;
}

/* Joins the folder of the lowest leader that this rank sees, if any. */
static ds_status look(const ds_checkpoint_writer *w, const place *all, place *mine)
{
    for (uint32_t r = 0; r < w->group.size && mine->leader == UINT32_MAX; ++r) {
        struct stat st;
        if (all[r].name[0] == '\0' || !dsi_path_is_plain(all[r].name)) {
            continue;
        }
        char *path = dsi_path_join(w->dir, all[r].name);
        if (path == NULL) {
            return no_memory(w);
        }
        if (stat(path, &st) == 0 && S_ISDIR(st.st_mode)) {
            mine->leader = r;
        }
        free(path);
    }
    return DS_OK;
}

/* The first rank of its host that has no folder makes one. */
static bool is_first_of_host(const place *all, uint32_t rank)
{
    for (uint32_t r = 0; r < rank; ++r) {
        if (all[r].leader == UINT32_MAX && strcmp(all[r].host, all[rank].host) == 0) {
            return false;
        }
    }
    return true;
}

/* Second round, for ranks that do not see rank 0's folder. */
static ds_status spread(ds_checkpoint_writer *w, place *all, place *mine)
{
    dsi_ckpt_group *g = &w->group;
    ds_status status = DS_OK;
    if (mine->leader == UINT32_MAX && is_first_of_host(all, g->rank)) {
        status = lead(w, mine);
        mine->leader = UINT32_MAX; /* perhaps a lower rank made one in the same place */
    }
    DS_TRY(dsi_ckpt_agree(g, status));
    DS_TRY(dsi_ckpt_gather(g, mine, sizeof *mine, all));
    status = look(w, all, mine);
    if (status == DS_OK && mine->leader == UINT32_MAX) {
        status = ds_fail(w->ctx, DS_ERR_IO,
                         "%s is not the folder that the other ranks of this host see; give all "
                         "ranks of a host the same one",
                         w->dir);
    }
    DS_TRY(dsi_ckpt_agree(g, status));
    if (w->leads && mine->leader != g->rank) {
        dsi_folder_unstage(&w->stage);
        w->leads = false;
    }
    return dsi_ckpt_gather(g, mine, sizeof *mine, all);
}

static ds_status keep_hosts(ds_checkpoint_writer *w, const place *all)
{
    const uint32_t size = w->group.size;
    w->hosts = dsi_arena_array(w->m.arena, size, sizeof *w->hosts);
    for (uint32_t r = 0; r < size && w->hosts != NULL; ++r) {
        w->hosts[r] = dsi_arena_strndup(w->m.arena, all[r].host, DSI_CKPT_HOST_BYTES - 1);
        if (w->hosts[r] == NULL) {
            return no_memory(w);
        }
    }
    return w->hosts != NULL ? DS_OK : no_memory(w);
}

static ds_status choose_folders(ds_checkpoint_writer *w, const place *all, const place *mine)
{
    bool shared = true;
    w->leaders = dsi_arena_array(w->m.arena, w->group.size, sizeof *w->leaders);
    w->folder = dsi_path_join(w->dir, all[mine->leader].name);
    if (w->leaders == NULL || w->folder == NULL) {
        return no_memory(w);
    }
    for (uint32_t r = 0; r < w->group.size; ++r) {
        w->leaders[r] = all[r].leader;
        shared = shared && all[r].leader == 0;
    }
    return shared ? DS_OK : keep_hosts(w, all);
}

/* All ranks, with room for what they tell. */
static ds_status make(ds_checkpoint_writer *w, place *all)
{
    dsi_ckpt_group *g = &w->group;
    place mine = {.leader = UINT32_MAX};
    memcpy(mine.host, g->host, sizeof mine.host);
    DS_TRY(dsi_ckpt_agree(g, g->rank == 0 ? lead(w, &mine) : DS_OK));
    DS_TRY(dsi_ckpt_gather(g, &mine, sizeof mine, all));
    DS_TRY(dsi_ckpt_agree(g, look(w, all, &mine)));
    DS_TRY(dsi_ckpt_gather(g, &mine, sizeof mine, all));
    bool found = true;
    for (uint32_t r = 0; r < g->size; ++r) {
        found = found && all[r].leader != UINT32_MAX;
    }
    if (!found) {
        DS_TRY(spread(w, all, &mine));
    }
    return dsi_ckpt_agree(g, choose_folders(w, all, &mine));
}

ds_status dsi_ckpt_places_make(ds_checkpoint_writer *w)
{
    place *all = calloc(w->group.size, sizeof *all);
    ds_status status = dsi_ckpt_agree(&w->group, all != NULL ? DS_OK : no_memory(w));
    if (status == DS_OK) {
        status = make(w, all);
    }
    free(all);
    return status;
}
