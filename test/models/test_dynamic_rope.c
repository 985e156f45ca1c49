/* SPDX-License-Identifier: Apache-2.0 */
/* Dynamic rotary scaling looks at a document: one packed with others in a row is trained as it is
 * read alone, and generation computes what training does. */
#include "common/check.h"
#include "common/graph_run.h"

#include <deepspeed/infer.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { T = 48, LONG = 27, SHORT = 9, PATH_BYTES = 512 }; /* the model has 16 positions, factor 2 */

static const char folder[] = "parity/rope_dynamic";
static ds_ctx *ctx;

typedef struct packed_row {
    int32_t tokens[T], targets[T], positions[T], first[T];
    ref_batch batch;
} packed_row;

/* Documents one behind the other; then padding. */
static void pack(packed_row *row, const int *lengths, int n)
{
    int at = 0;
    for (int d = 0; d < n || at < T; ++d) {
        const int end = d < n ? at + lengths[d] : T;
        for (int i = at; i < end; ++i) {
            row->tokens[i] = (7 * i + 3 + i / 5) % 131;
            row->positions[i] = i - at;
            row->first[i] = at;
            row->targets[i] = d < n && i + 1 < end ? (7 * (i + 1) + 3 + (i + 1) / 5) % 131 : -100;
        }
        at = end;
    }
    row->batch = (ref_batch){.b = 1,
                             .t = T,
                             .tokens = row->tokens,
                             .targets = row->targets,
                             .positions = row->positions,
                             .first = row->first};
}

static double log_loss(const float *logits, int64_t n, int32_t target)
{
    double sum = 0.0;
    for (int64_t i = 0; i < n; ++i) {
        sum += exp((double)(logits[i] - logits[target]));
    }
    return log(sum);
}

/* Mean loss of the documents, each read alone by a prefill. */
static double loss_alone(const packed_row *row, const int *lengths, int n)
{
    static float logits[T * 131];
    double sum = 0.0;
    int count = 0;
    int at = 0;
    for (int d = 0; d < n; at += lengths[d++]) {
        graph_run_logits(ctx, folder, row->tokens + at, lengths[d], DS_ISA_REF, logits);
        for (int i = 0; i + 1 < lengths[d]; ++i, ++count) {
            sum += log_loss(logits + i * 131, 131, row->targets[at + i]);
        }
    }
    return sum / count;
}

static void packed_documents_are_trained_as_alone(void **state)
{
    static const int rows[][3] = {{LONG, SHORT, 0}, {SHORT, LONG, SHORT}, {SHORT, SHORT, 17}};
    static const graph_run_params params = {.dtype = DS_DTYPE_F32, .isa = DS_ISA_REF};
    (void)state;
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        const int n = rows[i][2] == 0 ? 2 : 3;
        packed_row row;
        graph_run run;
        pack(&row, rows[i], n);
        graph_run_open(&run, ctx, folder, &row.batch, &params);
        const double packed = (double)graph_run_pass(&run);
        const double alone = loss_alone(&row, rows[i], n);
        graph_run_close(&run);
        print_message("row %zu: packed %.7f, alone %.7f\n", i, packed, alone);
        assert_true(fabs(packed - alone) <= 1e-5 * alone);
    }
}

/* A prompt in several pieces, of a generator with more room than it takes. */
static void generator_scales_by_the_prompt(void **state)
{
    static float want[T * 131];
    packed_row row;
    char path[PATH_BYTES], config[PATH_BYTES + 16];
    ds_model *model = NULL;
    ds_generator *generator = NULL;
    int64_t n_vocab = 0;
    (void)state;
    golden_path(path, sizeof path, "%s", folder);
    snprintf(config, sizeof config, "%s/config.json", path);
    pack(&row, (const int[]){LONG}, 1);
    graph_run_logits(ctx, folder, row.tokens, LONG, DS_ISA_REF, want);
    CHECK_OK(ctx, ds_model_from_config(ctx, config, &model));
    assert_int_equal(ds_model_get_info(model)->max_positions, 32); /* factor times 16 */
    const ds_generator_params params = {
        .model = model, .weights = path, .dtype = DS_DTYPE_F32, .max_length = 32};
    CHECK_OK(ctx, ds_generator_create(ctx, &params, &generator));
    CHECK_OK(ctx, ds_generator_prompt(generator, (const uint32_t *)row.tokens, LONG));
    const float *got = ds_generator_logits(generator, &n_vocab);
    const double difference =
        check_relative_difference(got, want + (LONG - 1) * n_vocab, (size_t)n_vocab);
    print_message("generator: %.1e\n", difference);
    assert_true(difference < 1e-5);
    ds_generator_destroy(&generator);
    ds_model_destroy(&model);
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
        cmocka_unit_test(packed_documents_are_trained_as_alone),
        cmocka_unit_test(generator_scales_by_the_prompt),
    };
    return cmocka_run_group_tests(tests, make_ctx, drop_ctx);
}
