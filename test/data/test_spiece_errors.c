/* SPDX-License-Identifier: Apache-2.0 */
/* data/tokenizer: a model of SentencePiece that is cut off, changed or unsupported gives one clear
 * error or a tokenizer that works, never a crash (the sanitizers run this, too). What good ones
 * give is in test_tokenizer_folder.c. */
#include "base/buf.h"
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/tokenizer.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;
static char *folder;

/* ---- a model by hand ---- */

typedef struct field {
    int number;
    int64_t value; /* of a whole number */
    const char *text;
} field;

static void put_varint(dsi_buf *out, uint64_t value)
{
    for (; value >= 0x80; value >>= 7) {
        dsi_buf_putc(out, (char)(value | 0x80));
    }
    dsi_buf_putc(out, (char)value);
}

static void put_message(dsi_buf *out, int number, const dsi_buf *message)
{
    put_varint(out, (uint64_t)number << 3 | 2);
    put_varint(out, message->size);
    dsi_buf_append(out, dsi_buf_text(message), message->size);
}

static void put_piece(dsi_buf *out, const char *text, float score, int kind)
{
    dsi_buf piece = dsi_buf_make(1 << 20);
    put_varint(&piece, 1 << 3 | 2);
    put_varint(&piece, strlen(text));
    dsi_buf_puts(&piece, text);
    put_varint(&piece, 2 << 3 | 5);
    dsi_buf_append(&piece, &score, sizeof score); /* little endian, as all our hosts */
    put_varint(&piece, 3 << 3 | 0);
    put_varint(&piece, (uint64_t)kind);
    put_message(out, 1, &piece);
    dsi_buf_free(&piece);
}

/* The trainer's settings: model_type, and one more. */
static void put_trainer(dsi_buf *out, int model_type, field more)
{
    dsi_buf trainer = dsi_buf_make(1 << 20);
    put_varint(&trainer, 3 << 3 | 0);
    put_varint(&trainer, (uint64_t)model_type);
    if (more.text != NULL) {
        put_varint(&trainer, (uint64_t)more.number << 3 | 2);
        put_varint(&trainer, strlen(more.text));
        dsi_buf_puts(&trainer, more.text);
    } else if (more.number != 0) {
        put_varint(&trainer, (uint64_t)more.number << 3 | 0);
        put_varint(&trainer, (uint64_t)more.value);
    }
    put_message(out, 2, &trainer);
    dsi_buf_free(&trainer);
}

/* Unknown, <s>, </s>, three characters, and a piece of two of them. */
static dsi_buf pieces(void)
{
    dsi_buf out = dsi_buf_make(1 << 20);
    put_piece(&out, "<unk>", 0.0F, 2);
    put_piece(&out, "<s>", 0.0F, 3);
    put_piece(&out, "</s>", 0.0F, 3);
    put_piece(&out, "ab", -1.0F, 1);
    put_piece(&out, "\xE2\x96\x81", -2.0F, 1);
    put_piece(&out, "a", -3.0F, 1);
    put_piece(&out, "b", -4.0F, 1);
    return out;
}

static void write_file(const char *name, const char *data, size_t n)
{
    char path[160];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_int_equal(fwrite(data, 1, n, file), n);
    assert_int_equal(fclose(file), 0);
}

static void write_text(const char *name, const char *text)
{
    write_file(name, text, strlen(text));
}

static void refused(dsi_buf *model, ds_status status, const char *text)
{
    ds_tokenizer *tok = NULL;
    write_file("tokenizer.model", dsi_buf_text(model), model->size);
    CHECK_FAILS(ctx, ds_tokenizer_open(ctx, folder, &tok), status, text);
    dsi_buf_free(model);
}

/* ---- the tests ---- */

static void a_small_model_is_read(void **state)
{
    (void)state;
    static const uint32_t want[] = {4, 3, 4, 5, 0};
    dsi_buf model = pieces();
    ds_tokenizer *tok = NULL;
    ds_tokenizer_scratch *scratch = NULL;
    ds_tokens got;
    put_trainer(&model, 2, (field){0});
    write_file("tokenizer.model", dsi_buf_text(&model), model.size);
    char path[160];
    (void)snprintf(path, sizeof path, "%s/tokenizer.model", folder);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, path, &tok)); /* the file alone */
    ds_tokenizer_close(&tok);
    CHECK_OK(ctx, ds_tokenizer_open(ctx, folder, &tok));
    CHECK_OK(ctx, ds_tokenizer_scratch_create(tok, 0, &scratch));
    CHECK_OK(ctx, ds_tokenizer_encode(tok, scratch, " ab  axy ", 9, 0, &got));
    assert_int_equal(got.n, sizeof want / sizeof *want);
    assert_memory_equal(got.ids, want, sizeof want);
    assert_int_equal(ds_tokenizer_bos_id(tok), 1);
    ds_tokenizer_scratch_destroy(&scratch);
    ds_tokenizer_close(&tok);
    dsi_buf_free(&model);
}

static void models_are_refused_by_cause(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        float score;
        int kind;
        ds_status status;
        const char *message;
    } odd[] = {{"", 0.0F, 1, DS_ERR_FORMAT, "piece 7 has no text"},
               {"\xC3", 0.0F, 1, DS_ERR_FORMAT, "piece 7 is no UTF-8"},
               {"c", NAN, 1, DS_ERR_FORMAT, "piece 7 has a score that is no number"},
               {"c", 0.0F, 9, DS_ERR_FORMAT, "piece 7 is of a kind that does not exist"},
               {"c", 0.0F, 5, DS_ERR_UNSUPPORTED, "piece 7 is marked as unused"},
               {"c", 0.0F, 2, DS_ERR_FORMAT, "piece 7 is the unknown one"},
               {"ab", 0.0F, 1, DS_ERR_FORMAT, "\"ab\" is in the vocabulary twice"}};
    for (size_t i = 0; i < sizeof odd / sizeof *odd; ++i) {
        dsi_buf model = pieces();
        put_trainer(&model, 2, (field){0});
        put_piece(&model, odd[i].text, odd[i].score, odd[i].kind);
        refused(&model, odd[i].status, odd[i].message);
    }
    static const struct {
        int model_type;
        field more;
        ds_status status;
        const char *message;
    } settings[] = {{3, {0}, DS_ERR_UNSUPPORTED, "model_type is 3"},
                    {2, {24, 1, NULL}, DS_ERR_UNSUPPORTED, "treat_whitespace_as_suffix"},
                    {2, {40, 3, NULL}, DS_ERR_FORMAT, "the trainer's unk_id is 3"},
                    {1, {40, 70, NULL}, DS_ERR_FORMAT, "the trainer's unk_id is 70"},
                    {1, {46, 0, "\xFF"}, DS_ERR_FORMAT, "bos_piece or eos_piece is no UTF-8"}};
    for (size_t i = 0; i < sizeof settings / sizeof *settings; ++i) {
        dsi_buf model = pieces();
        put_trainer(&model, settings[i].model_type, settings[i].more);
        refused(&model, settings[i].status, settings[i].message);
    }
    dsi_buf model = dsi_buf_make(1 << 20);
    refused(&model, DS_ERR_FORMAT, "it has no pieces");
    model = dsi_buf_make(1 << 20);
    dsi_buf_puts(&model, "IQ== 0\nIg== 1\n");
    refused(&model, DS_ERR_FORMAT, "files of tiktoken are not read");
    char *const long_text = malloc(5000);
    assert_non_null(long_text);
    memset(long_text, 'a', 4999);
    long_text[4999] = '\0';
    model = pieces();
    put_piece(&model, long_text, 0.0F, 1);
    refused(&model, DS_ERR_LIMIT, "piece 7 has 4999 bytes; the limit is 2048");
    free(long_text);
}

static void models_that_are_not_the_classs_are_refused(void **state)
{
    (void)state;
    static const char *const classes[][3] = {
        {"{\"tokenizer_class\": \"T5Tokenizer\"}", "\2", "takes a Unigram model, this one is BPE"},
        {"{\"tokenizer_class\": \"LlamaTokenizer\"}", "\1",
         "takes a BPE model, this one is Unigram"},
        {"{\"tokenizer_class\": \"GPT2Tokenizer\"}", "\2",
         "no tokenizer of the class GPT2Tokenizer"},
        {"{\"tokenizer_class\": \"BertTokenizer\"}", "\1",
         "no tokenizer of the class BertTokenizer"}};
    for (size_t i = 0; i < sizeof classes / sizeof *classes; ++i) {
        dsi_buf model = pieces();
        put_trainer(&model, *classes[i][1], (field){0});
        write_text("tokenizer_config.json", classes[i][0]);
        refused(&model, DS_ERR_UNSUPPORTED, classes[i][2]);
    }
    dsi_buf model = pieces();
    put_trainer(&model, 1, (field){0});
    write_text("tokenizer_config.json",
               "{\"tokenizer_class\": \"T5Tokenizer\", \"extra_ids\": -1}");
    refused(&model, DS_ERR_FORMAT, "\"extra_ids\" must be a whole number");
    model = pieces();
    put_trainer(&model, 2, (field){0});
    write_text("tokenizer_config.json",
               "{\"added_tokens_decoder\": {\"0\": {\"content\": \"x\"}}}");
    refused(&model, DS_ERR_UNSUPPORTED, "gives the unknown piece 0 another name");
    model = pieces();
    put_trainer(&model, 2, (field){0});
    write_text("tokenizer_config.json", "{\"added_tokens_decoder\": {\"3\": {\"content\": \"\"}}}");
    refused(&model, DS_ERR_UNSUPPORTED, "gives piece 3 an empty name");
    write_text("tokenizer_config.json", "{}");
}

/* What opens encodes and decodes. */
static size_t use(const char *data, size_t n)
{
    static const char text[] = "ab <s> a\xC3\xA9\xFF \xE2\x96\x81 bab\n";
    ds_tokenizer *tok = NULL;
    ds_tokenizer_scratch *scratch = NULL;
    ds_tokens got;
    write_file("tokenizer.model", data, n);
    if (ds_tokenizer_open(ctx, folder, &tok) < 0) {
        assert_int_not_equal(*ds_ctx_error(ctx), '\0');
        return 0;
    }
    CHECK_OK(ctx, ds_tokenizer_scratch_create(tok, 0, &scratch));
    CHECK_OK(ctx,
             ds_tokenizer_encode(tok, scratch, text, sizeof text - 1, DS_ENCODE_ADD_SPECIAL, &got));
    for (size_t i = 0; i < got.n; ++i) {
        assert_true(got.ids[i] < ds_tokenizer_vocab_size(tok));
    }
    char *back = NULL;
    size_t n_back = 0;
    CHECK_OK(ctx, ds_tokenizer_decode(tok, got.ids, got.n, 0, &back, &n_back));
    free(back);
    ds_tokenizer_scratch_destroy(&scratch);
    ds_tokenizer_close(&tok);
    return 1;
}

static void cut_and_changed_models_do_no_harm(void **state)
{
    (void)state;
    for (int model_type = 1; model_type <= 2; ++model_type) {
        dsi_buf model = pieces();
        put_trainer(&model, model_type, (field){35, 1, NULL});
        size_t n_opened = 0;
        for (size_t n = 0; n < model.size; ++n) {
            n_opened += use(dsi_buf_text(&model), n);
        }
        assert_true(n_opened < 10); /* ends between two messages */
        uint32_t random = 12345;
        n_opened = 0;
        for (int i = 0; i < 1500; ++i) {
            char changed[512];
            assert_true(model.size <= sizeof changed);
            memcpy(changed, dsi_buf_text(&model), model.size);
            for (int k = 0; k <= i % 3; ++k) {
                random = random * 1664525u + 1013904223u;
                changed[(random >> 8) % model.size] ^= (char)(1 << (random >> 29));
            }
            n_opened += use(changed, model.size);
        }
        assert_true(n_opened > 100);
        dsi_buf_free(&model);
    }
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
        cmocka_unit_test(a_small_model_is_read),
        cmocka_unit_test(models_are_refused_by_cause),
        cmocka_unit_test(models_that_are_not_the_classs_are_refused),
        cmocka_unit_test(cut_and_changed_models_do_no_harm),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
