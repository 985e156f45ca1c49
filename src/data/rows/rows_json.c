/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a .json: the items of a list, or values one after another. Only their ends are looked
 * for, by brackets and strings; what is between is checked by the reader of a row. See rows.h. */
#include "data/rows/rows_impl.h"

#include <string.h>

static bool is_space(int c)
{
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

/* Passes over white space; the byte behind it. */
static int skip_space(dsi_rows *r, ds_status *status)
{
    int c = dsi_rows_look(r, status);
    while (is_space(c)) {
        (void)dsi_rows_byte(r, status);
        c = dsi_rows_look(r, status);
    }
    return c;
}

/* A run of bytes that say nothing of where the value ends goes at once. */
static void take_plain(dsi_rows *r, dsi_buf *json, bool in_string)
{
    const char *marks = in_string ? "\"\\" : "\"[]{}, \t\r\n";
    size_t n = 0;
    while (n < r->n_piece && r->piece[n] != '\0' && strchr(marks, r->piece[n]) == NULL) {
        ++n;
    }
    dsi_buf_append(json, r->piece, n);
    r->piece += n;
    r->n_piece -= n;
}

static void take(dsi_rows *r, dsi_buf *json, ds_status *status)
{
    dsi_buf_putc(json, (char)dsi_rows_byte(r, status));
}

static ds_status take_string(dsi_rows *r, dsi_buf *json)
{
    ds_status status = DS_OK;
    take(r, json, &status);
    for (;;) {
        take_plain(r, json, true);
        const int c = dsi_rows_look(r, &status);
        if (c < 0) {
            return status < 0 ? status : dsi_rows_bad(r, r->place, "the file ends within a string");
        }
        take(r, json, &status);
        if (c == '"') {
            return DS_OK;
        }
        if (c == '\\' && dsi_rows_look(r, &status) >= 0) {
            take(r, json, &status);
        }
    }
}

/* One value from its first byte to its last. */
static ds_status take_value(dsi_rows *r, dsi_buf *json)
{
    ds_status status = DS_OK;
    uint64_t depth = 0;
    for (bool first = true;; first = false) {
        const int c = dsi_rows_look(r, &status);
        const bool ends = c == ',' || c == ']' || c == '}' || is_space(c);
        if (c < 0 && (depth > 0 || status < 0)) {
            return status < 0 ? status : dsi_rows_bad(r, r->place, "the file ends within a row");
        }
        if (c < 0 || (depth == 0 && !first && ends)) {
            return DS_OK;
        }
        if (c == '"') {
            DS_TRY(take_string(r, json));
        } else {
            take(r, json, &status);
            if (c != '[' && c != '{' && !ends) {
                take_plain(r, json, false);
            }
        }
        depth += c == '[' || c == '{';
        depth -= (c == ']' || c == '}') && depth > 0;
        if (depth == 0 && (ends || c == '"')) {
            return DS_OK;
        }
    }
}

/* Behind an item of a list: a comma, or the list's end. */
static ds_status pass_comma(dsi_rows *r, bool *over_out)
{
    ds_status status = DS_OK;
    const int c = skip_space(r, &status);
    *over_out = c == ']';
    if (status < 0) {
        return status;
    }
    if (c < 0) {
        return dsi_rows_bad(r, r->place, "the file ends within its list, behind this row");
    }
    if (c == ']' || (c == ',' && r->after_item)) {
        (void)dsi_rows_byte(r, &status);
    } else if (r->after_item) {
        return dsi_rows_bad(r, r->place, "behind this row a \",\" or \"]\" is expected");
    }
    if (c == ',' && skip_space(r, &status) == ']') {
        return dsi_rows_bad(r, r->place, "a \",\" behind the last row");
    }
    return status;
}

ds_status dsi_rows_next_item(dsi_rows *r, dsi_buf *json, bool *end_out)
{
    ds_status status = DS_OK;
    int c = skip_space(r, &status);
    if (c == '[' && r->place == 0 && !r->in_list && !r->list_over) {
        (void)dsi_rows_byte(r, &status);
        r->in_list = true;
    }
    if (r->in_list) {
        bool over = false;
        DS_TRY(pass_comma(r, &over));
        r->in_list = !over;
        r->list_over = over;
        c = skip_space(r, &status);
    }
    *end_out = c < 0;
    if (status < 0 || c < 0) {
        return status;
    }
    if (r->list_over) {
        return dsi_rows_bad(r, r->place, "the list of rows is over, and the file goes on");
    }
    ++r->place;
    r->after_item = true;
    return take_value(r, json);
}
