/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a configuration tree: making, comparing, writing. See config_node.h. */
#include "config/config_node.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dsi_node *dsi_node_find(const dsi_node *object, const char *key)
{
    if (object == NULL || object->kind != DSI_NODE_OBJECT) {
        return NULL;
    }
    for (dsi_node *child = object->first; child != NULL; child = child->next) {
        if (strcmp(child->key, key) == 0) {
            return child;
        }
    }
    return NULL;
}

dsi_node *dsi_node_make(dsi_arena *arena, dsi_node_kind kind)
{
    dsi_node *node = dsi_arena_alloc(arena, sizeof *node);
    if (node != NULL) {
        node->kind = kind;
    }
    return node;
}

dsi_node *dsi_node_make_int(dsi_arena *arena, int64_t value)
{
    dsi_node *node = dsi_node_make(arena, DSI_NODE_INT);
    if (node != NULL) {
        node->as.integer = value;
    }
    return node;
}

dsi_node *dsi_node_make_real(dsi_arena *arena, double value)
{
    dsi_node *node = dsi_node_make(arena, DSI_NODE_REAL);
    if (node != NULL) {
        node->as.real = value;
    }
    return node;
}

dsi_node *dsi_node_make_bool(dsi_arena *arena, bool value)
{
    dsi_node *node = dsi_node_make(arena, DSI_NODE_BOOL);
    if (node != NULL) {
        node->as.truth = value;
    }
    return node;
}

dsi_node *dsi_node_make_text(dsi_arena *arena, const char *text)
{
    dsi_node *node = dsi_node_make(arena, DSI_NODE_TEXT);
    if (node != NULL) {
        node->as.text = dsi_arena_strdup(arena, text);
    }
    return node != NULL && node->as.text != NULL ? node : NULL;
}

void dsi_node_add(dsi_node *parent, dsi_node *child)
{
    child->next = NULL;
    if (parent->last != NULL) {
        parent->last->next = child;
    } else {
        parent->first = child;
    }
    parent->last = child;
    ++parent->n_children;
}

bool dsi_node_is_number(const dsi_node *node)
{
    return node != NULL && (node->kind == DSI_NODE_INT || node->kind == DSI_NODE_REAL);
}

bool dsi_node_is_text(const dsi_node *node, const char *text)
{
    return node != NULL && node->kind == DSI_NODE_TEXT && strcmp(node->as.text, text) == 0;
}

double dsi_node_real(const dsi_node *node)
{
    if (!dsi_node_is_number(node)) {
        return 0;
    }
    return node->kind == DSI_NODE_INT ? (double)node->as.integer : node->as.real;
}

bool dsi_node_int(const dsi_node *node, int64_t *value_out)
{
    if (node == NULL || !dsi_node_is_number(node)) {
        return false;
    }
    if (node->kind == DSI_NODE_INT) {
        *value_out = node->as.integer;
        return true;
    }
    const double value = node->as.real;
    if (floor(value) != value || !(fabs(value) < 0x1p63)) {
        return false;
    }
    *value_out = (int64_t)value;
    return true;
}

static bool equal_children(const dsi_node *a, const dsi_node *b)
{
    if (a->n_children != b->n_children) {
        return false;
    }
    const dsi_node *other = b->first;
    for (const dsi_node *child = a->first; child != NULL; child = child->next) {
        const dsi_node *match = a->kind == DSI_NODE_OBJECT ? dsi_node_find(b, child->key) : other;
        if (!dsi_node_equal(child, match)) {
            return false;
        }
        other = other->next;
    }
    return true;
}

bool dsi_node_equal(const dsi_node *a, const dsi_node *b)
{
    if (a == NULL || b == NULL) {
        return a == b;
    }
    if (dsi_node_is_number(a) && dsi_node_is_number(b)) {
        return dsi_node_real(a) == dsi_node_real(b);
    }
    if (a->kind != b->kind) {
        return false;
    }
    switch (a->kind) {
    case DSI_NODE_NULL:
        return true;
    case DSI_NODE_BOOL:
        return a->as.truth == b->as.truth;
    case DSI_NODE_TEXT:
        return strcmp(a->as.text, b->as.text) == 0;
    case DSI_NODE_LIST:
    case DSI_NODE_OBJECT:
        return equal_children(a, b);
    case DSI_NODE_INT:
    case DSI_NODE_REAL:
        break;
    }
    return false;
}

void dsi_buf_real(dsi_buf *buf, double value)
{
    char text[40];
    for (int digits = 6; digits <= 17; ++digits) {
        (void)snprintf(text, sizeof text, "%.*g", digits, value);
        if (strtod(text, NULL) == value) { /* same locale both ways */
            break;
        }
    }
    for (char *p = text; *p != '\0'; ++p) {
        if (*p == ',') {
            *p = '.';
        }
    }
    dsi_buf_puts(buf, text);
}

static void children_json(dsi_buf *buf, const dsi_node *node)
{
    const bool is_object = node->kind == DSI_NODE_OBJECT;
    dsi_buf_putc(buf, is_object ? '{' : '[');
    for (const dsi_node *child = node->first; child != NULL; child = child->next) {
        if (child != node->first) {
            dsi_buf_puts(buf, ", ");
        }
        if (is_object) {
            dsi_buf_putc(buf, '"');
            dsi_buf_json(buf, child->key, strlen(child->key));
            dsi_buf_puts(buf, "\": ");
        }
        dsi_node_json(buf, child);
    }
    dsi_buf_putc(buf, is_object ? '}' : ']');
}

void dsi_node_json(dsi_buf *buf, const dsi_node *node)
{
    switch (node->kind) {
    case DSI_NODE_NULL:
        dsi_buf_puts(buf, "null");
        return;
    case DSI_NODE_BOOL:
        dsi_buf_puts(buf, node->as.truth ? "true" : "false");
        return;
    case DSI_NODE_INT:
        dsi_buf_printf(buf, "%" PRId64, node->as.integer);
        return;
    case DSI_NODE_REAL:
        dsi_buf_real(buf, node->as.real);
        return;
    case DSI_NODE_TEXT:
        dsi_buf_putc(buf, '"');
        dsi_buf_json(buf, node->as.text, strlen(node->as.text));
        dsi_buf_putc(buf, '"');
        return;
    case DSI_NODE_LIST:
    case DSI_NODE_OBJECT:
        children_json(buf, node);
        return;
    }
}

void dsi_node_describe(dsi_buf *buf, const dsi_node *node)
{
    enum { MAX_SHOWN = 60 };
    switch (node->kind) {
    case DSI_NODE_TEXT: {
        const size_t n = strlen(node->as.text);
        dsi_buf_puts(buf, "the string \"");
        dsi_buf_json(buf, node->as.text, n < MAX_SHOWN ? n : MAX_SHOWN);
        dsi_buf_puts(buf, n > MAX_SHOWN ? "…\"" : "\"");
        return;
    }
    case DSI_NODE_LIST:
        dsi_buf_printf(buf, "a list of %" PRIu32, node->n_children);
        return;
    case DSI_NODE_OBJECT:
        dsi_buf_puts(buf, "an object");
        return;
    default:
        dsi_node_json(buf, node);
        return;
    }
}
