/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters of requests on T5: PEFT's greedy ids, log-probabilities and vectors, of several in one
 * crowd, on the encoder, the decoder and what it reads of a source; slots are taken again; what is
 * refused. Their bits: test_serve_t5_bits.
 *
 * labels: threads long */
#include "common/check.h"
#include "common/golden.h"
#include "common/served_texts.h"

#include <deepspeed/adapter.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { PATH = 1024, LONGEST = 96, ROWS = 8, TIGHT = 2 * 128 };

static ds_model *open_model(ds_ctx *ctx, const char *base, char folder[PATH])
{
    ds_model *model = NULL;
    char path[PATH + 16];
    golden_path(folder, PATH, "t5/%s", base);
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &model));
    return model;
}

static ds_server *open_server(ds_ctx *ctx, const ds_model *model, const char *folder,
                              ds_serve_params params)
{
    ds_server *server = NULL;
    params.source = (ds_generator_params){
        .model = model, .weights = folder, .max_length = LONGEST, .dtype = DS_DTYPE_F32};
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
    return server;
}

static uint64_t load(ds_ctx *ctx, ds_server *server, const char *name)
{
    char path[PATH];
    uint64_t id = 0;
    golden_path(path, sizeof path, "%s", name);
    CHECK_OK(ctx, ds_serve_adapter_load(server, path, &id));
    return id;
}

static const char *adapter_of(const json_t *row)
{
    return json_string_value(json_object_get(row, "adapter"));
}

/* The mean of the encoder's rows, with a row's adapter. */
static void expect_vector(ds_ctx *ctx, ds_server *server, const json_t *row, uint64_t adapter)
{
    const json_t *want = json_object_get(row, "vector");
    uint32_t ids[SERVED_IDS];
    ds_serve_event events[4];
    uint64_t uid = 0;
    size_t n = 0;
    const size_t n_ids =
        served_ids(json_array_get(json_object_get(row, "texts"), 1), "source", ids);
    CHECK_OK(ctx, ds_serve_embed(server, ids, n_ids, DS_POOL_MEAN, adapter, &uid));
    while (n == 0) { /* in turn with texts */
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
    }
    assert_int_equal(events[0].finish, DS_SERVE_VECTOR);
    for (size_t i = 0; i < json_array_size(want); ++i) {
        const double x = json_number_value(json_array_get(want, i));
        assert_true(fabs((double)events[0].vector[i] - x) < 2e-5);
    }
}

/* All rows of a model in one crowd; every: the adapters in other slots, by where they begin. */
static void rows_of(ds_ctx *ctx, const json_t *rows, const char *base, ds_serve_params sizes,
                    size_t begin)
{
    char folder[PATH];
    const json_t *mine[ROWS];
    uint64_t ids[ROWS] = {0};
    served_text texts[SERVED_TEXTS];
    size_t n = 0;
    size_t n_texts = 0;
    for (size_t i = 0; i < json_array_size(rows); ++i) {
        const json_t *row = json_array_get(rows, i);
        if (strcmp(json_string_value(json_object_get(row, "base")), base) == 0) {
            mine[n++] = row;
        }
    }
    ds_model *model = open_model(ctx, base, folder);
    sizes.adapters = (int64_t)n;
    sizes.adapter_rank = 4;
    sizes.embeddings = true;
    ds_server *server = open_server(ctx, model, folder, sizes);
    for (size_t i = 0; i < n; ++i) {
        const size_t k = (begin + i) % n;
        ids[k] = adapter_of(mine[k]) != NULL ? load(ctx, server, adapter_of(mine[k])) : 0;
    }
    for (size_t t = 0; t < 3; ++t) { /* neighbours have the same source, and other adapters */
        for (size_t k = 0; k < n; ++k) {
            texts[n_texts++] =
                (served_text){json_array_get(json_object_get(mine[k], "texts"), t), ids[k]};
        }
    }
    served_texts_expect(ctx, server, texts, n_texts, "logprobs", 1e-4);
    for (size_t k = 0; k < n; ++k) {
        expect_vector(ctx, server, mine[k], ids[k]);
    }
    ds_serve_destroy(&server);
    ds_model_destroy(&model);
}

static void several_like_peft(void **state)
{
    static const ds_serve_params ways[] = {
        {.max_sequences = 8, .max_batch_tokens = 64},
        {.max_sequences = 3, .max_batch_tokens = 3, .kv_tokens = TIGHT},
        {.max_sequences = 1, .max_batch_tokens = 8, .max_draft = 3}};
    json_t *rows = golden_json("t5/adapted.json");
    for (size_t w = 0; w < sizeof ways / sizeof *ways; ++w) {
        rows_of(*state, rows, "t5", ways[w], w);
        rows_of(*state, rows, "t5_untied", ways[w], w + 1);
    }
    json_decref(rows);
}

/* A slot's next adapter leaves nothing of the one before, and a request without one nothing of any:
 * of the encoder alone behind one of all. */
static void slots_are_taken_again(void **state)
{
    ds_ctx *ctx = *state;
    char folder[PATH];
    json_t *rows = golden_json("t5/adapted.json");
    ds_model *model = open_model(ctx, "t5", folder);
    ds_server *server =
        open_server(ctx, model, folder,
                    (ds_serve_params){.adapters = 1, .adapter_rank = 4, .max_sequences = 4});
    for (size_t i = 5; i > 0; --i) {
        const json_t *row = json_array_get(rows, i - 1);
        served_text texts[2] = {{json_array_get(json_object_get(row, "texts"), 1), 0},
                                {json_array_get(json_object_get(row, "texts"), 2), 0}};
        const uint64_t id = adapter_of(row) != NULL ? load(ctx, server, adapter_of(row)) : 0;
        texts[0].adapter = texts[1].adapter = id;
        served_texts_expect(ctx, server, texts, 2, "logprobs", 1e-4);
        if (id != 0) {
            CHECK_OK(ctx, ds_serve_adapter_unload(server, id));
        }
    }
    ds_serve_destroy(&server);
    ds_model_destroy(&model);
    json_decref(rows);
}

typedef struct search {
    uint32_t ids[SERVED_IDS];
    int64_t n;
    double score;
} search;

static void take_search(ds_ctx *ctx, ds_server *server, const json_t *text, uint64_t adapter,
                        search *out)
{
    static const ds_beams beams = {.n = 3, .length_penalty = 1.0};
    uint32_t source[SERVED_IDS];
    ds_serve_event events[4];
    uint64_t uid = 0;
    size_t n = 0;
    const ds_serve_request r = {.ids = source,
                                .n = served_ids(text, "source", source),
                                .max_new_tokens = 20,
                                .beams = &beams,
                                .adapter = adapter};
    CHECK_OK(ctx, ds_serve_submit(server, &r, &uid));
    while (n == 0) {
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
    }
    assert_int_equal(events[0].finish, DS_SERVE_BEAMS);
    out->n = events[0].beams[0].n;
    out->score = events[0].beams[0].score;
    memcpy(out->ids, events[0].beams[0].ids, (size_t)out->n * sizeof *out->ids);
}

/* A search's beams have the adapter that the request names: those of a server of that adapter. */
static void searches_have_an_adapter(void **state)
{
    static const char *const names[] = {"t5/adapters/cross", "adapter/t5_lora/end"};
    ds_ctx *ctx = *state;
    char folder[PATH];
    json_t *rows = golden_json("t5/adapted.json");
    const json_t *text = json_array_get(json_object_get(json_array_get(rows, 0), "texts"), 1);
    ds_model *model = open_model(ctx, "t5", folder);
    ds_server *server =
        open_server(ctx, model, folder,
                    (ds_serve_params){.adapters = 2, .adapter_rank = 4, .max_sequences = 4});
    for (int k = 0; k < 2; ++k) {
        char path[PATH];
        search want;
        search got;
        ds_adapter *adapter = NULL;
        ds_server *other = NULL;
        golden_path(path, sizeof path, "%s", names[k]);
        CHECK_OK(ctx, ds_adapter_open(ctx, path, &adapter));
        const ds_serve_params params = {.source = {.model = model,
                                                   .weights = folder,
                                                   .max_length = LONGEST,
                                                   .dtype = DS_DTYPE_F32,
                                                   .adapter = adapter},
                                        .max_sequences = 4};
        CHECK_OK(ctx, ds_serve_create(ctx, &params, &other));
        take_search(ctx, server, text, load(ctx, server, names[k]), &got);
        take_search(ctx, other, text, 0, &want);
        assert_int_equal(got.n, want.n);
        assert_memory_equal(got.ids, want.ids, (size_t)want.n * sizeof *want.ids);
        assert_true(fabs(got.score - want.score) < 1e-4);
        ds_serve_destroy(&other);
        ds_adapter_destroy(&adapter);
    }
    ds_serve_destroy(&server);
    ds_model_destroy(&model);
    json_decref(rows);
}

static void refuse(ds_ctx *ctx, ds_server *server, const char *name, ds_status status,
                   const char *text)
{
    char path[PATH];
    uint64_t id = 0;
    golden_path(path, sizeof path, "%s", name);
    CHECK_FAILS(ctx, ds_serve_adapter_load(server, path, &id), status, text);
}

static void refused_by_name(void **state)
{
    ds_ctx *ctx = *state;
    char folder[PATH];
    ds_model *model = open_model(ctx, "t5_untied", folder);
    ds_server *server =
        open_server(ctx, model, folder, (ds_serve_params){.adapters = 1, .adapter_rank = 3});
    refuse(ctx, server, "adapter/t5_all/end", DS_ERR_LIMIT, "has rank 4");
    refuse(ctx, server, "adapter/t5_dora/end", DS_ERR_UNSUPPORTED, "DoRA");
    refuse(ctx, server, "adapter/t5_saved/end", DS_ERR_UNSUPPORTED, "modules_to_save");
    refuse(ctx, server, "adapter/lora/end", DS_ERR_UNSUPPORTED, "task_type");
    refuse(ctx, server, "t5/adapters/encoder", DS_ERR_FORMAT, "of no module");
    ds_serve_destroy(&server);
    ds_model_destroy(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(several_like_peft), cmocka_unit_test(slots_are_taken_again),
        cmocka_unit_test(searches_have_an_adapter), cmocka_unit_test(refused_by_name)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
