/* SPDX-License-Identifier: Apache-2.0 */
/* The training engine: forward, backward, step, as DeepSpeed users know them.
 *
 *     ds_initialize(ctx, &params, &engine);
 *     for (…) {
 *         ds_engine_forward(engine, &batch);     // loss: ds_engine_loss()
 *         ds_engine_backward(engine);
 *         ds_engine_step(engine);                // updates at the accumulation boundary
 *     }
 *
 * or ds_engine_train_batch() for all three over all micro-batches of a step. A call out of order is
 * ERR_STATE and names the state. Evaluation is allowed at any time, also between forward and
 * backward. When backward, step or the loading of a checkpoint fails in the middle (a disk, a
 * peer), the states are neither old nor new: every later call is ERR_STATE until a checkpoint is
 * loaded. One thread calls an engine; nothing is allocated between initialisation and destruction
 * apart from saving and loading checkpoints.
 */
#ifndef DEEPSPEED_ENGINE_H
#define DEEPSPEED_ENGINE_H

#include <deepspeed/adapter.h>
#include <deepspeed/comm.h>
#include <deepspeed/config.h>
#include <deepspeed/distillation.h>
#include <deepspeed/model.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_engine ds_engine;

/* Traces a loss from the outputs that the model declared (ds_graph_find_output) and declares
 * "loss".
 */
typedef void (*ds_loss_fn)(ds_nn *nn, void *user);

/* What the loss of an optimizer step is, and with it its gradient. */
typedef enum ds_loss_average {
    DS_AVERAGE_MICRO_BATCHES, /* mean over micro-batches and ranks of the mean over the targets of
                                 each, as DeepSpeed */
    DS_AVERAGE_TARGETS        /* mean over all counted targets of the step, of all ranks, as newer
                                 versions of Hugging Face's Trainer */
} ds_loss_average;

typedef struct ds_engine_params {
    const ds_model *model;   /* borrowed, must outlive the engine */
    const ds_config *config; /* resolved; borrowed for the call */
    int64_t seq_length;  /* T of training and evaluation batches; a custom model may ignore it */
    uint64_t seed;       /* default 0: of initialisation and dropout */
    const char *weights; /* default NULL: random; or a model folder with *.safetensors */
    const char *const *frozen; /* default NULL: glob patterns of parameters without gradient */
    uint32_t n_frozen;
    ds_loss_fn loss; /* default NULL: the model declares "loss" itself */
    void *loss_user;
    const char *const *gradient_outputs; /* default NULL: outputs that receive gradients from
                                            ds_engine_backward_outputs() */
    uint32_t n_gradient_outputs;
    int64_t steps_per_epoch; /* default 0: zenflow.steps_per_epoch of the configuration; for ZenFlow
                                alone, whose columns are chosen anew by epochs */
    bool decay_all; /* default false: norms and biases have no weight decay, as for Hugging Face's
                       Trainer; true: they have, as where DeepSpeed is given all parameters in one
                       group. A checkpoint is resumed with the value that it was saved with, */
    ds_loss_average average; /* default DS_AVERAGE_MICRO_BATCHES; and so with this */
    ds_comm *comm; /* default NULL: one rank; the ranks of the run, borrowed, must outlive the
                      engine. Then every call that runs something, saves, loads, gets or sets is
                      collective */
    const char *accelerator; /* default NULL, or "auto": the best that there is; or "NAME" or
                                "NAME:OPTIONS", of those that ds_report lists. The same on all
                                ranks */
    uint64_t
        memory_bytes; /* default 0: this rank's share of the machine's memory, or of its control
                         group's limit, or what the launcher's --rank_memory allows: bytes that
                         the rank may use. Up to half of them the plan keeps what would else be
                         made again. On several ranks the least counts. It changes no result */
    const ds_preference *preference; /* default NULL: cross entropy; or this loss of pairs or
                                        labelled answers (deepspeed/preference.h): a micro-batch of
                                        B samples is then 2B or B rows. Borrowed for the call */
    const ds_adapter *adapter; /* default NULL: the model's weights are trained; else the adapter's
                                  alone, beside them. Borrowed, must outlive the engine */
    uint32_t task;      /* a ds_task, default TOKENS; of an encoder a task with classes, whose head
                           is drawn anew where `weights` has none */
    uint32_t n_classes; /* of it */
    const ds_distillation *distillation; /* default NULL; or a teacher (deepspeed/distillation.h).
                                            Copied; its teacher must outlive the engine */
    const ds_task_params *task_params;   /* default NULL; what the task has besides. Copied */
    DS_RESERVED(1);
} ds_engine_params;

/* A named tensor of a batch, or a gradient of a named output. */
typedef struct ds_named_tensor {
    const char *name;
    ds_tensor tensor;
} ds_named_tensor;

/* One micro-batch: a tensor for each input that the model declared. */
typedef struct ds_batch {
    const ds_named_tensor *tensors;
    uint32_t n_tensors;
} ds_batch;

/* Builds graph, plan and memory, and fills the weights. Prints the precision table once at level
 * JOB. Errors: ERR_CONFIG, ERR_SHAPE and ERR_NOT_FOUND naming tensors of the folder, ERR_NOMEM
 * naming the bytes, and those of the model. */
DS_API ds_status ds_initialize(ds_ctx *ctx, const ds_engine_params *params, ds_engine **engine_out);
DS_API void ds_engine_destroy(ds_engine **engine);

/* Runs the forward pass of one micro-batch. The tensors are copied. Errors: ERR_STATE when the last
 * forward has had no backward (one slot); ERR_ARG naming an input that is missing, unknown or of
 * another shape. */
DS_API ds_status ds_engine_forward(ds_engine *engine, const ds_batch *batch);
/* Runs the backward pass from the loss, divided by the accumulation steps, and adds the gradients.
 * ERR_STATE without a forward. */
DS_API ds_status ds_engine_backward(ds_engine *engine);
/* The same from gradients of the outputs named in ds_engine_params.gradient_outputs (zero where not
 * given), beside the loss when the model has one. They are used as they are: the caller divides by
 * the accumulation steps; loss scaling is applied here. */
DS_API ds_status ds_engine_backward_outputs(ds_engine *engine, const ds_named_tensor *gradients,
                                            uint32_t n_gradients);
/* At the accumulation boundary: norm, clipping, update, schedule, loss scale. Elsewhere only
 * counts. Gradients that are not finite skip the update (ds_engine_was_step_applied). ERR_STATE
 * without a backward. States that live on disk may still be on their way there when it returns; an
 * error of that (ERR_IO) is reported by the next call that runs, reads or saves something, and from
 * then on calls are ERR_STATE until a checkpoint is loaded. */
DS_API ds_status ds_engine_step(ds_engine *engine);

/* Gives micro-batch i of a step; fills *batch_out with borrowed tensors. */
typedef ds_status (*ds_batch_fn)(void *user, ds_batch *batch_out);
/* Forward, backward and step over all micro-batches; *loss_out (may be NULL) is their mean loss,
 * over ranks too, as ds_engine_params.average says. */
DS_API ds_status ds_engine_train_batch(ds_engine *engine, ds_batch_fn next, void *user,
                                       double *loss_out);
/* Loss of this rank's batch without dropout and without gradients. *loss_out: mean over *count_out
 * counted targets; both may be NULL. */
DS_API ds_status ds_engine_eval_batch(ds_engine *engine, const ds_batch *batch, double *loss_out,
                                      double *count_out);

/* The ranks that differ from this one in their samples alone, in the order of the samples: what a
 * loader is given is its rank and size (ds_comm_rank, ds_comm_size), and what is counted by sample
 * is summed over it, of several ranks with the same samples each time by one. With data parallelism
 * alone: all ranks of the run. NULL: one rank. Borrowed; used like the engine, by one thread.
 * Source: DeepSpeed's data-parallel group. */
DS_API ds_comm *ds_engine_data_comm(const ds_engine *engine);

/* A named output of the newest forward (borrowed until the next call that runs something). Of one
 * along the sequence, under sequence_parallel_size, this rank's part: its shape says so; in a ring
 * with sequence_parallel.load_balance a piece from the front and one from the back. */
DS_API ds_status ds_engine_output(ds_engine *engine, const char *name, ds_tensor *tensor_out);

/* The same of the newest ds_engine_eval_batch, right behind it. */
DS_API ds_status ds_engine_eval_output(ds_engine *engine, const char *name, ds_tensor *tensor_out);

/* ---- accessors ---- */
DS_API double ds_engine_loss(const ds_engine *engine);      /* of the newest forward */
DS_API double ds_engine_grad_norm(const ds_engine *engine); /* before clipping, unscaled; of the
                                                                newest boundary step; -1 before, or
                                                                when not finite */
DS_API double ds_engine_lr(const ds_engine *engine);        /* that the next update will use */
DS_API double ds_engine_momentum(const ds_engine *engine);  /* beta1 or momentum, likewise */
DS_API double ds_engine_loss_scale(const ds_engine *engine);
DS_API uint64_t ds_engine_global_steps(const ds_engine *engine); /* boundary steps, skipped too */
DS_API uint64_t ds_engine_skipped_steps(const ds_engine *engine);
/* How many boundary steps in a row, up to the newest, had gradients that were not finite, skipped
 * or applied: a run that counts many of them gets nowhere, and after one that was applied the
 * weights are spoiled. Overflows under a dynamic loss scale are not counted: it shrinks, and at its
 * minimum ds_engine_step fails. 0 after a load. The same on all ranks. */
DS_API uint64_t ds_engine_nonfinite_steps(const ds_engine *engine);
/* The name of the first parameter of which this rank's weights, else of which its gradient, are not
 * finite, of those on the device; NULL: none. Reads all of them. Not collective; borrowed. */
DS_API const char *ds_engine_first_nonfinite(const ds_engine *engine, bool *is_gradient_out);
DS_API uint64_t ds_engine_global_samples(const ds_engine *engine); /* rows, or pairs of them, of
                                                                      all ranks */
DS_API uint64_t ds_engine_global_tokens(const ds_engine *engine);  /* of these rows, padding too */
DS_API bool ds_engine_was_step_applied(const ds_engine *engine);
DS_API bool ds_engine_is_accumulation_boundary(const ds_engine *engine);
DS_API int64_t ds_engine_micro_batch(const ds_engine *engine);
DS_API int64_t ds_engine_accumulation(const ds_engine *engine);
DS_API uint64_t ds_engine_n_parameters(const ds_engine *engine);
DS_API uint64_t ds_engine_n_trainable(const ds_engine *engine);
/* Milliseconds of the newest boundary step, all its micro-batches together; all 0 before, or unless
 * the configuration has wall_clock_breakdown. */
typedef struct ds_engine_times {
    double forward;
    double backward;           /* the next two together */
    double backward_inner;     /* computing gradients */
    double backward_allreduce; /* communication in the backward pass that nothing hid */
    double step;               /* gradient norm, clipping and update */
    DS_RESERVED(8);
} ds_engine_times;
DS_API ds_engine_times ds_engine_step_times(const ds_engine *engine);
/* Floating-point operations of one micro-batch's forward and backward, from the plan. */
DS_API double ds_engine_flops(const ds_engine *engine);
/* Those that activation checkpointing adds to them. */
DS_API double ds_engine_recomputed_flops(const ds_engine *engine);
/* Bytes that the plan asks for: cells and arena, and the copy of checkpoints that are written
 * behind training. */
DS_API size_t ds_engine_planned_bytes(const ds_engine *engine);
/* Bytes of this rank's offloaded states and parameters in host memory and on disk. */
DS_API size_t ds_engine_host_bytes(const ds_engine *engine);
DS_API size_t ds_engine_disk_bytes(const ds_engine *engine);
/* Seconds in which this rank's thread stood still for its disk, since the engine was created. */
DS_API double ds_engine_disk_wait(const ds_engine *engine);

/* ---- setters ---- */
/* Overrides the schedule from the next update on; negative gives it back to the schedule. Where the
 * backward pass updates (bf16.check_grad_overflow false, no clipping, no accumulation): ERR_STATE
 * between backward and step, which is too late. */
DS_API ds_status ds_engine_set_lr(ds_engine *engine, double lr);
/* Forces (1) or forbids (0) an accumulation boundary at the next step; -1: by counting. ERR_STATE
 * for 0 with gradient_accumulation_steps 1: such a run keeps no sum of gradients. */
DS_API ds_status ds_engine_set_accumulation_boundary(ds_engine *engine, int boundary);

/* ---- weights and states by name (copies) ---- */
/* kind PARAM gives the fp32 master where there is one. data: f32, count elements. Collective at
 * every stage: all ranks make the same calls in the same order, and set gives the same values; one
 * that does not is named by an ERR_PEER on every rank, and nothing is changed. engine_states.h has
 * more, and a rank's own part. Errors: ERR_NOT_FOUND, ERR_SHAPE, ERR_PEER, ERR_NOMEM. */
DS_API ds_status ds_engine_get(const ds_engine *engine, ds_cell_kind kind, const char *name,
                               float *data, size_t count);
DS_API ds_status ds_engine_set(ds_engine *engine, ds_cell_kind kind, const char *name,
                               const float *data, size_t count);
/* The cells, for iteration: ds_cells_count, ds_cells_get. Borrowed. */
DS_API const ds_cells *ds_engine_cells(const ds_engine *engine);

/* ---- files ---- */
/* Saves DIR/TAG and moves DIR/latest; tag NULL: "global_stepN". data_state: a JSON object of the
 * caller's (the data cursor), given back by load; NULL: none. A killed save leaves the previous
 * checkpoint whole. Rank 0 locks DIR until the engine saves elsewhere or is destroyed; another
 * process that saves there gets ERR_STATE, which names this one. */
DS_API ds_status ds_engine_save_checkpoint(ds_engine *engine, const char *dir, const char *tag,
                                           const char *data_state);
/* Loads TAG (NULL: the one named by DIR/latest) into an engine of the same model; training goes on
 * bit for bit. *data_state_out (may be NULL): text to free() with free(). */
DS_API ds_status ds_engine_load_checkpoint(ds_engine *engine, const char *dir, const char *tag,
                                           char **data_state_out);

/* With datastates_ckpt (or checkpoint.writer.decoupled) in the configuration, a save copies the
 * state into memory that ds_initialize reserved and returns; a thread writes while steps run, and
 * allocates nothing. One save at a time: a second one waits for the first. `latest` moves when all
 * ranks are whole. What goes wrong in the writing fails the next save or load, poll or wait, once,
 * with its reason; ds_engine_destroy waits, and logs it. In a program that began MPI itself
 * without MPI_THREAD_MULTIPLE ds_initialize fails with ERR_UNSUPPORTED. */
typedef struct ds_engine_save_info {
    bool behind;          /* saves are written behind training */
    size_t copy_bytes;    /* of this rank's memory for it */
    uint64_t n_saves;     /* made by this engine */
    double stall_seconds; /* that training stood still for the newest save */
    double write_seconds; /* … and that writing it took, once it has ended */
    DS_RESERVED(8);
} ds_engine_save_info;
DS_API ds_engine_save_info ds_engine_checkpoint_info(const ds_engine *engine);
/* DS_IN_PROGRESS while a save is being written; else DS_OK or its failure. Local. */
DS_API ds_status ds_engine_checkpoint_poll(ds_engine *engine);
/* Waits until the newest save is written. Collective: a failure is every rank's. */
DS_API ds_status ds_engine_checkpoint_wait(ds_engine *engine);

/* From now on, the end of a save (that of one behind training: the next call that learns of it)
 * removes older whole checkpoints until n are left, on every host that has a save folder of its
 * own; see ds_checkpoint_keep. 0: all stay, the default. What cannot be removed is a warning. */
DS_API void ds_engine_keep_checkpoints(ds_engine *engine, uint32_t n);
/* The checkpoint of this tag is not among those that saves remove, such as the best so far; it
 * counts among the n. It replaces the tag before; NULL: none. Copied. Errors: ERR_ARG (its length).
 */
DS_API ds_status ds_engine_keep_tag(ds_engine *engine, const char *tag);

/* Writes the adapter as a folder that PEFT loads: adapter_config.json, adapter_model.safetensors in
 * fp32. Collective. Errors: ERR_STATE (the engine trains none), ERR_IO, ERR_NOMEM. */
DS_API ds_status ds_engine_save_adapter(ds_engine *engine, const char *folder);

/* Writes a model folder that transformers loads: config.json, model.safetensors in the compute
 * dtype, and the tokenizer files found in tokenizer_dir (may be NULL). */
DS_API ds_status ds_engine_save_16bit_model(ds_engine *engine, const char *dir,
                                            const char *tokenizer_dir);

/* Bytes of the model states that this rank holds, beside ZeRO's formula. free() the text. */
DS_API ds_status ds_engine_print_memory(const ds_engine *engine, char **text_out);
/* ---- texts, each freed by the caller with free() ---- */
/* The training plan, a line a step; then the program that forward, backward and step run. */
DS_API ds_status ds_engine_print_plan(const ds_engine *engine, char **text_out);
DS_API ds_status ds_engine_print_precision(const ds_engine *engine, char **text_out);

#ifdef __cplusplus
}
#endif
#endif
