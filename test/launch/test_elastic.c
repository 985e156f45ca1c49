/* SPDX-License-Identifier: Apache-2.0 */
/* Elasticity: DeepSpeed's results over a grid, the vectors of its own tests, messages, and the
 * batch triple of a configuration. */
#include "common/check.h"
#include "config/config_values.h"

#include <deepspeed/elasticity.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef struct row {
    ds_elastic_params params;
    int64_t micro[8];
    uint32_t world;
    bool fails;
    int64_t batch, micro_batch, n, sum, squares;
} row;

static bool read_row(FILE *file, row *r)
{
    char line[512];
    char micros[128];
    int larger = 0;
    *r = (row){.fails = true};
    if (fgets(line, sizeof line, file) == NULL) {
        return false;
    }
    ds_elastic_params *p = &r->params;
    const int n = sscanf(line,
                         "0.%d,%" SCNd64 ",%127[0-9 ],%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64
                         ",%d,%" SCNu32,
                         &p->version, &p->max_train_batch_size, micros, &p->min_gpus, &p->max_gpus,
                         &p->num_gpus_per_node, &p->model_parallel_size, &larger, &r->world);
    assert_int_equal(n, 9);
    p->prefer_larger_batch = larger != 0;
    for (char *at = strtok(micros, " "); at != NULL; at = strtok(NULL, " ")) {
        r->micro[p->n_micro_batch_sizes++] = strtoll(at, NULL, 10);
    }
    r->fails =
        sscanf(strchr(line, '|'), "|%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64 ",%" SCNd64,
               &r->batch, &r->micro_batch, &r->n, &r->sum, &r->squares) != 5;
    return true;
}

static void check_row(ds_ctx *ctx, row *r, int line)
{
    ds_elastic_result result = {0};
    r->params.micro_batch_sizes = r->micro;
    const ds_status status = ds_elastic_compute(ctx, &r->params, r->world, &result);
    if (r->fails != (status < 0)) {
        fail_msg("row %d: %s", line, status < 0 ? ds_ctx_error(ctx) : "expected an error");
    }
    int64_t sum = 0;
    int64_t squares = 0;
    for (size_t i = 0; i < result.n_valid_gpus; ++i) {
        sum += result.valid_gpus[i];
        squares += result.valid_gpus[i] * result.valid_gpus[i];
    }
    if (status >= 0 && (result.train_batch_size != r->batch || sum != r->sum ||
                        result.micro_batch_size != r->micro_batch || squares != r->squares ||
                        (int64_t)result.n_valid_gpus != r->n)) {
        fail_msg("row %d: batch %" PRId64 " micro %" PRId64 " counts %zu sum %" PRId64
                 ", expected %" PRId64 " %" PRId64 " %" PRId64 " %" PRId64,
                 line, result.train_batch_size, result.micro_batch_size, result.n_valid_gpus, sum,
                 r->batch, r->micro_batch, r->n, r->sum);
    }
    ds_elastic_free(&result);
}

static void equals_deepspeed(void **state)
{
    ds_ctx *ctx = *state;
    FILE *file = fopen(DS_SOURCE_DIR "/test/golden/launch/elastic.csv", "r");
    assert_non_null(file);
    row r;
    int line = 0;
    int right = 0;
    while (read_row(file, &r)) {
        check_row(ctx, &r, ++line);
        right += r.fails ? 0 : 1;
    }
    (void)fclose(file);
    assert_true(line > 3000);
    assert_true(right > 1000);
}

/* tests/unit/elasticity/test_elastic.py of DeepSpeed. */
static void known_vectors(void **state)
{
    ds_ctx *ctx = *state;
    const int64_t micro[] = {8, 12, 16, 17};
    ds_elastic_params p = {.max_train_batch_size = 10000,
                           .micro_batch_sizes = micro,
                           .n_micro_batch_sizes = 4,
                           .min_gpus = 32,
                           .max_gpus = 1500,
                           .num_gpus_per_node = 1,
                           .model_parallel_size = 1,
                           .prefer_larger_batch = true,
                           .version = 1};
    ds_elastic_result result;
    CHECK_OK(ctx, ds_elastic_compute(ctx, &p, 64, &result));
    assert_int_equal(result.train_batch_size, 9792);
    assert_int_equal(result.n_valid_gpus, 23);
    assert_int_equal(result.micro_batch_size, 17);
    ds_elastic_free(&result);
    CHECK_FAILS(ctx, ds_elastic_compute(ctx, &p, 128, &result), DS_ERR_ARG, "among 32, 34, 36, 48");
    p.version = 2;
    CHECK_FAILS(ctx, ds_elastic_compute(ctx, &p, 0, &result), DS_ERR_ARG, "needs a number");
    p.num_gpus_per_node = 8;
    p.model_parallel_size = 3;
    CHECK_FAILS(ctx, ds_elastic_compute(ctx, &p, 8, &result), DS_ERR_CONFIG, "a multiple of model");
    p.version = 1;
    CHECK_FAILS(ctx, ds_elastic_compute(ctx, &p, 8, &result), DS_ERR_CONFIG, "take version 0.2");
    p.model_parallel_size = 1;
    p.max_train_batch_size = 10;
    CHECK_FAILS(ctx, ds_elastic_compute(ctx, &p, 8, &result), DS_ERR_CONFIG, "from 1 to 10");
}

static ds_status resolve(ds_ctx *ctx, const char *text, uint32_t world, ds_config_batch *batch_out)
{
    ds_config *config = NULL;
    DS_TRY(ds_config_load_text(ctx, "ds.json", text, strlen(text), NULL, &config));
    const ds_status status = ds_config_resolve(config, world, NULL);
    if (status >= 0) {
        *batch_out = dsi_config_values(config)->batch;
        assert_non_null(ds_config_get_elasticity(config));
    }
    ds_config_destroy(&config);
    return status;
}

#define ELASTIC "elasticity: {enabled: true, max_train_batch_size: 100, micro_batch_sizes: [2, 3], "

static void sets_the_triple(void **state)
{
    ds_ctx *ctx = *state;
    ds_config_batch batch = {0};
    for (uint32_t world = 1; world <= 6; ++world) {
        if (world == 5) {
            continue;
        }
        CHECK_OK(ctx, resolve(ctx, ELASTIC "version: 0.1}", world, &batch));
        assert_int_equal(batch.train_batch_size, 96);
        assert_int_equal(
            batch.train_micro_batch_size_per_gpu * batch.gradient_accumulation_steps * world, 96);
    }
    CHECK_FAILS(ctx, resolve(ctx, ELASTIC "version: 0.1}", 5, &batch), DS_ERR_CONFIG,
                "elasticity.enabled: elasticity: expected a number of ranks among 1, 2, 3, 4, 6");
    CHECK_OK(ctx, resolve(ctx, ELASTIC "version: '0.2'}", 5, &batch));
    assert_int_equal(batch.train_batch_size, 100);
    CHECK_FAILS(ctx, resolve(ctx, ELASTIC "version: 0.3}", 5, &batch), DS_ERR_CONFIG,
                "elasticity.version: expected 0.1 or 0.2");
    CHECK_FAILS(ctx, resolve(ctx, ELASTIC "version: 0.1}, train_batch_size: 8", 2, &batch),
                DS_ERR_CONFIG, "train_batch_size: expected no batch size with elasticity.enabled");
    CHECK_OK(ctx, resolve(ctx,
                          ELASTIC "version: 0.1, ignore_non_elastic_batch_info: true}, "
                                  "train_batch_size: 8, train_micro_batch_size_per_gpu: 4",
                          2, &batch));
    assert_int_equal(batch.train_batch_size, 96);
    CHECK_FAILS(ctx, resolve(ctx, "elasticity: {enabled: true, micro_batch_sizes: [2]}", 2, &batch),
                DS_ERR_CONFIG, "elasticity.max_train_batch_size: expected a value");
    CHECK_FAILS(ctx, resolve(ctx, ELASTIC "min_gpus: 9, max_gpus: 3}", 2, &batch), DS_ERR_CONFIG,
                "min_gpus at most max_gpus");
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    return ds_ctx_create(&params, (ds_ctx **)state) < 0;
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(equals_deepspeed),
        cmocka_unit_test(known_vectors),
        cmocka_unit_test(sets_the_triple),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
