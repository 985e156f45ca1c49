/* SPDX-License-Identifier: Apache-2.0 */
/* ds_train's parts: options → setup → loop, with a reporter. Each in a file of its own. */
#ifndef DSI_TOOLS_TRAIN_H
#define DSI_TOOLS_TRAIN_H

#include "common/adapter_flags.h"
#include "common/args.h"
#include "common/best_step.h"
#include "common/preference_flags.h"
#include "common/sentence_folder.h"
#include "common/teacher_flags.h"
#include "data/data_files.h"
#include "io/folder_lock.h"
#include "monitor/run_history.h"
#include "place/mesh.h"

#include <stdio.h>

#include <deepspeed/data.h>
#include <deepspeed/engine.h>
#include <deepspeed/hub.h>
#include <deepspeed/preference_engine.h>

/* The command line, parsed. Texts are borrowed from argv. */
typedef struct train_options {
    const char *model, *model_config, *tokenizer, *deepspeed_config, *output, *resume, *metrics;
    const char
        *resume_from; /* NULL, or the folder of --resume FOLDER: resume_given is false then */
    const char *loss_average, *report, *best_metric, *accelerator;
    const char *model_revision, *tokenizer_revision;
    char *model_found, *tokenizer_found; /* folders of the Hugging Face cache; NULL: paths */
    const char *chat_template, *alpaca, *column_map, *data_cache, *too_long, *sample, *trace,
        *trace_steps;
    dsi_arg_list data, data_weights, eval_data, freeze;
    adapter_flags adapter;
    double *weights; /* [n_weights] of data_weights: one a word of data, or none */
    size_t n_weights;
    bool trial; /* of the autotuner: writes nothing of its own */
    bool decay_all;
    bool overwrite;
    bool restart_data;
    bool restarted; /* by the launcher, after a failure */
    uint32_t local_rank;
    bool resume_given, allow_unknown_keys, strict, print_plan, append_eos, packing;
    double eval_fraction, epochs;
    int64_t seq_length, steps, save_interval, eval_interval, keep_last, seed, threads;
    int64_t sample_length, max_skipped_steps, skip_bad, early_patience;
    double early_threshold;
    bool load_best, greater_is_better, greater_given, early_threshold_given;
    double mlm_probability;
    bool mlm_given;
    dsi_arg_list labels; /* names of classes */
    int64_t num_labels;
    const char *problem_type;   /* "auto", or transformers' */
    const char *pooling;        /* of embeddings: one of SENTENCE_POOLINGS */
    int64_t mini_batch;         /* of --objective embeddings: texts computed at a time; 0: all */
    bool gather_across_devices; /* likewise: compared with those of all data-parallel ranks */
    double scale;
    bool pooling_given, scale_given;
    int64_t negatives;
    bool usual_epochs;         /* neither --steps nor --epochs was given */
    ds_trainer_values trainer; /* of the flags that fill "auto", and none else */
    preference_flags preference;
    teacher_flags teacher;
    const char *truncation_mode; /* NULL: not given */
    bool fp16, bf16, fp16_given, bf16_given;
    char *text;           /* a line a flag, for the comparison of ranks */
    char *noticed, *kept; /* the same of flags that may change at a resume, and that may not */
    char *command;        /* the command line, quoted for a shell */
} train_options;

/* Parses and checks the flags. *help_out: --help was printed, nothing is to be done. The caller
 * frees the options in any case. */
ds_status train_options_parse(ds_ctx *ctx, int argc, char **argv, train_options *options_out,
                              bool *help_out);
/* The same flags for another tool, beside its own rows: nothing need be given, words are handed
 * back in *args_out, which the caller frees after a success. */
ds_status train_options_parse_with(ds_ctx *ctx, const dsi_args_spec *own, int argc, char **argv,
                                   train_options *options_out, dsi_args *args_out);
/* What flags lack (train_options_missing) or contradict (train_options_conflict): ERR_ARG. */
ds_status train_options_missing(ds_ctx *ctx, const train_options *options);
ds_status train_options_conflict(ds_ctx *ctx, const train_options *options);
/* Reads --data_weights: one for each word of --data. */
ds_status train_options_weights(ds_ctx *ctx, train_options *options);
/* What a restart by the launcher and a trial of the autotuner make of them. */
ds_status train_options_adjust(ds_ctx *ctx, train_options *options);
/* The folders of --model and --tokenizer that are names of the Hugging Face cache take their place.
 * needs: of ds_hub_find, for what the caller reads. */
ds_status train_options_find(ds_ctx *ctx, train_options *options, uint32_t needs);
void train_options_free(train_options *options);

typedef struct train_report train_report;
typedef struct train_history train_history;

/* Tokens of a row; and what the flags say of the configuration's "auto" (steps 0: not known). */
int64_t train_seq_length(const train_options *options, const ds_model *model);
ds_trainer_values train_trainer_values(const train_options *options, int64_t hidden_size,
                                       uint64_t steps);

/* Several with weights, else one. */
typedef struct train_datasets {
    ds_dataset **items;
    uint32_t n;
} train_datasets;

/* Everything that a run holds. Fields are NULL until setup made them. */
typedef struct train_run {
    ds_ctx *ctx;
    ds_comm *comm;    /* the ranks of the job; NULL: one */
    uint32_t n_ranks; /* of the job, or for which it is checked */
    dsi_mesh mesh;    /* of them, once the configuration is resolved */
    const train_options *options;
    ds_model *model;
    ds_adapter *adapter; /* that is trained; NULL: the model itself */
    ds_model *teacher;   /* NULL: none */
    ds_distillation distillation;
    ds_tokenizer *tokenizer;
    ds_chat *chat;
    uint64_t alpaca;          /* a ds_alpaca */
    ds_preference preference; /* loss NONE: texts and answers */
    ds_masking masking;       /* of --objective mlm; else its tokenizer is NULL */
    char **classes;           /* names, of the objectives with classes */
    uint32_t n_classes;
    ds_task_params task_params;
    sentence_form form;                  /* of embeddings */
    ds_dense dense[SENTENCE_MOST_DENSE]; /* its modules Dense */
    dsi_data_files data_files, eval_files;
    train_datasets train_data, eval_data;
    char *cache; /* folder of tokens; NULL: they stay in memory */
    ds_loader *train_loader, *eval_loader;
    ds_config *config;
    ds_engine *engine;
    int64_t seq_length;
    uint64_t total_steps;
    uint64_t trace_first, trace_last; /* optimizer steps to trace, counted from 1; 0: none */
    char *lost; /* why its first side output is not whole (trace, --metrics, monitors), from malloc;
                   NULL: they are. The run goes on, and ends with this as an error */
    best_step best;         /* of the evaluations so far */
    double best_tokens;     /* over which they were; 0: none yet */
    uint64_t best_saved;    /* newest step that was the best when it was saved; 0: none */
    bool stops_early;       /* the evaluations no longer improve */
    uint64_t ended;         /* step of the end, once the best weights are loaded; or 0 */
    uint64_t saving;        /* step of a save that was not reported yet; 0: none */
    dsi_folder_lock lock;   /* on the output folder; rank 0 */
    FILE *metrics;          /* --metrics; rank 0 */
    train_history *history; /* of this run; rank 0 */
    size_t memory_most;     /* bytes, see train_metrics.c */
    double memory_due;      /* seconds, monotonic */
    bool training;          /* the loop runs */
    bool stepping;          /* and in it a step */
    double started;         /* seconds, monotonic */
} train_run;

/* Opens model, tokenizer, data and configuration and builds the engine; resumes when asked. */
ds_status train_setup(ds_ctx *ctx, ds_comm *comm, const train_options *options, train_run *run);
/* The same as far as a job of n_ranks would be refused before it takes memory, without taking any.
 * Options without a model or data check what can be said without them. */
ds_status train_check(ds_ctx *ctx, uint32_t n_ranks, const train_options *options, train_run *run);
/* The configuration's part: loads the file, or makes the default; resolves it, once model and data
 * are open, and logs its notices. */
ds_status train_config_open(train_run *run);
ds_status train_config_resolve(train_run *run);
void train_teardown(train_run *run);
/* Before anything is read: all ranks have the same flags and variables of the environment, or
 * ERR_PEER names the first difference and its rank. Collective. */
ds_status train_same_call(const train_run *run);
/* The same of configuration and config.json, which are open, key by key, and of the files of
 * tokenizer and data, which are not. (The model folder is the engine's.) */
ds_status train_same_inputs(const train_run *run);

/* What a checkpoint has of the run beside the engine's: for the engine's data_state. The caller
 * frees it. */
ds_status train_state_print(const train_run *run, char **text_out);
/* Goes on from the checkpoint that --resume names; says which flags are otherwise now. */
ds_status train_resume(train_run *run);

/* Refuses a --output, --metrics or --trace that is an input, or lies in an input folder. */
ds_status train_paths_check(const train_run *run);
/* Names that an output folder is written with. */
bool train_path_is_written(const char *name);
/* The same for the files that the resolved configuration names as outputs. */
ds_status train_paths_check_config(const train_run *run);

/* ---- waiting: tools/common/train_wait.c ---- */

/* A rank that opens data, with the others. */
typedef struct train_wait {
    train_run *run;
    ds_dataset_stage stage;
    bool live, drawn;              /* a line on a terminal is drawn over */
    double started, ticked, shown; /* seconds: the stage, the last sum, the last line */
} train_wait;

void train_wait_begin(train_run *run, train_wait *wait);
/* The opening with these params shows its progress, and keeps in touch with the other ranks. */
void train_wait_use(train_wait *wait, ds_dataset_params *params);
/* This rank is done; returns when all are. Collective. */
ds_status train_wait_all(train_wait *wait);

/* ---- data: tools/common/train_data.c ---- */

/* Finds the files that --data and --eval_data stand for. Collective, before anything is read. */
ds_status train_data_find(train_run *run);
/* Whether any of them has rows, which may be chats. */
bool train_data_has_rows(const train_run *run);
ds_status train_data_open(train_run *run);
void train_data_close(train_datasets *set);
/* Rows of an epoch of the training data, on all ranks together. Errors: as ds_loader_create. */
ds_status train_data_rows(const train_run *run, uint64_t *rows_out);
/* Counts of all of them together. */
ds_dataset_info train_data_info(const train_datasets *set);
/* Tokenizer and chat template, for the data that was found. */
ds_status train_tokenizer_open(train_run *run);
/* The configuration's batch is known. */
ds_status train_data_loaders(train_run *run);

/* ---- classes: tools/common/train_classes.c ---- */

bool train_is_mlm(const train_options *options);
/* A ds_task. */
uint32_t train_task(const train_options *options);
/* Names the classes and has the model's config.json say them, for an objective with classes. */
ds_status train_classes_open(train_run *run);
void train_classes_free(train_run *run);
/* What the task of any run has besides: run->task_params and run->form. After the model. */
ds_status train_task_open(train_run *run);
/* Of embeddings, with the engine: what its checkpoints hold of how vectors are made. */
ds_status train_task_describe(train_run *run);
/* Modules Dense of embeddings (train_dense.c): what the engine is to have, by run->form; what they
 * begin as, with the engine; what they have become, in run->form. The latter two are collective. */
ds_status train_dense_open(train_run *run);
ds_status train_dense_begin(train_run *run);
ds_status train_dense_end(train_run *run);
/* A sentence_read_fn of run->form; user: the train_run. */
ds_status train_dense_read(void *user, uint32_t which, const char *name, float *data, size_t n);
/* ds_dataset_rows of the run's objective. */
uint64_t train_rows(const train_run *run);

/* ---- preferences: tools/common/train_preference.c ---- */

bool train_has_preference(const train_run *run);
/* A ds_dataset_rows: what the data must hold. */
/* Gives the data the log-probabilities of the reference. Before a checkpoint is loaded; collective.
 */
ds_status train_preference_reference(train_run *run);
/* Of one data set, from the data cache or into it (train_reference.c); collective. */
ds_status train_reference(train_run *run, ds_dataset *dataset, bool *cached_out);
/* Sums *tokens over the ranks, and what the newest batches said. Collective. */
ds_status train_preference_add(train_run *run, bool evaluated, double *tokens,
                               ds_preference_sums *out);
/* What is logged of it, accuracy and margin first; returns how many. */
enum { TRAIN_METRICS = 10 };
typedef struct train_metric {
    const char *name;
    double value;
} train_metric;
size_t train_preference_metrics(const train_run *run, const ds_preference_sums *sums,
                                train_metric out[TRAIN_METRICS]);
/* "  accuracies 0.812  margins 1.204"; "" for texts and answers. */
void train_preference_text(const train_run *run, const ds_preference_sums *sums, char *text,
                           size_t n);

/* ---- the output folder: tools/common/train_output.c; all are collective but saved and close ----
 */

/* Before anything is opened: refuses a folder that holds an earlier run, or that another process
 * writes; makes nothing. */
ds_status train_output_check(train_run *run);
/* Before the first step: makes the folder, locks it, and records what an earlier run left. */
ds_status train_output_open(train_run *run);
/* After a save: removes what an earlier run left. */
ds_status train_output_saved(const train_run *run);
/* Lets go of the folder; `ended`: the run came to its end. */
void train_output_close(train_run *run, bool ended);

/* Reads --trace_steps and starts the trace, when there is a --trace. */
ds_status train_trace_start(train_run *run);
/* Writes it when its steps are done, or at the `end` of the run. Collective. A run is worth more
 * than its trace: it goes on without, and ends with the failure in run->lost. */
void train_trace_save(train_run *run, train_report *report, bool end);

/* Runs to the end or to an interruption; saves. *interrupted_out: a signal ended it. */
ds_status train_loop(train_run *run, bool *interrupted_out);

/* Whether the newest step's gradients were finite, or what a dynamic loss scale answers. */
bool train_is_finite(const train_run *run);
/* ERR_NUMERIC when too many steps in a row had gradients that were not finite; at the `end` when no
 * step after first_step was better, or such a gradient spoiled the weights. */
ds_status train_check_finite(train_run *run, uint64_t first_step, bool end);

/* ---- the best step: tools/common/train_best.c ---- */

/* Whether any flag asks which evaluation is the best. */
bool train_best_is_asked(const train_options *options);
/* ERR_ARG: flags that contradict. */
ds_status train_best_conflict(ds_ctx *ctx, const train_options *options);
/* An evaluation over so many tokens; the same on all ranks. */
void train_best_feed(train_run *run, uint64_t step, double loss, double tokens);
/* Whether this step is to be saved because it is the best. */
bool train_best_needs_save(const train_run *run, uint64_t step);
/* Before a save of that step: the best checkpoint is not removed by it. */
ds_status train_best_saving(train_run *run, uint64_t step);
/* What a checkpoint has of it: a JSON object, NULL when out of memory or when nothing asks; and
 * what a resumed run takes of it (NULL: none was saved). */
json_t *train_best_state(const train_run *run);
ds_status train_best_resume(train_run *run, const json_t *saved);
/* ", the best so far", or how far off it is; "" when nothing asks. */
void train_best_text(const train_run *run, char *text, size_t n);
/* Why a run that stops early does; "" for others. */
void train_best_stop_text(const train_run *run, char *text, size_t n);
/* The engine gets the weights of the best step, for the model folder. Collective. Errors:
 * ERR_NUMERIC when no evaluation had one; those of the loading. */
ds_status train_best_load(train_run *run);
/* Optimizer steps of the run, whatever was loaded since. */
uint64_t train_steps_done(const train_run *run);

/* ---- reporting: only rank 0 speaks and writes ---- */

/* What happened in one optimizer step. */
typedef struct train_step {
    uint64_t step; /* 1 for the first */
    double loss, lr, grad_norm, loss_scale;
    uint64_t tokens; /* not padding */
    double seconds;
    double disk_wait; /* of them, those in which rank 0 stood still for its disk */
    bool applied;
    ds_preference_sums preference;
} train_step;

/* One evaluation, over so many tokens, or pairs or labelled answers. */
typedef struct train_evaluation {
    uint64_t step;
    double loss, count;
    ds_preference_sums preference;
} train_evaluation;

ds_status train_report_open(train_run *run, train_report **report_out);
/* From here on nothing fails: what cannot be written is noted in run->lost, and logged once. */
void train_report_step(train_report *report, const train_step *step);
void train_report_eval(train_report *report, const train_evaluation *evaluation);
/* The save of a step is written; the times are asked of the engine. */
void train_report_save(train_report *report, uint64_t step);
/* A line of text that must not be mixed up with the live line. */
void train_report_say(train_report *report, const char *format, ...) DS_PRINTF(2, 3);
/* How the loop ended, for the monitors; before the close. */
void train_report_ended(train_report *report, ds_status status, bool interrupted);
void train_report_close(train_report **report);

/* ---- lines of JSON: tools/common/train_metrics.c; to --metrics and to the history; rank 0 ---- */

/* Opens --metrics; a resumed run appends. */
ds_status train_metrics_open(train_run *run);
/* Of a file that cannot be written the failure is noted, as train_lost_note does.
 * mfu may be NAN: not known. */
void train_metrics_step(train_run *run, const train_step *step, double mfu, uint64_t peak_bytes);
void train_metrics_eval(train_run *run, const train_evaluation *evaluation);
void train_metrics_save(train_run *run, uint64_t step, double stall, double write);
/* At the end of a run that knows its best step. */
void train_metrics_best(train_run *run, uint64_t step);
void train_metrics_close(train_run *run);
/* A run is worth more than what is written of it: keeps the first such loss, for the run's end. */
void train_lost_note(train_run *run, const char *what);
/* Whether lines are written anywhere. */
bool train_metrics_are_kept(const train_run *run);

/* ---- the history of a run and its page: tools/common/train_history.c; rank 0 ---- */

/* Before anything is opened: what is in their places is ours or nothing. */
ds_status train_history_check(const train_run *run);
/* Before the first step: history up to where the run goes on, a line of what starts, a page. */
ds_status train_history_open(train_run *run);
/* A line of JSON without newline; rewrites the page when it is time, `soon` within a second. A run
 * is worth more than its history: what cannot be written is logged once, and reported at the end.
 */
void train_history_line(train_run *run, const char *line, bool soon);
/* What is known of the run so far, and the page's path, NULL: none. */
const dsi_run_history *train_history_seen(const train_run *run);
const char *train_history_page(const train_run *run);
/* The end of a run in words, with its curve of loss on a terminal: tools/common/train_summary.c. */
void train_summary_print(const train_run *run, FILE *out);
/* The verdict and the last page; error: why the run failed, NULL. Errors: of any line before. */
ds_status train_history_end(train_run *run, bool interrupted, const char *error);
/* The start's line: configuration, machine, model, data. From malloc; NULL when out of memory. */
char *train_history_start_text(const train_run *run);

/* A batch of the loader as the engine takes it; tensors has room for all. */
enum { TRAIN_MOST_INPUTS = 8 };
ds_batch train_batch_of(const train_run *run, const ds_loader_batch *batch,
                        ds_named_tensor *tensors);

#endif
