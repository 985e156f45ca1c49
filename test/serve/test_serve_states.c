/* SPDX-License-Identifier: Apache-2.0 */
/* Serving a model whose layers carry a state: begins that go on from snapshots, how many of their
 * tokens are counted as cached, and guesses that go back; transformers' greedy tokens, and the same
 * bits whatever the sizes, drawn at random.
 * labels: slow */
#include "common/count_allocations.h"
#include "common/parity.h"
#include "common/serve_crowd.h"

#include <deepspeed/serve.h>
#include <stdlib.h>
#include <string.h>

enum { PROMPT = 150, NEW = 64 };

static ds_server *open_server(ds_ctx *ctx, const parity_case *p, const ds_serve_params *sizes,
                              ds_dtype dtype)
{
    ds_server *server = NULL;
    ds_serve_params params = *sizes;
    params.source.model = p->model;
    params.source.weights = p->folder;
    params.source.dtype = dtype;
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
    return server;
}

/* Texts of the prompts, at once; *cached of each, and its ids. */
static void ask(ds_ctx *ctx, ds_server *server, int n_texts, uint32_t (*prompts)[PROMPT],
                const ds_serve_bias *biases, int64_t *cached, uint32_t (*ids)[NEW])
{
    ds_serve_event events[CROWD_EVENTS];
    ds_serve_stats stats;
    uint64_t uids[8];
    int64_t at[8] = {0};
    size_t n = 0;
    for (int i = 0; i < n_texts; ++i) {
        const ds_serve_request r = {.ids = prompts[i],
                                    .n = PROMPT,
                                    .max_new_tokens = NEW,
                                    .bias = biases + (biases != NULL ? i : 0),
                                    .n_bias = biases != NULL};
        CHECK_OK(ctx, ds_serve_submit(server, &r, &uids[i]));
    }
    do {
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
        for (size_t e = 0; e < n; ++e) {
            const uint64_t who = events[e].uid - uids[0];
            ids[who][at[who]++] = events[e].id;
            cached[who] = events[e].n_cached;
        }
        ds_serve_get_stats(server, &stats);
    } while (stats.n_running + stats.n_waiting > 0);
    assert_int_equal(stats.n_free_blocks, stats.n_blocks);
}

static void fill(uint32_t *ids, int from, uint64_t seed, int64_t vocab)
{
    for (int i = from; i < PROMPT; ++i) {
        ids[i] = crowd_below(&seed, (uint32_t)vocab);
    }
}

/* Blocks are of 64: a prompt of 150 ids is kept behind 128, and where two part. */
static void begins_are_kept(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    uint32_t prompts[4][PROMPT];
    uint32_t own[4][NEW];
    uint32_t got[4][NEW];
    int64_t cached[4];
    ds_serve_stats stats;
    parity_open(ctx, "qwen3_next", &p);
    const ds_serve_params none = {
        .max_sequences = 1, .max_batch_tokens = 64, .no_prefix_cache = true};
    const ds_serve_params some = {
        .max_sequences = 4, .max_batch_tokens = 512, .state_snapshots = 16};
    fill(prompts[0], 0, 1, p.vocab);
    for (int i = 1; i < 4; ++i) { /* 100 ids of the first */
        memcpy(prompts[i], prompts[0], sizeof prompts[0]);
        fill(prompts[i], 100, (uint64_t)(9 + i), p.vocab);
    }
    ds_server *server = open_server(ctx, &p, &none, DS_DTYPE_F32);
    ask(ctx, server, 4, prompts, NULL, cached, own);
    assert_int_equal(cached[3], 0);
    ds_serve_destroy(&server);

    server = open_server(ctx, &p, &some, DS_DTYPE_F32);
    static const int64_t want[5] = {0, 0, 64, 64, 128};
    for (int i = 0; i < 5; ++i) { /* the second finds where they part, the next go on from there */
        ask(ctx, server, 1, prompts + i % 4, NULL, cached, got);
        assert_int_equal(cached[0], i == 4 ? 128 : want[i]);
        assert_memory_equal(got[0], own[i % 4], sizeof got[0]);
    }
    ds_serve_destroy(&server);

    /* four of one prompt at once: one computes it */
    uint32_t same[4][PROMPT];
    for (int i = 0; i < 4; ++i) {
        memcpy(same[i], prompts[2], sizeof same[0]);
    }
    server = open_server(ctx, &p, &some, DS_DTYPE_F32);
    ask(ctx, server, 4, same, NULL, cached, got);
    ds_serve_get_stats(server, &stats);
    for (int i = 0; i < 4; ++i) {
        assert_int_equal(cached[i], i == 0 ? 0 : 128);
        assert_memory_equal(got[i], own[2], sizeof got[0]);
    }
    assert_int_equal(stats.n_cached_tokens, 3 * 128);
    assert_int_equal(stats.n_tokens, PROMPT + 3 * (PROMPT - 128) + 4 * (NEW - 1));
    ds_serve_destroy(&server);

    /* with one snapshot the newest is there alone */
    ds_serve_params one = some;
    one.state_snapshots = 1;
    server = open_server(ctx, &p, &one, DS_DTYPE_F32);
    ask(ctx, server, 1, prompts, NULL, cached, got);
    ask(ctx, server, 1, prompts, NULL, cached, got);
    assert_memory_equal(got[0], own[0], sizeof got[0]);
    assert_int_equal(cached[0], 0); /* it made its text on to 192 */
    ds_serve_destroy(&server);
    parity_close(&p);
}

/* Guesses, right and wrong, and beside prompts: the texts without them. */
static void guesses_go_back(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    parity_case other;
    uint32_t prompts[4][PROMPT];
    uint32_t own[4][NEW];
    uint32_t got[4][NEW];
    int64_t cached[4];
    ds_serve_stats stats;
    parity_open(ctx, "qwen3_next", &p);
    parity_open(ctx, "llama3_tied", &other);
    ds_serve_bias biases[4]; /* texts that repeat an id more and more */
    for (int i = 0; i < 4; ++i) {
        biases[i] = (ds_serve_bias){5, (float)(i * i)};
        fill(prompts[i], 0, (uint64_t)i, i == 0 ? p.vocab : 3);
    }
    ds_serve_params sizes = {.max_sequences = 4, .max_batch_tokens = 512};
    ds_server *server = open_server(ctx, &p, &sizes, DS_DTYPE_F32);
    ask(ctx, server, 4, prompts, biases, cached, own);
    ds_serve_destroy(&server);
    const ds_generator_params draft = {
        .model = other.model, .weights = other.folder, .dtype = DS_DTYPE_F32};
    for (int64_t n = 1; n <= 16; n += 5) {
        for (int by_model = 0; by_model < 2; ++by_model) {
            sizes.max_draft = n;
            sizes.max_batch_tokens = n == 6 ? 7 : 100;
            sizes.draft = by_model ? &draft : NULL;
            server = open_server(ctx, &p, &sizes, DS_DTYPE_F32);
            ask(ctx, server, 4, prompts, biases, cached, got);
            ds_serve_get_stats(server, &stats);
            assert_memory_equal(got, own, sizeof got);
            assert_true(stats.n_drafted > stats.n_accepted);
            assert_true(by_model || stats.n_accepted > 10);
            ds_serve_destroy(&server);
        }
    }
    parity_close(&other);
    parity_close(&p);
}

static void greedy_like_transformers(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    uint32_t prompt[64];
    uint64_t uids[3];
    int64_t at[3] = {0};
    ds_serve_event events[CROWD_EVENTS];
    size_t n_events = 0;
    parity_open(ctx, "qwen3_next", &p);
    const json_t *want = json_object_get(p.scalars, "greedy");
    const json_t *start = json_object_get(p.scalars, "prompt");
    const size_t n = json_array_size(start);
    for (size_t i = 0; i < n; ++i) {
        prompt[i] = (uint32_t)json_integer_value(json_array_get(start, i));
    }
    const ds_serve_params sizes = {.max_sequences = 3, .max_batch_tokens = 19, .max_draft = 4};
    ds_server *server = open_server(ctx, &p, &sizes, DS_DTYPE_F32);
    for (int i = 0; i < 3; ++i) {
        const ds_serve_request r = {.ids = prompt, .n = n, .max_new_tokens = 64};
        CHECK_OK(ctx, ds_serve_submit(server, &r, &uids[i]));
    }
    do {
        CHECK_OK(ctx, ds_serve_step(server, events, &n_events));
        for (size_t e = 0; e < n_events; ++e) {
            const uint64_t who = events[e].uid - uids[0];
            assert_int_equal(events[e].id, json_integer_value(json_array_get(want, at[who]++)));
        }
    } while (at[0] < 64 || at[1] < 64 || at[2] < 64);
    ds_serve_destroy(&server);
    parity_close(&p);
}

/* ---- random servers ---- */
static way random_way(uint64_t *seed)
{
    static const int64_t tokens[] = {384, 512, 640, 1024};
    const int64_t sequences = 1 + crowd_below(seed, 12);
    const int64_t draft = crowd_below(seed, 3) == 0 ? 0 : 1 + crowd_below(seed, 8);
    way w = {.name = "random",
             .sizes = {.max_sequences = sequences,
                       .max_batch_tokens = 3 * sequences + 2 + crowd_below(seed, 200),
                       .kv_tokens = tokens[crowd_below(seed, 4)],
                       .kv_block = crowd_below(seed, 4) == 0 ? 128 : 64,
                       .max_draft = draft,
                       .prompt_rows = crowd_below(seed, 3) * 20,
                       .no_prefix_cache = crowd_below(seed, 5) == 0},
             .threads = 1 + crowd_below(seed, 3),
             .backwards = crowd_below(seed, 2) == 0,
             .cancels = crowd_below(seed, 2) == 0};
    w.sizes.state_snapshots = w.sizes.no_prefix_cache ? 0 : crowd_below(seed, 6);
    return w;
}

static void serve_all(const parity_case *p, const parity_case *other, way *w, ds_dtype dtype,
                      bool by_model, const asked *a, answer *got)
{
    ds_ctx *ctx = check_ctx(w->threads);
    const ds_generator_params draft = {
        .model = other->model, .weights = other->folder, .dtype = dtype};
    ds_serve_params sizes = w->sizes;
    sizes.source.max_length = 256;
    sizes.draft = by_model && sizes.max_draft > 0 ? &draft : NULL;
    ds_server *server = open_server(ctx, p, &sizes, dtype);
    crowd_serve(ctx, server, w, a, got);
    ds_serve_destroy(&server);
    ds_ctx_destroy(&ctx);
}

static void same_bits(void **state)
{
    const char *text = getenv("DS_STATES_SEED");
    const char *trials = getenv("DS_STATES_TRIALS");
    uint64_t seed = text != NULL ? strtoull(text, NULL, 10) : 1;
    const int n_trials = trials != NULL ? atoi(trials) : 3;
    parity_case p;
    parity_case other;
    asked *a = calloc(CROWD_REQUESTS, sizeof *a);
    answer *want = calloc(2 * CROWD_REQUESTS, sizeof *want);
    assert_non_null(a);
    assert_non_null(want);
    answer *got = want + CROWD_REQUESTS;
    parity_open(*state, "qwen3_next", &p);
    parity_open(*state, "llama3_tied", &other);
    for (int t = 0; t < n_trials; ++t) {
        const uint64_t begin = seed;
        const ds_dtype dtype = crowd_below(&seed, 2) == 0 ? DS_DTYPE_F32 : DS_DTYPE_BF16;
        way alone = {"alone",
                     {.max_sequences = 1, .max_batch_tokens = 512, .no_prefix_cache = true},
                     1,
                     0,
                     0};
        crowd_ask(a, crowd_below(&seed, 2) == 0 ? p.vocab : 4, seed);
        serve_all(&p, &other, &alone, dtype, false, a, want);
        for (int k = 0; k < 2; ++k) {
            way w = random_way(&seed);
            serve_all(&p, &other, &w, dtype, crowd_below(&seed, 2) == 0, a, got);
            for (int i = 0; i < CROWD_REQUESTS; ++i) {
                if (memcmp(&want[i], &got[i], sizeof *want) != 0) {
                    fail_msg("seed %llu, way %d: request %d differs", (unsigned long long)begin, k,
                             i);
                }
            }
        }
    }
    free(a);
    free(want);
    parity_close(&other);
    parity_close(&p);
}

/* LAW 6, with guesses, snapshots and preemption. */
static void steps_allocate_nothing(void **state)
{
#if CAN_COUNT_ALLOCATIONS
    parity_case p;
    ds_ctx *ctx = check_ctx(2);
    ds_serve_event events[CROWD_EVENTS];
    ds_serve_stats stats;
    size_t n = 0;
    (void)state;
    parity_open(ctx, "qwen3_next", &p);
    asked *a = calloc(CROWD_REQUESTS, sizeof *a);
    assert_non_null(a);
    crowd_ask(a, p.vocab, 3);
    const ds_serve_params sizes = {.max_sequences = 6,
                                   .max_batch_tokens = 64,
                                   .kv_tokens = 256,
                                   .max_draft = 3,
                                   .state_snapshots = 3};
    ds_server *server = open_server(ctx, &p, &sizes, DS_DTYPE_BF16);
    for (int k = 0; k < CROWD_REQUESTS; ++k) {
        uint64_t uid = 0;
        CHECK_OK(ctx, ds_serve_submit(server, &a[k].request, &uid));
    }
    do {
        count_begin();
        const ds_status status = ds_serve_step(server, events, &n);
        const unsigned calls = count_end();
        CHECK_OK(ctx, status);
        assert_int_equal(calls, 0);
        ds_serve_get_stats(server, &stats);
    } while (stats.n_running + stats.n_waiting > 0);
    assert_true(stats.n_preemptions > 0 && stats.n_cached_tokens > 0 && stats.n_drafted > 0);
    ds_serve_destroy(&server);
    free(a);
    parity_close(&p);
    ds_ctx_destroy(&ctx);
#else
    (void)state;
    skip(); /* another libc than glibc, and no sanitizer */
#endif
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_like_transformers), cmocka_unit_test(begins_are_kept),
        cmocka_unit_test(guesses_go_back), cmocka_unit_test(same_bits),
        cmocka_unit_test(steps_allocate_nothing)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
