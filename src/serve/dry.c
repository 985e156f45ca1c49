/* SPDX-License-Identifier: Apache-2.0 */
/* DRY, "don't repeat yourself": what would make a repetition longer is the less likely the longer
 * it is already. Source: p-e-w, text-generation-webui's pull request 5677; llama.cpp's sampler
 * "dry", whose definition this is: with r the newest ids from the end on, a match at i is how many
 * of r equal those from r[i] on, at most as many as stand behind the newest breaker; what followed
 * it is r[i - 1].
 */
#include "serve/server.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

static int by_id(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a;
    const uint32_t y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

ds_dry *dsi_dry_copy(const ds_dry *dry)
{
    const size_t bytes = dry->n_breakers * sizeof *dry->breakers;
    ds_dry *copy = malloc(sizeof *copy + bytes);
    if (copy == NULL) {
        return NULL;
    }
    uint32_t *breakers = (uint32_t *)(void *)(copy + 1);
    *copy = *dry;
    copy->breakers = breakers;
    if (bytes > 0) {
        memcpy(breakers, dry->breakers, bytes);
        qsort(breakers, dry->n_breakers, sizeof *breakers, by_id);
    }
    return copy;
}

static bool is_breaker(const ds_dry *dry, uint32_t id)
{
    size_t low = 0;
    size_t high = dry->n_breakers;
    while (low < high) {
        const size_t mid = low + (high - low) / 2;
        if (dry->breakers[mid] < id) {
            low = mid + 1;
        } else {
            high = mid;
        }
    }
    return low < dry->n_breakers && dry->breakers[low] == id;
}

/* matches[i], 1 <= i < n: how many of r[0], r[1] … equal r[i], r[i + 1] … (the Z algorithm:
 * Gusfield, "Algorithms on Strings, Trees, and Sequences", 1997). last: the newest id. */
static void match(const uint32_t *last, int64_t n, int32_t *matches)
{
    int64_t left = 0;
    int64_t right = 0; /* r[left..right) is the begin of r, too */
    for (int64_t i = 1; i < n; ++i) {
        int64_t m = i < right && matches[i - left] < right - i ? matches[i - left]
                    : i < right                                ? right - i
                                                               : 0;
        while (i + m < n && last[-m] == last[-(i + m)]) {
            ++m;
        }
        if (i + m > right) {
            left = i;
            right = i + m;
        }
        matches[i] = (int32_t)m;
    }
}

static float lowered(float logit, const ds_dry *dry, int64_t length)
{
    const double lowest = -1e30; /* finite: the sampler refuses infinities as a model's fault */
    const double x =
        (double)logit - dry->multiplier * pow(dry->base, (double)(length - dry->allowed_length));
    return (float)(x > lowest ? x : lowest);
}

void dsi_dry(const ds_dry *dry, const uint32_t *ids, int64_t n, dsi_draw_room *room)
{
    const int64_t window = dry->last_n > 0 && dry->last_n < n ? dry->last_n : n;
    const uint32_t *last = ids + n - 1;
    int64_t most = 0;
    while (most < window && !is_breaker(dry, last[-most])) {
        ++most;
    }
    most = most < UINT16_MAX ? most : UINT16_MAX;
    if (most < dry->allowed_length) {
        return;
    }
    match(last, window, room->matches);
    for (int64_t i = 1; i < window; ++i) {
        const int64_t m = room->matches[i] < most ? room->matches[i] : most;
        uint16_t *longest = &room->seen[last[-(i - 1)]];
        if (m >= dry->allowed_length && m > *longest) {
            *longest = (uint16_t)m;
        }
    }
    for (int64_t i = 1; i < window; ++i) {
        const uint32_t id = last[-(i - 1)];
        if (room->seen[id] > 0) {
            room->logits[id] = lowered(room->logits[id], dry, room->seen[id]);
            room->seen[id] = 0;
        }
    }
}
