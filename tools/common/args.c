/* SPDX-License-Identifier: Apache-2.0 */
/* Table-driven command-line flags. See args.h. */
#include "args.h"

#include "args_find.h"
#include "base/number.h"
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static ds_status list_add(dsi_arg_list *list, const char *item)
{
    if (list->n == list->capacity) {
        const size_t capacity = list->capacity != 0 ? 2 * list->capacity : 8;
        const char **items = realloc(list->items, capacity * sizeof *items);
        if (items == NULL) {
            return DS_ERR_NOMEM;
        }
        list->items = items;
        list->capacity = capacity;
    }
    list->items[list->n++] = item;
    return DS_OK;
}

void dsi_arg_list_free(dsi_arg_list *list)
{
    free(list->items);
    *list = (dsi_arg_list){0};
}

void dsi_args_free(dsi_args *args)
{
    dsi_arg_list_free(&args->words);
}

static bool is_one_of(const char *text, const char *choices)
{
    const size_t n = strlen(text);
    for (const char *p = choices; p != NULL; p = strchr(p, '|')) {
        p += *p == '|';
        if (strncmp(p, text, n) == 0 && (p[n] == '|' || p[n] == '\0')) {
            return true;
        }
    }
    return false;
}

static bool read_switch(const char *text, bool *value_out)
{
    if (strcasecmp(text, "true") == 0 || strcmp(text, "1") == 0) {
        *value_out = true;
        return true;
    }
    if (strcasecmp(text, "false") == 0 || strcmp(text, "0") == 0) {
        *value_out = false;
        return true;
    }
    return false;
}

static ds_status check_bounds(ds_ctx *ctx, const dsi_arg *row, double value, const char *text)
{
    const bool bounded = row->min != 0 || row->max != 0;
    const bool capped = row->max != 0;
    if (!bounded || (value >= row->min && !(capped && value > row->max))) {
        return DS_OK;
    }
    if (!capped) {
        return ds_fail(ctx, DS_ERR_ARG, "--%s: expected at least %.15g, found %s", row->name,
                       row->min, text);
    }
    return ds_fail(ctx, DS_ERR_ARG,
                   "--%s: expected at %s %.15g, found %s; it goes from %.15g to %.15g", row->name,
                   value < row->min ? "least" : "most", value < row->min ? row->min : row->max,
                   text, row->min, row->max);
}

static ds_status store_number(ds_ctx *ctx, const dsi_arg *row, const char *text)
{
    if (row->type == DSI_ARG_REAL) {
        double value = 0.0;
        if (!dsi_number_real(text, &value)) {
            return ds_fail(ctx, DS_ERR_ARG, "--%s: expected a number, found '%s'", row->name, text);
        }
        DS_TRY(check_bounds(ctx, row, value, text));
        *(double *)row->out = value;
        return DS_OK;
    }
    int64_t value = 0;
    if (!dsi_number_int(text, INT64_MIN, INT64_MAX, &value)) {
        return ds_fail(ctx, DS_ERR_ARG, "--%s: expected a whole number, found '%s'", row->name,
                       text);
    }
    DS_TRY(check_bounds(ctx, row, (double)value, text));
    if (row->type == DSI_ARG_WHOLE) {
        *(double *)row->out = (double)value;
    } else {
        *(int64_t *)row->out = value;
    }
    return DS_OK;
}

static ds_status store(ds_ctx *ctx, const dsi_arg *row, const char *text)
{
    switch (row->type) {
    case DSI_ARG_SWITCH:
        if (!read_switch(text, row->out)) {
            return ds_fail(ctx, DS_ERR_ARG, "--%s: expected true or false, found '%s'", row->name,
                           text);
        }
        return DS_OK;
    case DSI_ARG_INT:
    case DSI_ARG_REAL:
    case DSI_ARG_WHOLE:
        return store_number(ctx, row, text);
    case DSI_ARG_TEXT:
        if (row->choices != NULL && !is_one_of(text, row->choices)) {
            return ds_fail(ctx, DS_ERR_ARG, "--%s: expected one of %s, found '%s'", row->name,
                           row->choices, text);
        }
        *(const char **)row->out = text;
        return DS_OK;
    case DSI_ARG_LIST:
        return list_add(row->out, text);
    case DSI_ARG_HEADING:
        break;
    }
    return DS_OK;
}

static bool is_flag(const char *text)
{
    return strncmp(text, "--", 2) == 0;
}

/* The row of "-H", NULL when it is none. */
static const dsi_arg *find_letter(const dsi_args_spec *spec, const char *text)
{
    for (size_t i = 0; text[0] == '-' && text[1] != '\0' && i < spec->n_rows; ++i) {
        if (spec->rows[i].letter == text[1] && text[2] == '\0') {
            return &spec->rows[i];
        }
    }
    return NULL;
}

/* Whether a flag's value is, or becomes, part of a path: an empty one would name the root or the
 * folder around it. */
static bool is_path(const dsi_arg *row)
{
    static const char *const words[] = {"FILE", "DIR", "FOLDER", "PREFIX", "TAG", "NAME"};
    for (size_t i = 0; row->value != NULL && i < sizeof words / sizeof *words; ++i) {
        if (strstr(row->value, words[i]) != NULL) {
            return true;
        }
    }
    return false;
}

/* A value that the command line gives. */
static ds_status store_given(ds_ctx *ctx, const dsi_arg *row, const char *text)
{
    if (text[0] == '\0' && is_path(row)) {
        return ds_fail(ctx, DS_ERR_ARG, "--%s: expected %s, found an empty text", row->name,
                       row->value);
    }
    return store(ctx, row, text);
}

/* Takes the values after flag number *i_inout and leaves it at the last argument used. */
static ds_status take_values(ds_ctx *ctx, const dsi_arg *row, const char *inline_value, int argc,
                             char **argv, int *i_inout)
{
    int i = *i_inout;
    const char *next = i + 1 < argc ? argv[i + 1] : NULL;
    if (inline_value != NULL) {
        return store_given(ctx, row, inline_value);
    }
    if (row->type == DSI_ARG_SWITCH) {
        bool ignored;
        const bool has_value = row->alone == NULL && next != NULL &&
                               strlen(next) > 1 && /* not 0 or 1 */
                               read_switch(next, &ignored);
        *i_inout += has_value;
        return store(ctx, row, has_value ? next : "true");
    }
    if ((next == NULL || is_flag(next)) && row->alone != NULL) {
        return store(ctx, row, row->alone);
    }
    if (next == NULL || is_flag(next)) {
        return ds_fail(ctx, DS_ERR_ARG, "--%s needs a value: --%s %s", row->name, row->name,
                       row->value != NULL ? row->value : "VALUE");
    }
    do {
        DS_TRY(store_given(ctx, row, argv[++i]));
    } while (row->type == DSI_ARG_LIST && i + 1 < argc && !is_flag(argv[i + 1]));
    *i_inout = i;
    return DS_OK;
}

/* Behind a flag that is none, with its message in the context: those that follow it and are none
 * either, so that a command line of another program is answered at once. */
static ds_status name_the_others(ds_ctx *ctx, const dsi_args_spec *spec, int argc, char **argv,
                                 int at)
{
    char text[2048];
    (void)snprintf(text, sizeof text, "%s", ds_ctx_error(ctx));
    for (int i = at + 1; i < argc && strcmp(argv[i], "--") != 0 && !spec->stop_at_word; ++i) {
        const size_t used = strlen(text);
        const char *name = argv[i] + 2;
        const dsi_arg *row = NULL;
        bool alone = false;
        if (!is_flag(argv[i]) ||
            dsi_args_find(ctx, spec, name, strcspn(name, "="), &row, &alone) >= 0 ||
            strstr(text, ds_ctx_error(ctx)) != NULL) {
            continue;
        }
        if (used + strlen(ds_ctx_error(ctx)) + 16 > sizeof text) {
            (void)snprintf(text + used, sizeof text - used, "\n  and more");
            break;
        }
        (void)snprintf(text + used, sizeof text - used, "\n  %s", ds_ctx_error(ctx));
    }
    return ds_fail(ctx, DS_ERR_ARG, "%s", text);
}

static ds_status take_flag(ds_ctx *ctx, const dsi_args_spec *spec, int argc, char **argv,
                           int *i_inout)
{
    const dsi_arg *by_letter = find_letter(spec, argv[*i_inout]);
    if (by_letter != NULL) {
        if (by_letter->given_out != NULL) {
            *by_letter->given_out = true;
        }
        return take_values(ctx, by_letter, NULL, argc, argv, i_inout);
    }
    const char *name = argv[*i_inout] + 2;
    const char *equals = strchr(name, '=');
    const size_t n = equals != NULL ? (size_t)(equals - name) : strlen(name);
    const dsi_arg *row = NULL;
    bool may_be_alone = false;
    if (dsi_args_find(ctx, spec, name, n, &row, &may_be_alone) < 0) {
        return name_the_others(ctx, spec, argc, argv, *i_inout);
    }
    const char *next = *i_inout + 1 < argc ? argv[*i_inout + 1] : NULL;
    if (may_be_alone && equals == NULL && (next == NULL || is_flag(next))) {
        return DS_OK;
    }
    if (row->given_out != NULL) {
        *row->given_out = true;
    }
    return take_values(ctx, row, equals != NULL ? equals + 1 : NULL, argc, argv, i_inout);
}

static ds_status store_defaults(ds_ctx *ctx, const dsi_args_spec *spec)
{
    for (size_t i = 0; i < spec->n_rows; ++i) {
        const dsi_arg *row = &spec->rows[i];
        if (row->given_out != NULL) {
            *row->given_out = false;
        }
        if (row->def != NULL && row->type != DSI_ARG_HEADING) {
            DS_TRY(store(ctx, row, row->def));
        }
    }
    return DS_OK;
}

static bool is_help(const char *text)
{
    return strcmp(text, "-h") == 0 || strcmp(text, "--help") == 0;
}

static bool asks_for_help(int argc, char **argv)
{
    for (int i = 1; i < argc && strcmp(argv[i], "--") != 0; ++i) {
        if (is_help(argv[i])) {
            return true;
        }
    }
    return false;
}

ds_status dsi_args_parse(ds_ctx *ctx, const dsi_args_spec *spec, int argc, char **argv,
                         dsi_args *args_out)
{
    dsi_args args = {.help = !spec->stop_at_word && asks_for_help(argc, argv)};
    ds_status status = DS_OK;
    DS_TRY_GOTO(status, store_defaults(ctx, spec), free_words);
    bool flags = true;
    for (int i = 1; i < argc && !args.help; ++i) {
        if (flags && strcmp(argv[i], "--") == 0) {
            flags = false;
        } else if (flags && is_help(argv[i])) {
            args.help = true;
        } else if (flags && (is_flag(argv[i]) || find_letter(spec, argv[i]) != NULL)) {
            DS_TRY_GOTO(status, take_flag(ctx, spec, argc, argv, &i), free_words);
        } else {
            if (argv[i][0] == '\0' && !spec->stop_at_word) {
                status = ds_fail(ctx, DS_ERR_ARG, "word %d of the command line is empty", i);
                goto free_words;
            }
            DS_TRY_GOTO(status, list_add(&args.words, argv[i]), free_words);
            flags = flags && !spec->stop_at_word;
        }
    }
    *args_out = args;
    return DS_OK;
free_words:
    dsi_args_free(&args);
    return status;
}

ds_status dsi_args_parse_flags(ds_ctx *ctx, const dsi_args_spec *spec, int argc, char **argv,
                               bool *help_out)
{
    dsi_args args = {0};
    DS_TRY(dsi_args_parse(ctx, spec, argc, argv, &args));
    ds_status status = DS_OK;
    *help_out = args.help;
    if (args.help) {
        dsi_args_help(spec, stdout);
    } else if (args.words.n > 0) {
        status = ds_fail(ctx, DS_ERR_ARG, "unexpected word \"%s\"; %.*s takes only flags",
                         args.words.items[0], (int)strcspn(spec->usage, " "), spec->usage);
    }
    dsi_args_free(&args);
    return status;
}
