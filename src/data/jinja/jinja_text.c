/* SPDX-License-Identifier: Apache-2.0 */
/* Values as texts: str(), repr(), and json.dumps() with transformers' options. See jinja_run.h. */
#include "data/jinja/jinja_run.h"
#include "data/jinja/jinja_unicode.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Python's repr() of a float: the fewest digits that read back. */
static void put_float(dsi_buf *out, double f)
{
    char digits[40];
    if (isnan(f) || isinf(f)) {
        dsi_buf_puts(out, isnan(f) ? "nan" : f < 0 ? "-inf" : "inf");
        return;
    }
    for (int precision = 0; precision < 17; ++precision) {
        (void)snprintf(digits, sizeof digits, "%.*e", precision, f);
        if (strtod(digits, NULL) == f) {
            break;
        }
    }
    char *e = strchr(digits, 'e');
    const long exponent = strtol(e + 1, NULL, 10);
    if (exponent < -4 || exponent >= 16) {
        *e = '\0';
        dsi_buf_printf(out, "%se%c%02ld", digits, exponent < 0 ? '-' : '+', labs(exponent));
        return;
    }
    const long n_digits = (long)(e - digits) - (digits[0] == '-') - (strchr(digits, '.') != NULL);
    const long behind = n_digits - 1 - exponent;
    (void)snprintf(digits, sizeof digits, "%.*f", (int)(behind > 1 ? behind : 1), f);
    dsi_buf_puts(out, digits);
}

static void put_escaped(dsi_buf *out, uint32_t cp)
{
    if (cp < 0x100) {
        dsi_buf_printf(out, "\\x%02x", cp);
    } else {
        dsi_buf_printf(out, cp < 0x10000 ? "\\u%04x" : "\\U%08x", cp);
    }
}

static void put_repr_str(dsi_ji *j, dsi_buf *out, dsi_jv v)
{
    const bool single = memchr(v.text, '\'', v.n) != NULL;
    const char quote = single && memchr(v.text, '"', v.n) == NULL ? '"' : '\'';
    const unsigned char *p = (const unsigned char *)v.text;
    const unsigned char *end = p + v.n;
    (void)dsi_ji_step(j, v.n / 16);
    dsi_buf_putc(out, quote);
    while (p < end) {
        uint32_t cp;
        const size_t n = dsi_utf8_decode(p, end, &cp);
        const char *short_form = cp == '\n'   ? "\\n"
                                 : cp == '\r' ? "\\r"
                                 : cp == '\t' ? "\\t"
                                              : NULL;
        if (short_form != NULL) {
            dsi_buf_puts(out, short_form);
        } else if (cp == (unsigned char)quote || cp == '\\') {
            dsi_buf_putc(out, '\\');
            dsi_buf_putc(out, (char)cp);
        } else if (dsi_ji_printable(cp) == DSI_JI_PRINTED) {
            dsi_buf_append(out, p, n);
        } else if (dsi_ji_printable(cp) == DSI_JI_ESCAPED) {
            put_escaped(out, cp);
        } else {
            (void)dsi_ji_refuse(j, "repr() of a character that Unicode 13 has not");
        }
        p += n;
    }
    dsi_buf_putc(out, quote);
}

static void put_items(dsi_ji *j, dsi_buf *out, const dsi_jv *at, size_t n)
{
    for (size_t i = 0; i < n && !j->failed; ++i) {
        dsi_buf_puts(out, i > 0 ? ", " : "");
        dsi_ji_put_repr(j, out, at[i]);
    }
}

static void put_dict(dsi_ji *j, dsi_buf *out, const dsi_jv_dict *dict)
{
    dsi_buf_putc(out, '{');
    for (size_t i = 0; i < dict->n && !j->failed; ++i) {
        dsi_buf_puts(out, i > 0 ? ", " : "");
        dsi_ji_put_repr(j, out, dict->keys[i]);
        dsi_buf_puts(out, ": ");
        dsi_ji_put_repr(j, out, dict->values[i]);
    }
    dsi_buf_putc(out, '}');
}

static void put_view(dsi_ji *j, dsi_buf *out, dsi_jv v)
{
    static const char *const names[] = {"dict_keys([", "dict_values([", "dict_items(["};
    const dsi_jv *at;
    size_t n;
    dsi_buf_puts(out, names[v.view->part]);
    if (dsi_ji_items(j, v, &at, &n)) {
        put_items(j, out, at, n);
    }
    dsi_buf_puts(out, "])");
}

static void put_range(dsi_buf *out, const dsi_jv_range *range)
{
    dsi_buf_printf(out, "range(%" PRId64 ", %" PRId64, range->start, range->stop);
    if (range->step != 1) {
        dsi_buf_printf(out, ", %" PRId64, range->step);
    }
    dsi_buf_putc(out, ')');
}

/* Both write the same but for texts. */
static void put_other(dsi_ji *j, dsi_buf *out, dsi_jv v)
{
    switch ((dsi_jv_kind)v.kind) {
    case DSI_JV_NONE:
        dsi_buf_puts(out, "None");
        break;
    case DSI_JV_BOOL:
        dsi_buf_puts(out, v.flag ? "True" : "False");
        break;
    case DSI_JV_INT:
        dsi_buf_printf(out, "%" PRId64, v.i);
        break;
    case DSI_JV_FLOAT:
        put_float(out, v.f);
        break;
    case DSI_JV_LIST:
        dsi_buf_putc(out, '[');
        put_items(j, out, v.list->at, v.list->n);
        dsi_buf_putc(out, ']');
        break;
    case DSI_JV_TUPLE:
    case DSI_JV_GROUP:
        dsi_buf_putc(out, '(');
        put_items(j, out, v.list->at, v.list->n);
        dsi_buf_puts(out, v.list->n == 1 ? ",)" : ")");
        break;
    case DSI_JV_DICT:
        put_dict(j, out, v.dict);
        break;
    case DSI_JV_VIEW:
        put_view(j, out, v);
        break;
    case DSI_JV_RANGE:
        put_range(out, v.range);
        break;
    case DSI_JV_NAMESPACE:
        dsi_buf_puts(out, "<Namespace ");
        put_dict(j, out, v.dict);
        dsi_buf_putc(out, '>');
        break;
    case DSI_JV_LOOP:
        dsi_buf_printf(out, "<LoopContext %" PRId64 "/%" PRId64 ">", v.loop->index0 + 1,
                       dsi_ji_length(j, v));
        break;
    case DSI_JV_MACRO:
        if (v.macro->node->kind == DSI_JN_MACRO) {
            dsi_buf_printf(out, "<Macro '%s'>", v.macro->node->name);
        } else {
            dsi_buf_puts(out, "<Macro anonymous>");
        }
        break;
    default:
        (void)dsi_ji_refuse(j, "printing %s, which has no text of its own", dsi_ji_type(v));
        break;
    }
}

/* Opens a level of the value and counts the work; false: an error. */
static bool enter(dsi_ji *j, const dsi_buf *out)
{
    if (!dsi_ji_step(j, 1)) {
        return false;
    }
    if (out->failed || ++j->depth > DSI_JI_RUN_DEPTH_MAX) {
        (void)dsi_ji_fail(j, DS_ERR_LIMIT, "a value of more than %d levels, or a text too long",
                          DSI_JI_RUN_DEPTH_MAX);
        return false;
    }
    return true;
}

void dsi_ji_put_repr(dsi_ji *j, dsi_buf *out, dsi_jv v)
{
    if (!enter(j, out)) {
        return;
    }
    if (v.kind == DSI_JV_STR) {
        if (v.safe) {
            (void)dsi_ji_refuse(j, "repr() of a text that is marked safe");
        }
        put_repr_str(j, out, v);
    } else if (v.kind == DSI_JV_UNDEFINED) {
        dsi_buf_puts(out, "Undefined");
    } else {
        put_other(j, out, v);
    }
    --j->depth;
}

void dsi_ji_put(dsi_ji *j, dsi_buf *out, dsi_jv v)
{
    if (!enter(j, out)) {
        return;
    }
    if (v.kind == DSI_JV_STR) {
        (void)dsi_ji_step(j, v.n / 64);
        dsi_buf_append(out, v.text, v.n);
    } else if (v.kind != DSI_JV_UNDEFINED) {
        put_other(j, out, v);
    }
    --j->depth;
}

dsi_jv dsi_ji_str(dsi_ji *j, dsi_jv v)
{
    if (v.kind == DSI_JV_STR) {
        return dsi_jv_str(v.text, v.n);
    }
    dsi_buf out = dsi_buf_make(1 << 28);
    dsi_ji_put(j, &out, v);
    return dsi_ji_buffer(j, &out);
}

/* ---- JSON ---- */

static void put_json_char(dsi_buf *out, const unsigned char *p, size_t n, uint32_t cp, bool ascii)
{
    static const char from[] = "\"\\\n\r\t\f\b";
    static const char into[] = "\"\\nrtfb";
    const char *known = cp < 0x80 && cp != 0 ? strchr(from, (int)cp) : NULL;
    if (known != NULL) {
        dsi_buf_putc(out, '\\');
        dsi_buf_putc(out, into[known - from]);
    } else if (cp < 0x20 || (ascii && cp > 0x7E && cp < 0x10000)) {
        dsi_buf_printf(out, "\\u%04x", cp);
    } else if (ascii && cp >= 0x10000) {
        dsi_buf_printf(out, "\\u%04x\\u%04x", 0xD800u + ((cp - 0x10000u) >> 10),
                       0xDC00u + ((cp - 0x10000u) & 0x3FFu));
    } else {
        dsi_buf_append(out, p, n);
    }
}

static void put_json_str(dsi_ji *j, dsi_buf *out, dsi_jv v, bool ascii)
{
    const unsigned char *p = (const unsigned char *)v.text;
    const unsigned char *end = p + v.n;
    (void)dsi_ji_step(j, v.n / 16);
    dsi_buf_putc(out, '"');
    while (p < end) {
        uint32_t cp;
        const size_t n = dsi_utf8_decode(p, end, &cp);
        put_json_char(out, p, n, cp, ascii);
        p += n;
    }
    dsi_buf_putc(out, '"');
}

static void put_line(dsi_buf *out, const dsi_ji_json *how, uint32_t level)
{
    if (how->indent != NULL) {
        dsi_buf_putc(out, '\n');
        for (uint32_t i = 0; i < level; ++i) {
            dsi_buf_puts(out, how->indent);
        }
    }
}

static void put_json(dsi_ji *j, dsi_buf *out, dsi_jv v, const dsi_ji_json *how, uint32_t level);

static void put_json_list(dsi_ji *j, dsi_buf *out, const dsi_jv_list *list, const dsi_ji_json *how,
                          uint32_t level)
{
    dsi_buf_putc(out, '[');
    for (size_t i = 0; i < list->n && !j->failed; ++i) {
        dsi_buf_puts(out, i > 0 ? how->between : "");
        put_line(out, how, level + 1);
        put_json(j, out, list->at[i], how, level + 1);
    }
    if (list->n > 0) {
        put_line(out, how, level);
    }
    dsi_buf_putc(out, ']');
}

static void put_json_key(dsi_ji *j, dsi_buf *out, dsi_jv key, const dsi_ji_json *how)
{
    if (key.kind == DSI_JV_STR) {
        put_json_str(j, out, key, how->ascii);
    } else if (dsi_jv_is_number(key) || key.kind == DSI_JV_NONE) {
        dsi_buf_putc(out, '"');
        put_json(j, out, key, how, 0);
        dsi_buf_putc(out, '"');
    } else {
        (void)dsi_ji_wrong(j, "%s is no key of JSON", dsi_ji_type(key));
    }
}

/* The order of the members: as they are, or by their keys. */
static const size_t *order_of(dsi_ji *j, const dsi_jv_dict *dict, bool sorted)
{
    size_t *order = dsi_ji_alloc(j, dict->n, sizeof *order);
    for (size_t i = 0; i < dict->n && order != NULL; ++i) {
        size_t k = i;
        for (; sorted && k > 0 && !j->failed &&
               dsi_ji_compare(j, dict->keys[i], dict->keys[order[k - 1]]) < 0;
             --k) {
            order[k] = order[k - 1];
        }
        order[k] = i;
    }
    return order;
}

static void put_json_dict(dsi_ji *j, dsi_buf *out, const dsi_jv_dict *dict, const dsi_ji_json *how,
                          uint32_t level)
{
    const size_t *order = order_of(j, dict, how->sorted);
    dsi_buf_putc(out, '{');
    for (size_t i = 0; i < dict->n && !j->failed; ++i) {
        dsi_buf_puts(out, i > 0 ? how->between : "");
        put_line(out, how, level + 1);
        put_json_key(j, out, dict->keys[order[i]], how);
        dsi_buf_puts(out, how->colon);
        put_json(j, out, dict->values[order[i]], how, level + 1);
    }
    if (dict->n > 0) {
        put_line(out, how, level);
    }
    dsi_buf_putc(out, '}');
}

static void put_json(dsi_ji *j, dsi_buf *out, dsi_jv v, const dsi_ji_json *how, uint32_t level)
{
    if (!enter(j, out)) {
        return;
    }
    switch ((dsi_jv_kind)v.kind) {
    case DSI_JV_NONE:
        dsi_buf_puts(out, "null");
        break;
    case DSI_JV_BOOL:
        dsi_buf_puts(out, v.flag ? "true" : "false");
        break;
    case DSI_JV_FLOAT:
        if (isnan(v.f) || isinf(v.f)) {
            dsi_buf_puts(out, isnan(v.f) ? "NaN" : v.f < 0 ? "-Infinity" : "Infinity");
        } else {
            put_float(out, v.f);
        }
        break;
    case DSI_JV_INT:
        dsi_buf_printf(out, "%" PRId64, v.i);
        break;
    case DSI_JV_STR:
        put_json_str(j, out, v, how->ascii);
        break;
    case DSI_JV_LIST:
    case DSI_JV_TUPLE:
    case DSI_JV_GROUP:
        put_json_list(j, out, v.list, how, level);
        break;
    case DSI_JV_DICT:
        put_json_dict(j, out, v.dict, how, level);
        break;
    default:
        (void)dsi_ji_wrong(j, "%s cannot be written as JSON", dsi_ji_type(v));
        break;
    }
    --j->depth;
}

void dsi_ji_put_json(dsi_ji *j, dsi_buf *out, dsi_jv v, const dsi_ji_json *how)
{
    put_json(j, out, v, how, 0);
}
