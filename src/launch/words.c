/* SPDX-License-Identifier: Apache-2.0 */
/* Owned word lists and environments. See words.h. */
#include "launch/words.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool reserve(dsi_words *words)
{
    if (words->n + 2 <= words->capacity) {
        return true;
    }
    const size_t capacity = words->capacity != 0 ? 2 * words->capacity : 16;
    char **items = realloc(words->items, capacity * sizeof *items);
    if (items == NULL) {
        words->failed = true;
        return false;
    }
    words->items = items;
    words->capacity = capacity;
    return true;
}

/* Takes the text over; NULL counts as out of memory. */
static void take(dsi_words *words, char *text)
{
    if (text == NULL || words->failed || !reserve(words)) {
        words->failed = true;
        free(text);
        return;
    }
    words->items[words->n++] = text;
    words->items[words->n] = NULL;
}

void dsi_words_add(dsi_words *words, const char *text)
{
    take(words, strdup(text));
}

void dsi_words_addf(dsi_words *words, const char *format, ...)
{
    va_list args;
    char *text = NULL;
    va_start(args, format);
    const int n = vasprintf(&text, format, args);
    va_end(args);
    take(words, n >= 0 ? text : NULL);
}

void dsi_words_add_all(dsi_words *words, const dsi_words *more)
{
    for (size_t i = 0; i < more->n; ++i) {
        dsi_words_add(words, more->items[i]);
    }
    words->failed = words->failed || more->failed;
}

void dsi_words_take(dsi_words *words, dsi_buf *text)
{
    dsi_words_add(words, dsi_buf_text(text));
    words->failed = words->failed || text->failed;
    dsi_buf_free(text);
}

void dsi_words_free(dsi_words *words)
{
    for (size_t i = 0; i < words->n; ++i) {
        free(words->items[i]);
    }
    free(words->items);
    *words = (dsi_words){0};
}

ds_status dsi_words_check(ds_ctx *ctx, const dsi_words *words)
{
    return words->failed ? ds_fail(ctx, DS_ERR_NOMEM, "no memory for a command line") : DS_OK;
}

/* ---- environments ---------------------------------------------------------------------------- */

static size_t env_index(const dsi_words *env, const char *name)
{
    const size_t n = strlen(name);
    size_t i = 0;
    while (i < env->n && (strncmp(env->items[i], name, n) != 0 || env->items[i][n] != '=')) {
        ++i;
    }
    return i;
}

void dsi_env_inherit(dsi_words *env, char *const *from)
{
    for (; *from != NULL; ++from) {
        dsi_words_add(env, *from);
    }
}

void dsi_env_set(dsi_words *env, const char *name, const char *value)
{
    const size_t i = env_index(env, name);
    if (i == env->n) {
        dsi_words_addf(env, "%s=%s", name, value);
        return;
    }
    char *text = NULL;
    if (asprintf(&text, "%s=%s", name, value) < 0) {
        env->failed = true;
        return;
    }
    free(env->items[i]);
    env->items[i] = text;
}

void dsi_env_setf(dsi_words *env, const char *name, const char *format, ...)
{
    va_list args;
    char *value = NULL;
    va_start(args, format);
    const int n = vasprintf(&value, format, args);
    va_end(args);
    if (n < 0) {
        env->failed = true;
        return;
    }
    dsi_env_set(env, name, value);
    free(value);
}

void dsi_env_unset(dsi_words *env, const char *name)
{
    const size_t i = env_index(env, name);
    if (i < env->n) {
        free(env->items[i]);
        memmove(&env->items[i], &env->items[i + 1], (env->n - i) * sizeof *env->items);
        --env->n;
    }
}

const char *dsi_env_get(const dsi_words *env, const char *name)
{
    const size_t i = env_index(env, name);
    return i < env->n ? env->items[i] + strlen(name) + 1 : NULL;
}
