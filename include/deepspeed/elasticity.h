/* SPDX-License-Identifier: Apache-2.0 */
/* Elasticity: one batch size that many numbers of ranks can train with, DeepSpeed's versions 0.1
 * and 0.2 of the computation. A configuration with elasticity.enabled is resolved by it; a
 * scheduler may ask it directly.
 */
#ifndef DEEPSPEED_ELASTICITY_H
#define DEEPSPEED_ELASTICITY_H

#include <deepspeed/config.h>
#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The elasticity section of a configuration. Counts of samples and ranks. */
typedef struct ds_elastic_params {
    int64_t max_train_batch_size;
    const int64_t *micro_batch_sizes; /* borrowed; samples a rank, a micro-step */
    size_t n_micro_batch_sizes;
    int64_t min_gpus, max_gpus;  /* ranks */
    int64_t num_gpus_per_node;   /* version 0.2 */
    int64_t model_parallel_size; /* version 0.2; divides num_gpus_per_node */
    bool prefer_larger_batch;
    int version; /* 1: "0.1", 2: "0.2" */
    DS_RESERVED(8);
} ds_elastic_params;

typedef struct ds_elastic_result {
    int64_t train_batch_size;
    int64_t *valid_gpus; /* rising; data-parallel ranks in version 0.2. Owned: ds_elastic_free */
    size_t n_valid_gpus;
    int64_t micro_batch_size; /* for the world size that was asked about; 0 without one */
    DS_RESERVED(8);
} ds_elastic_result;

/* Computes for `world_size` ranks; 0: for none in particular, which version 0.2 does not know.
 * Errors: ERR_CONFIG names the key that contradicts another; ERR_ARG when world_size cannot train
 * (the message lists the numbers that can); ERR_NOMEM. Any thread. Source: DeepSpeed,
 * deepspeed/elasticity/elasticity.py, compute_elastic_config. */
DS_API ds_status ds_elastic_compute(ds_ctx *ctx, const ds_elastic_params *params,
                                    uint32_t world_size, ds_elastic_result *result_out);
DS_API void ds_elastic_free(ds_elastic_result *result); /* leaves it empty */

/* The elasticity section of a loaded configuration; NULL when it is absent or not enabled.
 * Borrowed: lives until the configuration is resolved again or destroyed. */
DS_API const ds_elastic_params *ds_config_get_elasticity(const ds_config *config);

#ifdef __cplusplus
}
#endif
#endif
