/* SPDX-License-Identifier: Apache-2.0 */
/* T5 served with weights in blocks: transformers' ids and log-probabilities on the same matrices
 * made real numbers, with inputs rounded as the products round them, and near those without; of
 * folders of few bits as they are, and as real numbers; the ids of ds_generator; what is planned is
 * what it maps.
 *
 * labels: threads long */
#include "common/check.h"
#include "common/golden.h"
#include "common/serve_crowd.h"
#include "common/served_texts.h"
#include "serve/server.h"

#include <deepspeed/infer.h>
#include <stdio.h>
#include <string.h>

enum { PATH = 1024, LONGEST = 96 };

static ds_model *open_model(ds_ctx *ctx, const char *base, char folder[PATH])
{
    ds_model *model = NULL;
    char path[PATH + 16];
    golden_path(folder, PATH, "t5/%s", base);
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &model));
    return model;
}

/* The texts of a row with the type that it says, or with matrices read as real numbers. */
static void texts_of(ds_ctx *ctx, const json_t *row, bool real, const char *key, double most)
{
    const json_t *list = json_object_get(row, "texts");
    const char *type = json_string_value(json_object_get(row, "type"));
    char folder[PATH];
    served_text texts[SERVED_TEXTS];
    ds_server *server = NULL;
    ds_model *model = open_model(ctx, json_string_value(json_object_get(row, "base")), folder);
    const ds_serve_params params = {
        .source = {.model = model,
                   .weights = folder,
                   .max_length = LONGEST,
                   .dtype = DS_DTYPE_F32,
                   .keep_blocks = !real && strcmp(type, "file") == 0,
                   .quantize = real ? DS_DTYPE_NONE : ds_dtype_from_name(type)},
        .max_sequences = 3};
    for (size_t t = 0; t < json_array_size(list); ++t) {
        texts[t] = (served_text){json_array_get(list, t), 0};
    }
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
    served_texts_expect(ctx, server, texts, json_array_size(list), key, most);
    ds_serve_destroy(&server);
    ds_model_destroy(&model);
}

/* transformers' numbers differ by what rounding inputs costs where those of its layers are not
 * rounded (`plain`). */
static void texts_like_transformers(void **state)
{
    json_t *rows = golden_json("t5/blocks.json");
    assert_int_equal(json_array_size(rows), 12);
    for (size_t i = 0; i < json_array_size(rows); ++i) {
        const json_t *row = json_array_get(rows, i);
        const char *type = json_string_value(json_object_get(row, "type"));
        texts_of(*state, row, false, "logprobs", 1e-4);
        texts_of(*state, row, false, "plain", 0.25);
        if (strcmp(type, "file") == 0 || strcmp(type, "none") == 0) {
            texts_of(*state, row, true, "plain", 1e-4);
        }
    }
    json_decref(rows);
}

/* Greedy and drawn. */
static void ids_of_a_generator(void **state)
{
    enum { SOURCES = 6, MADE = 20, MOST = 60 };
    static const ds_dtype types[] = {DS_DTYPE_Q8_0, DS_DTYPE_Q4_0, DS_DTYPE_Q6_K};
    ds_ctx *ctx = *state;
    char folder[PATH];
    uint64_t seed = 11;
    ds_model *model = open_model(ctx, "blocks_untied", folder);
    for (size_t t = 0; t < sizeof types / sizeof *types; ++t) {
        ds_generator *generator = NULL;
        ds_server *server = NULL;
        const ds_serve_params params = {.source = {.model = model,
                                                   .weights = folder,
                                                   .max_length = LONGEST,
                                                   .dtype = DS_DTYPE_F32,
                                                   .quantize = types[t]},
                                        .max_sequences = 2};
        CHECK_OK(ctx, ds_generator_create(ctx, &params.source, &generator));
        CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
        for (int k = 0; k < SOURCES; ++k) {
            uint32_t ids[MOST];
            uint32_t made[MADE];
            ds_serve_event events[2];
            uint64_t uid = 0;
            size_t n_events = 0;
            size_t got = 0;
            const size_t n = 1 + crowd_below(&seed, MOST);
            const ds_sampling sampling = {.temperature = k % 2 == 0 ? 0.0 : 0.9,
                                          .seed = (uint64_t)k};
            for (size_t i = 0; i < n; ++i) {
                ids[i] = crowd_below(&seed, 131);
            }
            CHECK_OK(ctx, ds_generator_prompt(generator, ids, n));
            for (int i = 0; i < MADE; ++i) {
                CHECK_OK(ctx, ds_generator_next(generator, &sampling, &made[i]));
            }
            const ds_serve_request r = {
                .ids = ids, .n = n, .max_new_tokens = MADE, .sampling = sampling};
            CHECK_OK(ctx, ds_serve_submit(server, &r, &uid));
            while (got < MADE) {
                CHECK_OK(ctx, ds_serve_step(server, events, &n_events));
                for (size_t e = 0; e < n_events; ++e) {
                    assert_int_equal(events[e].id, made[got++]);
                }
            }
        }
        ds_serve_destroy(&server);
        ds_generator_destroy(&generator);
    }
    ds_model_destroy(&model);
}

/* Panels of 16 rows, of 32 columns a block: 34 bytes of q8_0, 18 of q4_0. */
static size_t blocks_of(int64_t rows, int64_t columns, size_t bytes)
{
    return (size_t)((rows + 15) / 16 * 16 * columns / 32) * bytes;
}

static void planned_is_mapped(void **state)
{
    static const struct {
        const char *base;
        ds_dtype type;
    } cases[] = {{"blocks_tied", DS_DTYPE_Q8_0},
                 {"blocks_tied", DS_DTYPE_Q4_0},
                 {"blocks_untied", DS_DTYPE_Q4_0},
                 {"blocks_untied", DS_DTYPE_Q5_K}};
    ds_ctx *ctx = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        char folder[PATH];
        ds_serve_needs planned;
        ds_serve_needs real;
        ds_server *server = NULL;
        ds_model *model = open_model(ctx, cases[i].base, folder);
        ds_serve_params params = {
            .source = {.model = model, .max_length = LONGEST, .dtype = DS_DTYPE_BF16},
            .max_sequences = 5};
        CHECK_OK(ctx, ds_serve_plan(ctx, &params, &real));
        params.source.quantize = cases[i].type;
        CHECK_OK(ctx, ds_serve_plan(ctx, &params, &planned));
        params.source.weights = folder; /* whose real numbers are fp32: nothing is bound */
        CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
        const size_t threads = ds_ctx_n_threads(ctx);
        const size_t drawn = threads * (131 * 18 + LONGEST * 4) + 131 * 12;
        assert_int_equal(dsi_exec_bytes(server->generator->exec),
                         planned.weights + planned.keys_values + planned.states + planned.batch -
                             drawn);
        assert_true(planned.weights < real.weights);
        assert_int_equal(planned.keys_values, real.keys_values);
        ds_serve_destroy(&server);
        ds_model_destroy(&model);
    }
}

/* By hand: one type for all matrices, a tied table in q8_0, norms and biases real. */
static void weights_are_counted(void **state)
{
    ds_ctx *ctx = *state;
    char folder[PATH];
    ds_serve_stats stats;
    ds_server *server = NULL;
    ds_model *model = open_model(ctx, "blocks_tied", folder);
    const ds_serve_params params = {.source = {.model = model,
                                               .weights = folder,
                                               .max_length = LONGEST,
                                               .dtype = DS_DTYPE_F32,
                                               .quantize = DS_DTYPE_Q4_0}};
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
    ds_serve_get_stats(server, &stats);
    const size_t attention = 4 * blocks_of(32, 32, 18);
    const size_t forward = blocks_of(96, 32, 18) + blocks_of(32, 96, 18);
    const size_t norms = (2 * 2 + 2 * 3 + 2) * 32 * sizeof(float);
    const size_t biases = (size_t)(2 * 8 * 2) * sizeof(float);
    const size_t want = 2 * (attention + forward) + 2 * (2 * attention + forward) +
                        blocks_of(131, 32, 34) + norms + biases;
    assert_int_equal((size_t)stats.weight_bytes, want);
    ds_serve_destroy(&server);
    ds_model_destroy(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_like_transformers), cmocka_unit_test(ids_of_a_generator),
        cmocka_unit_test(planned_is_mapped), cmocka_unit_test(weights_are_counted)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
