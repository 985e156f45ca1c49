/* SPDX-License-Identifier: Apache-2.0 */
/* DeepSpeed's configuration: load a JSON or HJSON file, resolve it, read numbers.
 *
 * Two calls. ds_config_load_file reads and checks every key (syntax, names, types, bounds,
 * features that are not built, contradictions that need nothing more); it reports all errors of a
 * file together. ds_config_resolve fills what the file leaves open: the batch triple from the world
 * size, "auto" from the trainer's values as Hugging Face's Trainer does, defaults; and checks the
 * rest. Then an engine takes it, and ds_config_get_int and its kin give single values.
 *
 * Thread rule: load and resolve on one thread; a resolved config is const and any thread may read
 * it. Everything that a config returns is owned by it and lives as long as it does.
 */
#ifndef DEEPSPEED_CONFIG_H
#define DEEPSPEED_CONFIG_H

#include <deepspeed/schedule.h>
#include <deepspeed/tensor.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_config ds_config;

/* ---- loading --------------------------------------------------------------------------------- */

/* What a file is for. */
typedef enum ds_config_kind {
    DS_CONFIG_TRAINING,     /* of the training engine */
    DS_CONFIG_INFERENCE,    /* of DeepSpeed's init_inference */
    DS_CONFIG_INFERENCE_V2, /* of its ragged inference engine */
    DS_CONFIG_MII,          /* arguments of DeepSpeed-MII's serve and pipeline */
    DS_CONFIG_ANY /* the one of these that most of its keys are of; see ds_config_get_kind */
} ds_config_kind;

typedef struct ds_config_params {
    ds_config_kind kind;     /* default DS_CONFIG_TRAINING */
    bool allow_unknown_keys; /* default false; true: an unknown key is a notice wherever it is */
    bool for_plan; /* default false; true: recompute auto needs no device_memory, since the caller
                      will choose, and what "auto" takes from the Trainer's defaults (learning
                      rates …) is no notice */
    bool strict;   /* default false: at the top level, where DeepSpeed does not read it, an unknown
                      key is a notice unless it is near a known one; true: always an error */
    DS_RESERVED(8);
} ds_config_params;

/* Loads a file, or text of n bytes that messages call `name`. params NULL: defaults. The caller
 * owns *config_out; ctx must outlive it.
 * Errors: ERR_NOT_FOUND, ERR_IO, ERR_LIMIT (size, depth, count), ERR_CONFIG: the message holds one
 * paragraph for each error ("file:line:column: path: expected …, found …; remedy"), up to 50 and
 * up to the 4 KiB of an error record. ds_config_check_file gives them whole. */
DS_API ds_status ds_config_load_file(ds_ctx *ctx, const char *path, const ds_config_params *params,
                                     ds_config **config_out);
DS_API ds_status ds_config_load_text(ds_ctx *ctx, const char *name, const char *text, size_t n,
                                     const ds_config_params *params, ds_config **config_out);

/* What the file is for: never DS_CONFIG_ANY. */
DS_API ds_config_kind ds_config_get_kind(const ds_config *config);

/* Frees and nulls *config. Accepts NULL and *config == NULL. */
DS_API void ds_config_destroy(ds_config **config);

/* ---- resolving ------------------------------------------------------------------------------- */

/* A number that may be unknown. {0} is unknown; ds_known(x) is x. */
typedef struct ds_maybe {
    bool known;
    double value;
} ds_maybe;

static inline ds_maybe ds_known(double value)
{
    ds_maybe maybe;
    maybe.known = true;
    maybe.value = value;
    return maybe;
}

/* The values of a trainer's flags. Each is optional. A value that is known is in force or resolving
 * fails: it is what "auto" stands for and what a key has that the file leaves out; a number in the
 * file must equal it, and a value that no key of the file's sections can take (eps without Adam,
 * warm-up without a scheduler) is an error that names both. An "auto" without its value follows
 * from a number beside it (batch sizes, learning rates), or is the default of Hugging Face's
 * Trainer, with a notice; total_steps has none and is then an error that names the flag, as
 * hidden_size is (which only "auto" asks for). */
typedef struct ds_trainer_values {
    ds_maybe micro_batch;                 /* --micro_batch [8]: samples a rank, a micro-step */
    ds_maybe gradient_accumulation_steps; /* --gradient_accumulation_steps [1] */
    ds_maybe learning_rate;               /* --learning_rate [5e-5] */
    ds_maybe weight_decay;                /* --weight_decay [0] */
    ds_maybe adam_beta1, adam_beta2;      /* --adam_beta1, --adam_beta2 [0.9, 0.999] */
    ds_maybe adam_epsilon;                /* --adam_epsilon [1e-8] */
    ds_maybe max_grad_norm;               /* --max_grad_norm [1] */
    ds_maybe warmup_steps;                /* --warmup_steps [0]; below 1: as warmup_ratio */
    ds_maybe total_steps;                 /* --steps, or what --epochs amounts to */
    ds_maybe fp16, bf16;                  /* --fp16, --bf16 [0]: 0 or 1 */
    ds_maybe hidden_size;                 /* of the model */
    ds_maybe warmup_ratio; /* --warmup_ratio [0]: part of total_steps; excludes warmup_steps */

    /* Sections that the file lacks. Texts are borrowed for the call; NULL: not given. */
    const char *optim;               /* --optim [adamw_torch], of TrainingArguments */
    const char *lr_scheduler_type;   /* --lr_scheduler_type [linear], or none */
    const char *lr_scheduler_kwargs; /* --lr_scheduler_kwargs: a JSON object */
    bool fill_sections; /* true: a file without `optimizer` gets the Trainer's, one without
                           `scheduler` too where total_steps is known, one without batch sizes
                           8 rows a micro-batch. Default false, as
                           DeepSpeed: no optimizer, a constant rate */
    DS_RESERVED(16);
} ds_trainer_values;

/* Resolves for a world size (>= 1, data-parallel ranks). trainer NULL: nothing is known. May be
 * called again with other values; values and notices of before are then void.
 * Errors: ERR_ARG, ERR_CONFIG (as at loading, all together), ERR_NOMEM. */
DS_API ds_status ds_config_resolve(ds_config *config, uint32_t world_size,
                                   const ds_trainer_values *trainer);

/* ---- what a program reads ---------------------------------------------------------------------
 *
 * One effective value by its path, "zero_optimization.stage", as docs/config.md lists them: with
 * defaults, "auto" and derived values filled in. Borrowed texts live until the configuration is
 * resolved again or destroyed. Any thread. Errors of all: ERR_STATE before the first successful
 * ds_config_resolve, ERR_NOT_FOUND (no key has the path), ERR_SHAPE (the value is null, or of
 * another type: names what it is). */
DS_API ds_status ds_config_get_bool(const ds_config *config, const char *path, bool *value_out);
DS_API ds_status ds_config_get_int(const ds_config *config, const char *path, int64_t *value_out);
DS_API ds_status ds_config_get_real(const ds_config *config, const char *path, double *value_out);
DS_API ds_status ds_config_get_text(const ds_config *config, const char *path,
                                    const char **value_out);

#define DS_OPTIMIZER_KIND_LIST(X)                                                                  \
    X(NONE, "none")                                                                                \
    X(ADAM, "Adam")                                                                                \
    X(SGD, "SGD")                                                                                  \
    X(LION, "Lion")                                                                                \
    X(ADAGRAD, "Adagrad")                                                                          \
    X(LAMB, "Lamb")                                                                                \
    X(ONEBIT_ADAM, "OneBitAdam")                                                                   \
    X(ONEBIT_LAMB, "OneBitLamb")                                                                   \
    X(ZERO_ONE_ADAM, "ZeroOneAdam")                                                                \
    X(MUON, "Muon")                                                                                \
    X(ADAFACTOR, "Adafactor")                                                                      \
    X(SCHEDULE_FREE, "AdamWScheduleFree")                                                          \
    X(ADAMW_8BIT, "AdamW8bit")                                                                     \
    X(ADEMAMIX, "AdEMAMix")

typedef enum ds_optimizer_kind {
#define X(id, text) DS_OPTIMIZER_##id,
    DS_OPTIMIZER_KIND_LIST(X)
#undef X
        DS_OPTIMIZER_KIND_COUNT
} ds_optimizer_kind;

/* tensorboard and csv_monitor: files go to output_path/job_name. */
typedef struct ds_config_monitor {
    bool enabled;
    const char *output_path;
    const char *job_name;
    DS_RESERVED(8);
} ds_config_monitor;

/* wandb: a run of Weights & Biases, kept offline. Texts may be NULL. */
typedef struct ds_config_wandb {
    bool enabled;
    const char *group, *team, *project;
    DS_RESERVED(8);
} ds_config_wandb;

/* comet.mode: whether the service, when it is sent the experiment, makes a new one of its key or
 * goes on with one that it has. */
typedef enum ds_comet_mode { DS_COMET_GET_OR_CREATE, DS_COMET_CREATE, DS_COMET_GET } ds_comet_mode;

/* comet: an experiment of Comet, kept offline. Texts may be NULL; there is no API key, which
 * nothing here needs. */
typedef struct ds_config_comet {
    bool enabled;
    int64_t samples_log_interval;
    const char *project, *workspace, *experiment_name, *experiment_key;
    ds_comet_mode mode;
    DS_RESERVED(8);
} ds_config_comet;

/* ---- what people read ------------------------------------------------------------------------ */

typedef enum ds_config_origin_kind {
    DS_ORIGIN_DEFAULT, /* the file says nothing */
    DS_ORIGIN_FILE,    /* file:line:column under its own name */
    DS_ORIGIN_ALIAS,   /* file:line:column under an alias or a deprecated name */
    DS_ORIGIN_AUTO,    /* "auto", filled from a flag, the model or a default */
    DS_ORIGIN_RULE     /* derived from other keys */
} ds_config_origin_kind;

/* One effective value. */
typedef struct ds_config_item {
    const char *path;  /* "zero_optimization.stage" */
    const char *value; /* as JSON */
    ds_config_origin_kind origin;
    const char *detail; /* "ds.json:4:12", "--learning_rate", "train_batch_size / …"; "" if none */
    uint32_t line, column; /* of the value in the file, 0 without one */
} ds_config_item;

/* Effective values after resolve, in the order of docs/config.md. */
DS_API size_t ds_config_n_items(const ds_config *config);
DS_API const ds_config_item *ds_config_item_at(const ds_config *config, size_t index);
/* NULL when no key has the path. */
DS_API const ds_config_item *ds_config_find(const ds_config *config, const char *path);

/* Notices: deprecated names, aliases, keys without effect here, unknown keys that were allowed. One
 * line each, "file:line:column: path: text". A caller logs them once, at DS_LOG_WARN. */
DS_API size_t ds_config_n_notices(const ds_config *config);
DS_API const char *ds_config_notice(const ds_config *config, size_t index);

/* The effective configuration as JSON. origins true: each value becomes
 * {"value": …, "origin": "…"}. The caller frees *text_out with free(). Errors: ERR_STATE before
 * resolve, ERR_NOMEM. */
DS_API ds_status ds_config_print(const ds_config *config, bool origins, char **text_out);

/* Everything known of a key (a path, or the last part of one), as text; of a word that is part of
 * several keys a list of them. Errors: ERR_NOT_FOUND (names the nearest key). The caller frees
 * *text_out with free(). */
DS_API ds_status ds_config_explain(ds_ctx *ctx, const char *key, char **text_out);

/* The option tables as JSON Schema (draft 2020-12), and as the page docs/config.md. The caller
 * frees *text_out with free(). Errors: ERR_NOMEM. */
DS_API ds_status ds_config_schema(ds_ctx *ctx, char **text_out);
DS_API ds_status ds_config_docs(ds_ctx *ctx, char **text_out);

/* An error record (ds_ctx_error) is cut at 4 KiB.
 * This gives all: the text of every error of a file, checked
 * as ds_config_load_file does and, when world_size > 0, resolved with trainer too. *n_errors_out 0
 * and "" when it is right. Returns an error only when the file cannot be read. The caller frees
 * *text_out with free(). */
DS_API ds_status ds_config_check_file(ds_ctx *ctx, const char *path, const ds_config_params *params,
                                      uint32_t world_size, const ds_trainer_values *trainer,
                                      size_t *n_errors_out, char **text_out);

DS_API const char *ds_optimizer_kind_name(ds_optimizer_kind kind);

#ifdef __cplusplus
}
#endif
#endif
