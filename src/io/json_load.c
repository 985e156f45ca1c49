/* SPDX-License-Identifier: Apache-2.0 */
/* JSON texts. See json_load.h. */
#include "io/json_load.h"

#include "io/json_quick.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LONGEST_INT = 19 }; /* digits that may fit */

/* Whether a whole number of n bytes is beyond 64 bits. */
static bool is_huge(const char *digits, size_t n, size_t n_digits)
{
    char number[LONGEST_INT + 2] = "";
    if (n_digits != LONGEST_INT || n >= sizeof number) {
        return n_digits > LONGEST_INT;
    }
    memcpy(number, digits, n);
    errno = 0;
    (void)strtoll(number, NULL, 10);
    return errno == ERANGE;
}

/* Bytes of the number that begins at `at`; *huge_out: whole and beyond 64 bits. */
static size_t number_at(const char *at, const char *end, bool *huge_out)
{
    size_t n = 0;
    size_t n_digits = 0;
    bool whole = true;
    for (; at + n < end && strchr("+-.0123456789eE", at[n]) != NULL && at[n] != '\0'; ++n) {
        n_digits += at[n] >= '0' && at[n] <= '9';
        whole = whole && strchr(".eE", at[n]) == NULL;
    }
    *huge_out = whole && is_huge(at, n, n_digits);
    return n;
}

char *dsi_json_widen(const char *text, size_t n)
{
    char *copy = malloc(n + n / LONGEST_INT * 2 + 3);
    const char *const end = text + n;
    size_t used = 0;
    bool in_string = false;
    for (const char *at = text; copy != NULL && at < end;) {
        bool huge = false;
        size_t step = 1;
        if (in_string) {
            step = *at == '\\' && at + 1 < end ? 2 : 1;
            in_string = *at != '"';
        } else if (*at == '"') {
            in_string = true;
        } else if (*at == '-' || (*at >= '0' && *at <= '9')) {
            step = number_at(at, end, &huge);
        }
        memcpy(copy + used, at, step);
        used += step;
        at += step;
        if (huge) {
            memcpy(copy + used, "e0", 2);
            used += 2;
        }
    }
    if (copy != NULL) {
        copy[used] = '\0';
    }
    return copy;
}

json_t *dsi_json_parse(const char *text, size_t n, size_t flags, json_error_t *error)
{
    json_t *json = (flags & ~(size_t)JSON_ALLOW_NUL) == 0 ? dsi_json_quick(text, n) : NULL;
    if (json != NULL) {
        return json;
    }
    json = json_loadb(text, n, flags, error);
    if (json != NULL || json_error_code(error) != json_error_numeric_overflow) {
        return json;
    }
    char *copy = dsi_json_widen(text, n);
    if (copy == NULL) {
        error->text[0] = '\0'; /* as jansson reports that memory ran out */
        return NULL;
    }
    json = json_loads(copy, flags, error);
    free(copy);
    return json;
}

ds_status dsi_json_load(ds_ctx *ctx, const char *label, const char *text, size_t n, size_t flags,
                        ds_status status, json_t **root_out)
{
    json_error_t error = {0};
    json_t *root = json_loadb(text, n, flags | JSON_REJECT_DUPLICATES, &error);
    if (root != NULL) {
        *root_out = root;
        return DS_OK;
    }
    /* jansson leaves the text empty when an allocation failed */
    if (error.text[0] == '\0' || json_error_code(&error) == json_error_out_of_memory) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory reading %s", label);
    }
    return ds_fail(ctx, status, "%s:%d:%d: %s", label, error.line, error.column, error.text);
}
