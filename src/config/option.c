/* SPDX-License-Identifier: Apache-2.0 */
/* Helpers over rows: choices, defaults, what a row accepts, and the check of one value. */
#include "config/option.h"

#include "base/number.h"
#include "config/config_eval.h"
#include "config/config_read.h"
#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

bool dsi_option_has_name(const dsi_option *option, const char *name)
{
    return strcmp(option->key, name) == 0 ||
           (option->aliases != NULL && dsi_choice_index(option->aliases, name, false) >= 0) ||
           (option->old != NULL && dsi_choice_index(option->old, name, false) >= 0);
}

bool dsi_choice_at(const char *choices, int index, char *text_out, size_t size)
{
    const char *p = choices;
    for (int i = 0; i < index && p != NULL; ++i) {
        p = strchr(p, '|');
        p = p != NULL ? p + 1 : NULL;
    }
    if (p == NULL) {
        return false;
    }
    const size_t n = strcspn(p, "|");
    (void)snprintf(text_out, size, "%.*s", (int)n, p);
    return true;
}

int dsi_choice_index(const char *choices, const char *word, bool any_case)
{
    char choice[64];
    for (int i = 0; dsi_choice_at(choices, i, choice, sizeof choice); ++i) {
        if (any_case ? strcasecmp(choice, word) == 0 : strcmp(choice, word) == 0) {
            return i;
        }
    }
    return -1;
}

static dsi_node *parse_json(dsi_arena *arena, const char *json, size_t n)
{
    char text[256];
    dsi_diags diags = {.name = "default", .arena = arena};
    const int size = snprintf(text, sizeof text, "{\"v\": %.*s\n}", (int)n, json);
    if (size < 0 || (size_t)size >= sizeof text) {
        return NULL;
    }
    dsi_node *node = dsi_node_find(dsi_config_read(&diags, text, (size_t)size), "v");
    if (node != NULL) {
        node->line = node->column = 0;
        node->key = NULL;
    }
    return node;
}

dsi_node *dsi_option_default(dsi_arena *arena, const dsi_option *option)
{
    return option->def != NULL ? parse_json(arena, option->def, strlen(option->def)) : NULL;
}

bool dsi_option_is_harmless(dsi_arena *arena, const dsi_option *option, const dsi_node *node)
{
    for (const char *p = option->harmless; p != NULL;) {
        const size_t n = strcspn(p, "|");
        if (dsi_node_equal(node, parse_json(arena, p, n))) {
            return true;
        }
        p = p[n] == '|' ? p + n + 1 : NULL;
    }
    return dsi_node_equal(node, dsi_option_default(arena, option));
}

bool dsi_dtype_parse(const char *text, ds_dtype *dtype_out)
{
    static const struct {
        const char *names;
        ds_dtype dtype;
    } table[] = {
        {"fp32|float32|float|torch.float32", DS_DTYPE_F32},
        {"fp16|float16|half|torch.float16", DS_DTYPE_F16},
        {"bf16|bfloat16|torch.bfloat16", DS_DTYPE_BF16},
    };
    for (size_t i = 0; i < sizeof table / sizeof table[0]; ++i) {
        if (dsi_choice_index(table[i].names, text, false) >= 0) {
            *dtype_out = table[i].dtype;
            return true;
        }
    }
    return false;
}

static void put_bounds(dsi_buf *buf, const dsi_option *option)
{
    if (option->has_min) {
        dsi_buf_puts(buf, (option->flags & DSI_OPT_ABOVE_MIN) != 0 ? " above " : " of at least ");
        dsi_buf_real(buf, option->min);
    }
    if (option->has_max) {
        dsi_buf_puts(buf, option->has_min ? " and at most " : " of at most ");
        dsi_buf_real(buf, option->max);
    }
}

static void put_choices(dsi_buf *buf, const char *choices)
{
    char choice[64];
    dsi_buf_puts(buf, "one of ");
    for (int i = 0; dsi_choice_at(choices, i, choice, sizeof choice); ++i) {
        dsi_buf_printf(buf, "%s\"%s\"", i != 0 ? ", " : "", choice);
    }
}

void dsi_option_expected(dsi_buf *buf, const dsi_option *option)
{
    static const char *const texts[] = {
        [DSI_OPT_BOOL] = "true or false",
        [DSI_OPT_INT] = "a whole number",
        [DSI_OPT_REAL] = "a number",
        [DSI_OPT_TEXT] = "a string",
        [DSI_OPT_ENUM] = "",
        [DSI_OPT_DTYPE] = "one of \"fp32\", \"bf16\", \"fp16\"",
        [DSI_OPT_INTS] = "a list of whole numbers",
        [DSI_OPT_REALS] = "a list of numbers",
        [DSI_OPT_TEXTS] = "a list of strings",
        [DSI_OPT_LIST] = "a list",
        [DSI_OPT_ANY] = "any value",
        [DSI_OPT_OBJECT] = "an object",
        [DSI_OPT_SECTION] = "an object",
        [DSI_OPT_SECTIONS] = "an object of objects",
        [DSI_OPT_RECORDS] = "a list of objects",
        [DSI_OPT_VARIANT] = "an object",
    };
    dsi_buf_puts(buf, texts[option->type]);
    if (option->type == DSI_OPT_ENUM) {
        put_choices(buf, option->choices);
    }
    put_bounds(buf, option);
    if ((option->flags & DSI_OPT_GROUPS) != 0) {
        dsi_buf_puts(buf, ", or a list of one for parameters with weight decay and one for others");
    }
    if ((option->flags & DSI_OPT_ONE_TEXT) != 0) {
        dsi_buf_puts(buf, " or one string");
    }
    if ((option->flags & DSI_OPT_OR_BOOL) != 0) {
        dsi_buf_puts(buf, " or true or false");
    }
    if ((option->flags & (DSI_OPT_AUTO | DSI_OPT_TRAINER)) != 0) {
        dsi_buf_puts(buf, ", or \"auto\"");
    }
    if ((option->flags & DSI_OPT_NULLABLE) != 0) {
        dsi_buf_puts(buf, ", or null");
    }
}

static void wrong(dsi_eval *eval, const dsi_option *option, const dsi_node *given, const char *path,
                  const char *hint)
{
    dsi_buf buf = dsi_buf_make(2048);
    dsi_buf_puts(&buf, "expected ");
    dsi_option_expected(&buf, option);
    dsi_buf_puts(&buf, ", found ");
    dsi_node_describe(&buf, given);
    dsi_error_at(eval->diags, given->line, given->column, path, "%s%s%s", dsi_buf_text(&buf),
                 hint != NULL ? "; " : "", hint != NULL ? hint : "");
    dsi_buf_free(&buf);
}

/* What may be the cause: a count beyond all; Python's words, which HJSON takes for unquoted strings
 * up to the end of the line. */
static const char *hint_for(const dsi_option *option, const dsi_node *given)
{
    int64_t whole;
    if (option->type == DSI_OPT_INT && given->kind == DSI_NODE_REAL &&
        floor(given->as.real) == given->as.real && !dsi_node_int(given, &whole)) {
        return "the largest whole number is 9223372036854775807";
    }
    if (given->kind != DSI_NODE_TEXT) {
        return NULL;
    }
    const char *text = given->as.text;
    if (strlen(text) >= DS_CONFIG_TEXT_BYTES) {
        return "a string here has fewer than 1024 bytes";
    }
    if (strncmp(text, "True", 4) == 0 || strncmp(text, "False", 5) == 0) {
        return "write true and false in lower case";
    }
    if (strncmp(text, "None", 4) == 0) {
        return "write null";
    }
    return strpbrk(text, "{}[]:") != NULL ? "an unquoted text goes on to the end of its line"
                                          : NULL;
}

static const dsi_node *place_as(dsi_eval *eval, dsi_node *made, const dsi_node *given)
{
    if (made == NULL) {
        eval->no_memory = true;
        return given;
    }
    made->line = given->line;
    made->column = given->column;
    made->key = given->key;
    made->key_line = given->key_line;
    made->key_column = given->key_column;
    return made;
}

static const dsi_node *as_bool(dsi_eval *eval, const dsi_node *given, bool lax)
{
    if (given->kind == DSI_NODE_BOOL) {
        return given;
    }
    int64_t number;
    if (dsi_node_int(given, &number) && (number == 0 || number == 1)) {
        return place_as(eval, dsi_node_make_bool(eval->arena, number == 1), given);
    }
    if (!lax || given->kind != DSI_NODE_TEXT) {
        return NULL;
    }
    const int word = dsi_choice_index("false|no|off|f|n|0|true|yes|on|t|y|1", given->as.text, true);
    return word < 0 ? NULL : place_as(eval, dsi_node_make_bool(eval->arena, word >= 6), given);
}

/* A number written as a string, which DeepSpeed accepts in some sections. */
static const dsi_node *number_in_text(dsi_eval *eval, const dsi_node *given)
{
    const char *text = given->as.text + strspn(given->as.text, " ");
    const char *end = NULL;
    double value = 0.0;
    int64_t whole = 0;
    if (dsi_number_int(text, INT64_MIN, INT64_MAX, &whole)) { /* to the last digit */
        return place_as(eval, dsi_node_make_int(eval->arena, whole), given);
    }
    end = dsi_number_start(text, &value);
    if (end == NULL || end[strspn(end, " ")] != '\0') {
        return NULL;
    }
    return place_as(eval, dsi_node_make_real(eval->arena, value), given);
}

static const dsi_node *as_number(dsi_eval *eval, const dsi_option *option, const dsi_node *given,
                                 bool lax)
{
    if (given->kind == DSI_NODE_TEXT && lax) {
        given = number_in_text(eval, given);
    }
    if (given == NULL || !dsi_node_is_number(given)) {
        return NULL;
    }
    int64_t whole;
    if (option->type != DSI_OPT_INT && option->type != DSI_OPT_INTS) {
        return given;
    }
    if (!dsi_node_int(given, &whole)) { /* a fraction, or more than 63 bits */
        return NULL;
    }
    return given->kind == DSI_NODE_INT
               ? given
               : place_as(eval, dsi_node_make_int(eval->arena, whole), given);
}

static bool in_bounds(const dsi_option *option, const dsi_node *number)
{
    const double value = dsi_node_real(number);
    if (!isfinite(value)) {
        return false;
    }
    if (option->has_min && (value < option->min ||
                            ((option->flags & DSI_OPT_ABOVE_MIN) != 0 && value <= option->min))) {
        return false;
    }
    return !option->has_max || value <= option->max;
}

static bool is_list_of(dsi_eval *eval, const dsi_option *option, const dsi_node *given)
{
    if (given->kind != DSI_NODE_LIST) {
        return false;
    }
    for (const dsi_node *child = given->first; child != NULL; child = child->next) {
        if (option->type == DSI_OPT_TEXTS) {
            if (child->kind != DSI_NODE_TEXT) {
                return false;
            }
            continue;
        }
        const dsi_node *number = as_number(eval, option, child, false);
        if (number == NULL || !in_bounds(option, number)) {
            return false;
        }
    }
    return true;
}

/* One value a group of parameters gives the first; the rules look for the second. There are two,
 * those with weight decay and norms and biases, so a list of more must say the same of all. */
static const dsi_node *one_of_groups(dsi_eval *eval, const dsi_option *option,
                                     const dsi_node *given)
{
    if ((option->flags & DSI_OPT_GROUPS) == 0 || given->kind != DSI_NODE_LIST ||
        given->first == NULL || !is_list_of(eval, option, given)) {
        return given;
    }
    if (given->n_children == 2) {
        return given->first;
    }
    for (const dsi_node *child = given->first; child != NULL; child = child->next) {
        if (!dsi_node_equal(child, given->first)) {
            return given;
        }
    }
    return given->first;
}

static const dsi_node *check_scalar(dsi_eval *eval, const dsi_option *option, const dsi_node *given,
                                    bool lax)
{
    ds_dtype dtype;
    switch (option->type) {
    case DSI_OPT_BOOL:
        return as_bool(eval, given, lax);
    case DSI_OPT_INT:
    case DSI_OPT_REAL: {
        const dsi_node *number = as_number(eval, option, one_of_groups(eval, option, given), lax);
        return number != NULL && in_bounds(option, number) ? number : NULL;
    }
    case DSI_OPT_TEXT:
        return given->kind == DSI_NODE_TEXT && strlen(given->as.text) < DS_CONFIG_TEXT_BYTES ? given
                                                                                             : NULL;
    case DSI_OPT_ENUM:
        return given->kind == DSI_NODE_TEXT &&
                       dsi_choice_index(option->choices, given->as.text,
                                        (option->flags & DSI_OPT_ANY_CASE) != 0) >= 0
                   ? given
                   : NULL;
    case DSI_OPT_DTYPE:
        return given->kind == DSI_NODE_TEXT && dsi_dtype_parse(given->as.text, &dtype) ? given
                                                                                       : NULL;
    default:
        return given;
    }
}

static bool has_kind(dsi_eval *eval, const dsi_option *option, const dsi_node *given)
{
    switch (option->type) {
    case DSI_OPT_INTS:
    case DSI_OPT_REALS:
    case DSI_OPT_TEXTS:
        return is_list_of(eval, option, given) ||
               ((option->flags & DSI_OPT_ONE_TEXT) != 0 && given->kind == DSI_NODE_TEXT);
    case DSI_OPT_LIST:
    case DSI_OPT_RECORDS:
        return given->kind == DSI_NODE_LIST;
    case DSI_OPT_SECTION:
        if (((option->flags & DSI_OPT_OR_BOOL) != 0 && given->kind == DSI_NODE_BOOL) ||
            ((option->flags & DSI_OPT_ONE_TEXT) != 0 && given->kind == DSI_NODE_TEXT)) {
            return true;
        }
        return given->kind == DSI_NODE_OBJECT;
    case DSI_OPT_OBJECT:
    case DSI_OPT_SECTIONS:
    case DSI_OPT_VARIANT:
        return given->kind == DSI_NODE_OBJECT;
    default:
        return true;
    }
}

const dsi_node *dsi_option_value(dsi_eval *eval, const dsi_option *option, const dsi_node *given)
{
    return has_kind(eval, option, given) ? check_scalar(eval, option, given, false) : NULL;
}

const dsi_node *dsi_option_check(dsi_eval *eval, const dsi_option *option, const dsi_node *given,
                                 bool lax, const char *path)
{
    if (given->kind == DSI_NODE_NULL &&
        ((option->flags & DSI_OPT_NULLABLE) != 0 || option->type == DSI_OPT_ANY)) {
        return given;
    }
    const dsi_node *node =
        has_kind(eval, option, given) ? check_scalar(eval, option, given, lax) : NULL;
    if (node == NULL) {
        wrong(eval, option, given, path, hint_for(option, given));
    } else if (given->kind == DSI_NODE_TEXT && node->kind != DSI_NODE_TEXT) {
        dsi_notice_at(eval->diags, given->line, given->column, path,
                      "the string \"%.40s\" is read as a value; write it without quotes",
                      given->as.text);
    }
    return node;
}
