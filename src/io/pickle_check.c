/* SPDX-License-Identifier: Apache-2.0 */
/* Invariant 1 of pickle.h: no cycles, bounded depth. Each value is walked once. */
#include "io/pickle.h"

enum { NEW, OPEN, DONE };

typedef struct walk {
    ds_ctx *ctx;
    const char *path;
} walk;

static ds_status check(const walk *w, dsi_pickle *value, unsigned depth);

static ds_status too_deep(const walk *w)
{
    return ds_fail(w->ctx, DS_ERR_LIMIT, "%s: the pickle's values are nested deeper than %d",
                   w->path, DSI_PICKLE_DEPTH);
}

static ds_status check_part(const walk *w, dsi_pickle *value, dsi_pickle *part, unsigned depth)
{
    if (part == NULL) {
        return DS_OK;
    }
    DS_TRY(check(w, part, depth + 1));
    if (part->height >= value->height) {
        value->height = (uint8_t)(part->height + 1);
    }
    return DS_OK;
}

static ds_status check_parts(const walk *w, dsi_pickle *value, unsigned depth)
{
    switch (value->kind) {
    case DSI_PICKLE_TUPLE:
    case DSI_PICKLE_LIST:
    case DSI_PICKLE_DICT:
        for (size_t i = 0; i < value->list.n; ++i) {
            DS_TRY(check_part(w, value, value->list.items[i], depth));
        }
        return DS_OK;
    case DSI_PICKLE_OBJECT:
        DS_TRY(check_part(w, value, value->object.args, depth));
        return check_part(w, value, value->object.state, depth);
    default:
        return DS_OK;
    }
}

static ds_status check(const walk *w, dsi_pickle *value, unsigned depth)
{
    if (depth >= DSI_PICKLE_DEPTH) {
        return too_deep(w);
    }
    if (value->mark == OPEN) {
        return ds_fail(w->ctx, DS_ERR_FORMAT, "%s: a value of the pickle contains itself", w->path);
    }
    if (value->mark == DONE) {
        return depth + value->height < DSI_PICKLE_DEPTH ? DS_OK : too_deep(w);
    }
    value->mark = OPEN;
    DS_TRY(check_parts(w, value, depth));
    value->mark = DONE;
    return DS_OK;
}

ds_status dsi_pickle_check(ds_ctx *ctx, const char *path, dsi_pickle *value)
{
    const walk w = {ctx, path};
    return check(&w, value, 0);
}
