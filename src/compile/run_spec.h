/* SPDX-License-Identifier: Apache-2.0 */
/* A run in numbers: what graph, plan and engine need of the configuration. */
#ifndef DSI_COMPILE_RUN_SPEC_H
#define DSI_COMPILE_RUN_SPEC_H

#include "accel/accel.h"
#include "compile/offload_residency.h"
#include "compile/train_graph.h"
#include "config/config_values.h"
#include "optim/loss_scale.h"
#include "pass/policy.h"
#include "pipe/pipe_schedule.h"
#include "place/zero.h"

#include <deepspeed/checkpoint.h>
#include <deepspeed/engine.h>

/* The section flops_profiler. */
typedef struct dsi_flops_spec {
    bool enabled;
    int64_t profile_step; /* optimizer steps done before the one that is profiled */
    int64_t module_depth; /* of the report; -1: all */
    int64_t top_modules;  /* listed at each depth */
    bool detailed;        /* the tree of all modules too */
    char output_file[DS_CONFIG_TEXT_BYTES]; /* "": the log */
} dsi_flops_spec;

/* The section autotuning; see train/autotune_measure.h. */
typedef struct dsi_autotune_spec {
    bool enabled;
    bool model_info;     /* write that file too, when the engine is built */
    bool trial;          /* DS_AUTOTUNING_TRIAL is set: this process is ended in the midst of
                            training, and writes no checkpoint and no model folder */
    int64_t first, last; /* steps */
    char metric_path[DS_CONFIG_TEXT_BYTES], model_info_path[DS_CONFIG_TEXT_BYTES];
} dsi_autotune_spec;

/* All that the engine needs from the configuration, as plain numbers. */
typedef struct dsi_engine_spec {
    dsi_train_spec train;
    dsi_zero_spec zero;
    dsi_recompute recompute; /* AUTO: the first of none, selective and full that fits */
    size_t device_memory;    /* bytes for cells and arenas; 0: no limit */
    size_t room;             /* bytes for them that are there to be used; 0: unknown */
    dsi_offload_spec offload;
    double reserved_cores; /* share of the threads that ZenFlow's overlapped update leaves alone */
    double host_cores;     /* share of the threads that updates on the host take */
    double lr, beta1, beta2, weight_decay; /* beta1 is the momentum of SGD */
    double muon_lr, muon_momentum; /* of the matrices of Muon, whose lr is that of the rest */
    bool bias_correction;
    bool decay_all; /* weight decay on norms and biases too */
    ds_loss_average average;
    dsi_loss_scale loss_scale;
    ds_schedule_params schedule;
    bool has_groups; /* norms and biases have another: */
    ds_schedule_params schedule_no_decay;
    dsi_schedule_kind schedule_kind; /* of a pipeline */
    uint32_t stage_chunks;           /* of layers that each of its ranks has; 0: 1 */
    uint64_t seed;
    ds_isa isa;
    dsi_accel_choice accel;
    ds_checkpoint_tag_validation tag_validation;
    bool save_behind;                  /* checkpoints are written behind training */
    size_t save_host_bytes;            /* most that their copy may take; 0: no limit */
    bool overlap;                      /* collectives run concurrently with computation */
    bool domino;                       /* the rows of a micro-batch go in halves that take turns */
    int64_t prefetch;                  /* elements of stage 3's gathers ahead of their use */
    bool no_fuse, no_reuse, no_shards; /* for comparisons in tests */
    bool wall_clock_breakdown, memory_breakdown;
    dsi_flops_spec flops;
    dsi_autotune_spec autotune;
    ds_config_hybrid hybrid;
    bool log_comm; /* time the collectives */
    ds_comm_log_params comm_log;
    int64_t steps_per_print; /* between two lines of times; 0: none */
} dsi_engine_spec;

/* The mesh that a run of a resolved configuration has, for whoever needs it before the engine.
 * Errors: ERR_CONFIG. */
ds_status dsi_run_mesh(ds_ctx *ctx, const ds_config_values *values, uint32_t n_ranks,
                       dsi_mesh *mesh_out);

/* What the sections of offload ask for. apart: the device has memory of its own; else host memory
 * is apart from it only when device_memory is given. Pure. */
dsi_offload_spec dsi_offload_read(const ds_config_values *values, bool apart);

/* What of a run follows from its accelerator, which has been chosen. apart: the device has memory
 * of its own. Errors: ERR_UNSUPPORTED names a key that needs another accelerator or optimizer. */
ds_status dsi_run_follow_accel(ds_ctx *ctx, const ds_config_values *values, bool apart,
                               dsi_engine_spec *spec);

/* The engine's numbers from a resolved configuration; params->config is read, also seq_length,
 * seed, loss and gradient outputs. zero.mesh.n_ranks is left 0. */
ds_status dsi_engine_read_config(ds_ctx *ctx, const ds_engine_params *params,
                                 dsi_engine_spec *spec_out);

#endif
