/* SPDX-License-Identifier: Apache-2.0 */
/* The table of cells: named storage that outlives a step. */
#include "base/reserved.h"
#include "ir/graph.h"

#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>

enum { NAMES_CEILING = 64 << 20, FIRST_BUCKETS = 256 };

static const char *const kind_names[DS_CELL_KIND_COUNT] = {
#define X(id, text) [DS_CELL_##id] = text,
    DS_CELL_KIND_LIST(X)
#undef X
};

const char *ds_cell_kind_name(ds_cell_kind kind)
{
    return kind_names[kind];
}

ds_status ds_cells_create(ds_ctx *ctx, uint32_t ceiling, ds_cells **cells_out)
{
    ds_cells *cells = calloc(1, sizeof *cells);
    if (cells == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a table of cells");
    }
    cells->ctx = ctx;
    cells->ceiling = ceiling;
    cells->n_buckets = FIRST_BUCKETS;
    cells->buckets = calloc(cells->n_buckets, sizeof *cells->buckets);
    if (cells->buckets == NULL || dsi_arena_create(NAMES_CEILING, &cells->names) < 0) {
        ds_cells_destroy(&cells);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a table of cells");
    }
    *cells_out = cells;
    return DS_OK;
}

void ds_cells_destroy(ds_cells **cells_inout)
{
    ds_cells *cells = cells_inout != NULL ? *cells_inout : NULL;
    if (cells == NULL) {
        return;
    }
    dsi_arena_destroy(&cells->names);
    free(cells->items);
    free(cells->buckets);
    free(cells);
    *cells_inout = NULL;
}

/* FNV-1a over the name, the kind mixed in. */
static uint32_t hash_of(ds_cell_kind kind, const char *name)
{
    uint32_t hash = 2166136261u ^ (uint32_t)kind * 0x9e3779b9u;
    for (const char *c = name; *c != '\0'; ++c) {
        hash = (hash ^ (unsigned char)*c) * 16777619u;
    }
    return hash;
}

static void insert(ds_cells *cells, ds_cell cell)
{
    const ds_cell_info *info = &cells->items[cell];
    uint32_t at = hash_of(info->kind, info->name) & (cells->n_buckets - 1);
    while (cells->buckets[at] != 0) {
        at = (at + 1) & (cells->n_buckets - 1);
    }
    cells->buckets[at] = cell + 1;
}

static bool rehash(ds_cells *cells)
{
    uint32_t *buckets = calloc((size_t)cells->n_buckets * 2, sizeof *buckets);
    if (buckets == NULL) {
        return false;
    }
    free(cells->buckets);
    cells->buckets = buckets;
    cells->n_buckets *= 2;
    for (ds_cell i = 0; i < cells->n; ++i) {
        insert(cells, i);
    }
    return true;
}

ds_cell ds_cells_find(const ds_cells *cells, ds_cell_kind kind, const char *name)
{
    uint32_t at = hash_of(kind, name) & (cells->n_buckets - 1);
    for (; cells->buckets[at] != 0; at = (at + 1) & (cells->n_buckets - 1)) {
        const ds_cell_info *info = &cells->items[cells->buckets[at] - 1];
        if (info->kind == kind && strcmp(info->name, name) == 0) {
            return cells->buckets[at] - 1;
        }
    }
    return DS_NONE;
}

ds_status ds_cells_add(ds_cells *cells, const ds_cell_info *info, ds_cell *cell_out)
{
    DS_TRY(DSI_RESERVED_CHECK(cells->ctx, "ds_cell_info", info));
    if (info->name == NULL || info->name[0] == '\0') {
        return ds_fail(cells->ctx, DS_ERR_ARG, "a cell needs a name");
    }
    if (info->of != DS_NONE && info->of >= cells->n) {
        return ds_fail(cells->ctx, DS_ERR_ARG, "cell %s belongs to a cell that is not there yet",
                       info->name);
    }
    if (ds_cells_find(cells, info->kind, info->name) != DS_NONE) {
        return ds_fail(cells->ctx, DS_ERR_ARG, "there are two %s cells named %s",
                       kind_names[info->kind], info->name);
    }
    if (cells->n >= cells->ceiling) {
        return ds_fail(cells->ctx, DS_ERR_LIMIT, "more than %u cells", cells->ceiling);
    }
    ds_cell_info *items =
        dsi_graph_grow(cells->items, &cells->capacity, cells->n + 1, sizeof *items);
    char *name = dsi_arena_strdup(cells->names, info->name);
    if (items != NULL) {
        cells->items = items;
    }
    if (items == NULL || name == NULL || (cells->n * 2 >= cells->n_buckets && !rehash(cells))) {
        return ds_fail(cells->ctx, DS_ERR_NOMEM, "no memory for cell %s", info->name);
    }
    items[cells->n] = *info;
    items[cells->n].name = name;
    insert(cells, cells->n);
    *cell_out = cells->n++;
    return DS_OK;
}

ds_meta ds_cell_unpacked(const ds_cell_info *cell, ds_dtype dtype)
{
    const ds_packed *p = &cell->packed;
    if (p->format == DS_PACKING_NONE) {
        return cell->meta;
    }
    return (ds_meta){dtype, p->transposed != 0 ? ds_shape_2d(p->columns, p->rows)
                                               : ds_shape_2d(p->rows, p->columns)};
}

uint32_t ds_cells_count(const ds_cells *cells)
{
    return cells->n;
}

const ds_cell_info *ds_cells_get(const ds_cells *cells, ds_cell cell)
{
    return &cells->items[cell];
}

ds_status ds_cells_freeze(ds_cells *cells, const char *pattern, uint32_t *n_out)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < cells->n; ++i) {
        ds_cell_info *info = &cells->items[i];
        if (info->kind == DS_CELL_PARAM && fnmatch(pattern, info->name, 0) == 0) {
            info->frozen = true;
            ++n;
        }
    }
    if (n == 0) {
        return ds_fail(cells->ctx, DS_ERR_NOT_FOUND, "no parameter matches the pattern \"%s\"",
                       pattern);
    }
    *n_out = n;
    return DS_OK;
}
