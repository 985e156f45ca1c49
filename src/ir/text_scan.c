/* SPDX-License-Identifier: Apache-2.0 */
/* Words of graph text. See text_scan.h. */
#include "ir/text_scan.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FOUND_BYTES = 32, NUMBER_BYTES = 64 };

ds_status dsi_text_expected(const dsi_text_scan *scan, const char *what)
{
    const size_t n = strcspn(scan->at, "\n");
    const char *end = *scan->at == '\0' ? "the end of the text" : "the end of the line";
    const unsigned column = (unsigned)(scan->at - scan->line) + 1;
    if (n == 0) {
        return ds_fail(scan->ctx, DS_ERR_FORMAT, "line %u, column %u: expected %s, found %s",
                       scan->n_lines, column, what, end);
    }
    return ds_fail(scan->ctx, DS_ERR_FORMAT, "line %u, column %u: expected %s, found '%.*s%s'",
                   scan->n_lines, column, what, (int)(n < FOUND_BYTES ? n : FOUND_BYTES), scan->at,
                   n < FOUND_BYTES ? "" : "...");
}

bool dsi_text_try(dsi_text_scan *scan, const char *word)
{
    const size_t n = strlen(word);
    if (strncmp(scan->at, word, n) != 0) {
        return false;
    }
    scan->at += n;
    return true;
}

ds_status dsi_text_take(dsi_text_scan *scan, const char *word)
{
    char what[NUMBER_BYTES];
    if (dsi_text_try(scan, word)) {
        return DS_OK;
    }
    (void)snprintf(what, sizeof what, "'%s'", word);
    return dsi_text_expected(scan, what);
}

ds_status dsi_text_end_line(dsi_text_scan *scan)
{
    if (*scan->at != '\n') {
        return dsi_text_expected(scan, "the end of the line");
    }
    scan->line = ++scan->at;
    scan->n_lines += 1;
    return DS_OK;
}

ds_status dsi_text_word(dsi_text_scan *scan, const char *what, char *word, size_t room)
{
    const size_t n = strspn(scan->at, "abcdefghijklmnopqrstuvwxyz0123456789_");
    if (n == 0 || n >= room) {
        return dsi_text_expected(scan, what);
    }
    memcpy(word, scan->at, n);
    word[n] = '\0';
    scan->at += n;
    return DS_OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9') {
        return c - '0';
    }
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* After the backslash. */
static ds_status take_escape(dsi_text_scan *scan, dsi_buf *name)
{
    static const char letters[] = "\"\\ntr";
    static const char meant[] = "\"\\\n\t\r";
    const char *found = *scan->at == '\0' ? NULL : strchr(letters, *scan->at);
    if (found != NULL) {
        dsi_buf_putc(name, meant[found - letters]);
        scan->at += 1;
        return DS_OK;
    }
    if (strncmp(scan->at, "u00", 3) == 0) {
        const int high = hex_digit(scan->at[3]);
        const int low = high < 0 ? -1 : hex_digit(scan->at[4]);
        const int code = high * 16 + low;
        if (low >= 0 && code > 0 && code < 0x20) {
            dsi_buf_putc(name, (char)code);
            scan->at += 5;
            return DS_OK;
        }
    }
    return dsi_text_expected(scan, "an escape: \\\" \\\\ \\n \\t \\r or \\u0001 to \\u001f");
}

ds_status dsi_text_name(dsi_text_scan *scan, const char *what, dsi_buf *name)
{
    dsi_buf_clear(name);
    if (*scan->at != '"') {
        return dsi_text_expected(scan, what);
    }
    scan->at += 1;
    while (*scan->at != '"') {
        const unsigned char c = (unsigned char)*scan->at;
        if (c == '\\') {
            scan->at += 1;
            DS_TRY(take_escape(scan, name));
        } else if (c < 0x20) {
            return dsi_text_expected(scan, "the end of a quoted name");
        } else {
            dsi_buf_putc(name, *scan->at++);
        }
    }
    scan->at += 1;
    if (name->failed) {
        return ds_fail(scan->ctx, DS_ERR_LIMIT, "line %u: a name is longer than %zu bytes",
                       scan->n_lines, name->ceiling);
    }
    return DS_OK;
}

ds_status dsi_text_int(dsi_text_scan *scan, const char *what, int64_t *value_out)
{
    const char *digits = scan->at + (*scan->at == '-');
    const size_t n = strspn(digits, "0123456789");
    errno = 0;
    const long long value = n == 0 ? 0 : strtoll(scan->at, NULL, 10);
    if (n == 0 || errno != 0) {
        return dsi_text_expected(scan, what);
    }
    scan->at = digits + n;
    *value_out = value;
    return DS_OK;
}

ds_status dsi_text_id(dsi_text_scan *scan, const char *what, uint32_t *id_out)
{
    const dsi_text_scan before = *scan;
    int64_t value = 0;
    DS_TRY(dsi_text_int(scan, what, &value));
    if (value < 0 || value >= UINT32_MAX) {
        *scan = before;
        return dsi_text_expected(scan, what);
    }
    *id_out = (uint32_t)value;
    return DS_OK;
}

static ds_status take_nan(dsi_text_scan *scan, double *value_out)
{
    uint64_t bits = 0;
    double value = 0.0;
    for (int i = 0; i < 16; ++i) {
        const int digit = hex_digit(*scan->at);
        if (digit < 0) {
            return dsi_text_expected(scan, "16 hexadecimal digits");
        }
        bits = bits << 4 | (uint64_t)digit;
        scan->at += 1;
    }
    memcpy(&value, &bits, sizeof value);
    if (!isnan(value)) {
        return dsi_text_expected(scan, "the bits of a NaN before this");
    }
    *value_out = value;
    return DS_OK;
}

ds_status dsi_text_real(dsi_text_scan *scan, const char *what, double *value_out)
{
    char number[NUMBER_BYTES];
    char *end = NULL;
    const size_t n = strspn(scan->at, "+-.0123456789e");
    if (dsi_text_try(scan, "nan:")) {
        return take_nan(scan, value_out);
    }
    if (dsi_text_try(scan, "inf")) {
        *value_out = INFINITY;
        return DS_OK;
    }
    if (dsi_text_try(scan, "-inf")) {
        *value_out = -INFINITY;
        return DS_OK;
    }
    if (n == 0 || n >= sizeof number) {
        return dsi_text_expected(scan, what);
    }
    memcpy(number, scan->at, n);
    number[n] = '\0';
    const double value = strtod_l(number, &end, scan->numbers);
    if (*end != '\0' || !isfinite(value)) {
        return dsi_text_expected(scan, what);
    }
    scan->at += n;
    *value_out = value;
    return DS_OK;
}

ds_status dsi_text_meta(dsi_text_scan *scan, ds_meta *meta_out)
{
    const char *what = "a shape such as bf16[4,8]";
    const dsi_text_scan before = *scan;
    ds_meta meta = {0};
    char word[NUMBER_BYTES];
    DS_TRY(dsi_text_word(scan, what, word, sizeof word));
    while (meta.dtype < DS_DTYPE_ALL && strcmp(word, ds_dtype_name(meta.dtype)) != 0) {
        ++meta.dtype;
    }
    if (meta.dtype == DS_DTYPE_ALL) {
        *scan = before;
        return dsi_text_expected(scan, what);
    }
    DS_TRY(dsi_text_take(scan, "["));
    while (*scan->at != ']') {
        if (meta.shape.n_dims == DS_MAX_DIMS) {
            return dsi_text_expected(scan, "']' after the eighth dimension");
        }
        if (meta.shape.n_dims > 0) {
            DS_TRY(dsi_text_take(scan, ","));
        }
        DS_TRY(dsi_text_int(scan, "a dimension", &meta.shape.dims[meta.shape.n_dims]));
        meta.shape.n_dims += 1;
    }
    scan->at += 1;
    for (uint32_t i = 0; i < meta.shape.n_dims; ++i) {
        if (meta.shape.dims[i] < 0) {
            *scan = before;
            return dsi_text_expected(scan, "dimensions that are not negative");
        }
    }
    if (ds_meta_bytes(meta) > SIZE_MAX / 2) {
        *scan = before;
        return dsi_text_expected(scan, "a shape of less than 2^63 bytes");
    }
    *meta_out = meta;
    return DS_OK;
}

void dsi_text_print_real(dsi_buf *text, double value)
{
    char number[NUMBER_BYTES];
    uint64_t bits = 0;
    memcpy(&bits, &value, sizeof bits);
    if (isnan(value)) {
        dsi_buf_printf(text, "nan:%016llx", (unsigned long long)bits);
        return;
    }
    for (int precision = 1; precision <= 17; ++precision) {
        (void)snprintf(number, sizeof number, "%.*g", precision, value);
        if (strtod(number, NULL) == value) { /* the same locale both ways */
            break;
        }
    }
    bool in_point = false; /* the locale's decimal point, of one or more bytes */
    for (const char *c = number; *c != '\0'; ++c) {
        const bool plain = strchr("0123456789abcdefinrty+-", *c) != NULL;
        if (plain || !in_point) {
            dsi_buf_putc(text, plain ? *c : '.');
        }
        in_point = !plain;
    }
}
