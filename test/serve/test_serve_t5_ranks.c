/* SPDX-License-Identifier: Apache-2.0 */
/* T5 served by several ranks that share the layers: transformers' and PEFT's texts with and without
 * weights in blocks; at one number of ranks the same bits alone and in a crowd, with preemption and
 * several of a source; vectors and searches of one rank; a part of weights, keys and values on each
 * rank.
 *
 * labels: threads long slow */
#include "comm/comm.h"
#include "common/check.h"
#include "common/golden.h"
#include "common/rank_threads.h"
#include "common/serve_crowd.h"
#include "common/served_texts.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATH = 1024, LONGEST = 160, MOST_RANKS = 3, TIGHT = 2 * 192, NEW = 90, BEAMS = 3 };

/* What all ranks are made with, and what rank 0 does. */
typedef struct job {
    const char *name; /* of a folder of test/golden/t5 */
    ds_serve_params params;
    void (*lead)(ds_ctx *ctx, ds_server *server, void *user);
    void *user;
    ds_serve_stats stats[MOST_RANKS];
} job;

static ds_status run_rank(dsi_comm *comm, ds_ctx *ctx, job *j)
{
    char folder[PATH];
    char path[PATH + 16];
    ds_model *model = NULL;
    ds_server *server = NULL;
    const uint32_t rank = ds_comm_rank(comm);
    golden_path(folder, sizeof folder, "t5/%s", j->name);
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    DS_TRY(ds_model_from_config(ctx, path, &model));
    ds_serve_params params = j->params;
    params.source.model = model;
    params.source.weights = folder;
    params.source.max_length = LONGEST;
    params.source.comm = comm;
    ds_status status = ds_serve_create(ctx, &params, &server);
    if (status >= 0) {
        ds_serve_get_stats(server, &j->stats[rank]);
    }
    if (status >= 0 && rank > 0) {
        status = ds_serve_follow(server);
    } else if (status >= 0) {
        j->lead(ctx, server, j->user);
    }
    if (status < 0 && comm != NULL) {
        dsi_comm_abort(comm, ds_ctx_error(ctx));
    }
    ds_serve_destroy(&server);
    ds_model_destroy(&model);
    return status;
}

static ds_status run_thread(dsi_comm *comm, void *arg)
{
    return run_rank(comm, comm->ctx, arg);
}

/* On n ranks, 1: without a communicator. */
static void run_job(ds_ctx *ctx, uint32_t n, job *j)
{
    const dsi_comm_sim_options options = {.seed = n};
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

/* ---- against transformers and PEFT ---- */
/* Rows of a golden file: those of one model. */
typedef struct rows {
    const json_t *all;
    const char *name, *type; /* type NULL: with the adapters that rows name */
} rows;

static bool is_mine(const rows *r, const json_t *row)
{
    const char *type = json_string_value(json_object_get(row, "type"));
    return strcmp(json_string_value(json_object_get(row, "base")), r->name) == 0 &&
           (r->type == NULL || strcmp(type, r->type) == 0);
}

static void expect_rows(ds_ctx *ctx, ds_server *server, void *user)
{
    const rows *r = user;
    served_text texts[SERVED_TEXTS];
    size_t n = 0;
    for (size_t i = 0; i < json_array_size(r->all); ++i) {
        const json_t *row = json_array_get(r->all, i);
        const json_t *list = json_object_get(row, "texts");
        const char *adapter = json_string_value(json_object_get(row, "adapter"));
        uint64_t id = 0;
        if (!is_mine(r, row)) {
            continue;
        }
        if (adapter != NULL) {
            char path[PATH];
            golden_path(path, sizeof path, "%s", adapter);
            CHECK_OK(ctx, ds_serve_adapter_load(server, path, &id));
        }
        for (size_t t = 0; t < json_array_size(list); ++t) {
            texts[n++] = (served_text){json_array_get(list, t), id};
        }
    }
    assert_true(n > 0);
    served_texts_expect(ctx, server, texts, n, "logprobs", 1e-4);
}

static void texts_like_transformers(void **state)
{
    json_t *adapted = golden_json("t5/adapted.json");
    json_t *blocks = golden_json("t5/blocks.json");
    rows cases[] = {{adapted, "t5", NULL},
                    {adapted, "t5_untied", NULL},
                    {blocks, "blocks_tied", "q8_0"},
                    {blocks, "blocks_untied", "q4_0"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        for (uint32_t n = 2; n <= MOST_RANKS; ++n) {
            job j = {.name = cases[i].name,
                     .params = {.max_sequences = 4,
                                .max_batch_tokens = 9,
                                .source = {.dtype = DS_DTYPE_F32}},
                     .lead = expect_rows,
                     .user = &cases[i]};
            if (cases[i].type != NULL) {
                j.params.source.quantize = ds_dtype_from_name(cases[i].type);
            } else {
                j.params.adapters = 4;
                j.params.adapter_rank = 4;
            }
            run_job(*state, n, &j);
        }
    }
    json_decref(adapted);
    json_decref(blocks);
}

/* ---- bit identity ---- */
enum { ASKED = 16 };

/* What a way does beside giving texts. */
typedef struct deeds {
    int64_t n_preemptions, n_drafted, n_accepted;
} deeds;

typedef struct made {
    uint32_t ids[ASKED][NEW];
    float logprobs[ASKED][NEW];
    int64_t n[ASKED];
} made;

typedef struct crowd {
    made *made;
    deeds did;
} crowd;

static void serve_crowd(ds_ctx *ctx, ds_server *server, void *user)
{
    crowd *c = user;
    made *got = c->made;
    ds_serve_event events[CROWD_EVENTS];
    ds_serve_stats stats;
    uint64_t uids[ASKED];
    uint64_t seed = 21;
    uint32_t ids[CROWD_IDS];
    size_t n_ids = 0;
    size_t n = 0;
    memset(got, 0, sizeof *got);
    for (int k = 0; k < ASKED; ++k) {
        if (k % 4 != 3) { /* else the source of the one before */
            n_ids = 1 + crowd_below(&seed, CROWD_IDS);
            for (size_t i = 0; i < n_ids; ++i) {
                ids[i] = crowd_below(&seed, 131);
            }
        }
        const ds_serve_request r = {
            .ids = ids,
            .n = n_ids,
            .max_new_tokens = 1 + crowd_below(&seed, NEW),
            .logprobs = true,
            .sampling = {.temperature = k % 2 == 0 ? 0.0 : 0.9, .seed = (uint64_t)k}};
        CHECK_OK(ctx, ds_serve_submit(server, &r, &uids[k]));
    }
    do {
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
        for (size_t e = 0; e < n; ++e) {
            const uint64_t k = events[e].uid - uids[0];
            got->ids[k][got->n[k]] = events[e].id;
            got->logprobs[k][got->n[k]++] = events[e].logprob;
        }
        ds_serve_get_stats(server, &stats);
    } while (stats.n_running + stats.n_waiting > 0);
    assert_int_equal(stats.n_free_blocks, stats.n_blocks);
    c->did = (deeds){stats.n_preemptions, stats.n_drafted, stats.n_accepted};
}

static void same_bits_in(ds_ctx *ctx, const char *name, uint32_t n_ranks, ds_dtype dtype,
                         ds_dtype blocks, ds_dtype cells)
{
    enum { TIGHT_WAY = 1, GUESSING_WAY };
    static const ds_serve_params ways[] = {
        {.max_sequences = 1, .max_batch_tokens = 60},
        {.max_sequences = 16, .max_batch_tokens = 64, .kv_tokens = TIGHT},
        {.max_sequences = 7, .max_batch_tokens = 30, .max_draft = 2}};
    static made want, got;
    for (size_t i = 0; i < sizeof ways / sizeof *ways; ++i) {
        crowd c = {.made = i == 0 ? &want : &got};
        job j = {.name = name, .params = ways[i], .lead = serve_crowd, .user = &c};
        j.params.kv_type = cells;
        j.params.source.dtype = dtype;
        j.params.source.quantize = blocks;
        run_job(ctx, n_ranks, &j);
        assert_true((c.did.n_preemptions > 0) == (i == TIGHT_WAY));
        assert_true((c.did.n_drafted > 0) == (i == GUESSING_WAY));
        if (i > 0 && memcmp(&want, &got, sizeof want) != 0) {
            fail_msg("%s in %s on %u ranks: way %zu has other bits", name, ds_dtype_name(dtype),
                     n_ranks, i);
        }
    }
}

static void same_bits(void **state)
{
    same_bits_in(*state, "t5", 3, DS_DTYPE_F32, DS_DTYPE_NONE, DS_DTYPE_NONE);
    same_bits_in(*state, "t5_untied", 2, DS_DTYPE_BF16, DS_DTYPE_NONE, DS_DTYPE_NONE);
    same_bits_in(*state, "blocks_untied", 2, DS_DTYPE_F32, DS_DTYPE_Q8_0, DS_DTYPE_I8);
}

/* ---- against one rank ---- */
typedef struct numbers {
    float vector[64];
    uint32_t ids[16];
    int64_t n_ids;
    double score;
} numbers;

static void take_numbers(ds_ctx *ctx, ds_server *server, void *user)
{
    numbers *out = user;
    uint32_t ids[70];
    uint64_t seed = 3;
    uint64_t uid = 0;
    ds_serve_event events[4];
    ds_serve_stats stats;
    size_t n = 0;
    for (int i = 0; i < 70; ++i) {
        ids[i] = crowd_below(&seed, 131);
    }
    ds_serve_get_stats(server, &stats);
    CHECK_OK(ctx, ds_serve_embed(server, ids, 70, DS_POOL_MEAN, 0, &uid));
    CHECK_OK(ctx, ds_serve_step(server, events, &n));
    assert_true(n == 1 && events[0].finish == DS_SERVE_VECTOR && stats.width <= 64);
    memcpy(out->vector, events[0].vector, (size_t)stats.width * sizeof *out->vector);
    const ds_beams beams = {.n = BEAMS, .length_penalty = 1.0};
    const ds_serve_request r = {.ids = ids, .n = 30, .max_new_tokens = 12, .beams = &beams};
    CHECK_OK(ctx, ds_serve_submit(server, &r, &uid));
    for (n = 0; n == 0;) {
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
    }
    assert_true(events[0].finish == DS_SERVE_BEAMS && events[0].beams[0].n <= 16);
    out->n_ids = events[0].beams[0].n;
    memcpy(out->ids, events[0].beams[0].ids, (size_t)out->n_ids * sizeof *out->ids);
    out->score = events[0].beams[0].score;
}

/* Ranks that divide heads and widths have a part of each layer; the bias table and norms are small.
 */
static void numbers_of_one_rank(void **state)
{
    static const struct {
        const char *name;
        uint32_t n;
        double weights;  /* of one rank's at most */
        int64_t n_parts; /* of keys and values: ranks, or 1 where they do not divide the heads */
    } cases[] = {{"t5", 3, 0.9, 3}, {"t5", 2, 0.9, 1}, {"blocks_untied", 2, 0.6, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        numbers want = {.n_ids = 0};
        numbers got = {.n_ids = 0};
        job one = {.name = cases[i].name,
                   .params = {.max_sequences = 4,
                              .max_batch_tokens = 32,
                              .embeddings = true,
                              .source = {.dtype = DS_DTYPE_F32}},
                   .lead = take_numbers,
                   .user = &want};
        run_job(*state, 1, &one);
        job several = one;
        several.user = &got;
        run_job(*state, cases[i].n, &several);
        for (int k = 0; k < 64; ++k) {
            assert_true(fabsf(want.vector[k] - got.vector[k]) < 2e-5f);
        }
        assert_int_equal(want.n_ids, got.n_ids);
        assert_memory_equal(want.ids, got.ids, sizeof want.ids);
        assert_true(fabs(want.score - got.score) < 2e-5);
        const double weights = several.stats[1].weight_bytes / one.stats[0].weight_bytes;
        const double cells = several.stats[1].kv_token_bytes / one.stats[0].kv_token_bytes;
        if (!(weights <= cases[i].weights && fabs(cells * (double)cases[i].n_parts - 1.0) < 1e-9)) {
            fail_msg("%s on %u ranks: %.2f of the weights, %.2f of keys and values on a rank",
                     cases[i].name, cases[i].n, weights, cells);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(texts_like_transformers),
                                       cmocka_unit_test(same_bits),
                                       cmocka_unit_test(numbers_of_one_rank)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
