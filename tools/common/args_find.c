/* SPDX-License-Identifier: Apache-2.0 */
/* Names of flags: full, of other programs, abbreviated; and what is near an unknown one. */
#include "args_find.h"

#include "base/nearest.h"
#include <stdlib.h>
#include <string.h>

static ds_status unknown_flag(ds_ctx *ctx, const dsi_args_spec *spec, const char *name)
{
    dsi_nearest nearest = {.word = name};
    for (size_t i = 0; i < spec->n_rows; ++i) {
        if (spec->rows[i].name != NULL) {
            dsi_nearest_offer(&nearest, spec->rows[i].name);
        }
    }
    if (nearest.best != NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "unknown flag --%s; did you mean --%s? (--help lists all)",
                       name, nearest.best);
    }
    return ds_fail(ctx, DS_ERR_ARG, "unknown flag --%s; --help lists all flags", name);
}

/* Whether n bytes begin a flag's name; DeepSpeed's benchmark writes dashes for underscores. */
static bool begins(const char *text, size_t n, const char *name)
{
    size_t i = 0;
    while (i < n && name[i] != '\0' && (text[i] == name[i] || (text[i] == '-' && name[i] == '_'))) {
        ++i;
    }
    return i == n;
}

static bool spells(const char *text, size_t n, const char *name)
{
    return begins(text, n, name) && name[n] == '\0';
}

/* The row of the n bytes at name, NULL when there is none. */
static const dsi_arg *find_row(const dsi_args_spec *spec, const char *name, size_t n)
{
    for (size_t i = 0; i < spec->n_rows; ++i) {
        const dsi_arg *row = &spec->rows[i];
        if (row->name != NULL && spells(name, n, row->name)) {
            return row;
        }
    }
    return NULL;
}

static const dsi_arg_other *find_other(const dsi_args_spec *spec, const char *name, size_t n)
{
    const dsi_arg_other *other = spec->others;
    while (other != NULL && other->name != NULL && !spells(name, n, other->name)) {
        ++other;
    }
    return other != NULL && other->name != NULL ? other : NULL;
}

/* As Python's argparse: the only flag that begins so. */
static ds_status find_beginning(ds_ctx *ctx, const dsi_args_spec *spec, const char *name, size_t n,
                                const dsi_arg **row_out)
{
    const dsi_arg *found = NULL;
    for (size_t i = 0; spec->abbreviates && i < spec->n_rows; ++i) {
        const dsi_arg *row = &spec->rows[i];
        if (row->name == NULL || row->in_full || !begins(name, n, row->name)) {
            continue;
        }
        if (found != NULL) {
            return ds_fail(ctx, DS_ERR_ARG, "--%.*s may be --%s or --%s; write more of it", (int)n,
                           name, found->name, row->name);
        }
        found = row;
    }
    *row_out = found;
    return DS_OK;
}

ds_status dsi_args_find(ds_ctx *ctx, const dsi_args_spec *spec, const char *name, size_t n,
                        const dsi_arg **row_out, bool *may_be_alone_out)
{
    const dsi_arg *row = find_row(spec, name, n);
    const dsi_arg_other *other = row == NULL ? find_other(spec, name, n) : NULL;
    *may_be_alone_out = false;
    if (other != NULL && other->same != NULL) {
        row = find_row(spec, other->same, strlen(other->same));
        *may_be_alone_out = other->may_be_alone;
    } else if (other != NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "--%s is not a flag here: %s", other->name, other->instead);
    }
    if (row == NULL && n > 0) {
        DS_TRY(find_beginning(ctx, spec, name, n, &row));
    }
    if (row == NULL) {
        char copy[64];
        (void)snprintf(copy, sizeof copy, "%.*s", n < 60 ? (int)n : 60, name);
        return unknown_flag(ctx, spec, copy);
    }
    *row_out = row;
    return DS_OK;
}
