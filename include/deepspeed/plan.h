/* SPDX-License-Identifier: Apache-2.0 */
/* Plans of a run before it runs: the full account of what it costs a rank, as the tool ds_plan
 * prints it, and what model states weigh by DeepSpeed's own estimates.
 *
 * Thread rule: pure functions, any thread.
 */
#ifndef DEEPSPEED_PLAN_H
#define DEEPSPEED_PLAN_H

#include <deepspeed/adapter.h>
#include <deepspeed/config.h>
#include <deepspeed/distillation.h>
#include <deepspeed/model.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- the full account ------------------------------------------------------------------------ */

/* What is planned; everything is borrowed for the call. */
typedef struct ds_plan_params {
    const ds_model *model;
    const ds_config *config;   /* resolved for the ranks that are planned: ds_config_resolve */
    int64_t seq_length;        /* T, at least 1 */
    uint32_t n_nodes;          /* hosts that the ranks are spread over; default 0: 1 */
    uint32_t n_threads;        /* of a rank; default 0: its share of this machine's cores */
    const char *const *frozen; /* default NULL: glob patterns of parameters without gradient */
    uint32_t n_frozen;
    uint64_t memory_bytes; /* that a rank may use; default 0: that of the device, without one any */
    const char *device;    /* what a rank runs on, for times and memory: a shipped profile
                              ("h100-sxm") or a profile file; default NULL: this processor, no times */
    const char *accelerator;         /* default NULL: whose kernels and their workspace; as in
                                        ds_engine_params, for another device null */
    const ds_preference *preference; /* default NULL; as in ds_engine_params */
    const ds_adapter *adapter; /* default NULL: the model is trained; as in ds_engine_params */
    const ds_distillation *distillation; /* default NULL; as in ds_engine_params */
    DS_RESERVED(4);
} ds_plan_params;

typedef enum ds_plan_format {
    DS_PLAN_TEXT, /* for people */
    DS_PLAN_JSON, /* one object {"ds_plan": 1, …} */
    DS_PLAN_HTML, /* one page: text, memory over the steps, the simulated timeline */
    DS_PLAN_TRACE /* the simulated timeline for Chrome's tracing page; needs a device */
} ds_plan_format;

/* Builds the plan that each rank would build, and counts: memory by kind at the peak,
 * communication, operations, with a device time too; whether it fits, and what would make it fit.
 * Nothing is allocated for the run, no weights are read. *fits_out (may be NULL): whether it fits;
 * what is not known is no shortage. The caller frees *text_out with free(). Errors: ERR_ARG, those
 * of the model and of the configuration, ERR_NOT_FOUND and ERR_FORMAT (device), ERR_NOMEM. */
DS_API ds_status ds_plan_report(ds_ctx *ctx, const ds_plan_params *params, ds_plan_format format,
                                bool *fits_out, char **text_out);

/* Chooses what the configuration leaves to a planner by "auto": pipeline.stages, pipeline.schedule
 * and with it pipeline.chunks. Each choice is planned whole, for the stage that needs most memory;
 * the fastest step for its samples is taken among those that fit params->memory_bytes, by planned
 * times with a device, else by operations along the schedule. *config_out: the configuration with
 * the choice in it, resolved, which the caller destroys; NULL where nothing is open. *why_out (may
 * be NULL): the choice and what stood beside it, in words, NULL where nothing is open; the caller
 * frees it with free(). Any thread that owns ctx; all ranks of a job come to the same with the same
 * params. Errors: ERR_ARG, ERR_CONFIG (no choice can be planned), those of ds_plan_report. */
DS_API ds_status ds_plan_pipeline(ds_ctx *ctx, const ds_plan_params *params, ds_config **config_out,
                                  char **why_out);

/* ---- DeepSpeed's estimates ------------------------------------------------------------------- */

/* What is estimated; the fields are DeepSpeed's arguments. */
typedef struct ds_estimate_params {
    uint64_t total_params;
    uint64_t largest_layer_params;   /* stage 3: parameters of the largest single layer */
    uint32_t num_gpus_per_node;      /* default 1 */
    uint32_t num_nodes;              /* default 1 */
    bool cpu_offload;                /* optimizer states in host memory */
    bool cpu_offload_params;         /* stage 3, with cpu_offload: parameters too */
    bool zero_init;                  /* stage 3: the model is made in slices */
    double additional_buffer_factor; /* default 1.5: of host memory */
    DS_RESERVED(8);
} ds_estimate_params;

typedef struct ds_estimate {
    uint64_t cpu_bytes; /* of a node */
    uint64_t gpu_bytes; /* of a rank */
} ds_estimate;

/* Bytes of parameters, gradients and optimizer states in mixed precision with Adam, without
 * activations and buffers: as deepspeed.runtime.zero estimate_zero2_model_states_mem_needs and
 * estimate_zero3_model_states_mem_needs compute them (version 0.19). Zero counts and factors stand
 * for their defaults. */
DS_API ds_estimate ds_estimate_zero2_model_states(const ds_estimate_params *params);
DS_API ds_estimate ds_estimate_zero3_model_states(const ds_estimate_params *params);

/* DeepSpeed's table of every choice of offload for a stage (2 or 3), as its
 * estimate_zeroN_model_states_mem_needs_all_cold prints it. Only counts and factor of params are
 * read. The caller frees *text_out with free(). Errors: ERR_ARG (stage), ERR_NOMEM. */
DS_API ds_status ds_estimate_table(ds_ctx *ctx, int stage, const ds_estimate_params *params,
                                   char **text_out);

/* Parameters of a model, tied ones once, and those of its largest layer: the parameters that share
 * a name up to the last dot. Errors: those of tracing the model. */
DS_API ds_status ds_estimate_count(ds_ctx *ctx, const ds_model *model, uint64_t *total_out,
                                   uint64_t *largest_layer_out);

#ifdef __cplusplus
}
#endif
#endif
