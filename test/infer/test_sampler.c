/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler: it keeps what transformers' warpers keep; mirostat holds the surprise of a text; DRY
 * is its definition; logits of which any is not finite are refused, wherever it stands. */
#include "common/check.h"
#include "infer/sampler.h"
#include "serve/server.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { N = 37 };

static void refuses_what_is_not_finite(void **state)
{
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    static const ds_sampling ways[] = {{.temperature = 0.0},
                                       {.temperature = 1.0, .seed = 3},
                                       {.temperature = 0.7, .top_k = 5, .seed = 3},
                                       {.temperature = 0.7, .top_p = 0.5, .seed = 3}};
    float logits[N];
    uint32_t order[N];
    float weight[N], key[N];
    const dsi_sample_room room = {order, weight, key};
    for (int i = 0; i < N; ++i) {
        logits[i] = (float)((i * 17) % N) / 4.0f;
    }
    for (size_t way = 0; way < sizeof ways / sizeof ways[0]; ++way) {
        uint32_t id = N;
        CHECK_OK(*state, dsi_sample(*state, logits, N, &ways[way], 9, &room, NULL, &id));
        assert_true(id < N);
        for (int i = 0; i < N; ++i) {
            for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; ++k) {
                const float kept = logits[i];
                logits[i] = wrong[k];
                CHECK_FAILS(*state, dsi_sample(*state, logits, N, &ways[way], 9, &room, NULL, &id),
                            DS_ERR_NUMERIC, "logits are not finite");
                logits[i] = kept;
            }
        }
    }
}

/* ---- what is kept ---- */
enum { MOST = 300, DRAWS = 3000 };

typedef struct scratch {
    float logits[MOST], weight[MOST], key[MOST];
    uint32_t order[MOST];
} scratch;

static double number(const json_t *of, const char *name, double otherwise)
{
    const json_t *v = json_object_get(of, name);
    return v != NULL ? json_number_value(v) : otherwise;
}

static void draws_from(ds_ctx *ctx, scratch *s, int64_t n, const json_t *c)
{
    const dsi_sample_room room = {s->order, s->weight, s->key};
    const json_t *kept = json_object_get(c, "kept");
    const ds_sampling sampling = {.temperature = number(c, "temperature", 1.0),
                                  .top_k = (int64_t)number(c, "top_k", 0.0),
                                  .top_p = number(c, "top_p", 0.0),
                                  .min_p = number(c, "min_p", 0.0),
                                  .typical_p = number(c, "typical_p", 0.0),
                                  .seed = 5};
    bool may[MOST] = {false};
    int hits[MOST] = {0};
    double total = 0.0;
    for (size_t i = 0; i < json_array_size(kept); ++i) {
        const json_int_t id = json_integer_value(json_array_get(kept, i));
        may[id] = true;
        total += exp(s->logits[id] / sampling.temperature);
    }
    for (uint64_t at = 0; at < DRAWS; ++at) {
        uint32_t id = 0;
        CHECK_OK(ctx, dsi_sample(ctx, s->logits, n, &sampling, at, &room, NULL, &id));
        assert_true(may[id]);
        hits[id] += 1;
    }
    for (int64_t i = 0; i < n; ++i) {
        const double p = may[i] ? exp(s->logits[i] / sampling.temperature) / total : 0.0;
        assert_true(fabs(hits[i] - DRAWS * p) <= 5.0 * sqrt(DRAWS * p) + 1.0);
    }
}

static void keeps_what_warpers_keep(void **state)
{
    json_error_t error;
    json_t *rows = json_load_file(DS_SOURCE_DIR "/test/golden/sampler/warpers.json", 0, &error);
    scratch *s = calloc(1, sizeof *s);
    assert_non_null(rows);
    assert_non_null(s);
    for (size_t i = 0; i < json_array_size(rows); ++i) {
        const json_t *row = json_array_get(rows, i);
        const json_t *logits = json_object_get(row, "logits");
        const size_t n = json_array_size(logits);
        for (size_t k = 0; k < n; ++k) {
            s->logits[k] = (float)json_number_value(json_array_get(logits, k));
        }
        const json_t *cases = json_object_get(row, "cases");
        for (size_t k = 0; k < json_array_size(cases); ++k) {
            draws_from(*state, s, (int64_t)n, json_array_get(cases, k));
        }
    }
    free(s);
    json_decref(rows);
}

/* ---- mirostat ---- */
/* The mean surprise of a long text is tau, which is far from that of the plain draw. */
static double mean_surprise(ds_ctx *ctx, scratch *s, int64_t version, double tau)
{
    enum { TEXT = 4000 };
    const dsi_sample_room room = {s->order, s->weight, s->key};
    const ds_sampling sampling = {
        .temperature = 1.0, .mirostat = version, .tau = tau, .eta = 0.1, .seed = 9};
    double surprise = 2.0 * tau;
    double sum = 0.0;
    for (uint64_t at = 0; at < TEXT; ++at) {
        uint32_t id = 0;
        const double before = surprise;
        CHECK_OK(ctx, dsi_sample(ctx, s->logits, MOST, &sampling, at, &room, &surprise, &id));
        sum += (before - surprise) / 0.1 + tau;
        double total = 0.0;
        for (int i = 0; i < MOST; ++i) {
            total += exp(s->logits[i]);
        }
        /* version 2 draws from ids whose own surprise is below the bound, or the likeliest */
        bool first = true;
        for (int i = 0; i < MOST; ++i) {
            first = first && s->logits[i] <= s->logits[id];
        }
        assert_true(version == 1 || first || log2(total / exp(s->logits[id])) < before + 1e-4);
    }
    return sum / TEXT;
}

static void mirostat_holds_surprise(void **state)
{
    scratch *s = calloc(1, sizeof *s);
    assert_non_null(s);
    for (int i = 0; i < MOST; ++i) { /* Zipf's law */
        s->logits[(i * 7) % MOST] = (float)(-1.1 * log(i + 1.0));
    }
    for (int64_t version = 1; version <= 2; ++version) {
        for (double tau = 1.5; tau < 4.0; tau += 1.0) {
            assert_true(fabs(mean_surprise(*state, s, version, tau) - tau) < 0.1);
        }
    }
    free(s);
}

static void refuses_what_goes_not_together(void **state)
{
    ds_sampling s = {.temperature = 1.0, .mirostat = 2, .tau = 5.0, .eta = 0.1};
    CHECK_OK(*state, dsi_sampling_check(*state, "s", &s));
    s.top_k = 3;
    CHECK_FAILS(*state, dsi_sampling_check(*state, "s", &s), DS_ERR_ARG, "in the place of");
    s = (ds_sampling){.mirostat = 2, .tau = 5.0, .eta = 0.1};
    CHECK_FAILS(*state, dsi_sampling_check(*state, "s", &s), DS_ERR_ARG, "mirostat is 2");
    s = (ds_sampling){.typical_p = NAN};
    CHECK_FAILS(*state, dsi_sampling_check(*state, "s", &s), DS_ERR_ARG, "typical_p");
}

/* ---- DRY ---- */
enum { IDS = 90, WORDS = 4 };

/* By the definition: for each earlier place, how far back both go on alike. */
static void lower(const ds_dry *d, const uint32_t *ids, int64_t n, double *logits)
{
    const int64_t window = d->last_n > 0 && d->last_n < n ? d->last_n : n;
    const int64_t begin = n - window;
    int64_t since = 0; /* ids behind the newest breaker */
    int64_t longest[WORDS] = {0};
    while (since < window && !(d->n_breakers > 0 && ids[n - 1 - since] == d->breakers[0])) {
        ++since;
    }
    for (int64_t end = begin; end < n - 1; ++end) {
        int64_t m = 0;
        while (m < since && end - m >= begin && ids[end - m] == ids[n - 1 - m]) {
            ++m;
        }
        longest[ids[end + 1]] = m > longest[ids[end + 1]] ? m : longest[ids[end + 1]];
    }
    for (int w = 0; w < WORDS; ++w) {
        if (longest[w] >= d->allowed_length) {
            logits[w] -= d->multiplier * pow(d->base, (double)(longest[w] - d->allowed_length));
        }
    }
}

static void dry_is_its_definition(void **state)
{
    uint32_t ids[IDS];
    int32_t matches[IDS];
    float logits[WORDS];
    uint16_t seen[WORDS] = {0};
    uint64_t seed = 3;
    const uint32_t breaker = 0;
    int lowered = 0;
    dsi_draw_room room = {.logits = logits, .matches = matches, .seen = seen};
    (void)state;
    for (int round = 0; round < 3000; ++round) {
        const ds_dry given = {.multiplier = 0.8,
                              .base = 1.75,
                              .allowed_length = 1 + round % 4,
                              .last_n = round % 3 == 0 ? 20 : 0,
                              .breakers = &breaker,
                              .n_breakers = round % 2};
        const int64_t n = 1 + round % IDS;
        double want[WORDS] = {0};
        for (int i = 0; i < IDS; ++i) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            const bool again = i >= 8 && round % 5 < 3;
            ids[i] = again && (seed >> 40) % 8 != 0 ? ids[i - 7] : (uint32_t)((seed >> 33) % WORDS);
        }
        ds_dry *dry = dsi_dry_copy(&given);
        assert_non_null(dry);
        memset(logits, 0, sizeof logits);
        lower(&given, ids, n, want);
        dsi_dry(dry, ids, n, &room);
        for (int w = 0; w < WORDS; ++w) {
            const double most = fmax(-want[w] * 1e-6, 0.0);
            assert_true(fabs(logits[w] - fmax(want[w], -1e30)) <=
                        most + (want[w] < -1e30 ? 1e24 : 0));
            assert_int_equal(seen[w], 0);
            lowered += want[w] < 0.0;
        }
        free(dry);
    }
    assert_true(lowered > 1000);
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.level = DS_LOG_ERROR;
    params.n_threads = 1;
    return ds_ctx_create(&params, (ds_ctx **)state) < 0;
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refuses_what_is_not_finite), cmocka_unit_test(keeps_what_warpers_keep),
        cmocka_unit_test(mirostat_holds_surprise), cmocka_unit_test(refuses_what_goes_not_together),
        cmocka_unit_test(dry_is_its_definition)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
