/* SPDX-License-Identifier: Apache-2.0 */
/* A Parquet file, row by row. See parquet.h. */
#include "data/parquet/parquet.h"

#include "data/parquet/parquet_assemble.h"

#include <stdlib.h>
#include <string.h>

/* A footer's structures take some thirty times its bytes. */
enum { FOOTER_ARENA_BYTES = 1 << 30, PAGES_BYTES = 1 << 30 };

struct dsi_parquet {
    ds_ctx *ctx;
    char *path;
    dsi_map map;
    dsi_arena *arena;
    dsi_parquet_meta meta;
    dsi_shape *root;
    dsi_shape_leaf *leaves;
    dsi_parquet_column *columns;
    dsi_parquet_account account;
    uint32_t group;     /* the next row group to open */
    uint64_t rows_left; /* of the one that is open */
};

void dsi_parquet_close(dsi_parquet **file)
{
    if (file == NULL || *file == NULL) {
        return;
    }
    dsi_parquet *f = *file;
    for (uint32_t i = 0; f->columns != NULL && i < f->meta.n_leaves; ++i) {
        dsi_parquet_column_free(&f->columns[i]);
    }
    free(f->columns);
    dsi_arena_destroy(&f->arena);
    dsi_map_close(&f->map);
    free(f->path);
    free(f);
    *file = NULL;
}

static ds_status open_file(dsi_parquet *f, const char *path)
{
    DS_TRY(dsi_map_open(f->ctx, path, 0, &f->map));
    DS_TRY(dsi_parquet_meta_read(f->ctx, path, &f->map, f->arena, &f->meta));
    DS_TRY(dsi_shape_make(f->ctx, path, &f->meta, f->arena, &f->root, &f->leaves));
    f->columns = calloc(f->meta.n_leaves + (size_t)1, sizeof *f->columns);
    if (f->columns == NULL) {
        return ds_fail(f->ctx, DS_ERR_NOMEM, "no memory to read %s", path);
    }
    for (uint32_t i = 0; i < f->meta.n_leaves; ++i) {
        f->columns[i].account = &f->account;
        f->columns[i].type = f->leaves[i].type;
        f->columns[i].max_def = f->leaves[i].max_def;
        f->columns[i].max_rep = f->leaves[i].max_rep;
    }
    return DS_OK;
}

ds_status dsi_parquet_open(ds_ctx *ctx, const char *path, dsi_parquet **file_out)
{
    dsi_parquet *f = calloc(1, sizeof *f);
    if (f != NULL) {
        f->ctx = ctx;
        f->path = strdup(path);
        f->account.limit = PAGES_BYTES;
    }
    if (f == NULL || f->path == NULL || dsi_arena_create(FOOTER_ARENA_BYTES, &f->arena) < 0) {
        dsi_parquet_close(&f);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to read %s", path);
    }
    const ds_status status = open_file(f, path);
    if (status < 0) {
        dsi_parquet_close(&f);
        return status;
    }
    *file_out = f;
    return DS_OK;
}

void dsi_parquet_limit(dsi_parquet *file, size_t bytes)
{
    file->account.limit = bytes;
}

uint64_t dsi_parquet_n_rows(const dsi_parquet *file)
{
    return file->meta.n_rows;
}

/* The name of the element that is column `leaf`. */
static const dsi_parquet_element *leaf_element(const dsi_parquet_meta *meta, uint32_t leaf)
{
    for (uint32_t i = 1; i < meta->n_elements; ++i) {
        if (meta->elements[i].n_children == 0 && leaf-- == 0) {
            return &meta->elements[i];
        }
    }
    return meta->elements;
}

static ds_status bad_column(const dsi_parquet *f, uint32_t column, const char *what)
{
    const dsi_parquet_element *e = leaf_element(&f->meta, column);
    const size_t n = e->n_name < 60 ? e->n_name : 60;
    return ds_fail(f->ctx, DS_ERR_FORMAT, "%s: row group %u, column \"%.*s\": %s", f->path,
                   f->group - 1, (int)n, e->name, what);
}

static void open_group(dsi_parquet *f)
{
    const dsi_parquet_group *group = &f->meta.groups[f->group++];
    f->rows_left = group->n_rows;
    for (uint32_t i = 0; i < f->meta.n_leaves; ++i) {
        if (f->leaves[i].read) {
            dsi_parquet_column_open(&f->columns[i], &f->map, &group->chunks[i]);
        }
    }
}

/* Behind a group's last row no column has anything left. */
static ds_status close_group(dsi_parquet *f)
{
    for (uint32_t i = 0; i < f->meta.n_leaves; ++i) {
        bool end = true;
        if (f->leaves[i].read) {
            const char *bad = dsi_parquet_column_peek(&f->columns[i], &end);
            if (bad != NULL || !end) {
                return bad_column(f, i, bad != NULL ? bad : "it has more values than rows");
            }
        }
    }
    return DS_OK;
}

ds_status dsi_parquet_next(dsi_parquet *f, dsi_buf *json, bool *end_out)
{
    while (f->rows_left == 0) {
        if (f->group == f->meta.n_groups) {
            *end_out = true;
            return DS_OK;
        }
        open_group(f);
    }
    dsi_assemble a = {.columns = f->columns, .leaves = f->leaves, .json = json};
    dsi_assemble_row(&a, f->root);
    if (a.bad != NULL) {
        return bad_column(f, a.bad_column, a.bad);
    }
    if (json->failed) {
        return ds_fail(f->ctx, DS_ERR_LIMIT, "%s: row group %u: a row is larger than %zu bytes",
                       f->path, f->group - 1, json->ceiling);
    }
    *end_out = false;
    return --f->rows_left == 0 ? close_group(f) : DS_OK;
}
