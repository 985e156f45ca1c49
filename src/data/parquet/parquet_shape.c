/* SPDX-License-Identifier: Apache-2.0 */
/* The schema as rows are read by it. See parquet_shape.h. */
#include "data/parquet/parquet_shape.h"

#include <deepspeed/context.h>
#include <stdio.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

/* Where the walk through the schema is. */
typedef struct walk {
    const dsi_parquet_meta *meta;
    dsi_arena *arena;
    dsi_shape_leaf *leaves;
    uint32_t element, leaf; /* the next of each */
    const char *bad;
    char left_out[200]; /* names */
    uint32_t n_left_out;
} walk;

/* Levels that hold around a node. */
typedef struct levels {
    uint32_t def, rep, depth;
} levels;

static dsi_shape *make(walk *w, levels at, bool as_required);

static dsi_shape *broken(walk *w, const char *what)
{
    w->bad = w->bad != NULL ? w->bad : what;
    return NULL;
}

static dsi_shape *new_shape(walk *w, dsi_shape_kind kind, const dsi_parquet_element *element)
{
    dsi_shape *shape = dsi_arena_alloc(w->arena, sizeof *shape);
    if (shape == NULL) {
        return broken(w, "no memory for its schema");
    }
    shape->kind = kind;
    shape->element = element;
    return shape;
}

/* Whether the type is one that is read, and the meaning one that it can have. */
static bool is_readable(const dsi_parquet_element *e)
{
    switch (e->meaning) {
    case DSI_PARQUET_PLAIN:
    case DSI_PARQUET_ALWAYS_NULL:
        return e->physical >= 0 && e->physical != DSI_PARQUET_INT96 &&
               e->physical != DSI_PARQUET_FIXED_BYTE_ARRAY;
    case DSI_PARQUET_TEXT:
        return e->physical == DSI_PARQUET_BYTE_ARRAY;
    case DSI_PARQUET_UNSIGNED:
        return e->physical == DSI_PARQUET_INT32 || e->physical == DSI_PARQUET_INT64;
    case DSI_PARQUET_DATE:
        return e->physical == DSI_PARQUET_INT32;
    case DSI_PARQUET_TIMESTAMP:
        return e->physical == DSI_PARQUET_INT64 && e->ticks_per_second > 0;
    default:
        return false;
    }
}

static void leave_out(walk *w, const dsi_parquet_element *e)
{
    const size_t used = strlen(w->left_out);
    if (w->n_left_out++ < 4 && e->n_name < 40) {
        (void)snprintf(w->left_out + used, sizeof w->left_out - used, "%s\"%.*s\"",
                       used > 0 ? ", " : "", (int)e->n_name, e->name);
    }
}

static dsi_shape *make_leaf(walk *w, const dsi_parquet_element *e, levels at)
{
    const uint32_t column = w->leaf++;
    if (e->physical < 0) {
        return broken(w, "a column has no type");
    }
    dsi_shape_leaf *leaf = &w->leaves[column];
    *leaf = (dsi_shape_leaf){(dsi_parquet_physical)e->physical, at.def, at.rep, is_readable(e)};
    if (!leaf->read) {
        leave_out(w, e);
        return NULL;
    }
    dsi_shape *shape = new_shape(w, DSI_SHAPE_LEAF, e);
    if (shape != NULL) {
        shape->leaf = column;
    }
    return shape;
}

/* Reads the n elements that follow as children. */
static void make_children(walk *w, dsi_shape *parent, uint32_t n, levels at)
{
    dsi_shape **end = &parent->child;
    for (uint32_t i = 0; i < n && w->bad == NULL; ++i) {
        dsi_shape *child = make(w, at, false);
        if (child != NULL) {
            *end = child;
            end = &child->next;
        }
    }
    parent->leaf = parent->child != NULL ? parent->child->leaf : 0;
}

static dsi_shape *make_struct(walk *w, const dsi_parquet_element *e, levels at)
{
    dsi_shape *shape = new_shape(w, DSI_SHAPE_STRUCT, e);
    if (shape == NULL) {
        return NULL;
    }
    make_children(w, shape, e->n_children, at);
    return shape->child != NULL ? shape : NULL;
}

/* A list whose element is `item`, made by the caller with the levels of an element. */
static dsi_shape *make_list(walk *w, const dsi_parquet_element *e, levels item, dsi_shape *child)
{
    if (child == NULL) {
        return NULL;
    }
    dsi_shape *shape = new_shape(w, DSI_SHAPE_LIST, e);
    if (shape != NULL) {
        shape->rep = item.rep;
        shape->item_def = item.def;
        shape->child = child;
        shape->leaf = child->leaf;
    }
    return shape;
}

/* Whether the repeated field of a list is its element, as older writers made them. */
static bool is_element(const dsi_parquet_element *list, const dsi_parquet_element *repeated)
{
    static const char tuple[] = "_tuple";
    const size_t n = sizeof tuple - 1;
    if (repeated->n_children != 1) {
        return true;
    }
    if (repeated->n_name == 5 && memcmp(repeated->name, "array", 5) == 0) {
        return true;
    }
    return repeated->n_name == list->n_name + n &&
           memcmp(repeated->name, list->name, list->n_name) == 0 &&
           memcmp(repeated->name + list->n_name, tuple, n) == 0;
}

static const dsi_parquet_element *next_element(const walk *w)
{
    return w->element < w->meta->n_elements ? &w->meta->elements[w->element] : NULL;
}

static dsi_shape *make_annotated_list(walk *w, const dsi_parquet_element *e, levels at)
{
    const dsi_parquet_element *repeated = next_element(w);
    const levels item = {at.def + 1, at.rep + 1, at.depth + 1};
    if (is_element(e, repeated)) {
        return make_list(w, e, item, make(w, item, true));
    }
    ++w->element;
    return make_list(w, e, item, make(w, item, false));
}

static dsi_shape *make_map(walk *w, const dsi_parquet_element *e, levels at)
{
    const levels item = {at.def + 1, at.rep + 1, at.depth + 1};
    ++w->element;
    const dsi_parquet_element *key = next_element(w);
    const bool text = key != NULL && key->n_children == 0 &&
                      key->physical == DSI_PARQUET_BYTE_ARRAY &&
                      key->repetition != DSI_PARQUET_REPEATED;
    dsi_shape *shape = new_shape(w, DSI_SHAPE_MAP, e);
    if (shape == NULL) {
        return NULL;
    }
    make_children(w, shape, 2, item);
    shape->rep = item.rep;
    shape->item_def = item.def;
    if (shape->child != NULL && shape->child->next != NULL && text) {
        return shape;
    }
    leave_out(w, e); /* its columns stay unread: no shape names them */
    return NULL;
}

static bool has_repeated_child(const walk *w, const dsi_parquet_element *e, uint32_t n_fields)
{
    const dsi_parquet_element *child = next_element(w);
    return e->n_children == 1 && child != NULL && child->repetition == DSI_PARQUET_REPEATED &&
           (n_fields == 0 || child->n_children == n_fields);
}

/* A node without its own repetition. */
static dsi_shape *make_inner(walk *w, const dsi_parquet_element *e, levels at)
{
    if (e->n_children == 0) {
        return make_leaf(w, e, at);
    }
    if (e->meaning == DSI_PARQUET_LIST && has_repeated_child(w, e, 0)) {
        return make_annotated_list(w, e, at);
    }
    if (e->meaning == DSI_PARQUET_MAP && has_repeated_child(w, e, 2)) {
        return make_map(w, e, at);
    }
    return make_struct(w, e, at);
}

/* as_required: the repetition of the next element is accounted for by its list. */
static dsi_shape *make(walk *w, levels at, bool as_required)
{
    const dsi_parquet_element *e = next_element(w);
    if (e == NULL || at.depth > MAX_DEPTH) {
        return broken(w, e == NULL ? "its schema ends early" : "its schema is nested too deep");
    }
    if (!dsi_parquet_is_utf8((const uint8_t *)e->name, e->n_name)) {
        return broken(w, "a column's name is no UTF-8");
    }
    ++w->element;
    ++at.depth;
    if (as_required || e->repetition == DSI_PARQUET_REQUIRED) {
        return make_inner(w, e, at);
    }
    ++at.def;
    if (e->repetition == DSI_PARQUET_REPEATED) {
        ++at.rep;
        return make_list(w, e, at, make_inner(w, e, at));
    }
    dsi_shape *shape = make_inner(w, e, at);
    if (shape != NULL) {
        shape->optional = true;
        shape->def = at.def;
    }
    return shape;
}

/* Only what the shape names is read. */
static void mark_read(const dsi_shape *shape, dsi_shape_leaf *leaves)
{
    if (shape->kind == DSI_SHAPE_LEAF) {
        leaves[shape->leaf].read = true;
    }
    for (const dsi_shape *child = shape->child; child != NULL; child = child->next) {
        mark_read(child, leaves);
    }
}

ds_status dsi_shape_make(ds_ctx *ctx, const char *path, const dsi_parquet_meta *meta,
                         dsi_arena *arena, dsi_shape **root_out, dsi_shape_leaf **leaves_out)
{
    walk w = {.meta = meta, .arena = arena, .element = 1};
    w.leaves = dsi_arena_array(arena, meta->n_leaves + (size_t)1, sizeof *w.leaves);
    dsi_shape *root = w.leaves == NULL ? NULL : new_shape(&w, DSI_SHAPE_STRUCT, meta->elements);
    if (root == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "%s: no memory for its schema", path);
    }
    make_children(&w, root, meta->elements[0].n_children, (levels){0, 0, 0});
    if (w.bad == NULL && w.element != meta->n_elements) {
        w.bad = "its schema goes on behind its end";
    }
    if (w.bad != NULL) {
        return ds_fail(ctx, DS_ERR_FORMAT, "%s: no good Parquet file: %s", path, w.bad);
    }
    if (root->child == NULL) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s: it has no column of a type that is read here",
                       path);
    }
    if (w.n_left_out > 0) {
        ds_log(ctx, DS_LOG_WARN,
               "%s: %u columns are of types that are not read, and left out: %s%s", path,
               w.n_left_out, w.left_out, w.n_left_out > 4 ? ", …" : "");
    }
    for (uint32_t i = 0; i < meta->n_leaves; ++i) {
        w.leaves[i].read = false;
    }
    mark_read(root, w.leaves);
    *root_out = root;
    *leaves_out = w.leaves;
    return DS_OK;
}
