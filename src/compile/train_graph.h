/* SPDX-License-Identifier: Apache-2.0 */
/* The training graph: traced model, gradients, reduction, norm, update; and the evaluation graph.
 *
 * Pure: a function of model and spec. Cells are added to the table that both graphs share. The
 * order of roundings is LAW 4a: a complete fp32 gradient, rounded once to the
 * communication dtype, then added to the accumulator.
 */
#ifndef DSI_COMPILE_TRAIN_GRAPH_H
#define DSI_COMPILE_TRAIN_GRAPH_H

#include "config/config_values.h"
#include "place/stages.h"

#include <deepspeed/adapter.h>
#include <deepspeed/config.h>
#include <deepspeed/distillation.h>
#include <deepspeed/model.h>

/* ZenFlow: some columns of every weight matrix are updated each step, the rest every so many steps
 * from the mean of their gradients. docs/internals/zenflow.md. */
typedef struct dsi_zenflow_spec {
    bool on;
    double ratio;         /* part of the columns, above 0 and below 1 */
    bool weighs;          /* the rest is due when its gradients weigh enough; else update_every */
    double auto_ratio;    /* part of the matrices that must say so */
    int64_t update_every; /* steps */
    int64_t select_every; /* steps between two choices; 0: chosen once */
    int64_t warm_up;      /* steps at the start that update everything */
    bool overlap; /* the rest is updated concurrently with the next steps, one update late */
} dsi_zenflow_spec;

/* Muon: matrices by orthogonalized momentum, the rest by AdamW. */
typedef struct dsi_muon_spec {
    bool on;
    ds_dtype dtype; /* of the Newton-Schulz iteration: F32 or BF16 */
} dsi_muon_spec;

/* Adafactor, whose second moments are means of rows and columns. */
typedef struct dsi_adafactor_spec {
    bool on;
    bool scales;                           /* the rate, by the size of the weight */
    bool relative, warms_up;               /* the rate is of the step's number; slowly at first */
    double eps, scale_eps, clip_threshold; /* above 0 */
    double decay_rate;                     /* beta2 of update t is 1 - t^decay_rate */
} dsi_adafactor_spec;

/* Schedule-free AdamW: gradients are taken at a point between the weights that steps are of and
 * their average, which is the model. */
typedef struct dsi_schedule_free_spec {
    bool on;
    int64_t warmup_steps;
    double average_power, rate_power; /* r, weight_lr_power */
} dsi_schedule_free_spec;

/* AdamW or AdEMAMix whose states have 8 bits an element. */
typedef struct dsi_adam_8bit_spec {
    bool on;
    int64_t min_size;     /* elements of a parameter below which they are fp32 */
    bool embeddings_fp32; /* and those of embeddings */
    bool cut;             /* ranks have slices of states, or of parameters */
} dsi_adam_8bit_spec;

/* AdEMAMix: two first moments. Both numbers are reached in so many updates, 0: at once. */
typedef struct dsi_ademamix_spec {
    bool on;
    double beta3, alpha;
    int64_t t_beta3, t_alpha;
} dsi_ademamix_spec;

/* 1-bit optimizers: in the warm-up Adam or LAMB of the mean gradient; behind it the second moment
 * is frozen, and what ranks exchange is the first moment, as signs. docs/internals/onebit.md. */
typedef struct dsi_onebit_spec {
    bool on;
    int64_t freeze_step;                             /* updates of the warm-up */
    int64_t n_ranks;                                 /* that exchange signs; 0 or 1: none do */
    double coeff_beta;                               /* LAMB */
    double factor_max, factor_min, factor_threshold; /* LAMB */
    /* 0/1 Adam; freeze_step is var_freeze_step */
    int64_t var_update_scaler, local_step_scaler, local_step_clipper;
} dsi_onebit_spec;

/* Traces a loss from the model's outputs; declares "loss". */
typedef void (*dsi_loss_fn)(ds_nn *nn, void *user);

/* Errors of quantized gradients (LoCo). */
typedef struct dsi_loco_spec {
    bool on;
    double beta;              /* how much of an error stays */
    int64_t reset_every;      /* updates */
    int64_t n_inner, n_outer; /* ranks of a group and groups, between which gradients are added;
                                 filled where the mesh is known. 1 and 1: nothing is sent */
} dsi_loco_spec;

typedef struct dsi_train_spec {
    ds_dtype dtype;                 /* compute: f32, bf16, f16 */
    ds_dtype comm_dtype;            /* gradients are rounded to it once */
    ds_dtype accumulate_dtype;      /* of the accumulator when accumulation > 1 */
    ds_dtype state_dtype;           /* of moments: f32, or bf16 */
    bool master;                    /* keep fp32 weights beside 16-bit parameters */
    int64_t head_ranks;             /* ranks that share the heads of attention; 0: one */
    int64_t sequence_ranks;         /* ranks that share each sequence; 0: one */
    ds_sequence_form sequence_form; /* how they share attention */
    int64_t sequence_chunk;         /* positions of a chunk that is computed at a time; 0: all */
    uint32_t stages;                /* of the pipeline; 0: one */
    dsi_stage_partition partition;
    const char *partition_type;   /* of DSI_STAGES_BY_TYPE; borrowed while plans are made */
    int64_t expert_ranks;         /* ranks that share the experts of each layer; 0: one */
    int64_t token_ranks;          /* of those, ranks that have the same tokens (tp); 0: one */
    ds_routing routing;           /* zeros: as the model says */
    int64_t data_ranks;           /* ranks that have samples of their own; 0: one */
    int64_t mlp_rows;             /* tokens of a tile of the feed-forward parts; 0: not tiled */
    int64_t batch, seq_length;    /* of a micro-batch: samples, tokens a row */
    ds_preference preference;     /* loss NONE: cross entropy */
    ds_distillation distillation; /* teacher NULL: none */
    uint32_t task, n_classes;     /* of ds_trace */
    ds_task_params task_params;   /* likewise */
    int64_t accumulation;
    ds_optimizer_kind optimizer; /* not NONE */
    double eps;
    bool decoupled_decay;        /* AdamW */
    bool momentum;               /* SGD and Adafactor keep a buffer */
    double dampening;            /* SGD */
    bool nesterov;               /* SGD */
    double max_coeff, min_coeff; /* LAMB */
    dsi_muon_spec muon;
    dsi_adafactor_spec adafactor;
    dsi_schedule_free_spec schedule_free;
    dsi_adam_8bit_spec adam_8bit;
    dsi_ademamix_spec ademamix;
    double max_norm;     /* 0: no clipping */
    bool speculative;    /* updates on the host do not wait for the norm: what follows it decides */
    bool keep_nonfinite; /* gradients that are not finite do not skip the step */
    dsi_zenflow_spec zenflow; /* ADAM only */
    dsi_onebit_spec onebit;
    dsi_loco_spec loco;
    const ds_config_compression *compression; /* NULL: none; borrowed */
    const ds_config_tensor
        *tensor;               /* partition_config; NULL: none; borrowed while plans are made */
    const ds_adapter *adapter; /* NULL: the model itself is trained; borrowed */
    const char *const *gradient_outputs; /* outputs that take gradients from the caller */
    uint32_t n_gradient_outputs;
    dsi_loss_fn loss; /* NULL: the model declares "loss" */
    void *loss_user;
} dsi_train_spec;

/* Rows of a micro-batch: two for a pair of preferences, and those of ds_contrast. */
int64_t dsi_train_rows(const dsi_train_spec *spec);
/* Its routing, NULL where it says nothing. */
const ds_routing *dsi_train_routing(const dsi_train_spec *spec);
/* The trace of a micro-batch. It refers to the specification. */
ds_trace dsi_train_trace(const dsi_train_spec *spec, ds_trace_mode mode);

/* Of ZenFlow; DS_NONE without it. */
typedef struct dsi_zenflow_phases {
    ds_phase settle, take, choose, fetch, postpone, rest;
} dsi_zenflow_phases;

/* Of 1-bit optimizers behind their warm-up; DS_NONE without. */
typedef struct dsi_onebit_phases {
    ds_phase own_norm; /* in place of norm: of the ranks' own gradients. DS_NONE: one rank */
    ds_phase freeze;   /* LAMB: once, before frozen runs for the first time */
    ds_phase frozen;   /* in place of update. 0/1 Adam: of gradients exchanged as signs */
    ds_phase local;    /* 0/1 Adam: in place of it, by the rank's own gradient … */
    ds_phase sync;     /* … and now and then behind that */
} dsi_onebit_phases;

/* Behind the micro-batches. */
typedef struct dsi_train_phases {
    dsi_onebit_phases onebit;
    ds_phase norm, update;
    ds_phase accept, undo, redo; /* of speculative updates (pass/offload_speculate.c) */
    ds_phase average, point; /* schedule-free: parameters become the average, and the point again */
    ds_phase masks;          /* makes the masks of compression, once; DS_NONE: there are none */
    dsi_zenflow_phases zenflow; /* between the two */
} dsi_train_phases;

/* Of ZenFlow; DS_NONE without it. */
typedef struct dsi_zenflow_cells {
    ds_cell rank;            /* i32 (): this rank, which slice it holds */
    ds_cell more;            /* f32 (): 0 at the first gradient that waits, then 1 */
    ds_cell factor;          /* f32 (): 1 / gradients that wait */
    ds_cell chosen_hyper[2]; /* as hyper below, of chosen columns */
    ds_cell rest_hyper[2];   /* and of the rest */
} dsi_zenflow_cells;

/* Cells that the engine writes or reads by itself, and the phases that it runs; DS_NONE where
 * absent. */
typedef struct dsi_train_cells {
    dsi_zenflow_cells zenflow;
    ds_cell loss_seed;     /* f32 (): gradient of the loss */
    ds_cell inverse_scale; /* f32 (): undoes loss scale and predivision */
    ds_cell hyper[2];      /* f32 (DSI_HYPER_COUNT): with and without weight decay */
    ds_cell muon_hyper[2]; /* likewise, of the matrices of Muon; DS_NONE without */
    dsi_train_phases phases;
} dsi_train_cells;

/* Parameter groups: index into dsi_train_cells.hyper. */
enum { DSI_GROUP_DECAY = 0, DSI_GROUP_NO_DECAY = 1 };

/* Whether no update waits for all gradients: no clipping, no step is skipped, nothing accumulates,
 * there is one stage. Then each parameter is updated in the backward phase, whatever lives where.
 */
bool dsi_train_is_early(const dsi_train_spec *spec);

/* The name of a cell of kind CHOSEN: "PARAM/WHAT". Its states are index i32 (K), value, exp_avg and
 * exp_avg_sq f32 (rows,K), and weights f64 (2) with spec.weighs. text: room for n bytes. */
const char *dsi_zenflow_name(const char *param, const char *what, char *text, size_t n);

/* Phases forward, backward, norm, update, with ZenFlow those between them; with its overlap `rest`
 * is on the side stream, else `take` is empty. Outputs: the model's, and "grad_norm", "grad_top";
 * of own_norm "own_norm" (the root of the mean square of the ranks' norms) and "own_top".
 * Early updates: they stand in backward, update is empty, gradients have no cells, and there is no
 * "grad_top". */
ds_status dsi_train_graph(const ds_model *model, const dsi_train_spec *spec, ds_cells *cells,
                          ds_graph **graph_out, dsi_train_cells *cells_out);

/* The cells of parameters and inputs only: to freeze parameters before dsi_train_graph. Traces the
 * forward pass in the mode into a graph; also makes evaluation and generation graphs. */
ds_status dsi_forward_graph(const ds_model *model, const ds_trace *trace, dsi_loss_fn loss,
                            void *loss_user, ds_cells *cells, ds_graph **graph_out);

#endif
