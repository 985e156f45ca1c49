/* SPDX-License-Identifier: Apache-2.0 */
/* A resolved configuration as a plain struct: all that an engine and the tools read.
 *
 * Filled by the fields of the option tables (config_store.c) and by rules. It grows with the
 * tables, so it is no part of the library's interface; programs read values by their paths
 * (config.h).
 */
#ifndef DSI_CONFIG_VALUES_H
#define DSI_CONFIG_VALUES_H

#include <deepspeed/checkpoint.h>
#include <deepspeed/config.h>
#include <deepspeed/nn.h>

typedef struct ds_config_batch {
    int64_t train_batch_size;               /* samples an optimizer step, all ranks */
    int64_t train_micro_batch_size_per_gpu; /* samples a rank, a micro-step */
    int64_t gradient_accumulation_steps;    /* micro-steps an optimizer step */
} ds_config_batch;

typedef struct ds_config_optimizer {
    ds_optimizer_kind kind; /* NONE: the file names none */
    double lr;
    double weight_decay;
    double beta1, beta2; /* ADAM, LION, LAMB */
    double eps;          /* ADAM, ADAGRAD, LAMB */
    bool decoupled;      /* ADAM: AdamW. DeepSpeed's "Adam" is AdamW too unless adam_w_mode false */
    bool bias_correction;        /* ADAM, LAMB */
    double momentum, dampening;  /* SGD; the first of MUON too */
    bool nesterov;               /* SGD */
    double max_coeff, min_coeff; /* LAMB, ONEBIT_LAMB: bounds of the trust ratio */
    double muon_lr;              /* MUON: of matrices; lr is that of the rest */
    bool muon_bf16;              /* MUON: the iteration in bf16, else in fp32 */
    bool has_beta1;              /* ADAFACTOR, and the next seven: it keeps a first moment */
    bool scale_parameter, relative_step, warmup_init;
    double clip_threshold, decay_rate, scale_eps;
    int64_t warmup_steps; /* SCHEDULE_FREE, and the next two */
    double average_power, rate_power;
    int64_t optim_bits;       /* ADEMAMIX: of an element of its states, 8 or 32 */
    int64_t min_8bit_size;    /* of 8 bits: elements of a parameter below which states are fp32 */
    bool embeddings_8bit;     /* likewise: false: states of embeddings are fp32 */
    double beta3, alpha;      /* ADEMAMIX, and the next: of the slow moment, and what it weighs */
    int64_t t_beta3, t_alpha; /* updates in which they grow to that; 0: they are it at once */
    int64_t freeze_step;      /* ONEBIT_*: updates before signs are exchanged */
    double coeff_beta;        /* ONEBIT_LAMB, and the next three */
    double factor_max, factor_min, factor_threshold;
    int64_t var_freeze_step; /* ZERO_ONE_ADAM, and the next three */
    int64_t var_update_scaler, local_step_scaler, local_step_clipper;
} ds_config_optimizer;

/* Whether states have 8 bits an element. */
static inline bool dsi_config_is_8bit(const ds_config_optimizer *o)
{
    return o->kind == DS_OPTIMIZER_ADAMW_8BIT ||
           (o->kind == DS_OPTIMIZER_ADEMAMIX && o->optim_bits == 8);
}

/* Whether ranks exchange signs. */
static inline bool dsi_config_is_onebit(ds_optimizer_kind kind)
{
    return kind == DS_OPTIMIZER_ONEBIT_ADAM || kind == DS_OPTIMIZER_ONEBIT_LAMB ||
           kind == DS_OPTIMIZER_ZERO_ONE_ADAM;
}

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
    bool ratio_given;                   /* and the configuration says it */
    bool super_offload; /* of states: updates on the host do not wait for the norm */
    double
        cpuadam_cores; /* of states: share of the threads that update them on the host; 0: none */
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

typedef struct ds_config_loco {
    bool enabled; /* the section is there, and gradients are quantized */
    double err_beta;
    int64_t reset_every; /* updates */
} ds_config_loco;

typedef struct ds_config_zero {
    ds_config_loco loco;
    ds_config_zenflow zenflow;
    ds_config_offload offload_param, offload_optimizer;
    int64_t stage; /* 0..3 */
    bool contiguous_gradients, reduce_scatter, allgather_partitions, round_robin_gradients;
    bool overlap_comm;          /* resolved: null is true for stage 3 */
    int64_t mics_shard_size;    /* ranks that share one copy of all states; below 1: all ranks */
    int64_t hpz_partition_size; /* … of the parameters; below 2: all ranks */
    int64_t reduce_bucket_size, allgather_bucket_size, sub_group_size; /* elements */
    int64_t prefetch_bucket_size, param_persistence_threshold;         /* elements, stage 3 */
    int64_t model_persistence_threshold, max_live_parameters, max_reuse_distance;
    bool gather_16bit_weights_on_model_save;
    bool ignore_unused_parameters;
    bool quantized_weights, quantized_frozen_weights, quantized_gradients; /* when sent */
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
    bool single_submit, overlap_events, use_gds;
} ds_config_aio;

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

/* The section compression_training: one group of one technique. */
typedef enum ds_compress_technique {
    DS_COMPRESS_WEIGHTS, /* weight_quantization … */
    DS_COMPRESS_ACTIVATIONS,
    DS_COMPRESS_SPARSE,
    DS_COMPRESS_ROWS,
    DS_COMPRESS_HEADS,
    DS_COMPRESS_CHANNELS,
    DS_COMPRESS_COUNT
} ds_compress_technique;

typedef struct ds_compress_group {
    ds_compress_technique technique;
    char name[64];
    char modules[DS_CONFIG_TEXT_BYTES]; /* regular expressions, a line each */
    char related[DS_CONFIG_TEXT_BYTES]; /* a line for each of modules, tabs between expressions */
    int64_t offset;                     /* updates before it is in force */
    bool asymmetric;
    /* of weights */
    bool in_forward, stochastic, mixed, verbose;
    double change_ratio; /* of mixed, a step */
    int64_t groups, start_bits, target_bits, period;
    int64_t bits; /* of activations */
    /* of pruning */
    bool scores; /* method topk: the mask is of scores that are trained */
    double dense_ratio;
    int64_t heads;
} ds_compress_group;

enum { DS_COMPRESS_MAX_GROUPS = 256 };
typedef struct ds_config_compression {
    uint32_t n_groups;
    ds_compress_group groups[]; /* in the order of ds_compress_technique, then of the file */
} ds_config_compression;

/* Bytes of one with n groups, for a copy. */
size_t dsi_compression_bytes(uint32_t n_groups);
const char *dsi_compress_technique_name(ds_compress_technique technique);

/* tensor_parallel.partition_config: an entry of layer_specs. */
typedef enum ds_tensor_cut { DS_TENSOR_COLUMN, DS_TENSOR_ROW, DS_TENSOR_SKIP } ds_tensor_cut;

typedef struct ds_tensor_spec {
    char patterns[DS_CONFIG_TEXT_BYTES];    /* regular expressions, a line each */
    char model_types[DS_CONFIG_TEXT_BYTES]; /* a line each; empty: any */
    ds_tensor_cut type;
    int64_t dim;    /* partition_dim, -1: by type */
    uint32_t parts; /* equal parts side by side, 0: not said */
    bool gathers;   /* gather_output */
} ds_tensor_spec;

typedef struct ds_config_tensor {
    bool strict, finds; /* strict_mode, use_default_specs */
    uint32_t n_specs;
    ds_tensor_spec specs[]; /* the first that matches is taken */
} ds_config_tensor;

typedef struct ds_config_hybrid {
    bool enabled;
    int64_t max_out_tokens;
} ds_config_hybrid;

struct ds_elastic_params; /* see elasticity.h */

/* Of files of inference engines: what they ask of a server or a generator. 0, NONE and NULL: the
 * file does not say it. */
typedef struct ds_config_inference {
    ds_dtype dtype;    /* of the arithmetic */
    ds_dtype quantize; /* of the linear layers' matrices */
    int64_t ranks;     /* that share the layers */
    int64_t n_experts;
    int64_t max_length, min_length;
    int64_t max_sequences, max_batch_tokens, max_tracked;
    int allocates;   /* kv_size are blocks; else bytes that stay free */
    int64_t kv_size; /* 0: keys and values are not spoken of */
    bool offload_kv;
    bool host; /* weights stay in the host's memory */
    const char *model, *tokenizer, *deployment, *address, *hostfile;
    bool restful;
    int64_t port, replicas;
    const char *weights; /* a folder; or the file itself, where it has a `checkpoint` */
    const char *checkpoint_dir, *copy;
    const struct dsi_node *zero; /* zero_optimization */
} ds_config_inference;

typedef struct ds_config_values {
    ds_config_batch batch;
    uint32_t world_size;
    uint32_t sequence_parallel;         /* ranks that share each sequence; 1: none */
    int sequence_attention;             /* 0: by heads; 1: ring */
    bool sequence_balance;              /* ring: in halves */
    int64_t sequence_chunk;             /* positions of a chunk; 0: sequences in one piece */
    ds_offload_device sequence_offload; /* of what waits for the turns of chunks */
    const char *sequence_path;          /* folder for that, NULL: none */
    uint32_t expert_parallel; /* ranks that share the experts, with samples of their own; 1: none */
    bool experts_over_tp; /* those along tensor_parallel share them as well, and have whole ones */
    bool experts_over_sp; /* those along sequence_parallel have to share them as well */
    ds_routing routing;   /* of expert_parallel, in place of the model's */
    uint32_t tensor_parallel;  /* ranks that share each layer and have the same samples; 1: none */
    uint32_t pipeline_stages;  /* that share the layers of a model; 1: none */
    int pipeline_partition;    /* dsi_stage_partition */
    const char *pipeline_type; /* of DSI_STAGES_BY_TYPE: what is behind "type:"; else NULL */
    int pipeline_schedule;     /* dsi_schedule_kind */
    bool pipeline_open; /* stages or schedule are "auto": a planner's choice; until then 1, 1f1b */
    uint32_t pipeline_chunks; /* of layers that a stage's ranks have; 1 but with interleaved */
    bool tp_overlap_comm;
    bool tp_domino;                 /* halves of a micro-batch take turns */
    const ds_config_tensor *tensor; /* NULL: no partition_config */
    uint32_t data_ranks;            /* of the world: those that have samples of their own */
    uint32_t zero_ranks; /* those over which ZeRO shards: data_ranks × sequence_parallel */
    const struct ds_elastic_params *elasticity; /* NULL: not enabled */
    ds_config_optimizer optimizer;
    ds_schedule_params scheduler;
    ds_schedule_params
        scheduler_no_decay;    /* of norms and biases: another where a value is a list */
    bool scheduler_has_groups; /* the two differ */
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
    ds_config_wandb wandb;
    ds_config_comet comet;
    ds_config_comms_logger comms_logger;
    ds_config_autotuning autotuning;
    const ds_config_compression *compression; /* NULL: nothing of the section is enabled */
    ds_config_hybrid hybrid;
    ds_checkpoint_tag_validation tag_validation;
    bool checkpoint_behind;         /* datastates_ckpt, or checkpoint.writer.decoupled */
    uint64_t checkpoint_host_bytes; /* datastates_ckpt.host_cache_size; 0: no limit */
    int64_t steps_per_print;        /* 0: never */
    bool wall_clock_breakdown, memory_breakdown, dump_state;
    bool throughput_timer;
    bool dataloader_drop_last;
    int64_t data_seed; /* data_efficiency.seed */
    ds_config_inference inference;
} ds_config_values;

/* NULL before the first successful ds_config_resolve. */
const ds_config_values *dsi_config_values(const ds_config *config);
/* Of a file of an inference engine, resolved or not. */
const ds_config_inference *dsi_config_inference(const ds_config *config);
/* Of a resolved file of init_inference: where its `zero` puts the weights; NULL: in memory. */
const ds_config *dsi_config_away(const ds_config *config);

#endif
