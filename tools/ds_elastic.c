/* SPDX-License-Identifier: Apache-2.0 */
/* ds_elastic: what batch and numbers of ranks an elasticity section gives. A thin main over
 * include/deepspeed/elasticity.h. */
#include "base/number.h"
#include "common/args.h"
#include "common/output.h"

#include <deepspeed/context.h>
#include <deepspeed/elasticity.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_RIGHT = 0, EXIT_WRONG = 1, EXIT_USAGE = 2, EXIT_FAILED = 3 };

static const char about[] =
    "Prints the global batch that the elasticity section of a configuration gives, the numbers of "
    "ranks that can train with it, and, for one of them, the micro batch.";

static const char after[] =
    "Examples:\n"
    "  ds_elastic --config ds.json               version 0.1: batch and numbers of ranks\n"
    "  ds_elastic --config ds.json -w 8          for 8 ranks; version 0.2 needs a number\n\n"
    "Without --world_size version 0.2 takes the number of the environment's WORLD_SIZE.\n\n"
    "Exit codes: 0 right, 1 the section is wrong, absent or not enabled, or the number of ranks\n"
    "cannot train, 2 wrong usage, 3 the file cannot be read.";

static int fail(ds_ctx *ctx, ds_status status)
{
    (void)fprintf(stderr, "ds_elastic: %s\n", ds_ctx_error(ctx));
    return status == DS_ERR_NOT_FOUND || status == DS_ERR_IO || status == DS_ERR_NOMEM ? EXIT_FAILED
                                                                                       : EXIT_WRONG;
}

static void print_rule(const char *text)
{
    static const char rule[] = "------------------------------------------";
    (void)printf("%s\n%s\n%s\n", rule, text, rule);
}

/* The section as JSON, keys sorted, as DeepSpeed prints it. */
static void print_section(const ds_elastic_params *p)
{
    (void)printf("{\n    \"enabled\": true,\n    \"max_gpus\": %" PRId64
                 ",\n    \"max_train_batch_size\": %" PRId64 ",\n    \"micro_batch_sizes\": [",
                 p->max_gpus, p->max_train_batch_size);
    for (size_t i = 0; i < p->n_micro_batch_sizes; ++i) {
        (void)printf("%s\n        %" PRId64, i > 0 ? "," : "", p->micro_batch_sizes[i]);
    }
    (void)printf("\n    ],\n    \"min_gpus\": %" PRId64 ",\n    \"model_parallel_size\": %" PRId64
                 ",\n    \"num_gpus_per_node\": %" PRId64 ",\n    \"prefer_larger_batch\": %s,\n"
                 "    \"version\": 0.%d\n}\n",
                 p->min_gpus, p->model_parallel_size, p->num_gpus_per_node,
                 p->prefer_larger_batch ? "true" : "false", p->version);
}

static void print_result(const ds_elastic_result *result, uint32_t world_size)
{
    (void)printf("final_batch_size .... %" PRId64 "\nvalid_gpus .......... [",
                 result->train_batch_size);
    for (size_t i = 0; i < result->n_valid_gpus; ++i) {
        (void)printf("%s%" PRId64, i > 0 ? ", " : "", result->valid_gpus[i]);
    }
    (void)printf("]\n");
    if (world_size > 0) {
        (void)printf("micro_batch_size .... %" PRId64 "\n", result->micro_batch_size);
    }
}

/* Version 0.2 without a number: the environment's. */
static ds_status compute(ds_ctx *ctx, const ds_elastic_params *p, uint32_t world_size,
                         ds_elastic_result *result_out)
{
    int64_t world = world_size;
    if (p->version == 2 && world == 0) {
        DS_TRY(dsi_number_env(ctx, "WORLD_SIZE", 1, INT32_MAX, 0, &world));
    }
    return ds_elastic_compute(ctx, p, (uint32_t)world, result_out);
}

static int run(ds_ctx *ctx, const char *path, uint32_t world_size)
{
    ds_config *config = NULL;
    ds_elastic_result result = {0};
    char heading[64] = "Calculated results:";
    const ds_config_params params = {.allow_unknown_keys = true};
    ds_status status = ds_config_load_file(ctx, path, &params, &config);
    if (status < 0) {
        return fail(ctx, status);
    }
    const ds_elastic_params *p = ds_config_get_elasticity(config);
    if (p == NULL) {
        status = ds_fail(ctx, DS_ERR_CONFIG,
                         "%s: expected a section elasticity with enabled true, found none", path);
    } else {
        status = compute(ctx, p, world_size, &result);
    }
    int code = EXIT_RIGHT;
    if (status < 0) {
        code = fail(ctx, status);
    } else {
        if (world_size > 0) {
            (void)snprintf(heading, sizeof heading,
                           "Calculated results for world size %" PRIu32 ":", world_size);
        }
        print_rule("Elasticity config:");
        print_section(p);
        print_rule(heading);
        print_result(&result, world_size);
    }
    ds_elastic_free(&result);
    ds_config_destroy(&config);
    return code;
}

int main(int argc, char **argv)
{
    output_guard("ds_elastic");
    const char *path = NULL;
    int64_t world_size = 0;
    const dsi_arg rows[] = {
        {.name = "config",
         .letter = 'c',
         .type = DSI_ARG_TEXT,
         .out = &path,
         .value = "FILE",
         .doc = "DeepSpeed configuration with the section elasticity, JSON or HJSON."},
        {.name = "world_size",
         .letter = 'w',
         .type = DSI_ARG_INT,
         .out = &world_size,
         .value = "N",
         .def = "0",
         .min = 0,
         .max = 2147483647,
         .doc = "Number of ranks to ask about; 0: none."},
        {.name = "world-size",
         .type = DSI_ARG_INT,
         .out = &world_size,
         .value = "N",
         .min = 0,
         .max = 2147483647,
         .doc = "The same, DeepSpeed's spelling."},
    };
    const dsi_args_spec spec = {.usage = "ds_elastic --config FILE [--world_size N]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .after = after};
    ds_ctx *ctx = NULL;
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return EXIT_FAILED;
    }
    bool help = false;
    int code = EXIT_RIGHT;
    if (dsi_args_parse_flags(ctx, &spec, argc, argv, &help) < 0) {
        (void)fprintf(stderr, "ds_elastic: %s\n", ds_ctx_error(ctx));
        code = EXIT_USAGE;
    } else if (!help && path == NULL) {
        (void)fprintf(stderr, "ds_elastic: expected --config FILE; --help says more\n");
        code = EXIT_USAGE;
    } else if (!help) {
        code = run(ctx, path, (uint32_t)world_size);
    }
    ds_ctx_destroy(&ctx);
    return code;
}
