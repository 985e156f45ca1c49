/* SPDX-License-Identifier: Apache-2.0 */
/* Rows for a masked language model: how many tokens are chosen and what stands in their place; the
 * same choice whatever the ranks, the batch and a resume; another one in each epoch. */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/data.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 900, SPECIAL = 5, CLS = 2, SEP = 3, MASK = 4, LENGTH = 64, LINES = 4000, EACH = 40 };

typedef struct world {
    ds_ctx *ctx;
    char *folder;
    ds_tokenizer *tokenizer;
    ds_dataset *data[2]; /* STREAM, SAMPLES */
} world;

/* A folder of BertTokenizer whose words are w0 to w899, and texts of them. */
static void write_tokenizer(const char *folder)
{
    static const char *const special[SPECIAL] = {"[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"};
    FILE *f = fopen(scratch_path(folder, "tokenizer.json"), "w");
    assert_non_null(f);
    (void)fprintf(f, "{\"version\":\"1.0\",\"added_tokens\":[");
    for (int i = 0; i < SPECIAL; ++i) {
        (void)fprintf(f,
                      "%s{\"id\":%d,\"content\":\"%s\",\"single_word\":false,\"lstrip\":false,"
                      "\"rstrip\":false,\"normalized\":false,\"special\":true}",
                      i > 0 ? "," : "", i, special[i]);
    }
    (void)fprintf(f, "],\"normalizer\":{\"type\":\"BertNormalizer\",\"clean_text\":true,"
                     "\"handle_chinese_chars\":true,\"strip_accents\":null,\"lowercase\":true},"
                     "\"pre_tokenizer\":{\"type\":\"BertPreTokenizer\"},\"post_processor\":null,"
                     "\"decoder\":null,\"model\":{\"type\":\"WordPiece\",\"unk_token\":\"[UNK]\","
                     "\"continuing_subword_prefix\":\"##\",\"max_input_chars_per_word\":100,"
                     "\"vocab\":{");
    for (int i = 0; i < SPECIAL; ++i) {
        (void)fprintf(f, "\"%s\":%d,", special[i], i);
    }
    for (int i = 0; i < WORDS; ++i) {
        (void)fprintf(f, "\"w%d\":%d%s", i, SPECIAL + i, i + 1 < WORDS ? "," : "}}}");
    }
    assert_int_equal(fclose(f), 0);
    static const char config[] =
        "{\"tokenizer_class\":\"BertTokenizer\",\"unk_token\":\"[UNK]\",\"sep_token\":\"[SEP]\","
        "\"pad_token\":\"[PAD]\",\"cls_token\":\"[CLS]\",\"mask_token\":\"[MASK]\"}";
    scratch_write(scratch_path(folder, "tokenizer_config.json"), config, sizeof config - 1);
}

static void write_texts(const char *folder)
{
    FILE *text = fopen(scratch_path(folder, "text.jsonl"), "w");
    FILE *chat = fopen(scratch_path(folder, "pairs.jsonl"), "w");
    assert_non_null(text);
    assert_non_null(chat);
    for (int line = 0; line < LINES; ++line) {
        (void)fprintf(text, "{\"text\":\"");
        (void)fprintf(chat, "{\"prompt\":\"w1 w2\",\"completion\":\"");
        for (int i = 0; i < EACH; ++i) {
            (void)fprintf(text, "w%d ", (line * 37 + i * i * 7) % WORDS);
            (void)fprintf(chat, " w%d", (line * 31 + i * 11) % WORDS);
        }
        (void)fprintf(text, "\"}\n");
        (void)fprintf(chat, "\"}\n");
    }
    assert_int_equal(fclose(text), 0);
    assert_int_equal(fclose(chat), 0);
}

static ds_masking masking(const world *w)
{
    return (ds_masking){.tokenizer = w->tokenizer, .chance = 0.15, .mask = 0.8, .word = 0.1};
}

static ds_loader *make(const world *w, int kind, int64_t batch, uint32_t rank, uint32_t n_ranks,
                       bool shuffle, bool masks)
{
    const ds_masking m = masking(w);
    const ds_loader_params params = {.batch = batch,
                                     .seq_length = LENGTH,
                                     .seed = 17,
                                     .shuffle = shuffle,
                                     .rank = rank,
                                     .n_ranks = n_ranks,
                                     .n_vocab = SPECIAL + WORDS,
                                     .masking = masks ? &m : NULL};
    ds_loader *loader = NULL;
    CHECK_OK(w->ctx, ds_loader_create(w->ctx, w->data[kind], &params, &loader));
    return loader;
}

static ds_loader_batch next(const world *w, ds_loader *loader)
{
    ds_loader_batch batch;
    CHECK_OK(w->ctx, ds_loader_next(loader, &batch));
    return batch;
}

/* Within four standard deviations of a share of n. */
static void check_share(const char *what, double got, double n, double share)
{
    const double width = 4.0 * sqrt(n * share * (1.0 - share));
    print_message("%-28s %9.0f of %9.0f: %.4f, expected %.2f\n", what, got, n, got / n, share);
    if (!(fabs(got - n * share) <= width)) {
        fail_msg("%s: %g of %g, expected %g ± %g", what, got, n, n * share, width);
    }
}

static void shares_are_berts(void **state)
{
    const world *w = *state;
    double n = 0.0;
    double chosen = 0.0;
    double masked = 0.0;
    double stayed = 0.0;
    double small = 0.0; /* other words of the lower half */
    double specials = 0.0;
    ds_loader *plain = make(w, 0, 16, 0, 1, true, false);
    ds_loader *loader = make(w, 0, 16, 0, 1, true, true);
    for (int step = 0; step < 400; ++step) {
        const ds_loader_batch before = next(w, plain);
        const ds_loader_batch after = next(w, loader);
        const int32_t *was = before.input_ids.data;
        const int32_t *is = after.input_ids.data;
        const int32_t *label = after.targets.data;
        assert_memory_equal(before.first.data, after.first.data, 16 * LENGTH * sizeof *is);
        assert_memory_equal(before.positions.data, after.positions.data, 16 * LENGTH * sizeof *is);
        for (int64_t i = 0; i < 16 * LENGTH; ++i) {
            const bool special = was[i] < SPECIAL;
            specials += special;
            n += !special;
            if (label[i] == -100) {
                assert_int_equal(is[i], was[i]);
                continue;
            }
            assert_false(special);
            assert_int_equal(label[i], was[i]); /* its own place, not the next one's */
            chosen += 1.0;
            masked += is[i] == MASK;
            stayed += is[i] == was[i];
            small += is[i] != MASK && is[i] != was[i] && is[i] < (SPECIAL + WORDS) / 2;
            assert_in_range(is[i], 0, SPECIAL + WORDS - 1);
        }
    }
    assert_true(specials > 0.0);
    check_share("chosen", chosen, n, 0.15);
    check_share("masked", masked, chosen, 0.8);
    check_share("unchanged", stayed, chosen, 0.1);
    check_share("lower half of other words", small, chosen - masked - stayed, 0.5);
    ds_loader_destroy(&plain);
    ds_loader_destroy(&loader);
}

static void check_rows(const ds_loader_batch *all, int64_t begin, const ds_loader_batch *part,
                       int64_t n)
{
    const ds_tensor a[2] = {all->input_ids, all->targets};
    const ds_tensor b[2] = {part->input_ids, part->targets};
    for (int i = 0; i < 2; ++i) {
        assert_memory_equal((const int32_t *)a[i].data + begin * LENGTH, b[i].data,
                            (size_t)(n * LENGTH) * sizeof(int32_t));
    }
}

static void ranks_and_batches_choose_alike(void **state)
{
    const world *w = *state;
    for (int kind = 0; kind < 2; ++kind) {
        ds_loader *all = make(w, kind, 6, 0, 1, true, true);
        ds_loader *part[3];
        for (uint32_t r = 0; r < 3; ++r) {
            part[r] = make(w, kind, 2, r, 3, true, true);
        }
        for (int step = 0; step < 20; ++step) {
            const ds_loader_batch whole = next(w, all);
            for (uint32_t r = 0; r < 3; ++r) {
                const ds_loader_batch own = next(w, part[r]);
                check_rows(&whole, 2 * (int64_t)r, &own, 2);
            }
        }
        for (uint32_t r = 0; r < 3; ++r) {
            ds_loader_destroy(&part[r]);
        }
        ds_loader_destroy(&all);
    }
}

static void a_resume_goes_on(void **state)
{
    const world *w = *state;
    for (int kind = 0; kind < 2; ++kind) {
        ds_loader *loader = make(w, kind, 4, 0, 1, true, true);
        ds_loader *other = make(w, kind, 4, 0, 1, true, true);
        char *cursor = NULL;
        for (int step = 0; step < 9; ++step) {
            (void)next(w, loader);
        }
        CHECK_OK(w->ctx, ds_loader_save(loader, &cursor));
        CHECK_OK(w->ctx, ds_loader_restore(other, cursor));
        for (int step = 0; step < 5; ++step) {
            const ds_loader_batch a = next(w, loader);
            const ds_loader_batch b = next(w, other);
            check_rows(&a, 0, &b, 4);
        }
        ds_loader_destroy(&other);
        other = make(w, kind, 4, 0, 1, true, false);
        CHECK_FAILS(w->ctx, ds_loader_restore(other, cursor), DS_ERR_ARG, "masked differs");
        free(cursor);
        ds_loader_destroy(&other);
        ds_loader_destroy(&loader);
    }
}

/* In file order rows are the same in each epoch: training chooses anew, evaluation does not. */
static void epochs_differ_and_evaluations_do_not(void **state)
{
    const world *w = *state;
    ds_loader *loader = make(w, 1, 4, 0, 1, false, true);
    const size_t bytes = 4 * LENGTH * sizeof(int32_t);
    int32_t *first = malloc(bytes);
    assert_non_null(first);
    ds_loader_batch batch = next(w, loader);
    memcpy(first, batch.targets.data, bytes);
    ds_loader_rewind(loader);
    batch = next(w, loader);
    assert_memory_equal(first, batch.targets.data, bytes);
    while (ds_loader_epoch(loader) == 0) {
        batch = next(w, loader);
    }
    ds_loader *plain = make(w, 1, 4, 0, 1, false, false);
    const ds_loader_batch before = next(w, plain);
    int same = 0;
    int counted = 0;
    for (int64_t i = 0; i < 4 * LENGTH; ++i) {
        const int32_t label = ((const int32_t *)batch.targets.data)[i];
        counted += label != -100;
        same += label != -100 && first[i] == label;
    }
    (void)before;
    assert_true(counted > 10);
    assert_true(same < counted / 2);
    free(first);
    ds_loader_destroy(&plain);
    ds_loader_destroy(&loader);
}

/* Where answers alone count, prompts are not chosen. */
static void what_does_not_count_is_not_chosen(void **state)
{
    const world *w = *state;
    ds_loader *loader = make(w, 1, 8, 0, 1, true, true);
    ds_loader *plain = make(w, 1, 8, 0, 1, true, false);
    int chosen = 0;
    for (int step = 0; step < 50; ++step) {
        const ds_loader_batch batch = next(w, loader);
        const ds_loader_batch before = next(w, plain);
        for (int64_t i = 0; i < 8 * LENGTH; ++i) {
            const int32_t label = ((const int32_t *)batch.targets.data)[i];
            const int32_t position = ((const int32_t *)before.positions.data)[i];
            chosen += label != -100;
            assert_true(label == -100 || position >= 3); /* [CLS] w1 w2 */
        }
    }
    assert_true(chosen > 1000);
    ds_loader_destroy(&plain);
    ds_loader_destroy(&loader);
}

static void faults_are_named(void **state)
{
    const world *w = *state;
    ds_tokenizer *bytes = NULL;
    ds_loader *loader = NULL;
    CHECK_OK(w->ctx, ds_tokenizer_open(w->ctx, "bytes", &bytes));
    ds_masking m = masking(w);
    const ds_loader_params params = {.batch = 1, .seq_length = LENGTH, .masking = &m};
    m.tokenizer = bytes;
    CHECK_FAILS(w->ctx, ds_loader_create(w->ctx, w->data[0], &params, &loader), DS_ERR_ARG,
                "\"mask_token\"");
    m = masking(w);
    m.chance = 1.0;
    CHECK_FAILS(w->ctx, ds_loader_create(w->ctx, w->data[0], &params, &loader), DS_ERR_ARG,
                "a chance of 1");
    m = masking(w);
    m.word = 0.3;
    CHECK_FAILS(w->ctx, ds_loader_create(w->ctx, w->data[0], &params, &loader), DS_ERR_ARG,
                "shares of at most 1");
    ds_tokenizer_close(&bytes);
}

static int setup(void **state)
{
    static world w;
    static const char *const names[2] = {"text.jsonl", "pairs.jsonl"};
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 2;
    assert_int_equal(ds_ctx_create(&params, &w.ctx), DS_OK);
    w.folder = scratch_make();
    write_tokenizer(w.folder);
    write_texts(w.folder);
    CHECK_OK(w.ctx, ds_tokenizer_open(w.ctx, w.folder, &w.tokenizer));
    assert_int_equal(ds_tokenizer_mask_id(w.tokenizer), MASK);
    for (int kind = 0; kind < 2; ++kind) {
        const char *file = scratch_path(w.folder, names[kind]);
        const ds_dataset_params data = {
            .files = &file, .n_files = 1, .tokenizer = w.tokenizer, .seq_length = LENGTH};
        CHECK_OK(w.ctx, ds_dataset_open(w.ctx, &data, &w.data[kind]));
        assert_int_equal(ds_dataset_get_info(w.data[kind]).samples, kind == 1);
    }
    *state = &w;
    return 0;
}

static int teardown(void **state)
{
    world *w = *state;
    for (int kind = 0; kind < 2; ++kind) {
        ds_dataset_close(&w->data[kind]);
    }
    ds_tokenizer_close(&w->tokenizer);
    scratch_remove(w->folder);
    ds_ctx_destroy(&w->ctx);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_are_berts),
        cmocka_unit_test(ranks_and_batches_choose_alike),
        cmocka_unit_test(a_resume_goes_on),
        cmocka_unit_test(epochs_differ_and_evaluations_do_not),
        cmocka_unit_test(what_does_not_count_is_not_chosen),
        cmocka_unit_test(faults_are_named),
    };
    return cmocka_run_group_tests(tests, setup, teardown);
}
