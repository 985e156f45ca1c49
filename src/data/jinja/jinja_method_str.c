/* SPDX-License-Identifier: Apache-2.0 */
/* Methods of str. See jinja_method.c. */
#include "data/jinja/jinja_strings.h"

#include <string.h>

static bool need_str(dsi_ji *j, dsi_jv v, const char *method)
{
    if (v.kind != DSI_JV_STR || v.safe) {
        (void)(v.kind == DSI_JV_STR
                   ? dsi_ji_refuse(j, "%s() with a text that is marked safe", method)
                   : dsi_ji_wrong(j, "%s() needs a text, not %s", method, dsi_ji_type(v)));
        return false;
    }
    return true;
}

/* An optional whole number. */
static bool need_int(dsi_ji *j, dsi_jv v, int64_t standard, int64_t *out)
{
    *out = standard;
    if (v.kind == DSI_JV_MISSING) {
        return true;
    }
    if (!dsi_jv_is_int(v)) {
        (void)dsi_ji_wrong(j, "expected a whole number, not %s", dsi_ji_type(v));
        return false;
    }
    *out = dsi_jv_int_of(v);
    return true;
}

static dsi_jv s_strip(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return dsi_ji_strip(j, s, a[0], DSI_JI_BOTH);
}

static dsi_jv s_lstrip(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return dsi_ji_strip(j, s, a[0], DSI_JI_LEFT);
}

static dsi_jv s_rstrip(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return dsi_ji_strip(j, s, a[0], DSI_JI_RIGHT);
}

static dsi_jv s_upper(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    (void)a;
    return dsi_ji_recased(j, s, DSI_JI_UPPER);
}

static dsi_jv s_lower(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    (void)a;
    return dsi_ji_recased(j, s, DSI_JI_LOWER);
}

static dsi_jv s_capitalize(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    (void)a;
    return dsi_ji_capitalize(j, s);
}

/* Words begin behind what has no case; ASCII only. */
static dsi_jv s_title(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    dsi_buf out = dsi_buf_make(1 << 28);
    bool inside = false;
    (void)a;
    for (uint32_t i = 0; i < s.n && !j->failed; ++i) {
        const char c = s.text[i];
        uint32_t other = (unsigned char)c;
        if ((unsigned char)c >= 0x80) {
            (void)dsi_ji_refuse(j, "title() of a text beyond ASCII");
        }
        (void)dsi_ji_recase((unsigned char)c, inside ? DSI_JI_LOWER : DSI_JI_UPPER, &other);
        dsi_buf_putc(&out, (char)other);
        inside = (dsi_ji_classes((unsigned char)c) & DSI_JI_ALPHA) != 0;
    }
    return dsi_ji_buffer(j, &out);
}

static dsi_jv s_replace(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    int64_t count;
    if (!need_str(j, a[0], "replace") || !need_str(j, a[1], "replace") ||
        !need_int(j, a[2], -1, &count)) {
        return dsi_jv_none();
    }
    return dsi_ji_replace(j, s, a[0], a[1], count);
}

static bool begins(dsi_jv s, dsi_jv with)
{
    return s.n >= with.n && memcmp(s.text, with.text, with.n) == 0;
}

static bool ends(dsi_jv s, dsi_jv with)
{
    return s.n >= with.n && memcmp(s.text + s.n - with.n, with.text, with.n) == 0;
}

/* With a text or a tuple of texts; the bounds of a part are not known here. */
static dsi_jv affix(dsi_ji *j, dsi_jv s, const dsi_jv *a, bool (*fits)(dsi_jv, dsi_jv),
                    const char *name)
{
    if (a[1].kind != DSI_JV_MISSING) {
        return dsi_ji_refuse(j, "%s() of a part of a text", name);
    }
    (void)dsi_ji_step(j, s.n / 256);
    if (a[0].kind != DSI_JV_TUPLE) {
        return need_str(j, a[0], name) ? dsi_jv_bool(fits(s, a[0])) : dsi_jv_none();
    }
    for (size_t i = 0; i < a[0].list->n; ++i) {
        if (!need_str(j, a[0].list->at[i], name)) {
            return dsi_jv_none();
        }
        if (fits(s, a[0].list->at[i])) {
            return dsi_jv_bool(true);
        }
    }
    return dsi_jv_bool(false);
}

static dsi_jv s_startswith(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return affix(j, s, a, begins, "startswith");
}

static dsi_jv s_endswith(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return affix(j, s, a, ends, "endswith");
}

static dsi_jv s_removeprefix(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    if (!need_str(j, a[0], "removeprefix")) {
        return dsi_jv_none();
    }
    return begins(s, a[0]) ? dsi_jv_str(s.text + a[0].n, s.n - a[0].n) : s;
}

static dsi_jv s_removesuffix(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    if (!need_str(j, a[0], "removesuffix")) {
        return dsi_jv_none();
    }
    return ends(s, a[0]) ? dsi_jv_str(s.text, s.n - a[0].n) : s;
}

/* Each place that may be the one is a step, and so are 64 bytes that are compared there. */
static const char *find_last(dsi_ji *j, const char *text, size_t n, dsi_jv what)
{
    if (what.n == 0) {
        return text + n;
    }
    size_t left = n >= what.n ? n - what.n + 1 : 0;
    while (left > 0 && dsi_ji_step(j, 1 + what.n / 64)) {
        const char *at = memrchr(text, what.text[0], left);
        if (at == NULL || memcmp(at, what.text, what.n) == 0) {
            return at;
        }
        left = (size_t)(at - text);
    }
    return NULL;
}

/* find, rfind, index, rindex: the place in characters. */
static dsi_jv search(dsi_ji *j, dsi_jv s, const dsi_jv *a, bool last, const char *name)
{
    if (!need_str(j, a[0], name)) {
        return dsi_jv_none();
    }
    if (a[1].kind != DSI_JV_MISSING || a[2].kind != DSI_JV_MISSING) {
        return dsi_ji_refuse(j, "%s() in a part of a text", name);
    }
    (void)dsi_ji_step(j, s.n / 16);
    const char *at = last         ? find_last(j, s.text, s.n, a[0])
                     : a[0].n > 0 ? memmem(s.text, s.n, a[0].text, a[0].n)
                                  : s.text;
    if (at == NULL) {
        return strstr(name, "find") != NULL ? dsi_jv_int(-1)
                                            : dsi_ji_wrong(j, "%s() finds nothing", name);
    }
    return dsi_jv_int((int64_t)dsi_ji_n_chars(s.text, (size_t)(at - s.text)));
}

static dsi_jv s_find(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return search(j, s, a, false, "find");
}

static dsi_jv s_rfind(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return search(j, s, a, true, "rfind");
}

static dsi_jv s_index(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return search(j, s, a, false, "index");
}

static dsi_jv s_rindex(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return search(j, s, a, true, "rindex");
}

static dsi_jv s_count(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    int64_t n = 0;
    const char *end = s.text + s.n;
    if (!need_str(j, a[0], "count")) {
        return dsi_jv_none();
    }
    if (a[1].kind != DSI_JV_MISSING) {
        return dsi_ji_refuse(j, "count() in a part of a text");
    }
    if (a[0].n == 0) {
        return dsi_jv_int(dsi_ji_length(j, s) + 1);
    }
    (void)dsi_ji_step(j, s.n / 16);
    for (const char *p = s.text; (p = memmem(p, (size_t)(end - p), a[0].text, a[0].n)) != NULL;
         p += a[0].n) {
        ++n;
        if (!dsi_ji_step(j, 1)) {
            break;
        }
    }
    return dsi_jv_int(n);
}

static dsi_jv s_join(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    const dsi_jv *at;
    size_t n;
    if (a[0].kind == DSI_JV_MISSING) {
        return dsi_ji_wrong(j, "join() needs what to join");
    }
    if (!dsi_ji_items(j, a[0], &at, &n)) {
        return dsi_jv_none();
    }
    for (size_t i = 0; i < n; ++i) {
        if (!need_str(j, at[i], "join")) {
            return dsi_jv_none();
        }
    }
    return dsi_ji_join(j, s, at, n);
}

/* ---- splitting ---- */

typedef struct pieces {
    dsi_jv *at;
    size_t n, room;
} pieces;

static void add(dsi_ji *j, pieces *p, const char *begin, const char *end)
{
    (void)dsi_ji_step(j, 1);
    if (p->n == p->room) {
        const size_t room = p->room * 2 + 8;
        dsi_jv *grown = dsi_ji_alloc(j, room, sizeof *grown);
        if (grown == NULL) {
            return;
        }
        if (p->n > 0) {
            memcpy(grown, p->at, p->n * sizeof *grown);
        }
        p->at = grown;
        p->room = room;
    }
    p->at[p->n++] = dsi_jv_str(begin, (size_t)(end - begin));
}

static void split_space(dsi_ji *j, dsi_jv s, int64_t times, pieces *out)
{
    const char *end = s.text + s.n;
    const char *p = dsi_ji_skip_space(s.text, end);
    while (p < end && !j->failed) {
        const char *stop = p;
        if (times == 0) {
            add(j, out, p, end);
            return;
        }
        while (stop < end && dsi_ji_skip_space(stop, end) == stop) {
            stop = dsi_ji_char_at(stop, (size_t)(end - stop), 1);
        }
        add(j, out, p, stop);
        p = dsi_ji_skip_space(stop, end);
        --times;
    }
}

static void split_by(dsi_ji *j, dsi_jv s, dsi_jv by, int64_t times, pieces *out)
{
    const char *p = s.text;
    const char *end = s.text + s.n;
    const char *at;
    while (times != 0 && !j->failed && (at = memmem(p, (size_t)(end - p), by.text, by.n)) != NULL) {
        add(j, out, p, at);
        p = at + by.n;
        --times;
    }
    add(j, out, p, end);
}

static void rsplit_by(dsi_ji *j, dsi_jv s, dsi_jv by, int64_t times, pieces *out)
{
    const char *end = s.text + s.n;
    const char *at;
    while (times != 0 && !j->failed &&
           (at = find_last(j, s.text, (size_t)(end - s.text), by)) != NULL) {
        add(j, out, at + by.n, end);
        end = at;
        --times;
    }
    add(j, out, s.text, end);
    for (size_t i = 0; i < out->n / 2; ++i) {
        const dsi_jv one = out->at[i];
        out->at[i] = out->at[out->n - 1 - i];
        out->at[out->n - 1 - i] = one;
    }
}

static dsi_jv split(dsi_ji *j, dsi_jv s, const dsi_jv *a, bool right)
{
    pieces out = {0};
    int64_t times;
    if (!need_int(j, a[1], -1, &times)) {
        return dsi_jv_none();
    }
    (void)dsi_ji_step(j, s.n / 16);
    if (a[0].kind == DSI_JV_MISSING || a[0].kind == DSI_JV_NONE) {
        if (right && times >= 0) {
            return dsi_ji_refuse(j, "rsplit() at white space with a limit");
        }
        split_space(j, s, times, &out);
    } else if (!need_str(j, a[0], "split")) {
        return dsi_jv_none();
    } else if (a[0].n == 0) {
        return dsi_ji_wrong(j, "split() at an empty text");
    } else if (right) {
        rsplit_by(j, s, a[0], times, &out);
    } else {
        split_by(j, s, a[0], times, &out);
    }
    return dsi_ji_list(j, out.at, out.n, DSI_JV_LIST);
}

static dsi_jv s_split(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return split(j, s, a, false);
}

static dsi_jv s_rsplit(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return split(j, s, a, true);
}

static dsi_jv s_splitlines(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return dsi_ji_splitlines(j, s, a[0].kind != DSI_JV_MISSING && dsi_ji_truth(j, a[0]));
}

static dsi_jv parted(dsi_ji *j, dsi_jv s, const dsi_jv *a, bool right)
{
    if (!need_str(j, a[0], "partition")) {
        return dsi_jv_none();
    }
    if (a[0].n == 0) {
        return dsi_ji_wrong(j, "partition() at an empty text");
    }
    pieces out = {0};
    const char *end = s.text + s.n;
    (void)dsi_ji_step(j, s.n / 16);
    const char *at =
        right ? find_last(j, s.text, s.n, a[0]) : memmem(s.text, s.n, a[0].text, a[0].n);
    if (at != NULL) {
        add(j, &out, s.text, at);
        add(j, &out, at, at + a[0].n);
        add(j, &out, at + a[0].n, end);
    } else {
        add(j, &out, s.text, right ? s.text : end);
        add(j, &out, s.text, s.text);
        add(j, &out, right ? s.text : end, end);
    }
    return dsi_ji_list(j, out.at, out.n, DSI_JV_TUPLE);
}

static dsi_jv s_partition(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return parted(j, s, a, false);
}

static dsi_jv s_rpartition(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return parted(j, s, a, true);
}

/* ---- asking ---- */

/* Whether there is a character and each is of one of the classes; ' ' stands for white space. */
static dsi_jv all_are(dsi_ji *j, dsi_jv s, unsigned classes)
{
    const char *end = s.text + s.n;
    (void)dsi_ji_step(j, s.n / 16);
    for (const char *p = s.text; p < end;) {
        uint32_t cp;
        p += dsi_utf8_decode((const unsigned char *)p, (const unsigned char *)end, &cp);
        const unsigned seen = dsi_ji_classes(cp);
        if (classes == 0 ? !dsi_ji_is_space(cp) : cp < 0x80 && !(seen & classes)) {
            return dsi_jv_bool(false);
        }
        if (classes != 0 && cp >= 0x80) {
            return dsi_ji_refuse(j, "the class of U+%04X", cp);
        }
    }
    return dsi_jv_bool(s.n > 0);
}

static dsi_jv s_isdigit(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    (void)a;
    return all_are(j, s, DSI_JI_DECIMAL);
}

static dsi_jv s_isalpha(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    (void)a;
    return all_are(j, s, DSI_JI_ALPHA);
}

static dsi_jv s_isalnum(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    (void)a;
    return all_are(j, s, (unsigned)DSI_JI_ALPHA | DSI_JI_DECIMAL);
}

static dsi_jv s_isspace(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    (void)a;
    return all_are(j, s, 0);
}

static dsi_jv s_islower(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    (void)a;
    return dsi_jv_bool(dsi_ji_is_cased(j, s, DSI_JI_CASED_LOWER));
}

static dsi_jv s_isupper(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    (void)a;
    return dsi_jv_bool(dsi_ji_is_cased(j, s, DSI_JI_CASED_UPPER));
}

/* ljust, rjust, zfill and center. */
static dsi_jv justify(dsi_ji *j, dsi_jv s, const dsi_jv *a, char side)
{
    int64_t width;
    if (a[0].kind == DSI_JV_MISSING || !need_int(j, a[0], 0, &width)) {
        return dsi_ji_wrong(j, "a width is a whole number");
    }
    if (a[1].kind != DSI_JV_MISSING && (!need_str(j, a[1], "center") || a[1].n != 1)) {
        return dsi_ji_refuse(j, "a filling that is no character of ASCII");
    }
    const char fill = a[1].kind == DSI_JV_STR ? *a[1].text : ' ';
    if (side == 'c') {
        return dsi_ji_center(j, s, width, fill);
    }
    const int64_t pad = width - dsi_ji_length(j, s);
    if (pad > 1 << 20) {
        return dsi_ji_fail(j, DS_ERR_LIMIT, "a text of such a width");
    }
    dsi_buf out = dsi_buf_make(1 << 28);
    if (side == 'l') {
        dsi_buf_append(&out, s.text, s.n);
    }
    for (int64_t i = 0; i < pad; ++i) {
        dsi_buf_putc(&out, fill);
    }
    if (side == 'r') {
        dsi_buf_append(&out, s.text, s.n);
    }
    return dsi_ji_buffer(j, &out);
}

static dsi_jv s_center(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return justify(j, s, a, 'c');
}

static dsi_jv s_ljust(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return justify(j, s, a, 'l');
}

static dsi_jv s_rjust(dsi_ji *j, dsi_jv s, const dsi_jv *a)
{
    return justify(j, s, a, 'r');
}

/* ---- the table; "-" is a parameter without a name ---- */

/* clang-format off */
static const dsi_ji_method_row of_str[] = {
    {"strip", "-", s_strip}, {"lstrip", "-", s_lstrip}, {"rstrip", "-", s_rstrip},
    {"upper", "", s_upper}, {"lower", "", s_lower}, {"capitalize", "", s_capitalize},
    {"title", "", s_title}, {"replace", "- - -", s_replace},
    {"startswith", "- - -", s_startswith}, {"endswith", "- - -", s_endswith},
    {"removeprefix", "-", s_removeprefix}, {"removesuffix", "-", s_removesuffix},
    {"find", "- - -", s_find}, {"rfind", "- - -", s_rfind}, {"index", "- - -", s_index},
    {"rindex", "- - -", s_rindex}, {"count", "- - -", s_count}, {"join", "-", s_join},
    {"split", "sep maxsplit", s_split}, {"rsplit", "sep maxsplit", s_rsplit},
    {"splitlines", "keepends", s_splitlines}, {"partition", "-", s_partition},
    {"rpartition", "-", s_rpartition}, {"isdigit", "", s_isdigit}, {"isdecimal", "", s_isdigit},
    {"isnumeric", "", s_isdigit}, {"isalpha", "", s_isalpha}, {"isalnum", "", s_isalnum},
    {"isspace", "", s_isspace}, {"islower", "", s_islower}, {"isupper", "", s_isupper},
    {"center", "- -", s_center}, {"ljust", "- -", s_ljust}, {"rjust", "- -", s_rjust},
    {NULL, NULL, NULL}};
/* clang-format on */

const dsi_ji_method_row *dsi_ji_str_methods(void)
{
    return of_str;
}
