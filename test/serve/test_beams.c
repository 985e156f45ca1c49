/* SPDX-License-Identifier: Apache-2.0 */
/* Beam search: transformers' texts and scores; the same bits in a crowd, with few blocks, and
 * whatever runs beside; what is refused; cancelling.
 *
 * labels: threads long slow */
#include "common/count_allocations.h"
#include "common/parity.h"

#include <deepspeed/serve.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_IDS = 128, MOST_NEW = 20, MOST_N = 5, CROWD = 6, EVENTS = 64 };

static uint32_t read_ids(const json_t *row, const char *name, uint32_t *ids)
{
    const json_t *list = json_object_get(row, name);
    for (size_t i = 0; i < json_array_size(list); ++i) {
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    }
    return (uint32_t)json_array_size(list);
}

/* A request of a golden row. */
typedef struct asked {
    uint32_t prompt[MOST_IDS], stops[8];
    ds_beams beams;
    ds_serve_request request;
} asked;

static void read_row(const json_t *row, asked *a)
{
    const char *end = json_string_value(json_object_get(row, "end"));
    a->beams = (ds_beams){.n = json_integer_value(json_object_get(row, "n")),
                          .length_penalty = json_number_value(json_object_get(row, "penalty")),
                          .end = strcmp(end, "likely") == 0  ? DS_BEAM_LIKELY
                                 : strcmp(end, "early") == 0 ? DS_BEAM_EARLY
                                                             : DS_BEAM_NEVER};
    a->request =
        (ds_serve_request){.ids = a->prompt,
                           .n = read_ids(row, "prompt", a->prompt),
                           .max_new_tokens = MOST_NEW,
                           .min_new_tokens = json_integer_value(json_object_get(row, "least")),
                           .stop_ids = a->stops,
                           .n_stop_ids = read_ids(row, "stops", a->stops),
                           .beams = &a->beams};
}

static ds_server *open_server(ds_ctx *ctx, const parity_case *p, ds_serve_params params)
{
    ds_server *server = NULL;
    params.source =
        (ds_generator_params){.model = p->model, .weights = p->folder, .dtype = DS_DTYPE_F32};
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
    return server;
}

static void expect_texts(const json_t *row, const ds_serve_event *e)
{
    const json_t *texts = json_object_get(row, "texts");
    assert_int_equal(e->finish, DS_SERVE_BEAMS);
    assert_int_equal(e->n_beams, json_array_size(texts));
    for (int64_t i = 0; i < e->n_beams; ++i) {
        const json_t *text = json_array_get(texts, (size_t)i);
        const json_t *ids = json_object_get(text, "ids");
        const ds_beam *got = &e->beams[i];
        assert_int_equal(got->n, json_array_size(ids));
        for (int64_t k = 0; k < got->n; ++k) {
            assert_int_equal(got->ids[k], json_integer_value(json_array_get(ids, (size_t)k)));
        }
        const double score = json_number_value(json_object_get(text, "score"));
        assert_true(fabs(got->score - score) < 1e-4 * fmax(1.0, fabs(score)));
    }
}

/* All rows of a model at a time among texts that are drawn, in servers of several sizes. */
static void searches_of(ds_ctx *ctx, const json_t *rows, const char *name)
{
    static const ds_serve_params ways[] = {
        {.max_sequences = 5, .max_batch_tokens = 64, .kv_tokens = 1024},
        {.max_sequences = 16, .max_batch_tokens = 16, .kv_tokens = 1024, .no_prefix_cache = true},
        {.max_sequences = 7, .max_batch_tokens = 23, .kv_tokens = 960, .max_draft = 2}};
    parity_case p;
    parity_open(ctx, name, &p);
    for (size_t w = 0; w < sizeof ways / sizeof *ways; ++w) {
        ds_serve_params way = ways[w];
        ds_server *server = open_server(ctx, &p, way);
        ds_serve_event events[EVENTS];
        ds_serve_stats stats;
        uint64_t uids[64] = {0};
        uint64_t stray = 0;
        size_t n = 0;
        size_t left = 0;
        asked a;
        for (size_t i = 0; i < json_array_size(rows); ++i) {
            const json_t *row = json_array_get(rows, i);
            if (strcmp(json_string_value(json_object_get(row, "model")), name) == 0) {
                read_row(row, &a);
                CHECK_OK(ctx, ds_serve_submit(server, &a.request, &uids[i]));
                a.request.beams = NULL;
                a.request.sampling = (ds_sampling){.temperature = 1.0, .seed = i};
                CHECK_OK(ctx, ds_serve_submit(server, &a.request, &stray));
                ++left;
            }
        }
        for (int step = 0; step < 5000 && left > 0; ++step) {
            CHECK_OK(ctx, ds_serve_step(server, events, &n));
            for (size_t e = 0; e < n; ++e) {
                for (size_t i = 0; i < json_array_size(rows); ++i) {
                    if (uids[i] != 0 && events[e].uid == uids[i]) {
                        expect_texts(json_array_get(rows, i), &events[e]);
                        --left;
                    }
                }
            }
        }
        assert_int_equal(left, 0);
        do {
            CHECK_OK(ctx, ds_serve_step(server, events, &n));
            ds_serve_get_stats(server, &stats);
        } while (stats.n_running + stats.n_waiting > 0);
        assert_int_equal(stats.n_free_blocks, stats.n_blocks);
        ds_serve_destroy(&server);
    }
    parity_close(&p);
}

static void like_transformers(void **state)
{
    json_error_t error;
    json_t *rows = json_load_file(DS_SOURCE_DIR "/test/golden/serve/beams.json", 0, &error);
    assert_non_null(rows);
    searches_of(*state, rows, "llama3_tied");
    searches_of(*state, rows, "gpt2");
    searches_of(*state, rows, "qwen3_next"); /* a forked text goes on from a snapshot */
    json_decref(rows);
}

/* A step allocates nothing. */
static ds_status step_counted(ds_server *server, ds_serve_event *events, size_t *n_out)
{
#if CAN_COUNT_ALLOCATIONS
    count_begin();
    const ds_status status = ds_serve_step(server, events, n_out);
    assert_int_equal(count_end(), 0);
    return status;
#else
    return ds_serve_step(server, events, n_out);
#endif
}

static void refuses_and_cancels(void **state)
{
    ds_ctx *ctx = *state;
    parity_case p;
    uint32_t ids[3] = {1, 2, 3};
    uint64_t uid = 0;
    uint64_t other = 0;
    ds_serve_event events[EVENTS];
    ds_serve_stats stats;
    size_t n = 0;
    parity_open(ctx, "llama3_tied", &p);
    ds_server *server =
        open_server(ctx, &p, (ds_serve_params){.max_sequences = 4, .kv_tokens = 256});
    ds_beams beams = {.n = 5, .length_penalty = 1.0};
    ds_serve_request r = {.ids = ids, .n = 3, .max_new_tokens = 9, .beams = &beams};
    CHECK_FAILS(ctx, ds_serve_submit(server, &r, &uid), DS_ERR_ARG, "2 to 4");
    beams.n = 4;
    r.max_new_tokens = 64;
    CHECK_FAILS(ctx, ds_serve_submit(server, &r, &uid), DS_ERR_LIMIT, "need 8 blocks of the 4");
    r.max_new_tokens = 9;
    beams.n = 3;
    r.sampling.temperature = 1.0;
    CHECK_FAILS(ctx, ds_serve_submit(server, &r, &uid), DS_ERR_ARG, "takes no temperature");
    r.sampling.temperature = 0.0;
    CHECK_OK(ctx, ds_serve_submit(server, &r, &uid));
    CHECK_OK(ctx, ds_serve_submit(server, &r, &other));
    for (int i = 0; i < 4; ++i) {
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
        assert_int_equal(n, 0);
    }
    CHECK_OK(ctx, ds_serve_cancel(server, uid));
    CHECK_FAILS(ctx, ds_serve_cancel(server, uid), DS_ERR_NOT_FOUND, "request");
    do {
        const ds_status status = step_counted(server, events, &n);
        CHECK_OK(ctx, status);
    } while (n == 0);
    assert_int_equal(events[0].uid, other);
    ds_serve_get_stats(server, &stats);
    assert_int_equal(stats.n_free_blocks, stats.n_blocks);
    ds_serve_destroy(&server);
    parity_close(&p);
}

/* A beam that runs alone waits for one that a waiting document keeps out, which waits for the
 * blocks of the first. */
static void ends_beside_a_document(void **state)
{
    ds_ctx *ctx = *state;
    enum { LONG = 240, MOST_STEPS = 2000 };
    parity_case p;
    uint32_t ids[LONG];
    uint64_t uid[3] = {0};
    ds_serve_event events[EVENTS];
    size_t n = 0;
    int left = 3;
    for (uint32_t i = 0; i < LONG; ++i) {
        ids[i] = 1 + i % 120;
    }
    parity_open(ctx, "llama3_tied", &p);
    ds_server *server = open_server(
        ctx, &p, (ds_serve_params){.max_sequences = 2, .kv_tokens = 256, .embeddings = true});
    const ds_beams beams = {.n = 2, .length_penalty = 1.0};
    ds_serve_request r = {.ids = ids, .n = 40, .max_new_tokens = 8};
    CHECK_OK(ctx, ds_serve_submit(server, &r, &uid[0]));
    r = (ds_serve_request){.ids = ids + 50, .n = 60, .max_new_tokens = 20, .beams = &beams};
    CHECK_OK(ctx, ds_serve_submit(server, &r, &uid[1]));
    for (int step = 0; step < MOST_STEPS && left > 0; ++step) {
        if (step == 3) {
            CHECK_OK(ctx, ds_serve_embed(server, ids, LONG, DS_POOL_LAST, 0, &uid[2]));
            CHECK_FAILS(ctx, ds_serve_update(server), DS_ERR_STATE, "4 sequences");
        }
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
        for (size_t e = 0; e < n; ++e) {
            left -= events[e].finish != DS_SERVE_GOES_ON;
        }
    }
    assert_int_equal(left, 0);
    ds_serve_destroy(&server);
    parity_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(like_transformers),
                                       cmocka_unit_test(refuses_and_cancels),
                                       cmocka_unit_test(ends_beside_a_document)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
