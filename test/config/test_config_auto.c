/* SPDX-License-Identifier: Apache-2.0 */
/* "auto": filled from the Trainer's flags or its defaults; flags that contradict the file. */
#include "common/check.h"
#include "common/config_case.h"
#include "config/config_values.h"

#include <stdio.h>
#include <string.h>

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
    CHECK_OK(*state, config_resolve(*state, auto_text, 2, &trainer, &config));
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
        CHECK_FAILS(*state, config_resolve(*state, auto_text, 1, NULL, &config), DS_ERR_CONFIG,
                    flags[i]);
    }
    CHECK_OK(*state, config_load(*state, auto_text, &config)); /* loading alone leaves them open */
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
    CHECK_OK(*state, config_resolve(*state, text, 1, &bf16, &config));
    assert_true(dsi_config_values(config)->bf16.enabled &&
                !dsi_config_values(config)->fp16.enabled);
    assert_string_equal(ds_config_find(config, "fp16.enabled")->detail, "--bf16");
    ds_config_destroy(&config);
    const ds_trainer_values no_bf16 = {.bf16 = ds_known(0)};
    CHECK_OK(*state, config_resolve(*state, text, 1, &no_bf16, &config));
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
        CHECK_OK(*state, config_resolve(*state, silent[i], 1, &bf16, &config));
        assert_int_equal(dsi_config_values(config)->compute_dtype, DS_DTYPE_BF16);
        assert_string_equal(ds_config_find(config, "bf16.enabled")->detail, "--bf16");
        ds_config_destroy(&config);
        CHECK_OK(*state, config_resolve(*state, silent[i], 1, &fp16, &config));
        assert_int_equal(dsi_config_values(config)->compute_dtype, DS_DTYPE_F16);
        ds_config_destroy(&config);
        CHECK_OK(*state, config_resolve(*state, silent[i], 1, &neither, &config));
        assert_int_equal(dsi_config_values(config)->compute_dtype, DS_DTYPE_F32);
        ds_config_destroy(&config);
    }
    CHECK_OK(*state, config_resolve(*state, "{train_batch_size: 1, fp16: {enabled: false}}", 1,
                                    &bf16, &config));
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
        CHECK_FAILS(*state, config_resolve(*state, cases[i].text, 1, &bf16, &config), DS_ERR_CONFIG,
                    cases[i].error);
    }
    CHECK_OK(*state, config_resolve(*state, "{train_batch_size: 1, bf16: {enabled: true}}", 1,
                                    &bf16, &config));
    ds_config_destroy(&config);
}

/* What transformers' TrainingArguments have where no flag is given. */
static void without_flags_auto_is_the_trainers_default(void **state)
{
    ds_config *config;
    const ds_trainer_values trainer = {.total_steps = ds_known(50), .hidden_size = ds_known(100)};
    CHECK_OK(*state, config_resolve(*state, auto_text, 2, &trainer, &config));
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
    assert_true(config_has_notice(config,
                                  "not given, and so the Trainer's defaults: --micro_batch 8, "
                                  "--gradient_accumulation_steps 1, --max_grad_norm 1, "
                                  "--learning_rate 5e-05, --adam_epsilon 1e-08"));
    ds_config_destroy(&config);
    const ds_config_params for_plan = {.for_plan = true};
    CHECK_OK(*state, ds_config_load_text(*state, "ds.json", auto_text, strlen(auto_text), &for_plan,
                                         &config));
    CHECK_OK(*state, ds_config_resolve(config, 2, &trainer));
    assert_true(dsi_config_values(config)->optimizer.lr == 5e-5);
    assert_false(config_has_notice(config, "the Trainer's defaults"));
    ds_config_destroy(&config);
    const ds_trainer_values one_beta = {
        .total_steps = ds_known(50), .hidden_size = ds_known(100), .adam_beta2 = ds_known(0.95)};
    CHECK_OK(*state, config_resolve(*state, auto_text, 2, &one_beta, &config));
    v = dsi_config_values(config);
    assert_true(v->optimizer.beta1 == 0.9 && v->optimizer.beta2 == 0.95);
    ds_config_destroy(&config);
    const ds_trainer_values no_steps = {.hidden_size = ds_known(100)};
    CHECK_FAILS(*state, config_resolve(*state, auto_text, 2, &no_steps, &config), DS_ERR_CONFIG,
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
        CHECK_OK(*state, config_resolve(*state, text, 2, NULL, &config));
        const ds_config_values *v = dsi_config_values(config);
        assert_int_equal(v->batch.train_micro_batch_size_per_gpu, cases[i].micro);
        assert_int_equal(v->batch.gradient_accumulation_steps, cases[i].steps);
        assert_true(v->scheduler.warmup_max_lr == 0.002);
        ds_config_destroy(&config);
    }
    CHECK_OK(*state,
             config_resolve(*state,
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
        *state, config_resolve(*state, text, 1, &trainer, &config), DS_ERR_CONFIG,
        "ds.json:2:42: optimizer.params.lr: the file and the flag --learning_rate disagree: "
        "0.1 here, 0.5 by the flag");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(fills_auto),
        cmocka_unit_test(names_missing_flags),
        cmocka_unit_test(one_precision_flag_is_enough),
        cmocka_unit_test(a_precision_flag_needs_no_section),
        cmocka_unit_test(precision_flags_must_match),
        cmocka_unit_test(without_flags_auto_is_the_trainers_default),
        cmocka_unit_test(auto_follows_what_is_given),
        cmocka_unit_test(flags_must_match),
    };
    return cmocka_run_group_tests(tests, config_set_up, config_tear_down);
}
