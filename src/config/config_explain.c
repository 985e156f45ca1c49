/* SPDX-License-Identifier: Apache-2.0 */
/* `ds_config explain`: what is known of a key, from its row. See include/deepspeed/config.h. */
#include "config/config_impl.h"

#include "base/nearest.h"
#include <string.h>

enum { TEXT_CEILING = 8 << 20 };

typedef struct explain {
    const char *key;
    bool by_part; /* rows whose names contain the key, and not those that have it as a name */
    bool in_full;
    dsi_buf *buf;
    dsi_nearest nearest;
    size_t n_found;
} explain;

static bool is_named(const dsi_section *section, const dsi_option *row, const char *key)
{
    const size_t n = strlen(section->path);
    const char *last = key;
    if (n > 0 && strncmp(key, section->path, n) == 0 && key[n] == '.') {
        last = key + n + 1;
    } else if (strchr(key, '.') != NULL) {
        return false;
    }
    return dsi_option_has_name(row, last);
}

static void explain_row(explain *e, const dsi_section *section, const dsi_option *row)
{
    dsi_buf *buf = e->buf;
    dsi_buf_printf(buf, "%s%s%s%s\n", e->n_found++ != 0 ? "\n" : "", section->path,
                   section->path[0] != '\0' ? "." : "", row->key);
    if (section->title != NULL && section->path[0] != '\0') {
        dsi_buf_printf(buf, "  of       %s\n", section->title);
    }
    dsi_buf_printf(buf, "  meaning  %s\n  value    ", row->doc);
    dsi_option_expected(buf, row);
    dsi_buf_printf(buf, "\n  default  %s\n",
                   row->def != NULL                       ? row->def
                   : (row->flags & DSI_OPT_REQUIRED) != 0 ? "none: the key is required"
                                                          : "none");
    dsi_buf_printf(buf, "  here     %s%s%s\n", dsi_force_text(row), row->note != NULL ? ": " : "",
                   row->note != NULL ? row->note : "");
    if ((row->flags & DSI_OPT_TRAINER) != 0) {
        dsi_buf_puts(buf, "  \"auto\"   filled from the command line or the model\n");
    }
    if (row->aliases != NULL) {
        dsi_buf_printf(buf, "  aliases  %s\n", row->aliases);
    }
    if (row->old != NULL) {
        dsi_buf_printf(buf, "  old name %s\n", row->old);
    }
    for (uint32_t i = 0; row->section != NULL && i < row->section->n_rows; ++i) {
        dsi_buf_printf(buf, "%s%s", i == 0 ? "  keys     " : ", ", row->section->rows[i].key);
    }
    dsi_buf_puts(buf, row->section != NULL ? "\n" : "");
}

/* A line: the path and the first sentence. */
static void list_row(explain *e, const dsi_section *section, const dsi_option *row)
{
    const char *end = strstr(row->doc, ". ");
    const size_t n = end != NULL ? (size_t)(end - row->doc) + 1 : strlen(row->doc);
    ++e->n_found;
    dsi_buf_printf(e->buf, "%s%s%s\n    %.*s\n", section->path, section->path[0] != '\0' ? "." : "",
                   row->key, (int)n, row->doc);
}

static bool contains(const dsi_option *row, const char *part)
{
    return strcasestr(row->key, part) != NULL ||
           (row->aliases != NULL && strcasestr(row->aliases, part) != NULL) ||
           (row->old != NULL && strcasestr(row->old, part) != NULL);
}

static void explain_section(void *arg, const dsi_section *section)
{
    explain *e = arg;
    for (uint32_t i = 0; i < section->n_rows; ++i) {
        const dsi_option *row = &section->rows[i];
        const char *last = strrchr(e->key, '.');
        e->nearest.word = last != NULL ? last + 1 : e->key;
        dsi_nearest_offer(&e->nearest, row->key);
        if (!(e->by_part ? contains(row, e->key) : is_named(section, row, e->key))) {
            continue;
        }
        if (e->in_full) {
            explain_row(e, section, row);
        } else {
            list_row(e, section, row);
        }
    }
}

/* Keys of that name; else the one whose name contains it, or a list of all such. */
static size_t find_keys(explain *e)
{
    *e = (explain){.key = e->key, .in_full = true, .buf = e->buf, .nearest = {.word = e->key}};
    dsi_config_visit(explain_section, e);
    if (e->n_found > 0 || strlen(e->key) < 2) {
        return e->n_found;
    }
    dsi_buf list = dsi_buf_make(TEXT_CEILING);
    explain by_part = {.key = e->key, .by_part = true, .buf = &list};
    dsi_config_visit(explain_section, &by_part);
    if (by_part.n_found == 1) {
        explain one = {.key = e->key, .by_part = true, .in_full = true, .buf = e->buf};
        dsi_config_visit(explain_section, &one);
    } else if (by_part.n_found > 1) {
        dsi_buf_printf(e->buf, "%zu keys have \"%s\" in their names:\n\n%s", by_part.n_found,
                       e->key, dsi_buf_text(&list));
    }
    dsi_buf_free(&list);
    return by_part.n_found;
}

ds_status ds_config_explain(ds_ctx *ctx, const char *key, char **text_out)
{
    dsi_buf buf = dsi_buf_make(TEXT_CEILING);
    explain e = {.key = key, .buf = &buf};
    if (find_keys(&e) > 0) {
        return dsi_config_give(ctx, &buf, text_out);
    }
    dsi_buf_free(&buf);
    if (e.nearest.best != NULL) {
        return ds_fail(ctx, DS_ERR_NOT_FOUND, "no key is named \"%s\"; did you mean \"%s\"?", key,
                       e.nearest.best);
    }
    return ds_fail(ctx, DS_ERR_NOT_FOUND,
                   "no key is named \"%s\"; docs/config.md lists all of them", key);
}
