/* SPDX-License-Identifier: Apache-2.0 */
/* Loading and resolving: batch sizes, "auto", aliases, old forms, defaults, origins, the rules. */
#include "common/check.h"
#include "config/config_values.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_status load(ds_ctx *ctx, const char *text, ds_config **config_out)
{
    return ds_config_load_text(ctx, "ds.json", text, strlen(text), NULL, config_out);
}

/* Loads and resolves; *config_out is NULL after an error. */
static ds_status resolve(ds_ctx *ctx, const char *text, uint32_t world,
                         const ds_trainer_values *trainer, ds_config **config_out)
{
    *config_out = NULL;
    DS_TRY(load(ctx, text, config_out));
    const ds_status status = ds_config_resolve(*config_out, world, trainer);
    if (status < 0) {
        ds_config_destroy(config_out);
    }
    return status;
}

static bool has_notice(const ds_config *config, const char *text)
{
    for (size_t i = 0; i < ds_config_n_notices(config); ++i) {
        if (strstr(ds_config_notice(config, i), text) != NULL) {
            return true;
        }
    }
    return false;
}

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
        CHECK_OK(*state, resolve(*state, cases[i].text, cases[i].world, NULL, &config));
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
        CHECK_FAILS(*state, resolve(*state, cases[i].text, cases[i].world, NULL, &config),
                    DS_ERR_CONFIG, cases[i].error);
    }
}

/* ---- defaults and values --------------------------------------------------------------------- */

static void has_defaults(void **state)
{
    ds_config *config;
    CHECK_OK(*state, resolve(*state, "train_batch_size: 8", 1, NULL, &config));
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
    assert_int_equal(v->tag_validation, DS_TAG_WARN);
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

static void reads_values(void **state)
{
    ds_config *config;
    CHECK_OK(*state, resolve(*state, full_text, 2, NULL, &config));
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
    assert_int_equal(v->tag_validation, DS_TAG_FAIL);
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
        CHECK_OK(*state, resolve(*state, text, 1, NULL, &config));
        const ds_config_optimizer *o = &dsi_config_values(config)->optimizer;
        assert_int_equal(o->kind, cases[i].kind);
        assert_true(o->lr == cases[i].lr && o->weight_decay == cases[i].weight_decay);
        assert_int_equal(o->decoupled, cases[i].decoupled);
        ds_config_destroy(&config);
    }
}

/* ---- "auto" ---------------------------------------------------------------------------------- */

static const char auto_text[] =
    "{\"train_batch_size\": \"auto\", \"train_micro_batch_size_per_gpu\": \"auto\",\n"
    " \"gradient_accumulation_steps\": \"auto\", \"gradient_clipping\": \"auto\",\n"
    " \"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": \"auto\", \"betas\": \"auto\",\n"
    "   \"eps\": \"auto\", \"weight_decay\": \"auto\"}},\n"
    " \"scheduler\": {\"type\": \"WarmupDecayLR\", \"params\": {\"warmup_min_lr\": \"auto\",\n"
    "   \"warmup_max_lr\": \"auto\", \"warmup_num_steps\": \"auto\", \"total_num_steps\": "
    "\"auto\"}},\n"
    " \"fp16\": {\"enabled\": \"auto\"}, \"bf16\": {\"enabled\": \"auto\"},\n"
    " \"zero_optimization\": {\"stage\": 3, \"reduce_bucket_size\": \"auto\",\n"
    "   \"stage3_prefetch_bucket_size\": \"auto\", \"sub_group_size\": \"auto\",\n"
    "   \"stage3_param_persistence_threshold\": \"auto\"}}";

static ds_trainer_values all_known(void)
{
    return (ds_trainer_values){
        .micro_batch = ds_known(4),
        .gradient_accumulation_steps = ds_known(2),
        .learning_rate = ds_known(3e-4),
        .weight_decay = ds_known(0.1),
        .adam_beta1 = ds_known(0.9),
        .adam_beta2 = ds_known(0.95),
        .adam_epsilon = ds_known(1e-7),
        .max_grad_norm = ds_known(0.5),
        .warmup_steps = ds_known(0),
        .total_steps = ds_known(50),
        .fp16 = ds_known(0),
        .bf16 = ds_known(1),
        .hidden_size = ds_known(100),
    };
}

static void fills_auto(void **state)
{
    ds_config *config;
    const ds_trainer_values trainer = all_known();
    CHECK_OK(*state, resolve(*state, auto_text, 2, &trainer, &config));
    const ds_config_values *v = dsi_config_values(config);
    assert_int_equal(v->batch.train_batch_size, 16);
    assert_int_equal(v->batch.gradient_accumulation_steps, 2);
    assert_true(v->optimizer.lr == 3e-4 && v->optimizer.beta2 == 0.95);
    assert_true(v->optimizer.eps == 1e-7 && v->optimizer.weight_decay == 0.1);
    assert_true(v->gradient_clipping == 0.5);
    assert_true(v->scheduler.warmup_min_lr == 0 && v->scheduler.warmup_max_lr == 3e-4);
    assert_int_equal(v->scheduler.warmup_num_steps, 1); /* the Trainer keeps one */
    assert_int_equal(v->scheduler.total_num_steps, 50);
    assert_true(v->bf16.enabled && !v->fp16.enabled);
    assert_int_equal(v->zero.reduce_bucket_size, 10000);
    assert_int_equal(v->zero.prefetch_bucket_size, 9000);
    assert_int_equal(v->zero.param_persistence_threshold, 1000);
    assert_int_equal(v->zero.sub_group_size, 1000000000); /* DeepSpeed's default */
    assert_true(v->zero.overlap_comm);
    const ds_config_item *item = ds_config_find(config, "optimizer.params.lr");
    assert_int_equal(item->origin, DS_ORIGIN_AUTO);
    assert_string_equal(item->detail, "--learning_rate");
    assert_string_equal(item->value, "0.0003");
    ds_config_destroy(&config);
}

static void names_missing_flags(void **state)
{
    ds_config *config;
    const char *flags[] = {"--steps", "--hidden_size"}; /* the rest has defaults */
    for (size_t i = 0; i < sizeof flags / sizeof flags[0]; ++i) {
        CHECK_FAILS(*state, resolve(*state, auto_text, 1, NULL, &config), DS_ERR_CONFIG, flags[i]);
    }
    CHECK_OK(*state, load(*state, auto_text, &config)); /* loading alone leaves them open */
    assert_null(dsi_config_values(config));
    assert_string_equal(ds_config_find(config, "optimizer.params.lr")->value, "\"auto\"");
    const ds_trainer_values trainer = all_known();
    CHECK_OK(*state, ds_config_resolve(config, 1, &trainer));
    assert_int_equal(dsi_config_values(config)->batch.train_batch_size, 8);
    CHECK_OK(*state, ds_config_resolve(config, 3, &trainer)); /* and again */
    assert_int_equal(dsi_config_values(config)->batch.train_batch_size, 24);
    CHECK_FAILS(*state, ds_config_resolve(config, 0, &trainer), DS_ERR_ARG, "at least 1");
    ds_config_destroy(&config);
}

static void one_precision_flag_is_enough(void **state)
{
    ds_config *config;
    const char *text = "{train_batch_size: 1, fp16: {enabled: 'auto'}, bf16: {enabled: 'auto'}}";
    const ds_trainer_values bf16 = {.bf16 = ds_known(1)};
    CHECK_OK(*state, resolve(*state, text, 1, &bf16, &config));
    assert_true(dsi_config_values(config)->bf16.enabled &&
                !dsi_config_values(config)->fp16.enabled);
    assert_string_equal(ds_config_find(config, "fp16.enabled")->detail, "--bf16");
    ds_config_destroy(&config);
    const ds_trainer_values no_bf16 = {.bf16 = ds_known(0)};
    CHECK_OK(*state, resolve(*state, text, 1, &no_bf16, &config));
    assert_true(!dsi_config_values(config)->bf16.enabled &&
                !dsi_config_values(config)->fp16.enabled);
    ds_config_destroy(&config);
}

/* Where the file says nothing of a precision, its flag is in force. */
static void a_precision_flag_needs_no_section(void **state)
{
    static const char *const silent[] = {
        "{train_batch_size: 1}",
        "{train_batch_size: 1, bf16: {}, fp16: {loss_scale: 8}}",
        "{train_batch_size: 1, bf16: {enabled: 'auto'}}",
        "{train_batch_size: 1, fp16: {enabled: 'auto'}}",
    };
    const ds_trainer_values bf16 = {.bf16 = ds_known(1)};
    const ds_trainer_values fp16 = {.fp16 = ds_known(1), .bf16 = ds_known(0)};
    const ds_trainer_values neither = {.fp16 = ds_known(0), .bf16 = ds_known(0)};
    ds_config *config;
    for (size_t i = 0; i < sizeof silent / sizeof silent[0]; ++i) {
        CHECK_OK(*state, resolve(*state, silent[i], 1, &bf16, &config));
        assert_int_equal(dsi_config_values(config)->compute_dtype, DS_DTYPE_BF16);
        assert_string_equal(ds_config_find(config, "bf16.enabled")->detail, "--bf16");
        ds_config_destroy(&config);
        CHECK_OK(*state, resolve(*state, silent[i], 1, &fp16, &config));
        assert_int_equal(dsi_config_values(config)->compute_dtype, DS_DTYPE_F16);
        ds_config_destroy(&config);
        CHECK_OK(*state, resolve(*state, silent[i], 1, &neither, &config));
        assert_int_equal(dsi_config_values(config)->compute_dtype, DS_DTYPE_F32);
        ds_config_destroy(&config);
    }
    CHECK_OK(*state,
             resolve(*state, "{train_batch_size: 1, fp16: {enabled: false}}", 1, &bf16, &config));
    assert_int_equal(dsi_config_values(config)->compute_dtype, DS_DTYPE_BF16);
    ds_config_destroy(&config);
}

static void precision_flags_must_match(void **state)
{
    static const struct {
        const char *text, *error;
    } cases[] = {
        {"{train_batch_size: 1, bf16: {enabled: false}}",
         "bf16.enabled: the file and the flag --bf16 disagree: false here, true by the flag"},
        {"{train_batch_size: 1, fp16: {enabled: true}}",
         "fp16.enabled: the file and the flag --bf16 disagree: true here, false by the flag"},
        {"{train_batch_size: 1, fp16: {enabled: true}, bf16: {enabled: 'auto'}}",
         "fp16.enabled: the file and the flag --bf16 disagree: true here, false by the flag"},
    };
    const ds_trainer_values bf16 = {.bf16 = ds_known(1)};
    ds_config *config;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        CHECK_FAILS(*state, resolve(*state, cases[i].text, 1, &bf16, &config), DS_ERR_CONFIG,
                    cases[i].error);
    }
    CHECK_OK(*state,
             resolve(*state, "{train_batch_size: 1, bf16: {enabled: true}}", 1, &bf16, &config));
    ds_config_destroy(&config);
}

/* What transformers' TrainingArguments have where no flag is given. */
static void without_flags_auto_is_the_trainers_default(void **state)
{
    ds_config *config;
    const ds_trainer_values trainer = {.total_steps = ds_known(50), .hidden_size = ds_known(100)};
    CHECK_OK(*state, resolve(*state, auto_text, 2, &trainer, &config));
    const ds_config_values *v = dsi_config_values(config);
    assert_int_equal(v->batch.train_micro_batch_size_per_gpu, 8);
    assert_int_equal(v->batch.gradient_accumulation_steps, 1);
    assert_int_equal(v->batch.train_batch_size, 16);
    assert_true(v->optimizer.lr == 5e-5 && v->scheduler.warmup_max_lr == 5e-5);
    assert_true(v->optimizer.beta1 == 0.9 && v->optimizer.beta2 == 0.999);
    assert_true(v->optimizer.eps == 1e-8 && v->optimizer.weight_decay == 0.0);
    assert_true(v->gradient_clipping == 1.0);
    assert_int_equal(v->scheduler.warmup_num_steps, 1);
    assert_true(!v->bf16.enabled && !v->fp16.enabled);
    assert_string_equal(ds_config_find(config, "optimizer.params.eps")->detail,
                        "the Trainer's default");
    assert_true(has_notice(config, "not given, and so the Trainer's defaults: --micro_batch 8, "
                                   "--gradient_accumulation_steps 1, --max_grad_norm 1, "
                                   "--learning_rate 5e-05, --adam_epsilon 1e-08"));
    ds_config_destroy(&config);
    const ds_config_params for_plan = {.for_plan = true};
    CHECK_OK(*state, ds_config_load_text(*state, "ds.json", auto_text, strlen(auto_text), &for_plan,
                                         &config));
    CHECK_OK(*state, ds_config_resolve(config, 2, &trainer));
    assert_true(dsi_config_values(config)->optimizer.lr == 5e-5);
    assert_false(has_notice(config, "the Trainer's defaults"));
    ds_config_destroy(&config);
    const ds_trainer_values one_beta = {
        .total_steps = ds_known(50), .hidden_size = ds_known(100), .adam_beta2 = ds_known(0.95)};
    CHECK_OK(*state, resolve(*state, auto_text, 2, &one_beta, &config));
    v = dsi_config_values(config);
    assert_true(v->optimizer.beta1 == 0.9 && v->optimizer.beta2 == 0.95);
    ds_config_destroy(&config);
    const ds_trainer_values no_steps = {.hidden_size = ds_known(100)};
    CHECK_FAILS(*state, resolve(*state, auto_text, 2, &no_steps, &config), DS_ERR_CONFIG,
                "total_num_steps: expected a value for \"auto\", found none; give --steps");
}

/* Numbers in the file go before the Trainer's defaults. */
static void auto_follows_what_is_given(void **state)
{
    static const struct {
        const char *batch;
        int64_t micro, steps;
    } cases[] = {
        {"train_batch_size: 24, train_micro_batch_size_per_gpu: 'auto'", 12, 1},
        {"train_batch_size: 24, gradient_accumulation_steps: 'auto', "
         "train_micro_batch_size_per_gpu: 'auto'",
         12, 1},
        {"train_batch_size: 24, gradient_accumulation_steps: 'auto', "
         "train_micro_batch_size_per_gpu: 3",
         3, 4},
        {"train_batch_size: 24, gradient_accumulation_steps: 6, "
         "train_micro_batch_size_per_gpu: 'auto'",
         2, 6},
        {"train_batch_size: 'auto', train_micro_batch_size_per_gpu: 'auto'", 8, 1},
    };
    ds_config *config;
    char text[512];
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        (void)snprintf(text, sizeof text,
                       "{%s, optimizer: {type: 'AdamW', params: {lr: 0.002}}, scheduler: {type: "
                       "'WarmupLR', params: {warmup_max_lr: 'auto'}}}",
                       cases[i].batch);
        CHECK_OK(*state, resolve(*state, text, 2, NULL, &config));
        const ds_config_values *v = dsi_config_values(config);
        assert_int_equal(v->batch.train_micro_batch_size_per_gpu, cases[i].micro);
        assert_int_equal(v->batch.gradient_accumulation_steps, cases[i].steps);
        assert_true(v->scheduler.warmup_max_lr == 0.002);
        ds_config_destroy(&config);
    }
    CHECK_OK(*state, resolve(*state,
                             "{train_batch_size: 2, optimizer: {type: 'AdamW', params: {lr: "
                             "'auto'}}, scheduler: {type: 'WarmupLR', params: {warmup_max_lr: "
                             "0.003}}}",
                             1, NULL, &config));
    assert_true(dsi_config_values(config)->optimizer.lr == 0.003);
    ds_config_destroy(&config);
}

static void flags_must_match(void **state)
{
    ds_config *config;
    const ds_trainer_values trainer = {.learning_rate = ds_known(0.5), .micro_batch = ds_known(2)};
    const char *text = "{train_micro_batch_size_per_gpu: 2,\n"
                       " optimizer: {type: 'AdamW', params: {lr: 0.1}}}";
    CHECK_FAILS(
        *state, resolve(*state, text, 1, &trainer, &config), DS_ERR_CONFIG,
        "ds.json:2:42: optimizer.params.lr: the file and the flag --learning_rate disagree: "
        "0.1 here, 0.5 by the flag");
}

/* ---- names and forms ------------------------------------------------------------------------- */

static void migrates(void **state)
{
    ds_config *config;
    const char *text = "{train_batch_size: 2, bfloat16: {enabled: true},\n"
                       " zero_optimization: {stage: 3, cpu_offload: true,\n"
                       "  stage3_gather_fp16_weights_on_model_save: true}}";
    CHECK_OK(*state, resolve(*state, text, 1, NULL, &config));
    const ds_config_values *v = dsi_config_values(config);
    assert_true(v->bf16.enabled && v->zero.gather_16bit_weights_on_model_save);
    assert_true(has_notice(config, "\"bfloat16\" is an old name; write \"bf16\""));
    assert_true(has_notice(config, "write \"offload_optimizer\": {\"device\": \"cpu\"}"));
    assert_true(has_notice(config, "host memory already"));
    const ds_config_item *item =
        ds_config_find(config, "zero_optimization.gather_16bit_weights_on_model_save");
    assert_int_equal(item->origin, DS_ORIGIN_ALIAS);
    assert_int_equal(item->line, 3);
    assert_string_equal(ds_config_find(config, "zero_optimization.offload_optimizer.device")->value,
                        "\"cpu\"");
    ds_config_destroy(&config);

    CHECK_OK(*state,
             resolve(*state, "{train_batch_size: 2, zero_optimization: true}", 1, NULL, &config));
    assert_int_equal(dsi_config_values(config)->zero.stage, 1);
    assert_true(has_notice(config, "true is an old form"));
    ds_config_destroy(&config);
}

static void takes_lax_values(void **state)
{
    ds_config *config;
    const char *text = "{train_batch_size: 2, fp16: {enabled: 'Yes', loss_scale: '128'},\n"
                       " zero_optimization: {stage: '2', reduce_bucket_size: 5e8, strict: true}}";
    CHECK_OK(*state, resolve(*state, text, 1, NULL, &config));
    const ds_config_values *v = dsi_config_values(config);
    assert_true(v->fp16.enabled && !v->fp16.dynamic && v->fp16.loss_scale == 128);
    assert_int_equal(v->zero.stage, 2);
    assert_true(has_notice(config, "write it without quotes"));
    ds_config_destroy(&config);
}

static void notices_what_has_no_effect(void **state)
{
    ds_config *config;
    const char *text = "{train_batch_size: 2, disable_allgather: true, graph_harvesting: false,\n"
                       " compile: {deepcompile: true}, optimizer: {type: null},\n"
                       " data_efficiency: {enabled: false, data_sampling: {enabled: true,\n"
                       "   curriculum_learning: {enabled: true}}},\n"
                       " activation_checkpointing: {cpu_checkpointing: true}}";
    CHECK_OK(*state, resolve(*state, text, 1, NULL, &config));
    assert_true(has_notice(config, "cpu_checkpointing: on the CPU it is in host memory"));
    assert_true(has_notice(config, "ds.json:1:42: disable_allgather: no effect"));
    assert_true(has_notice(config, "compile.deepcompile: no effect"));
    assert_true(has_notice(config, "off, because data_efficiency.enabled is false"));
    assert_false(has_notice(config, "graph_harvesting"));
    ds_config_destroy(&config);
}

/* On several ranks: switches that change nothing say so, what is not built is refused. One rank
 * sends nothing, so it has neither. */
static void several_ranks(void **state)
{
    static const char *const quiet[] = {
        "round_robin_gradients: true",     "reduce_scatter: false",
        "allgather_partitions: false",     "use_multi_rank_bucket_allreduce: false",
        "allgather_sequential: true",      "stage3_use_all_reduce_for_fetch_params: true",
        "module_granularity_threshold: 9",
    };
    static const char *const refused[] = {"zero_quantized_weights: true",
                                          "zero_quantized_nontrainable_weights: true",
                                          "zero_quantized_gradients: true"};
    for (size_t i = 0; i < 7 + 3; ++i) {
        char text[256];
        ds_config *config = NULL;
        (void)snprintf(text, sizeof text,
                       "{train_batch_size: 4, zero_optimization: {stage: 3, %s}}",
                       i < 7 ? quiet[i] : refused[i - 7]);
        if (i >= 7) {
            CHECK_FAILS(*state, resolve(*state, text, 2, NULL, &config), DS_ERR_CONFIG,
                        "on 2 ranks");
        } else {
            CHECK_OK(*state, resolve(*state, text, 2, NULL, &config));
            assert_true(has_notice(config, "no effect here"));
            ds_config_destroy(&config);
        }
        CHECK_OK(*state, resolve(*state, text, 1, NULL, &config));
        assert_false(has_notice(config, "no effect here"));
        ds_config_destroy(&config);
    }
    for (int on = 0; on < 2; ++on) { /* groups of ranks have no log yet */
        ds_config *config = NULL;
        const char *text = on == 0 ? "{train_batch_size: 4, zero_optimization: {stage: 3, "
                                     "mics_shard_size: 2}}"
                                   : "{train_batch_size: 4, comms_logger: {enabled: true}, "
                                     "zero_optimization: {stage: 3, mics_shard_size: 2}}";
        CHECK_OK(*state, resolve(*state, text, 2, NULL, &config));
        assert_int_equal(has_notice(config, "are not yet"), on);
        ds_config_destroy(&config);
    }
}

/* What DeepSpeed's loader reads: each key that is given is refused or told of once, by place. */
static void loader_keys_are_told_of(void **state)
{
    static const struct {
        const char *keys, *notice;
    } cases[] = {
        {"dataloader_drop_last: true", "dataloader_drop_last: no effect: every batch is full"},
        {"dataloader_drop_last: false", NULL},
        {"data_efficiency: {seed: 7}", "data_efficiency.seed: no effect: it seeds curriculum"},
        {"data_efficiency: {enabled: true, seed: 7}", "data_efficiency.seed: no effect"},
        {"data_efficiency: {enabled: true, data_sampling: {enabled: true, num_workers: 4}}",
         "data_sampling.num_workers: no effect: batches are cut from mapped memory"},
        {"data_efficiency: {data_sampling: {num_workers: 4}}", "num_workers: no effect"},
        {"data_efficiency: {data_sampling: {num_workers: 0}}", NULL},
        {"data_efficiency: {enabled: true, data_sampling: {enabled: true, pin_memory: true}}",
         "data_sampling.pin_memory: no effect: batches are not copied"},
        {"data_efficiency: {enabled: true, data_sampling: {enabled: true, num_epochs: 3}}",
         "data_sampling.num_epochs: no effect: it ends curriculum sampling"},
        {"data_efficiency: {data_sampling: {enabled: true, dynamic_batching: {enabled: true}}}",
         "dynamic_batching.enabled: off, because data_efficiency.enabled is false"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        char text[256];
        ds_config *config;
        (void)snprintf(text, sizeof text, "{train_batch_size: 2, optimizer: {type: 'Adam'}, %s}",
                       cases[i].keys);
        CHECK_OK(*state, resolve(*state, text, 1, NULL, &config));
        assert_int_equal(ds_config_n_notices(config), cases[i].notice != NULL ? 1 : 0);
        if (cases[i].notice != NULL && !has_notice(config, cases[i].notice)) {
            fail_msg("%s: '%s'", cases[i].keys, ds_config_notice(config, 0));
        }
        ds_config_destroy(&config);
    }
    static const char *const refused[] = {
        "curriculum_learning: {enabled: true}",
        "data_efficiency: {enabled: true, data_sampling: {enabled: true,"
        " dynamic_batching: {enabled: true}}}",
        "data_efficiency: {enabled: true, data_sampling: {enabled: true,"
        " curriculum_learning: {enabled: true}}}",
        "dataloader_drop_last: 1.5",
        "dataloader_droplast: true",
    };
    for (size_t i = 0; i < sizeof refused / sizeof *refused; ++i) {
        char text[256];
        ds_config *config = NULL;
        (void)snprintf(text, sizeof text, "{train_batch_size: 2, optimizer: {type: 'Adam'}, %s}",
                       refused[i]);
        assert_int_equal(resolve(*state, text, 1, NULL, &config), DS_ERR_CONFIG);
    }
}

static void allows_unknown_keys(void **state)
{
    const char *text = "{train_batch_size: 2, my_key: 1, fp16: {opt_lvl: 'O2'}}";
    const ds_config_params params = {.allow_unknown_keys = true};
    ds_config *config;
    CHECK_OK(*state, ds_config_load_text(*state, "ds.json", text, strlen(text), &params, &config));
    assert_true(has_notice(config, "my_key: unknown key, not read"));
    assert_true(has_notice(config, "fp16.opt_lvl: unknown key, not read"));
    ds_config_destroy(&config);
}

/* Parameters, states and activations may have disks of their own. */
static void takes_folders_of_each_kind(void **state)
{
    ds_config *config;
    CHECK_OK(*state, resolve(*state,
                             "{train_batch_size: 2, optimizer: {type: 'Adam'}, zero_optimization: {"
                             "stage: 3, offload_optimizer: {device: 'nvme', nvme_path: '/a'}, "
                             "offload_param: {device: 'nvme', nvme_path: '/b,/c'}}, "
                             "activation_checkpointing: {nvme_path: '/d'}}",
                             1, NULL, &config));
    const ds_config_values *v = dsi_config_values(config);
    assert_string_equal(v->zero.offload_optimizer.nvme_path, "/a");
    assert_string_equal(v->zero.offload_param.nvme_path, "/b,/c");
    assert_string_equal(v->activation_checkpointing.nvme_path, "/d");
    ds_config_destroy(&config);
}

/* DeepSpeed takes a value a group of parameters: here those with weight decay, then the others. */
static void takes_rates_of_groups(void **state)
{
    ds_config *config;
    CHECK_OK(*state, resolve(*state,
                             "{train_batch_size: 2, optimizer: {type: 'Adam'}, scheduler: {type: "
                             "'WarmupLR', params: {warmup_min_lr: [0, 0.5], warmup_max_lr: [1, 2], "
                             "warmup_num_steps: 4}}}",
                             1, NULL, &config));
    const ds_config_values *v = dsi_config_values(config);
    assert_true(v->scheduler_has_groups);
    assert_true(v->scheduler.warmup_min_lr == 0 && v->scheduler.warmup_max_lr == 1);
    assert_true(v->scheduler_no_decay.warmup_min_lr == 0.5);
    assert_true(v->scheduler_no_decay.warmup_max_lr == 2);
    assert_int_equal(v->scheduler_no_decay.warmup_num_steps, 4);
    assert_string_equal(ds_config_find(config, "scheduler.params.warmup_max_lr")->value, "[1, 2]");
    ds_config_destroy(&config);
    CHECK_OK(*state, resolve(*state,
                             "{train_batch_size: 2, optimizer: {type: 'Adam'}, scheduler: {type: "
                             "'WarmupLR', params: {warmup_max_lr: [1, 1, 1]}}}",
                             1, NULL, &config));
    assert_false(dsi_config_values(config)->scheduler_has_groups);
    ds_config_destroy(&config);
}

/* Where DeepSpeed reads a key without a check, null is as good as none. */
static void takes_null(void **state)
{
    ds_config *config;
    CHECK_OK(*state, resolve(*state,
                             "{train_batch_size: 2, aio: null, bf16: null, dump_state: null, "
                             "zero_allow_untested_optimizer: null, prescale_gradients: null, "
                             "activation_checkpointing: {partition_activations: null}}",
                             1, NULL, &config));
    const ds_config_values *v = dsi_config_values(config);
    assert_int_equal(v->aio.block_size, 1048576);
    assert_false(v->dump_state || v->prescale_gradients);
    assert_false(v->activation_checkpointing.partition_activations);
    ds_config_destroy(&config);
}

/* Keys that DeepSpeed passed over before 0.17, and a least scale below 1. */
static void takes_files_of_old_versions(void **state)
{
    ds_config *config;
    CHECK_OK(*state, resolve(*state,
                             "{train_batch_size: 2, fp16: {enabled: true, min_loss_scale: 1e-10, "
                             "opt_level: 'O2'}, bf16: {loss_scale: 0, initial_scale_power: 16, "
                             "loss_scale_window: 1000, hysteresis: 2, min_loss_scale: 1, "
                             "auto_cast: true}, compile: {disable: false, backend: 'inductor'}}",
                             1, NULL, &config));
    assert_true(dsi_config_values(config)->fp16.min_loss_scale == 1e-10);
    assert_true(has_notice(config, "fp16.opt_level: no effect: DeepSpeed read nothing of it"));
    ds_config_destroy(&config);
}

static void params_without_type(void **state)
{
    static const char *const texts[] = {
        "{train_batch_size: 2, scheduler: {params: {warmup_num_steps: 7}}}",
        "{train_batch_size: 2, scheduler: {type: null, params: {warmup_num_steps: 7}}}",
        "{train_batch_size: 2, scheduler: {type: 'WarmupLR', params: {warmup_num_steps: 7}}}"};
    for (size_t i = 0; i < 3; ++i) {
        ds_config *config;
        CHECK_OK(*state, resolve(*state, texts[i], 1, NULL, &config));
        assert_true(has_notice(config, "scheduler.params: without a \"type\"") == (i < 2));
        ds_config_destroy(&config);
    }
}

/* At the top level DeepSpeed does not read unknown keys: a notice, unless it looks like a slip. */
static void notes_unknown_top_level_keys(void **state)
{
    const char *text =
        "{train_batch_size: 2, _comment: 'x', comment: 'y', example_key: {a: 1}, fp16_notes: 1}";
    const char *slip = "{train_batch_size: 2, gradient_acumulation_steps: 1}";
    const char *misplaced = "{train_batch_size: 2, overlap_comm: true}";
    const ds_config_params strict = {.strict = true};
    const ds_config_params both = {.strict = true, .allow_unknown_keys = true};
    ds_config *config;
    CHECK_OK(*state, ds_config_load_text(*state, "ds.json", text, strlen(text), NULL, &config));
    assert_true(has_notice(config, "_comment: unknown key, not read; DeepSpeed does not read it"));
    assert_true(has_notice(config, "example_key: unknown key, not read"));
    assert_true(has_notice(config, "fp16_notes: unknown key, not read; did you mean \"fp16\"?"));
    ds_config_destroy(&config);
    assert_int_equal(ds_config_load_text(*state, "ds.json", text, strlen(text), &strict, &config),
                     DS_ERR_CONFIG);
    assert_non_null(strstr(ds_ctx_error(*state), "_comment: unknown key; no key is near it"));
    assert_int_equal(ds_config_load_text(*state, "ds.json", slip, strlen(slip), NULL, &config),
                     DS_ERR_CONFIG);
    assert_int_equal(
        ds_config_load_text(*state, "ds.json", misplaced, strlen(misplaced), NULL, &config),
        DS_ERR_CONFIG);
    assert_int_equal(ds_config_load_text(*state, "ds.json", text, strlen(text), &both, &config),
                     DS_ERR_ARG);
}

/* ---- printing -------------------------------------------------------------------------------- */

/* The printed values, loaded again, are the same values. */
static void prints_and_reads_back(void **state)
{
    ds_config *first;
    ds_config *second;
    char *text;
    CHECK_OK(*state, resolve(*state, full_text, 2, NULL, &first));
    CHECK_OK(*state, ds_config_print(first, false, &text));
    CHECK_OK(*state, resolve(*state, text, 2, NULL, &second));
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
    static const char *const refused[] = {
        /* on several ranks: they are not in force */
        "zero_quantized_weights", "zero_quantized_nontrainable_weights", "zero_quantized_gradients",
        "mics_hierarchical_params_gather"};
    for (size_t i = 0; i < sizeof refused / sizeof refused[0]; ++i) {
        CHECK_OK(*state, ds_config_explain(*state, refused[i], &text));
        assert_non_null(strstr(text, "here     one rank\n"));
        free(text);
    }
    CHECK_FAILS(*state, ds_config_explain(*state, "overlap_cmom", &text), DS_ERR_NOT_FOUND,
                "did you mean \"overlap_comm\"?");
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
        cmocka_unit_test(derives_batch_sizes),
        cmocka_unit_test(refuses_batch_sizes),
        cmocka_unit_test(has_defaults),
        cmocka_unit_test(reads_values),
        cmocka_unit_test(knows_optimizers),
        cmocka_unit_test(params_without_type),
        cmocka_unit_test(fills_auto),
        cmocka_unit_test(names_missing_flags),
        cmocka_unit_test(one_precision_flag_is_enough),
        cmocka_unit_test(a_precision_flag_needs_no_section),
        cmocka_unit_test(precision_flags_must_match),
        cmocka_unit_test(without_flags_auto_is_the_trainers_default),
        cmocka_unit_test(auto_follows_what_is_given),
        cmocka_unit_test(flags_must_match),
        cmocka_unit_test(migrates),
        cmocka_unit_test(takes_lax_values),
        cmocka_unit_test(notices_what_has_no_effect),
        cmocka_unit_test(several_ranks),
        cmocka_unit_test(loader_keys_are_told_of),
        cmocka_unit_test(allows_unknown_keys),
        cmocka_unit_test(notes_unknown_top_level_keys),
        cmocka_unit_test(takes_null),
        cmocka_unit_test(takes_files_of_old_versions),
        cmocka_unit_test(takes_rates_of_groups),
        cmocka_unit_test(takes_folders_of_each_kind),
        cmocka_unit_test(prints_and_reads_back),
        cmocka_unit_test(explains),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
