/* SPDX-License-Identifier: Apache-2.0 */
/* ds_config: checks, resolves and explains DeepSpeed configuration files. A thin main over
 * include/deepspeed/config.h. */
#include "common/config_check.h"
#include "common/default_config.h"
#include "common/hub_flag.h"
#include "common/output.h"
#include "common/plot.h"
#include "common/trainer_flags.h"
#include "common/trainer_names.h"
#include "config/config_values.h"
#include "io/file.h"

#include <deepspeed/context.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

enum { EXIT_RIGHT = 0, EXIT_WRONG = 1, EXIT_USAGE = 2, EXIT_FAILED = 3 };

typedef struct options {
    int64_t world_size;
    bool world_given;
    const char *kind;
    bool values_only;
    bool plot;
    train_options train; /* ds_train's flags */
} options;

enum { USUAL_STEPS = 100 /* that lr prints */, USUAL_LENGTH = 1024 /* tokens of a row */ };

static const char about[] =
    "Reads DeepSpeed configuration files, JSON or HJSON.\n\n"
    "Commands:\n"
    "  check FILE    whether ds_train would take it with these flags: all errors and\n"
    "                notices; with --model also what the model's plan refuses\n"
    "  init          a configuration for this machine, --model and --world_size, with\n"
    "                comments, to --output FILE: what ds_train takes without one\n"
    "  resolve FILE  the effective values as JSON, each with its origin: default,\n"
    "                file (line and column), alias, auto (which flag), rule\n"
    "  explain KEY   what a key means, its values, and what it does in this build:\n"
    "                zero_optimization.stage, or just stage; a part of keys, such as\n"
    "                bucket, lists those that have it\n"
    "  lr FILE       the learning rate of each optimizer step, as CSV\n"
    "  schema        JSON Schema of the file, for editors\n"
    "  docs          the page docs/config.md: every key";

static const char after[] =
    "The other flags are ds_train's, which see. check starts as ds_train does, up to where memory\n"
    "would be taken; memory, disks and weights are left to the run.\n\n"
    "Examples:\n"
    "  ds_config check ds.json --model Qwen2.5-0.5B --learning_rate 2e-5 --bf16\n"
    "  ds_config init --model Qwen2.5-0.5B --output ds.json\n"
    "  ds_config resolve ds.json --world_size 8 --micro_batch 4 --learning_rate 3e-4\n"
    "  ds_config lr ds.json --steps 2000 --plot\n"
    "  ds_config explain overlap_comm\n"
    "  ds_config schema > ds.schema.json\n\n"
    "Exit codes: 0 right, 1 the file has errors or the key is unknown, 2 wrong usage, 3 the file\n"
    "cannot be read or memory ran out.";

static int exit_code(ds_status status)
{
    switch (status) {
    case DS_OK:
        return EXIT_RIGHT;
    case DS_ERR_CONFIG:
        return EXIT_WRONG;
    case DS_ERR_ARG:
        return EXIT_USAGE;
    default:
        return EXIT_FAILED;
    }
}

static int fail(ds_ctx *ctx, ds_status status)
{
    (void)fprintf(stderr, "ds_config: %s\n", ds_ctx_error(ctx));
    return exit_code(status);
}

static ds_config_params load_params(const options *o)
{
    ds_config_params params = {.allow_unknown_keys = o->train.allow_unknown_keys,
                               .strict = o->train.strict};
    if (strcmp(o->kind, "inference") == 0) {
        params.kind = DS_CONFIG_INFERENCE;
    } else if (strcmp(o->kind, "inference_v2") == 0) {
        params.kind = DS_CONFIG_INFERENCE_V2;
    } else if (strcmp(o->kind, "mii") == 0) {
        params.kind = DS_CONFIG_MII;
    }
    return params;
}

static void print_notices(const ds_config *config, FILE *stream)
{
    for (size_t i = 0; i < ds_config_n_notices(config); ++i) {
        (void)fprintf(stream, "%s\n", ds_config_notice(config, i));
    }
}

/* Of an inference engine: names, types and bounds. */
static int check_inference(ds_ctx *ctx, const options *o, const char *file)
{
    const ds_config_params params = load_params(o);
    ds_config *config = NULL;
    size_t n_errors = 0;
    char *text = NULL;
    ds_status status = ds_config_check_file(ctx, file, &params, 0, NULL, &n_errors, &text);
    if (status < 0) {
        return fail(ctx, status);
    }
    if (n_errors > 0) {
        (void)printf("%s\n%s: %zu error%s\n", text, file, n_errors, n_errors == 1 ? "" : "s");
        free(text);
        return EXIT_WRONG;
    }
    free(text);
    status = ds_config_load_file(ctx, file, &params, &config);
    if (status < 0) {
        return fail(ctx, status);
    }
    print_notices(config, stdout);
    (void)printf("%s: right, %zu notice%s\n", file, ds_config_n_notices(config),
                 ds_config_n_notices(config) == 1 ? "" : "s");
    ds_config_destroy(&config);
    return EXIT_RIGHT;
}

static int check(ds_ctx *ctx, options *o, const char *file)
{
    if (strcmp(o->kind, "training") != 0) {
        return check_inference(ctx, o, file);
    }
    if (o->train.deepspeed_config != NULL) {
        return fail(ctx, ds_fail(ctx, DS_ERR_ARG,
                                 "check takes its file as a word, found --deepspeed_config too"));
    }
    const ds_status status = train_options_find(ctx, &o->train, DS_HUB_CONFIG);
    if (status < 0) {
        return fail(ctx, status);
    }
    return config_check(ctx, &o->train, o->world_given ? (uint32_t)o->world_size : 0, file);
}

static ds_status init_length(ds_ctx *ctx, const train_options *t, int64_t *length_out)
{
    ds_model *model = NULL;
    char *path = t->model != NULL ? dsi_path_join(t->model, "config.json") : NULL;
    const char *from = path != NULL ? path : t->model_config;
    ds_status status = DS_OK;
    *length_out = t->seq_length > 0 ? t->seq_length : USUAL_LENGTH;
    if (from != NULL) {
        status = ds_model_from_config(ctx, from, &model);
        *length_out = status >= 0 ? train_seq_length(t, model) : 0;
        ds_model_destroy(&model);
    }
    free(path);
    return status;
}

static ds_status init(ds_ctx *ctx, options *o)
{
    train_options *t = &o->train;
    DS_TRY(train_options_find(ctx, t, DS_HUB_CONFIG));
    DS_TRY(hub_flag_spare(ctx, t->model_found, "output", t->output));
    const ds_trainer_values trainer = train_trainer_values(t, 0, 0);
    default_config made = {.n_ranks = (uint32_t)o->world_size, .trainer = &trainer};
    DS_TRY(init_length(ctx, t, &made.seq_length));
    default_config_make(&made);
    if (t->output == NULL) {
        (void)fputs(made.text, stdout);
        return DS_OK;
    }
    struct stat st;
    if (stat(t->output, &st) == 0 && S_ISREG(st.st_mode) && !t->overwrite) {
        return ds_fail(ctx, DS_ERR_ARG, "%s is there already; give --overwrite, or another name",
                       t->output);
    }
    return dsi_file_replace(ctx, t->output, made.text, strlen(made.text));
}

static ds_status load_resolved(ds_ctx *ctx, const options *o, const char *file,
                               ds_config **config_out)
{
    const ds_config_params params = load_params(o);
    ds_trainer_values trainer = train_trainer_values(&o->train, 0, (uint64_t)o->train.steps);
    ds_config *config = NULL;
    DS_TRY(ds_config_load_file(ctx, file, &params, &config));
    const ds_config_item *total = ds_config_find(config, "scheduler.params.total_num_steps");
    if (total != NULL && strcmp(total->value, "\"auto\"") != 0) {
        trainer.total_steps = (ds_maybe){0}; /* --steps of `lr` only says how far to print */
    }
    const ds_status status = ds_config_resolve(config, (uint32_t)o->world_size, &trainer);
    if (status < 0) {
        ds_config_destroy(&config);
        return status;
    }
    *config_out = config;
    return DS_OK;
}

static int print_text(ds_ctx *ctx, ds_status status, char *text)
{
    if (status < 0) {
        return status == DS_ERR_NOT_FOUND ? (fail(ctx, status), EXIT_WRONG) : fail(ctx, status);
    }
    (void)fputs(text, stdout);
    free(text);
    return EXIT_RIGHT;
}

static int resolve(ds_ctx *ctx, const options *o, const char *file)
{
    ds_config *config = NULL;
    ds_status status = load_resolved(ctx, o, file, &config);
    if (status < 0) {
        return fail(ctx, status);
    }
    print_notices(config, stderr);
    char *text = NULL;
    status = ds_config_print(config, !o->values_only, &text);
    const int code = print_text(ctx, status, text);
    ds_config_destroy(&config);
    return code;
}

/* A value a group: norms and biases have a column of their own. */
static void print_csv(const ds_config_values *values, int64_t steps)
{
    const double rate = values->optimizer.lr;
    const bool momentum = ds_schedule_at(&values->scheduler, rate, 1).has_momentum;
    const bool groups = values->scheduler_has_groups;
    (void)printf("step,lr%s%s\n", groups ? ",lr_no_decay" : "", momentum ? ",momentum" : "");
    for (int64_t i = 0; i < steps; ++i) {
        const ds_schedule_point point = ds_schedule_at(&values->scheduler, rate, i);
        (void)printf("%lld,%.9g", (long long)(i + 1), point.lr);
        if (groups) {
            (void)printf(",%.9g", ds_schedule_at(&values->scheduler_no_decay, rate, i).lr);
        }
        if (momentum) {
            (void)printf(",%.9g", point.momentum);
        }
        (void)putchar('\n');
    }
}

static int print_plot(ds_ctx *ctx, const ds_config_values *values, int64_t steps)
{
    double *rates = calloc((size_t)steps, sizeof *rates);
    if (rates == NULL) {
        return fail(ctx, ds_fail(ctx, DS_ERR_NOMEM, "no memory for %lld steps", (long long)steps));
    }
    for (int64_t i = 0; i < steps; ++i) {
        rates[i] = ds_schedule_at(&values->scheduler, values->optimizer.lr, i).lr;
    }
    dsi_plot(stdout, "learning rate by update", rates, (size_t)steps, 0, (uint64_t)steps - 1, 64,
             16);
    free(rates);
    return EXIT_RIGHT;
}

static int learning_rate(ds_ctx *ctx, options *o, const char *file)
{
    ds_config *config = NULL;
    o->train.steps = o->train.steps > 0 ? o->train.steps : USUAL_STEPS;
    const ds_status status = load_resolved(ctx, o, file, &config);
    if (status < 0) {
        return fail(ctx, status);
    }
    int code = EXIT_RIGHT;
    if (o->plot) {
        code = print_plot(ctx, dsi_config_values(config), o->train.steps);
    } else {
        print_csv(dsi_config_values(config), o->train.steps);
    }
    ds_config_destroy(&config);
    return code;
}

static int run(ds_ctx *ctx, options *o, const dsi_arg_list *words)
{
    const char *command = words->n > 0 ? words->items[0] : "";
    const char *operand = words->n > 1 ? words->items[1] : NULL;
    char *text = NULL;
    ds_status status;
    if (strcmp(command, "schema") == 0 && words->n == 1) {
        status = ds_config_schema(ctx, &text);
        return print_text(ctx, status, text);
    }
    if (strcmp(command, "docs") == 0 && words->n == 1) {
        status = ds_config_docs(ctx, &text);
        return print_text(ctx, status, text);
    }
    if (words->n == 1 && strcmp(command, "init") == 0) {
        status = init(ctx, o);
        return status < 0 ? fail(ctx, status) : EXIT_RIGHT;
    }
    if (words->n == 2 && strcmp(command, "check") == 0) {
        return check(ctx, o, operand);
    }
    if (words->n == 2 && strcmp(command, "resolve") == 0) {
        return resolve(ctx, o, operand);
    }
    if (words->n == 2 && strcmp(command, "lr") == 0) {
        return learning_rate(ctx, o, operand);
    }
    if (words->n == 2 && strcmp(command, "explain") == 0) {
        status = ds_config_explain(ctx, operand, &text);
        return print_text(ctx, status, text);
    }
    return fail(ctx,
                ds_fail(ctx, DS_ERR_ARG,
                        "expected check FILE, init, resolve FILE, lr FILE, explain KEY, schema "
                        "or docs, found \"%s\" with %zu operands; --help explains them",
                        command, words->n > 0 ? words->n - 1 : 0));
}

int main(int argc, char **argv)
{
    output_guard("ds_config");
    options o = {0};
    ds_maybe hidden_size = {0};
    const dsi_arg rows[] = {
        {.name = "world_size",
         .type = DSI_ARG_INT,
         .out = &o.world_size,
         .value = "N",
         .def = "1",
         .min = 1,
         .max = 1 << 20,
         .given_out = &o.world_given,
         .doc = "Data-parallel ranks to resolve for; check: default those of the file's three "
                "batch sizes, else 1."},
        {.name = "kind",
         .type = DSI_ARG_TEXT,
         .out = &o.kind,
         .value = "KIND",
         .def = "training",
         .choices = "training|inference|inference_v2|mii",
         .doc = "check: what the file is for; the inference kinds are only checked."},
        {.name = "values",
         .type = DSI_ARG_SWITCH,
         .out = &o.values_only,
         .def = "false",
         .doc = "resolve: only values, nested as in a configuration file."},
        {.name = "plot",
         .type = DSI_ARG_SWITCH,
         .out = &o.plot,
         .def = "false",
         .doc = "lr: draw the schedule in the terminal instead of CSV."},
        TRAINER_FLAG("hidden_size", hidden_size, WHOLE, "N", 1, 1e9,
                     "The model's width, for an \"auto\" of ZeRO's buckets without --model."),
    };
    const dsi_args_spec spec = {.usage = "ds_config COMMAND [FILE | KEY] [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .others = trainer_names,
                                .after = after};
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return EXIT_FAILED;
    }
    dsi_args args = {0};
    const ds_status status = train_options_parse_with(ctx, &spec, argc, argv, &o.train, &args);
    int code = EXIT_RIGHT;
    if (status < 0) {
        code = fail(ctx, status);
    } else if (args.words.n == 0 && !args.help) {
        (void)fprintf(stderr, "usage: %s\n--help explains it\n", spec.usage);
        code = EXIT_USAGE;
    } else if (!args.help) {
        o.train.trainer.hidden_size = hidden_size;
        code = run(ctx, &o, &args.words);
    }
    train_options_free(&o.train);
    dsi_args_free(&args);
    ds_ctx_destroy(&ctx);
    return code;
}
