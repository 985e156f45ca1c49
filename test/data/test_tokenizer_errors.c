/* SPDX-License-Identifier: Apache-2.0 */
/* data/tokenizer: malformed and unsupported files give one clear error that names the cause; and
 * what the files beside a tokenizer say about bos, eos, pad and saving. */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/tokenizer.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static ds_ctx *ctx;
static char *folder;

static void write_file(const char *name, const char *text)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void remove_file(const char *name)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    (void)unlink(path);
}

#define VOCAB  "\"vocab\": {\"a\": 0, \"b\": 1, \"ab\": 2, \"<s>\": 3}"
#define MERGES "\"merges\": [\"a b\"]"
#define MODEL  "\"model\": {\"type\": \"BPE\", " VOCAB ", " MERGES "}"

typedef struct bad_case {
    const char *file;
    ds_status status;
    const char *text;
} bad_case;

static const bad_case cases[] = {
    {"", DS_ERR_FORMAT, "tokenizer.json:1: expected '{'"},
    {"[]", DS_ERR_FORMAT, "expected '{'"},
    {"{}", DS_ERR_FORMAT, "\"model\" is missing"},
    {"{\"model\": 3}", DS_ERR_FORMAT, "\"model\" is missing"},
    {"{" MODEL, DS_ERR_FORMAT, "expected '}'"},
    {"{\n" MODEL ",\n}", DS_ERR_FORMAT, "tokenizer.json:3: expected '\"'"},
    {"{" MODEL ", \"x\": \"\xFF\"}", DS_ERR_FORMAT, "not UTF-8"},
    {"{" MODEL ", \"normalizer\": nul}", DS_ERR_FORMAT, "tokenizer.json:1:"},
    {"{\"model\": {\"type\": \"BPE\", " VOCAB "}}", DS_ERR_FORMAT, "the list \"merges\""},
    {"{\"model\": {\"type\": \"WordLevel\", \"vocab\": {}}}", DS_ERR_UNSUPPORTED,
     "model \"WordLevel\" is not supported; known: BPE, WordPiece, Unigram"},
    {"{\"model\": {\"type\": \"WordPiece\"}}", DS_ERR_FORMAT, "the object \"vocab\""},
    {"{\"model\": {\"type\": \"WordPiece\", " VOCAB "}}", DS_ERR_FORMAT,
     "\"max_input_chars_per_word\" must be a whole number"},
    {"{\"model\": {\"type\": \"WordPiece\", " VOCAB ", \"max_input_chars_per_word\": -1}}",
     DS_ERR_FORMAT, "\"max_input_chars_per_word\" must be a whole number"},
    {"{\"model\": {\"type\": \"WordPiece\", " VOCAB ", \"max_input_chars_per_word\": 100}}",
     DS_ERR_FORMAT, "lacks the text \"unk_token\""},
    {"{\"model\": {\"type\": \"WordPiece\", " VOCAB ", \"max_input_chars_per_word\": 100, "
     "\"unk_token\": \"[UNK]\"}}",
     DS_ERR_FORMAT, "unknown token \"[UNK]\" is not in the vocabulary"},
    {"{\"model\": {\"type\": \"WordPiece\", " VOCAB ", \"max_input_chars_per_word\": 100, "
     "\"unk_token\": \"a\"}}",
     DS_ERR_FORMAT, "lacks the text \"continuing_subword_prefix\""},
    {"{\"model\": {\"type\": \"Unigram\", \"vocab\": []}}", DS_ERR_UNSUPPORTED, "Unigram"},
    {"{\"model\": {\"vocab\": {\"a\": -1}, \"merges\": []}}", DS_ERR_FORMAT, "whole number"},
    {"{\"model\": {\"vocab\": {\"a\": 1.5}, \"merges\": []}}", DS_ERR_FORMAT, "whole number"},
    {"{\"model\": {\"vocab\": {\"a\": 99999999}, \"merges\": []}}", DS_ERR_FORMAT, "16777216"},
    {"{\"model\": {\"vocab\": {\"a\": 1, \"b\": 1}, \"merges\": []}}", DS_ERR_FORMAT,
     "\"a\" and \"b\" have the same id 1"},
    {"{\"model\": {\"vocab\": {\"a\": 1, \"a\": 2}, \"merges\": []}}", DS_ERR_FORMAT,
     "\"a\" is in the vocabulary twice"},
    {"{\"model\": {\"vocab\": {\"a\\q\": 1}, \"merges\": []}}", DS_ERR_FORMAT, "unknown escape"},
    {"{\"model\": {\"vocab\": {\"\\ud800\": 1}, \"merges\": []}}", DS_ERR_FORMAT, "surrogate"},
    {"{\"model\": {\"vocab\": {}, \"merges\": []}}", DS_ERR_FORMAT, "vocabulary is empty"},
    {"{\"model\": {" VOCAB ", \"merges\": [\"a c\"]}}", DS_ERR_FORMAT,
     "merge 0 needs the token \"c\""},
    {"{\"model\": {" VOCAB ", \"merges\": [\"b a\"]}}", DS_ERR_FORMAT, "token \"ba\""},
    {"{\"model\": {" VOCAB ", \"merges\": [\"ab\"]}}", DS_ERR_FORMAT, "one space between"},
    {"{\"model\": {" VOCAB ", \"merges\": [\"a b\", 7]}}", DS_ERR_FORMAT, "expected '\"'"},
    {"{\"model\": {" VOCAB ", " MERGES ", \"dropout\": 0.1}}", DS_ERR_UNSUPPORTED,
     "\"dropout\" 0.1"},
    {"{\"model\": {" VOCAB ", " MERGES ", \"end_of_word_suffix\": \"</w>\"}}", DS_ERR_UNSUPPORTED,
     "\"end_of_word_suffix\": \"</w>\""},
    {"{\"model\": {" VOCAB ", " MERGES ", \"continuing_subword_prefix\": \"##\"}}",
     DS_ERR_UNSUPPORTED, "continuing_subword_prefix"},
    {"{\"model\": {" VOCAB ", " MERGES ", \"unk_token\": \"<unk>\"}}", DS_ERR_FORMAT,
     "unknown token \"<unk>\" is not in the vocabulary"},
    {"{" MODEL ", \"normalizer\": {\"type\": \"StripAccents\"}}", DS_ERR_UNSUPPORTED,
     "normalizer \"StripAccents\""},
    {"{" MODEL ", \"normalizer\": {\"type\": \"BertNormalizer\", \"clean_text\": true}}",
     DS_ERR_FORMAT, "\"handle_chinese_chars\" of BertNormalizer must be true or false"},
    {"{" MODEL ", \"normalizer\": {\"type\": \"Precompiled\"}}", DS_ERR_FORMAT,
     "lacks the text \"precompiled_charsmap\""},
    {"{" MODEL
     ", \"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAQAAAA!\"}}",
     DS_ERR_FORMAT, "no map of SentencePiece"},
    {"{" MODEL
     ", \"normalizer\": {\"type\": \"Precompiled\", \"precompiled_charsmap\": \"AAQAAAAA\"}}",
     DS_ERR_FORMAT, "no map of SentencePiece"},
    {"{\"model\": {\"type\": \"Unigram\"}}", DS_ERR_FORMAT, "a list \"vocab\""},
    {"{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", 0]], \"unk_id\": 1}}",
     DS_ERR_UNSUPPORTED, "\"unk_id\" must be the id of a piece"},
    {"{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", nan]], \"unk_id\": 0}}",
     DS_ERR_FORMAT, "score must be a number"},
    {"{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", 0], [\"\", 1]], \"unk_id\": 0}}",
     DS_ERR_UNSUPPORTED, "a piece of no characters"},
    {"{\"model\": {\"type\": \"Unigram\", \"vocab\": [[\"a\", 0]], \"unk_id\": 0}, "
     "\"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": true, \"trim_offsets\": "
     "true, "
     "\"use_regex\": false}}",
     DS_ERR_UNSUPPORTED, "behind the pre-tokenizer ByteLevel"},
    {"{\"model\": {\"type\": \"BPE\", \"vocab\": [[\"a\", 0]], \"merges\": []}}", DS_ERR_FORMAT,
     "the vocabulary has scores"},
    {"{" MODEL ", \"normalizer\": {\"type\": \"Prepend\"}}", DS_ERR_FORMAT, "lacks the text"},
    {"{" MODEL ", \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"(\"}, "
     "\"content\": \"\"}}",
     DS_ERR_FORMAT, "the pattern \"(\""},
    {"{" MODEL ", \"pre_tokenizer\": {\"type\": \"UnicodeScripts\"}}", DS_ERR_UNSUPPORTED,
     "pre-tokenizer \"UnicodeScripts\""},
    {"{" MODEL ", \"pre_tokenizer\": {\"type\": \"Sequence\", \"pretokenizers\": [{\"type\": "
     "\"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true}, {\"type\": "
     "\"Digits\"}]}}",
     DS_ERR_UNSUPPORTED, "\"Digits\" after ByteLevel"},
    {"{" MODEL ", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": \"[a&&b]\"}, "
     "\"behavior\": \"Isolated\", \"invert\": false}}",
     DS_ERR_UNSUPPORTED, "intersection"},
    {"{" MODEL ", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"String\": \"a\"}, "
     "\"behavior\": \"Sideways\"}}",
     DS_ERR_UNSUPPORTED, "\"behavior\""},
    {"{" MODEL ", \"pre_tokenizer\": {\"type\": \"Metaspace\", \"replacement\": \"__\"}}",
     DS_ERR_FORMAT, "one character"},
    {"{" MODEL ", \"post_processor\": {\"type\": \"OtherProcessing\"}}", DS_ERR_UNSUPPORTED,
     "post-processor \"OtherProcessing\""},
    {"{" MODEL ", \"post_processor\": {\"type\": \"BertProcessing\", \"cls\": [\"a\", 0]}}",
     DS_ERR_FORMAT, "\"sep\" of the post-processor must be [token, id]"},
    {"{" MODEL ", \"post_processor\": {\"type\": \"RobertaProcessing\", \"cls\": [\"a\", 0], "
     "\"sep\": [\"x\", 77]}}",
     DS_ERR_FORMAT, "adds the id 77"},
    {"{" MODEL ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": "
     "[{\"SpecialToken\": {\"id\": \"<s>\"}}, {\"Sequence\": {\"id\": \"A\"}}], "
     "\"special_tokens\": {\"<s>\": {\"ids\": [77]}}}}",
     DS_ERR_FORMAT, "adds the id 77"},
    {"{" MODEL ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": "
     "[{\"SpecialToken\": {\"id\": \"<s>\"}}], \"special_tokens\": {}}}",
     DS_ERR_FORMAT, "\"<s>\" has no ids"},
    {"{" MODEL ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": "
     "[{\"Sequence\": {\"id\": \"A\"}}, {\"Sequence\": {\"id\": \"A\"}}]}}",
     DS_ERR_UNSUPPORTED, "must have the text once"},
    {"{" MODEL ", \"post_processor\": {\"type\": \"TemplateProcessing\", \"single\": "
     "[{\"Sequence\": {\"id\": \"B\"}}]}}",
     DS_ERR_FORMAT, "the Sequence A"},
    {"{" MODEL ", \"decoder\": {\"type\": \"BPEDecoder\"}}", DS_ERR_UNSUPPORTED,
     "decoder \"BPEDecoder\""},
    {"{" MODEL ", \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"WordPiece\", "
     "\"prefix\": \"##\", \"cleanup\": true}, {\"type\": \"Fuse\"}]}}",
     DS_ERR_UNSUPPORTED, "WordPiece together with others"},
    {"{" MODEL ", \"added_tokens\": [{\"id\": 1, \"content\": \"new\"}]}", DS_ERR_FORMAT,
     "\"special\" of the added token new must be true or false"},
    {"{" MODEL ", \"added_tokens\": \"x\"}", DS_ERR_FORMAT, "\"added_tokens\" must be a list"},
    {"{" MODEL ", \"truncation\": \"x\"}", DS_ERR_FORMAT, "\"truncation\" must be an object"},
    {"{" MODEL ", \"version\": \"2.0\"}", DS_ERR_UNSUPPORTED, "\"version\""},
    {"{\"model\": {\"type\": null, " VOCAB ", " MERGES "}}", DS_ERR_UNSUPPORTED, "model \"\""},
    {"{" MODEL ", \"normalizer\": {\"type\": null}}", DS_ERR_UNSUPPORTED, "normalizer \"\""},
    {"{" MODEL ", \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"String\": \"\"}, "
     "\"content\": \"x\"}}",
     DS_ERR_UNSUPPORTED, "can match where there is nothing"},
    {"{" MODEL ", \"normalizer\": {\"type\": \"Replace\", \"pattern\": {\"Regex\": \"a*\"}, "
     "\"content\": \"x\"}}",
     DS_ERR_UNSUPPORTED, "can match where there is nothing"},
    {"{" MODEL ", \"pre_tokenizer\": {\"type\": \"Split\", \"pattern\": {\"Regex\": "
     "\"a{1,2}+\"}, \"behavior\": \"Isolated\", \"invert\": false}}",
     DS_ERR_UNSUPPORTED, "a quantifier behind an interval"},
    {"{" MODEL ", \"decoder\": {\"type\": \"Sequence\", \"decoders\": [{\"type\": \"Fuse\"}, "
     "{\"type\": \"ByteFallback\"}]}}",
     DS_ERR_UNSUPPORTED, "not supported in this order"},
    {"{" MODEL ", \"added_tokens\": [{\"id\": 5}]}", DS_ERR_FORMAT, "lacks its \"content\""},
    {"{" MODEL ", \"added_tokens\": [{\"id\": -5, \"content\": \"n\"}]}", DS_ERR_FORMAT,
     "whole number"},
};

static void files_are_refused_by_cause(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        ds_tokenizer *tok = NULL;
        write_file("tokenizer.json", cases[i].file);
        CHECK_FAILS(ctx, ds_tokenizer_open(ctx, folder, &tok), cases[i].status, cases[i].text);
        assert_null(tok);
        assert_non_null(strstr(ds_ctx_error(ctx), folder)); /* the file is named */
    }
}

static void gpt2_files_are_refused_by_cause(void **state)
{
    (void)state;
    ds_tokenizer *tok = NULL;
    remove_file("tokenizer.json");
    write_file("vocab.json", "{\"a\": 0, \"b\": 1, \"ab\": 2}");
    CHECK_FAILS(ctx, ds_tokenizer_open(ctx, folder, &tok), DS_ERR_NOT_FOUND,
                "merges.txt is missing");
    write_file("merges.txt", "#version: 0.2\na b\nab\n");
    CHECK_FAILS(ctx, ds_tokenizer_open(ctx, folder, &tok), DS_ERR_FORMAT, "merges.txt:3:");
    write_file("merges.txt", "#version: 0.2\na b\n");
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tok));
    ds_tokenizer_close(&tok);
    write_file("tokenizer_config.json", "{\"tokenizer_class\": \"LlamaTokenizer\"}");
    CHECK_FAILS(ctx, ds_tokenizer_open(ctx, folder, &tok), DS_ERR_UNSUPPORTED, "LlamaTokenizer");
    write_file("tokenizer_config.json", "{\"tokenizer_class\": \"CohereTokenizerFast\"}");
    CHECK_FAILS(ctx, ds_tokenizer_open(ctx, folder, &tok), DS_ERR_UNSUPPORTED,
                "the class CohereTokenizerFast, which builds a tokenizer of its own");
    write_file("tokenizer_config.json",
               "{\"tokenizer_class\": \"GPT2Tokenizer\", \"bos_token\": \"<s>\", "
               "\"add_bos_token\": true}");
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tok));
    ds_tokenizer_scratch *scratch = NULL;
    ds_tokens tokens;
    CHECK_OK(ctx, ds_tokenizer_scratch_create(tok, 0, &scratch));
    CHECK_OK(ctx, ds_tokenizer_encode(tok, scratch, "ab", 2, DS_ENCODE_ADD_SPECIAL, &tokens));
    assert_int_equal(tokens.n, 2);
    assert_int_equal(tokens.ids[0], 3);
    assert_int_equal(tokens.ids[1], 2);
    ds_tokenizer_scratch_destroy(&scratch);
    ds_tokenizer_close(&tok);
    remove_file("tokenizer_config.json");
    write_file("vocab.json", "{\"a\": 0, \"b\": 1, \"ab\": 2} x");
    CHECK_FAILS(ctx, ds_tokenizer_open(ctx, folder, &tok), DS_ERR_FORMAT, "after the end");
    remove_file("vocab.json");
    remove_file("merges.txt");
    write_file("tokenizer.model", "");
    CHECK_FAILS(ctx, ds_tokenizer_open(ctx, folder, &tok), DS_ERR_FORMAT, "tokenizer.model");
    remove_file("tokenizer.model");
}

static void side_files_name_special_ids(void **state)
{
    (void)state;
    ds_tokenizer *tok = NULL;
    write_file("tokenizer.json", "{" MODEL ", \"added_tokens\": [{\"id\": 3, \"content\": \"<s>\", "
                                 "\"special\": true, \"single_word\": false, \"lstrip\": false, "
                                 "\"rstrip\": false, \"normalized\": false}]}");
    write_file("config.json",
               "{\"bos_token_id\": 0, \"eos_token_id\": [1, 2], \"pad_token_id\": 9}");
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tok));
    assert_int_equal(ds_tokenizer_bos_id(tok), 0);
    assert_int_equal(ds_tokenizer_eos_id(tok), 1);
    assert_int_equal(ds_tokenizer_pad_id(tok), -1); /* 9 is no id of this vocabulary */
    assert_true(ds_tokenizer_is_eos(tok, 2) && !ds_tokenizer_is_eos(tok, 0));
    ds_tokenizer_close(&tok);
    write_file("tokenizer_config.json",
               "{\"bos_token\": {\"content\": \"<s>\"}, \"eos_token\": "
               "\"ab\", \"model_max_length\": 1000000000000000019884624838656, "
               "\"pad_token\": \"b\", \"chat_template\": [{\"name\":"
               " \"default\", \"template\": \"T\"}]}");
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tok));
    assert_int_equal(ds_tokenizer_bos_id(tok), 3);
    assert_int_equal(ds_tokenizer_eos_id(tok), 2);
    assert_true(ds_tokenizer_is_eos(tok, 1)); /* config.json adds its own */
    assert_int_equal(ds_tokenizer_pad_id(tok), 1);
    assert_string_equal(ds_tokenizer_chat_template(tok), "T");
    ds_tokenizer_close(&tok);
    write_file("tokenizer_config.json", "{");
    CHECK_FAILS(ctx, ds_tokenizer_open(ctx, folder, &tok), DS_ERR_FORMAT,
                "tokenizer_config.json:1");
    remove_file("tokenizer_config.json");
    remove_file("config.json");
}

static void saving_copies_the_files(void **state)
{
    (void)state;
    char saved[96];
    (void)snprintf(saved, sizeof saved, "%s/saved", folder);
    ds_tokenizer *tok = NULL;
    CHECK_OK(ctx,
             ds_tokenizer_open(ctx, DS_SOURCE_DIR "/test/golden/data/tokenizer-llama2.json", &tok));
    CHECK_FAILS(ctx, ds_tokenizer_save(ctx, tok, saved), DS_ERR_NOT_FOUND, "in folder");
    CHECK_OK(ctx, ds_tokenizer_save(ctx, tok, folder));
    ds_tokenizer *again = NULL;
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &again));
    CHECK_OK(ctx, ds_tokenizer_save(ctx, again, folder)); /* onto itself */
    assert_int_equal(ds_tokenizer_vocab_size(again), ds_tokenizer_vocab_size(tok));
    ds_tokenizer_close(&again);
    ds_tokenizer_close(&tok);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, "bytes", &tok));
    CHECK_OK(ctx, ds_tokenizer_save(ctx, tok, folder));
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &again));
    ds_tokenizer_scratch *scratch = NULL;
    CHECK_OK(ctx, ds_tokenizer_scratch_create(again, 0, &scratch));
    char all[256];
    for (int i = 0; i < 256; ++i) {
        all[i] = (char)i;
    }
    ds_tokens tokens;
    CHECK_OK(ctx, ds_tokenizer_encode(again, scratch, all, 256, 0, &tokens));
    assert_int_equal(tokens.n, 256);
    for (uint32_t i = 0; i < 256; ++i) {
        assert_int_equal(tokens.ids[i], i);
    }
    ds_tokenizer_scratch_destroy(&scratch);
    ds_tokenizer_close(&again);
    ds_tokenizer_close(&tok);
}

static int set_up(void **state)
{
    (void)state;
    folder = scratch_make();
    return ds_ctx_create(NULL, &ctx) < 0;
}

static int tear_down(void **state)
{
    (void)state;
    scratch_remove(folder);
    ds_ctx_destroy(&ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(files_are_refused_by_cause),
        cmocka_unit_test(gpt2_files_are_refused_by_cause),
        cmocka_unit_test(side_files_name_special_ids),
        cmocka_unit_test(saving_copies_the_files),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
