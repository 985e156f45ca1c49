/* SPDX-License-Identifier: Apache-2.0 */
/* Serving T5: transformers' greedy ids, log-probabilities and searches; the ids of ds_generator;
 * sources that several texts share; vectors of its encoder; what is planned; what is refused. Its
 * bits: test_serve_t5_bits.
 *
 * labels: threads slow */
#include "accel/cpu/cpu_features.h"
#include "common/parity.h"
#include "common/scratch.h"
#include "common/serve_crowd.h"

#include <deepspeed/adapter.h>
#include <deepspeed/encoder.h>
#include <deepspeed/engine.h>
#include <deepspeed/infer.h>
#include <deepspeed/serve.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_IDS = 128, MOST_TEXTS = 8, LONGEST = 160, TIGHT = 2 * 192 };

static uint32_t read_ids(const json_t *row, const char *name, uint32_t *ids)
{
    const json_t *list = json_object_get(row, name);
    assert_true(json_array_size(list) <= MOST_IDS);
    for (size_t i = 0; i < json_array_size(list); ++i) {
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    }
    return (uint32_t)json_array_size(list);
}

static ds_server *open_server(ds_ctx *ctx, const parity_case *p, ds_serve_params params)
{
    ds_server *server = NULL;
    params.source.model = p->model;
    params.source.weights = p->folder;
    params.source.max_length = params.source.max_length > 0 ? params.source.max_length : LONGEST;
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
    return server;
}

/* The model of a golden row: of a folder that has another scale_decoder_outputs, in *folder_out. */
static void open_row(ds_ctx *ctx, const json_t *row, parity_case *p, char **folder_out)
{
    char path[PARITY_PATH];
    char weights[2 * PARITY_PATH];
    const char *base = json_string_value(json_object_get(row, "base"));
    const json_t *scale = json_object_get(row, "scale");
    parity_open_pairs(ctx, base, p);
    *folder_out = NULL;
    if (json_is_null(scale)) {
        return;
    }
    json_t *config = golden_json("t5/%s/config.json", base);
    *folder_out = scratch_make();
    assert_int_equal(json_object_set(config, "scale_decoder_outputs", (json_t *)(uintptr_t)scale),
                     0);
    (void)snprintf(weights, sizeof weights, "%s/model.safetensors", p->folder);
    (void)snprintf(path, sizeof path, "%s/model.safetensors", *folder_out);
    assert_int_equal(symlink(weights, path), 0);
    (void)snprintf(path, sizeof path, "%s/config.json", *folder_out);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    ds_model_destroy(&p->model);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &p->model));
    (void)snprintf(p->folder, sizeof p->folder, "%s", *folder_out);
}

static void expect_search(const json_t *search, const ds_serve_event *e)
{
    const json_t *texts = json_object_get(search, "texts");
    assert_int_equal(e->finish, DS_SERVE_BEAMS);
    assert_int_equal(e->n_beams, json_array_size(texts));
    for (int64_t i = 0; i < e->n_beams; ++i) {
        uint32_t ids[MOST_IDS];
        const json_t *text = json_array_get(texts, (size_t)i);
        const double score = json_number_value(json_object_get(text, "score"));
        assert_int_equal(e->beams[i].n, read_ids(text, "ids", ids));
        assert_memory_equal(e->beams[i].ids, ids, (size_t)e->beams[i].n * sizeof *ids);
        assert_true(fabs(e->beams[i].score - score) < 1e-4 * fmax(1.0, fabs(score)));
    }
}

/* A row's texts and its search, all at a time. */
static void texts_of(ds_ctx *ctx, const json_t *row, ds_serve_params sizes, bool drafts)
{
    parity_case p;
    char *folder = NULL;
    uint32_t sources[MOST_TEXTS][MOST_IDS];
    uint32_t want[MOST_TEXTS][MOST_IDS];
    uint32_t stops[8];
    uint64_t uids[MOST_TEXTS] = {0};
    size_t at[MOST_TEXTS] = {0};
    ds_serve_event events[CROWD_EVENTS];
    ds_serve_stats stats;
    size_t n = 0;
    const json_t *texts = json_object_get(row, "texts");
    const json_t *search = json_object_get(row, "search");
    const size_t n_texts = json_array_size(texts);
    assert_int_equal(n_texts, 4);
    open_row(ctx, row, &p, &folder);
    const ds_generator_params draft = {
        .model = p.model, .weights = p.folder, .dtype = DS_DTYPE_BF16};
    sizes.draft = drafts ? &draft : NULL;
    ds_server *server = open_server(ctx, &p, sizes);
    for (size_t i = 0; i < n_texts; ++i) {
        const json_t *text = json_array_get(texts, i);
        const ds_serve_request r = {.ids = sources[i],
                                    .n = read_ids(text, "source", sources[i]),
                                    .max_new_tokens = read_ids(text, "ids", want[i]),
                                    .logprobs = true};
        CHECK_OK(ctx, ds_serve_submit(server, &r, &uids[i]));
    }
    if (!json_is_null(search)) {
        const ds_beams beams = {.n = json_integer_value(json_object_get(search, "n")),
                                .length_penalty =
                                    json_number_value(json_object_get(search, "penalty"))};
        const ds_serve_request r = {.ids = sources[n_texts],
                                    .n = read_ids(search, "source", sources[n_texts]),
                                    .max_new_tokens = 20,
                                    .stop_ids = stops,
                                    .n_stop_ids = read_ids(search, "stops", stops),
                                    .beams = &beams};
        CHECK_OK(ctx, ds_serve_submit(server, &r, &uids[n_texts]));
    }
    do {
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
        for (size_t e = 0; e < n; ++e) {
            size_t k = 0;
            while (uids[k] != events[e].uid) {
                ++k;
            }
            if (k == n_texts) {
                expect_search(search, &events[e]);
                continue;
            }
            const json_t *logprobs = json_object_get(json_array_get(texts, k), "logprobs");
            const double logprob = json_number_value(json_array_get(logprobs, at[k]));
            assert_int_equal(events[e].id, want[k][at[k]]);
            assert_true(fabs((double)events[e].logprob - logprob) < 1e-4);
            at[k] += 1;
        }
        ds_serve_get_stats(server, &stats);
    } while (stats.n_running + stats.n_waiting > 0);
    for (size_t i = 0; i < n_texts; ++i) {
        assert_int_equal(at[i], json_array_size(json_object_get(json_array_get(texts, i), "ids")));
    }
    assert_int_equal(stats.n_free_blocks, stats.n_blocks);
    assert_true(!drafts || (stats.n_accepted > 0 && 2 * stats.n_accepted > stats.n_drafted));
    ds_serve_destroy(&server);
    parity_close(&p);
    if (folder != NULL) {
        scratch_remove(folder);
    }
}

static void texts_like_transformers(void **state)
{
    static const ds_serve_params ways[] = {
        {.max_sequences = 3, .max_batch_tokens = 3, .kv_tokens = TIGHT},
        {.max_sequences = 8, .max_batch_tokens = 40, .max_draft = 4},
        {.max_sequences = 5, .max_batch_tokens = 20, .kv_tokens = TIGHT, .max_draft = 3}};
    json_t *rows = golden_json("t5/served.json");
    assert_int_equal(json_array_size(rows), 6);
    for (size_t i = 0; i < json_array_size(rows); ++i) {
        for (size_t w = 0; w < sizeof ways / sizeof *ways; ++w) {
            texts_of(*state, json_array_get(rows, i), ways[w], w == 2);
        }
    }
    json_decref(rows);
}

/* ---- against a generator ---- */
enum { SOURCES = 8, MADE = 40 };

/* Ids of random sources, greedy and drawn, with an adapter of the model or without (NULL). */
static void ids_with(ds_ctx *ctx, const char *adapter_folder, uint32_t made[SOURCES][MADE])
{
    parity_case p;
    uint32_t ids[MOST_IDS];
    uint64_t seed = 3;
    ds_adapter *adapter = NULL;
    ds_generator *generator = NULL;
    parity_open_pairs(ctx, "t5_untied", &p);
    if (adapter_folder != NULL) {
        char path[PARITY_PATH];
        golden_path(path, sizeof path, "%s", adapter_folder);
        CHECK_OK(ctx, ds_adapter_open(ctx, path, &adapter));
        CHECK_OK(ctx, ds_adapter_fit(adapter, &p.model));
    }
    const ds_generator_params params = {
        .model = p.model, .weights = p.folder, .max_length = LONGEST, .adapter = adapter};
    CHECK_OK(ctx, ds_generator_create(ctx, &params, &generator));
    ds_server *server =
        open_server(ctx, &p, (ds_serve_params){.max_sequences = 2, .source = {.adapter = adapter}});
    for (int k = 0; k < SOURCES; ++k) {
        const size_t n = 1 + crowd_below(&seed, MOST_IDS);
        ds_serve_event events[2];
        size_t n_events = 0;
        size_t got = 0;
        uint64_t uid = 0;
        const ds_sampling sampling = {.temperature = k % 2 == 0 ? 0.0 : 0.8, .seed = (uint64_t)k};
        for (size_t i = 0; i < n; ++i) {
            ids[i] = crowd_below(&seed, (uint32_t)p.vocab);
        }
        CHECK_OK(ctx, ds_generator_prompt(generator, ids, n));
        for (int i = 0; i < MADE; ++i) {
            CHECK_OK(ctx, ds_generator_next(generator, &sampling, &made[k][i]));
        }
        const ds_serve_request r = {
            .ids = ids, .n = n, .max_new_tokens = MADE, .sampling = sampling};
        CHECK_OK(ctx, ds_serve_submit(server, &r, &uid));
        while (got < MADE) {
            CHECK_OK(ctx, ds_serve_step(server, events, &n_events));
            for (size_t e = 0; e < n_events; ++e) {
                assert_int_equal(events[e].id, made[k][got++]);
            }
        }
    }
    ds_serve_destroy(&server);
    ds_generator_destroy(&generator);
    ds_adapter_destroy(&adapter);
    parity_close(&p);
}

static void ids_of_a_generator(void **state)
{
    uint32_t plain[SOURCES][MADE];
    uint32_t adapted[SOURCES][MADE];
    ids_with(*state, NULL, plain);
    ids_with(*state, "adapter/t5_all/start", adapted);
    assert_memory_not_equal(plain, adapted, sizeof plain);
}

/* ---- of a live engine ---- */
static void greedy(ds_ctx *ctx, ds_server *server, int64_t vocab, uint32_t made[SOURCES][MADE])
{
    uint64_t seed = 5;
    for (int k = 0; k < SOURCES; ++k) {
        uint32_t ids[MOST_IDS];
        ds_serve_event events[2];
        uint64_t uid = 0;
        size_t got = 0;
        const size_t n = 1 + crowd_below(&seed, MOST_IDS);
        for (size_t i = 0; i < n; ++i) {
            ids[i] = crowd_below(&seed, (uint32_t)vocab);
        }
        const ds_serve_request r = {.ids = ids, .n = n, .max_new_tokens = MADE};
        CHECK_OK(ctx, ds_serve_submit(server, &r, &uid));
        for (size_t n_events = 0; got < MADE;) {
            CHECK_OK(ctx, ds_serve_step(server, events, &n_events));
            for (size_t e = 0; e < n_events; ++e) {
                made[k][got++] = events[e].id;
            }
        }
    }
}

/* Of the engine's own memory and of a copy as of the folder; behind a step with the new weights. */
static void served_between_steps(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    ds_server *live = NULL;
    ds_server *copy = NULL;
    uint32_t made[3][SOURCES][MADE];
    parity_open_pairs(ctx, "t5_untied", &p);
    dsi_engine_spec spec = parity_spec(&p, DS_DTYPE_F32, dsi_cpu_isa());
    spec.lr = 0.05;
    ds_engine *engine = parity_engine(ctx, &p, &spec);
    ds_server *plain = open_server(ctx, &p, (ds_serve_params){.max_sequences = 2});
    const ds_generator_params source = {.engine = engine, .max_length = LONGEST};
    ds_serve_params params = {.source = source, .max_sequences = 2};
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &copy));
    params.source.share = true;
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &live));
    greedy(ctx, plain, p.vocab, made[0]);
    greedy(ctx, copy, p.vocab, made[1]);
    greedy(ctx, live, p.vocab, made[2]);
    assert_memory_equal(made[0], made[1], sizeof made[0]);
    assert_memory_equal(made[0], made[2], sizeof made[0]);
    CHECK_OK(ctx, ds_engine_forward(engine, &p.batch));
    CHECK_OK(ctx, ds_engine_backward(engine));
    CHECK_OK(ctx, ds_engine_step(engine));
    CHECK_OK(ctx, ds_serve_update(live));
    ds_serve_destroy(&copy);
    params.source.share = false;
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &copy));
    greedy(ctx, copy, p.vocab, made[1]);
    greedy(ctx, live, p.vocab, made[2]);
    assert_memory_equal(made[1], made[2], sizeof made[1]);
    assert_memory_not_equal(made[0], made[1], sizeof made[1]);
    ds_serve_destroy(&live);
    ds_serve_destroy(&copy);
    ds_serve_destroy(&plain);
    ds_engine_destroy(&engine);
    parity_close(&p);
}

/* ---- sources ---- */
/* Texts of one source take its blocks once, and the last one gives them back. */
static void texts_share_a_source(void **state)
{
    enum { N = 4, SOURCE = 100 };
    ds_ctx *ctx = *state;
    parity_case p;
    uint32_t ids[SOURCE];
    uint64_t uids[N];
    ds_serve_event events[N];
    ds_serve_stats stats;
    size_t n = 0;
    parity_open_pairs(ctx, "t5", &p);
    ds_server *server = open_server(
        ctx, &p, (ds_serve_params){.max_sequences = N, .max_batch_tokens = 64, .kv_tokens = 1024});
    for (uint32_t i = 0; i < SOURCE; ++i) {
        ids[i] = 6 + i;
    }
    for (int i = 0; i < N; ++i) {
        const ds_serve_request r = {
            .ids = ids, .n = SOURCE, .max_new_tokens = 10, .sampling = {.temperature = 1.0}};
        CHECK_OK(ctx, ds_serve_submit(server, &r, &uids[i]));
    }
    CHECK_OK(ctx, ds_serve_step(server, events, &n));
    ds_serve_get_stats(server, &stats);
    assert_int_equal(n, N);
    assert_int_equal(stats.n_blocks - stats.n_free_blocks, 2 + N); /* 100 positions, and each one */
    assert_int_equal(stats.n_tokens, SOURCE + N);                  /* read once */
    for (int i = 0; i < N; ++i) {
        CHECK_OK(ctx, ds_serve_cancel(server, uids[i]));
        ds_serve_get_stats(server, &stats);
        assert_int_equal(stats.n_blocks - stats.n_free_blocks, i < N - 1 ? 2 + N - 1 - i : 0);
    }
    ds_serve_destroy(&server);
    parity_close(&p);
}

/* Vectors of the encoder, between texts. */
static void vectors_of_the_encoder(void **state)
{
    enum { N = 37 };
    ds_ctx *ctx = *state;
    parity_case p;
    uint32_t ids[N];
    float want[64];
    ds_tensor rows;
    ds_encoder *encoder = NULL;
    ds_serve_event events[4];
    ds_serve_stats stats;
    uint64_t text = 0;
    uint64_t uid = 0;
    size_t n = 0;
    size_t n_vectors = 0;
    parity_open_pairs(ctx, "t5", &p);
    const ds_encoder_params params = {
        .model = p.model, .weights = p.folder, .max_length = LONGEST, .task = DS_TASK_HIDDEN};
    CHECK_OK(ctx, ds_encoder_create(ctx, &params, &encoder));
    ds_server *server = open_server(
        ctx, &p, (ds_serve_params){.max_sequences = 2, .max_batch_tokens = 8, .embeddings = true});
    for (uint32_t i = 0; i < N; ++i) {
        ids[i] = 6 + 3 * i;
    }
    const ds_serve_request r = {.ids = ids, .n = N, .max_new_tokens = 5};
    CHECK_OK(ctx, ds_serve_submit(server, &r, &text));
    for (ds_pool pool = 0; pool < DS_POOLS; ++pool) {
        CHECK_OK(ctx, ds_serve_embed(server, ids, N, pool, 0, &uid));
    }
    CHECK_OK(ctx, ds_encoder_run(encoder, ids, N, &rows));
    ds_serve_get_stats(server, &stats);
    assert_int_equal(stats.width, ds_encoder_width(encoder));
    do {
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
        for (size_t e = 0; e < n; ++e) {
            if (events[e].uid == text) {
                continue;
            }
            assert_int_equal(events[e].finish, DS_SERVE_VECTOR);
            CHECK_OK(ctx, ds_encoder_pool(encoder, (ds_pool)(events[e].uid - text - 1), want));
            for (int64_t i = 0; i < stats.width; ++i) {
                assert_true(fabsf(events[e].vector[i] - want[i]) < 2e-5f);
            }
            ++n_vectors;
        }
        ds_serve_get_stats(server, &stats);
    } while (stats.n_running + stats.n_waiting > 0);
    assert_int_equal(n_vectors, DS_POOLS);
    ds_serve_destroy(&server);
    ds_encoder_destroy(&encoder);
    parity_close(&p);
}

/* ---- before it runs, and what does not go with it ---- */
static void plan_knows_sources(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    ds_serve_needs needs;
    ds_serve_stats stats;
    parity_open_pairs(ctx, "t5", &p);
    ds_serve_params params = {.source = {.model = p.model, .max_length = LONGEST}};
    params.source.dtype = DS_DTYPE_F32;
    CHECK_OK(ctx, ds_serve_plan(ctx, &params, &needs));
    assert_int_equal(needs.kv_tokens, 4 * TIGHT);     /* a text of 160, and a source of 160 */
    assert_int_equal(needs.position, 3 * 2 * 30 * 4); /* 3 layers, 3 heads of 10 */
    params.kv_tokens = TIGHT - 64;
    CHECK_FAILS(ctx, ds_serve_plan(ctx, &params, &needs), DS_ERR_ARG, "kv_tokens");
    params.kv_tokens = INT32_MAX / 2 / 64 * 64;
    params.source.max_length = 1 << 20; /* scores of the longest source alone */
    params.kv_tokens = 1 << 22;
    CHECK_OK(ctx, ds_serve_plan(ctx, &params, &needs));
    params.source.weights = p.folder;
    if (needs.available != 0 && needs.total > needs.available) {
        CHECK_FAILS(ctx, ds_serve_create(ctx, &params, &(ds_server *){NULL}), DS_ERR_NOMEM,
                    "too much");
    }
    ds_server *server = open_server(ctx, &p, (ds_serve_params){.kv_tokens = 2 * TIGHT});
    ds_serve_get_stats(server, &stats);
    assert_int_equal(stats.n_blocks, 2 * TIGHT / 64);
    ds_serve_destroy(&server);
    parity_close(&p);
}

static void refuse_with(ds_ctx *ctx, const parity_case *p, ds_serve_params params, const char *text)
{
    ds_server *server = NULL;
    params.source.model = p->model;
    params.source.weights = p->folder;
    params.source.max_length = LONGEST;
    CHECK_FAILS(ctx, ds_serve_create(ctx, &params, &server), DS_ERR_UNSUPPORTED, text);
}

static void refused_by_name(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    parity_case llama;
    uint32_t ids[LONGEST + 1] = {7};
    const float *logits = NULL;
    uint64_t uid = 0;
    int64_t n_tokens = 1;
    int64_t n_blocks = 1;
    parity_open_pairs(ctx, "t5", &p);
    parity_open(ctx, "llama3_tied", &llama);
    const ds_generator_params draft = {.model = p.model, .weights = p.folder};
    refuse_with(ctx, &p, (ds_serve_params){.source = {.dtype = DS_DTYPE_F16}},
                "not built for t5: fp16");
    const ds_serve_params with_t5 = {
        .source = {.model = llama.model, .weights = llama.folder, .max_length = 128},
        .max_draft = 2,
        .draft = &draft};
    const ds_generator_params other = {.model = llama.model, .weights = llama.folder};
    refuse_with(ctx, &p, (ds_serve_params){.max_draft = 2, .draft = &other}, "reads no sources");
    CHECK_FAILS(ctx, ds_serve_create(ctx, &with_t5, &(ds_server *){NULL}), DS_ERR_UNSUPPORTED,
                "draft: t5 reads sources");
    ds_server *server = open_server(ctx, &p, (ds_serve_params){.max_sequences = 2});
    CHECK_FAILS(ctx, ds_serve_put(server, 1, (uint64_t[]){9}, ids, (size_t[]){3}, &logits),
                DS_ERR_UNSUPPORTED, "ds_serve_put");
    ds_serve_query(server, 9, 10, 10, &n_tokens, &n_blocks);
    assert_int_equal(n_tokens + n_blocks, 0);
    ds_serve_request r = {.ids = ids, .n = 3, .max_new_tokens = 2, .prompt_logprobs = true};
    CHECK_FAILS(ctx, ds_serve_submit(server, &r, &uid), DS_ERR_UNSUPPORTED, "prompt_logprobs");
    r = (ds_serve_request){.ids = ids, .n = LONGEST + 1, .max_new_tokens = 1};
    CHECK_FAILS(ctx, ds_serve_submit(server, &r, &uid), DS_ERR_LIMIT, "161 tokens");
    r = (ds_serve_request){.ids = ids, .n = LONGEST, .max_new_tokens = LONGEST};
    CHECK_FAILS(ctx, ds_serve_submit(server, &r, &uid), DS_ERR_LIMIT, "a text of 160");
    r.max_new_tokens = LONGEST - 1;
    CHECK_OK(ctx, ds_serve_submit(server, &r, &uid));
    ds_serve_destroy(&server);
    parity_close(&llama);
    parity_close(&p);
}

static int setup(void **state)
{
    *state = check_ctx(2);
    return 0;
}

static int teardown(void **state)
{
    ds_ctx *ctx = *state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_like_transformers), cmocka_unit_test(ids_of_a_generator),
        cmocka_unit_test(served_between_steps),    cmocka_unit_test(texts_share_a_source),
        cmocka_unit_test(vectors_of_the_encoder),  cmocka_unit_test(plan_knows_sources),
        cmocka_unit_test(refused_by_name),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
