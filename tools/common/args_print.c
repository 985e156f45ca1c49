/* SPDX-License-Identifier: Apache-2.0 */
/* The values of flags as text. See args.h. */
#include "common/args.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void print_value(const dsi_arg *row, FILE *out)
{
    const char *text = NULL;
    const dsi_arg_list *list = row->out;
    switch (row->type) {
    case DSI_ARG_SWITCH:
        (void)fputs(*(const bool *)row->out ? "true" : "false", out);
        break;
    case DSI_ARG_INT:
        (void)fprintf(out, "%lld", (long long)*(const int64_t *)row->out);
        break;
    case DSI_ARG_REAL:
    case DSI_ARG_WHOLE:
        (void)fprintf(out, "%.17g", *(const double *)row->out);
        break;
    case DSI_ARG_TEXT:
        text = *(const char *const *)row->out;
        (void)fputs(text != NULL ? text : "not given", out);
        break;
    default:
        for (size_t i = 0; i < list->n; ++i) {
            (void)fprintf(out, "%s%s", i > 0 ? " " : "", list->items[i]);
        }
        break;
    }
}

ds_status dsi_args_print(ds_ctx *ctx, const dsi_args_spec *spec, bool (*wanted)(const dsi_arg *row),
                         char **text_out)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    for (size_t i = 0; out != NULL && i < spec->n_rows; ++i) {
        const dsi_arg *row = &spec->rows[i];
        if (row->type == DSI_ARG_HEADING || !wanted(row)) {
            continue;
        }
        (void)fprintf(out, "--%s: ", row->name);
        print_value(row, out);
        (void)fputs(row->given_out == NULL ? "\n" : *row->given_out ? " (given)\n" : "\n", out);
    }
    if (out == NULL || fclose(out) != 0) {
        free(text);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for flags");
    }
    *text_out = text;
    return DS_OK;
}

static bool is_safe(const char *word)
{
    return word[0] != '\0' &&
           word[strspn(word, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                             "0123456789_./-+=:,@%")] == '\0';
}

char *dsi_args_command(int argc, char **argv)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    for (int i = 0; out != NULL && i < argc; ++i) {
        const bool safe = is_safe(argv[i]);
        (void)fputs(i > 0 ? " " : "", out);
        (void)fputs(safe ? argv[i] : "'", out);
        for (const char *c = argv[i]; !safe && *c != '\0'; ++c) {
            if (*c == '\'') {
                (void)fputs("'\\''", out);
            } else {
                (void)fputc(*c, out);
            }
        }
        (void)fputs(safe ? "" : "'", out);
    }
    if (out == NULL || fclose(out) != 0) {
        free(text);
        return NULL;
    }
    return text;
}
