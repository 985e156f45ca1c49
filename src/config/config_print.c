/* SPDX-License-Identifier: Apache-2.0 */
/* The effective configuration as JSON: nested, or flat with the origin of each value. */
#include "config/config_impl.h"

#include <stdlib.h>
#include <string.h>

enum { PRINT_CEILING = 64 << 20 };

static void put_text(dsi_buf *buf, const char *text)
{
    dsi_buf_putc(buf, '"');
    dsi_buf_json(buf, text, strlen(text));
    dsi_buf_putc(buf, '"');
}

static const char *origin_name(ds_config_origin_kind origin)
{
    static const char *const names[] = {
        [DS_ORIGIN_DEFAULT] = "default", [DS_ORIGIN_FILE] = "file", [DS_ORIGIN_ALIAS] = "alias",
        [DS_ORIGIN_AUTO] = "auto",       [DS_ORIGIN_RULE] = "rule",
    };
    return names[origin];
}

static void print_flat(const ds_config *config, dsi_buf *buf)
{
    dsi_buf_puts(buf, "{");
    for (size_t i = 0; i < config->n_items; ++i) {
        const ds_config_item *item = &config->items[i];
        dsi_buf_puts(buf, i != 0 ? ",\n  " : "\n  ");
        put_text(buf, item->path);
        dsi_buf_printf(buf, ": {\"value\": %s, \"origin\": \"%s\"", item->value,
                       origin_name(item->origin));
        if (item->detail[0] != '\0') {
            dsi_buf_puts(buf, ", \"detail\": ");
            put_text(buf, item->detail);
        }
        dsi_buf_puts(buf, "}");
    }
    dsi_buf_puts(buf, "\n}\n");
}

/* Bytes of the section part that two paths share, up to and with a dot. */
static size_t shared_prefix(const char *a, const char *b)
{
    size_t shared = 0;
    for (size_t i = 0; a[i] != '\0' && a[i] == b[i]; ++i) {
        if (a[i] == '.') {
            shared = i + 1;
        }
    }
    return shared;
}

static size_t count_dots(const char *text)
{
    size_t n = 0;
    for (; *text != '\0'; ++text) {
        n += *text == '.';
    }
    return n;
}

static void indent(dsi_buf *buf, size_t depth)
{
    dsi_buf_printf(buf, "\n%*s", (int)(2 * (depth + 1)), "");
}

/* Opens the sections of path after `from`, and writes its last part as a key. */
static void open_to(dsi_buf *buf, const char *path, size_t from, size_t depth)
{
    const char *part = path + from;
    for (const char *dot = strchr(part, '.'); dot != NULL; dot = strchr(part, '.')) {
        indent(buf, depth++);
        dsi_buf_putc(buf, '"');
        dsi_buf_json(buf, part, (size_t)(dot - part));
        dsi_buf_puts(buf, "\": {");
        part = dot + 1;
    }
    indent(buf, depth);
    put_text(buf, part);
    dsi_buf_puts(buf, ": ");
}

static void print_nested(const ds_config *config, dsi_buf *buf)
{
    const char *last = "";
    dsi_buf_puts(buf, "{");
    for (size_t i = 0; i < config->n_items; ++i) {
        const ds_config_item *item = &config->items[i];
        const bool is_silent =
            item->origin == DS_ORIGIN_DEFAULT && strcmp(item->value, "null") == 0;
        if (is_silent || strchr(item->path, '[') != NULL) {
            continue;
        }
        const size_t shared = shared_prefix(last, item->path);
        const size_t common = count_dots(last) - count_dots(last + shared);
        for (size_t depth = count_dots(last); depth > common; --depth) {
            indent(buf, depth - 1);
            dsi_buf_putc(buf, '}');
        }
        if (last[0] != '\0') {
            dsi_buf_putc(buf, ',');
        }
        open_to(buf, item->path, shared, common);
        dsi_buf_puts(buf, item->value);
        last = item->path;
    }
    for (size_t depth = count_dots(last); depth > 0; --depth) {
        indent(buf, depth - 1);
        dsi_buf_putc(buf, '}');
    }
    dsi_buf_puts(buf, "\n}\n");
}

ds_status dsi_config_give(ds_ctx *ctx, dsi_buf *buf, char **text_out)
{
    char *text = buf->failed ? NULL : strdup(dsi_buf_text(buf));
    dsi_buf_free(buf);
    if (text == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a text");
    }
    *text_out = text;
    return DS_OK;
}

ds_status ds_config_print(const ds_config *config, bool origins, char **text_out)
{
    if (!config->is_resolved) {
        return ds_fail(config->ctx, DS_ERR_STATE, "%s: resolve the configuration first",
                       config->name);
    }
    dsi_buf buf = dsi_buf_make(PRINT_CEILING);
    (origins ? print_flat : print_nested)(config, &buf);
    return dsi_config_give(config->ctx, &buf, text_out);
}
