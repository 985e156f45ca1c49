/* SPDX-License-Identifier: Apache-2.0 */
/* The patterns of compression_training: which layers a group means. See compress_graph.h.
 *
 * DeepSpeed searches with Python's regular expressions; here they are POSIX's extended ones, with
 * \w, \s, \b as GNU has them, and \d and (?: written anew. */
#include "compile/compress_graph.h"

#include <regex.h>
#include <string.h>

enum { PATTERN_BYTES = 2 * DS_CONFIG_TEXT_BYTES };

/* False when it is something that POSIX has not. */
static bool translate(const char *from, size_t n, char *to)
{
    size_t at = 0;
    for (size_t i = 0; i < n && at + 8 < PATTERN_BYTES; ++i) {
        const bool more = i + 1 < n;
        if (from[i] == '\\' && more && from[i + 1] == 'd') {
            at += (size_t)stpcpy(to + at, "[0-9]") - (size_t)(to + at);
            ++i;
        } else if (from[i] == '\\' && more) {
            to[at++] = from[i++];
            to[at++] = from[i];
        } else if (from[i] == '(' && i + 2 < n && from[i + 1] == '?') {
            if (from[i + 2] != ':') {
                return false;
            }
            to[at++] = '(';
            i += 2;
        } else {
            to[at++] = from[i];
        }
    }
    to[at] = '\0';
    return true;
}

ds_status dsi_compress_match(ds_ctx *ctx, const char *key, const char *patterns, const char *name,
                             int *which_out)
{
    int line = 0;
    *which_out = -1;
    for (const char *p = patterns; *p != '\0'; ++line) {
        const size_t n = strcspn(p, "\n");
        char text[PATTERN_BYTES];
        regex_t regex;
        if (n == 1 && p[0] == '*') {
            *which_out = line;
            return DS_OK;
        }
        const int bad =
            translate(p, n, text) ? regcomp(&regex, text, REG_EXTENDED | REG_NOSUB) : REG_BADPAT;
        if (bad != 0) {
            return ds_fail(ctx, DS_ERR_CONFIG,
                           "%s: \"%.*s\" is no regular expression that is known", key, (int)n, p);
        }
        const bool found = regexec(&regex, name, 0, NULL, 0) == 0;
        regfree(&regex);
        if (found) {
            *which_out = line;
            return DS_OK;
        }
        p += n + (p[n] == '\n' ? 1 : 0);
    }
    return DS_OK;
}
