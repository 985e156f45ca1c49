/* SPDX-License-Identifier: Apache-2.0 */
/* The JSON and HJSON reader: objects, lists, keys. See config_read.h. */
#include "config/config_read.h"

#include "config/config_scan.h"
#include <stdio.h>
#include <string.h>

static dsi_node *read_value(dsi_scan *r);

static const char *read_key(dsi_scan *r)
{
    if (dsi_scan_peek(r) == '"' || dsi_scan_peek(r) == '\'') {
        return dsi_scan_quoted(r);
    }
    const size_t start = r->pos;
    for (int c = dsi_scan_peek(r); c != ':' && c > ' '; c = dsi_scan_peek(r)) {
        if (strchr("{}[],", c) != NULL) {
            return dsi_scan_bad(r, "a key and ':'");
        }
        ++r->pos;
    }
    if (r->pos == start) {
        return dsi_scan_bad(r, "a key or '}'");
    }
    const char *key = dsi_arena_strndup(r->diags->arena, r->text + start, r->pos - start);
    while (dsi_scan_peek(r) == ' ' || dsi_scan_peek(r) == '\t' || dsi_scan_peek(r) == '\r' ||
           dsi_scan_peek(r) == '\n') {
        dsi_scan_step(r);
    }
    if (dsi_scan_peek(r) != ':') {
        return dsi_scan_bad(r, "':' after a key");
    }
    return key != NULL ? key : dsi_scan_no_memory(r);
}

static void check_duplicate(dsi_scan *r, const dsi_node *object, const dsi_node *member)
{
    const dsi_node *twin = dsi_node_find(object, member->key);
    if (twin != NULL) {
        dsi_error_at(r->diags, member->key_line, member->key_column, NULL,
                     "the key \"%s\" is already given on line %u; remove one of the two",
                     member->key, (unsigned)twin->key_line);
    }
}

static bool read_member(dsi_scan *r, dsi_node *object)
{
    const uint32_t line = r->line;
    const uint32_t column = dsi_scan_column(r, r->pos);
    const char *key = read_key(r);
    if (key == NULL || !dsi_scan_skip(r)) {
        return false;
    }
    if (dsi_scan_peek(r) != ':') {
        (void)dsi_scan_bad(r, "':' after a key");
        return false;
    }
    ++r->pos;
    if (!dsi_scan_skip(r)) {
        return false;
    }
    dsi_node *member = read_value(r);
    if (member == NULL) {
        return false;
    }
    member->key = key;
    member->key_line = line;
    member->key_column = column;
    check_duplicate(r, object, member);
    dsi_node_add(object, member);
    if (object->n_children > DSI_READ_MAX_MEMBERS) {
        (void)dsi_scan_bad(r, "at most 2000 keys in an object");
    }
    return !r->failed;
}

/* The text ends too early. A string without quotes may have swallowed what closes. */
static dsi_node *refuse_end(dsi_scan *r, int close)
{
    const char *what = close == '}' ? "'}' to close the object" : "']' to close the list";
    char text[200];
    if (r->open_line == 0) {
        return dsi_scan_bad(r, what);
    }
    (void)snprintf(text, sizeof text,
                   "%s (the string without quotes on line %u goes to the end of its line, brackets "
                   "too; quote it)",
                   what, (unsigned)r->open_line);
    return dsi_scan_bad(r, text);
}

/* Members or elements up to `close`, or to the end of the text when close is -1. */
static dsi_node *read_children(dsi_scan *r, dsi_node *node, int close)
{
    if (++r->depth > DSI_READ_MAX_DEPTH) {
        return dsi_scan_bad(r, "at most 64 levels of objects and lists");
    }
    while (dsi_scan_skip(r) && dsi_scan_peek(r) != close) {
        if (dsi_scan_peek(r) < 0) {
            return refuse_end(r, close);
        }
        if (node->kind == DSI_NODE_OBJECT) {
            if (!read_member(r, node)) {
                return NULL;
            }
        } else {
            dsi_node *element = read_value(r);
            if (element == NULL) {
                return NULL;
            }
            dsi_node_add(node, element);
        }
        if (dsi_scan_skip(r) && dsi_scan_peek(r) == ',') {
            ++r->pos;
        }
    }
    if (r->failed) {
        return NULL;
    }
    r->pos += close >= 0;
    --r->depth;
    return node;
}

static dsi_node *read_value(dsi_scan *r)
{
    const int c = dsi_scan_peek(r);
    if (c == '{' || c == '[') {
        dsi_node *node = dsi_scan_node(r, c == '{' ? DSI_NODE_OBJECT : DSI_NODE_LIST);
        if (node == NULL) {
            return NULL;
        }
        ++r->pos;
        return read_children(r, node, c == '{' ? '}' : ']');
    }
    if (c != '"' && c != '\'') {
        return dsi_scan_unquoted(r);
    }
    dsi_node *node = dsi_scan_node(r, DSI_NODE_TEXT);
    if (node == NULL) {
        return NULL;
    }
    node->as.text = dsi_scan_at_multiline(r) ? dsi_scan_multiline(r) : dsi_scan_quoted(r);
    return node->as.text != NULL ? node : NULL;
}

static dsi_node *read_root(dsi_scan *r)
{
    if (r->n >= 3 && memcmp(r->text, "\xef\xbb\xbf", 3) == 0) {
        r->pos = r->line_start = 3; /* byte order mark */
    }
    if (!dsi_scan_skip(r)) {
        return NULL;
    }
    if (dsi_scan_peek(r) == '[') {
        return dsi_scan_bad(r, "an object of keys and values");
    }
    dsi_node *root = dsi_scan_node(r, DSI_NODE_OBJECT);
    if (root == NULL) {
        return NULL;
    }
    const bool braces = dsi_scan_peek(r) == '{';
    r->pos += braces;
    root = read_children(r, root, braces ? '}' : -1);
    if (root != NULL && (!dsi_scan_skip(r) || dsi_scan_peek(r) >= 0)) {
        return dsi_scan_bad(r, "nothing after the closing '}'");
    }
    return root;
}

dsi_node *dsi_config_read(dsi_diags *diags, const char *text, size_t n)
{
    if (n > DSI_READ_MAX_BYTES) {
        dsi_error_at(diags, 0, 0, NULL, "expected at most 4 MiB of configuration, found %zu bytes",
                     n);
        return NULL;
    }
    dsi_scan r = {.diags = diags, .text = text, .n = n, .line = 1};
    r.c_locale = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    if (r.c_locale == (locale_t)0) {
        return dsi_scan_no_memory(&r);
    }
    r.scratch = dsi_buf_make(DSI_READ_MAX_BYTES);
    dsi_node *root = read_root(&r);
    dsi_buf_free(&r.scratch);
    freelocale(r.c_locale);
    return r.failed ? NULL : root;
}
