/* SPDX-License-Identifier: Apache-2.0 */
/* The walk: each row of each table meets its key in the file. See config_eval.h. */
#include "config/config_eval.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *dsi_eval_text(dsi_eval *eval, const char *format, ...)
{
    char text[1024];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    const char *copy = dsi_arena_strdup(eval->arena, text);
    eval->no_memory = eval->no_memory || copy == NULL;
    return copy != NULL ? copy : "";
}

static void item_message(dsi_eval *eval, const dsi_item *item, bool is_error, const char *text)
{
    const dsi_node *given = item != NULL ? item->given : NULL;
    (is_error ? dsi_error_at : dsi_notice_at)(eval->diags, given != NULL ? given->line : 0,
                                              given != NULL ? given->column : 0,
                                              item != NULL ? item->path : NULL, "%s", text);
}

void dsi_item_error(dsi_eval *eval, const dsi_item *item, const char *format, ...)
{
    char text[1500];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    item_message(eval, item, true, text);
}

void dsi_item_notice(dsi_eval *eval, const dsi_item *item, const char *format, ...)
{
    char text[1500];
    va_list args;
    va_start(args, format);
    (void)vsnprintf(text, sizeof text, format, args);
    va_end(args);
    item_message(eval, item, false, text);
}

dsi_item *dsi_item_find(const dsi_eval *eval, const char *path)
{
    for (size_t i = 0; i < eval->n_items; ++i) {
        if (strcmp(eval->items[i].path, path) == 0) {
            return &eval->items[i];
        }
    }
    return NULL;
}

bool dsi_item_given(const dsi_item *item)
{
    return item != NULL && item->given != NULL && item->given->kind != DSI_NODE_NULL && !item->open;
}

bool dsi_item_true(const dsi_eval *eval, const char *path)
{
    const dsi_item *item = dsi_item_find(eval, path);
    return item != NULL && item->node != NULL && item->node->kind == DSI_NODE_BOOL &&
           item->node->as.truth;
}

int64_t dsi_item_int(const dsi_eval *eval, const char *path, int64_t absent)
{
    const dsi_item *item = dsi_item_find(eval, path);
    int64_t value = absent;
    (void)(item != NULL && item->node != NULL && dsi_node_int(item->node, &value));
    return value;
}

const char *dsi_item_text(const dsi_eval *eval, const char *path)
{
    const dsi_item *item = dsi_item_find(eval, path);
    return item != NULL && item->node != NULL && item->node->kind == DSI_NODE_TEXT
               ? item->node->as.text
               : NULL;
}

void dsi_item_set(dsi_eval *eval, dsi_item *item, const dsi_node *node,
                  ds_config_origin_kind origin, const char *detail)
{
    if (node == NULL) {
        eval->no_memory = true;
        return;
    }
    item->node = node;
    item->origin = origin;
    item->detail = detail;
    item->open = false;
}

static void walk_section(dsi_eval *eval, const dsi_section *section, const dsi_node *object,
                         const char *path);

/* ---- one row --------------------------------------------------------------------------------- */

/* The value of a row under any of its names; an error when it is given twice. */
static const dsi_node *look_up(dsi_eval *eval, const dsi_option *row, const dsi_node *object,
                               const char *path)
{
    const dsi_node *found = NULL;
    if (object == NULL) {
        return NULL;
    }
    for (const dsi_node *child = object->first; child != NULL; child = child->next) {
        if (!dsi_option_has_name(row, child->key)) {
            continue;
        }
        if (found != NULL && strcmp(found->key, child->key) != 0) {
            dsi_error_at(eval->diags, child->key_line, child->key_column, path,
                         "given twice, as \"%s\" on line %" PRIu32 " and as \"%s\"; remove one",
                         found->key, found->key_line, child->key);
        }
        found = found == NULL ? child : found;
    }
    return found;
}

static void note_old_name(dsi_eval *eval, const dsi_option *row, const dsi_node *given,
                          const char *path)
{
    if (row->old != NULL && dsi_choice_index(row->old, given->key, false) >= 0) {
        dsi_notice_at(eval->diags, given->key_line, given->key_column, path,
                      "\"%s\" is an old name; write \"%s\"", given->key, row->key);
    }
}

static dsi_item *add_item(dsi_eval *eval, const dsi_option *row, const char *path)
{
    if (eval->n_items == DSI_EVAL_MAX_ITEMS) {
        eval->no_memory = true;
        return NULL;
    }
    dsi_item *item = &eval->items[eval->n_items++];
    *item = (dsi_item){.option = row, .path = path, .origin = DS_ORIGIN_DEFAULT};
    item->node = dsi_option_default(eval->arena, row);
    return item;
}

/* "auto" in a row that has no such value of its own. */
static void take_auto(dsi_eval *eval, const dsi_option *row, bool lax, dsi_item *item)
{
    if ((row->flags & DSI_OPT_TRAINER) != 0) {
        item->open = true;
    } else if (lax) {
        item->origin = DS_ORIGIN_AUTO;
        item->detail = "default";
        if (row->def != NULL && row->def[0] != '[' && row->def[0] != '{') {
            dsi_item_notice(eval, item, "\"auto\" is the default here, %s", row->def);
        }
    } else {
        dsi_buf buf = dsi_buf_make(1024);
        dsi_option_expected(&buf, row);
        dsi_item_error(eval, item, "expected %s, found \"auto\", which this key does not know",
                       dsi_buf_text(&buf));
        dsi_buf_free(&buf);
    }
}

static bool is_text_type(dsi_option_type type)
{
    return type == DSI_OPT_TEXT || type == DSI_OPT_ANY;
}

/* What a key without effect, or one that is not built, says. */
static void judge_force(dsi_eval *eval, const dsi_option *row, const dsi_item *item, bool closed)
{
    if (closed || row->note == NULL || item->given->kind == DSI_NODE_NULL ||
        dsi_option_is_harmless(eval->arena, row, item->node)) {
        return;
    }
    if (row->force == DSI_NO_EFFECT) {
        dsi_item_notice(eval, item, "no effect: %s", row->note);
    }
    if (row->force != DSI_NOT_BUILT) {
        return;
    }
    dsi_buf buf = dsi_buf_make(1024);
    dsi_node_describe(&buf, item->node);
    dsi_item_error(eval, item, "not available, found %s: %s", dsi_buf_text(&buf), row->note);
    dsi_buf_free(&buf);
}

static void walk_scalar(dsi_eval *eval, const dsi_section *section, const dsi_option *row,
                        const dsi_node *given, const char *path, bool closed)
{
    const bool lax = (section->flags & DSI_SECTION_LAX) != 0;
    dsi_item *item = add_item(eval, row, path);
    if (item == NULL || given == NULL) {
        return;
    }
    item->given = given;
    note_old_name(eval, row, given, path);
    if (dsi_node_is_text(given, "auto") && (lax || !is_text_type(row->type))) {
        if ((row->flags & DSI_OPT_AUTO) == 0) {
            take_auto(eval, row, lax, item);
            return;
        }
        item->node = given;
        item->origin = DS_ORIGIN_FILE;
        return;
    }
    const dsi_node *node = dsi_option_check(eval, row, given, lax, path);
    if (node == NULL) {
        return;
    }
    item->node = node;
    item->origin = strcmp(given->key, row->key) == 0 ? DS_ORIGIN_FILE : DS_ORIGIN_ALIAS;
    judge_force(eval, row, item, closed);
}

static const char *member_path(dsi_eval *eval, const char *path, const char *key)
{
    return dsi_eval_text(eval, "%s%s%s", path, path[0] != '\0' ? "." : "", key);
}

static void walk_children(dsi_eval *eval, const dsi_option *row, const dsi_node *given,
                          const char *path)
{
    uint32_t index = 0;
    for (const dsi_node *child = given->first; child != NULL; child = child->next, ++index) {
        const char *name = child->key != NULL ? member_path(eval, path, child->key)
                                              : dsi_eval_text(eval, "%s[%" PRIu32 "]", path, index);
        if (child->kind == DSI_NODE_OBJECT) {
            walk_section(eval, row->section, child, name);
        } else {
            dsi_buf buf = dsi_buf_make(256);
            dsi_node_describe(&buf, child);
            dsi_error_at(eval->diags, child->line, child->column, name,
                         "expected an object, found %s", dsi_buf_text(&buf));
            dsi_buf_free(&buf);
        }
    }
}

/* Sections: a default section is walked for its defaults unless its feature is not built. */
static void walk_object(dsi_eval *eval, const dsi_section *parent, const dsi_option *row,
                        const dsi_node *object, const dsi_node *given, const char *path)
{
    const bool lax = (parent->flags & DSI_SECTION_LAX) != 0;
    const dsi_section *inner =
        row->type == DSI_OPT_VARIANT && row->choose != NULL ? row->choose(object) : row->section;
    const bool is_null =
        given == NULL || given->kind == DSI_NODE_NULL || (lax && dsi_node_is_text(given, "auto"));
    if (given != NULL) {
        note_old_name(eval, row, given, path);
    }
    if (is_null && given != NULL && (row->flags & DSI_OPT_NULLABLE) == 0 &&
        given->kind == DSI_NODE_NULL) {
        (void)dsi_option_check(eval, row, given, lax, path);
    }
    if (is_null) {
        if (inner != NULL && (inner->flags & DSI_SECTION_FEATURE) == 0) {
            walk_section(eval, inner, NULL, path);
        }
        return;
    }
    if (dsi_option_check(eval, row, given, lax, path) == NULL) {
        return;
    }
    if (row->note != NULL) { /* the section's presence is what asks */
        const dsi_item item = {.option = row, .path = path, .node = given, .given = given};
        judge_force(eval, row, &item, false);
    }
    if (row->type == DSI_OPT_SECTIONS || row->type == DSI_OPT_RECORDS) {
        walk_children(eval, row, given, path);
    } else if (inner != NULL && given->kind == DSI_NODE_OBJECT) {
        walk_section(eval, inner, given, path);
    }
}

static bool is_object_type(dsi_option_type type)
{
    return type == DSI_OPT_SECTION || type == DSI_OPT_SECTIONS || type == DSI_OPT_RECORDS ||
           type == DSI_OPT_VARIANT;
}

static bool is_closed(const dsi_section *section, const dsi_node *object)
{
    if ((section->flags & DSI_SECTION_GATED) == 0) {
        return false;
    }
    const dsi_node *enabled = dsi_node_find(object, "enabled");
    return enabled == NULL || (enabled->kind == DSI_NODE_BOOL && !enabled->as.truth);
}

static void walk_section(dsi_eval *eval, const dsi_section *section, const dsi_node *object,
                         const char *path)
{
    const bool closed = is_closed(section, object);
    dsi_config_unknown(eval, section, object, path);
    for (uint32_t i = 0; i < section->n_rows; ++i) {
        const dsi_option *row = &section->rows[i];
        const char *row_path = member_path(eval, path, row->key);
        const dsi_node *given = look_up(eval, row, object, row_path);
        if (is_object_type(row->type)) {
            walk_object(eval, section, row, object, given, row_path);
            continue;
        }
        if (given == NULL && (row->flags & DSI_OPT_REQUIRED) != 0) {
            dsi_error_at(eval->diags, object != NULL ? object->line : 0,
                         object != NULL ? object->column : 0, row_path,
                         "expected this key, found none; it has no default");
        }
        walk_scalar(eval, section, row, given, row_path, closed);
    }
}

void dsi_config_walk(dsi_eval *eval, const dsi_node *root)
{
    walk_section(eval, eval->root, root, "");
}
