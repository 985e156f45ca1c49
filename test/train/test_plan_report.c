/* SPDX-License-Identifier: Apache-2.0 */
/* What a plan report says is what engines do: the bytes at the peak are those that the executor
 * maps, and collectives are those of the plan. */
#include "common/parity.h"
#include "common/plan_digest.h"
#include "common/sim_ranks.h"
#include "report/plan_report.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static ds_ctx *ctx;

typedef struct asked {
    const char *model;
    uint32_t n_ranks, stage;
    const char *type; /* of the configuration */
    int accumulation;
    const char *offload; /* of states to "cpu" or "nvme", in stage 3 of parameters to the host */
} asked;

static ds_config *config_of(ds_ctx *c, const asked *a)
{
    char text[1024];
    char offload[400] = "";
    ds_config *config = NULL;
    if (a->offload != NULL) {
        (void)snprintf(offload, sizeof offload,
                       ", \"offload_optimizer\": {\"device\": \"%s\", \"nvme_path\": \".\"}%s",
                       a->offload,
                       a->stage == 3 ? ", \"offload_param\": {\"device\": \"cpu\"}" : "");
    }
    (void)snprintf(text, sizeof text,
                   "{\"train_micro_batch_size_per_gpu\": 2, \"gradient_accumulation_steps\": %d, "
                   "\"optimizer\": {\"type\": \"AdamW\", \"params\": {\"lr\": 1e-3}}, "
                   "\"%s\": {\"enabled\": true}, \"device_memory\": 100000000, "
                   "\"zero_optimization\": {\"stage\": %u, "
                   "\"stage3_param_persistence_threshold\": 1%s}}",
                   a->accumulation, a->type, a->stage, offload);
    if (ds_config_load_text(c, "test", text, strlen(text), NULL, &config) < 0 ||
        ds_config_resolve(config, a->n_ranks, NULL) < 0) {
        ds_config_destroy(&config);
    }
    return config;
}

static ds_model *model_of(ds_ctx *c, const asked *a)
{
    char path[PARITY_PATH];
    ds_model *model = NULL;
    (void)snprintf(path, sizeof path, "%s/test/golden/parity/%s/config.json", DS_SOURCE_DIR,
                   a->model);
    return ds_model_from_config(c, path, &model) < 0 ? NULL : model;
}

typedef struct planned {
    asked what;
    size_t bytes, host, disk; /* of cells and arenas */
    uint64_t digest;
} planned;

/* Builds the engine and compares. */
static uint32_t run_rank(ds_ctx *c, dsi_comm *world, void *arg)
{
    const planned *want = arg;
    ds_model *model = model_of(c, &want->what);
    ds_config *config = config_of(c, &want->what);
    const ds_engine_params params = {
        .model = model, .config = config, .seq_length = 16, .comm = world};
    ds_engine *engine = NULL;
    uint64_t digest = 0;
    uint32_t failed = 0;
    if (config == NULL || ds_initialize(c, &params, &engine) < 0) {
        (void)fprintf(stderr, "%s\n", ds_ctx_error(c));
        failed = 1;
    } else {
        failed += ds_engine_planned_bytes(engine) == want->bytes ? 0 : 1;
        failed += dsi_exec_host_bytes(engine->exec) == want->host ? 0 : 1;
        failed += dsi_exec_disk_bytes(engine->exec) == want->disk ? 0 : 1;
        failed += plan_digest(engine->train_plan, &digest) < 0 ? 1 : 0;
        failed += digest == want->digest ? 0 : 1;
    }
    ds_engine_destroy(&engine);
    ds_config_destroy(&config);
    ds_model_destroy(&model);
    return failed;
}

static void a_report_is_what_engines_map(void **state)
{
    (void)state;
    static const asked cases[] = {
        {"gpt2", 1, 0, "bf16", 1, NULL},   {"llama3", 1, 3, "fp16", 2, NULL},
        {"gpt2", 2, 0, "bf16", 1, NULL},   {"llama3", 2, 1, "bf16", 2, NULL},
        {"gpt2", 3, 2, "bf16", 2, NULL},   {"llama3_tied", 2, 3, "bf16", 1, NULL},
        {"gpt2", 1, 2, "bf16", 1, "cpu"},  {"llama3", 2, 3, "bf16", 1, "cpu"},
        {"gpt2", 1, 2, "bf16", 1, "nvme"}, {"llama3", 2, 1, "bf16", 1, "nvme"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        planned want = {.what = cases[i]};
        ds_model *model = model_of(ctx, &cases[i]);
        ds_config *config = config_of(ctx, &cases[i]);
        const dsi_report_request request = {.model = model,
                                            .config = config,
                                            .seq_length = 16,
                                            .n_ranks = cases[i].n_ranks,
                                            .n_nodes = 1,
                                            .n_threads = 1};
        dsi_plan_report report;
        CHECK_OK(ctx, dsi_report_make(ctx, &request, &report));
        want.bytes = report.total[DSI_RESIDENCY_DEVICE];
        want.host = report.total[DSI_RESIDENCY_HOST] -
                    report.peak[DSI_RESIDENCY_HOST][DSI_MEMORY_HOST_STATE] -
                    report.peak[DSI_RESIDENCY_HOST][DSI_MEMORY_PROCESS];
        want.disk = report.total[DSI_RESIDENCY_DISK];
        assert_true((want.host + want.disk > 0) == (cases[i].offload != NULL));
        CHECK_OK(ctx, plan_digest(report.plan.train_plan, &want.digest));
        assert_int_equal(want.bytes, dsi_rank_mapped_bytes(&report.plan));
        assert_int_equal(sim_ranks_run(cases[i].n_ranks, NULL, run_rank, &want), 0);
        assert_true(report.hardware_flops > report.model_flops && report.model_flops > 0.0);
        assert_true((report.n_comm == 0) == (cases[i].n_ranks == 1));
        dsi_report_free(&report);
        ds_config_destroy(&config);
        ds_model_destroy(&model);
    }
}

/* Model states without padding are ZeRO's formula: 16 bytes a parameter in bf16, no accumulator,
 * cut by the number of ranks as the stage says. */
static void kinds_follow_the_stage(void **state)
{
    (void)state;
    for (uint32_t stage = 0; stage <= 3; ++stage) {
        const asked a = {"gpt2", 4, stage, "bf16", 1, NULL};
        ds_model *model = model_of(ctx, &a);
        ds_config *config = config_of(ctx, &a);
        const dsi_report_request request = {
            .model = model, .config = config, .seq_length = 16, .n_ranks = 4, .n_threads = 1};
        dsi_plan_report report;
        CHECK_OK(ctx, dsi_report_make(ctx, &request, &report));
        const size_t *got = report.peak[DSI_RESIDENCY_DEVICE];
        const double n = (double)report.n_parameters;
        const double want[4] = {2.0 * n, 2.0 * n, 4.0 * n, 8.0 * n};
        const dsi_memory_kind kinds[4] = {DSI_MEMORY_PARAM, DSI_MEMORY_GRAD, DSI_MEMORY_MASTER,
                                          DSI_MEMORY_MOMENT};
        const uint32_t cut_from[4] = {3, 1, 1, 1};
        for (int k = 0; k < 4; ++k) {
            const double bytes = want[k] / (stage >= cut_from[k] ? 4.0 : 1.0);
            const double have = (double)got[kinds[k]];
            const double more = k == 1 ? 2.0 * n : 0.0; /* gradients on their way */
            if (have < bytes || have > 1.1 * bytes + more) {
                fail_msg("stage %u, %s: %.0f bytes, expected %.0f", stage,
                         dsi_memory_kind_name(kinds[k]), have, bytes);
            }
        }
        assert_true((got[DSI_MEMORY_GATHERED] > 0) <= (stage == 3));
        dsi_report_free(&report);
        ds_config_destroy(&config);
        ds_model_destroy(&model);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_report_is_what_engines_map),
        cmocka_unit_test(kinds_follow_the_stage),
    };
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return 1;
    }
    const int failed = cmocka_run_group_tests(tests, NULL, NULL);
    ds_ctx_destroy(&ctx);
    return failed;
}
