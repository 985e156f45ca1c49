/* SPDX-License-Identifier: Apache-2.0 */
/* Serving whose layers several ranks share: transformers' greedy tokens; at one number of ranks the
 * same bits alone and in any crowd; logits, vectors, beams and adapters of one rank within
 * rounding; a part of weights, keys and values on each rank; ranks that are used wrongly.
 *
 * labels: threads long slow */
#include "comm/comm.h"
#include "common/parity.h"
#include "common/rank_threads.h"
#include "common/serve_crowd.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { GREEDY = 64, LOGIT_IDS = 40, VECTOR_IDS = 60, BEAMS = 3, MOST_RANKS = 4, PATH = 512 };

/* What all ranks are made with, and what rank 0 does; results are in `user`. */
typedef struct job {
    const char *name;
    ds_serve_params params;
    ds_dtype dtype;
    bool drafts; /* by the model itself in bf16 */
    void (*lead)(ds_ctx *ctx, ds_server *server, const parity_case *p, void *user);
    void *user;
    uint32_t threads;
    int64_t other_budget; /* of rank 1; 0: the same */
    bool follower_asks;
    ds_serve_stats stats[MOST_RANKS];
} job;

#define ADAPTERS DS_SOURCE_DIR "/test/golden/adapter/"

/* A case of parity/, or another model of golden/. */
static void open_model(ds_ctx *ctx, const char *name, parity_case *p)
{
    char path[PARITY_PATH + 32];
    if (strchr(name, '/') == NULL) {
        parity_open(ctx, name, p);
        return;
    }
    memset(p, 0, sizeof *p);
    golden_path(p->folder, sizeof p->folder, "%s", name);
    (void)snprintf(path, sizeof path, "%s/config.json", p->folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &p->model));
    p->vocab = ds_model_get_info(p->model)->vocab_size;
}

static ds_status follow(ds_server *server, const job *j)
{
    uint64_t uid = 0;
    const uint32_t id = 1;
    const ds_serve_request r = {.ids = &id, .n = 1, .max_new_tokens = 1};
    return j->follower_asks ? ds_serve_submit(server, &r, &uid) : ds_serve_follow(server);
}

static ds_status run_rank(dsi_comm *comm, ds_ctx *ctx, job *j)
{
    parity_case p;
    ds_server *server = NULL;
    const uint32_t rank = ds_comm_rank(comm);
    open_model(ctx, j->name, &p);
    ds_serve_params params = j->params;
    params.source.model = p.model;
    params.source.weights = p.folder;
    params.source.dtype = j->dtype;
    params.source.comm = comm;
    parity_case other; /* where the model cannot be its own drafter */
    parity_open(ctx, "llama3_tied", &other);
    const parity_case *by = ds_model_get_info(p.model)->carries ? &other : &p;
    const ds_generator_params draft = {
        .model = by->model, .weights = by->folder, .dtype = DS_DTYPE_BF16};
    params.draft = j->drafts ? &draft : NULL;
    if (rank == 1 && j->other_budget > 0) {
        params.max_batch_tokens = j->other_budget;
    }
    ds_status status = ds_serve_create(ctx, &params, &server);
    if (status >= 0) {
        ds_serve_get_stats(server, &j->stats[rank]);
    }
    if (status >= 0 && rank > 0) {
        status = follow(server, j);
    } else if (status >= 0) {
        j->lead(ctx, server, &p, j->user);
    }
    if (status < 0 && comm != NULL) {
        dsi_comm_abort(comm, ds_ctx_error(ctx));
    }
    ds_serve_destroy(&server);
    parity_close(&other);
    parity_close(&p);
    return status;
}

static void quiet(void *user, ds_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

static ds_status run_thread(dsi_comm *comm, void *arg)
{
    job *j = arg;
    ds_ctx *ctx = comm->ctx;
    const ds_ctx_params params = {
        .n_threads = j->threads, .rank = comm->rank, .world_size = comm->size, .log = quiet};
    if (j->threads > 1) {
        DS_TRY(ds_ctx_create(&params, &ctx));
    }
    ds_status status = run_rank(comm, ctx, j);
    if (status < 0 && ctx != comm->ctx) {
        status = ds_fail(comm->ctx, status, "%s", ds_ctx_error(ctx));
    }
    if (ctx != comm->ctx) {
        ds_ctx_destroy(&ctx);
    }
    return status;
}

/* On n ranks, n 1: without a communicator; messages come in the order that the seed gives. */
static void run_job(ds_ctx *ctx, uint32_t n, uint64_t seed, job *j)
{
    const dsi_comm_sim_options options = {.seed = seed};
    rank_results results;
    if (n == 1) {
        CHECK_OK(ctx, run_rank(NULL, ctx, j));
        return;
    }
    (void)rank_threads_run(n, &options, run_thread, j, &results);
    for (uint32_t r = 0; r < n; ++r) {
        if (results.status[r] < 0) {
            fail_msg("%s, rank %u of %u: %s", j->name, r, n, results.message[r]);
        }
    }
}

/* ---- against transformers ---- */
static void expect_greedy(ds_ctx *ctx, ds_server *server, const parity_case *p, void *user)
{
    const json_t *want = json_object_get(p->scalars, "greedy");
    const json_t *start = json_object_get(p->scalars, "prompt");
    uint32_t prompt[64];
    uint64_t uids[2];
    int64_t at[2] = {0};
    ds_serve_event events[CROWD_EVENTS];
    size_t n_events = 0;
    const size_t n = json_array_size(start);
    (void)user;
    for (size_t i = 0; i < n; ++i) {
        prompt[i] = (uint32_t)json_integer_value(json_array_get(start, i));
    }
    for (int i = 0; i < 2; ++i) {
        const ds_serve_request r = {.ids = prompt, .n = n, .max_new_tokens = GREEDY};
        CHECK_OK(ctx, ds_serve_submit(server, &r, &uids[i]));
    }
    do {
        CHECK_OK(ctx, ds_serve_step(server, events, &n_events));
        for (size_t e = 0; e < n_events; ++e) {
            const uint64_t who = events[e].uid - uids[0];
            assert_int_equal(events[e].id, json_integer_value(json_array_get(want, at[who]++)));
        }
    } while (at[0] < GREEDY || at[1] < GREEDY);
}

static void greedy_like_transformers(void **state)
{
    static const char *const names[] = {
        "gpt2", "llama3_tied", "mixtral", "qwen3_moe", "phi3",      "gemma2",    "bloom",
        "mpt",  "cohere",      "gpt_oss", "glm4",      "falcon_rw", "qwen3_next"};
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        for (uint32_t n = 2; n <= MOST_RANKS; ++n) {
            job j = {.name = names[i],
                     .dtype = DS_DTYPE_F32,
                     .params = {.max_sequences = 2, .max_batch_tokens = 7},
                     .lead = expect_greedy};
            run_job(*state, n, i, &j);
        }
    }
}

/* ---- bit identity ---- */
typedef struct crowd {
    const way *w;
    const asked *a;
    answer *got;
} crowd;

static void serve_crowd(ds_ctx *ctx, ds_server *server, const parity_case *p, void *user)
{
    const crowd *c = user;
    (void)p;
    crowd_serve(ctx, server, c->w, c->a, c->got);
}

static void same_bits_in(ds_ctx *ctx, const char *name, uint32_t n_ranks, ds_dtype dtype,
                         ds_dtype cells, ds_dtype blocks)
{
    static const way ways[] = {
        {"alone", {.max_sequences = 1, .max_batch_tokens = 512, .no_prefix_cache = true}, 1, 0, 0},
        {"16 together", {.max_sequences = 16, .max_batch_tokens = 512}, 3, 0, 0},
        {"budget 16", {.max_sequences = 1, .max_batch_tokens = 16}, 1, 0, 0},
        {"preemption", {.max_sequences = 16, .max_batch_tokens = 64, .kv_tokens = 256}, 2, 1, 0},
        {"drafts, cancelled",
         {.max_sequences = 6, .max_batch_tokens = 200, .max_draft = 5},
         1,
         0,
         1},
        {"draft model, preemption",
         {.max_sequences = 9, .max_batch_tokens = 40, .kv_tokens = 256, .max_draft = 3},
         1,
         1,
         0},
    };
    parity_case p;
    parity_open(ctx, name, &p);
    asked *a = calloc(CROWD_REQUESTS, sizeof *a);
    answer *got = calloc(2 * CROWD_REQUESTS, sizeof *got);
    assert_non_null(a);
    assert_non_null(got);
    crowd_ask(a, p.vocab, 7);
    for (size_t i = 0; i < sizeof ways / sizeof *ways; ++i) {
        if (i > 1 && !check_long_row(i)) {
            continue;
        }
        answer *own = got + (i == 0 ? 0 : CROWD_REQUESTS);
        way w = ways[i];
        crowd c = {.w = &w, .a = a, .got = own};
        job j = {.name = name,
                 .dtype = dtype,
                 .params = w.sizes,
                 .drafts = strncmp(ways[i].name, "draft model", 11) == 0,
                 .lead = serve_crowd,
                 .user = &c,
                 .threads = ways[i].threads};
        j.params.kv_type = cells;
        j.params.source.quantize = blocks;
        j.params.source.max_length = 256;
        run_job(ctx, n_ranks, i, &j);
        for (int k = 0; k < CROWD_REQUESTS && i > 0; ++k) {
            if (memcmp(&got[k], &own[k], sizeof *own) != 0) {
                fail_msg("%s in %s on %u ranks, cells %s: request %d differs between \"alone\" and "
                         "\"%s\"",
                         name, ds_dtype_name(dtype), n_ranks, ds_dtype_name(cells), k,
                         ways[i].name);
            }
        }
    }
    free(a);
    free(got);
    parity_close(&p);
}

static void same_bits(void **state)
{
    same_bits_in(*state, "llama3_tied", 2, DS_DTYPE_F32, DS_DTYPE_NONE, DS_DTYPE_NONE);
    same_bits_in(*state, "llama3_tied", 4, DS_DTYPE_BF16, DS_DTYPE_NONE, DS_DTYPE_NONE);
    same_bits_in(*state, "llama3_tied", 2, DS_DTYPE_BF16, DS_DTYPE_I8, DS_DTYPE_NONE);
    same_bits_in(*state, "phi3_heads", 3, DS_DTYPE_F16, DS_DTYPE_NONE, DS_DTYPE_NONE);
    same_bits_in(*state, "qwen3_moe", 2, DS_DTYPE_BF16, DS_DTYPE_NONE, DS_DTYPE_NONE);
    same_bits_in(*state, "gpt_oss", 2, DS_DTYPE_BF16, DS_DTYPE_F16, DS_DTYPE_NONE);
    same_bits_in(*state, "mistral", 2, DS_DTYPE_BF16, DS_DTYPE_NONE, DS_DTYPE_Q8_0);
    same_bits_in(*state, "mistral", 2, DS_DTYPE_F32, DS_DTYPE_I8, DS_DTYPE_Q4_0);
    same_bits_in(*state, "llama3_tied", 2, DS_DTYPE_F32, DS_DTYPE_NONE, DS_DTYPE_Q8_0);
    same_bits_in(*state, "gemma2", 3, DS_DTYPE_F32, DS_DTYPE_NONE, DS_DTYPE_NONE);
    same_bits_in(*state, "bloom", 3, DS_DTYPE_BF16, DS_DTYPE_NONE, DS_DTYPE_NONE);
    same_bits_in(*state, "falcon_rw", 4, DS_DTYPE_F32, DS_DTYPE_I8, DS_DTYPE_NONE);
    same_bits_in(*state, "qwen3_next", 2, DS_DTYPE_BF16, DS_DTYPE_NONE, DS_DTYPE_NONE);
}

/* ---- against one rank ---- */
typedef struct numbers {
    float *logits; /* [vocab] behind LOGIT_IDS ids */
    float vector[1024];
    int64_t width;
    uint32_t ids[16];
    int64_t n_ids;
    double score;
} numbers;

static void step_until(ds_ctx *ctx, ds_server *server, ds_serve_event *event)
{
    ds_serve_event events[CROWD_EVENTS];
    size_t n = 0;
    for (int i = 0; n == 0 && i < 1000; ++i) {
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
    }
    assert_int_equal(n, 1);
    *event = events[0];
}

static void take_numbers(ds_ctx *ctx, ds_server *server, const parity_case *p, void *user)
{
    numbers *out = user;
    uint32_t ids[VECTOR_IDS];
    uint64_t seed = 11, uid = 0;
    const float *logits = NULL;
    ds_serve_event e;
    for (int i = 0; i < VECTOR_IDS; ++i) {
        ids[i] = crowd_below(&seed, (uint32_t)p->vocab);
    }
    CHECK_OK(ctx, ds_serve_put(server, 2, (uint64_t[]){5, 6}, ids,
                               (size_t[]){LOGIT_IDS - 1, LOGIT_IDS / 2}, &logits));
    CHECK_OK(ctx, ds_serve_put(server, 1, (uint64_t[]){5}, ids, (size_t[]){1}, &logits));
    memcpy(out->logits, logits, (size_t)p->vocab * sizeof *logits);
    CHECK_OK(ctx, ds_serve_flush(server, 5));
    CHECK_OK(ctx, ds_serve_flush(server, 6));
    CHECK_OK(ctx, ds_serve_embed(server, ids, VECTOR_IDS, DS_POOL_MEAN, 0, &uid));
    step_until(ctx, server, &e);
    ds_serve_stats stats;
    ds_serve_get_stats(server, &stats);
    out->width = stats.width;
    assert_true(e.finish == DS_SERVE_VECTOR && out->width <= 1024);
    memcpy(out->vector, e.vector, (size_t)out->width * sizeof *e.vector);
    const ds_beams beams = {.n = BEAMS, .length_penalty = 1.0};
    const ds_serve_request r = {.ids = ids, .n = 9, .max_new_tokens = 8, .beams = &beams};
    CHECK_OK(ctx, ds_serve_submit(server, &r, &uid));
    step_until(ctx, server, &e);
    assert_true(e.finish == DS_SERVE_BEAMS && e.beams[0].n <= 16);
    out->n_ids = e.beams[0].n;
    memcpy(out->ids, e.beams[0].ids, (size_t)out->n_ids * sizeof *out->ids);
    out->score = e.beams[0].score;
}

static double difference(const float *a, const float *b, int64_t n)
{
    double most = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        most = fmax(most, fabs((double)a[i] - b[i]));
    }
    return most;
}

static void like_one(ds_ctx *ctx, const char *name, double part)
{
    parity_case p;
    open_model(ctx, name, &p);
    numbers want = {.logits = calloc((size_t)p.vocab, sizeof(float))};
    numbers got = {.logits = calloc((size_t)p.vocab, sizeof(float))};
    job one = {.name = name,
               .dtype = DS_DTYPE_F32,
               .params = {.max_sequences = 4,
                          .max_batch_tokens = 64,
                          .embeddings = true,
                          .source = {.max_length = 64}},
               .lead = take_numbers,
               .user = &want};
    run_job(ctx, 1, 0, &one);
    for (uint32_t n = 2; n <= MOST_RANKS; ++n) {
        job j = one;
        j.user = &got;
        run_job(ctx, n, n, &j);
        const double logits = difference(want.logits, got.logits, p.vocab);
        const double vector = difference(want.vector, got.vector, want.width);
        if (logits > 2e-5 || vector > 2e-5 || fabs(want.score - got.score) > 2e-5 ||
            want.n_ids != got.n_ids ||
            memcmp(want.ids, got.ids, (size_t)want.n_ids * sizeof *want.ids) != 0) {
            fail_msg("%s on %u ranks: logits differ by %g, vectors by %g, scores of beams by %g",
                     name, n, logits, vector, want.score - got.score);
        }
        print_message("%s, %u ranks: logits within %.1e, vectors %.1e; %.2f of the weights, %.2f "
                      "of keys and values on a rank\n",
                      name, n, logits, vector, j.stats[0].weight_bytes / one.stats[0].weight_bytes,
                      j.stats[0].kv_token_bytes / one.stats[0].kv_token_bytes);
        if (n == 4 && part < 1.0 && strchr(name, '/') == NULL &&
            strcmp(name, "bloom") != 0) { /* two heads of keys: each rank has one; bloom has six */
            assert_true(j.stats[3].kv_token_bytes <= 0.5 * one.stats[0].kv_token_bytes);
        }
        if (n == 2) {
            assert_true(j.stats[1].weight_bytes < 0.9 * one.stats[0].weight_bytes);
            assert_true(j.stats[1].kv_token_bytes <= part * one.stats[0].kv_token_bytes);
        }
    }
    free(want.logits);
    free(got.logits);
    parity_close(&p);
}

static void numbers_of_one_rank(void **state)
{
    like_one(*state, "gpt2", 1.0); /* 3 heads */
    like_one(*state, "llama3", 0.5);
    like_one(*state, "mixtral", 0.5);
    like_one(*state, "qwen3_moe", 0.5);
    like_one(*state, "gemma2", 0.5);
    like_one(*state, "gpt_oss", 0.5);
    like_one(*state, "bloom", 0.5);
    like_one(*state, "mpt", 0.5);
    like_one(*state, "falcon_rw", 0.5);
    like_one(*state, "adapter/models/llama", 1.0); /* one head of keys, of which each has a copy */
    like_one(*state, "adapter/models/gpt2", 0.5);
}

/* ---- adapters ---- */
typedef struct adapted {
    const char *folders[2];
    uint32_t ids[3][16];
} adapted;

static void serve_adapters(ds_ctx *ctx, ds_server *server, const parity_case *p, void *user)
{
    adapted *out = user;
    uint64_t of[3] = {0}, uids[3], spare = 0;
    int n[3] = {0};
    uint32_t prompt[12];
    uint64_t seed = 4;
    ds_serve_event events[CROWD_EVENTS];
    size_t n_events = 0;
    for (int i = 0; i < 12; ++i) {
        prompt[i] = crowd_below(&seed, (uint32_t)p->vocab);
    }
    CHECK_OK(ctx, ds_serve_adapter_load(server, out->folders[1], &spare));
    CHECK_OK(ctx, ds_serve_adapter_load(server, out->folders[1], &of[2]));
    CHECK_FAILS(ctx, ds_serve_adapter_load(server, out->folders[0], &of[1]), DS_ERR_LIMIT, "slots");
    CHECK_OK(ctx, ds_serve_adapter_unload(server, spare));
    CHECK_OK(ctx, ds_serve_adapter_load(server, out->folders[0], &of[1])); /* over the other */
    CHECK_OK(ctx, ds_serve_adapter_unload(server, of[1]));
    assert_true(ds_serve_adapter_load(server, ADAPTERS "none", &spare) < 0);
    assert_true(ds_serve_adapter_load(server, ADAPTERS "models", &spare) < 0);
    CHECK_OK(ctx, ds_serve_adapter_load(server, out->folders[0], &of[1]));
    for (int k = 0; k < 3; ++k) {
        const ds_serve_request r = {.ids = prompt, .n = 12, .max_new_tokens = 16, .adapter = of[k]};
        CHECK_OK(ctx, ds_serve_submit(server, &r, &uids[k]));
    }
    while (n[0] + n[1] + n[2] < 48) {
        CHECK_OK(ctx, ds_serve_step(server, events, &n_events));
        for (size_t e = 0; e < n_events; ++e) {
            const uint64_t k = events[e].uid - uids[0];
            out->ids[k][n[k]++] = events[e].id;
        }
    }
}

static void adapters_of_one_rank(void **state)
{
    static const char *const cases[][3] = {
        {"adapter/models/llama", ADAPTERS "lora/end", ADAPTERS "rslora/end"},
        {"adapter/models/gpt2", ADAPTERS "conv1d/end", ADAPTERS "conv1d/start"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        adapted want = {.folders = {cases[i][1], cases[i][2]}};
        job j = {.name = cases[i][0],
                 .dtype = DS_DTYPE_F32,
                 .params = {.max_sequences = 4,
                            .max_batch_tokens = 16,
                            .kv_tokens = 1280,
                            .adapters = 2,
                            .adapter_rank = 8},
                 .lead = serve_adapters,
                 .user = &want};
        run_job(*state, 1, 0, &j);
        assert_int_not_equal(memcmp(want.ids[0], want.ids[1], sizeof want.ids[0]), 0);
        for (uint32_t n = 2; n <= MOST_RANKS; ++n) {
            adapted got = {.folders = {cases[i][1], cases[i][2]}};
            j.user = &got;
            run_job(*state, n, n, &j);
            assert_memory_equal(got.ids, want.ids, sizeof want.ids);
        }
    }
}

/* ---- used wrongly ---- */
static void ask_nothing(ds_ctx *ctx, ds_server *server, const parity_case *p, void *user)
{
    (void)ctx;
    (void)server;
    (void)p;
    (void)user;
}

static void used_wrongly(void **state)
{
    ds_ctx *ctx = *state;
    rank_results results;
    job j = {.name = "llama3",
             .dtype = DS_DTYPE_F32,
             .params = {.max_sequences = 2, .max_batch_tokens = 8},
             .lead = expect_greedy,
             .other_budget = 16};
    (void)rank_threads_run(2, NULL, run_thread, &j, &results);
    assert_int_equal(results.status[0], DS_ERR_PEER);
    assert_non_null(strstr(results.message[1], "\"budget of tokens: 8\""));

    j.other_budget = 0;
    j.follower_asks = true;
    j.lead = ask_nothing;
    (void)rank_threads_run(2, NULL, run_thread, &j, &results);
    assert_int_equal(results.status[1], DS_ERR_STATE);
    assert_non_null(strstr(results.message[1], "call ds_serve_follow here"));

    j.params.rank_seconds = -1.0;
    (void)rank_threads_run(2, NULL, run_thread, &j, &results);
    assert_int_equal(results.status[0], DS_ERR_ARG);
    assert_non_null(strstr(results.message[0], "rank_seconds"));

    parity_case p;
    ds_server *server = NULL;
    parity_open(ctx, "llama3", &p);
    const ds_serve_params params = {
        .source = {.model = p.model, .weights = p.folder, .dtype = DS_DTYPE_F32}};
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
    CHECK_FAILS(ctx, ds_serve_follow(server), DS_ERR_STATE, "above 0");
    ds_serve_destroy(&server);
    parity_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(greedy_like_transformers), cmocka_unit_test(same_bits),
        cmocka_unit_test(numbers_of_one_rank), cmocka_unit_test(adapters_of_one_rank),
        cmocka_unit_test(used_wrongly)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
