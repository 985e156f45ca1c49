/* SPDX-License-Identifier: Apache-2.0 */
/* Changed configurations, as text. See tune_impl.h.
 *
 * The user's text is read anew for each, changed as a tree and printed as JSON, so that keys which
 * the search does not touch ("auto" among them) reach the program as they are.
 */
#include "tune/tune_impl.h"

#include "config/config_read.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { ARENA_CEILING = 64 << 20 };

void dsi_tune_set(dsi_tune_candidate *c, const char *path, const char *value)
{
    uint32_t i = 0;
    while (i < c->n_settings && strcmp(c->settings[i].path, path) != 0) {
        ++i;
    }
    if (i < DSI_TUNE_SETTINGS) {
        c->settings[i].path = path;
        (void)snprintf(c->settings[i].value, sizeof c->settings[i].value, "%s", value);
        c->n_settings = i < c->n_settings ? c->n_settings : i + 1;
    }
}

void dsi_tune_set_int(dsi_tune_candidate *c, const char *path, int64_t value)
{
    char text[32];
    (void)snprintf(text, sizeof text, "%" PRId64, value);
    dsi_tune_set(c, path, text);
}

static void unlink_child(dsi_node *parent, const char *key)
{
    dsi_node *before = NULL;
    for (dsi_node *n = parent->first; n != NULL; before = n, n = n->next) {
        if (strcmp(n->key, key) != 0) {
            continue;
        }
        *(before != NULL ? &before->next : &parent->first) = n->next;
        parent->last = parent->last == n ? before : parent->last;
        parent->n_children -= 1;
        return;
    }
}

/* The object at the first n bytes of a path, made where it is missing or something else. */
static dsi_node *object_at(dsi_arena *arena, dsi_node *root, const char *path, size_t n)
{
    dsi_node *at = root;
    while (n > 0 && at != NULL) {
        const char *dot = memchr(path, '.', n);
        const size_t length = dot != NULL ? (size_t)(dot - path) : n;
        const char *key = dsi_arena_strndup(arena, path, length);
        dsi_node *child = key != NULL ? dsi_node_find(at, key) : NULL;
        if (key == NULL) {
            return NULL;
        }
        if (child == NULL || child->kind != DSI_NODE_OBJECT) {
            unlink_child(at, key);
            child = dsi_node_make(arena, DSI_NODE_OBJECT);
            if (child == NULL) {
                return NULL;
            }
            child->key = key;
            dsi_node_add(at, child);
        }
        at = child;
        path += length + (dot != NULL);
        n -= length + (dot != NULL);
    }
    return at;
}

/* The value in the place of the old one, else at the end. */
static void put_child(dsi_node *parent, dsi_node *child)
{
    for (dsi_node *before = NULL, *n = parent->first; n != NULL; before = n, n = n->next) {
        if (strcmp(n->key, child->key) == 0) {
            child->next = n->next;
            *(before != NULL ? &before->next : &parent->first) = child;
            parent->last = parent->last == n ? child : parent->last;
            return;
        }
    }
    dsi_node_add(parent, child);
}

static bool apply(dsi_diags *diags, dsi_node *root, const dsi_tune_setting *setting)
{
    const char *dot = strrchr(setting->path, '.');
    const size_t n = dot != NULL ? (size_t)(dot - setting->path) : 0;
    const char *key = dot != NULL ? dot + 1 : setting->path;
    if (setting->value[0] == '\0') {
        dsi_node *parent = root;
        char path[256];
        (void)snprintf(path, sizeof path, "%.*s", (int)n, setting->path);
        for (char *at = path; at[0] != '\0' && parent != NULL;) {
            const size_t length = strcspn(at, ".");
            const bool more = at[length] == '.';
            at[length] = '\0';
            parent = dsi_node_find(parent, at);
            at += length + (more ? 1 : 0);
        }
        if (parent != NULL && parent->kind == DSI_NODE_OBJECT) {
            unlink_child(parent, key);
        }
        return true;
    }
    char text[80];
    const int length = snprintf(text, sizeof text, "{\"v\": %s}", setting->value);
    dsi_node *holder = dsi_config_read(diags, text, (size_t)length);
    dsi_node *parent = object_at(diags->arena, root, setting->path, n);
    if (holder == NULL || parent == NULL) {
        return false;
    }
    dsi_node *value = holder->first;
    value->key = key;
    value->next = NULL;
    put_child(parent, value);
    return true;
}

static void print(dsi_buf *out, const dsi_node *node, int depth)
{
    if (node->kind != DSI_NODE_OBJECT || node->first == NULL) {
        dsi_node_json(out, node);
        return;
    }
    dsi_buf_putc(out, '{');
    for (const dsi_node *n = node->first; n != NULL; n = n->next) {
        dsi_buf_printf(out, "\n%*s\"", 2 * (depth + 1), "");
        dsi_buf_json(out, n->key, strlen(n->key));
        dsi_buf_puts(out, "\": ");
        print(out, n, depth + 1);
        dsi_buf_puts(out, n->next != NULL ? "," : "");
    }
    dsi_buf_printf(out, "\n%*s}", 2 * depth, "");
}

ds_status dsi_tune_text(ds_ctx *ctx, const dsi_buf *raw, const dsi_tune_setting *settings,
                        uint32_t n_settings, dsi_buf *out)
{
    dsi_arena *arena = NULL;
    dsi_buf message = dsi_buf_make(4096);
    DS_TRY(dsi_arena_create(ARENA_CEILING, &arena));
    dsi_diags diags = {.name = "the configuration", .arena = arena};
    dsi_node *root = dsi_config_read(&diags, dsi_buf_text(raw), raw->size);
    ds_status status = DS_OK;
    *out = dsi_buf_make(DSI_READ_MAX_BYTES);
    if (diags.n_errors > 0) {
        dsi_diags_write(&diags, &message);
        status = ds_fail(ctx, DS_ERR_CONFIG, "%s", dsi_buf_text(&message));
    } else {
        bool right = root != NULL;
        for (uint32_t i = 0; right && i < n_settings; ++i) {
            right = apply(&diags, root, &settings[i]);
        }
        if (right) {
            print(out, root, 0);
            dsi_buf_putc(out, '\n');
        }
        if (!right || out->failed) {
            status = ds_fail(ctx, DS_ERR_NOMEM, "no memory for the text of a configuration");
        }
    }
    dsi_buf_free(&message);
    dsi_arena_destroy(&arena);
    if (status < 0) {
        dsi_buf_free(out);
    }
    return status;
}
