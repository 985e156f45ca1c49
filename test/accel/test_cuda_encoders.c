/* SPDX-License-Identifier: Apache-2.0 */
/* Encoders on the accelerator `cuda` over the stand-in of libcuda: rows of texts at random, of
 * BERT, RoBERTa, ModernBERT and T5's, are as near to the processor's in fp32 as its own in the same
 * dtype. No GPU is asked. Usage: test_cuda_encoders [ROUNDS [SEED]]: more rounds take all folders.
 *
 * labels: slow */
#include "common/parity.h"
#include "common/serve_crowd.h"
#include "common/served_models.h"
#include "common/standin_load.h"

#include <deepspeed/encoder.h>
#include <stdlib.h>
#include <string.h>

enum { IDS = 60, ROWS = 1 << 14, FEW = 4 };

static standin_calls standin;
static int rounds = 1;
static uint64_t first_seed = 7;
static bool says; /* a line a text */

/* Rows of one text of an encoder. */
static void rows_of(ds_ctx *ctx, const ds_encoder_params *params, const uint32_t *ids,
                    const uint8_t *types, size_t n, float *out, int64_t *n_out)
{
    ds_encoder *encoder = NULL;
    ds_tensor rows;
    CHECK_OK(ctx, ds_encoder_create(ctx, params, &encoder));
    CHECK_OK(ctx, ds_encoder_run_typed(encoder, ids, types, n, &rows));
    *n_out = ds_shape_count(rows.meta.shape);
    assert_true(*n_out <= ROWS);
    memcpy(out, rows.data, (size_t)*n_out * sizeof *out);
    ds_encoder_destroy(&encoder);
}

static void check_encoder(ds_ctx *ctx, const char *folder, bool pairs, uint64_t seed)
{
    static float rows[4][ROWS]; /* on cpu in fp32, in dtype; on cuda in fp32, in dtype */
    uint32_t ids[IDS];
    uint8_t types[IDS];
    parity_case p;
    (pairs ? parity_open_pairs : parity_open_encoder)(ctx, folder, &p);
    const int64_t most = ds_model_get_info(p.model)->max_positions;
    const int64_t longest = most > 0 && most < IDS ? most : IDS;
    const size_t n = 1 + crowd_below(&seed, (uint32_t)longest);
    const ds_dtype dtype = crowd_below(&seed, 2) ? DS_DTYPE_BF16
                           : pairs               ? DS_DTYPE_F32
                                                 : DS_DTYPE_F16;
    for (size_t i = 0; i < n; ++i) {
        ids[i] = crowd_below(&seed, (uint32_t)ds_model_get_info(p.model)->vocab_size);
        types[i] = (uint8_t)crowd_below(&seed, 2);
    }
    int64_t count = 0;
    served_distance off[3] = {{0}};
    for (int i = 0; i < 4; ++i) {
        const ds_encoder_params params = {.model = p.model,
                                          .weights = p.folder,
                                          .dtype = i % 2 ? dtype : DS_DTYPE_F32,
                                          .max_length = longest,
                                          .task = pairs ? DS_TASK_HIDDEN : p.task,
                                          .n_classes = p.n_classes,
                                          .accelerator = i < 2 ? "cpu" : "cuda"};
        rows_of(ctx, &params, ids, types, n, rows[i], &count);
    }
    served_add(&off[0], rows[0], rows[1], count);
    served_add(&off[1], rows[0], rows[2], count);
    served_add(&off[2], rows[0], rows[3], count);
    if (says) {
        print_message("%s in %s, %zu ids: off by %.3g, on cpu by %.3g; in fp32 %.3g\n", folder,
                      ds_dtype_name(dtype), n, served_root(&off[2]), served_root(&off[0]),
                      served_root(&off[1]));
    }
    assert_true(served_root(&off[1]) < 2e-5 &&
                served_root(&off[2]) < 1.5 * served_root(&off[0]) + 2e-5);
    parity_close(&p);
}

static void encoders_are_the_processors(void **state)
{
    static const char *const folders[] = {"bert",
                                          "modernbert_sequence",
                                          "roberta_token",
                                          "t5_untied",
                                          "bert_token",
                                          "modernbert",
                                          "roberta_sequence",
                                          "t5",
                                          "modernbert_untied",
                                          "bert_sequence",
                                          "roberta",
                                          "modernbert_token",
                                          "t5_shared",
                                          "bert_untied"};
    const size_t n = rounds > 1 ? sizeof folders / sizeof *folders : FEW;
    for (size_t i = 0; i < n * (size_t)rounds; ++i) {
        const char *folder = folders[i % n];
        check_encoder(*state, folder, strncmp(folder, "t5", 2) == 0, first_seed + i);
    }
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(encoders_are_the_processors)};
    says = argc > 1;
    rounds = argc > 1 ? atoi(argv[1]) : rounds;
    first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : first_seed;
    return standin_load(DS_BINARY_DIR, &standin)
               ? cmocka_run_group_tests(tests, check_set_up, check_tear_down)
               : 1;
}
