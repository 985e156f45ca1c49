/* SPDX-License-Identifier: Apache-2.0 */
/* ds_plan_report gives what the tool ds_plan prints for the same model, configuration and ranks. */
#include "common/check.h"
#include "common/scratch.h"

#include <deepspeed/engine.h>
#include <deepspeed/plan.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char config_text[] =
    "{\"train_micro_batch_size_per_gpu\": 2, \"bf16\": {\"enabled\": true}, \"optimizer\": "
    "{\"type\": "
    "\"AdamW\", \"params\": {\"lr\": 1e-3}}, \"zero_optimization\": {\"stage\": 3}}";
static const char model_path[] = DS_SOURCE_DIR "/test/golden/parity/llama3/config.json";

typedef struct opened {
    ds_model *model;
    ds_config *config;
} opened;

static opened open_text(ds_ctx *ctx, const char *text, uint32_t n_ranks)
{
    opened o = {0};
    CHECK_OK(ctx, ds_model_from_config(ctx, model_path, &o.model));
    CHECK_OK(ctx, ds_config_load_text(ctx, "ds.json", text, strlen(text), NULL, &o.config));
    CHECK_OK(ctx, ds_config_resolve(o.config, n_ranks, NULL));
    return o;
}

static opened open_both(ds_ctx *ctx, uint32_t n_ranks)
{
    return open_text(ctx, config_text, n_ranks);
}

static void close_both(opened *o)
{
    ds_config_destroy(&o->config);
    ds_model_destroy(&o->model);
}

/* What the tool writes with --json; its exit status is `code`. */
static char *of_the_tool(const char *folder, const char *flags, int code)
{
    char command[2048];
    size_t n = 0;
    const char *config = scratch_path(folder, "ds.json");
    const char *json = scratch_path(folder, "plan.json");
    scratch_write(config, config_text, strlen(config_text));
    (void)snprintf(command, sizeof command,
                   "%s/ds_plan --model_config %s --deepspeed_config %s --seq_length 48 --threads 2 "
                   "--json %s %s",
                   DS_BINARY_DIR, model_path, config, json, flags);
    const int status = system(command);
    assert_int_equal(status, code << 8);
    return scratch_read(json, &n);
}

/* The same text but for the name of the memory that is short, a flag or a field. */
static void same_but_for_names(const char *got, const char *want)
{
    static const char flag[] = "--memory\"";
    static const char field[] = "memory_bytes\"";
    const char *at = strstr(want, flag);
    if (at == NULL) {
        assert_string_equal(got, want);
        return;
    }
    const size_t before = (size_t)(at - want);
    assert_true(strlen(got) > before && memcmp(got, want, before) == 0);
    assert_memory_equal(got + before, field, sizeof field - 1);
    assert_string_equal(got + before + sizeof field - 1, at + sizeof flag - 1);
}

static void is_what_the_tool_prints(void **state)
{
    static const struct {
        const char *flags;
        uint32_t n_ranks, n_nodes;
        uint64_t memory;
        const char *device;
        bool fits;
    } cases[] = {
        {"--world_size 1 --memory 1G", 1, 0, UINT64_C(1) << 30, NULL, true},
        {"--world_size 8 --nodes 2 --device h100-sxm", 8, 2, 0, "h100-sxm", true},
        {"--world_size 4 --memory 1000000", 4, 1, 1000000, NULL, false},
    };
    ds_ctx *ctx = *state;
    char *folder = scratch_make();
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; ++i) {
        char *got = NULL;
        bool fits = !cases[i].fits;
        opened o = open_both(ctx, cases[i].n_ranks);
        const ds_plan_params params = {.model = o.model,
                                       .config = o.config,
                                       .seq_length = 48,
                                       .n_nodes = cases[i].n_nodes,
                                       .n_threads = 2,
                                       .memory_bytes = cases[i].memory,
                                       .device = cases[i].device};
        CHECK_OK(ctx, ds_plan_report(ctx, &params, DS_PLAN_JSON, &fits, &got));
        char *want = of_the_tool(folder, cases[i].flags, cases[i].fits ? 0 : 3);
        same_but_for_names(got, want);
        assert_int_equal(fits, cases[i].fits);
        free(want);
        free(got);
        close_both(&o);
    }
    scratch_remove(folder);
}

static void has_every_form(void **state)
{
    ds_ctx *ctx = *state;
    char *text = NULL;
    opened o = open_both(ctx, 2);
    ds_plan_params params = {.model = o.model, .config = o.config, .seq_length = 16};
    CHECK_OK(ctx, ds_plan_report(ctx, &params, DS_PLAN_TEXT, NULL, &text));
    assert_non_null(strstr(text, "memory of a rank at its peak"));
    free(text);
    CHECK_OK(ctx, ds_plan_report(ctx, &params, DS_PLAN_HTML, NULL, &text));
    assert_non_null(strstr(text, "<html"));
    free(text);
    CHECK_FAILS(ctx, ds_plan_report(ctx, &params, DS_PLAN_TRACE, NULL, &text), DS_ERR_ARG,
                "device");
    params.device = "h100-sxm";
    CHECK_OK(ctx, ds_plan_report(ctx, &params, DS_PLAN_TRACE, NULL, &text));
    assert_non_null(strstr(text, "traceEvents"));
    free(text);
    params.device = "h100-sxn";
    CHECK_FAILS(ctx, ds_plan_report(ctx, &params, DS_PLAN_TEXT, NULL, &text), DS_ERR_NOT_FOUND,
                "h100-sxm");
    params.device = NULL;
    params.n_nodes = 3;
    CHECK_FAILS(ctx, ds_plan_report(ctx, &params, DS_PLAN_TEXT, NULL, &text), DS_ERR_ARG,
                "n_nodes");
    params = (ds_plan_params){.model = o.model, .config = o.config};
    CHECK_FAILS(ctx, ds_plan_report(ctx, &params, DS_PLAN_TEXT, NULL, &text), DS_ERR_ARG,
                "seq_length");
    close_both(&o);
}

/* What a pipeline's "auto" becomes; an engine takes no open configuration. */
static void chooses_stages(void **state)
{
    static const char open[] =
        "{\"train_micro_batch_size_per_gpu\": 1, \"gradient_accumulation_steps\": 6, "
        "\"optimizer\": "
        "{\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}, \"pipeline\": {\"stages\": 2, "
        "\"schedule\": \"auto\"}}";
    ds_ctx *ctx = *state;
    opened o = open_text(ctx, open, 2);
    ds_config *chosen = NULL;
    ds_config *again = NULL;
    ds_engine *engine = NULL;
    char *why = NULL;
    ds_plan_params params = {.model = o.model, .config = o.config, .seq_length = 48};
    CHECK_OK(ctx, ds_plan_pipeline(ctx, &params, &chosen, &why));
    assert_non_null(chosen);
    assert_non_null(strstr(why, "pipeline \"auto\": 2 stages, "));
    const ds_config_item *schedule = ds_config_find(chosen, "pipeline.schedule");
    assert_null(strstr(schedule->value, "auto"));
    free(why);
    params.config = chosen; /* closed */
    CHECK_OK(ctx, ds_plan_pipeline(ctx, &params, &again, &why));
    assert_null(again);
    assert_null(why);
    const ds_engine_params engine_params = {.model = o.model, .config = o.config, .seq_length = 48};
    CHECK_FAILS(ctx, ds_initialize(ctx, &engine_params, &engine), DS_ERR_CONFIG,
                "call ds_plan_pipeline()");
    ds_config_destroy(&chosen);
    close_both(&o);
}

int main(void)
{
    ds_ctx *ctx = NULL;
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 1;
    }
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(is_what_the_tool_prints, ctx),
        cmocka_unit_test_prestate(has_every_form, ctx),
        cmocka_unit_test_prestate(chooses_stages, ctx),
    };
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
