/* SPDX-License-Identifier: Apache-2.0 */
/* The batch, ZeRO's groups and data_parallel_size count the ranks that have samples of their own:
 * the world size over tensor_parallel.autotp_size, as DeepSpeed counts. */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/config.h>
#include <stdlib.h>
#include <string.h>

typedef struct row {
    uint32_t world;
    const char *text;
    const char *error; /* NULL: none */
} row;

#define SP(n) ", sequence_parallel_size: " #n
#define TP(n) ", tensor_parallel: {autotp_size: " #n "}}"

static const row rows[] = {
    {4, "{train_batch_size: 4, train_micro_batch_size_per_gpu: 2" TP(2), NULL},
    {4, "{train_batch_size: 2, gradient_accumulation_steps: 1" TP(2), NULL},
    {4, "{train_batch_size: 3" TP(2),
     "train_batch_size: expected a multiple of the world size / tensor_parallel.autotp_size = 2, "
     "found 3"},
    {4,
     "{train_batch_size: 8, train_micro_batch_size_per_gpu: 2, gradient_accumulation_steps: 1" TP(
         2),
     "world size / tensor_parallel.autotp_size = 2 × 1 × 2 = 4, found 8"},
    {4, "{train_batch_size: 6, train_micro_batch_size_per_gpu: 2" TP(2),
     "expected a multiple of train_micro_batch_size_per_gpu × world size / "
     "tensor_parallel.autotp_size = 4, found 6"},
    {4, "{train_batch_size: 4, data_parallel_size: 2" TP(2), NULL},
    {4, "{train_batch_size: 4, data_parallel_size: 4" TP(2),
     "data_parallel_size: expected the world size / tensor_parallel.autotp_size, 2, found 4"},
    {8, "{train_batch_size: 4, zero_optimization: {stage: 3, mics_shard_size: 2}" TP(2), NULL},
    {8, "{train_batch_size: 4, zero_optimization: {stage: 3, mics_shard_size: 3}" TP(2),
     "mics_shard_size: expected a divisor of the world size / tensor_parallel.autotp_size, 4, "
     "found "
     "3"},
    /* one rank of data parallelism has no groups, whatever the world */
    {2, "{train_batch_size: 4, zero_optimization: {stage: 2, mics_shard_size: 1}" TP(2), NULL},
    {2, "{train_batch_size: 4, zero_optimization: {zero_quantized_weights: true, stage: 2}" TP(2),
     NULL},
    /* what is sent quantized needs slices */
    {4, "{train_batch_size: 4, zero_optimization: {zero_quantized_weights: true, stage: 2}" TP(2),
     "zero_quantized_weights: expected false with zero_optimization.stage 2"},
    {2,
     "{train_batch_size: 4, zero_optimization: {zero_quantized_nontrainable_weights: true, stage: "
     "1}" TP(1),
     "zero_quantized_nontrainable_weights: expected false with zero_optimization.stage 1"},
    {4, "{train_batch_size: 4, zero_optimization: {zero_quantized_gradients: true}" TP(2),
     "zero_quantized_gradients: expected false with zero_optimization.stage 0"},
    {4,
     "{train_batch_size: 4, zero_optimization: {zero_quantized_gradients: true, stage: 3, "
     "mics_shard_size: 2}" TP(1),
     "zero_quantized_gradients: expected false with zero_optimization.mics_shard_size"},
    {4,
     "{train_batch_size: 4, zero_optimization: {zero_quantized_gradients: true, stage: 3, "
     "zeropp_loco_param: {err_beta: 0.8, reset_T: 9}}" TP(2),
     "expected no zeropp_loco_param with tensor_parallel.autotp_size"},
    {4,
     "{train_batch_size: 4, zero_optimization: {zero_quantized_gradients: true, stage: 3, "
     "zeropp_loco_param: {err_beta: 0.8, reset_T: 9}}, pipeline: {stages: 2}}",
     "sequence_parallel_size or pipeline.stages"},
    {4,
     "{train_batch_size: 4, zero_optimization: {zero_quantized_gradients: true, "
     "zero_quantized_weights: true, stage: 3}, pipeline: {stages: 2}}",
     NULL},
    {4,
     "{train_batch_size: 4, zero_optimization: {zero_quantized_gradients: true, "
     "zero_quantized_weights: true, stage: 3, zero_hpz_partition_size: 2}" TP(1),
     NULL},
    {4, "{train_batch_size: 4, train_micro_batch_size_per_gpu: 2" SP(2) "}", NULL},
    {8,
     "{train_batch_size: 4, train_micro_batch_size_per_gpu: 2, data_parallel_size: 2" SP(2) TP(2),
     NULL},
    {8, "{train_batch_size: 3" SP(2) TP(2),
     "world size / tensor_parallel.autotp_size / sequence_parallel_size = 2, found 3"},
    {8, "{train_batch_size: 4, zero_optimization: {stage: 3, mics_shard_size: 3}" SP(2) "}",
     "mics_shard_size: expected a divisor of the world size, 8, found 3"},
    {6, "{train_batch_size: 6" SP(4) "}",
     "sequence_parallel_size: expected a divisor of the world size, 6, found 4; the nearest below "
     "is 3"},
    {6, "{train_batch_size: 6" SP(2) TP(2),
     "sequence_parallel_size: expected a divisor of the world size / tensor_parallel.autotp_size, "
     "3, found 2; the nearest below is 1"},
    {4, "{train_batch_size: 4" TP(3),
     "tensor_parallel.autotp_size: expected a divisor of the world size, 4, found 3"},
};

static void batches_count_data_ranks(void **state)
{
    ds_ctx *ctx = *state;
    char *folder = scratch_make();
    const char *path = scratch_path(folder, "ds.json");
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; ++i) {
        char *text = NULL;
        size_t n_errors = 0;
        scratch_write(path, rows[i].text, strlen(rows[i].text));
        CHECK_OK(ctx, ds_config_check_file(ctx, path, NULL, rows[i].world, NULL, &n_errors, &text));
        const bool right = n_errors == (rows[i].error != NULL ? 1 : 0) &&
                           (rows[i].error == NULL || strstr(text, rows[i].error) != NULL);
        if (!right) {
            fail_msg("%s\n  want %s\n  got %s", rows[i].text,
                     rows[i].error != NULL ? rows[i].error : "no error", text);
        }
        free(text);
    }
    scratch_remove(folder);
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    return ds_ctx_create(&params, (ds_ctx **)state);
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(batches_count_data_ranks),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
