/* SPDX-License-Identifier: Apache-2.0 */
/* Serving models whose rotary frequencies grow with the sequence (dynamic NTK): transformers'
 * greedy tokens of prompts within and beyond the original length, on one rank and more; the same
 * bits alone and in a crowd; keys are found again by prompts alone that they are right for; put is
 * refused nothing and cuts as it is called.
 *
 * labels: threads slow */
#include "common/parity.h"
#include "common/rank_threads.h"
#include "common/serve_crowd.h"

#include <deepspeed/serve.h>
#include <stdlib.h>
#include <string.h>

enum { GREEDY = 64, MOST_PROMPT = 64, PATH = 512, CASES = 12 };

#define FOLDER "/test/golden/serve/dynamic/"

/* A config of serve/dynamic/ with the weights of parity/. */
typedef struct tiny {
    ds_model *model;
    char weights[PATH];
} tiny;

static void open_tiny(ds_ctx *ctx, const char *config, const char *weights, tiny *t)
{
    char path[PATH];
    (void)snprintf(path, sizeof path, "%s%s%s/config.json", DS_SOURCE_DIR, FOLDER, config);
    (void)snprintf(t->weights, sizeof t->weights, "%s/test/golden/parity/%s", DS_SOURCE_DIR,
                   weights);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &t->model));
}

static ds_serve_params params_of(const tiny *t, const ds_serve_params *sizes, ds_dtype dtype)
{
    ds_serve_params params = *sizes;
    params.source.model = t->model;
    params.source.weights = t->weights;
    params.source.dtype = dtype;
    return params;
}

static ds_server *open_server(ds_ctx *ctx, const tiny *t, const ds_serve_params *sizes)
{
    ds_server *server = NULL;
    const ds_serve_params params = params_of(t, sizes, DS_DTYPE_F32);
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
    return server;
}

/* ---- against transformers ---- */

/* Both configs' prompts at once, all of one model in one server. */
static void ask_all(ds_ctx *ctx, ds_server *server, const json_t *cases, const char *config)
{
    uint64_t uids[CASES] = {0};
    const json_t *want[CASES] = {NULL};
    int64_t at[CASES] = {0};
    int64_t left = 0;
    ds_serve_event events[CROWD_EVENTS];
    size_t n_events = 0;
    for (size_t i = 0; i < json_array_size(cases); ++i) {
        const json_t *one = json_array_get(cases, i);
        const json_t *start = json_object_get(one, "prompt");
        uint32_t prompt[MOST_PROMPT];
        const size_t n = json_array_size(start);
        if (strcmp(json_string_value(json_object_get(one, "config")), config) != 0) {
            continue;
        }
        assert_true(i < CASES && n <= MOST_PROMPT);
        for (size_t k = 0; k < n; ++k) {
            prompt[k] = (uint32_t)json_integer_value(json_array_get(start, k));
        }
        const ds_serve_request r = {.ids = prompt, .n = n, .max_new_tokens = GREEDY};
        CHECK_OK(ctx, ds_serve_submit(server, &r, &uids[i]));
        want[i] = json_object_get(one, "greedy");
        left += GREEDY;
    }
    assert_true(left == 6 * GREEDY);
    while (left > 0) {
        CHECK_OK(ctx, ds_serve_step(server, events, &n_events));
        for (size_t e = 0; e < n_events; ++e) {
            size_t i = 0;
            while (uids[i] != events[e].uid) {
                assert_true(++i < CASES);
            }
            if (events[e].id != json_integer_value(json_array_get(want[i], (size_t)at[i]))) {
                fail_msg("%s, case %zu: id %lld of the text is %u", config, i, (long long)at[i],
                         events[e].id);
            }
            at[i] += 1;
            left -= 1;
        }
    }
}

static const ds_serve_params ways[] = {
    {.max_sequences = 6, .max_batch_tokens = 7},
    {.max_sequences = 3, .max_batch_tokens = 512},
    {.max_sequences = 6, .max_batch_tokens = 64, .kv_tokens = 256, .max_draft = 4},
};

static const char *const models[][2] = {{"llama", "rope_dynamic"}, {"gpt_neox", "gpt_neox"}};

static json_t *read_cases(void)
{
    json_t *cases = json_load_file(DS_SOURCE_DIR FOLDER "greedy.json", 0, NULL);
    assert_non_null(cases);
    assert_int_equal(json_array_size(cases), CASES);
    return cases;
}

static void greedy_like_transformers(void **state)
{
    json_t *cases = read_cases();
    for (size_t m = 0; m < 2; ++m) {
        tiny t;
        open_tiny(*state, models[m][0], models[m][1], &t);
        for (size_t w = 0; w < sizeof ways / sizeof *ways; ++w) {
            ds_server *server = open_server(*state, &t, &ways[w]);
            ask_all(*state, server, cases, models[m][0]);
            ask_all(*state, server, cases, models[m][0]); /* now with keys that are there */
            ds_serve_destroy(&server);
        }
        ds_model_destroy(&t.model);
    }
    json_decref(cases);
}

static ds_status run_rank(dsi_comm *comm, void *arg)
{
    const size_t m = *(const size_t *)arg;
    ds_server *server = NULL;
    tiny t;
    open_tiny(comm->ctx, models[m][0], models[m][1], &t);
    ds_serve_params params = params_of(&t, &ways[0], DS_DTYPE_F32);
    params.source.comm = comm;
    ds_status status = ds_serve_create(comm->ctx, &params, &server);
    if (status >= 0 && comm->rank > 0) {
        status = ds_serve_follow(server);
    } else if (status >= 0) {
        json_t *cases = read_cases();
        ask_all(comm->ctx, server, cases, models[m][0]);
        json_decref(cases);
    }
    ds_serve_destroy(&server);
    ds_model_destroy(&t.model);
    return status;
}

static void greedy_over_ranks(void **state)
{
    (void)state;
    for (size_t m = 0; m < 2; ++m) {
        rank_results results;
        if (rank_threads_run(2, NULL, run_rank, &m, &results) < 0) {
            fail_msg("%s: %s %s", models[m][0], results.message[0], results.message[1]);
        }
    }
}

/* ---- bit identity ---- */
static void same_bits(void **state)
{
    static const way sizes[] = {
        {"alone", {.max_sequences = 1, .max_batch_tokens = 512, .no_prefix_cache = true}, 1, 0, 0},
        {"16 together", {.max_sequences = 16, .max_batch_tokens = 512}, 2, 0, 0},
        {"budget 16", {.max_sequences = 5, .max_batch_tokens = 16}, 1, 1, 0},
        {"preemption, cancelled",
         {.max_sequences = 16, .max_batch_tokens = 64, .kv_tokens = 256},
         1,
         0,
         1},
        {"drafts", {.max_sequences = 6, .max_batch_tokens = 200, .max_draft = 5}, 1, 0, 0},
        {"draft model, preemption",
         {.max_sequences = 9, .max_batch_tokens = 40, .kv_tokens = 256, .max_draft = 3},
         1,
         1,
         0},
    };
    tiny t;
    asked *a = calloc(CROWD_REQUESTS, sizeof *a);
    answer *want = calloc(2 * CROWD_REQUESTS, sizeof *want);
    assert_non_null(a);
    assert_non_null(want);
    open_tiny(*state, "crowd", "rope_dynamic", &t);
    crowd_ask(a, ds_model_get_info(t.model)->vocab_size, 7);
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; ++i) {
        answer *got = want + (i == 0 ? 0 : CROWD_REQUESTS);
        ds_ctx *ctx = check_ctx(sizes[i].threads);
        ds_serve_params params = params_of(&t, &sizes[i].sizes, DS_DTYPE_BF16);
        const ds_generator_params draft = {
            .model = t.model, .weights = t.weights, .dtype = DS_DTYPE_F32};
        params.source.max_length = 256;
        params.draft = strncmp(sizes[i].name, "draft model", 11) == 0 ? &draft : NULL;
        ds_server *server = NULL;
        CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
        crowd_serve(ctx, server, &sizes[i], a, got);
        ds_serve_destroy(&server);
        ds_ctx_destroy(&ctx);
        for (int k = 0; k < CROWD_REQUESTS; ++k) {
            if (memcmp(&want[k], &got[k], sizeof *want) != 0) {
                fail_msg("request %d differs between \"alone\" and \"%s\"", k, sizes[i].name);
            }
        }
    }
    free(a);
    free(want);
    ds_model_destroy(&t.model);
}

/* ---- keys that are there ---- */

static int64_t cached_of(ds_ctx *ctx, ds_server *server, const uint32_t *ids, size_t n)
{
    ds_serve_event events[CROWD_EVENTS];
    uint64_t uid = 0;
    size_t n_events = 0;
    const ds_serve_request r = {.ids = ids, .n = n, .max_new_tokens = 1};
    CHECK_OK(ctx, ds_serve_submit(server, &r, &uid));
    while (n_events == 0) {
        CHECK_OK(ctx, ds_serve_step(server, events, &n_events));
    }
    return events[0].n_cached;
}

static void keys_by_length(void **state)
{
    enum { N = 200, BLOCK = 64 };
    tiny t;
    uint32_t ids[N];
    uint64_t seed = 9;
    const float *logits = NULL;
    open_tiny(*state, "crowd", "rope_dynamic", &t);
    for (int i = 0; i < N; ++i) {
        ids[i] = crowd_below(&seed, (uint32_t)ds_model_get_info(t.model)->vocab_size);
    }
    ds_server *server =
        open_server(*state, &t, &(ds_serve_params){.max_sequences = 2, .max_batch_tokens = 256});
    /* the original length is 100 */
    CHECK_OK(*state, ds_serve_put(server, 1, (uint64_t[]){1}, ids, (size_t[]){N}, &logits));
    CHECK_OK(*state, ds_serve_flush(server, 1));
    assert_int_equal(cached_of(*state, server, ids, 70), 0); /* what put made is nobody's */
    assert_int_equal(cached_of(*state, server, ids, 100), BLOCK);
    assert_int_equal(cached_of(*state, server, ids, 101), 0);
    assert_int_equal(cached_of(*state, server, ids, 101), BLOCK);
    assert_int_equal(cached_of(*state, server, ids, 150), 0);
    assert_int_equal(cached_of(*state, server, ids, 150), 2 * BLOCK);
    assert_int_equal(cached_of(*state, server, ids, 80), BLOCK);
    ds_serve_destroy(&server);
    ds_model_destroy(&t.model);
}

/* What put brings at a time is a prompt: of one piece, and then id by id, a generator's. */
static void put_like_a_generator(void **state)
{
    enum { N = 120, MORE = 8 };
    tiny t;
    uint32_t ids[N];
    uint64_t seed = 5;
    const float *logits = NULL;
    int64_t vocab = 0;
    ds_generator *generator = NULL;
    open_tiny(*state, "crowd", "rope_dynamic", &t);
    for (int i = 0; i < N; ++i) {
        ids[i] = crowd_below(&seed, (uint32_t)ds_model_get_info(t.model)->vocab_size);
    }
    const ds_generator_params params = {
        .model = t.model, .weights = t.weights, .dtype = DS_DTYPE_F32};
    CHECK_OK(*state, ds_generator_create(*state, &params, &generator));
    ds_server *server =
        open_server(*state, &t, &(ds_serve_params){.max_sequences = 2, .max_batch_tokens = 128});
    CHECK_OK(*state, ds_generator_prompt(generator, ids, N));
    CHECK_OK(*state, ds_serve_put(server, 1, (uint64_t[]){3}, ids, (size_t[]){N}, &logits));
    assert_memory_equal(logits, ds_generator_logits(generator, &vocab),
                        (size_t)vocab * sizeof *logits);
    for (int i = 0; i < MORE; ++i) {
        const ds_sampling greedy = {.top_p = 1.0};
        uint32_t id = 0;
        CHECK_OK(*state, ds_generator_next(generator, &greedy, &id));
        CHECK_OK(*state, ds_serve_put(server, 1, (uint64_t[]){3}, &id, (size_t[]){1}, &logits));
        assert_memory_equal(logits, ds_generator_logits(generator, &vocab),
                            (size_t)vocab * sizeof *logits);
    }
    ds_serve_destroy(&server);
    ds_generator_destroy(&generator);
    ds_model_destroy(&t.model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_like_transformers), cmocka_unit_test(greedy_over_ranks),
        cmocka_unit_test(same_bits), cmocka_unit_test(keys_by_length),
        cmocka_unit_test(put_like_a_generator)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
