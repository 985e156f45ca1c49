/* SPDX-License-Identifier: Apache-2.0 */
/* Names and forms that DeepSpeed's files have: old ones, lax values, null, unknown keys, what has
 * no effect; each is in force, told of, or refused. */
#include "common/check.h"
#include "common/config_case.h"
#include "config/config_values.h"

#include <stdio.h>
#include <string.h>

/* ---- names and forms ------------------------------------------------------------------------- */

static void migrates(void **state)
{
    ds_config *config;
    const char *text = "{train_batch_size: 2, bfloat16: {enabled: true},\n"
                       " zero_optimization: {stage: 3, cpu_offload: true,\n"
                       "  stage3_gather_fp16_weights_on_model_save: true}}";
    CHECK_OK(*state, config_resolve(*state, text, 1, NULL, &config));
    const ds_config_values *v = dsi_config_values(config);
    assert_true(v->bf16.enabled && v->zero.gather_16bit_weights_on_model_save);
    assert_true(config_has_notice(config, "\"bfloat16\" is an old name; write \"bf16\""));
    assert_true(config_has_notice(config, "write \"offload_optimizer\": {\"device\": \"cpu\"}"));
    assert_true(config_has_notice(config, "on others (cpu) it is in host memory already"));
    const ds_config_item *item =
        ds_config_find(config, "zero_optimization.gather_16bit_weights_on_model_save");
    assert_int_equal(item->origin, DS_ORIGIN_ALIAS);
    assert_int_equal(item->line, 3);
    assert_string_equal(ds_config_find(config, "zero_optimization.offload_optimizer.device")->value,
                        "\"cpu\"");
    ds_config_destroy(&config);

    CHECK_OK(*state, config_resolve(*state, "{train_batch_size: 2, zero_optimization: true}", 1,
                                    NULL, &config));
    assert_int_equal(dsi_config_values(config)->zero.stage, 1);
    assert_true(config_has_notice(config, "true is an old form"));
    ds_config_destroy(&config);
}

static void takes_lax_values(void **state)
{
    ds_config *config;
    const char *text = "{train_batch_size: 2, fp16: {enabled: 'Yes', loss_scale: '128'},\n"
                       " zero_optimization: {stage: '2', reduce_bucket_size: 5e8, strict: true}}";
    CHECK_OK(*state, config_resolve(*state, text, 1, NULL, &config));
    const ds_config_values *v = dsi_config_values(config);
    assert_true(v->fp16.enabled && !v->fp16.dynamic && v->fp16.loss_scale == 128);
    assert_int_equal(v->zero.stage, 2);
    assert_true(config_has_notice(config, "write it without quotes"));
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
    CHECK_OK(*state, config_resolve(*state, text, 1, NULL, &config));
    assert_true(config_has_notice(
        config, "cpu_checkpointing: in force beside an accelerator with memory of its own"));
    assert_true(config_has_notice(config, "ds.json:1:42: disable_allgather: no effect"));
    assert_true(config_has_notice(config, "compile.deepcompile: no effect"));
    assert_true(config_has_notice(config, "off, because data_efficiency.enabled is false"));
    assert_false(config_has_notice(config, "graph_harvesting"));
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
    static const char *const refused[] = {"mics_hierarchical_params_gather: true"};
    for (size_t i = 0; i < 7 + 1; ++i) {
        char text[256];
        ds_config *config = NULL;
        (void)snprintf(text, sizeof text,
                       "{train_batch_size: 4, zero_optimization: {stage: 3, %s}}",
                       i < 7 ? quiet[i] : refused[i - 7]);
        if (i >= 7) {
            CHECK_FAILS(*state, config_resolve(*state, text, 2, NULL, &config), DS_ERR_CONFIG,
                        "on 2 ranks");
        } else {
            CHECK_OK(*state, config_resolve(*state, text, 2, NULL, &config));
            assert_true(config_has_notice(config, "no effect here"));
            ds_config_destroy(&config);
        }
        CHECK_OK(*state, config_resolve(*state, text, 1, NULL, &config));
        assert_false(config_has_notice(config, "no effect here"));
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
        CHECK_OK(*state, config_resolve(*state, text, 1, NULL, &config));
        assert_int_equal(ds_config_n_notices(config), cases[i].notice != NULL ? 1 : 0);
        if (cases[i].notice != NULL && !config_has_notice(config, cases[i].notice)) {
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
        assert_int_equal(config_resolve(*state, text, 1, NULL, &config), DS_ERR_CONFIG);
    }
}

static void allows_unknown_keys(void **state)
{
    const char *text = "{train_batch_size: 2, my_key: 1, fp16: {opt_lvl: 'O2'}}";
    const ds_config_params params = {.allow_unknown_keys = true};
    ds_config *config;
    CHECK_OK(*state, ds_config_load_text(*state, "ds.json", text, strlen(text), &params, &config));
    assert_true(config_has_notice(config, "my_key: unknown key, not read"));
    assert_true(config_has_notice(config, "fp16.opt_lvl: unknown key, not read"));
    ds_config_destroy(&config);
}

/* Parameters, states and activations may have disks of their own. */
static void takes_folders_of_each_kind(void **state)
{
    ds_config *config;
    CHECK_OK(*state,
             config_resolve(*state,
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
    CHECK_OK(*state,
             config_resolve(*state,
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
    CHECK_OK(*state,
             config_resolve(*state,
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
    CHECK_OK(*state,
             config_resolve(*state,
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
    CHECK_OK(*state,
             config_resolve(*state,
                            "{train_batch_size: 2, fp16: {enabled: true, min_loss_scale: 1e-10, "
                            "opt_level: 'O2'}, bf16: {loss_scale: 0, initial_scale_power: 16, "
                            "loss_scale_window: 1000, hysteresis: 2, min_loss_scale: 1, "
                            "auto_cast: true}, compile: {disable: false, backend: 'inductor'}}",
                            1, NULL, &config));
    assert_true(dsi_config_values(config)->fp16.min_loss_scale == 1e-10);
    assert_true(
        config_has_notice(config, "fp16.opt_level: no effect: DeepSpeed read nothing of it"));
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
        CHECK_OK(*state, config_resolve(*state, texts[i], 1, NULL, &config));
        assert_true(config_has_notice(config, "scheduler.params: without a \"type\"") == (i < 2));
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
    assert_true(
        config_has_notice(config, "_comment: unknown key, not read; DeepSpeed does not read it"));
    assert_true(config_has_notice(config, "example_key: unknown key, not read"));
    assert_true(
        config_has_notice(config, "fp16_notes: unknown key, not read; did you mean \"fp16\"?"));
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

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(params_without_type),
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
    };
    return cmocka_run_group_tests(tests, config_set_up, config_tear_down);
}
