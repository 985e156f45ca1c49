/* SPDX-License-Identifier: Apache-2.0 */
/* Resolving: batch sizes, defaults, values, optimizers; what is printed and explained. */
#include "common/check.h"
#include "common/config_case.h"
#include "config/config_values.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- batch sizes ----------------------------------------------------------------------------- */

static void derives_batch_sizes(void **state)
{
    const struct {
        const char *text;
        uint32_t world;
        int64_t t, m, g;
    } cases[] = {
        {"{train_batch_size: 16, train_micro_batch_size_per_gpu: 2, "
         "gradient_accumulation_steps: 2}",
         4, 16, 2, 2},
        {"{train_batch_size: 16, train_micro_batch_size_per_gpu: 2}", 4, 16, 2, 2},
        {"{train_batch_size: 16, gradient_accumulation_steps: 2}", 4, 16, 2, 2},
        {"{train_micro_batch_size_per_gpu: 2, gradient_accumulation_steps: 3}", 4, 24, 2, 3},
        {"{train_batch_size: 16}", 4, 16, 4, 1},
        {"{train_micro_batch_size_per_gpu: 2}", 4, 8, 2, 1},
        {"{train_batch_size: 16.0, gradient_accumulation_steps: null}", 1, 16, 16, 1},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        ds_config *config;
        CHECK_OK(*state, config_resolve(*state, cases[i].text, cases[i].world, NULL, &config));
        const ds_config_values *v = dsi_config_values(config);
        assert_int_equal(v->batch.train_batch_size, cases[i].t);
        assert_int_equal(v->batch.train_micro_batch_size_per_gpu, cases[i].m);
        assert_int_equal(v->batch.gradient_accumulation_steps, cases[i].g);
        assert_int_equal(v->world_size, cases[i].world);
        ds_config_destroy(&config);
    }
}

static void refuses_batch_sizes(void **state)
{
    const struct {
        const char *text;
        uint32_t world;
        const char *error;
    } cases[] = {
        {"{}", 1, "expected train_batch_size or train_micro_batch_size_per_gpu, found neither"},
        {"{gradient_accumulation_steps: 2}", 1, "found neither"},
        {"{train_batch_size: 18}", 4, "a multiple of the world size = 4, found 18"},
        {"{train_batch_size: 18, train_micro_batch_size_per_gpu: 2}", 6,
         "world size = 12, found 18"},
        {"{train_batch_size: 2, gradient_accumulation_steps: 4}", 1, "= 4, found 2"},
        {"{train_batch_size: 8, train_micro_batch_size_per_gpu: 16}", 1, "= 16, found 8"},
        {"{train_batch_size: 9, train_micro_batch_size_per_gpu: 2, "
         "gradient_accumulation_steps: 2}",
         1, "a multiple of train_micro_batch_size_per_gpu × gradient_accumulation_steps = 4"},
        {"{train_batch_size: 8, train_micro_batch_size_per_gpu: 2, "
         "gradient_accumulation_steps: 2}",
         4, "2 × 2 × 4 = 16, found 8"},
        {"{train_batch_size: 0}", 1, "at least 1 and at most 2147483647"},
        {"{train_batch_size: -4}", 1, "found -4"},
        {"{train_batch_size: 2.5}", 1, "found 2.5"},
        {"{train_batch_size: true}", 1, "found true"},
        {"{train_micro_batch_size_per_gpu: 2147483647, gradient_accumulation_steps: 2147483647}", 9,
         "at most 2^40 samples"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        ds_config *config;
        CHECK_FAILS(*state, config_resolve(*state, cases[i].text, cases[i].world, NULL, &config),
                    DS_ERR_CONFIG, cases[i].error);
    }
}

/* ---- defaults and values --------------------------------------------------------------------- */

static void has_defaults(void **state)
{
    ds_config *config;
    CHECK_OK(*state, config_resolve(*state, "train_batch_size: 8", 1, NULL, &config));
    const ds_config_values *v = dsi_config_values(config);
    assert_int_equal(v->optimizer.kind, DS_OPTIMIZER_NONE);
    assert_int_equal(v->scheduler.kind, DS_SCHEDULE_NONE);
    assert_int_equal(v->compute_dtype, DS_DTYPE_F32);
    assert_int_equal(v->communication_dtype, DS_DTYPE_F32);
    assert_int_equal(v->zero.stage, 0);
    assert_int_equal(v->zero.reduce_bucket_size, 500000000);
    assert_int_equal(v->zero.model_persistence_threshold, INT64_MAX);
    assert_true(v->gradient_clipping == 1.0 && v->gradient_predivide_factor == 1.0);
    assert_int_equal(v->steps_per_print, 10);
    assert_int_equal(v->activation_checkpointing.number_checkpoints, -1);
    assert_int_equal(v->tag_validation, DS_CHECKPOINT_TAG_WARN);
    assert_string_equal(v->tensorboard.job_name, "DeepSpeedJobName");
    assert_true(v->throughput_timer && !v->wall_clock_breakdown && !v->gradient_sum);
    assert_int_equal(v->data_seed, 1234);
    ds_config_destroy(&config);
}

static const char full_text[] =
    "{\n"
    "  \"train_micro_batch_size_per_gpu\": 4,\n"
    "  \"optimizer\": {\"type\": \"Adam\", \"params\": {\"lr\": 6e-4, \"betas\": [0.8, 0.95],\n"
    "    \"eps\": 1e-6, \"weight_decay\": 0.1, \"adam_w_mode\": false}},\n"
    "  \"scheduler\": {\"type\": \"WarmupCosineLR\", \"params\": {\"total_num_steps\": 100,\n"
    "    \"warmup_num_steps\": 10, \"warmup_type\": \"linear\", \"cos_min_ratio\": 0.1}},\n"
    "  \"fp16\": {\"enabled\": true, \"initial_scale_power\": 12, \"loss_scale_window\": 500,\n"
    "    \"hysteresis\": 3, \"consecutive_hysteresis\": true, \"min_loss_scale\": 2},\n"
    "  \"data_types\": {\"grad_accum_dtype\": \"half\", \"param_dtype\": \"torch.float16\"},\n"
    "  \"communication_data_type\": \"FP32\",\n"
    "  \"gradient_allreduce_op\": \"SUM\",\n"
    "  \"zero_optimization\": {\"stage\": 2, \"stage3_prefetch_bucket_size\": 7,\n"
    "    \"overlap_comm\": false},\n"
    "  \"tensorboard\": {\"enabled\": true, \"output_path\": \"runs\", \"job_name\": \"j\"},\n"
    "  \"checkpoint\": {\"tag_validation\": \"fail\"},\n"
    "  \"steps_per_print\": null\n"
    "}\n";

static void autocast_is_mixed_precision(void **state)
{
    ds_config *config;
    CHECK_OK(*state, config_resolve(*state,
                                    "{\"train_batch_size\": 2, \"torch_autocast\": {\"enabled\": "
                                    "true, \"dtype\": \"float16\"}}",
                                    2, NULL, &config));
    const ds_config_values *v = dsi_config_values(config);
    assert_int_equal(v->compute_dtype, DS_DTYPE_F16);
    assert_int_equal(v->communication_dtype, DS_DTYPE_F16);
    assert_true(v->fp16.enabled && v->fp16.dynamic && v->fp16.initial_scale == 65536);
    assert_true(v->fp16.loss_scale_window == 2000 && v->fp16.hysteresis == 1);
    ds_config_destroy(&config);
    CHECK_OK(*state, config_resolve(*state,
                                    "{\"train_batch_size\": 2, \"torch_autocast\": {\"enabled\": "
                                    "true, \"lower_precision_safe_modules\": []}}",
                                    2, NULL, &config));
    v = dsi_config_values(config);
    assert_int_equal(v->compute_dtype, DS_DTYPE_BF16);
    assert_int_equal(v->communication_dtype, DS_DTYPE_F32);
    ds_config_destroy(&config);
}

static void reads_values(void **state)
{
    ds_config *config;
    CHECK_OK(*state, config_resolve(*state, full_text, 2, NULL, &config));
    const ds_config_values *v = dsi_config_values(config);
    assert_int_equal(v->optimizer.kind, DS_OPTIMIZER_ADAM);
    assert_true(v->optimizer.lr == 6e-4 && v->optimizer.beta1 == 0.8 && v->optimizer.beta2 == 0.95);
    assert_true(v->optimizer.eps == 1e-6 && v->optimizer.weight_decay == 0.1);
    assert_true(!v->optimizer.decoupled && v->optimizer.bias_correction);
    assert_int_equal(v->scheduler.kind, DS_SCHEDULE_WARMUP_COSINE);
    assert_int_equal(v->scheduler.total_num_steps, 100);
    assert_int_equal(v->scheduler.warmup_type, DS_WARMUP_LINEAR);
    assert_true(v->scheduler.cos_min_ratio == 0.1 && v->scheduler.last_batch_iteration == -1);
    assert_true(v->fp16.enabled && v->fp16.dynamic && v->fp16.initial_scale == 4096);
    assert_true(v->fp16.loss_scale_window == 500 && v->fp16.hysteresis == 3);
    assert_true(v->fp16.consecutive_hysteresis && v->fp16.min_loss_scale == 2);
    assert_int_equal(v->compute_dtype, DS_DTYPE_F16);
    assert_int_equal(v->grad_accum_dtype, DS_DTYPE_F16);
    assert_int_equal(v->communication_dtype, DS_DTYPE_F32);
    assert_true(v->gradient_sum);
    assert_int_equal(v->zero.stage, 2);
    assert_int_equal(v->zero.prefetch_bucket_size, 7);
    assert_false(v->zero.overlap_comm);
    assert_true(v->tensorboard.enabled && !v->csv_monitor.enabled);
    assert_string_equal(v->tensorboard.output_path, "runs");
    assert_int_equal(v->tag_validation, DS_CHECKPOINT_TAG_FAIL);
    assert_int_equal(v->steps_per_print, 0);
    ds_config_destroy(&config);
}

static void knows_optimizers(void **state)
{
    const struct {
        const char *params;
        ds_optimizer_kind kind;
        double lr, weight_decay;
        bool decoupled;
    } cases[] = {
        {"type: 'Adam'", DS_OPTIMIZER_ADAM, 1e-3, 0, true},
        {"type: 'adamw', params: {adam_w_mode: false}", DS_OPTIMIZER_ADAM, 1e-3, 0, true},
        {"type: 'AdamW', params: {torch_adam: true}", DS_OPTIMIZER_ADAM, 1e-3, 0.01, true},
        {"type: 'AdamW', params: {torch_adam: true, weight_decay: 0}", DS_OPTIMIZER_ADAM, 1e-3, 0,
         true},
        {"type: 'FusedAdam'", DS_OPTIMIZER_ADAM, 1e-3, 0, true},
        {"type: 'DeepSpeedCPUAdam'", DS_OPTIMIZER_ADAM, 1e-3, 0, true},
        {"type: 'SGD', params: {momentum: 0.9, nesterov: true}", DS_OPTIMIZER_SGD, 1e-3, 0, false},
        {"type: 'Lion', params: {lr: 0.5}", DS_OPTIMIZER_LION, 0.5, 0, false},
        {"type: 'Adagrad'", DS_OPTIMIZER_ADAGRAD, 1e-2, 0, false},
        {"type: 'LAMB', params: {weight_decay: 0.2}", DS_OPTIMIZER_LAMB, 1e-3, 0.2, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char text[256];
        (void)snprintf(text, sizeof text, "{train_batch_size: 1, optimizer: {%s}}",
                       cases[i].params);
        ds_config *config;
        CHECK_OK(*state, config_resolve(*state, text, 1, NULL, &config));
        const ds_config_optimizer *o = &dsi_config_values(config)->optimizer;
        assert_int_equal(o->kind, cases[i].kind);
        assert_true(o->lr == cases[i].lr && o->weight_decay == cases[i].weight_decay);
        assert_int_equal(o->decoupled, cases[i].decoupled);
        ds_config_destroy(&config);
    }
}

/* ---- printing -------------------------------------------------------------------------------- */

/* The printed values, loaded again, are the same values. */
static void prints_and_reads_back(void **state)
{
    ds_config *first;
    ds_config *second;
    char *text;
    CHECK_OK(*state, config_resolve(*state, full_text, 2, NULL, &first));
    CHECK_OK(*state, ds_config_print(first, false, &text));
    CHECK_OK(*state, config_resolve(*state, text, 2, NULL, &second));
    for (size_t i = 0; i < ds_config_n_items(first); ++i) {
        const ds_config_item *item = ds_config_item_at(first, i);
        assert_string_equal(ds_config_find(second, item->path)->value, item->value);
    }
    free(text);
    CHECK_OK(*state, ds_config_print(first, true, &text));
    assert_non_null(strstr(text,
                           "\"optimizer.params.lr\": {\"value\": 0.0006, \"origin\": \"file\", "
                           "\"detail\": \"ds.json:3:50\"}"));
    assert_non_null(strstr(text, "\"gradient_accumulation_steps\": {\"value\": 1, \"origin\": "
                                 "\"rule\""));
    free(text);
    ds_config_destroy(&first);
    ds_config_destroy(&second);
}

static void explains(void **state)
{
    char *text;
    CHECK_OK(*state, ds_config_explain(*state, "zero_optimization.overlap_comm", &text));
    assert_non_null(strstr(text, "in force"));
    free(text);
    CHECK_OK(*state, ds_config_explain(*state, "stage3_prefetch_bucket_size", &text));
    assert_non_null(strstr(text, "zero_optimization.prefetch_bucket_size"));
    free(text);
    static const char *const refused[] = {/* on several ranks: they are not in force */
                                          "mics_hierarchical_params_gather"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; ++i) {
        CHECK_OK(*state, ds_config_explain(*state, refused[i], &text));
        assert_non_null(strstr(text, "here     one rank\n"));
        free(text);
    }
    CHECK_FAILS(*state, ds_config_explain(*state, "overlap_cmom", &text), DS_ERR_NOT_FOUND,
                "did you mean \"overlap_comm\"?");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(derives_batch_sizes),
        cmocka_unit_test(refuses_batch_sizes),
        cmocka_unit_test(has_defaults),
        cmocka_unit_test(reads_values),
        cmocka_unit_test(autocast_is_mixed_precision),
        cmocka_unit_test(knows_optimizers),
        cmocka_unit_test(prints_and_reads_back),
        cmocka_unit_test(explains),
    };
    return cmocka_run_group_tests(tests, config_set_up, config_tear_down);
}
