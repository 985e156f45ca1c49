/* SPDX-License-Identifier: Apache-2.0 */
/* The text of --help, 80 columns wide. See args.h.
 *
 * In the texts around the flags a paragraph is wrapped; an indented line that has two columns,
 * which two spaces part, is the row of a table: its second column is wrapped under itself, together
 * with lines that are indented as far. Any other indented line, such as an example, stays as it is.
 */
#include "common/args.h"

#include <stdio.h>
#include <string.h>

enum { WIDTH = 80 /* of a line, its end with it */, DOC_COLUMN = 8, WIDEST_KEY = 48 };

/* Letters of n bytes of UTF-8. */
static size_t letters(const char *text, size_t n)
{
    size_t count = 0;
    for (size_t i = 0; i < n; ++i) {
        count += ((unsigned char)text[i] & 0xC0) != 0x80;
    }
    return count;
}

/* Prints the words of n bytes, of which `*column` columns of the line are taken; new lines begin at
 * `indent`. */
static void put_words(FILE *stream, const char *text, size_t n, size_t *column, size_t indent)
{
    for (size_t i = 0; i < n;) {
        const size_t blanks = strspn(text + i, " \n");
        const size_t from = i + blanks;
        const size_t word = from < n ? strcspn(text + from, " \n") : 0;
        const size_t wide = letters(text + from, word);
        if (word == 0) {
            return;
        }
        if (*column > indent && *column + 1 + wide >= WIDTH) {
            (void)fprintf(stream, "\n%*s", (int)indent, "");
            *column = indent;
        } else if (*column > indent) {
            (void)fputc(' ', stream);
            *column += 1;
        }
        (void)fprintf(stream, "%.*s", (int)word, text + from);
        *column += wide;
        i = from + word;
    }
}

/* Where the second column of a row begins, in bytes; 0: the line has none. */
static size_t second_column(const char *line, size_t n)
{
    for (size_t i = strspn(line, " "); i + 2 < n; ++i) {
        const size_t blanks = strspn(line + i, " ");
        if (blanks >= 2 && i + blanks < n && i + blanks <= WIDEST_KEY) {
            return i + blanks;
        }
        i += blanks;
    }
    return 0;
}

/* The row and the lines that go on with it; *fits_out: none of them is too long. */
static size_t row_bytes(const char *text, size_t indent, bool *fits_out)
{
    size_t n = strcspn(text, "\n");
    *fits_out = letters(text, n) < WIDTH;
    while (indent > 0 && text[n] == '\n' && strspn(text + n + 1, " ") == indent) {
        const size_t more = strcspn(text + n + 1, "\n");
        *fits_out = *fits_out && letters(text + n + 1, more) < WIDTH;
        n += 1 + more;
    }
    return n;
}

/* Returns the bytes that were printed. */
static size_t put_table_row(FILE *stream, const char *text)
{
    const size_t at = second_column(text, strcspn(text, "\n"));
    const size_t indent = letters(text, at);
    bool fits = false;
    const size_t n = row_bytes(text, indent, &fits);
    if (at == 0 || fits) {
        (void)fprintf(stream, "%.*s\n", (int)n, text);
        return n;
    }
    size_t column = indent;
    (void)fprintf(stream, "%.*s", (int)at, text);
    put_words(stream, text + at, n - at, &column, indent);
    (void)fputc('\n', stream);
    return n;
}

/* A paragraph: lines up to an empty or an indented one. */
static size_t put_paragraph(FILE *stream, const char *text)
{
    size_t column = 0;
    size_t n = strcspn(text, "\n");
    while (text[n] == '\n' && text[n + 1] != '\0' && strchr(" \n", text[n + 1]) == NULL) {
        n += 1 + strcspn(text + n + 1, "\n");
    }
    put_words(stream, text, n, &column, 0);
    (void)fputc('\n', stream);
    return n;
}

static void put_text(FILE *stream, const char *text)
{
    while (*text != '\0') {
        if (*text == '\n') {
            (void)fputc('\n', stream);
        } else {
            text += *text == ' ' ? put_table_row(stream, text) : put_paragraph(stream, text);
        }
        text += *text != '\0';
    }
}

/* What ranks and a resume may have otherwise. */
static void put_differences(FILE *stream, const dsi_arg *row)
{
    static const char *const ranks[] = {
        [DSI_ARG_CONTENT] = "Ranks may have a copy. ", [DSI_ARG_FREE] = "Ranks may differ. "};
    static const char *const resume[] = {[DSI_ARG_CONTENT] = "At --resume its content counts.",
                                         [DSI_ARG_NOTICED] = "May change at --resume: a notice.",
                                         [DSI_ARG_FREE] = "May change at --resume."};
    if (row->ranks != DSI_ARG_SAME || row->resume != DSI_ARG_SAME) {
        (void)fprintf(stream, "%*s%s%s\n", DOC_COLUMN, "",
                      row->ranks != DSI_ARG_SAME ? ranks[row->ranks] : "",
                      row->resume != DSI_ARG_SAME ? resume[row->resume] : "");
    }
}

static void put_row(FILE *stream, const dsi_arg *row)
{
    const char *value = row->value != NULL ? row->value : "VALUE";
    size_t column = DOC_COLUMN;
    if (row->type == DSI_ARG_HEADING) {
        (void)fputc('\n', stream);
        (void)put_paragraph(stream, row->doc);
        return;
    }
    int width = row->letter != 0 ? fprintf(stream, "  -%c, --%s", row->letter, row->name)
                                 : fprintf(stream, "  --%s", row->name);
    if (row->type != DSI_ARG_SWITCH) {
        const bool more = row->type == DSI_ARG_LIST && strstr(value, "…") == NULL;
        width += fprintf(stream, " %s%s", value, more ? " ..." : "");
    }
    const char *def =
        row->def != NULL && (row->type != DSI_ARG_SWITCH || strcmp(row->def, "true") == 0)
            ? row->def
            : NULL;
    const bool lists = row->choices != NULL && strcmp(row->choices, value) != 0;
    const size_t all = (size_t)width + (lists ? strlen(row->choices) + 4 : 0) +
                       (def != NULL ? strlen(def) + 4 : 0);
    if (lists && all <= WIDTH) {
        (void)fprintf(stream, "  (%s)", row->choices);
    }
    if (def != NULL) {
        (void)fprintf(stream, "  [%s]", def);
    }
    if (lists && all > WIDTH) {
        (void)fprintf(stream, "\n%*s(%s)", DOC_COLUMN, "", row->choices);
    }
    (void)fprintf(stream, "\n%*s", DOC_COLUMN, "");
    if (row->doc != NULL) {
        put_words(stream, row->doc, strlen(row->doc), &column, DOC_COLUMN);
    }
    (void)fputc('\n', stream);
    put_differences(stream, row);
}

void dsi_args_help(const dsi_args_spec *spec, FILE *stream)
{
    (void)fprintf(stream, "usage: %s\n\n", spec->usage);
    if (spec->about != NULL) {
        put_text(stream, spec->about);
    }
    if (spec->n_rows > 0 && spec->rows[0].type != DSI_ARG_HEADING) {
        (void)fprintf(stream, "\nFlags:\n");
    }
    for (size_t i = 0; i < spec->n_rows; ++i) {
        put_row(stream, &spec->rows[i]);
    }
    (void)fprintf(stream, "  -h, --help\n        This text.\n");
    if (spec->after != NULL) {
        (void)fputc('\n', stream);
        put_text(stream, spec->after);
    }
}
