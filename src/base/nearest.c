/* SPDX-License-Identifier: Apache-2.0 */
/* Edit distance and the choice of a suggestion. See nearest.h. */
#include "base/nearest.h"

#include <ctype.h>
#include <string.h>

enum { MAX_WORD = 64 };

static char lower(char c)
{
    return c == '-' ? '_' : (char)tolower((unsigned char)c);
}

static size_t min3(size_t a, size_t b, size_t c)
{
    const size_t ab = a < b ? a : b;
    return ab < c ? ab : c;
}

/* Optimal string alignment over three rolling rows. */
static size_t edit_distance(const char *a, const char *b)
{
    const size_t n_a = strnlen(a, MAX_WORD);
    const size_t n_b = strnlen(b, MAX_WORD);
    size_t rows[3][MAX_WORD + 1];
    for (size_t j = 0; j <= n_b; ++j) {
        rows[0][j] = j;
    }
    for (size_t i = 1; i <= n_a; ++i) {
        size_t *now = rows[i % 3];
        const size_t *last = rows[(i + 2) % 3];
        const size_t *before = rows[(i + 1) % 3];
        now[0] = i;
        for (size_t j = 1; j <= n_b; ++j) {
            const size_t replace = last[j - 1] + (lower(a[i - 1]) != lower(b[j - 1]));
            now[j] = min3(last[j] + 1, now[j - 1] + 1, replace);
            if (i > 1 && j > 1 && lower(a[i - 1]) == lower(b[j - 2]) &&
                lower(a[i - 2]) == lower(b[j - 1]) && before[j - 2] + 1 < now[j]) {
                now[j] = before[j - 2] + 1;
            }
        }
    }
    return rows[n_a % 3][n_b];
}

/* At most a third of the letters differ. */
static bool is_near(const char *a, const char *b, size_t distance)
{
    const size_t n_a = strlen(a);
    const size_t n_b = strlen(b);
    return distance * 3 <= (n_a > n_b ? n_a : n_b);
}

void dsi_nearest_offer(dsi_nearest *nearest, const char *candidate)
{
    const size_t distance = edit_distance(nearest->word, candidate);
    const bool contains =
        strlen(nearest->word) >= 4 && strlen(candidate) >= 4 &&
        (strstr(candidate, nearest->word) != NULL || strstr(nearest->word, candidate) != NULL);
    if (!contains && !is_near(nearest->word, candidate, distance)) {
        return;
    }
    if (nearest->best == NULL || distance < nearest->distance) {
        nearest->best = candidate;
        nearest->distance = distance;
    }
}

bool dsi_nearest_is_slip(const dsi_nearest *nearest)
{
    return nearest->best != NULL && is_near(nearest->word, nearest->best, nearest->distance);
}
