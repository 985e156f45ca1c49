/* SPDX-License-Identifier: Apache-2.0 */
/* Whole numbers beyond 64 bits, which transformers writes where there is no limit
 * ("model_max_length": 1000000000000000019884624838656): config.json, tokenizer files and JSONL are
 * read, trained on, saved and exported all the same. */
#include "common/parity.h"
#include "common/scratch.h"
#include "io/json_load.h"

#include <deepspeed/data.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define HUGE_MEMBERS                                                                               \
    "\"model_max_length\": 1000000000000000019884624838656, \"edge\": [9223372036854775808, "      \
    "-9223372036854775809, 18446744073709551615], "

static ds_ctx *ctx;

static json_t *parse(const char *text)
{
    json_error_t error;
    json_t *json = dsi_json_parse(text, strlen(text), 0, &error);
    if (json == NULL) {
        fail_msg("%s: %s", text, error.text);
    }
    return json;
}

static void only_huge_numbers_become_real(void **state)
{
    json_error_t error;
    (void)state;
    json_t *json = parse("{\"a\": [9223372036854775807, -9223372036854775808, 7, -0, 1.5, 1e3, "
                         "9223372036854775808], \"9223372036854775808\\\\\": "
                         "\"\\\" 9223372036854775808\"}");
    const json_t *a = json_object_get(json, "a");
    assert_true(json_integer_value(json_array_get(a, 0)) == INT64_MAX);
    assert_true(json_integer_value(json_array_get(a, 1)) == INT64_MIN);
    assert_true(json_is_integer(json_array_get(a, 2)));
    assert_true(json_is_real(json_array_get(a, 4)) && json_is_real(json_array_get(a, 5)));
    assert_true(json_real_value(json_array_get(a, 6)) == 9223372036854775808.0);
    assert_string_equal(json_string_value(json_object_get(json, "9223372036854775808\\")),
                        "\" 9223372036854775808");
    json_decref(json);
    json = parse("[99999999999999999999999999999999999999999999999999]");
    assert_true(json_real_value(json_array_get(json, 0)) == 1e50);
    json_decref(json);
    static const char *const wrong[] = {"[9223372036854775808", "[92233720368547758080x]",
                                        "[9223372036854775808, 1e999]", "[\"9223372036854775808"};
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; ++i) {
        assert_null(dsi_json_parse(wrong[i], strlen(wrong[i]), 0, &error));
    }
}

/* The text with members added behind the first brace. */
static void write_with(const char *folder, const char *name, const char *members, const char *text)
{
    char *all = malloc(strlen(members) + strlen(text) + 1);
    assert_non_null(all);
    (void)sprintf(all, "{%s%s", members, strchr(text, '{') + 1);
    scratch_write(scratch_path(folder, name), all, strlen(all));
    free(all);
}

static void check_same_info(const ds_model *a, const ds_model *b)
{
    const ds_model_info *x = ds_model_get_info(a);
    const ds_model_info *y = ds_model_get_info(b);
    assert_string_equal(x->architecture, y->architecture);
    assert_int_equal(x->vocab_size, y->vocab_size);
    assert_int_equal(x->max_positions, y->max_positions);
    assert_int_equal(x->hidden_size, y->hidden_size);
}

/* Trains a step, saves, loads, exports; gives the exported folder's model. */
static void train_and_export(const parity_case *p, const char *folder)
{
    const dsi_engine_spec spec = parity_spec(p, DS_DTYPE_BF16, DS_ISA_REF);
    ds_engine *engine = parity_engine(ctx, p, &spec);
    CHECK_OK(ctx, ds_engine_forward(engine, &p->batch));
    CHECK_OK(ctx, ds_engine_backward(engine));
    CHECK_OK(ctx, ds_engine_step(engine));
    CHECK_OK(ctx, ds_engine_save_checkpoint(engine, scratch_path(folder, "saved"), NULL, NULL));
    CHECK_OK(ctx, ds_engine_load_checkpoint(engine, scratch_path(folder, "saved"), NULL, NULL));
    CHECK_OK(ctx, ds_engine_save_16bit_model(engine, scratch_path(folder, "exported"), NULL));
    ds_engine_destroy(&engine);
}

static void model_folders(void **state)
{
    static const char *const names[] = {"gpt2", "llama3"};
    (void)state;
    for (int i = 0; i < 2; ++i) {
        char *folder = scratch_make();
        parity_case p;
        ds_model *plain = NULL;
        ds_model *exported = NULL;
        size_t n = 0;
        parity_open(ctx, names[i], &p);
        plain = p.model;
        char *text = scratch_read(scratch_path(p.folder, "config.json"), &n);
        write_with(folder, "config.json", HUGE_MEMBERS, text);
        free(text);
        CHECK_OK(ctx, ds_model_from_config(ctx, scratch_path(folder, "config.json"), &p.model));
        check_same_info(plain, p.model);
        train_and_export(&p, folder);
        CHECK_OK(ctx, ds_model_from_config(ctx, scratch_path(folder, "exported/config.json"),
                                           &exported));
        check_same_info(plain, exported);
        text = scratch_read(scratch_path(folder, "exported/config.json"), &n);
        json_t *json = parse(text);
        assert_true(json_is_integer(json_object_get(json, "vocab_size"))); /* not 131.0 */
        assert_true(json_number_value(json_object_get(json, "model_max_length")) == 1e30);
        json_decref(json);
        free(text);
        ds_model_destroy(&exported);
        ds_model_destroy(&plain);
        parity_close(&p);
        scratch_remove(folder);
    }
}

static void refusals_still_name_the_key(void **state)
{
    static const char *const cases[][2] = {
        {"{\"model_type\": \"gpt2\", \"n_layer\": 9223372036854775808}", "\"n_layer\" is out of"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": 2.5}", "\"n_layer\" must be an integer"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": -1}", "\"n_layer\" is out of range"},
        {"{\"model_type\": \"gpt2\", \"n_layer\": \"2\"}", "\"n_layer\" must be an integer"},
    };
    char *folder = scratch_make();
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        ds_model *model = NULL;
        scratch_write(scratch_path(folder, "config.json"), cases[i][0], strlen(cases[i][0]));
        CHECK_FAILS(ctx, ds_model_from_config(ctx, scratch_path(folder, "config.json"), &model),
                    DS_ERR_FORMAT, cases[i][1]);
    }
    scratch_remove(folder);
}

/* tokenizer_config.json, tokenizer.json and a line of JSONL. */
static void tokenizers_and_data(void **state)
{
    static const char *const json =
        "{\"version\": \"1.0\", \"truncation\": {\"max_length\": 18446744073709551615}, "
        "\"added_tokens\": [], \"normalizer\": null, \"pre_tokenizer\": {\"type\": \"ByteLevel\", "
        "\"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}, "
        "\"post_processor\": null, \"decoder\": "
        "{\"type\": \"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true}, "
        "\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, "
        "\"ab\": 2}, \"merges\": [\"a b\"]}}";
    static const char *const lines =
        "{\"id\": 123456789012345678901234567890, \"text\": \"ab\"}\n{\"text\": \"ba\"}\n";
    char *folder = scratch_make();
    ds_tokenizer *tokenizer = NULL;
    ds_dataset *data = NULL;
    (void)state;
    scratch_write(scratch_path(folder, "tokenizer.json"), json, strlen(json));
    write_with(folder, "tokenizer_config.json", HUGE_MEMBERS, "{\"tokenizer_class\": \"T\"}");
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tokenizer));
    assert_int_equal(ds_tokenizer_vocab_size(tokenizer), 3);
    const char *path = scratch_path(folder, "lines.jsonl");
    const ds_dataset_params params = {
        .files = &path, .n_files = 1, .tokenizer = tokenizer, .seq_length = 4};
    scratch_write(path, lines, strlen(lines));
    CHECK_OK(ctx, ds_dataset_open(ctx, &params, &data));
    assert_int_equal(ds_dataset_get_info(data).n_documents, 2);
    ds_dataset_close(&data);
    ds_tokenizer_close(&tokenizer);
    scratch_remove(folder);
}

static int make_ctx(void **state)
{
    (void)state;
    return ds_ctx_create(NULL, &ctx);
}

static int drop_ctx(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(only_huge_numbers_become_real),
        cmocka_unit_test(model_folders),
        cmocka_unit_test(refusals_still_name_the_key),
        cmocka_unit_test(tokenizers_and_data),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
