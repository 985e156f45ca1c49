/* Plans of a run before it runs: what model states weigh by DeepSpeed's own estimates. The full
 * account (activations, communication, operations, time) is the tool ds_plan's.
 *
 * Thread rule: pure functions, any thread.
 */
#ifndef DEEPSPEED_PLAN_H
#define DEEPSPEED_PLAN_H

#include <deepspeed/model.h>

#ifdef __cplusplus
extern "C" {
#endif

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
