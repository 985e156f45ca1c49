/* SPDX-License-Identifier: Apache-2.0 */
/* Regular expressions: what ECMA 262 and Python agree on, without what looks around, refers back or
 * depends on a language. \d, \w and \s are those of ASCII, and what excludes them (\D, \W, \S, a
 * class [^\d]) is printable ASCII: a part of what either of the two takes.
 *
 * A count {m,n} reads its part again, copy by copy. A repetition that is lazy takes the same texts.
 */
#include "guide/form_reader.h"

#include <string.h>

static uint32_t put_choice(dsi_form_reader *r, uint32_t at);

static bool more(const dsi_form_reader *r)
{
    return r->at < r->n && !r->g->failed;
}

static bool next_is(const dsi_form_reader *r, char c)
{
    return r->at < r->n && r->text[r->at] == c;
}

static void add_shorthand(dsi_chars *c, char letter)
{
    if ((letter | 32) == 'd' || (letter | 32) == 'w') {
        dsi_chars_add(c, '0', '9');
    }
    if ((letter | 32) == 'w') {
        dsi_chars_add(c, 'A', 'Z');
        dsi_chars_add(c, 'a', 'z');
        dsi_chars_add(c, '_', '_');
    }
    if ((letter | 32) == 's') {
        dsi_chars_add(c, '\t', '\r');
        dsi_chars_add(c, ' ', ' ');
    }
}

/* Those of printable ASCII that are not in the set. */
static void invert_printable(dsi_chars *c)
{
    dsi_chars_add(c, 0, ' ' - 1);
    dsi_chars_invert(c, '~');
}

/* Behind a backslash: a code point, or a set is added and UINT32_MAX returned. */
static uint32_t read_escape(dsi_form_reader *r, dsi_chars *set)
{
    static const char letters[] = "tnrfv0";
    static const char values[] = "\t\n\r\f\v";
    const char c = r->at < r->n ? r->text[r->at] : '\0';
    const char *found = c != '\0' ? strchr(letters, c) : NULL;
    if (c == '\0') {
        return dsi_form_reader_fail(r, "expected something behind a backslash");
    }
    if (strchr("dwsDWS", c) != NULL) {
        dsi_chars part = {0};
        add_shorthand(&part, c);
        if (c < 'a') {
            invert_printable(&part);
        }
        for (uint32_t i = 0; i < part.n; ++i) {
            dsi_chars_add(set, part.low[i], part.high[i]);
        }
        r->at += 1;
        return UINT32_MAX;
    }
    if (found != NULL) {
        r->at += 1;
        return (unsigned char)values[found - letters];
    }
    if (c == 'x' || c == 'u') {
        r->at += 1;
        return dsi_form_reader_hex(r, c == 'x' ? 2 : 4);
    }
    if ((c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9')) {
        return dsi_form_reader_fail(
            r, "this escape is not supported: boundaries, references, properties of "
               "characters");
    }
    return dsi_form_reader_point(r);
}

static uint32_t read_class_item(dsi_form_reader *r, dsi_chars *set, bool *shorthand)
{
    if (!next_is(r, '\\')) {
        return dsi_form_reader_point(r);
    }
    r->at += 1;
    const char letter = r->at < r->n ? r->text[r->at] : '\0';
    const uint32_t point = letter == 'b' ? '\b' : read_escape(r, set);
    r->at += letter == 'b';
    *shorthand = *shorthand || point == UINT32_MAX;
    return point;
}

/* Behind its bracket. */
static void read_class(dsi_form_reader *r, dsi_chars *set)
{
    const bool inverted = dsi_form_reader_skip(r, "^");
    bool shorthand = false;
    if (next_is(r, ']')) {
        (void)dsi_form_reader_fail(r, "a class that is empty, or begins with ] (write \\])");
    }
    while (more(r) && !next_is(r, ']') && dsi_grammar_work(r->g)) {
        const uint32_t low = read_class_item(r, set, &shorthand);
        if (low == UINT32_MAX) {
            continue;
        }
        uint32_t high = low;
        if (next_is(r, '-') && r->at + 1 < r->n && r->text[r->at + 1] != ']') {
            r->at += 1;
            high = read_class_item(r, set, &shorthand);
        }
        if (high == UINT32_MAX || high < low) {
            (void)dsi_form_reader_fail(r, "a range whose end is before its begin");
            return;
        }
        dsi_chars_add(set, low, high);
    }
    if (!dsi_form_reader_skip(r, "]")) {
        (void)dsi_form_reader_fail(r, "a class that does not end");
    }
    if (inverted && shorthand) {
        invert_printable(set);
    } else if (inverted) {
        dsi_chars_invert(set, DSI_FORM_READER_ALL);
    }
}

/* All but the ends of lines. */
static void any_of_line(dsi_chars *set)
{
    dsi_chars_add(set, '\n', '\n');
    dsi_chars_add(set, '\r', '\r');
    dsi_chars_add(set, 0x85, 0x85);
    dsi_chars_add(set, 0x2028, 0x2029);
    dsi_chars_invert(set, DSI_FORM_READER_ALL);
}

/* ---- parts ---- */
static uint32_t put_group(dsi_form_reader *r, uint32_t at)
{
    if (dsi_form_reader_skip(r, "?")) {
        const bool named =
            dsi_form_reader_skip(r, "P<") ||
            (next_is(r, '<') && r->at + 1 < r->n && strchr("=!", r->text[r->at + 1]) == NULL);
        while (named && more(r) && !next_is(r, '>')) {
            r->at += 1;
        }
        if (!(named ? dsi_form_reader_skip(r, ">") : dsi_form_reader_skip(r, ":"))) {
            return dsi_form_reader_fail(
                r, "a group that looks around or sets an option is not supported");
        }
    }
    if (++r->depth > DSI_FORM_READER_GROUPS) {
        return dsi_form_reader_fail(r, "too many groups in one another");
    }
    at = put_choice(r, at);
    r->depth -= 1;
    return dsi_form_reader_skip(r, ")") ? at : dsi_form_reader_fail(r, "a group that does not end");
}

static uint32_t put_part(dsi_form_reader *r, uint32_t at)
{
    dsi_chars set = {0};
    const char c = r->text[r->at];
    if (!dsi_grammar_work(r->g)) {
        return 0;
    }
    if (strchr("*+?{", c) != NULL && c != '\0') {
        return dsi_form_reader_fail(r, "there is nothing to repeat");
    }
    if (c == '^' || c == '$') {
        return dsi_form_reader_fail(
            r, "^ and $ can only stand at the ends of an alternative outside of groups");
    }
    if (dsi_form_reader_skip(r, "(")) {
        return put_group(r, at);
    }
    if (dsi_form_reader_skip(r, "[")) {
        read_class(r, &set);
    } else if (dsi_form_reader_skip(r, ".")) {
        any_of_line(&set);
    } else {
        const uint32_t point =
            dsi_form_reader_skip(r, "\\") ? read_escape(r, &set) : dsi_form_reader_point(r);
        if (point != UINT32_MAX) {
            dsi_chars_add(&set, point, point);
        }
    }
    return r->g->failed ? 0 : dsi_chars_put(r->g, at, &set, r->quoted);
}

static uint32_t put_repeated(dsi_form_reader *r, uint32_t at)
{
    at = dsi_form_reader_repeated(r, at, put_part);
    if (!dsi_form_reader_skip(r, "?") && next_is(r, '+')) {
        (void)dsi_form_reader_fail(r, "a possessive repetition is not supported");
    }
    return at;
}

static uint32_t put_sequence(dsi_form_reader *r, uint32_t at)
{
    while (more(r) && !next_is(r, '|') && !next_is(r, ')') && !(next_is(r, '$') && r->depth == 0)) {
        at = put_repeated(r, at);
    }
    return at;
}

static uint32_t put_choice(dsi_form_reader *r, uint32_t at)
{
    const uint32_t done = dsi_grammar_state(r->g);
    do {
        dsi_grammar_empty(r->g, put_sequence(r, dsi_form_reader_fresh(r, at)), done);
    } while (!r->g->failed && dsi_form_reader_skip(r, "|"));
    return done;
}

/* Any text. */
static uint32_t put_any(dsi_form_reader *r, uint32_t at)
{
    dsi_chars all = {0};
    dsi_chars_add(&all, 0, DSI_FORM_READER_ALL);
    const uint32_t start = dsi_form_reader_fresh(r, at);
    dsi_grammar_empty(r->g, dsi_chars_put(r->g, start, &all, r->quoted), start);
    return start;
}

uint32_t dsi_form_regex(dsi_grammar *g, uint32_t at, const char *pattern, size_t n, bool whole,
                        bool quoted)
{
    dsi_form_reader r = {
        .g = g, .text = pattern, .n = n, .what = "regular expression", .quoted = quoted};
    const uint32_t done = dsi_grammar_state(g);
    do {
        const bool from_begin = dsi_form_reader_skip(&r, "^") || whole;
        const uint32_t start = from_begin ? dsi_form_reader_fresh(&r, at) : put_any(&r, at);
        uint32_t behind = put_sequence(&r, start);
        const bool to_end = dsi_form_reader_skip(&r, "$") || whole;
        if (more(&r) && !next_is(&r, '|')) {
            return dsi_form_reader_fail(&r, next_is(&r, ')') ? "a group that did not begin"
                                                             : "$ can only stand at the end");
        }
        behind = to_end ? behind : put_any(&r, behind);
        dsi_grammar_empty(g, behind, done);
    } while (!g->failed && dsi_form_reader_skip(&r, "|"));
    return done;
}
