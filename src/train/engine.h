/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of ds_engine. Parts: engine_create.c builds, engine_run.c runs, engine_weights.c fills,
 * engine_access.c answers, engine_files.c saves and loads, engine_saving.c saves behind training,
 * engine_config.c has ds_initialize, engine_agree.c compares ranks,
 * engine_resume.c a checkpoint with the run,
 * engine_nonfinite.c finds what is not finite, engine_average.c averages the loss,
 * engine_program.c says what calls run, engine_pipe.c what a stage of a pipeline does between,
 * engine_batch.c takes what they bring, engine_rates.c has the numbers of updates, engine_zenflow.c
 * the states of ZenFlow, engine_zenflow_step.c its step, engine_compress.c writes the numbers of
 * compression_training, engine_adapter.c reads and writes the weights of an adapter, engine_base.c
 * compares its model, engine_shard.c knows which part of a tensor this rank holds.
 *
 * What its calls run, and which call is awaited, stands in its programs (engine_program.c).
 */
#ifndef DSI_TRAIN_ENGINE_H
#define DSI_TRAIN_ENGINE_H

#include "base/packed.h"
#include "ckpt/ckpt_pool.h"
#include "compile/run_device.h"
#include "exec/exec.h"
#include "io/folder_lock.h"
#include "pipe/program.h"
#include "train/autotune_measure.h"

#include <deepspeed/checkpoint.h>
#include <deepspeed/engine.h>
#include <deepspeed/safetensors.h>

/* What its programs await; and their plans. */
typedef enum dsi_engine_call {
    DSI_CALL_FORWARD,
    DSI_CALL_BACKWARD,
    DSI_CALL_STEP,
    DSI_CALL_EVALUATE
} dsi_engine_call;
enum { DSI_PLAN_TRAIN, DSI_PLAN_EVAL };

/* What the caller gave to the call in progress; borrowed for it. */
typedef struct dsi_engine_args {
    const ds_batch *batch;
    const ds_named_tensor *gradients;
    uint32_t n_gradients;
} dsi_engine_args;

/* How far ZenFlow is. Saved with a checkpoint. */
/* What an update of a 1-bit optimizer is made of: the mean gradient, what ranks exchange as signs,
 * a rank's own gradient. */
typedef enum dsi_onebit_step {
    DSI_ONEBIT_MEAN,
    DSI_ONEBIT_SIGNS,
    DSI_ONEBIT_LOCAL
} dsi_onebit_step;

/* 0/1 Adam; all follows from the number of updates. */
typedef struct dsi_onebit_state {
    int64_t var_interval, var_counter;     /* between changes of the second moment */
    int64_t local_interval, local_counter; /* between exchanges behind that */
    bool apart;                            /* ranks have parameters of their own */
} dsi_onebit_state;

typedef struct dsi_zenflow_state {
    bool chosen;            /* columns are */
    bool fetch;             /* weights were set: the chosen columns are to be read again */
    int64_t waiting;        /* steps whose gradients wait */
    int64_t chosen_updates; /* since the choice */
    int64_t rest_updates;
    bool choosing,
        due;   /* columns are chosen, the rest is updated in the step in progress; not saved */
    bool late; /* forward passes do not see the newest update of the rest yet; it may still run */
} dsi_zenflow_state;

typedef struct dsi_engine_timers {
    double seconds[DS_MAX_PHASES]; /* of the step in progress */
    double reduce;                 /* the part of BACKWARD in collectives */
    ds_engine_times last;          /* the newest step */
    ds_engine_times sum;           /* of n_steps steps since the last line of times */
    uint64_t n_steps;
} dsi_engine_timers;

struct ds_engine {
    ds_ctx *ctx;
    const ds_model *model;
    dsi_engine_spec spec;
    ds_comm *comm;        /* the engine's own; NULL: one rank */
    dsi_mesh_comms *mesh; /* groups of its ranks; NULL: one rank */
    ds_comm *given;       /* the caller's, whose ranks have the mesh's names; NULL: one rank */
    ds_comm *data_comm; /* of mesh: the ranks that differ in their samples alone; NULL: one rank */
    ds_cells *cells;    /* logical: names, shapes of the model */
    ds_cells *local;    /* what this rank holds: same ids, local shapes; with one rank the same
                           table */
    dsi_spread *places; /* per cell */
    dsi_residencies residencies; /* of the local cells; none: all on the device */
    dsi_run_device placed;       /* what they were placed by, where the device matters */
    dsi_train_cells own;
    dsi_plan *train_plan, *eval_plan;
    dsi_exec *exec;
    uint32_t train_id, eval_id;   /* in the executor */
    ds_cell rng[2];               /* of train and eval; DS_NONE when not used */
    char *config_text;            /* resolved configuration, for checkpoints; may be NULL */
    char *embeddings;             /* for checkpoints: dsi_engine_set_embeddings; may be NULL */
    ds_checkpoint_saver *saver;   /* NULL: saves are written at once */
    ds_engine_save_info saved;    /* of a save that was written at once */
    uint32_t keep_last;           /* checkpoints that stay after a save; 0: all */
    char keep_tag[256];           /* one that stays whatever its age; "": none */
    char *save_dir;               /* rank 0: folder of the newest save … */
    dsi_folder_lock save_lock;    /* … which no other process may write in */
    struct dsi_pissa *pissa;      /* NULL: the adapter does not begin so */
    struct ds_gathered *gathered; /* those that have not ended, a list */

    struct dsi_engine_pipe *pipe; /* NULL: one stage has all layers */
    dsi_program training, evaluation;
    dsi_program_at at; /* in training */
    dsi_engine_args call;
    bool broken;           /* a call failed while it changed states: they are neither old nor new */
    int64_t micro_step;    /* backwards since the last boundary */
    int forced_boundary;   /* -1, 0, 1 */
    double forced_lr;      /* negative: none */
    uint64_t global_steps; /* boundary steps */
    uint64_t skipped_steps;
    uint64_t nonfinite_steps; /* see ds_engine_nonfinite_steps */
    uint64_t global_samples, global_tokens;
    double grad_norm;
    double count;        /* counted targets of the newest backward; with DS_AVERAGE_TARGETS only */
    double step_targets; /* see engine_average.c */
    bool at_boundary;    /* the step in progress updates */
    bool applied;
    bool undecided;          /* speculative updates may have run, and the step has not decided */
    bool accepted;           /* they are the step's */
    uint64_t numbers_at;     /* dsi_exec_known_writes when they were started */
    uint64_t undone_updates; /* steps in which they were not */
    dsi_onebit_state onebit;
    dsi_zenflow_state zenflow;
    ds_cell *late_pairs; /* of ZenFlow's overlap: n waiting, then n handed, of the same matrices */
    uint32_t n_late_pairs;
    dsi_engine_timers timers; /* of wall_clock_breakdown */
    dsi_autotune_state autotune;
    struct dsi_run_trace *trace;         /* NULL: none is recorded */
    struct dsi_memory_view *memory;      /* NULL: nobody asked yet */
    uint32_t phases_run;                 /* since the last memory report: bit 1 << ds_phase */
    ds_config_compression *compression;  /* its own; NULL: no layer is compressed */
    struct dsi_compress_state *compress; /* likewise */
    ds_preference_sums preference[2];    /* of forwards, of evaluations */
    double *step_seconds; /* of the flops profiler, per step of the training plan; else NULL */
};

/* Builds an engine from numbers; params->config is not read. */
ds_status dsi_engine_create(ds_ctx *ctx, const ds_engine_params *params,
                            const dsi_engine_spec *spec, ds_engine **engine_out);
/* Whether ds_initialize would plan an engine on n_ranks; params->comm and weights are not read, no
 * memory of the plan is taken. Errors: those of the configuration, the model and the plan. */
ds_status dsi_engine_check(ds_ctx *ctx, const ds_engine_params *params, uint32_t n_ranks);

/* engine_agree.c: all ranks have the same program, model, numbers and plans, or the run does not
 * start (collective, ERR_PEER). engine_resume.c: a checkpoint's model is this one (ERR_ARG names
 * the constant), and so is of its configuration what a resumed run keeps (ERR_CONFIG names the
 * key). */
ds_status dsi_engine_agree(const ds_engine *engine);
/* engine_room.c: spec.room, before there is a plan (collective). */
ds_status dsi_engine_find_room(ds_engine *engine, const ds_engine_params *params);
/* What checkpoints hold from now on as their state "embeddings": how vectors are made of what the
 * model gives, as JSON, for whoever exports them. Copied. Errors: ERR_NOMEM. */
ds_status dsi_engine_set_embeddings(ds_engine *engine, const char *json);
char *dsi_engine_frozen(const ds_engine *engine); /* for a checkpoint; free() */
ds_status dsi_engine_check_frozen(const ds_engine *engine, const ds_checkpoint *ckpt);
ds_status dsi_engine_check_config(const ds_engine *engine, const ds_checkpoint *ckpt);
ds_status dsi_engine_check_model(const ds_engine *engine, const ds_checkpoint *ckpt);

/* ERR_STATE when the engine is broken: its states must not be used, let alone saved. */
ds_status dsi_engine_check_whole(const ds_engine *engine, const char *call);

/* ERR_STATE where speculative updates have changed states that the step may give back. name: of a
 * parameter, for the message. */
ds_status dsi_engine_check_settled(const ds_engine *engine, const char *name);

/* Builds the programs from plans and specification; runs the piece of one that a call names
 * (ERR_STATE when another is awaited); the call that training awaits. */
ds_status dsi_engine_make_programs(ds_engine *engine);
ds_status dsi_engine_call_program(ds_engine *engine, dsi_engine_call call);
dsi_engine_call dsi_engine_awaits(const ds_engine *engine);
/* Tells the executor which phases of a step may be launched together (exec_join.c). */
ds_status dsi_engine_join_phases(ds_engine *engine);
/* Whether they could be, but for the host, which looks at the norm before it launches updates. */
bool dsi_engine_judges_between(const ds_engine *engine);

/* Runs one phase of the training plan, timed when the configuration asks for it; and after a step
 * logs the times every steps_per_print steps. */
ds_status dsi_engine_run_phase(ds_engine *engine, ds_phase phase);
void dsi_engine_report_times(ds_engine *engine);
/* A line of the log for each of the text. */
void dsi_engine_log_lines(const ds_engine *engine, const char *text);
/* Of the flops profiler: memory for the times of steps, and the folder of output_file, which must
 * be writable before the run begins; after the step that it was asked for the report, on rank 0. */
ds_status dsi_engine_open_flops(ds_engine *engine);
ds_status dsi_engine_report_flops(ds_engine *engine);
/* Of autotuning.enabled, see autotune_measure.h: a phase has run from `begin`; an optimizer step
 * has ended; the engine is built. Errors: ERR_IO names the key and the file. */
void dsi_engine_measure_phase(ds_engine *engine, ds_phase phase, double begin, double seconds);
ds_status dsi_engine_measure_step(ds_engine *engine);
ds_status dsi_engine_write_model_info(const ds_engine *engine);
/* Logs the effective configuration. */
void dsi_engine_dump_state(const ds_engine *engine);

/* Writes a hyper cell for the t-th update, counted from 1. */
ds_status dsi_engine_write_hyper(ds_engine *engine, const ds_cell cells[2], int64_t t);

/* engine_schedule_free.c; nothing for other optimizers. Parameters become the average, or the point
 * of gradients again. Whether ds_engine_set may set a cell: ERR_STATE. */
ds_status dsi_engine_set_average(ds_engine *engine, bool average);
ds_status dsi_engine_check_set(const ds_engine *engine, ds_cell_kind kind);

/* 1-bit optimizers (engine_onebit.c). What the next update is made of; whether it is the first with
 * a frozen second moment; whether the ranks exchange what they have done by themselves behind it.
 */
dsi_onebit_step dsi_onebit_due(const ds_engine *engine);
bool dsi_onebit_freezes(const ds_engine *engine);
bool dsi_onebit_syncs(const ds_engine *engine);
void dsi_onebit_begin(ds_engine *engine); /* by the number of updates */
void dsi_onebit_count(ds_engine *engine); /* an update that is made */
ds_status dsi_onebit_clear_errors(ds_engine *engine);
/* Whether a cell of that kind is not all zero. Whether what a cell holds is always, or just now,
 * each rank's own. Then the checkpoint has a tensor of a row a rank; the kind of that, and its meta
 * and this rank's row. */
bool dsi_onebit_saves(const ds_engine *engine, ds_cell_kind kind);
bool dsi_engine_is_own(const ds_engine *engine, ds_cell cell);
bool dsi_engine_is_apart(const ds_engine *engine, ds_cell cell);
const char *dsi_engine_own_kind(const ds_engine *engine, ds_cell cell);
ds_meta dsi_engine_own_meta(const ds_engine *engine, ds_cell cell, ds_extent *extent_out);
/* The ranks' own from a checkpoint, or zero; behind everything else. */
ds_status dsi_onebit_load(ds_engine *engine, const ds_checkpoint *ckpt, dsi_ckpt_pool *pool);

/* ZenFlow (engine_zenflow.c). open: before memory is there. say: logs what the settings come to.
 * begin: after memory is there. finish: waits for an update that
 * runs concurrently with the steps; the host may then touch master weights and moments. drain:
 * finish, and chosen columns go back to their master weights, which the host may then read; nothing
 * without ZenFlow. ERR_STATE between forward and step. tidy: what no longer waits is 0, for a
 * checkpoint. check: what one said of the index. */
ds_status dsi_zenflow_open(ds_engine *engine);
void dsi_zenflow_say(const ds_engine *engine);
ds_status dsi_zenflow_begin(ds_engine *engine);
ds_status dsi_zenflow_finish(const ds_engine *engine);
ds_status dsi_zenflow_drain(const ds_engine *engine);
ds_status dsi_zenflow_tidy(ds_engine *engine);
ds_status dsi_zenflow_check(const ds_engine *engine, const char *path);

/* engine_compress.c. copy: the specification refers to the engine's own copy. open: before memory
 * is there. make_masks: of the weights as they are (collective). */
ds_status dsi_engine_copy_compression(ds_engine *engine);
ds_status dsi_engine_open_compression(ds_engine *engine);
ds_status dsi_engine_make_masks(ds_engine *engine);

/* engine_tensor.c: says at level JOB what tensor parallelism shards. Errors: ERR_CONFIG: nothing.
 */
ds_status dsi_engine_say_tensor(const ds_engine *engine);
/* Likewise what ranks share of the experts; nothing where each has all. */
void dsi_engine_say_experts(const ds_engine *engine);
/* engine_average.c: whether the loss can be averaged as the specification says; adds the newest
 * forward's targets to the step's (collective); the gradient of that loss; what undoes it, loss
 * scale included, once all micro-batches are through. */
ds_status dsi_engine_check_average(const ds_engine *engine);
ds_status dsi_engine_add_targets(ds_engine *engine);
double dsi_engine_loss_seed(const ds_engine *engine);
double dsi_engine_inverse_scale(const ds_engine *engine);

/* engine_preference.c: adds what the newest forward, or evaluation, says of its answers; nothing
 * without a preference loss. */
ds_status dsi_engine_add_preference(ds_engine *engine, bool evaluated);
/* The same file: the loss and its numbers as a JSON object, for a checkpoint, "" without one; and
 * whether a checkpoint was trained with the same (ERR_CONFIG). */
enum { DSI_PREFERENCE_BYTES = 512 };
void dsi_engine_print_preference(const ds_engine *engine, char text[DSI_PREFERENCE_BYTES]);
ds_status dsi_engine_check_preference(const ds_engine *engine, const ds_checkpoint *ckpt);

/* Counts for ds_engine_nonfinite_steps: gradients of the newest boundary step. */
void dsi_engine_count_nonfinite(ds_engine *engine, bool finite);

/* The number of updates applied so far: what schedule and bias correction count. */
int64_t dsi_engine_updates(const ds_engine *engine);

/* Fills every parameter: from a folder, or by its cell's init. */
ds_status dsi_engine_fill(ds_engine *engine, const char *weights, uint64_t seed);
/* Fills every parameter from a folder's safetensors. ERR_NOT_FOUND, ERR_SHAPE name the tensor. */
ds_status dsi_engine_load_folder(ds_engine *engine, const char *dir);
/* The same of the teacher, where there is one, from its own folder. */
ds_status dsi_engine_load_teacher(ds_engine *engine);

/* Fills a packed parameter: read gives elements of its matrix as files store it. */
ds_status dsi_engine_pack(ds_engine *engine, ds_cell cell, dsi_packed_fn read, void *user);
/* All of its elements, as files store them. Collective. */
ds_status dsi_engine_unpack(const ds_engine *engine, ds_cell cell, float *data);

/* Fills the parameters that have a tensor in by_cell, ds_cells_count entries. */
ds_status dsi_engine_fill_from(ds_engine *engine, const ds_safetensor *const *by_cell);
/* engine_adapter.c: fills the adapter's parameters from its folder, where it has one. */
ds_status dsi_engine_load_adapter(ds_engine *engine);
/* Of a fresh DoRA: its lengths are those of the weights' rows, which have to be there. Collective.
 */
ds_status dsi_engine_begin_lengths(ds_engine *engine);
/* Whether a weight is stored (in,out). */
bool dsi_engine_is_turned(const ds_engine *engine, const ds_cell_info *weight);
/* engine_pissa.c: of a fresh PiSSA, A, B and the weights. Collective. */
ds_status dsi_engine_begin_pissa(ds_engine *engine);
/* Whether a cell is A or B of it: then data, with room for twice the elements, becomes what is
 * saved, against the weights as they were, and shape its shape. */
bool dsi_engine_join_first(const ds_engine *engine, ds_cell cell, ds_shape *shape, float *data);
void dsi_engine_end_pissa(ds_engine *engine);

/* Whether its adapted layers store (in,out). */
bool dsi_engine_is_transposed(const ds_engine *engine);
/* engine_base.c: a weight of the model beside an adapter, which no checkpoint holds; the states of
 * the adapter for a checkpoint, and whether one is of this adapter and of this model (ERR_ARG).
 * Collective. */
bool dsi_engine_is_base(const ds_engine *engine, const ds_cell_info *cell);
ds_status dsi_engine_add_adapter(ds_engine *engine, ds_checkpoint_writer *writer);
ds_status dsi_engine_check_adapter(ds_engine *engine, const ds_checkpoint *ckpt);
/* The same of a teacher; a checkpoint of another loss is ERR_CONFIG. Collective. */
ds_status dsi_engine_add_teacher(ds_engine *engine, ds_checkpoint_writer *writer);
ds_status dsi_engine_check_teacher(ds_engine *engine, const ds_checkpoint *ckpt);

/* Adds what a checkpoint has of tensors. *keep_out: what they refer to, in any case; free() after
 * the commit. */
ds_status dsi_engine_add_tensors(ds_engine *engine, ds_checkpoint_writer *writer, void **keep_out);
/* No other process writes into the folder until the engine saves elsewhere or is destroyed.
 * Collective. */
ds_status dsi_engine_hold_folder(ds_engine *engine, const char *dir);
/* Makes the saver and the memory of its copies, when the specification asks for one. Collective. */
ds_status dsi_engine_open_saver(ds_engine *engine);

/* The stage of this rank, from 0. */
uint32_t dsi_engine_stage(const ds_engine *engine);
/* What this rank's cell holds of its logical tensor. */
dsi_part dsi_engine_part(const ds_engine *engine, ds_cell cell);
/* Whether that is less than all on some rank. */
bool dsi_engine_is_cut(const ds_engine *engine, ds_cell cell);
/* Whether this rank is the first of those that hold the same of a cell: it is the one that saves
 * it.
 */
bool dsi_engine_is_first(const ds_engine *engine, ds_cell cell);

/* Sets elements [begin, begin + count) of a parameter, and of its master, from fp32, bf16 or fp16
 * data; those that this rank does not hold are passed over. Errors: those of the disk, where the
 * cell lives there. */
ds_status dsi_engine_put(ds_engine *engine, ds_cell param, int64_t begin, int64_t count,
                         const void *data, ds_dtype dtype);
/* The same for one cell. */
ds_status dsi_engine_put_cell(ds_engine *engine, ds_cell cell, int64_t begin, int64_t count,
                              const void *data, ds_dtype dtype);

/* The whole of a cell in its own dtype, gathered from all ranks when it is sharded. Collective
 * then. data: room for the logical tensor. */
ds_status dsi_engine_whole(const ds_engine *engine, ds_cell cell, void *data);

/* Bytes of model states on this rank, by dsi_memory_kind from PARAM to MOMENT. The formula
 * is ZeRO's for the placements in force (docs/internals/zero.md), without padding; what persistent
 * parameters of stage 3 weigh beyond it stands apart. */
typedef struct dsi_engine_bytes {
    double held[DSI_MEMORY_MOMENT + 1], formula[DSI_MEMORY_MOMENT + 1];
    double persistent;
} dsi_engine_bytes;
void dsi_engine_memory(const ds_engine *engine, dsi_engine_bytes *bytes_out);

#endif
