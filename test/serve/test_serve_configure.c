/* SPDX-License-Identifier: Apache-2.0 */
/* What files of inference engines make of params: sizes, keys and values, limits of put; MII's
 * pipeline in this process, against put of the same ids. */
#include "base/machine_memory.h"
#include "common/parity.h"
#include "common/scratch.h"

#include <deepspeed/mii.h>
#include <deepspeed/tokenizer.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static ds_config *load(ds_ctx *ctx, const char *text)
{
    const ds_config_params any = {.kind = DS_CONFIG_ANY};
    ds_config *config = NULL;
    CHECK_OK(ctx, ds_config_load_text(ctx, "ds.json", text, strlen(text), &any, &config));
    CHECK_OK(ctx, ds_config_resolve(config, 1, NULL));
    return config;
}

static const char small[] =
    "{\"state_manager\": {\"max_tracked_sequences\": 3, \"max_ragged_batch_size\": 32, "
    "\"max_ragged_sequence_count\": 2, \"max_context\": 40, \"memory_config\": {\"mode\": "
    "\"allocate\", \"size\": 5}}}";

static void sets_sizes(void **state)
{
    parity_case p;
    parity_open(*state, "llama3", &p);
    ds_config *config = load(*state, small);
    ds_serve_params params = {.source = {.model = p.model, .weights = p.folder}};
    CHECK_OK(*state, ds_serve_configure(*state, config, &params));
    assert_int_equal(params.source.max_length, 40);
    assert_int_equal(params.max_sequences, 2);
    assert_int_equal(params.max_batch_tokens, 32);
    assert_int_equal(params.max_tracked, 3);
    assert_int_equal(params.kv_block, 128); /* heads of up to 64 values */
    assert_int_equal(params.kv_tokens, 5 * 128);
    ds_config_destroy(&config);
    /* what is asked to stay free does; no more than all tracked texts can use */
    config = load(*state, "{\"state_manager\": {\"max_tracked_sequences\": 6, "
                          "\"max_ragged_sequence_count\": 2, \"max_context\": 40}}");
    params = (ds_serve_params){.source = {.model = p.model, .weights = p.folder}};
    CHECK_OK(*state, ds_serve_configure(*state, config, &params));
    assert_int_equal(params.kv_tokens, 6 * 128);
    ds_config_destroy(&config);
    config = load(*state, "{\"state_manager\": {\"max_context\": 40, \"memory_config\": {\"size\": "
                          "9000000000000000}}}");
    if (dsi_machine_memory() > 0) {
        CHECK_FAILS(*state, ds_serve_configure(*state, config, &params), DS_ERR_NOMEM,
                    "cannot stay free");
    }
    ds_config_destroy(&config);
    config = load(*state, "{\"dtype\": \"int8\", \"min_out_tokens\": 1000}");
    CHECK_FAILS(*state, ds_serve_configure(*state, config, &params), DS_ERR_LIMIT,
                "min_out_tokens is 1000");
    ds_config_destroy(&config);
    parity_close(&p);
}

static void counts_experts(void **state)
{
    parity_case p;
    parity_open(*state, "qwen3_moe", &p);
    ds_generator_params params = {.model = p.model};
    ds_config *config = load(*state, "{\"dtype\": \"fp32\", \"moe\": {\"num_experts\": [77]}}");
    CHECK_FAILS(*state, ds_generator_configure(*state, config, &params), DS_ERR_CONFIG,
                "moe_experts is 77, but the model has 6 experts");
    ds_config_destroy(&config);
    config = load(*state, "{\"dtype\": \"fp32\", \"moe\": {\"num_experts\": [6, 6]}}");
    CHECK_OK(*state, ds_generator_configure(*state, config, &params));
    assert_int_equal(params.dtype, DS_DTYPE_F32);
    ds_config_destroy(&config);
    parity_close(&p);
}

static void tracks_no_more(void **state)
{
    parity_case p;
    parity_open(*state, "llama3", &p);
    ds_config *config = load(*state, small);
    ds_serve_params params = {.source = {.model = p.model, .weights = p.folder}};
    ds_server *server = NULL;
    const float *logits = NULL;
    const uint32_t ids[2] = {1, 2};
    const size_t lengths[2] = {1, 1};
    int64_t n = 0;
    int64_t blocks = 0;
    CHECK_OK(*state, ds_serve_configure(*state, config, &params));
    CHECK_OK(*state, ds_serve_create(*state, &params, &server));
    const uint64_t first[2] = {1, 2};
    const uint64_t second[2] = {3, 4};
    CHECK_OK(*state, ds_serve_put(server, 2, first, ids, lengths, &logits));
    CHECK_FAILS(*state, ds_serve_put(server, 2, second, ids, lengths, &logits), DS_ERR_LIMIT,
                "4 sequences would be tracked, max_tracked is 3");
    CHECK_OK(*state, ds_serve_put(server, 1, second, ids, lengths, &logits));
    ds_serve_query(server, 4, 1, 5, &n, &blocks);
    assert_int_equal(n, 0);
    ds_serve_query(server, 3, 1, 5, &n, &blocks);
    assert_int_equal(n, 1);
    CHECK_OK(*state, ds_serve_flush(server, 1));
    ds_serve_query(server, 4, 1, 5, &n, &blocks);
    assert_int_equal(n, 1);
    ds_serve_destroy(&server);
    ds_config_destroy(&config);
    parity_close(&p);
}

static size_t likeliest(const float *logits, int64_t n)
{
    size_t best = 0;
    for (int64_t i = 1; i < n; ++i) {
        best = logits[i] > logits[best] ? (size_t)i : best;
    }
    return best;
}

/* Greedy: the text is the bytes of the ids that put gives. */
static void writes_texts_of(void **state, const char *name,
                            void (*open_case)(ds_ctx *, const char *, parity_case *))
{
    enum { NEW = 9 };
    static const char *const prompts[] = {"ab", "\x01\x02\x03", "ab"};
    parity_case p;
    ds_pipeline *pipeline = NULL;
    const ds_text_response *r = NULL;
    open_case(*state, name, &p);
    ds_config *config = load(*state, "{\"dtype\": \"fp32\", \"max_out_tokens\": 40}");
    const ds_pipeline_params params = {.model = p.folder, .tokenizer = "bytes", .config = config};
    const ds_text_options options = {.greedy = true, .max_new_tokens = NEW};
    CHECK_OK(*state, ds_pipeline_create(*state, &params, &pipeline));
    CHECK_OK(*state, ds_pipeline_generate(pipeline, prompts, 3, &options, &r));
    assert_string_equal(r[0].text, r[2].text);
    assert_int_equal(r[1].prompt_length, 3);
    assert_int_equal(r[1].finish, DS_TEXT_LENGTH);
    assert_int_equal(r[1].generated_length, NEW);
    /* the same ids by a generator */
    ds_generator *generator = NULL;
    ds_tokenizer *tokenizer = NULL;
    const ds_generator_params source = {
        .model = p.model, .weights = p.folder, .dtype = DS_DTYPE_F32, .max_length = 40};
    uint32_t ids[NEW];
    int64_t n_logits = 0;
    const ds_sampling greedy = {0};
    CHECK_OK(*state, ds_generator_create(*state, &source, &generator));
    CHECK_OK(*state, ds_generator_prompt(generator, (const uint32_t[]){1, 2, 3}, 3));
    for (int i = 0; i < NEW; ++i) {
        const float *logits = ds_generator_logits(generator, &n_logits);
        const size_t best = likeliest(logits, n_logits);
        CHECK_OK(*state, ds_generator_next(generator, &greedy, &ids[i]));
        assert_int_equal(ids[i], best);
    }
    char *text = NULL;
    size_t size = 0;
    CHECK_OK(*state, ds_tokenizer_open(*state, "bytes", &tokenizer));
    CHECK_OK(*state, ds_tokenizer_decode(tokenizer, ids, NEW,
                                         DS_DECODE_SKIP_SPECIAL | DS_DECODE_REPAIR, &text, &size));
    assert_string_equal(r[1].text, text);
    /* a stop: what comes before it */
    const size_t at = size / 2;
    const char *const stop[] = {text + at};
    const ds_text_options stops = {
        .greedy = true, .max_new_tokens = NEW, .stop = stop, .n_stop = 1, .return_full_text = true};
    CHECK_OK(*state, ds_pipeline_generate(pipeline, &prompts[1], 1, &stops, &r));
    assert_int_equal(r[0].finish, DS_TEXT_STOP);
    const size_t first = (size_t)(strstr(text, text + at) - text);
    assert_int_equal(strlen(r[0].text), 3 + first);
    assert_memory_equal(r[0].text + 3, text, first);
    const ds_text_options longer = {.max_length = 41};
    CHECK_FAILS(*state, ds_pipeline_generate(pipeline, prompts, 1, &longer, &r), DS_ERR_LIMIT,
                "prompt 0 has 2 tokens: max_length 41");
    free(text);
    ds_tokenizer_close(&tokenizer);
    ds_generator_destroy(&generator);
    ds_pipeline_destroy(&pipeline);
    ds_config_destroy(&config);
    parity_close(&p);
}

static void writes_texts(void **state)
{
    writes_texts_of(state, "llama3", parity_open);
    writes_texts_of(state, "t5_untied", parity_open_pairs); /* what is made of sources */
}

/* The tokenizer and the copy that a file asks for. */
static void takes_files(void **state)
{
    parity_case p;
    ds_pipeline *pipeline = NULL;
    char text[2048];
    char *copy = scratch_make();
    parity_open(*state, "llama3", &p); /* which has no tokenizer */
    ds_config *config = load(
        *state, "{\"model_name_or_path\": \"m\", \"tokenizer\": \"bytes\", \"max_length\": 40, "
                "\"inference_engine_config\": {\"state_manager\": {\"memory_config\": "
                "{\"mode\": \"allocate\", \"size\": 5}}}}");
    ds_pipeline_params params = {.model = p.folder, .config = config};
    CHECK_OK(*state, ds_pipeline_create(*state, &params, &pipeline));
    ds_pipeline_destroy(&pipeline);
    ds_config_destroy(&config);
    (void)snprintf(text, sizeof text,
                   "{\"dtype\": \"fp32\", \"max_out_tokens\": 40, \"save_mp_checkpoint_path\": "
                   "\"%s/copy\"}",
                   copy);
    config = load(*state, text);
    params = (ds_pipeline_params){.model = p.folder, .tokenizer = "bytes", .config = config};
    CHECK_OK(*state, ds_pipeline_create(*state, &params, &pipeline));
    (void)snprintf(text, sizeof text, "%s/copy/model.safetensors", copy);
    assert_int_equal(access(text, R_OK), 0);
    ds_pipeline_destroy(&pipeline);
    ds_config_destroy(&config);
    parity_close(&p);
    scratch_remove(copy);
}

int main(void)
{
    ds_ctx *ctx = NULL;
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 2};
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(sets_sizes, ctx),
        cmocka_unit_test_prestate(counts_experts, ctx),
        cmocka_unit_test_prestate(tracks_no_more, ctx),
        cmocka_unit_test_prestate(writes_texts, ctx),
        cmocka_unit_test_prestate(takes_files, ctx),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
