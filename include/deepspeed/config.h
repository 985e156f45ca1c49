/* DeepSpeed's configuration: load a JSON or HJSON file, resolve it, read numbers.
 *
 * Two calls. ds_config_load_file reads and checks every key (syntax, names, types, bounds,
 * features that are not built, contradictions that need nothing more); it reports all errors of a
 * file together. ds_config_resolve fills what the file leaves open: the batch triple from the world
 * size, "auto" from the trainer's values as Hugging Face's Trainer does, defaults; and checks the
 * rest. Then ds_config_values gives a plain struct, const, which is all that an engine reads.
 *
 * Thread rule: load and resolve on one thread; a resolved config is const and any thread may read
 * it. Everything that a config hands out is owned by it and lives as long as it does.
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

/* What a file is for. Only a training configuration can be resolved; the others are checked. */
typedef enum ds_config_kind {
    DS_CONFIG_TRAINING,    /* of the training engine */
    DS_CONFIG_INFERENCE,   /* of DeepSpeed's init_inference */
    DS_CONFIG_INFERENCE_V2 /* of its ragged inference engine */
} ds_config_kind;

typedef struct ds_config_params {
    ds_config_kind kind;     /* default DS_CONFIG_TRAINING */
    bool allow_unknown_keys; /* default false; true: an unknown key is a notice wherever it is */
    bool for_plan; /* default false; true: recompute auto needs no device_memory, since the caller
                      will choose, and what "auto" takes from the Trainer's defaults (learning
                      rates …) is no notice */
    bool strict;   /* default false: at the top level, where DeepSpeed does not read it, an unknown
                      key is a notice unless it is near a known one; true: always an error */
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
    ds_maybe warmup_steps;                /* --warmup_steps [0] */
    ds_maybe total_steps;                 /* --steps, or what --epochs amounts to */
    ds_maybe fp16, bf16;                  /* --fp16, --bf16 [0]: 0 or 1 */
    ds_maybe hidden_size;                 /* of the model */
} ds_trainer_values;

/* Resolves for a world size (>= 1, data-parallel ranks). trainer NULL: nothing is known. May be
 * called again with other values; values and notices of before are then void.
 * Errors: ERR_ARG, ERR_CONFIG (as at loading, all together), ERR_NOMEM. */
DS_API ds_status ds_config_resolve(ds_config *config, uint32_t world_size,
                                   const ds_trainer_values *trainer);

/* ---- what the engine reads ------------------------------------------------------------------- */

typedef struct ds_config_batch {
    int64_t train_batch_size;               /* samples an optimizer step, all ranks */
    int64_t train_micro_batch_size_per_gpu; /* samples a rank, a micro-step */
    int64_t gradient_accumulation_steps;    /* micro-steps an optimizer step */
} ds_config_batch;

#define DS_OPTIMIZER_KIND_LIST(X)                                                                  \
    X(NONE, "none")                                                                                \
    X(ADAM, "Adam")                                                                                \
    X(SGD, "SGD")                                                                                  \
    X(LION, "Lion")                                                                                \
    X(ADAGRAD, "Adagrad")                                                                          \
    X(LAMB, "Lamb")

typedef enum ds_optimizer_kind {
#define X(id, text) DS_OPTIMIZER_##id,
    DS_OPTIMIZER_KIND_LIST(X)
#undef X
        DS_OPTIMIZER_KIND_COUNT
} ds_optimizer_kind;

typedef struct ds_config_optimizer {
    ds_optimizer_kind kind; /* NONE: the file names none */
    double lr;
    double weight_decay;
    double beta1, beta2; /* ADAM, LION, LAMB */
    double eps;          /* ADAM, ADAGRAD, LAMB */
    bool decoupled;      /* ADAM: AdamW. DeepSpeed's "Adam" is AdamW too unless adam_w_mode false */
    bool bias_correction;        /* ADAM, LAMB */
    double momentum, dampening;  /* SGD */
    bool nesterov;               /* SGD */
    double max_coeff, min_coeff; /* LAMB: bounds of the trust ratio */
} ds_config_optimizer;

typedef struct ds_config_fp16 {
    bool enabled;
    bool dynamic;         /* loss_scale 0 */
    double loss_scale;    /* of the static kind */
    double initial_scale; /* 2^initial_scale_power: where the dynamic kind starts */
    int64_t loss_scale_window;
    int64_t hysteresis;
    bool consecutive_hysteresis;
    double min_loss_scale;
    bool master_weights_and_grads;
} ds_config_fp16;

typedef struct ds_config_bf16 {
    bool enabled;
    bool immediate_grad_update;
    bool check_grad_overflow;
    bool master_weights_and_grads;
    bool optimizer_states;
} ds_config_bf16;

enum { DS_CONFIG_TEXT_BYTES = 1024 /* of a string, with its end */, DS_CONFIG_MAX_FOLDERS = 16 };

typedef enum ds_offload_device {
    DS_OFFLOAD_NONE,
    DS_OFFLOAD_CPU,
    DS_OFFLOAD_NVME
} ds_offload_device;

/* Where parameters or optimizer states live between their uses. */
typedef struct ds_config_offload {
    ds_offload_device device;
    const char *nvme_path;              /* folders on disks, with commas between them; NULL: none */
    int64_t buffer_count, buffer_size;  /* the size, elements, of parameters only */
    int64_t max_in_cpu;                 /* of parameters: elements that stay in memory under nvme */
    bool pipeline_read, pipeline_write; /* of states */
    double ratio;                       /* of states: part of the parameters that is offloaded */
} ds_config_offload;

/* The section zenflow, resolved. */
typedef struct ds_config_zenflow {
    bool enabled; /* the section is there */
    double topk_ratio;
    bool select_by_epoch;    /* select_strategy epoch or auto */
    int64_t select_interval; /* steps, or epochs; 0: columns are chosen once */
    bool auto_update;        /* update_interval auto */
    int64_t update_interval; /* steps */
    double auto_ratio;
    int64_t full_warm_up_rounds; /* steps */
    int64_t steps_per_epoch;     /* 0: not given */
    bool overlap_step, offload;
    double reserved; /* share of the threads that overlap_step leaves to the steps */
} ds_config_zenflow;

typedef struct ds_config_zero {
    ds_config_zenflow zenflow;
    ds_config_offload offload_param, offload_optimizer;
    int64_t stage; /* 0..3 */
    bool contiguous_gradients, reduce_scatter, allgather_partitions, round_robin_gradients;
    bool overlap_comm; /* resolved: null is true for stage 3 */
    int64_t reduce_bucket_size, allgather_bucket_size, sub_group_size; /* elements */
    int64_t prefetch_bucket_size, param_persistence_threshold;         /* elements, stage 3 */
    int64_t model_persistence_threshold, max_live_parameters, max_reuse_distance;
    bool gather_16bit_weights_on_model_save;
    bool ignore_unused_parameters;
} ds_config_zero;

/* What is computed again in the backward pass. */
typedef enum ds_recompute {
    DS_RECOMPUTE_NONE,
    DS_RECOMPUTE_SELECTIVE,
    DS_RECOMPUTE_FULL,
    DS_RECOMPUTE_AUTO
} ds_recompute;

typedef struct ds_config_activation_checkpointing {
    ds_recompute recompute;
    int64_t interval;      /* layers a kept input */
    const char *operators; /* names with commas, NULL: the cheap ones */
    const char *nvme_path; /* folder for kept activations, NULL: none */
    bool partition_activations, cpu_checkpointing, contiguous_memory_optimization;
    int64_t number_checkpoints; /* -1: not given */
    bool synchronize_checkpoint_boundary, profile;
} ds_config_activation_checkpointing;

/* The section flops_profiler. */
typedef struct ds_config_flops_profiler {
    bool enabled;
    int64_t profile_step; /* optimizer steps before the one that is profiled */
    int64_t module_depth; /* -1: all */
    int64_t top_modules;
    bool detailed;
    const char *output_file; /* NULL: the log */
} ds_config_flops_profiler;

/* The section aio, for ds_aio_params. */
typedef struct ds_config_aio {
    int64_t block_size; /* bytes, a multiple of 4096 */
    int64_t queue_depth, intra_op_parallelism;
    bool single_submit, overlap_events;
} ds_config_aio;

/* tensorboard and csv_monitor: files go to output_path/job_name. */
typedef struct ds_config_monitor {
    bool enabled;
    const char *output_path;
    const char *job_name;
} ds_config_monitor;

/* comms_logger: see comm.h. */
typedef struct ds_config_comms_logger {
    bool enabled, verbose, prof_all, debug;
    uint32_t prof_ops; /* bit 1 << ds_comm_op for each */
} ds_config_comms_logger;

/* The section autotuning. Of a run only enabled, the two steps and the two paths; the rest is for
 * the search. */
typedef enum ds_autotuning_metric {
    DS_METRIC_THROUGHPUT, /* samples a second */
    DS_METRIC_LATENCY,    /* time of a step */
    DS_METRIC_FLOPS,      /* operations a second of a rank */
    DS_METRIC_FORWARD,
    DS_METRIC_BACKWARD,
    DS_METRIC_STEP /* norm and update */
} ds_autotuning_metric;

typedef enum ds_autotuning_tuner {
    DS_TUNER_GRID,
    DS_TUNER_RANDOM,
    DS_TUNER_MODEL
} ds_autotuning_tuner;

typedef struct ds_config_autotuning {
    bool enabled, fast, overwrite, profile_model;
    const char *results_dir, *exps_dir, *metric_path, *model_info_path; /* NULL: the default */
    int64_t start_profile_step, end_profile_step; /* of the run, from 1, both measured */
    int metric;                                   /* ds_autotuning_metric */
    int tuner;                                    /* ds_autotuning_tuner */
    int64_t early_stopping, num_trials, num_micro_batches;
    int64_t max_train_batch_size, min_train_batch_size; /* max 0: no limit */
    int64_t max_micro_batch, min_micro_batch;
    int64_t num_params, hidden_size; /* 0: not known */
} ds_config_autotuning;

typedef enum ds_tag_validation { DS_TAG_WARN, DS_TAG_IGNORE, DS_TAG_FAIL } ds_tag_validation;

struct ds_elastic_params; /* see elasticity.h */

typedef struct ds_config_values {
    ds_config_batch batch;
    uint32_t world_size;
    const struct ds_elastic_params *elasticity; /* NULL: not enabled */
    ds_config_optimizer optimizer;
    ds_schedule_params scheduler;
    ds_config_fp16 fp16;
    ds_config_bf16 bf16;
    ds_dtype compute_dtype;    /* F16, BF16 or F32, from the two above */
    ds_dtype grad_accum_dtype; /* data_types.grad_accum_dtype, default F32 */
    ds_dtype communication_dtype;
    double gradient_clipping; /* <= 0: off */
    bool prescale_gradients;
    double gradient_predivide_factor;
    bool deterministic;
    int64_t mlp_tile_tokens; /* 0: not tiled */
    int64_t device_memory;   /* bytes, 0: no limit */
    bool gradient_sum;       /* gradient_allreduce_op "sum"; false: mean */
    ds_config_zero zero;
    ds_config_activation_checkpointing activation_checkpointing;
    ds_config_aio aio;
    ds_config_flops_profiler flops_profiler;
    ds_config_monitor tensorboard, csv_monitor;
    ds_config_comms_logger comms_logger;
    ds_config_autotuning autotuning;
    ds_tag_validation tag_validation;
    bool checkpoint_behind;         /* datastates_ckpt, or checkpoint.writer.decoupled */
    uint64_t checkpoint_host_bytes; /* datastates_ckpt.host_cache_size; 0: no limit */
    int64_t steps_per_print;        /* 0: never */
    bool wall_clock_breakdown, memory_breakdown, dump_state;
    bool throughput_timer;
    bool dataloader_drop_last;
    int64_t data_seed; /* data_efficiency.seed */
} ds_config_values;

/* NULL before the first successful ds_config_resolve. */
DS_API const ds_config_values *ds_config_get(const ds_config *config);

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

/* Everything known of a key (a path, or the last part of one), as text. Errors: ERR_NOT_FOUND
 * (names the nearest key). The caller frees *text_out with free(). */
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
