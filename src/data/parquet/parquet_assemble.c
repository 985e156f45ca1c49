/* SPDX-License-Identifier: Apache-2.0 */
/* Rows out of columns. See parquet_assemble.h.
 *
 * Invariant: `rep` is the repetition level that the next entry of every column below a node must
 * have: 0 at the start of a row, a list's own from its second element on. Every entry that is taken
 * is checked against it, so that columns which disagree are found and not mixed.
 */
#include "data/parquet/parquet_assemble.h"

static void put(dsi_assemble *a, const dsi_shape *shape, uint32_t rep);

static void fail(dsi_assemble *a, uint32_t column, const char *what)
{
    if (a->bad == NULL) {
        a->bad = what;
        a->bad_column = column;
    }
}

/* The current entry of a column; NULL at the end or after an error. */
static const dsi_parquet_column *peek(dsi_assemble *a, uint32_t column)
{
    bool end = false;
    if (a->bad != NULL) {
        return NULL;
    }
    const char *bad = dsi_parquet_column_peek(&a->columns[column], &end);
    if (bad != NULL) {
        fail(a, column, bad);
    }
    return bad != NULL || end ? NULL : &a->columns[column];
}

/* The same, where an entry with this repetition level must be. */
static const dsi_parquet_column *expect(dsi_assemble *a, uint32_t column, uint32_t rep)
{
    const dsi_parquet_column *c = peek(a, column);
    if (c == NULL || c->entry_rep != rep) {
        fail(a, column, "its values do not fit the rows of the other columns");
        return NULL;
    }
    return c;
}

/* Takes the entry that stands for nothing from each column below a node that is not there. */
static void take_absent(dsi_assemble *a, const dsi_shape *shape, uint32_t rep, uint32_t def)
{
    if (shape->kind == DSI_SHAPE_LEAF) {
        const dsi_parquet_column *c = expect(a, shape->leaf, rep);
        if (c != NULL && c->entry_def >= def) {
            fail(a, shape->leaf, "it has a value where other columns of its group have none");
        }
        dsi_parquet_column_take(&a->columns[shape->leaf]);
        return;
    }
    for (const dsi_shape *child = shape->child; child != NULL && a->bad == NULL;
         child = child->next) {
        take_absent(a, child, rep, def);
    }
}

static void put_leaf(dsi_assemble *a, const dsi_shape *shape, uint32_t rep)
{
    const dsi_parquet_column *c = expect(a, shape->leaf, rep);
    if (c != NULL && c->entry_def != c->max_def) {
        fail(a, shape->leaf, "it has no value where other columns of its group have one");
    }
    if (a->bad == NULL) {
        if (shape->element->meaning == DSI_PARQUET_TEXT &&
            !dsi_parquet_is_utf8(c->value.text, c->value.n_text)) {
            fail(a, shape->leaf, "a text is no UTF-8");
        } else if (shape->element->meaning == DSI_PARQUET_ALWAYS_NULL) {
            dsi_buf_puts(a->json, "null");
        } else {
            dsi_parquet_put_value(shape->element, &c->value, a->json);
        }
    }
    dsi_parquet_column_take(&a->columns[shape->leaf]);
}

static void put_struct(dsi_assemble *a, const dsi_shape *shape, uint32_t rep)
{
    dsi_buf_putc(a->json, '{');
    for (const dsi_shape *child = shape->child; child != NULL && a->bad == NULL;
         child = child->next) {
        dsi_buf_putc(a->json, '"');
        dsi_buf_json(a->json, child->element->name, child->element->n_name);
        dsi_buf_puts(a->json, "\":");
        put(a, child, rep);
        if (child->next != NULL) {
            dsi_buf_putc(a->json, ',');
        }
    }
    dsi_buf_putc(a->json, '}');
}

/* Key and value of a map's entry. A key of JSON is a text. */
static void put_pair(dsi_assemble *a, const dsi_shape *shape, uint32_t rep)
{
    const dsi_shape *key = shape->child;
    const dsi_parquet_column *c = peek(a, key->leaf);
    if (c != NULL && c->entry_def != c->max_def) {
        fail(a, key->leaf, "a key of a map is null");
    } else if (c != NULL && !dsi_parquet_is_utf8(c->value.text, c->value.n_text)) {
        fail(a, key->leaf, "a key of a map is no UTF-8");
    }
    put_leaf(a, key, rep);
    dsi_buf_putc(a->json, ':');
    put(a, key->next, rep);
}

/* Lists and maps: elements as long as the first column goes on with the same list. */
static void put_items(dsi_assemble *a, const dsi_shape *shape, uint32_t rep)
{
    const bool map = shape->kind == DSI_SHAPE_MAP;
    const dsi_parquet_column *c = expect(a, shape->leaf, rep);
    dsi_buf_putc(a->json, map ? '{' : '[');
    if (c != NULL && c->entry_def < shape->item_def) {
        take_absent(a, shape, rep, shape->item_def);
        c = NULL;
    }
    while (c != NULL && a->bad == NULL && !a->json->failed) {
        if (map) {
            put_pair(a, shape, rep);
        } else {
            put(a, shape->child, rep);
        }
        rep = shape->rep;
        c = peek(a, shape->leaf);
        c = c != NULL && c->entry_rep >= rep ? c : NULL;
        if (c != NULL) {
            dsi_buf_putc(a->json, ',');
        }
    }
    dsi_buf_putc(a->json, map ? '}' : ']');
}

static void put(dsi_assemble *a, const dsi_shape *shape, uint32_t rep)
{
    const dsi_parquet_column *c = expect(a, shape->leaf, rep);
    if (c == NULL) {
        return;
    }
    if (shape->optional && c->entry_def < shape->def) {
        dsi_buf_puts(a->json, "null");
        take_absent(a, shape, rep, shape->def);
        return;
    }
    switch (shape->kind) {
    case DSI_SHAPE_LEAF:
        put_leaf(a, shape, rep);
        break;
    case DSI_SHAPE_STRUCT:
        put_struct(a, shape, rep);
        break;
    default:
        put_items(a, shape, rep);
        break;
    }
}

void dsi_assemble_row(dsi_assemble *a, const dsi_shape *root)
{
    put_struct(a, root, 0);
}
