/* SPDX-License-Identifier: Apache-2.0 */
/* ds_train's flags. */
#include "common/train.h"
#include "common/trainer_flags.h"
#include "common/trainer_names.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { USUAL_EPOCHS = 3 /* the Trainer's num_train_epochs */ };

static const char about[] =
    "Trains a language model on this machine's processor, driven by a DeepSpeed configuration. The "
    "model is a Hugging Face folder, or the name of a model in the local Hugging Face cache "
    "(fine-tuning), or a config.json (random weights). OUTPUT "
    "becomes "
    "a folder that transformers loads, with DeepSpeed-style checkpoints beside it.";

static const char after[] =
    "Ctrl-C, SIGTERM or a closed terminal finishes the step, saves, and prints how to go on; a "
    "second "
    "Ctrl-C ends at once.\n\n"
    "Examples:\n"
    "  ds_train --model_config gpt.json --tokenizer bytes --data book.txt \\\n"
    "      --eval_fraction 0.1 --steps 1000 --deepspeed_config ds.json --output out\n"
    "  ds_train --model Qwen/Qwen2.5-0.5B --data chats.jsonl --epochs 3 \\\n"
    "      --learning_rate 2e-5 --deepspeed_config ds.json --output tuned\n"
    "  ds_train … --output out --resume            go on from the newest checkpoint\n\n"
    "Names of flags of Hugging Face's Trainer and of scripts made with it are taken where they "
    "mean\n"
    "the same (--model_name_or_path, --per_device_train_batch_size, --num_train_epochs,\n"
    "--max_steps, --output_dir, --save_steps, --max_seq_length …); of others the error says what\n"
    "is here in their place.\n\n"
    "Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted after saving.";

static bool is_same_on_ranks(const dsi_arg *row)
{
    return row->ranks == DSI_ARG_SAME;
}

static bool is_noticed(const dsi_arg *row)
{
    return row->resume == DSI_ARG_NOTICED;
}

/* What ranks have otherwise, paths of copies, is in no state of the run. */
static bool is_kept(const dsi_arg *row)
{
    return row->resume == DSI_ARG_SAME && row->ranks == DSI_ARG_SAME;
}

static ds_status print_flags(ds_ctx *ctx, const dsi_args_spec *spec, train_options *o)
{
    DS_TRY(dsi_args_print(ctx, spec, is_same_on_ranks, &o->text));
    DS_TRY(dsi_args_print(ctx, spec, is_noticed, &o->noticed));
    return dsi_args_print(ctx, spec, is_kept, &o->kept);
}

/* Who parses: ds_train itself, or a tool with rows of its own, which takes words. */
typedef struct parse {
    const dsi_args_spec *own; /* NULL: ds_train */
    bool *help_out;
    dsi_args *args_out;
} parse;

/* Before a restart by the launcher resumes what began with --overwrite. A --resume with a slash is
 * a folder to begin from: to --output it is a new run. */
static ds_status one_start(ds_ctx *ctx, train_options *o)
{
    if (o->resume_given && strchr(o->resume, '/') != NULL) {
        o->resume_from = o->resume;
        o->resume = NULL;
        o->resume_given = false;
    }
    return o->resume_given && o->overwrite
               ? ds_fail(ctx, DS_ERR_ARG, "--resume and --overwrite exclude each other")
               : DS_OK;
}

static ds_status finish(ds_ctx *ctx, const dsi_args_spec *spec, train_options *o)
{
    o->usual_epochs = o->steps == 0 && o->epochs <= 0.0;
    o->epochs = o->usual_epochs ? USUAL_EPOCHS : o->epochs;
    DS_TRY(train_options_conflict(ctx, o));
    DS_TRY(train_options_weights(ctx, o));
    return print_flags(ctx, spec, o);
}

/* The rows of ds_train, then those of the other tool. */
static ds_status parse_own(ds_ctx *ctx, const dsi_args_spec *ds_train, const parse *how, int argc,
                           char **argv, train_options *o)
{
    const dsi_args_spec *own = how->own;
    const size_t n = ds_train->n_rows + own->n_rows;
    dsi_arg *rows = calloc(n, sizeof *rows);
    if (rows == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for flags");
    }
    memcpy(rows, own->rows, own->n_rows * sizeof *rows);
    memcpy(rows + own->n_rows, ds_train->rows, ds_train->n_rows * sizeof *rows);
    dsi_args_spec all = *own;
    all.rows = rows;
    all.n_rows = n;
    all.others = ds_train->others;
    ds_status status = dsi_args_parse(ctx, &all, argc, argv, how->args_out);
    if (status >= 0 && how->args_out->help) {
        dsi_args_help(&all, stdout);
    } else if (status >= 0) {
        status = one_start(ctx, o);
        status = status < 0 ? status : finish(ctx, &all, o);
        if (status < 0) {
            dsi_args_free(how->args_out);
        }
    }
    free(rows);
    return status;
}

static ds_status parse_flags(ds_ctx *ctx, const dsi_args_spec *spec, const parse *how, int argc,
                             char **argv, train_options *o)
{
    if (how->own != NULL) {
        return parse_own(ctx, spec, how, argc, argv, o);
    }
    DS_TRY(dsi_args_parse_flags(ctx, spec, argc, argv, how->help_out));
    if (*how->help_out) {
        return DS_OK;
    }
    DS_TRY(one_start(ctx, o));
    DS_TRY(train_options_adjust(ctx, o));
    DS_TRY(train_options_missing(ctx, o));
    return finish(ctx, spec, o);
}

static ds_status parse_rows(ds_ctx *ctx, const parse *how, int argc, char **argv, train_options *o)
{
    memset(o, 0, sizeof *o);
    const dsi_arg rows[] = {
        {.type = DSI_ARG_HEADING, .doc = "Model and data"},
        {.name = "model",
         .type = DSI_ARG_TEXT,
         .out = &o->model,
         .value = "DIR|ORG/NAME",
         .doc = "Model folder: config.json, *.safetensors, tokenizer files; or the name of a model "
                "in the Hugging Face cache, where \"hf download\" put it.",
         .ranks = DSI_ARG_CONTENT,
         .resume = DSI_ARG_CONTENT},
        {.name = "model_revision",
         .type = DSI_ARG_TEXT,
         .out = &o->model_revision,
         .value = "REV",
         .doc = "Of a --model by its name: branch, tag or commit; default: main.",
         .ranks = DSI_ARG_CONTENT,
         .resume = DSI_ARG_CONTENT},
        {.name = "model_config",
         .type = DSI_ARG_TEXT,
         .out = &o->model_config,
         .value = "FILE",
         .doc = "A config.json: start from random weights.",
         .ranks = DSI_ARG_CONTENT,
         .resume = DSI_ARG_CONTENT},
        {.name = "tokenizer",
         .type = DSI_ARG_TEXT,
         .out = &o->tokenizer,
         .value = "DIR|FILE|ORG/NAME|bytes",
         .doc = "Tokenizer; default: that of --model. \"bytes\" is one id a byte.",
         .ranks = DSI_ARG_CONTENT,
         .resume = DSI_ARG_CONTENT},
        {.name = "tokenizer_revision",
         .type = DSI_ARG_TEXT,
         .out = &o->tokenizer_revision,
         .value = "REV",
         .doc = "The same of --tokenizer.",
         .ranks = DSI_ARG_CONTENT,
         .resume = DSI_ARG_CONTENT},
        {.name = "data",
         .type = DSI_ARG_LIST,
         .out = &o->data,
         .value = "PATH…",
         .doc =
             "Training data: .txt; rows (text; messages or conversations; prompt and completion; "
             "instruction, input and output; with --objective chosen and rejected, or prompt, "
             "completion and label) in .jsonl, .json, .csv, .tsv, each also .gz or .zst, "
             "or .parquet; .bin/.idx. A folder stands for all such files in it and below, a "
             "pattern (quoted, 'part-*.jsonl') for what it matches.",
         .ranks = DSI_ARG_CONTENT,
         .resume = DSI_ARG_CONTENT},
        {.name = "data_weights",
         .type = DSI_ARG_LIST,
         .out = &o->data_weights,
         .value = "W…",
         .doc = "A number above 0 for each PATH of --data: samples (of plain text: rows) are drawn "
                "from it in this proportion, whatever it holds; it begins again when it is used "
                "up. An epoch has as many draws as all of them hold. Without: one PATH after "
                "another, each once an epoch, in one shuffled order."},
        {.name = "data_cache",
         .type = DSI_ARG_TEXT,
         .out = &o->data_cache,
         .value = "DIR|none",
         .doc = "Folder that keeps the tokens of data, for later runs and for data larger than "
                "memory; with the flag all data, without it what is 256 MiB or more (compressed "
                "files and .parquet counted eightfold), in deepspeed_native of $XDG_CACHE_HOME or "
                "~/.cache. \"none\": all tokens stay in memory."},
        {.name = "eval_data",
         .type = DSI_ARG_LIST,
         .out = &o->eval_data,
         .value = "PATH…",
         .doc = "Held-out data.",
         .ranks = DSI_ARG_CONTENT,
         .resume = DSI_ARG_FREE},
        {.name = "eval_fraction",
         .type = DSI_ARG_REAL,
         .out = &o->eval_fraction,
         .value = "F",
         .def = "0",
         .max = 0.9,
         .doc = "Hold out the last part of --data instead."},
        {.name = "seq_length",
         .type = DSI_ARG_INT,
         .out = &o->seq_length,
         .value = "T",
         .def = "0",
         .max = 1 << 24,
         .doc = "Tokens a row; default: the model's positions, at most 1024."},
        {.name = "chat_template",
         .type = DSI_ARG_TEXT,
         .out = &o->chat_template,
         .value = "NAME",
         .doc = "Chat template for messages: chatml, llama2, llama3, llama3.1, llama3.2, "
                "mistral-v0.1, -v0.2, -v1, -v3 or -tekken, qwen2, qwen2.5, qwen3 or qwen3-2507; "
                "default: the tokenizer's own, of which one can be named, too."},
        {.name = "column_map",
         .type = DSI_ARG_TEXT,
         .out = &o->column_map,
         .value = "FIELD=COLUMN,…",
         .doc = "Columns of the rows that stand for fields: text=content,messages=conv. Of two "
                "schemas that fit a row, the one with a mapped field is read."},
        {.name = "alpaca",
         .type = DSI_ARG_TEXT,
         .out = &o->alpaca,
         .value = "auto|template|stanford",
         .def = "auto",
         .choices = "auto|template|stanford",
         .doc = "What rows of instruction, input and output become: messages in the chat template, "
                "or Stanford's prompt (\"### Instruction:\"). auto: the template where there is "
                "one.",
         .resume = DSI_ARG_CONTENT},
        {.name = "skip_bad",
         .type = DSI_ARG_INT,
         .out = &o->skip_bad,
         .value = "N",
         .def = "0",
         .max = 1e15,
         .doc = "Leave out up to N rows that cannot be read, each with a warning; one more is an "
                "error."},
        {.name = "too_long",
         .type = DSI_ARG_TEXT,
         .out = &o->too_long,
         .value = "truncate|drop",
         .def = "truncate",
         .choices = "truncate|drop",
         .doc = "What happens to samples longer than a row."},
        {.name = "packing",
         .type = DSI_ARG_SWITCH,
         .out = &o->packing,
         .def = "true",
         .doc = "Samples are packed into full rows, where each sees itself alone; false: a row "
                "for each, as the Trainer without packing, with fewer targets in a step and more "
                "steps an epoch.",
         .resume = DSI_ARG_CONTENT},
        {.name = "append_eos",
         .type = DSI_ARG_SWITCH,
         .out = &o->append_eos,
         .doc = "End each text document with the end token."},
        {.name = "mlm_probability",
         .type = DSI_ARG_REAL,
         .out = &o->mlm_probability,
         .given_out = &o->mlm_given,
         .value = "X",
         .def = "0.15",
         .min = 1e-6,
         .max = 0.999999,
         .doc = "Of --objective mlm: the share of tokens that is to be found again. Of these 80% "
                "are masked, 10% become another word, 10% stay.",
         .resume = DSI_ARG_CONTENT},
        {.name = "labels",
         .type = DSI_ARG_LIST,
         .out = &o->labels,
         .value = "NAME…",
         .doc = "Of classification: the names of the classes, in the order of their numbers; "
                "default: those of id2label in config.json. Rows are {\"text\", \"label\"}, or "
                "{\"tokens\", \"tags\"} of words; a class is a number or a name.",
         .resume = DSI_ARG_CONTENT},
        {.name = "num_labels",
         .type = DSI_ARG_INT,
         .out = &o->num_labels,
         .value = "N",
         .def = "0",
         .max = 255,
         .doc = "Instead of --labels: how many classes there are, or numbers.",
         .resume = DSI_ARG_CONTENT},
        {.name = "problem_type",
         .type = DSI_ARG_TEXT,
         .out = &o->problem_type,
         .value = "NAME",
         .def = "auto",
         .choices = "auto|single_label_classification|regression|multi_label_classification",
         .doc =
             "Of --objective classes, by transformers' name: \"label\" is one class; numbers; or "
             "of each class whether it holds, as 0 and 1 or the names of those that hold. auto: "
             "as config.json says, else regression where there is one label, else classes. Texts "
             "may be pairs: \"text\" and \"text_pair\", \"sentence1\" and \"sentence2\", "
             "\"premise\" and \"hypothesis\", or --column_map.",
         .resume = DSI_ARG_CONTENT},
        {.name = "pooling",
         .type = DSI_ARG_TEXT,
         .out = &o->pooling,
         .given_out = &o->pooling_given,
         .value = "NAME",
         .def = "auto",
         .choices = SENTENCE_POOLINGS,
         .doc = "Of --objective embeddings. " SENTENCE_POOLING_DOC,
         .resume = DSI_ARG_CONTENT},
        {.name = "scale",
         .type = DSI_ARG_REAL,
         .out = &o->scale,
         .given_out = &o->scale_given,
         .value = "X",
         .def = "20",
         .min = 1e-6,
         .max = 1e6,
         .doc = "Of --objective embeddings: factor of cosines, 1 by the temperature.",
         .resume = DSI_ARG_CONTENT},
        {.name = "gather_across_devices",
         .type = DSI_ARG_SWITCH,
         .out = &o->gather_across_devices,
         .doc = "Of --objective embeddings: a text is compared with those of all data-parallel "
                "ranks, not of its own micro-batch alone.",
         .resume = DSI_ARG_CONTENT},
        {.name = "negatives",
         .type = DSI_ARG_INT,
         .out = &o->negatives,
         .value = "N",
         .def = "0",
         .max = 64,
         .doc =
             "Of --objective embeddings: further negatives of each row, \"negative\", or of more "
             "\"negative_1\" to \"negative_N\".",
         .resume = DSI_ARG_CONTENT},
        {.name = "mini_batch",
         .type = DSI_ARG_INT,
         .out = &o->mini_batch,
         .value = "N",
         .def = "0",
         .max = INT32_MAX,
         .doc = "Of --objective embeddings: texts that are computed at a time, forward and, once "
                "more, backward. Memory is that of N texts, the loss that of all of a micro-batch, "
                "as in sentence-transformers' CachedMultipleNegativesRankingLoss. 0: all at once."},
        {.type = DSI_ARG_HEADING, .doc = "Preferences"},
        PREFERENCE_FLAGS(o->preference),
        TEACHER_FLAGS(o->teacher),
        {.name = "truncation_mode",
         .type = DSI_ARG_TEXT,
         .out = &o->truncation_mode,
         .value = "keep_start|keep_end",
         .choices = "keep_start|keep_end",
         .doc = "What stays of preferences longer than a row; default: keep_start, and a row whose "
                "prompt alone fills it is left out. A pair that is too long for reward is left "
                "out."},
        {.type = DSI_ARG_HEADING, .doc = "Run"},
        {.name = "deepspeed_config",
         .type = DSI_ARG_TEXT,
         .out = &o->deepspeed_config,
         .value = "FILE",
         .doc = "DeepSpeed configuration, JSON or HJSON; without one ds_train chooses, and says "
                "what.",
         .ranks = DSI_ARG_CONTENT,
         .resume = DSI_ARG_CONTENT},
        {.name = "steps",
         .type = DSI_ARG_INT,
         .out = &o->steps,
         .value = "N",
         .def = "0",
         .max = 1e15,
         .doc = "Optimizer steps to take.",
         .resume = DSI_ARG_NOTICED},
        {.name = "epochs",
         .type = DSI_ARG_REAL,
         .out = &o->epochs,
         .value = "X",
         .def = "0",
         .max = 1e6,
         .doc = "Passes over the data, instead of --steps; 3 without both.",
         .resume = DSI_ARG_NOTICED},
        {.name = "seed",
         .type = DSI_ARG_INT,
         .out = &o->seed,
         .value = "N",
         .def = "42",
         .max = 4294967295.0,
         .doc = "Of initialisation, shuffling and dropout."},
        {.name = "loss_average",
         .type = DSI_ARG_TEXT,
         .out = &o->loss_average,
         .value = "OVER",
         .def = "micro_batches",
         .choices = "micro_batches|targets",
         .doc = "What the loss of a step is the mean of: the means of its micro-batches, as "
                "DeepSpeed, or all its counted tokens, of all micro-batches and ranks, as newer "
                "versions of Hugging Face's Trainer."},
        {.name = "decay_all",
         .type = DSI_ARG_SWITCH,
         .out = &o->decay_all,
         .doc =
             "Weight decay on norms and biases too, as DeepSpeed; else on all other parameters."},
        {.name = "max_skipped_steps",
         .type = DSI_ARG_INT,
         .out = &o->max_skipped_steps,
         .value = "N",
         .def = "10",
         .max = 1e15,
         .doc =
             "Steps in a row with gradients that are not finite that end the run in an error; 0: "
             "only at its end. Overflows that a dynamic loss scale answers do not count.",
         .resume = DSI_ARG_FREE},
        {.name = "freeze",
         .type = DSI_ARG_LIST,
         .out = &o->freeze,
         .value = "PATTERN…",
         .doc = "Parameters that are not trained, as glob patterns of their names."},
        ADAPTER_ROWS(&o->adapter),
        {.name = "accelerator",
         .type = DSI_ARG_TEXT,
         .out = &o->accelerator,
         .value = "NAME",
         .def = "auto",
         .doc = "What computes: cpu, cuda (an NVIDIA GPU for each rank; cuda:device=1), null "
                "(computes nothing, counts alone), sim (finds errors of order; slow), with options "
                "behind a colon, sim:seed=7,turn=64; with "
                "sim:copy_gbps=16,kernel_us=5 it says how long transfers and kernels would take; "
                "auto is the best that there is.",
         .resume = DSI_ARG_FREE},
        {.name = "threads",
         .type = DSI_ARG_INT,
         .out = &o->threads,
         .value = "N",
         .def = "0",
         .max = 4096,
         .doc = "Threads; default: the cores that this process may use.",
         .resume = DSI_ARG_FREE},
        {.name = "allow_unknown_keys",
         .type = DSI_ARG_SWITCH,
         .out = &o->allow_unknown_keys,
         .doc = "Unknown keys of the configuration are warnings, in sections too.",
         .resume = DSI_ARG_FREE},
        {.name = "strict",
         .type = DSI_ARG_SWITCH,
         .out = &o->strict,
         .doc = "Every unknown key of the configuration is an error; else one at the top level, "
                "which DeepSpeed does "
                "not read, is a notice unless it is near a known key.",
         .resume = DSI_ARG_FREE},
        {.name = "print_plan",
         .type = DSI_ARG_SWITCH,
         .out = &o->print_plan,
         .doc = "Print every step of the plan before the run.",
         .ranks = DSI_ARG_FREE,
         .resume = DSI_ARG_FREE},
        {.type = DSI_ARG_HEADING, .doc = "Output"},
        {.name = "output",
         .type = DSI_ARG_TEXT,
         .out = &o->output,
         .value = "DIR",
         .doc = "Model folder and checkpoints; default: nothing is saved.",
         .resume = DSI_ARG_FREE},
        {.name = "save_interval",
         .type = DSI_ARG_INT,
         .out = &o->save_interval,
         .value = "N",
         .def = "0",
         .max = 1e15,
         .doc = "Steps between checkpoints; 0: only at the end.",
         .resume = DSI_ARG_NOTICED},
        {.name = "keep_last",
         .type = DSI_ARG_INT,
         .out = &o->keep_last,
         .value = "N",
         .def = "0",
         .max = 1e9,
         .doc = "Keep only the newest N checkpoints; 0: all. The best one (see below) is one of "
                "them, whatever its age.",
         .resume = DSI_ARG_FREE},
        {.name = "load_best_model_at_end",
         .type = DSI_ARG_SWITCH,
         .out = &o->load_best,
         .doc = "The model folder gets the weights of the best evaluation, not of the last step. "
                "Every new best is saved, whatever --save_interval says, and --keep_last never "
                "removes it. Needs --eval_interval and --output.",
         .resume = DSI_ARG_NOTICED},
        {.name = "metric_for_best_model",
         .type = DSI_ARG_TEXT,
         .out = &o->best_metric,
         .value = "NAME",
         .doc = "What makes an evaluation the best: loss or eval_loss, which are the same; the "
                "default of the other flags.",
         .resume = DSI_ARG_FREE},
        {.name = "greater_is_better",
         .type = DSI_ARG_SWITCH,
         .out = &o->greater_is_better,
         .given_out = &o->greater_given,
         .doc = "A greater value is better; false without it.",
         .resume = DSI_ARG_NOTICED},
        {.name = "early_stopping_patience",
         .type = DSI_ARG_INT,
         .out = &o->early_patience,
         .value = "N",
         .def = "0",
         .max = 1e15,
         .doc = "End the run after N evaluations in a row that improved nothing; 0: it goes on. "
                "Checkpoints hold the count, so that a resumed run goes on with it. Needs "
                "--eval_interval.",
         .resume = DSI_ARG_NOTICED},
        {.name = "early_stopping_threshold",
         .type = DSI_ARG_REAL,
         .out = &o->early_threshold,
         .value = "X",
         .def = "0",
         .max = 1e15,
         .given_out = &o->early_threshold_given,
         .doc = "An improvement by X or less counts as none for that.",
         .resume = DSI_ARG_NOTICED},
        {.name = "resume",
         .type = DSI_ARG_TEXT,
         .out = &o->resume,
         .value = "[TAG|FOLDER]",
         .alone = "",
         .given_out = &o->resume_given,
         .doc =
             "Go on from a checkpoint of --output; default tag: the newest. With a slash in it "
             "(./old) it is another save folder, or that of one checkpoint, also of DeepSpeed for "
             "Python (ZeRO 1 to 3): weights, optimizer, loss scale and counters are taken, and "
             "--output is a new run's. A job that deepspeed "
             "--restarts started again (DS_RESTART_COUNT above 0) does so by itself when it has "
             "saved "
             "one.",
         .resume = DSI_ARG_FREE},
        {.name = "restart_data",
         .type = DSI_ARG_SWITCH,
         .out = &o->restart_data,
         .doc = "With --resume: keep model, optimizer and step, and begin the data anew, which may "
                "be other data, weights, seed or row length; else these must be as they were. A "
                "job that the launcher starts again goes on within the data where it can.",
         .resume = DSI_ARG_FREE},
        {.name = "overwrite",
         .type = DSI_ARG_SWITCH,
         .out = &o->overwrite,
         .doc =
             "Begin anew in an --output that holds an earlier run, which is else refused. Once "
             "the new run has saved its first checkpoint, all checkpoints that were there are "
             "removed; its model folder replaces the files of the old one at the end. A run that "
             "ends before its first save removes nothing. Other files stay. Files of --metrics, "
             "--trace and --report that are there are replaced, too.",
         .resume = DSI_ARG_FREE},
        {.name = "eval_interval",
         .type = DSI_ARG_INT,
         .out = &o->eval_interval,
         .value = "N",
         .def = "0",
         .max = 1e15,
         .doc = "Steps between evaluations; 0: only at the end.",
         .resume = DSI_ARG_NOTICED},
        {.name = "metrics",
         .type = DSI_ARG_TEXT,
         .out = &o->metrics,
         .value = "FILE.jsonl",
         .doc =
             "One JSON object a step: step, loss, lr, grad_norm, loss_scale, tokens_per_s, mfu (of "
             "what a product of 768 x 768 x 768 reaches here), peak_bytes.",
         .ranks = DSI_ARG_FREE,
         .resume = DSI_ARG_FREE},
        {.name = "report",
         .type = DSI_ARG_TEXT,
         .out = &o->report,
         .value = "FILE.html",
         .doc = "Page of the run: curves, memory against its plan, saves, configuration, machine. "
                "It is written anew while the run goes on, and loads itself anew in a browser, "
                "until nothing was written for ten minutes or ten times the longest step: then it "
                "says that the run was killed. "
                "Default: report.html in --output; \"none\": no page.",
         .ranks = DSI_ARG_FREE,
         .resume = DSI_ARG_FREE},
        {.name = "trace",
         .type = DSI_ARG_TEXT,
         .out = &o->trace,
         .value = "FILE",
         .doc = "Write the timeline of some steps on every rank, for Perfetto or Chrome's tracing "
                "page; ds_plan diff lays it over the plan's.",
         .resume = DSI_ARG_FREE},
        {.name = "trace_steps",
         .type = DSI_ARG_TEXT,
         .out = &o->trace_steps,
         .value = "A:B",
         .doc = "Optimizer steps of that timeline, A alone for one; default: the second and third "
                "of this run.",
         .resume = DSI_ARG_FREE},
        {.name = "sample",
         .type = DSI_ARG_TEXT,
         .out = &o->sample,
         .value = "TEXT",
         .doc = "Generate from the trained model at the end, starting with TEXT.",
         .resume = DSI_ARG_FREE},
        {.name = "sample_length",
         .type = DSI_ARG_INT,
         .out = &o->sample_length,
         .value = "N",
         .def = "300",
         .min = 1,
         .max = 1e6,
         .doc = "Tokens of that sample.",
         .resume = DSI_ARG_FREE},
        {.type = DSI_ARG_HEADING,
         .doc = "Values of the configuration: what \"auto\" or an absent key stands for, as for "
                "Hugging Face's Trainer. A number in the file must be the same; a flag that no key "
                "of the file's sections can take is an error"},
        TRAINER_BATCH_FLAGS(o->trainer),
        TRAINER_OPTIMIZER_FLAGS(o->trainer),
        {.name = "fp16",
         .type = DSI_ARG_SWITCH,
         .out = &o->fp16,
         .given_out = &o->fp16_given,
         .doc = "fp16.enabled, also where the file leaves it out; false without it."},
        {.name = "bf16",
         .type = DSI_ARG_SWITCH,
         .out = &o->bf16,
         .given_out = &o->bf16_given,
         .doc = "bf16.enabled, also where the file leaves it out; false without it."},
    };
    const dsi_args_spec spec = {.usage = "ds_train [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .others = trainer_names,
                                .after = after};
    o->command = dsi_args_command(argc, argv);
    if (o->command == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the command line");
    }
    return parse_flags(ctx, &spec, how, argc, argv, o);
}

ds_status train_options_parse(ds_ctx *ctx, int argc, char **argv, train_options *o, bool *help_out)
{
    const parse how = {.help_out = help_out};
    return parse_rows(ctx, &how, argc, argv, o);
}

ds_status train_options_parse_with(ds_ctx *ctx, const dsi_args_spec *own, int argc, char **argv,
                                   train_options *o, dsi_args *args_out)
{
    const parse how = {.own = own, .args_out = args_out};
    return parse_rows(ctx, &how, argc, argv, o);
}

void train_options_free(train_options *options)
{
    dsi_arg_list_free(&options->data);
    dsi_arg_list_free(&options->data_weights);
    dsi_arg_list_free(&options->eval_data);
    free(options->weights);
    free(options->model_found);
    free(options->teacher.found);
    free(options->tokenizer_found);
    dsi_arg_list_free(&options->freeze);
    dsi_arg_list_free(&options->labels);
    adapter_flags_free(&options->adapter);
    free(options->text);
    free(options->noticed);
    free(options->kept);
    free(options->command);
}
