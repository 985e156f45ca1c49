/* SPDX-License-Identifier: Apache-2.0 */
/* Samplers under llama.cpp's names: typical_p, dry_*, mirostat*. See api.h. */
#include "api.h"

#include "guide/vocabulary.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
    "typical_p",          "dry_multiplier",     "dry_base",
    "dry_allowed_length", "dry_penalty_last_n", "dry_sequence_breakers",
    "mirostat",           "mirostat_tau",       "mirostat_eta",
};

bool api_is_sampler(const char *name)
{
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        if (strcmp(names[i], name) == 0) {
            return true;
        }
    }
    return false;
}

/* Single bytes: one that stands in several could begin in one token and end in another. */
static bool read_breakers(api_reader *r, json_t *v)
{
    bool ok = json_is_array(v) && json_array_size(v) <= 64;
    for (size_t i = 0; ok && i < json_array_size(v); ++i) {
        ok = json_string_length(json_array_get(v, i)) == 1;
    }
    r->breakers = v;
    return ok || api_wrong(r, "dry_sequence_breakers",
                           "an array of at most 64 ASCII characters; breakers of several are not "
                           "built");
}

static bool read_dry(api_reader *r, const char *name, json_t *v)
{
    if (strcmp(name, "dry_multiplier") == 0) {
        return api_number(r, name, v, 0.0, 1e6, &r->dry.multiplier);
    }
    r->needs_dry = name;
    if (strcmp(name, "dry_base") == 0) {
        return api_number(r, name, v, 1.0, 1e3, &r->dry.base);
    }
    if (strcmp(name, "dry_allowed_length") == 0) {
        return api_whole(r, name, v, 1, INT32_MAX, &r->dry.allowed_length);
    }
    if (strcmp(name, "dry_sequence_breakers") == 0) {
        return read_breakers(r, v);
    }
    int64_t last_n = 0;
    if (!api_whole(r, name, v, -1, INT32_MAX, &last_n)) {
        return false;
    }
    r->dry.last_n = last_n > 0 ? last_n : 0;
    return last_n != 0 || api_wrong(r, name,
                                    "a number above 0, or -1 for all; without DRY leave "
                                    "dry_multiplier out");
}

static bool read_mirostat(api_reader *r, const char *name, json_t *v)
{
    ds_sampling *s = &r->j->request.sampling;
    if (strcmp(name, "mirostat") == 0) {
        return api_whole(r, name, v, 0, 2, &s->mirostat);
    }
    r->needs_mirostat = name;
    return api_number(r, name, v, 1e-6, 1e3, strcmp(name, "mirostat_tau") == 0 ? &s->tau : &s->eta);
}

bool api_read_sampler(api_reader *r, const char *name, json_t *v)
{
    if (strcmp(name, "typical_p") == 0) {
        return api_number(r, name, v, 1e-9, 1.0, &r->j->request.sampling.typical_p);
    }
    return strncmp(name, "dry_", 4) == 0 ? read_dry(r, name, v) : read_mirostat(r, name, v);
}

static bool breaks(const char *breakers, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        if (bytes[i] != 0 && strchr(breakers, bytes[i]) != NULL) {
            return true;
        }
    }
    return false;
}

/* All tokens with a breaker in them. */
static bool find_breakers(api_reader *r, ds_dry *dry)
{
    char all[65] = "\n:\"*"; /* llama.cpp's, where none are given */
    if (r->breakers != NULL) {
        memset(all, 0, sizeof all);
        for (size_t i = 0; i < json_array_size(r->breakers); ++i) {
            all[i] = json_string_value(json_array_get(r->breakers, i))[0];
        }
    }
    if (!api_find_words(r)) {
        return false;
    }
    const dsi_vocabulary *w = r->f->words;
    uint32_t *ids = malloc((w->n + 1) * sizeof *ids);
    dry->breakers = ids;
    for (uint32_t id = 0; ids != NULL && id < w->n; ++id) {
        if (breaks(all, w->bytes + w->at[id], w->at[id + 1] - w->at[id])) {
            ids[dry->n_breakers++] = id;
        }
    }
    return ids != NULL;
}

static bool take_dry(api_reader *r)
{
    if (!(r->dry.multiplier > 0.0)) {
        return r->needs_dry == NULL ||
               api_wrong(r, r->needs_dry, "dry_multiplier above 0 beside it");
    }
    ds_dry *dry = calloc(1, sizeof *dry);
    r->j->request.dry = dry;
    if (dry == NULL) {
        return api_fail(r->e, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, "", "no memory");
    }
    *dry = r->dry;
    dry->base = dry->base > 0.0 ? dry->base : 1.75;
    dry->allowed_length = dry->allowed_length > 0 ? dry->allowed_length : 2;
    return find_breakers(r, dry) ||
           (r->e->message[0] != '\0'
                ? false
                : api_fail(r->e, MHD_HTTP_INTERNAL_SERVER_ERROR, NULL, "", "no memory"));
}

bool api_take_samplers(api_reader *r)
{
    ds_sampling *s = &r->j->request.sampling;
    if (s->mirostat == 0 && r->needs_mirostat != NULL) {
        return api_wrong(r, r->needs_mirostat, "mirostat 1 or 2 beside it");
    }
    if (s->mirostat != 0) {
        s->tau = s->tau > 0.0 ? s->tau : 5.0;
        s->eta = s->eta > 0.0 ? s->eta : 0.1;
        if (s->temperature <= 0.0 || s->top_k > 0 || (s->top_p > 0.0 && s->top_p < 1.0) ||
            s->min_p > 0.0 || (s->typical_p > 0.0 && s->typical_p < 1.0)) {
            return api_wrong(r, "mirostat",
                             "a temperature above 0, and no top_k, top_p, min_p or typical_p, in "
                             "the place of which it stands");
        }
    }
    return take_dry(r);
}
