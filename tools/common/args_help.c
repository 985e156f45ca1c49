/* --help from the rows of flags. See args.h. */
#include "common/args.h"

#include <stdio.h>
#include <string.h>

/* Prints words of text from column `column`, wrapped at 80, continued at `indent`. */
static void print_wrapped(FILE *stream, const char *text, size_t column, size_t indent)
{
    size_t blanks = 0; /* owed before the next word, unless it starts a line */
    while (*text != '\0') {
        const size_t n = strcspn(text, " \n");
        if (n > 0 && column + blanks + n > 79 && column > indent) {
            (void)fprintf(stream, "\n%*s", (int)indent, "");
            column = indent;
            blanks = 0;
        }
        (void)fprintf(stream, "%*s%.*s", n > 0 ? (int)blanks : 0, "", (int)n, text);
        column += n > 0 ? blanks + n : 0;
        blanks = n > 0 ? 0 : blanks;
        text += n;
        if (*text == '\n') {
            (void)fprintf(stream, "\n%*s", text[1] != '\n' ? (int)indent : 0, "");
            column = indent;
            blanks = 0;
        } else if (*text == ' ') {
            ++blanks;
        }
        text += *text != '\0';
    }
    (void)fputc('\n', stream);
}

static void print_row(const dsi_arg *row, FILE *stream)
{
    enum { DOC_COLUMN = 8 };
    if (row->type == DSI_ARG_HEADING) {
        (void)fprintf(stream, "\n%s\n", row->doc);
        return;
    }
    if (row->letter != 0) {
        (void)fprintf(stream, "  -%c, --%s", row->letter, row->name);
    } else {
        (void)fprintf(stream, "  --%s", row->name);
    }
    const char *value = row->value != NULL ? row->value : "VALUE";
    if (row->type != DSI_ARG_SWITCH) {
        const bool more = row->type == DSI_ARG_LIST && strstr(value, "…") == NULL;
        (void)fprintf(stream, " %s%s", value, more ? " ..." : "");
    }
    if (row->choices != NULL && strcmp(row->choices, value) != 0) {
        (void)fprintf(stream, "  (%s)", row->choices);
    }
    if (row->def != NULL && row->type != DSI_ARG_SWITCH) {
        (void)fprintf(stream, "  [%s]", row->def);
    }
    (void)fprintf(stream, "\n%*s", DOC_COLUMN, "");
    print_wrapped(stream, row->doc != NULL ? row->doc : "", DOC_COLUMN, DOC_COLUMN);
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

void dsi_args_help(const dsi_args_spec *spec, FILE *stream)
{
    (void)fprintf(stream, "usage: %s\n\n", spec->usage);
    if (spec->about != NULL) {
        print_wrapped(stream, spec->about, 0, 0);
    }
    if (spec->n_rows > 0 && spec->rows[0].type != DSI_ARG_HEADING) {
        (void)fprintf(stream, "\nFlags:\n");
    }
    for (size_t i = 0; i < spec->n_rows; ++i) {
        print_row(&spec->rows[i], stream);
    }
    (void)fprintf(stream, "  -h, --help\n        This text.\n");
    if (spec->after != NULL) {
        (void)fprintf(stream, "\n%s\n", spec->after);
    }
}
