/* SPDX-License-Identifier: Apache-2.0 */
/* "…" % values and "…".format(): the plain forms of them. See jinja_run.h. */
#include "data/jinja/jinja_run.h"
#include "data/jinja/jinja_unicode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- % ---- */

typedef struct spec {
    bool left, zero, plus, space;
    int width, precision; /* -1: none */
    char kind;
} spec;

typedef struct percent {
    const char *p, *end;
    dsi_jv values;
    size_t used;
    bool named;
} percent;

static int small_number(percent *f)
{
    int n = 0;
    while (f->p < f->end && *f->p >= '0' && *f->p <= '9' && n < 10000) {
        n = n * 10 + (*f->p++ - '0');
    }
    return n;
}

/* The value of "(name)", or the next one. */
static dsi_jv operand(dsi_ji *j, percent *f)
{
    if (f->p < f->end && *f->p == '(') {
        const char *stop = memchr(f->p, ')', (size_t)(f->end - f->p));
        if (stop == NULL || f->values.kind != DSI_JV_DICT ||
            memchr(f->p + 1, '(', (size_t)(stop - f->p - 1))) {
            return dsi_ji_wrong(j, "a format with a name needs a dict");
        }
        const dsi_jv *there =
            dsi_ji_dict_get(j, f->values.dict, dsi_jv_str(f->p + 1, (size_t)(stop - f->p - 1)));
        f->p = stop + 1;
        f->named = true;
        return there != NULL ? *there : dsi_ji_wrong(j, "a format names what the dict has not");
    }
    return dsi_jv_missing();
}

static dsi_jv next_value(dsi_ji *j, percent *f)
{
    const bool tuple = f->values.kind == DSI_JV_TUPLE || f->values.kind == DSI_JV_GROUP;
    if (f->used >= (tuple ? f->values.list->n : 1)) {
        return dsi_ji_wrong(j, "a format with too few values");
    }
    return tuple ? f->values.list->at[f->used++] : (++f->used, f->values);
}

static spec read_spec(percent *f)
{
    spec s = {.precision = -1};
    for (; f->p < f->end && strchr("-0+ ", *f->p) != NULL && *f->p != '\0'; ++f->p) {
        s.left |= *f->p == '-';
        s.zero |= *f->p == '0';
        s.plus |= *f->p == '+';
        s.space |= *f->p == ' ';
    }
    s.width = small_number(f);
    if (f->p < f->end && *f->p == '.') {
        ++f->p;
        s.precision = small_number(f);
    }
    s.kind = f->p < f->end ? *f->p++ : '\0';
    return s;
}

static void put_padded(dsi_buf *out, const char *text, size_t n, const spec *s, bool number)
{
    const size_t chars = dsi_ji_n_chars(text, n);
    const size_t pad = (size_t)s->width > chars ? (size_t)s->width - chars : 0;
    size_t sign = 0;
    if (number && s->zero && !s->left && n > 0 && (*text == '-' || *text == '+' || *text == ' ')) {
        dsi_buf_putc(out, *text);
        sign = 1;
    }
    for (size_t i = 0; i < pad && !s->left; ++i) {
        dsi_buf_putc(out, number && s->zero ? '0' : ' ');
    }
    dsi_buf_append(out, text + sign, n - sign);
    for (size_t i = 0; i < pad && s->left; ++i) {
        dsi_buf_putc(out, ' ');
    }
}

static void put_number(dsi_ji *j, dsi_buf *out, dsi_jv v, const spec *s)
{
    char text[512];
    const char *sign = s->plus ? "+" : s->space ? " " : "";
    int n;
    if (!dsi_jv_is_number(v)) {
        (void)(v.kind == DSI_JV_UNDEFINED ? dsi_ji_use_undefined(j, v)
                                          : dsi_ji_wrong(j, "%%%c of %s", s->kind, dsi_ji_type(v)));
        return;
    }
    if (s->kind == 'f' || s->kind == 'F') {
        const double f = dsi_jv_float_of(v);
        if (!(fabs(f) < 1e200) || s->precision > 200) {
            (void)dsi_ji_refuse(j, "a format of such a number");
            return;
        }
        n = snprintf(text, sizeof text, "%s%.*f", signbit(f) ? "" : sign,
                     s->precision >= 0 ? s->precision : 6, f);
    } else {
        if (v.kind == DSI_JV_FLOAT && !(fabs(v.f) < 9e18)) {
            (void)dsi_ji_refuse(j, "a format of such a number");
            return;
        }
        const int64_t i = v.kind == DSI_JV_FLOAT ? (int64_t)v.f : dsi_jv_int_of(v);
        if (s->precision >= 0) {
            (void)dsi_ji_refuse(j, "a precision of a whole number");
            return;
        }
        n = snprintf(text, sizeof text, "%s%" PRId64, i < 0 ? "" : sign, i);
    }
    put_padded(out, text, (size_t)n, s, true);
}

static void put_text(dsi_ji *j, dsi_buf *out, dsi_jv v, const spec *s)
{
    dsi_buf text = dsi_buf_make(1 << 28);
    if (s->kind == 's') {
        dsi_ji_put(j, &text, v);
    } else {
        dsi_ji_put_repr(j, &text, v);
    }
    const char *p = dsi_buf_text(&text);
    size_t n = text.size;
    if (s->precision >= 0) {
        n = (size_t)(dsi_ji_char_at(p, n, (size_t)s->precision) - p);
    }
    put_padded(out, p, n, s, false);
    dsi_buf_free(&text);
}

static void put_percent(dsi_ji *j, dsi_buf *out, percent *f)
{
    const dsi_jv named = operand(j, f);
    const spec s = read_spec(f);
    if (j->failed) {
        return;
    }
    if (s.kind == '%') {
        dsi_buf_putc(out, '%');
        return;
    }
    if (s.kind == '\0' || strchr("srdiuf", s.kind) == NULL) {
        (void)(s.kind == '\0' ? dsi_ji_wrong(j, "a format ends within a %%")
                              : dsi_ji_refuse(j, "a format with %%%c", s.kind));
        return;
    }
    const dsi_jv v = named.kind != DSI_JV_MISSING ? named : next_value(j, f);
    if (j->failed) {
        return;
    }
    if (s.kind == 's' || s.kind == 'r') {
        put_text(j, out, v, &s);
    } else {
        put_number(j, out, v, &s);
    }
}

dsi_jv dsi_ji_format_percent(dsi_ji *j, dsi_jv format, dsi_jv values)
{
    percent f = {.p = format.text, .end = format.text + format.n, .values = values};
    dsi_buf out = dsi_buf_make(1 << 28);
    if (values.kind == DSI_JV_STR && values.safe) {
        (void)dsi_ji_refuse(j, "a format with a text that is marked safe");
    }
    while (f.p < f.end && dsi_ji_step(j, 1)) {
        const char *at = memchr(f.p, '%', (size_t)(f.end - f.p));
        dsi_buf_append(&out, f.p, (size_t)((at != NULL ? at : f.end) - f.p));
        f.p = at != NULL ? at + 1 : f.end;
        if (at != NULL) {
            put_percent(j, &out, &f);
        }
    }
    const bool tuple = values.kind == DSI_JV_TUPLE || values.kind == DSI_JV_GROUP;
    const size_t given = tuple ? values.list->n : 1;
    const bool may_be_left =
        values.kind == DSI_JV_DICT || values.kind == DSI_JV_LIST || values.kind == DSI_JV_RANGE;
    if (!j->failed && f.used < given && !f.named) {
        if (may_be_left && f.used == 0) {
            if (values.kind != DSI_JV_DICT) {
                (void)dsi_ji_refuse(j, "a format of a list that is not used");
            }
        } else if (values.kind == DSI_JV_UNDEFINED) {
            (void)dsi_ji_refuse(j, "a format of an undefined value that is not used");
        } else {
            (void)dsi_ji_wrong(j, "a format with too many values");
        }
    }
    return dsi_ji_buffer(j, &out);
}

/* ---- str.format ---- */

typedef struct braces {
    const char *p, *end;
    const dsi_ji_args *args;
    size_t next;
    bool counted, numbered; /* "{}" and "{0}" do not mix */
} braces;

static dsi_jv field(dsi_ji *j, braces *b, const char *name, size_t n)
{
    bool digits = n > 0 && n < 6;
    size_t at = 0;
    for (size_t i = 0; i < n; ++i) {
        digits = digits && name[i] >= '0' && name[i] <= '9';
        at = at * 10 + (size_t)(name[i] - '0');
        if (strchr(".[:!{", name[i]) != NULL) {
            return dsi_ji_refuse(j, "a field of format() with '%c'", name[i]);
        }
    }
    if (n == 0 || digits) {
        b->counted |= n == 0;
        b->numbered |= n > 0;
        at = n == 0 ? b->next++ : at;
        if ((b->counted && b->numbered) || at >= b->args->n) {
            return dsi_ji_wrong(j, "format() with too few values");
        }
        return b->args->at[at];
    }
    for (size_t i = 0; i < b->args->n_names; ++i) {
        if (strlen(b->args->names[i]) == n && memcmp(b->args->names[i], name, n) == 0) {
            return b->args->values[i];
        }
    }
    return dsi_ji_wrong(j, "format() without the value of a field");
}

static void put_field(dsi_ji *j, dsi_buf *out, braces *b)
{
    const char *stop = memchr(b->p, '}', (size_t)(b->end - b->p));
    if (stop == NULL) {
        (void)dsi_ji_wrong(j, "format() of a field without end");
        return;
    }
    const dsi_jv v = field(j, b, b->p, (size_t)(stop - b->p));
    b->p = stop + 1;
    if (!j->failed && v.kind == DSI_JV_STR && v.safe) {
        (void)dsi_ji_refuse(j, "format() with a text that is marked safe");
    } else if (!j->failed) {
        dsi_ji_put(j, out, v);
    }
}

dsi_jv dsi_ji_str_format(dsi_ji *j, dsi_jv self, const dsi_ji_args *args)
{
    braces b = {.p = self.text, .end = self.text + self.n, .args = args};
    dsi_buf out = dsi_buf_make(1 << 28);
    while (b.p < b.end && dsi_ji_step(j, 1)) {
        const char c = *b.p++;
        const bool twice = b.p < b.end && *b.p == c;
        if ((c == '{' || c == '}') && twice) {
            dsi_buf_putc(&out, c);
            ++b.p;
        } else if (c == '{') {
            put_field(j, &out, &b);
        } else if (c == '}') {
            (void)dsi_ji_wrong(j, "format() of a single '}'");
        } else {
            dsi_buf_putc(&out, c);
        }
    }
    return dsi_ji_buffer(j, &out);
}
