/* SPDX-License-Identifier: Apache-2.0 */
/* See deepspeed_out.h: the folder appears whole, then `latest` moves. */
#include "ckpt/deepspeed_out.h"

#include "base/reserved.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { TAG_BYTES = 256, MOST_RANKS = 65536 };

#define MOST_ARENA ((size_t)8 << 30)

static ds_status check_given(ds_ctx *ctx, const ds_checkpoint_deepspeed_params *p)
{
    if (p->zero_stage > 3 || p->ranks < 1 || p->ranks > MOST_RANKS || p->n_groups > 2 ||
        p->sub_group_size < 0 || p->dir == NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "a folder for DeepSpeed has a save folder, ZeRO stage 1, 2 or 3 (0: "
                       "universal), 1 to %d ranks, and 1 or 2 groups of parameters",
                       (int)MOST_RANKS);
    }
    if (p->like != NULL && (p->zero_stage > 2 || p->order != NULL || p->n_groups > 0)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "a folder that is like another is universal or of ZeRO stage 1 or 2, and "
                       "has order and groups of parameters of the other");
    }
    return DS_OK;
}

/* What is read must not be replaced. */
static ds_status check_place(const dsi_deepspeed_out *o, const char *tag)
{
    struct stat a;
    struct stat b;
    char *place = dsi_path_join(o->given->dir, tag);
    if (place == NULL) {
        return ds_fail(o->ctx, DS_ERR_NOMEM, "no memory for a folder for DeepSpeed");
    }
    const char *source = ds_checkpoint_get_info(o->ckpt)->path;
    const bool same = stat(place, &a) == 0 && stat(source, &b) == 0 && a.st_dev == b.st_dev &&
                      a.st_ino == b.st_ino;
    free(place);
    return same
               ? ds_fail(o->ctx, DS_ERR_ARG, "%s would replace itself; give another folder", source)
               : DS_OK;
}

static ds_status write_folder(dsi_deepspeed_out *o, const char *tag)
{
    dsi_stage stage = {0};
    const bool universal = o->given->zero_stage == 0;
    DS_TRY(dsi_folder_make(o->ctx, o->given->dir));
    DS_TRY(dsi_folder_stage(o->ctx, o->given->dir, tag, &stage));
    o->folder = stage.path;
    ds_status status = o->given->like != NULL ? dsi_out_like(o)
                       : universal            ? dsi_out_universal(o)
                                              : dsi_out_zero(o);
    if (status >= 0) {
        status = dsi_folder_publish(o->ctx, &stage, o->given->dir, tag, true);
    }
    dsi_folder_unstage(&stage);
    if (status >= 0) {
        char *latest = dsi_path_join(o->given->dir, universal ? "latest_universal" : "latest");
        status = latest != NULL ? dsi_file_replace(o->ctx, latest, tag, strlen(tag))
                                : ds_fail(o->ctx, DS_ERR_NOMEM, "no memory to write latest");
        free(latest);
    }
    return status;
}

static ds_status write_all(dsi_deepspeed_out *o)
{
    char tag[TAG_BYTES];
    const int n = snprintf(tag, sizeof tag, "%s%s", ds_checkpoint_get_info(o->ckpt)->tag,
                           o->given->zero_stage == 0 ? "_universal" : "");
    if (n < 0 || (size_t)n >= sizeof tag || !dsi_ckpt_is_tag(tag)) {
        return ds_fail(o->ctx, DS_ERR_ARG, "the tag %.200s is too long", tag);
    }
    DS_TRY(check_place(o, tag));
    DS_TRY(dsi_out_read_states(o));
    DS_TRY(o->given->like != NULL ? dsi_out_take_params(o) : dsi_out_find_params(o));
    return write_folder(o, tag);
}

ds_status ds_checkpoint_write_deepspeed(ds_checkpoint *ckpt,
                                        const ds_checkpoint_deepspeed_params *params)
{
    ds_ctx *ctx = dsi_ckpt_ctx(ckpt);
    dsi_deepspeed_out o = {.ctx = ctx, .ckpt = ckpt, .given = params};
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_checkpoint_deepspeed_params", params));
    DS_TRY(check_given(ctx, params));
    ds_status status = dsi_arena_create(MOST_ARENA, &o.arena);
    if (status < 0) {
        return ds_fail(ctx, status, "no memory for a folder for DeepSpeed");
    }
    status = write_all(&o);
    json_decref(o.engine);
    json_decref(o.scaler);
    ds_config_destroy(&o.config);
    dsi_arena_destroy(&o.arena);
    return status;
}
