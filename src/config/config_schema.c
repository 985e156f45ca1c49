/* SPDX-License-Identifier: Apache-2.0 */
/* The option tables as JSON Schema, draft 2020-12, for editors. */
#include "config/config_impl.h"

#include <string.h>

enum { SCHEMA_CEILING = 8 << 20 };

typedef struct writer {
    dsi_buf buf;
    bool comma; /* before the next member */
} writer;

static void put_text(writer *w, const char *text)
{
    dsi_buf_putc(&w->buf, '"');
    dsi_buf_json(&w->buf, text, strlen(text));
    dsi_buf_putc(&w->buf, '"');
}

static void key(writer *w, const char *name)
{
    dsi_buf_puts(&w->buf, w->comma ? "," : "");
    put_text(w, name);
    dsi_buf_putc(&w->buf, ':');
    w->comma = false;
}

static void raw(writer *w, const char *name, const char *json)
{
    key(w, name);
    dsi_buf_puts(&w->buf, json);
    w->comma = true;
}

static void text(writer *w, const char *name, const char *value)
{
    key(w, name);
    put_text(w, value);
    w->comma = true;
}

static void open(writer *w, char bracket)
{
    dsi_buf_putc(&w->buf, bracket);
    w->comma = false;
}

static void close(writer *w, char bracket)
{
    dsi_buf_putc(&w->buf, bracket);
    w->comma = true;
}

static void put_section(writer *w, const dsi_section *section);

static void put_words(writer *w, const char *choices, bool any_case)
{
    char choice[64];
    key(w, "enum");
    open(w, '[');
    for (int i = 0; dsi_choice_at(choices, i, choice, sizeof choice); ++i) {
        dsi_buf_puts(&w->buf, w->comma ? "," : "");
        put_text(w, choice);
        w->comma = true;
    }
    if (any_case) { /* the spellings that files use */
        for (int i = 0; dsi_choice_at(choices, i, choice, sizeof choice); ++i) {
            const bool is_lower = choice[0] >= 'a' && choice[0] <= 'z';
            for (char *c = choice; *c != '\0'; ++c) {
                const bool letter = (*c | 32) >= 'a' && (*c | 32) <= 'z';
                *c = letter ? (char)(is_lower ? *c & ~32 : *c | 32) : *c;
            }
            dsi_buf_putc(&w->buf, ',');
            put_text(w, choice);
        }
    }
    close(w, ']');
}

static void put_bounds(writer *w, const dsi_option *row)
{
    if (row->has_min) {
        key(w, (row->flags & DSI_OPT_ABOVE_MIN) != 0 ? "exclusiveMinimum" : "minimum");
        dsi_buf_real(&w->buf, row->min);
        w->comma = true;
    }
    if (row->has_max) {
        key(w, "maximum");
        dsi_buf_real(&w->buf, row->max);
        w->comma = true;
    }
}

static void put_list(writer *w, const dsi_option *row, const char *item_type)
{
    raw(w, "type", "\"array\"");
    key(w, "items");
    open(w, '{');
    text(w, "type", item_type);
    put_bounds(w, row);
    close(w, '}');
}

static void put_variants(writer *w, const dsi_variant *variants)
{
    key(w, "anyOf");
    open(w, '[');
    for (; variants->types != NULL; ++variants) {
        dsi_buf_puts(&w->buf, w->comma ? "," : "");
        open(w, '{');
        if (variants->section != NULL) {
            put_section(w, variants->section);
        }
        close(w, '}');
    }
    close(w, ']');
}

/* The members that say what values a row takes, without null, "auto" and lists of groups. */
static void put_type(writer *w, const dsi_section *parent, const dsi_option *row)
{
    switch (row->type) {
    case DSI_OPT_BOOL:
        raw(w, "type", "\"boolean\"");
        return;
    case DSI_OPT_INT:
        raw(w, "type", "\"integer\"");
        put_bounds(w, row);
        return;
    case DSI_OPT_REAL:
        raw(w, "type", "\"number\"");
        put_bounds(w, row);
        return;
    case DSI_OPT_TEXT:
        raw(w, "type", "\"string\"");
        return;
    case DSI_OPT_ENUM:
        put_words(w, row->choices, (row->flags & DSI_OPT_ANY_CASE) != 0);
        return;
    case DSI_OPT_DTYPE:
        put_words(w,
                  "fp32|float32|float|torch.float32|fp16|float16|half|torch.float16|bf16|"
                  "bfloat16|torch.bfloat16",
                  false);
        return;
    case DSI_OPT_INTS:
        put_list(w, row, "integer");
        return;
    case DSI_OPT_REALS:
        put_list(w, row, "number");
        return;
    case DSI_OPT_TEXTS:
        put_list(w, row, "string");
        return;
    case DSI_OPT_LIST:
        raw(w, "type", "\"array\"");
        return;
    case DSI_OPT_ANY:
        return;
    case DSI_OPT_OBJECT:
        raw(w, "type", "\"object\"");
        return;
    case DSI_OPT_SECTION:
        put_section(w, row->section);
        return;
    case DSI_OPT_SECTIONS:
    case DSI_OPT_RECORDS:
        raw(w, "type", row->type == DSI_OPT_SECTIONS ? "\"object\"" : "\"array\"");
        key(w, row->type == DSI_OPT_SECTIONS ? "additionalProperties" : "items");
        open(w, '{');
        put_section(w, row->section);
        close(w, '}');
        return;
    case DSI_OPT_VARIANT:
        put_variants(w, parent == &dsi_section_optimizer ? dsi_optimizer_variants
                                                         : dsi_scheduler_variants);
        return;
    }
}

/* One more form that a row takes: {"type": …} or {"const": …}. */
static void put_form(writer *w, const char *json)
{
    dsi_buf_puts(&w->buf, w->comma ? "," : "");
    dsi_buf_puts(&w->buf, json);
    w->comma = true;
}

static void put_row(writer *w, const dsi_section *section, const dsi_option *row, const char *name,
                    bool deprecated)
{
    const bool has_auto = (row->flags & (DSI_OPT_AUTO | DSI_OPT_TRAINER)) != 0 ||
                          (section->flags & DSI_SECTION_LAX) != 0;
    key(w, name);
    open(w, '{');
    text(w, "description", row->doc);
    if (row->def != NULL) {
        raw(w, "default", row->def);
    }
    if (deprecated) {
        raw(w, "deprecated", "true");
    }
    key(w, "anyOf");
    open(w, '[');
    open(w, '{');
    put_type(w, section, row);
    close(w, '}');
    if ((row->flags & DSI_OPT_NULLABLE) != 0) {
        put_form(w, "{\"type\":\"null\"}");
    }
    if (has_auto) {
        put_form(w, "{\"const\":\"auto\"}");
    }
    if ((row->flags & DSI_OPT_GROUPS) != 0) {
        put_form(w, "{\"type\":\"array\",\"items\":{\"type\":\"number\"}}");
    }
    if ((row->flags & DSI_OPT_ONE_TEXT) != 0) {
        put_form(w, "{\"type\":\"string\"}");
    }
    if (row->section == &dsi_section_zero) {
        put_form(w, "{\"type\":\"boolean\",\"deprecated\":true}");
    }
    close(w, ']');
    close(w, '}');
}

static void put_other_names(writer *w, const dsi_section *section, const dsi_option *row,
                            const char *names, bool deprecated)
{
    char name[64];
    for (int i = 0; names != NULL && dsi_choice_at(names, i, name, sizeof name); ++i) {
        put_row(w, section, row, name, deprecated);
    }
}

static void put_required(writer *w, const dsi_section *section)
{
    key(w, "required");
    open(w, '[');
    for (uint32_t i = 0; i < section->n_rows; ++i) {
        if ((section->rows[i].flags & DSI_OPT_REQUIRED) != 0) {
            dsi_buf_puts(&w->buf, w->comma ? "," : "");
            put_text(w, section->rows[i].key);
            w->comma = true;
        }
    }
    close(w, ']');
}

static void put_section(writer *w, const dsi_section *section)
{
    raw(w, "type", "\"object\"");
    raw(w, "additionalProperties", (section->flags & DSI_SECTION_OPEN) != 0 ? "true" : "false");
    put_required(w, section);
    key(w, "properties");
    open(w, '{');
    for (uint32_t i = 0; i < section->n_rows; ++i) {
        const dsi_option *row = &section->rows[i];
        put_row(w, section, row, row->key, (row->flags & DSI_OPT_IGNORED) != 0);
        put_other_names(w, section, row, row->aliases, false);
        put_other_names(w, section, row, row->old, true);
    }
    close(w, '}');
}

ds_status ds_config_schema(ds_ctx *ctx, char **text_out)
{
    writer w = {.buf = dsi_buf_make(SCHEMA_CEILING)};
    open(&w, '{');
    text(&w, "$schema", "https://json-schema.org/draft/2020-12/schema");
    text(&w, "title", "DeepSpeed configuration");
    put_section(&w, &dsi_section_root);
    close(&w, '}');
    dsi_buf_putc(&w.buf, '\n');
    return dsi_config_give(ctx, &w.buf, text_out);
}
