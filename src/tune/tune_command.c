/* SPDX-License-Identifier: Apache-2.0 */
/* The user's command: where its configuration is, and which flags say what a candidate sets. See
 * tune_impl.h. A flag is the same with dashes and underscores, and with its value behind '='. */
#include "tune/tune_impl.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Whether a word is the flag; *value_out: what follows '=', NULL without. */
static bool is_flag(const char *word, const char *flag, const char **value_out)
{
    size_t i = 0;
    while (flag[i] != '\0' && (word[i] == flag[i] || (i >= 2 && word[i] == '-' && flag[i] == '_') ||
                               (i >= 2 && word[i] == '_' && flag[i] == '-'))) {
        ++i;
    }
    *value_out = word[i] == '=' ? word + i + 1 : NULL;
    return flag[i] == '\0' && (word[i] == '\0' || word[i] == '=');
}

ds_status dsi_tune_find_config(dsi_tune *t)
{
    static const char *const flags[] = {"--deepspeed_config", "--deepspeed"};
    const dsi_words *words = t->command;
    for (size_t f = 0; f < 2; ++f) {
        for (size_t i = words->n; i-- > 1;) { /* the last one counts, as for the program */
            const char *value = NULL;
            if (!is_flag(words->items[i], flags[f], &value)) {
                continue;
            }
            const bool apart = value == NULL && i + 1 < words->n;
            const char *path = apart ? words->items[i + 1] : value;
            if (path == NULL || (f == 1 && access(path, F_OK) != 0)) {
                continue; /* --deepspeed alone is a switch of many programs */
            }
            t->config_word = apart ? i + 1 : i;
            t->config_offset = apart ? 0 : (size_t)(value - words->items[i]);
            t->config_path = strdup(path);
            return t->config_path != NULL ? DS_OK
                                          : ds_fail(t->ctx, DS_ERR_NOMEM, "no memory for a path");
        }
    }
    return ds_fail(t->ctx, DS_ERR_ARG,
                   "--autotuning: expected --deepspeed_config FILE among the arguments of %s, "
                   "found none: trials replace that file",
                   words->items[0]);
}

/* The word of a flag, its value's word in *at_out and where in it. false: the command has it not.
 */
static bool find_flag(const dsi_words *words, const char *flag, size_t *at_out, size_t *offset_out)
{
    for (size_t i = words->n; i-- > 1;) { /* the last one counts */
        const char *value = NULL;
        if (!is_flag(words->items[i], flag, &value)) {
            continue;
        }
        if (value == NULL && i + 1 == words->n) {
            return false;
        }
        *at_out = value != NULL ? i : i + 1;
        *offset_out = value != NULL ? (size_t)(value - words->items[i]) : 0;
        return true;
    }
    return false;
}

const char *dsi_tune_flag_value(const dsi_tune *t, const char *key)
{
    size_t at = 0;
    size_t offset = 0;
    for (const char **m = t->mapped; *m != NULL; m += 2) {
        if (strcmp(m[0], key) == 0 && find_flag(t->command, m[1], &at, &offset)) {
            return t->command->items[at] + offset;
        }
    }
    return NULL;
}

/* Replaces what stands behind `offset` in a word. */
static void replace(dsi_words *words, size_t at, size_t offset, const char *value)
{
    const size_t size = offset + strlen(value) + 1;
    char *text = malloc(size);
    if (text == NULL) {
        words->failed = true;
        return;
    }
    memcpy(text, words->items[at], offset);
    memcpy(text + offset, value, size - offset);
    free(words->items[at]);
    words->items[at] = text;
}

/* JSON's text without its quotes. */
static void bare(const char *value, char *text, size_t size)
{
    const size_t n = strlen(value);
    const bool quoted = n >= 2 && value[0] == '"';
    const size_t take = quoted ? n - 2 : n;
    const size_t kept = take < size ? take : size - 1;
    memcpy(text, value + (quoted ? 1 : 0), kept);
    text[kept] = '\0';
}

/* A flag of the user's mapping is added where the command has it not; one that the planner knows is
 * only replaced, since its program reads the configuration. */
static void set_flags(const dsi_tune *t, const dsi_tune_setting *setting, dsi_words *out)
{
    char value[48];
    size_t at = 0;
    size_t offset = 0;
    bare(setting->value, value, sizeof value);
    for (const char **m = t->mapped; *m != NULL && value[0] != '\0'; m += 2) {
        if (strcmp(m[0], setting->path) != 0) {
            continue;
        }
        if (find_flag(out, m[1], &at, &offset)) {
            replace(out, at, offset, value);
            continue;
        }
        bool known = false;
        for (const char *const *f = t->planner != NULL ? t->planner->flags : NULL;
             f != NULL && *f != NULL; f += 2) {
            known = known || f[1] == m[1];
        }
        if (!known) {
            dsi_words_add(out, m[1]);
            dsi_words_add(out, value);
        }
    }
}

ds_status dsi_tune_command(const dsi_tune *t, const dsi_tune_candidate *c, const char *config,
                           dsi_words *out)
{
    dsi_words_add_all(out, t->command);
    DS_TRY(dsi_words_check(t->ctx, out));
    replace(out, t->config_word, t->config_offset, config);
    for (uint32_t i = 0; i < c->n_settings; ++i) {
        set_flags(t, &c->settings[i], out);
    }
    return dsi_words_check(t->ctx, out);
}
