/* SPDX-License-Identifier: Apache-2.0 */
/* Sections that a file lacks: the Trainer's optimizer and schedule by its flags; what contradicts a
 * section of the file; warm-up as a part of all steps; the one line of defaults. */
#include "common/check.h"
#include "common/config_case.h"
#include "config/config_values.h"

#include <stdlib.h>
#include <string.h>

#define BATCH "train_micro_batch_size_per_gpu: 2, "

static const char *origin_of(const ds_config *config, const char *path)
{
    const ds_config_item *item = ds_config_find(config, path);
    return item != NULL && item->origin == DS_ORIGIN_AUTO ? item->detail : "";
}

static void a_file_without_sections_gets_the_trainers(void **state)
{
    const ds_trainer_values trainer = {.fill_sections = true,
                                       .total_steps = ds_known(20),
                                       .learning_rate = ds_known(1e-3),
                                       .adam_beta2 = ds_known(0.95),
                                       .warmup_steps = ds_known(3)};
    ds_config *config;
    CHECK_OK(*state, config_resolve(*state, "{" BATCH "}", 1, &trainer, &config));
    const ds_config_values *v = dsi_config_values(config);
    assert_int_equal(v->optimizer.kind, DS_OPTIMIZER_ADAM);
    assert_true(v->optimizer.decoupled && v->optimizer.bias_correction);
    assert_true(v->optimizer.lr == 1e-3 && v->optimizer.beta1 == 0.9);
    assert_true(v->optimizer.beta2 == 0.95 && v->optimizer.eps == 1e-8);
    assert_true(v->optimizer.weight_decay == 0);
    assert_int_equal(v->scheduler.kind, DS_SCHEDULE_LINEAR);
    assert_int_equal(v->scheduler.total_num_steps, 20);
    assert_int_equal(v->scheduler.warmup_num_steps, 3);
    assert_true(ds_schedule_at(&v->scheduler, v->optimizer.lr, 20).lr == 0);
    assert_string_equal(origin_of(config, "optimizer.type"), "the Trainer's default");
    assert_string_equal(origin_of(config, "optimizer.params.lr"), "--learning_rate");
    assert_string_equal(origin_of(config, "scheduler.type"), "the Trainer's default");
    assert_int_equal(config_n_notices_with(config,
                                           "the Trainer's defaults: --optim adamw_torch, "
                                           "--lr_scheduler_type linear, --adam_epsilon 1e-08, "
                                           "--weight_decay 0"),
                     1);
    assert_int_equal(ds_config_n_notices(config), 1);
    ds_config_destroy(&config);
}

/* A file that says nothing of batches: the Trainer's 8 rows, or the flag's; the library refuses it.
 */
static void a_file_without_batches_gets_the_trainers(void **state)
{
    ds_config *config;
    const ds_trainer_values usual = {.fill_sections = true};
    static const char *const files[] = {"{}", "{train_batch_size: 'auto'}",
                                        "{gradient_accumulation_steps: 'auto'}"};
    for (size_t i = 0; i < sizeof files / sizeof files[0]; ++i) {
        CHECK_OK(*state, config_resolve(*state, files[i], 1, &usual, &config));
        assert_int_equal(dsi_config_values(config)->batch.train_batch_size, 8);
        assert_int_equal(config_n_notices_with(config, "--micro_batch 8"), 1);
        ds_config_destroy(&config);
    }
    const ds_trainer_values flag = {.fill_sections = true, .micro_batch = ds_known(3)};
    CHECK_OK(*state, config_resolve(*state, "{gradient_accumulation_steps: 2}", 1, &flag, &config));
    assert_int_equal(dsi_config_values(config)->batch.train_batch_size, 6);
    ds_config_destroy(&config);
    CHECK_FAILS(*state, config_resolve(*state, "{}", 1, NULL, &config), DS_ERR_CONFIG,
                "found neither");
}

/* DeepSpeed's meaning: the library fills nothing unless it is asked. */
static void the_library_fills_nothing(void **state)
{
    ds_config *config;
    const ds_trainer_values steps = {.total_steps = ds_known(20)};
    CHECK_OK(*state, config_resolve(*state, "{" BATCH "}", 1, &steps, &config));
    assert_int_equal(dsi_config_values(config)->optimizer.kind, DS_OPTIMIZER_NONE);
    assert_int_equal(dsi_config_values(config)->scheduler.kind, DS_SCHEDULE_NONE);
    ds_config_destroy(&config);
    const ds_trainer_values none = {
        .total_steps = ds_known(20), .fill_sections = true, .lr_scheduler_type = "none"};
    CHECK_OK(*state, config_resolve(*state, "{" BATCH "}", 1, &none, &config));
    assert_int_equal(dsi_config_values(config)->scheduler.kind, DS_SCHEDULE_NONE);
    ds_config_destroy(&config);
}

static void maps_the_trainers_optimizers(void **state)
{
    static const struct {
        const char *name;
        ds_optimizer_kind kind;
        double eps;
    } cases[] = {{"adamw_torch", DS_OPTIMIZER_ADAM, 1e-8},
                 {"adamw_torch_fused", DS_OPTIMIZER_ADAM, 1e-8},
                 {"adamw_apex_fused", DS_OPTIMIZER_ADAM, 1e-8},
                 {"sgd", DS_OPTIMIZER_SGD, 0},
                 {"adagrad", DS_OPTIMIZER_ADAGRAD, 1e-10},
                 {"lion_32bit", DS_OPTIMIZER_LION, 0},
                 {"paged_lion_32bit", DS_OPTIMIZER_LION, 0},
                 {"adafactor", DS_OPTIMIZER_ADAFACTOR, 1e-30},
                 {"schedule_free_adamw", DS_OPTIMIZER_SCHEDULE_FREE, 1e-8},
                 {"adamw_8bit", DS_OPTIMIZER_ADAMW_8BIT, 1e-8},
                 {"adamw_bnb_8bit", DS_OPTIMIZER_ADAMW_8BIT, 1e-8},
                 {"paged_adamw_8bit", DS_OPTIMIZER_ADAMW_8BIT, 1e-8},
                 {"ademamix", DS_OPTIMIZER_ADEMAMIX, 1e-8},
                 {"paged_ademamix_32bit", DS_OPTIMIZER_ADEMAMIX, 1e-8},
                 {"ademamix_8bit", DS_OPTIMIZER_ADEMAMIX, 1e-8},
                 {"paged_ademamix_8bit", DS_OPTIMIZER_ADEMAMIX, 1e-8}};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        const ds_trainer_values trainer = {.optim = cases[i].name, .weight_decay = ds_known(0.1)};
        ds_config *config;
        const bool mix = cases[i].kind == DS_OPTIMIZER_ADEMAMIX;
        const bool whole = strstr(cases[i].name, "8bit") != NULL;
        CHECK_OK(*state,
                 config_resolve(*state,
                                whole ? "{" BATCH "}" : "{" BATCH "zero_optimization: {stage: 2}}",
                                1, &trainer, &config));
        const ds_config_optimizer *o = &dsi_config_values(config)->optimizer;
        assert_true(!whole || !o->embeddings_8bit);
        assert_true(!mix || o->optim_bits == (whole ? 8 : 32));
        assert_true(cases[i].kind != DS_OPTIMIZER_ADAFACTOR ||
                    (!o->scale_parameter && !o->relative_step && !o->has_beta1));
        assert_true(cases[i].kind != DS_OPTIMIZER_ADEMAMIX ||
                    (o->beta1 == 0.9 && o->beta2 == 0.999 && o->beta3 == 0.9999 &&
                     o->alpha == 5.0 && o->t_alpha == 0 && o->t_beta3 == 0));
        assert_int_equal(o->kind, cases[i].kind);
        assert_true(o->lr == 5e-5 && o->weight_decay == 0.1 && o->eps == cases[i].eps);
        assert_true(o->momentum == 0);
        assert_string_equal(origin_of(config, "optimizer.type"), "--optim");
        ds_config_destroy(&config);
    }
}

/* No schedule, unless one is asked for: then an error; the warm-up is the optimizer's own. */
static void schedule_free_goes_without(void **state)
{
    ds_config *config;
    ds_trainer_values trainer = {.fill_sections = true,
                                 .total_steps = ds_known(100),
                                 .warmup_steps = ds_known(7),
                                 .optim = "schedule_free_adamw"};
    for (int i = 0; i < 2; ++i) {
        trainer.lr_scheduler_type = i == 0 ? NULL : "constant";
        CHECK_OK(*state, config_resolve(*state, "{" BATCH "}", 1, &trainer, &config));
        const ds_config_values *v = dsi_config_values(config);
        assert_int_equal(v->scheduler.kind, DS_SCHEDULE_NONE);
        assert_int_equal(v->optimizer.warmup_steps, 7);
        assert_string_equal(origin_of(config, "optimizer.params.warmup_steps"), "--warmup_steps");
        assert_int_equal(config_n_notices_with(config, "goes without a schedule"), i == 0);
        ds_config_destroy(&config);
    }
    trainer.optim = NULL;
    trainer.lr_scheduler_type = NULL;
    CHECK_OK(*state, config_resolve(*state,
                                    "{" BATCH "optimizer: {type: 'AdamWScheduleFree', params: "
                                    "{warmup_steps: 'auto'}}}",
                                    1, &trainer, &config));
    assert_int_equal(dsi_config_values(config)->optimizer.warmup_steps, 7);
    ds_config_destroy(&config);
}

static void takes_the_parameters_of_a_schedule(void **state)
{
    const ds_trainer_values trainer = {.fill_sections = true,
                                       .total_steps = ds_known(100),
                                       .learning_rate = ds_known(1e-3),
                                       .warmup_ratio = ds_known(0.025),
                                       .lr_scheduler_type = "cosine_with_min_lr",
                                       .lr_scheduler_kwargs = "{\"min_lr\": 1e-4}"};
    ds_config *config;
    CHECK_OK(*state, config_resolve(*state, "{" BATCH "}", 1, &trainer, &config));
    const ds_config_values *v = dsi_config_values(config);
    assert_int_equal(v->scheduler.warmup_num_steps, 3);
    CHECK_OK(*state, ds_schedule_check(*state, &v->scheduler));
    assert_true(ds_schedule_at(&v->scheduler, 1e-3, 3).lr == 1e-3);
    assert_true(ds_schedule_at(&v->scheduler, 1e-3, 100).lr == 1e-4);
    assert_string_equal(origin_of(config, "scheduler.params.min_lr"), "--lr_scheduler_kwargs");
    /* what is printed reads back, without flags, to the same */
    char *text = NULL;
    CHECK_OK(*state, ds_config_print(config, false, &text));
    ds_config *again;
    CHECK_OK(*state, config_resolve(*state, text, 1, NULL, &again));
    assert_memory_equal(&dsi_config_values(again)->scheduler.total_num_steps,
                        &v->scheduler.total_num_steps, sizeof v->scheduler.total_num_steps);
    assert_true(ds_schedule_at(&dsi_config_values(again)->scheduler, 1e-3, 50).lr ==
                ds_schedule_at(&v->scheduler, 1e-3, 50).lr);
    free(text);
    ds_config_destroy(&again);
    ds_config_destroy(&config);
}

/* A part of all steps, rounded up, of DeepSpeed's schedules too. */
static void warms_up_by_a_ratio(void **state)
{
    static const struct {
        const char *file;
        ds_trainer_values flags;
        int64_t want;
    } cases[] = {
        {"{" BATCH "}", {.total_steps = {true, 10}, .warmup_ratio = {true, 0.31}}, 4},
        {"{" BATCH "}", {.total_steps = {true, 10}, .warmup_steps = {true, 0.31}}, 4},
        {"{" BATCH "}", {.total_steps = {true, 10}, .warmup_ratio = {true, 0}}, 0},
        {"{" BATCH "}", {.total_steps = {true, 10}, .warmup_steps = {true, 12}}, 12},
        {"{" BATCH "scheduler: {type: 'WarmupDecayLR', params: {total_num_steps: 'auto', "
         "warmup_num_steps: "
         "'auto'}}}",
         {.total_steps = {true, 10}, .warmup_ratio = {true, 0.31}},
         4},
        {"{" BATCH "scheduler: {type: 'WarmupDecayLR', params: {total_num_steps: 100}}}",
         {.warmup_ratio = {true, 0.31}},
         31},
        {"{" BATCH
         "scheduler: {type: 'linear', params: {num_training_steps: 100, num_warmup_steps: 8}}}",
         {.warmup_ratio = {true, 0.07}},
         8}, /* 100 * 0.07 is above 7, in Python too */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        ds_trainer_values flags = cases[i].flags;
        ds_config *config;
        flags.fill_sections = true;
        CHECK_OK(*state, config_resolve(*state, cases[i].file, 1, &flags, &config));
        assert_int_equal(dsi_config_values(config)->scheduler.warmup_num_steps, cases[i].want);
        ds_config_destroy(&config);
    }
}

#define ADAMW   "optimizer: {type: 'AdamW', params: {lr: 1e-3}}"
#define DECAYED "scheduler: {type: 'WarmupDecayLR', params: {total_num_steps: 'auto'}}"

static void the_files_own_section_wins(void **state)
{
    static const struct {
        const char *file;
        ds_trainer_values flags;
    } cases[] = {
        {"{" BATCH ADAMW "}", {.optim = "adamw_torch_fused"}},
        {"{" BATCH "optimizer: {type: 'Adam', params: {}}}", {.optim = "adamw_torch"}},
        {"{" BATCH DECAYED "}", {.lr_scheduler_type = "linear"}},
        {"{" BATCH "scheduler: {type: 'WarmupLR', params: {}}}",
         {.lr_scheduler_type = "constant_with_warmup"}},
        {"{" BATCH "scheduler: {type: 'constant'}}", {.lr_scheduler_type = "constant"}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        ds_trainer_values flags = cases[i].flags;
        ds_config *config;
        flags.fill_sections = true;
        flags.total_steps = ds_known(10);
        CHECK_OK(*state, config_resolve(*state, cases[i].file, 1, &flags, &config));
        ds_config_destroy(&config);
    }
}

static void refuses_by_name(void **state)
{
    static const struct {
        const char *file;
        ds_trainer_values flags;
        const char *says;
    } cases[] = {
        {"{" BATCH "}", {.optim = "galore_adamw"}, "found \"galore_adamw\", which is not built"},
        {"{" BATCH "}",
         {.optim = "schedule_free_adamw", .lr_scheduler_type = "linear"},
         "which AdamWScheduleFree is there to do without"},
        {"{" BATCH "}",
         {.optim = "adafactor", .adam_beta1 = {true, 0.5}},
         "--adam_beta1 is not in"},
        {"{" BATCH "}", {.optim = "lion_8bit"}, "found \"lion_8bit\", which is not built"},
        {"{" BATCH "}", {.optim = "adamw"}, "--optim: expected one of adamw_torch"},
        {"{" BATCH ADAMW "}", {.optim = "sgd"}, "the file and the flag --optim disagree"},
        {"{" BATCH "optimizer: {type: 'Adam', params: {adam_w_mode: false}}}",
         {.optim = "adamw_torch"},
         "the file and the flag --optim disagree"},
        {"{" BATCH "}", {.optim = "sgd", .adam_epsilon = {true, 1e-6}}, "--adam_epsilon is not in"},
        {"{" BATCH "}", {.lr_scheduler_type = "greedy"}, "\"greedy\", which is not built"},
        {"{" BATCH "}", {.lr_scheduler_type = "WarmupLR"}, "--lr_scheduler_type: expected one of"},
        {"{" BATCH DECAYED "}",
         {.lr_scheduler_type = "cosine"},
         "the file and the flag --lr_scheduler_type disagree"},
        {"{" BATCH DECAYED "}",
         {.lr_scheduler_type = "none"},
         "the file and the flag --lr_scheduler_type disagree"},
        {"{" BATCH DECAYED "}",
         {.lr_scheduler_kwargs = "{}"},
         "the file and the flag --lr_scheduler_kwargs disagree"},
        {"{" BATCH "}",
         {.lr_scheduler_type = "none", .lr_scheduler_kwargs = "{}"},
         "--lr_scheduler_kwargs is not in force"},
        {"{" BATCH "}",
         {.lr_scheduler_type = "none", .warmup_steps = {true, 2}},
         "--warmup_steps is not in force"},
        {"{" BATCH "}",
         {.lr_scheduler_type = "constant", .warmup_ratio = {true, 0.1}},
         "--warmup_ratio is not in force"},
        {"{" BATCH "}",
         {.warmup_steps = {true, 2}, .warmup_ratio = {true, 0.1}},
         "--warmup_steps and --warmup_ratio are both given"},
        {"{" BATCH "}", {.warmup_steps = {true, 2.5}}, "--warmup_steps: expected a whole number"},
        {"{" BATCH "}", {.warmup_ratio = {true, 1.5}}, "--warmup_ratio: expected a part from 0"},
        {"{" BATCH "}",
         {.lr_scheduler_type = "cosine_with_min_lr"},
         "needs one of min_lr and min_lr_rate"},
        {"{" BATCH "}",
         {.lr_scheduler_type = "warmup_stable_decay"},
         "scheduler.params.num_decay_steps: expected this key"},
        {"{" BATCH "}",
         {.lr_scheduler_type = "polynomial", .learning_rate = {true, 1e-8}},
         "expected a learning rate above lr_end"},
        {"{" BATCH "}",
         {.lr_scheduler_type = "cosine", .lr_scheduler_kwargs = "{\"cycles\": 2}"},
         "--lr_scheduler_kwargs: \"cycles\" is no parameter of cosine"},
        {"{" BATCH "}",
         {.lr_scheduler_type = "cosine", .lr_scheduler_kwargs = "{\"warmup_num_steps\": 2}"},
         "\"warmup_num_steps\" is no parameter of cosine"},
        {"{" BATCH "}", {.lr_scheduler_kwargs = "{\"a\": "}, "--lr_scheduler_kwargs:1:"},
        {"{" BATCH "}",
         {.lr_scheduler_type = "cosine", .lr_scheduler_kwargs = "{\"num_cycles\": -1}"},
         "scheduler.params.num_cycles: expected"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        ds_trainer_values flags = cases[i].flags;
        ds_config *config;
        flags.fill_sections = true;
        flags.total_steps = ds_known(10);
        CHECK_FAILS(*state, config_resolve(*state, cases[i].file, 1, &flags, &config),
                    DS_ERR_CONFIG, cases[i].says);
    }
    ds_config *config;
    const ds_trainer_values no_total = {.lr_scheduler_type = "linear"};
    CHECK_FAILS(*state, config_resolve(*state, "{" BATCH ADAMW "}", 1, &no_total, &config),
                DS_ERR_CONFIG, "give --steps");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_file_without_sections_gets_the_trainers),
        cmocka_unit_test(a_file_without_batches_gets_the_trainers),
        cmocka_unit_test(the_library_fills_nothing),
        cmocka_unit_test(maps_the_trainers_optimizers),
        cmocka_unit_test(schedule_free_goes_without),
        cmocka_unit_test(takes_the_parameters_of_a_schedule),
        cmocka_unit_test(warms_up_by_a_ratio),
        cmocka_unit_test(the_files_own_section_wins),
        cmocka_unit_test(refuses_by_name),
    };
    return cmocka_run_group_tests(tests, config_set_up, config_tear_down);
}
