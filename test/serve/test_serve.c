/* SPDX-License-Identifier: Apache-2.0 */
/* Serving: transformers' greedy tokens in any crowd; the same bits alone and in a crowd, whatever
 * the sizes, threads, prefix cache, preemption and order; blocks come back.
 *
 * labels: threads slow */
#include "common/count_allocations.h"
#include "common/parity.h"
#include "common/serve_crowd.h"

#include <deepspeed/serve.h>
#include <stdlib.h>
#include <string.h>

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

/* ---- against transformers ---- */
static void greedy_of(ds_ctx *ctx, const char *name)
{
    parity_case p;
    uint32_t prompt[64];
    uint64_t uids[3];
    int64_t at[3] = {0};
    ds_serve_event events[CROWD_EVENTS];
    size_t n_events = 0;
    parity_open(ctx, name, &p);
    const json_t *want = json_object_get(p.scalars, "greedy");
    const json_t *start = json_object_get(p.scalars, "prompt");
    const size_t n = json_array_size(start);
    for (size_t i = 0; i < n; ++i) {
        prompt[i] = (uint32_t)json_integer_value(json_array_get(start, i));
    }
    ds_server *server = open_server(
        ctx, &p, &(ds_serve_params){.max_sequences = 3, .max_batch_tokens = 7}, DS_DTYPE_F32);
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

static void greedy_like_transformers(void **state)
{
    static const char *const names[] = {"gpt2",
                                        "llama3_tied",
                                        "mixtral",
                                        "qwen3_moe",
                                        "stablelm",
                                        "gpt_neox",
                                        "phi3",
                                        "glm4",
                                        "cohere",
                                        "gemma2",
                                        "bloom",
                                        "mpt",
                                        "gpt_oss",
                                        "falcon_rw",
                                        "deepseek_v2",
                                        "deepseek_v3",
                                        "deepseek_v3_halves",
                                        "qwen3_next"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        greedy_of(*state, names[i]);
    }
}

/* ---- bit identity ---- */
static void serve_all(const parity_case *p, const way *w, ds_dtype dtype, ds_dtype blocks,
                      ds_dtype cells, const asked *a, answer *got)
{
    ds_ctx *ctx = check_ctx(w->threads);
    ds_serve_params sizes = w->sizes;
    sizes.source.quantize = blocks;
    sizes.kv_type = cells;
    sizes.source.max_length = 256;
    parity_case other;
    parity_open(ctx, "llama3_tied", &other);
    const parity_case *by = ds_model_get_info(p->model)->carries ? &other : p; /* mostly wrong */
    const ds_generator_params draft = {.model = by->model, .weights = by->folder, .dtype = dtype};
    const bool by_model = strncmp(w->name, "draft model", 11) == 0;
    sizes.draft = by_model ? &draft : NULL; /* the model itself, rounded: mostly right */
    ds_server *server = open_server(ctx, p, &sizes, dtype);
    crowd_serve(ctx, server, w, a, got);
    ds_serve_destroy(&server);
    parity_close(&other);
    ds_ctx_destroy(&ctx);
}

static void same_bits_in(ds_ctx *ctx, const char *name, ds_dtype dtype, ds_dtype blocks,
                         ds_dtype cells)
{
    static const way ways[] = {
        {"alone", {.max_sequences = 1, .max_batch_tokens = 512, .no_prefix_cache = true}, 1, 0, 0},
        {"budget 16", {.max_sequences = 1, .max_batch_tokens = 16}, 1, 0, 0},
        {"16 together", {.max_sequences = 16, .max_batch_tokens = 512}, 3, 0, 0},
        {"odd sizes",
         {.max_sequences = 5, .max_batch_tokens = 37, .no_prefix_cache = true},
         2,
         1,
         0},
        {"preemption", {.max_sequences = 16, .max_batch_tokens = 64, .kv_tokens = 256}, 2, 1, 0},
        {"larger blocks", {.max_sequences = 7, .max_batch_tokens = 2048, .kv_block = 128}, 1, 1, 0},
        {"rows of prompts",
         {.max_sequences = 5, .max_batch_tokens = 90, .kv_block = 128, .prompt_rows = 40},
         1,
         0,
         0},
        {"cancelled", {.max_sequences = 8, .max_batch_tokens = 100}, 2, 0, 1},
        {"drafts", {.max_sequences = 6, .max_batch_tokens = 200, .max_draft = 5}, 2, 0, 0},
        {"drafts alone", {.max_sequences = 1, .max_batch_tokens = 16, .max_draft = 15}, 1, 0, 0},
        {"drafts, preemption",
         {.max_sequences = 16, .max_batch_tokens = 64, .kv_tokens = 256, .max_draft = 3},
         2,
         1,
         1},
        {"draft model", {.max_sequences = 6, .max_batch_tokens = 200, .max_draft = 4}, 2, 0, 1},
        {"draft model, preemption",
         {.max_sequences = 9, .max_batch_tokens = 40, .kv_tokens = 256, .max_draft = 3},
         1,
         1,
         0},
    };
    parity_case p;
    parity_open(ctx, name, &p);
    const bool carries = ds_model_get_info(p.model)->carries;
    asked *a = calloc(CROWD_REQUESTS, sizeof *a);
    answer *want = calloc(2 * CROWD_REQUESTS, sizeof *want);
    assert_non_null(a);
    assert_non_null(want);
    answer *got = want + CROWD_REQUESTS;
    crowd_ask(a, p.vocab, 7);
    serve_all(&p, &ways[0], dtype, blocks, cells, a, want);
    for (size_t i = 1; i < sizeof ways / sizeof *ways; ++i) {
        if (!check_long_row(i)) {
            continue;
        }
        way w = ways[i];
        w.sizes.state_snapshots = carries && !w.sizes.no_prefix_cache ? (int64_t)i % 3 * 2 : 0;
        serve_all(&p, &w, dtype, blocks, cells, a, got);
        for (int k = 0; k < CROWD_REQUESTS; ++k) {
            if (memcmp(&want[k], &got[k], sizeof *want) != 0) {
                fail_msg("%s in %s, cells %s: request %d differs between \"alone\" and \"%s\"",
                         name, ds_dtype_name(dtype), ds_dtype_name(cells), k, ways[i].name);
            }
        }
    }
    free(a);
    free(want);
    parity_close(&p);
}

static void same_bits_of(ds_ctx *ctx, const char *name, ds_dtype dtype, ds_dtype blocks)
{
    same_bits_in(ctx, name, dtype, blocks, DS_DTYPE_NONE);
}

static void same_bits_of_cells(void **state)
{
    same_bits_in(*state, "llama3_tied", DS_DTYPE_F32, DS_DTYPE_NONE, DS_DTYPE_I8);
    same_bits_in(*state, "llama3_tied", DS_DTYPE_F32, DS_DTYPE_NONE, DS_DTYPE_F16);
    same_bits_in(*state, "gemma2", DS_DTYPE_BF16, DS_DTYPE_NONE, DS_DTYPE_I8);
    same_bits_in(*state, "gpt_oss", DS_DTYPE_BF16, DS_DTYPE_NONE, DS_DTYPE_F32);
    same_bits_in(*state, "mistral", DS_DTYPE_BF16, DS_DTYPE_Q4_0, DS_DTYPE_I8);
    same_bits_in(*state, "deepseek_v2", DS_DTYPE_BF16, DS_DTYPE_Q8_0, DS_DTYPE_I8);
}

static void same_bits(void **state)
{
    same_bits_of(*state, "llama3_tied", DS_DTYPE_F32, DS_DTYPE_NONE);
    same_bits_of(*state, "llama3_tied", DS_DTYPE_BF16, DS_DTYPE_NONE);
    same_bits_of(*state, "phi3_heads", DS_DTYPE_F16, DS_DTYPE_NONE);
    same_bits_of(*state, "qwen3_moe", DS_DTYPE_BF16, DS_DTYPE_NONE);
    same_bits_of(*state, "gemma2", DS_DTYPE_BF16, DS_DTYPE_NONE);
    same_bits_of(*state, "bloom", DS_DTYPE_BF16, DS_DTYPE_NONE);
    same_bits_of(*state, "falcon_rw", DS_DTYPE_BF16, DS_DTYPE_NONE);
    same_bits_of(*state, "gpt_oss", DS_DTYPE_F32, DS_DTYPE_NONE);
    same_bits_of(*state, "deepseek_v3", DS_DTYPE_F32, DS_DTYPE_NONE);
    same_bits_of(*state, "deepseek_v3", DS_DTYPE_BF16, DS_DTYPE_NONE);
    same_bits_of(*state, "qwen3_next", DS_DTYPE_F32, DS_DTYPE_NONE);
    same_bits_of(*state, "qwen3_next", DS_DTYPE_BF16, DS_DTYPE_NONE);
    same_bits_of(*state, "mistral", DS_DTYPE_BF16, DS_DTYPE_Q8_0);
    same_bits_of(*state, "mistral", DS_DTYPE_F32, DS_DTYPE_Q4_0);
    same_bits_of(*state, "mistral", DS_DTYPE_BF16, DS_DTYPE_Q5_1);
    same_bits_of(*state, "llama3_tied", DS_DTYPE_BF16, DS_DTYPE_Q4_K); /* q5_0: rows are short */
}

/* A model that is its own drafter is always right where nothing is drawn at random. */
static void drafter_is_right(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    uint64_t uids[2];
    const uint32_t ids[3] = {3, 5, 7};
    ds_serve_event events[CROWD_EVENTS];
    ds_serve_stats stats;
    size_t n = 0;
    parity_open(ctx, "llama3_tied", &p);
    const ds_generator_params draft = {
        .model = p.model, .weights = p.folder, .dtype = DS_DTYPE_F32};
    const ds_serve_params sizes = {
        .max_sequences = 2, .max_batch_tokens = 64, .max_draft = 4, .draft = &draft};
    ds_server *server = open_server(ctx, &p, &sizes, DS_DTYPE_F32);
    for (int i = 0; i < 2; ++i) {
        const ds_serve_request r = {.ids = ids, .n = (size_t)(2 + i), .max_new_tokens = 101};
        CHECK_OK(ctx, ds_serve_submit(server, &r, &uids[i]));
    }
    do {
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
        ds_serve_get_stats(server, &stats);
    } while (stats.n_running > 0);
    assert_int_equal(stats.n_new_tokens, 202);
    assert_int_equal(stats.n_accepted, stats.n_drafted);
    assert_int_equal(stats.n_accepted, 160); /* four of five */
    assert_int_equal(stats.n_steps, 21);
    ds_serve_destroy(&server);
    parity_close(&p);
}

/* ---- put, query, flush ---- */
static void put_like_a_generator(void **state)
{
    ds_ctx *ctx = *state;
    enum { N = 100 };
    parity_case p;
    uint32_t ids[N];
    uint64_t seed = 5;
    const float *logits = NULL;
    int64_t vocab = 0;
    int64_t n_tokens = 0;
    int64_t n_blocks = 0;
    ds_generator *generator = NULL;
    parity_open(ctx, "llama3_tied", &p);
    ds_server *server = open_server(
        ctx, &p, &(ds_serve_params){.max_sequences = 2, .max_batch_tokens = 128, .kv_tokens = 256},
        DS_DTYPE_F32);
    const ds_generator_params params = {
        .model = p.model, .weights = p.folder, .dtype = DS_DTYPE_F32};
    CHECK_OK(ctx, ds_generator_create(ctx, &params, &generator));
    for (int i = 0; i < N; ++i) {
        ids[i] = crowd_below(&seed, (uint32_t)p.vocab);
    }
    CHECK_OK(ctx, ds_generator_prompt(generator, ids, N));
    const float *want = ds_generator_logits(generator, &vocab);
    CHECK_OK(ctx, ds_serve_put(server, 2, (uint64_t[]){9, 4}, ids, (size_t[]){40, 30}, &logits));
    /* 9 has ids 0..39 and 4 ids 40..69; 9 goes on to 99 */
    CHECK_OK(ctx, ds_serve_put(server, 1, (uint64_t[]){9}, ids + 40, (size_t[]){60}, &logits));
    assert_memory_equal(logits, want, (size_t)vocab * sizeof *want);
    CHECK_OK(ctx, ds_generator_prompt(generator, ids + 40, 31));
    want = ds_generator_logits(generator, &vocab);
    CHECK_OK(ctx, ds_serve_put(server, 2, (uint64_t[]){9, 4}, (uint32_t[]){3, ids[70]},
                               (size_t[]){1, 1}, &logits));
    assert_memory_equal(logits + vocab, want, (size_t)vocab * sizeof *want);

    ds_serve_query(server, 9, 1000, 100, &n_tokens, &n_blocks);
    assert_int_equal(n_tokens, 256 - N - 1);
    assert_int_equal(n_blocks, 2);
    ds_serve_query(server, 9, 1000, 1, &n_tokens, &n_blocks);
    assert_int_equal(n_tokens, 3 * 64 - N - 1);
    assert_int_equal(n_blocks, 1);
    ds_serve_query(server, 77, 10, 0, &n_tokens, &n_blocks);
    assert_int_equal(n_tokens, 0);
    CHECK_FAILS(ctx, ds_serve_put(server, 1, (uint64_t[]){7}, ids, (size_t[]){N}, &logits),
                DS_ERR_LIMIT, "2 blocks");
    CHECK_FAILS(ctx, ds_serve_put(server, 2, (uint64_t[]){9, 9}, ids, (size_t[]){1, 1}, &logits),
                DS_ERR_ARG, "twice");
    CHECK_OK(ctx, ds_serve_flush(server, 4));
    CHECK_FAILS(ctx, ds_serve_flush(server, 4), DS_ERR_NOT_FOUND, "sequence 4");
    CHECK_OK(ctx, ds_serve_put(server, 1, (uint64_t[]){7}, ids, (size_t[]){N}, &logits));
    ds_serve_destroy(&server);
    ds_generator_destroy(&generator);
    parity_close(&p);
}

/* Sequences whose layers carry a state, in pieces and beside others: the logits of a generator. */
static void states_like_a_generator(ds_ctx *ctx, ds_dtype dtype)
{
    enum { N = 100 };
    parity_case p;
    uint32_t ids[N];
    uint64_t seed = 5;
    const float *logits = NULL;
    int64_t vocab = 0;
    int64_t n_tokens = 0;
    int64_t n_blocks = 0;
    ds_generator *generator = NULL;
    parity_open(ctx, "qwen3_next", &p);
    const ds_serve_params sizes = {.max_sequences = 2, .max_batch_tokens = 128};
    ds_server *server = open_server(ctx, &p, &sizes, dtype);
    const ds_generator_params params = {.model = p.model, .weights = p.folder, .dtype = dtype};
    CHECK_OK(ctx, ds_generator_create(ctx, &params, &generator));
    for (int i = 0; i < N; ++i) {
        ids[i] = crowd_below(&seed, (uint32_t)p.vocab);
    }
    /* 9 has ids 0..39, then to 99; 4 has ids 40..69, then 70 */
    CHECK_OK(ctx, ds_serve_put(server, 2, (uint64_t[]){9, 4}, ids, (size_t[]){40, 30}, &logits));
    CHECK_OK(ctx, ds_serve_put(server, 1, (uint64_t[]){9}, ids + 40, (size_t[]){60}, &logits));
    CHECK_OK(ctx, ds_generator_prompt(generator, ids, N));
    const float *want = ds_generator_logits(generator, &vocab);
    assert_memory_equal(logits, want, (size_t)vocab * sizeof *want);
    CHECK_OK(ctx, ds_generator_prompt(generator, ids + 40, 31));
    want = ds_generator_logits(generator, &vocab);
    CHECK_OK(ctx, ds_serve_put(server, 2, (uint64_t[]){4, 9}, (uint32_t[]){ids[70], 3},
                               (size_t[]){1, 1}, &logits));
    assert_memory_equal(logits, want, (size_t)vocab * sizeof *want);
    /* one more has no state until one is flushed, and then it begins at zeros */
    ds_serve_query(server, 7, 10, 10, &n_tokens, &n_blocks);
    assert_int_equal(n_tokens, 0);
    CHECK_FAILS(ctx, ds_serve_put(server, 1, (uint64_t[]){7}, ids, (size_t[]){9}, &logits),
                DS_ERR_LIMIT, "of the 2 states of the model's layers (max_sequences) 0 are free");
    CHECK_OK(ctx, ds_serve_flush(server, 9));
    CHECK_OK(ctx, ds_serve_put(server, 1, (uint64_t[]){7}, ids, (size_t[]){9}, &logits));
    CHECK_OK(ctx, ds_generator_prompt(generator, ids, 9));
    want = ds_generator_logits(generator, &vocab);
    assert_memory_equal(logits, want, (size_t)vocab * sizeof *want);
    ds_serve_destroy(&server);
    ds_generator_destroy(&generator);
    parity_close(&p);
}

static void put_states(void **state)
{
    states_like_a_generator(*state, DS_DTYPE_F32);
    states_like_a_generator(*state, DS_DTYPE_F16);
}

/* Documents take states from the same rows as texts: their vectors alone and beside both. */
static void vectors_in(ds_ctx *ctx, const parity_case *p, const ds_serve_params *sizes,
                       float (*vectors)[32])
{
    enum { DOCUMENTS = 3, MOST = 70 };
    static const size_t lengths[DOCUMENTS] = {20, MOST, 33};
    ds_serve_event events[CROWD_EVENTS];
    uint64_t seed = 3;
    uint64_t uids[DOCUMENTS];
    uint64_t stray = 0;
    uint32_t ids[MOST];
    int left = DOCUMENTS;
    size_t n = 0;
    ds_server *server = open_server(ctx, p, sizes, DS_DTYPE_F32);
    for (int i = 0; i < DOCUMENTS; ++i) {
        for (size_t k = 0; k < MOST; ++k) {
            ids[k] = crowd_below(&seed, (uint32_t)p->vocab);
        }
        const ds_serve_request text = {.ids = ids, .n = 9, .max_new_tokens = 20};
        CHECK_OK(ctx, ds_serve_submit(server, &text, &stray));
        CHECK_OK(ctx, ds_serve_embed(server, ids, lengths[i], i == 1 ? DS_POOL_MEAN : DS_POOL_LAST,
                                     0, &uids[i]));
    }
    for (int step = 0; step < 500 && left > 0; ++step) {
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
        for (size_t e = 0; e < n; ++e) {
            for (int i = 0; i < DOCUMENTS && events[e].finish == DS_SERVE_VECTOR; ++i) {
                if (events[e].uid == uids[i]) {
                    memcpy(vectors[i], events[e].vector, sizeof vectors[i]);
                    --left;
                }
            }
        }
    }
    assert_int_equal(left, 0);
    ds_serve_destroy(&server);
}

static void vectors_have_states(void **state)
{
    parity_case p;
    float alone[3][32];
    float crowd[3][32];
    parity_open(*state, "qwen3_next", &p);
    vectors_in(*state, &p,
               &(ds_serve_params){.max_sequences = 1, .max_batch_tokens = 128, .embeddings = true},
               alone);
    vectors_in(*state, &p,
               &(ds_serve_params){.max_sequences = 4, .max_batch_tokens = 11, .embeddings = true},
               crowd);
    assert_memory_equal(alone, crowd, sizeof alone);
    parity_close(&p);
}

/* LAW 6: no step allocates, the first included, whatever happens in it. */
static void steps_allocate_nothing(void **state)
{
#if CAN_COUNT_ALLOCATIONS
    parity_case p;
    ds_ctx *ctx = check_ctx(2);
    ds_serve_event events[CROWD_EVENTS];
    ds_serve_stats stats;
    size_t n = 0;
    (void)state;
    parity_open(ctx, "llama3_tied", &p);
    asked *a = calloc(CROWD_REQUESTS, sizeof *a);
    assert_non_null(a);
    crowd_ask(a, p.vocab, 3);
    const ds_generator_params draft = {
        .model = p.model, .weights = p.folder, .dtype = DS_DTYPE_F32};
    const ds_serve_params sizes = {.max_sequences = 6,
                                   .max_batch_tokens = 64,
                                   .kv_tokens = 256,
                                   .max_draft = 3,
                                   .draft = &draft};
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
        if (calls != 0) {
            fail_msg("a step made %u allocating calls, the first from %p", calls,
                     atomic_load(&first_caller));
        }
        ds_serve_get_stats(server, &stats);
    } while (stats.n_running + stats.n_waiting > 0);
    assert_true(stats.n_preemptions > 0 && stats.n_cached_tokens > 0);
    ds_serve_destroy(&server);
    free(a);
    parity_close(&p);
    ds_ctx_destroy(&ctx);
#else
    (void)state;
    skip(); /* another libc than glibc, and no sanitizer */
#endif
}

static void refuses(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    uint64_t uid = 0;
    ds_server *server = NULL;
    uint32_t ids[3] = {1, 2, 3};
    parity_open(ctx, "qwen3_next", &p);
    ds_serve_params params = {
        .source = {.model = p.model, .weights = p.folder, .dtype = DS_DTYPE_F32}};
    const ds_generator_params draft = params.source;
    params.max_draft = 2;
    params.state_snapshots = 3;
    params.no_prefix_cache = true;
    CHECK_FAILS(ctx, ds_serve_create(ctx, &params, &server), DS_ERR_ARG,
                "state_snapshots is 3, but with no_prefix_cache no state is kept");
    params.no_prefix_cache = false;
    params.state_snapshots = -1;
    CHECK_FAILS(ctx, ds_serve_create(ctx, &params, &server), DS_ERR_ARG, "state_snapshots is -1");
    params.state_snapshots = 3;
    parity_case other;
    parity_open(ctx, "llama3_tied", &other);
    params.source.model = other.model;
    params.source.weights = other.folder;
    CHECK_FAILS(ctx, ds_serve_create(ctx, &params, &server), DS_ERR_ARG,
                "state_snapshots is 3, but the model's layers carry no state");
    params.state_snapshots = 0;
    params.draft = &draft;
    CHECK_FAILS(ctx, ds_serve_create(ctx, &params, &server), DS_ERR_UNSUPPORTED,
                "draft: the drafter has layers of linear attention");
    params.draft = NULL;
    params.max_draft = 0;
    parity_close(&other);
    parity_close(&p);
    parity_open(ctx, "llama3_tied", &p);
    params.source.model = p.model;
    params.source.weights = p.folder;
    params.kv_tokens = 100;
    CHECK_FAILS(ctx, ds_serve_create(ctx, &params, &server), DS_ERR_ARG, "kv_tokens");
    params.kv_tokens = 0;
    params.kv_block = 40;
    CHECK_FAILS(ctx, ds_serve_create(ctx, &params, &server), DS_ERR_ARG, "kv_block");
    params.kv_block = 0;
    params.kv_type = DS_DTYPE_I32;
    CHECK_FAILS(ctx, ds_serve_create(ctx, &params, &server), DS_ERR_ARG, "kv_type is i32");
    params.kv_type = DS_DTYPE_NONE;
    params.max_sequences = 3;
    params.max_batch_tokens = 2;
    CHECK_FAILS(ctx, ds_serve_create(ctx, &params, &server), DS_ERR_ARG, "max_batch_tokens");
    params.max_batch_tokens = 8;
    params.kv_tokens = 1 << 29; /* of which each takes more than a kilobyte */
    CHECK_FAILS(ctx, ds_serve_create(ctx, &params, &server), DS_ERR_NOMEM, "would fit");
    params.kv_tokens = 0;
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
    ds_serve_request r = {.ids = ids, .n = 3, .max_new_tokens = 254};
    CHECK_FAILS(ctx, ds_serve_submit(server, &r, &uid), DS_ERR_LIMIT, "together at most 256");
    r.max_new_tokens = 4;
    r.sampling.top_p = -1.0;
    CHECK_FAILS(ctx, ds_serve_submit(server, &r, &uid), DS_ERR_ARG, "top_p");
    r.sampling.top_p = 0.0;
    r.n_top = 21;
    CHECK_FAILS(ctx, ds_serve_submit(server, &r, &uid), DS_ERR_ARG, "n_top");
    r.n_top = 0;
    r.n_prompt_top = -1;
    CHECK_FAILS(ctx, ds_serve_submit(server, &r, &uid), DS_ERR_ARG, "n_prompt_top");
    r.n_prompt_top = 0;
    ids[1] = (uint32_t)p.vocab;
    CHECK_FAILS(ctx, ds_serve_submit(server, &r, &uid), DS_ERR_ARG, "vocabulary");
    ds_serve_destroy(&server);
    parity_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(greedy_like_transformers),
                                       cmocka_unit_test(same_bits),
                                       cmocka_unit_test(same_bits_of_cells),
                                       cmocka_unit_test(drafter_is_right),
                                       cmocka_unit_test(put_like_a_generator),
                                       cmocka_unit_test(put_states),
                                       cmocka_unit_test(vectors_have_states),
                                       cmocka_unit_test(steps_allocate_nothing),
                                       cmocka_unit_test(refuses)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
