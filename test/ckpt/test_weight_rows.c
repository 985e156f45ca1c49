/* SPDX-License-Identifier: Apache-2.0 */
/* What has a row for each token, in folders of another vocabulary: rows that are added, a tied
 * model's second output projection, and what a refusal says of shapes. */
#include "ckpt/model_weights.h"
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/deepspeed.h>
#include <stdio.h>
#include <string.h>

enum { WIDTH = 4, STORED = 6, LARGER = 9, MOST = 64 };

static const char config[] =
    "{\"model_type\": \"llama\", \"vocab_size\": 6, \"hidden_size\": 4, \"intermediate_size\": 8, "
    "\"num_hidden_layers\": 1, \"num_attention_heads\": 1, \"num_key_value_heads\": 1, "
    "\"max_position_embeddings\": 16, \"tie_word_embeddings\": %s}";

static const char embedding[] = "model.embed_tokens.weight";
static const char head[] = "lm_head.weight";

/* Of which the files have rows 0, 1, 2 …; rows 0: it is not there. */
typedef struct stored {
    int64_t rows, width;
    ds_dtype dtype; /* NONE: f32 */
} stored;

typedef struct row_case {
    const char *tied;
    ds_model_changes changes;
    stored embedding, head;
    ds_status status;
    const char *message;
} row_case;

static ds_tensor_source source_of(const char *name, const stored *s, const float *numbers)
{
    const ds_dtype dtype = s->dtype == DS_DTYPE_NONE ? DS_DTYPE_F32 : s->dtype;
    return (ds_tensor_source){
        .name = name, .meta = {dtype, ds_shape_2d(s->rows, s->width)}, .data = numbers};
}

/* Matches the embedding and, untied, the output projection. */
static ds_status match(ds_ctx *ctx, const char *folder, const row_case *c, dsi_weights **weights,
                       ds_safetensors **st)
{
    float numbers[MOST];
    char text[sizeof config + 8];
    ds_model *base = NULL, *model = NULL;
    ds_cells *cells = NULL;
    ds_tensor_source sources[2];
    size_t n = 0;
    for (int i = 0; i < MOST; ++i) {
        numbers[i] = (float)i;
    }
    (void)snprintf(text, sizeof text, config, c->tied);
    scratch_write(scratch_path(folder, "config.json"), text, strlen(text));
    CHECK_OK(ctx, ds_model_from_config(ctx, scratch_path(folder, "config.json"), &base));
    CHECK_OK(ctx, ds_model_change(base, &c->changes, &model));
    if (c->embedding.rows > 0) {
        sources[n++] = source_of(embedding, &c->embedding, numbers);
    }
    if (c->head.rows > 0) {
        sources[n++] = source_of(head, &c->head, numbers);
    }
    CHECK_OK(ctx, ds_safetensors_write_folder(ctx, folder, sources, n, 0, NULL));
    CHECK_OK(ctx, ds_safetensors_open_folder(ctx, folder, st));
    CHECK_OK(ctx, ds_cells_create(ctx, 8, &cells));
    const ds_model_info *info = ds_model_get_info(model);
    const char *const names[2] = {embedding, head};
    for (int i = 0; i < (info->tied_embeddings ? 1 : 2); ++i) {
        const ds_cell_info cell = {.name = names[i],
                                   .kind = DS_CELL_PARAM,
                                   .meta = {DS_DTYPE_F32, ds_shape_2d(info->vocab_size, WIDTH)},
                                   .of = DS_NONE};
        ds_cell at = 0;
        CHECK_OK(ctx, ds_cells_add(cells, &cell, &at));
    }
    const ds_status status = dsi_weights_match(ctx, model, cells, *st, false, weights);
    ds_cells_destroy(&cells);
    ds_model_destroy(&model);
    ds_model_destroy(&base);
    return status;
}

static void shapes_that_are_refused(void **state)
{
    static const row_case cases[] = {
        /* added rows want the stored ones */
        {"false",
         {.vocab_size = LARGER},
         {STORED, WIDTH - 1, 0},
         {STORED, WIDTH, 0},
         DS_ERR_SHAPE,
         "model.embed_tokens.weight is f32[6,3], the model needs the shape of f32[6,4]"},
        {"false",
         {.vocab_size = LARGER},
         {STORED, WIDTH, 0},
         {STORED + 1, WIDTH, 0},
         DS_ERR_SHAPE,
         "lm_head.weight is f32[7,4], the model needs the shape of f32[6,4]"},
        {"false",
         {.vocab_size = LARGER},
         {LARGER, WIDTH, 0},
         {STORED, WIDTH, 0},
         DS_ERR_SHAPE,
         "model.embed_tokens.weight is f32[9,4], the model needs the shape of f32[6,4]"},
        {"false",
         {.vocab_size = LARGER},
         {STORED, WIDTH, DS_DTYPE_I32},
         {STORED, WIDTH, 0},
         DS_ERR_SHAPE,
         "model.embed_tokens.weight is i32[6,4], the model needs the shape of f32[6,4]"},
        /* a tied model's second projection, from before its vocabulary was another */
        {"true",
         {0},
         {STORED, WIDTH, 0},
         {STORED - 1, WIDTH, 0},
         DS_ERR_FORMAT,
         "lm_head.weight is f32[5,4] and model.embed_tokens.weight f32[6,4], but config.json"},
        {"true",
         {.untie = true},
         {STORED, WIDTH, 0},
         {STORED - 1, WIDTH, 0},
         DS_ERR_FORMAT,
         "lm_head.weight is f32[5,4] and model.embed_tokens.weight f32[6,4], but config.json"},
        {"true",
         {.vocab_size = LARGER, .untie = true},
         {STORED, WIDTH, 0},
         {STORED, WIDTH - 1, 0},
         DS_ERR_FORMAT,
         "lm_head.weight is f32[6,3] and model.embed_tokens.weight f32[6,4], but config.json"},
        {"true",
         {0},
         {STORED, WIDTH, 0},
         {STORED, WIDTH, DS_DTYPE_BF16},
         DS_ERR_FORMAT,
         "lm_head.weight is bf16[6,4] and model.embed_tokens.weight f32[6,4], but config.json"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char *folder = scratch_make();
        dsi_weights *weights = NULL;
        ds_safetensors *st = NULL;
        CHECK_FAILS(*state, match(*state, folder, &cases[i], &weights, &st), cases[i].status,
                    cases[i].message);
        ds_safetensors_close(&st);
        scratch_remove(folder);
    }
}

/* Rows are those that are stored, then their mean; the output projection of a model that is no
 * longer tied begins as the embedding. */
static void rows_are_added(void **state)
{
    static const row_case cases[] = {
        {"false", {.vocab_size = LARGER}, {STORED, WIDTH, 0}, {STORED, WIDTH, 0}, DS_OK, NULL},
        {"true",
         {.vocab_size = LARGER, .untie = true},
         {STORED, WIDTH, 0},
         {STORED, WIDTH, 0},
         DS_OK,
         NULL},
        {"true", {.vocab_size = LARGER, .untie = true}, {STORED, WIDTH, 0}, {0, 0, 0}, DS_OK, NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char *folder = scratch_make();
        dsi_weights *weights = NULL;
        ds_safetensors *st = NULL;
        CHECK_OK(*state, match(*state, folder, &cases[i], &weights, &st));
        for (ds_cell c = 0; c < 2; ++c) {
            const dsi_weight weight = dsi_weights_of(weights, c);
            float got[LARGER * WIDTH];
            CHECK_OK(*state,
                     dsi_weight_read(*state, &weight, 0, LARGER * WIDTH, DS_DTYPE_F32, got));
            for (int k = 0; k < LARGER * WIDTH; ++k) {
                const int column = k % WIDTH;
                const float mean = (float)column + (STORED - 1) * WIDTH / 2.0f;
                assert_true(got[k] == (k < STORED * WIDTH ? (float)k : mean));
            }
        }
        dsi_weights_destroy(&weights);
        ds_safetensors_close(&st);
        scratch_remove(folder);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(shapes_that_are_refused),
                                       cmocka_unit_test(rows_are_added)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
