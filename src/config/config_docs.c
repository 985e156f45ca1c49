/* SPDX-License-Identifier: Apache-2.0 */
/* The option tables as text: docs/config.md. */
#include "config/config_impl.h"

#include <stdlib.h>
#include <string.h>

enum { DOCS_CEILING = 8 << 20 };

static void visit(const dsi_section *section, dsi_section_fn fn, void *arg);

static void visit_variants(const dsi_variant *variants, dsi_section_fn fn, void *arg)
{
    for (; variants->types != NULL; ++variants) {
        if (variants->section != NULL) {
            visit(variants->section, fn, arg);
        }
    }
}

static void visit(const dsi_section *section, dsi_section_fn fn, void *arg)
{
    fn(arg, section);
    for (uint32_t i = 0; i < section->n_rows; ++i) {
        const dsi_section *inner = section->rows[i].section;
        const size_t n = strlen(section->path);
        if (inner != NULL && strncmp(inner->path, section->path, n) == 0) { /* not a borrowed one */
            visit(inner, fn, arg);
        } else if (section->rows[i].type == DSI_OPT_VARIANT) {
            visit_variants(section == &dsi_section_optimizer ? dsi_optimizer_variants
                                                             : dsi_scheduler_variants,
                           fn, arg);
        }
    }
}

void dsi_config_visit(dsi_section_fn fn, void *arg)
{
    visit(&dsi_section_root, fn, arg);
    visit(&dsi_section_inference, fn, arg);
    visit(&dsi_section_inference_v2, fn, arg);
    visit(&dsi_section_mii, fn, arg);
}

const char *dsi_force_text(const dsi_option *row)
{
    switch (row->force) {
    case DSI_IN_FORCE:
        return "in force";
    case DSI_NOT_BUILT:
        return "not built";
    case DSI_ONE_RANK:
        return "one rank";
    case DSI_NO_EFFECT:
        return "no effect";
    case DSI_PART:
        return "checked only";
    }
    return "";
}

/* ---- docs/config.md -------------------------------------------------------------------------- */

/* Text in a table cell: a bar would end it. */
static void put_cell(dsi_buf *buf, const char *text)
{
    for (; *text != '\0'; ++text) {
        if (*text == '|') {
            dsi_buf_putc(buf, '\\');
        }
        dsi_buf_putc(buf, *text);
    }
}

static void put_names(dsi_buf *buf, const char *label, const char *names)
{
    char name[64];
    for (int i = 0; names != NULL && dsi_choice_at(names, i, name, sizeof name); ++i) {
        dsi_buf_printf(buf, "%s`%s`", i == 0 ? label : ", ", name);
    }
    dsi_buf_puts(buf, names != NULL ? "." : "");
}

static void put_row(dsi_buf *buf, const dsi_option *row)
{
    dsi_buf_printf(buf, "| `%s` | ", row->key);
    if (row->type == DSI_OPT_ENUM) {
        char choice[64];
        for (int i = 0; dsi_choice_at(row->choices, i, choice, sizeof choice); ++i) {
            dsi_buf_printf(buf, "%s`%s`", i != 0 ? ", " : "", choice);
        }
    } else {
        dsi_buf expected = dsi_buf_make(1024);
        dsi_option_expected(&expected, row);
        put_cell(buf, dsi_buf_text(&expected));
        dsi_buf_free(&expected);
    }
    dsi_buf_puts(buf, " | ");
    if (row->def != NULL) {
        dsi_buf_puts(buf, "`");
        put_cell(buf, row->def);
        dsi_buf_puts(buf, "`");
    } else {
        dsi_buf_puts(buf, (row->flags & DSI_OPT_REQUIRED) != 0 ? "required" : "");
    }
    dsi_buf_printf(buf, " | %s | ", dsi_force_text(row));
    put_cell(buf, row->doc);
    put_names(buf, " Also named ", row->aliases);
    put_names(buf, " Old name ", row->old);
    if (row->note != NULL) {
        dsi_buf_puts(buf, " *");
        put_cell(buf, row->note);
        dsi_buf_puts(buf, ".*");
    }
    dsi_buf_puts(buf, " |\n");
}

static void put_section(void *arg, const dsi_section *section)
{
    dsi_buf *buf = arg;
    const char *title = section->title != NULL ? section->title : section->path;
    dsi_buf_printf(buf, "\n## %s\n\n%s\n\n", title, section->doc);
    dsi_buf_puts(buf, "| key | value | default | here | meaning |\n|---|---|---|---|---|\n");
    for (uint32_t i = 0; i < section->n_rows; ++i) {
        put_row(buf, &section->rows[i]);
    }
}

ds_status ds_config_docs(ds_ctx *ctx, char **text_out)
{
    dsi_buf buf = dsi_buf_make(DOCS_CEILING);
    dsi_buf_puts(
        &buf,
        "# Configuration\n\n"
        "DeepSpeed's configuration files, JSON or HJSON, unchanged. This page is made from the\n"
        "option tables in `src/config/table_*.c` by `ds_config docs`; a test compares the two.\n\n"
        "`ds_config check FILE` says what is wrong with a file, `ds_config resolve FILE` what its\n"
        "values come to and why, `ds_config explain KEY` what a key means.\n\n"
        "The column *here* says what a key does in this build:\n\n"
        "- *in force*: what its meaning says. With one rank, keys about communication are in "
        "force\n"
        "  and have nothing to do.\n"
        "- *not built*: asking for it stops the run and names the key. A default value, or\n"
        "  `\"enabled\": false`, asks for nothing.\n"
        "- *one rank*: with one rank it has nothing to do. On several ranks asking for it stops "
        "the\n"
        "  run and names the key: it is not built yet.\n"
        "- *no effect*: it cannot matter here; it is accepted, with one line of notice when it is\n"
        "  not the default.\n"
        "- *checked only*: it belongs to a feature that another key asks for; names, types and\n"
        "  bounds are checked.\n\n"
        "`\"auto\"`, and a key that the file leaves out, is filled from the command line; "
        "`\"auto\"`\nalso from the model as Hugging Face's Trainer does, with its defaults where "
        "no "
        "flag is given.\nA flag that contradicts the file, or that no key can take, is an error.\n"
        "Where no such value exists, sections that DeepSpeed parses strictly take their default,\n"
        "and other keys refuse it.\n\n"
        "A key that is not on this page is an error in a section. At the top level, where "
        "DeepSpeed does\n"
        "not read it, it is one when it is near a known key or a key of a section, else a "
        "notice;\n"
        "`--strict` makes every unknown key an error, `--allow_unknown_keys` every one a "
        "notice.\n");
    dsi_config_visit(put_section, &buf);
    return dsi_config_give(ctx, &buf, text_out);
}
