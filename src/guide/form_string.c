/* SPDX-License-Identifier: Apache-2.0 */
/* Strings: lengths in code points, patterns, formats. See form_schema.h. */
#include "guide/form_schema.h"

#include <stdio.h>
#include <string.h>

enum { HAS_CHARACTER = 2, HAS_STRING };

#define YEAR "[1-9][0-9]{3}"
#define DATE                                                                                       \
    YEAR "-((0[13578]|1[02])-(0[1-9]|[12][0-9]|3[01])|(0[469]|11)-(0[1-9]|[12][0-9]|30)"           \
         "|02-(0[1-9]|1[0-9]|2[0-8]))"
#define TIME                                                                                       \
    "([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](\\.[0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5]["     \
    "0-9])"
#define LABEL "[A-Za-z0-9]([A-Za-z0-9-]{0,30}[A-Za-z0-9])?"
#define OCTET "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

/* Texts that are of a format whoever reads it: parts of what their standards allow (RFC 3339, 4122,
 * 1123, 5321, 3986, 2673, 4291; a year has four digits, a February 28 days, a label 32 letters). */
static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", DATE},
    {"time", TIME},
    {"date-time", "(" DATE ")T(" TIME ")"},
    {"duration", "P([0-9]{1,4}W|[0-9]{1,4}D(T[0-9]{1,4}H)?|T[0-9]{1,4}[HMS])"},
    {"uuid", "[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"},
    {"email", "[A-Za-z0-9_-]{1,32}(\\.[A-Za-z0-9_-]{1,32}){0,1}@(" LABEL ")(\\." LABEL "){1,3}"},
    {"hostname", LABEL "(\\." LABEL "){0,5}"},
    {"ipv4", OCTET "(\\." OCTET "){3}"},
    {"ipv6", "[0-9a-f]{1,4}(:[0-9a-f]{1,4}){7}"},
    {"uri",
     "(https?|ftp)://" LABEL "(\\." LABEL "){0,5}(:[1-9][0-9]{0,3})?(/[A-Za-z0-9._~-]{0,64})*"},
};

/* A character of a string: itself, or one of the escapes; \u of what is a character by itself. */
static uint32_t put_character(dsi_form_schema *s, uint32_t at)
{
    static const char pattern[] = "\\\\([\"\\\\/bfnrt]|u(0(0(0[1-9a-fA-F]|[1-9a-fA-F][0-9a-fA-F])"
                                  "|[1-9a-fA-F][0-9a-fA-F]{2})|[1-9a-cA-CeEfF][0-9a-fA-F]{3}"
                                  "|[dD][0-7][0-9a-fA-F]{2}))";
    if (!s->has[HAS_CHARACTER]) {
        dsi_chars plain = {0};
        s->has[HAS_CHARACTER] = true;
        s->character = dsi_grammar_rule(s->g);
        const uint32_t start = s->g->failed ? 0 : s->g->rules[s->character];
        dsi_chars_add(&plain, ' ', '!');
        dsi_chars_add(&plain, '#', '[');
        dsi_chars_add(&plain, ']', 0x10FFFF);
        dsi_grammar_end(s->g, dsi_chars_put(s->g, start, &plain, false));
        dsi_grammar_end(s->g, dsi_form_regex(s->g, start, pattern, strlen(pattern), true, false));
    }
    return dsi_grammar_call(s->g, at, s->character);
}

/* So many characters; most -1: no bound. */
static uint32_t put_characters(dsi_form_schema *s, uint32_t at, int64_t least, int64_t most)
{
    dsi_grammar *g = s->g;
    const uint32_t done = dsi_grammar_state(g);
    for (int64_t i = 0; dsi_grammar_work(g); ++i) {
        if (i >= least) {
            dsi_grammar_empty(g, at, done);
        }
        if (i == most) {
            break;
        }
        if (i >= least && most < 0) {
            dsi_grammar_empty(g, put_character(s, at), at);
            break;
        }
        at = put_character(s, at);
    }
    return done;
}

static uint32_t put_pattern(dsi_form_schema *s, uint32_t at, const char *pattern, bool whole,
                            const char *keyword, const dsi_place *place)
{
    char message[DSI_GRAMMAR_ERROR];
    const bool before = s->g->failed;
    at = dsi_form_regex(s->g, at, pattern, strlen(pattern), whole, true);
    if (s->g->failed && !before) { /* with the place */
        (void)snprintf(message, sizeof message, "%.200s", s->g->error);
        s->g->failed = false;
        return dsi_form_schema_fail(s, place, keyword, message);
    }
    return at;
}

static uint32_t put_format(dsi_form_schema *s, uint32_t at, const char *name,
                           const dsi_place *place)
{
    for (size_t i = 0; name != NULL && i < sizeof formats / sizeof formats[0]; ++i) {
        if (strcmp(name, formats[i].name) == 0) {
            return put_pattern(s, at, formats[i].pattern, true, "format", place);
        }
    }
    return dsi_form_schema_fail(
        s, place, "format",
        "only date, time, date-time, duration, uuid, email, hostname, ipv4, "
        "ipv6 and uri are supported");
}

/* A string without keywords, which all share. */
static uint32_t put_free(dsi_form_schema *s, uint32_t at)
{
    if (!s->has[HAS_STRING]) {
        s->has[HAS_STRING] = true;
        s->string = dsi_grammar_rule(s->g);
        uint32_t here = dsi_grammar_text(s->g, s->g->failed ? 0 : s->g->rules[s->string], "\"", 1);
        here = put_characters(s, here, 0, -1);
        dsi_grammar_end(s->g, dsi_grammar_text(s->g, here, "\"", 1));
    }
    return dsi_grammar_call(s->g, at, s->string);
}

uint32_t dsi_form_schema_string(dsi_form_schema *s, uint32_t at, json_t *node,
                                const dsi_place *place)
{
    json_t *pattern = json_object_get(node, "pattern");
    json_t *format = json_object_get(node, "format");
    const bool sized =
        json_object_get(node, "minLength") != NULL || json_object_get(node, "maxLength") != NULL;
    if (!sized && pattern == NULL && format == NULL) {
        return put_free(s, at);
    }
    if ((pattern != NULL) + (format != NULL) + sized > 1) {
        return dsi_form_schema_fail(
            s, place, pattern != NULL ? "pattern" : "format",
            pattern != NULL && format != NULL
                ? "not supported beside format"
                : "not supported beside minLength and maxLength; say the length "
                  "in the pattern");
    }
    at = dsi_grammar_text(s->g, at, "\"", 1);
    if (pattern != NULL) {
        if (!json_is_string(pattern) ||
            strlen(json_string_value(pattern)) != json_string_length(pattern)) {
            return dsi_form_schema_fail(s, place, "pattern", "expected a regular expression");
        }
        at = put_pattern(s, at, json_string_value(pattern), false, "pattern", place);
    } else if (format != NULL) {
        at = put_format(s, at, json_string_value(format), place);
    } else {
        const int64_t least = dsi_form_schema_count(s, node, "minLength", 0, place);
        const int64_t most = dsi_form_schema_count(s, node, "maxLength", -1, place);
        if (most >= 0 && most < least) {
            return dsi_form_schema_fail(s, place, "maxLength", "it is less than minLength");
        }
        at = put_characters(s, at, least, most);
    }
    return dsi_grammar_text(s->g, at, "\"", 1);
}
