/* SPDX-License-Identifier: Apache-2.0 */
/* Adapters of requests: the ids of a generator with that adapter alone; in a crowd of several and
 * of none the same bits; nothing changes for requests without one; slots are taken again; what is
 * refused.
 *
 * labels: threads */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/serve.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { NEW = 24, PROMPT = 20, REQUESTS = 18, EVENTS = 64, PATH = 512 };

#define GOLDEN DS_SOURCE_DIR "/test/golden/adapter/"

static ds_model *open_model(ds_ctx *ctx, const char *name, char folder[PATH])
{
    ds_model *model = NULL;
    char path[PATH + 16];
    (void)snprintf(folder, PATH, GOLDEN "models/%s", name);
    (void)snprintf(path, sizeof path, "%s/config.json", folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &model));
    return model;
}

static ds_server *open_server(ds_ctx *ctx, const ds_model *model, const char *folder,
                              ds_serve_params params, ds_dtype dtype)
{
    ds_server *server = NULL;
    params.source = (ds_generator_params){.model = model, .weights = folder, .dtype = dtype};
    params.kv_tokens = 1280;
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
    return server;
}

typedef struct answer {
    uint32_t ids[NEW];
    float logprobs[NEW];
    int n;
} answer;

static void make_prompt(int k, uint32_t ids[PROMPT])
{
    uint64_t seed = (uint64_t)(k / 3) * 77 + 5; /* three requests have the same one */
    for (int i = 0; i < PROMPT; ++i) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (uint32_t)(seed >> 56);
    }
}

/* All requests together; adapter k % 3 of each, 0 that of none. */
static void serve_all(ds_ctx *ctx, ds_server *server, const uint64_t of[3], answer *got)
{
    uint64_t uids[REQUESTS];
    ds_serve_event events[EVENTS];
    size_t n = 0;
    ds_serve_stats stats;
    memset(got, 0, REQUESTS * sizeof *got);
    for (int k = 0; k < REQUESTS; ++k) {
        uint32_t prompt[PROMPT];
        make_prompt(k, prompt);
        const ds_serve_request r = {.ids = prompt,
                                    .n = PROMPT,
                                    .max_new_tokens = NEW,
                                    .logprobs = true,
                                    .adapter = of[k % 3]};
        CHECK_OK(ctx, ds_serve_submit(server, &r, &uids[k]));
    }
    do {
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
        for (size_t e = 0; e < n; ++e) {
            for (int k = 0; k < REQUESTS; ++k) {
                if (uids[k] == events[e].uid) {
                    got[k].ids[got[k].n] = events[e].id;
                    got[k].logprobs[got[k].n++] = events[e].logprob;
                }
            }
        }
        ds_serve_get_stats(server, &stats);
    } while (stats.n_running + stats.n_waiting > 0);
}

/* The ids of a generator with the adapter; folder NULL: with none. */
static void expect_generated(ds_ctx *ctx, const ds_model *model, const char *weights,
                             const char *adapter_folder, int k, const answer *got)
{
    ds_adapter *adapter = NULL;
    ds_generator *generator = NULL;
    uint32_t prompt[PROMPT];
    const ds_sampling greedy = {0};
    if (adapter_folder != NULL) {
        CHECK_OK(ctx, ds_adapter_open(ctx, adapter_folder, &adapter));
    }
    const ds_generator_params params = {
        .model = model, .weights = weights, .adapter = adapter, .dtype = DS_DTYPE_F32};
    CHECK_OK(ctx, ds_generator_create(ctx, &params, &generator));
    make_prompt(k, prompt);
    CHECK_OK(ctx, ds_generator_prompt(generator, prompt, PROMPT));
    for (int i = 0; i < NEW; ++i) {
        uint32_t id = 0;
        int64_t vocab = 0;
        const float *logits = ds_generator_logits(generator, &vocab);
        double sum = 0.0;
        for (int64_t v = 0; v < vocab; ++v) {
            sum += exp((double)logits[v]);
        }
        const double want = (double)logits[got->ids[i]] - log(sum);
        assert_true(fabs(want - (double)got->logprobs[i]) < 1e-4);
        CHECK_OK(ctx, ds_generator_next(generator, &greedy, &id));
        assert_int_equal(id, got->ids[i]);
    }
    ds_generator_destroy(&generator);
    ds_adapter_destroy(&adapter);
}

static void serves(ds_ctx *ctx, const char *name, const char *one, const char *two)
{
    static const ds_serve_params crowd = {
        .max_sequences = 9, .max_batch_tokens = 64, .adapters = 2, .adapter_rank = 8};
    static const ds_serve_params alone = {
        .max_sequences = 1, .max_batch_tokens = 16, .adapters = 5, .adapter_rank = 8};
    static const ds_serve_params plain = {.max_sequences = 9, .max_batch_tokens = 64};
    char folder[PATH];
    uint64_t ids[3] = {0};
    uint64_t spare = 0;
    answer *got = calloc(3 * REQUESTS, sizeof *got);
    const char *folders[3] = {NULL, one, two};
    assert_non_null(got);
    ds_model *model = open_model(ctx, name, folder);
    ds_server *server = open_server(ctx, model, folder, crowd, DS_DTYPE_F32);
    CHECK_OK(ctx, ds_serve_adapter_load(server, one, &ids[1]));
    CHECK_OK(ctx, ds_serve_adapter_load(server, two, &ids[2]));
    CHECK_FAILS(ctx, ds_serve_adapter_load(server, one, &spare), DS_ERR_LIMIT, "all 2 slots");
    serve_all(ctx, server, ids, got);
    assert_int_not_equal(memcmp(&got[0], &got[1], sizeof *got), 0);
    assert_int_not_equal(memcmp(&got[1], &got[2], sizeof *got), 0);
    for (int k = 0; k < 6; ++k) {
        expect_generated(ctx, model, folder, folders[k % 3], k, &got[k]);
    }
    /* unloaded and loaded the other way round, in the slots that are left */
    CHECK_OK(ctx, ds_serve_adapter_unload(server, ids[1]));
    CHECK_FAILS(ctx, ds_serve_adapter_unload(server, ids[1]), DS_ERR_NOT_FOUND, "adapter");
    const ds_serve_request gone = {
        .ids = (uint32_t[]){1}, .n = 1, .max_new_tokens = 1, .adapter = ids[1]};
    CHECK_FAILS(ctx, ds_serve_submit(server, &gone, &spare), DS_ERR_NOT_FOUND, "adapter");
    CHECK_OK(ctx, ds_serve_adapter_load(server, two, &spare));
    CHECK_OK(ctx, ds_serve_adapter_unload(server, ids[2]));
    CHECK_OK(ctx, ds_serve_adapter_load(server, one, &ids[1]));
    ids[2] = spare;
    serve_all(ctx, server, ids, got + REQUESTS);
    assert_memory_equal(got, got + REQUESTS, REQUESTS * sizeof *got);
    ds_serve_destroy(&server);

    server = open_server(ctx, model, folder, alone, DS_DTYPE_F32);
    CHECK_OK(ctx, ds_serve_adapter_load(server, two, &ids[2]));
    CHECK_OK(ctx, ds_serve_adapter_load(server, one, &ids[1]));
    serve_all(ctx, server, ids, got + REQUESTS);
    assert_memory_equal(got, got + REQUESTS, REQUESTS * sizeof *got);
    ds_serve_destroy(&server);

    server = open_server(ctx, model, folder, plain, DS_DTYPE_F32);
    serve_all(ctx, server, (uint64_t[]){0, 0, 0}, got + REQUESTS);
    for (int k = 0; k < REQUESTS; k += 3) {
        assert_memory_equal(&got[k], &got[REQUESTS + k], sizeof *got);
    }
    ds_serve_destroy(&server);
    ds_model_destroy(&model);
    free(got);
}

static void several_in_a_crowd(void **state)
{
    serves(*state, "llama", GOLDEN "lora/end", GOLDEN "rslora/end");
    serves(*state, "gpt2", GOLDEN "conv1d/end", GOLDEN "conv1d/start");
}

/* The same layers as parameters: the same adapter. */
static void named_as_parameters(void **state)
{
    ds_ctx *ctx = *state;
    const ds_serve_params params = {
        .max_sequences = 9, .max_batch_tokens = 64, .adapters = 2, .adapter_rank = 4};
    char folder[PATH];
    char *out = scratch_make();
    uint64_t ids[3] = {0};
    size_t n = 0;
    answer *got = calloc(REQUESTS, sizeof *got);
    assert_non_null(got);
    char *weights = scratch_read(GOLDEN "lora/end/adapter_model.safetensors", &n);
    scratch_write(scratch_path(out, "adapter_model.safetensors"), weights, n);
    free(weights);
    json_t *config = json_load_file(GOLDEN "lora/end/adapter_config.json", 0, NULL);
    (void)json_object_set_new(config, "target_modules", json_pack("[s,s]", "q_proj", "down_proj"));
    (void)json_object_set_new(config, "target_parameters", json_pack("[s]", "v_proj.weight"));
    assert_int_equal(json_dump_file(config, scratch_path(out, "adapter_config.json"), 0), 0);
    json_decref(config);
    ds_model *model = open_model(ctx, "llama", folder);
    ds_server *server = open_server(ctx, model, folder, params, DS_DTYPE_F32);
    CHECK_OK(ctx, ds_serve_adapter_load(server, GOLDEN "lora/end", &ids[1]));
    CHECK_OK(ctx, ds_serve_adapter_load(server, out, &ids[2]));
    serve_all(ctx, server, ids, got);
    for (int k = 0; k < REQUESTS; k += 3) {
        assert_memory_equal(&got[k + 1], &got[k + 2], sizeof *got);
    }
    ds_serve_destroy(&server);
    ds_model_destroy(&model);
    scratch_remove(out);
    free(got);
}

static void refuses(void **state)
{
    ds_ctx *ctx = *state;
    char folder[PATH];
    uint64_t id = 0;
    ds_model *model = open_model(ctx, "llama", folder);
    ds_server *server = open_server(
        ctx, model, folder, (ds_serve_params){.adapters = 1, .adapter_rank = 3}, DS_DTYPE_BF16);
    CHECK_FAILS(ctx, ds_serve_adapter_load(server, GOLDEN "lora/end", &id), DS_ERR_LIMIT,
                "has rank 4");
    CHECK_FAILS(ctx, ds_serve_adapter_load(server, GOLDEN "dora/end", &id), DS_ERR_UNSUPPORTED,
                "DoRA");
    CHECK_FAILS(ctx, ds_serve_adapter_load(server, GOLDEN "saved/end", &id), DS_ERR_UNSUPPORTED,
                "modules_to_save");
    CHECK_FAILS(ctx, ds_serve_adapter_load(server, GOLDEN "nowhere", &id), DS_ERR_NOT_FOUND,
                "nowhere");
    ds_serve_destroy(&server);
    ds_model_destroy(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(several_in_a_crowd),
                                       cmocka_unit_test(named_as_parameters),
                                       cmocka_unit_test(refuses)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
