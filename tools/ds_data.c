/* SPDX-License-Identifier: Apache-2.0 */
/* ds_data: tokenizes text to indexed data, inspects such data, and checks rows of any schema. */
#include "base/clock.h"
#include "base/plain.h"
#include "common/args.h"
#include "common/data_check.h"
#include "common/hub_flag.h"
#include "common/output.h"
#include "data/data_files.h"
#include "data/dataset.h"
#include "data/indexed.h"
#include "data/rows/rows.h"
#include "data/source.h"

#include <deepspeed/context.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EXIT_USE = 2, EXIT_INTERRUPTED = 130 };

/* What a signal finds staged; a handler can reach nothing else. */
static const char *volatile staged[2];

typedef struct options {
    bool overwrite;
    const char *command, *tokenizer, *tokenizer_revision, *output, *chat_template, *alpaca,
        *column_map;
    dsi_arg_list words;
    char *tokenizer_found; /* folder of the Hugging Face cache; NULL: --tokenizer is a path */
    dsi_data_files files;  /* that the words of tokenize stand for */
    int64_t documents, threads, skip_bad;
    bool append_eos;
} options;

static const char about[] =
    "tokenize: reads .txt (a document a file) and rows with \"text\" (.jsonl, .json, .csv, .tsv, "
    ".parquet; a document a row; also .gz and .zst) and writes "
    "OUTPUT.bin and OUTPUT.idx, the indexed format of Megatron and DeepSpeed, on all cores. A "
    "folder stands for all such files in it and below, a quoted pattern for its matches. The "
    "outputs "
    "appear when all is done: Ctrl-C or an error leaves nothing of them.\n\n"
    "inspect: checks such files and prints their counts and first documents.\n\n"
    "check: reads files as ds_train does, rows of every schema (text, messages, ShareGPT, "
    "prompt-completion, Alpaca, preference pairs), and prints how many rows and tokens there are "
    "of "
    "each, and how many count in the loss.";

static const char after[] = "Examples:\n"
                            "  ds_data tokenize corpus.jsonl --tokenizer Qwen/Qwen2.5-0.5B \\\n"
                            "      --output corpus --append_eos\n"
                            "  ds_data inspect corpus.bin --tokenizer Qwen2.5-0.5B --documents 3\n"
                            "  ds_data check pairs.parquet \\\n"
                            "      --tokenizer Qwen2.5-0.5B --column_map prompt=question\n\n"
                            "Exit codes: 0 done, 1 failed, 2 wrong use, 130 interrupted.";

/* ---- tokenize ---- */

typedef struct job {
    ds_ctx *ctx;
    dsi_indexed_writer *writer;
    const char *path;
    uint64_t n_documents, n_tokens, n_bad;
    double started, drawn;
    bool live;
} job;

/* Whatever the threads are at, a pattern that takes long or a disk that does, the run ends here. */
static void end_by_signal(int number)
{
    static const char said[] = "\nds_data: interrupted: nothing is written; what stood under the "
                               "output's name is as it was\n";
    (void)number;
    for (size_t i = 0; i < 2; ++i) {
        const char *name = staged[i];
        if (name != NULL) {
            (void)unlink(name);
        }
    }
    const ssize_t wrote = write(STDERR_FILENO, said, sizeof said - 1);
    (void)wrote;
    _exit(EXIT_INTERRUPTED);
}

static const int ends[] = {SIGINT, SIGTERM, SIGHUP};

static void take_signals(const dsi_indexed_writer *writer)
{
    const char *names[2];
    dsi_indexed_staged(writer, names);
    staged[0] = names[0];
    staged[1] = names[1];
    struct sigaction action = {0};
    action.sa_handler = end_by_signal;
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; ++i) {
        struct sigaction old;
        if (sigaction(ends[i], NULL, &old) == 0 && old.sa_handler != SIG_IGN) { /* nohup */
            (void)sigaction(ends[i], &action, NULL);
        }
    }
}

/* From here on there is nothing long left to end. */
static void leave_signals(void)
{
    for (size_t i = 0; i < sizeof ends / sizeof ends[0]; ++i) {
        (void)signal(ends[i], SIG_IGN);
    }
    staged[0] = NULL;
    staged[1] = NULL;
}

/* Both files take their names together, or neither. */
static ds_status commit(dsi_indexed_writer **writer)
{
    DS_TRY(dsi_indexed_seal(*writer));
    leave_signals();
    return dsi_indexed_commit(writer);
}

static ds_status write_document(void *user, const dsi_document *document)
{
    job *j = user;
    j->n_documents += !document->joins;
    j->n_tokens += document->n;
    if (document->joins) {
        return dsi_indexed_extend(j->writer, document->ids, document->n);
    }
    return dsi_indexed_add(j->writer, document->ids, document->n);
}

static void draw(void *user, uint64_t done, uint64_t all)
{
    job *j = user;
    const double now = dsi_clock_seconds();
    char bar[31];
    char name[64];
    if (!j->live || (now - j->drawn < 0.1 && done < all)) {
        return;
    }
    const size_t filled = all > 0 ? (size_t)(30.0 * (double)done / (double)all) : 30;
    memset(bar, '#', filled);
    memset(bar + filled, '.', 30 - filled);
    bar[30] = '\0';
    (void)fprintf(stderr, "\r\033[K%.40s [%s] %.1f M tokens, %.2f M tokens/s%s",
                  dsi_plain_name(dsi_path_name(j->path), name, sizeof name), bar,
                  (double)j->n_tokens * 1e-6, (double)j->n_tokens * 1e-6 / (now - j->started),
                  done == all ? "\n" : "");
    j->drawn = now;
}

static ds_status read_all(ds_ctx *ctx, const options *o, const ds_tokenizer *tokenizer, job *j)
{
    const ds_dataset_params params = {.tokenizer = tokenizer,
                                      .append_eos = o->append_eos,
                                      .column_map = o->column_map,
                                      .skip_bad = (uint64_t)o->skip_bad};
    const dsi_source_sink sink = {.document = write_document,
                                  .progress = draw,
                                  .user = j,
                                  .n_bad = &j->n_bad,
                                  .no_samples =
                                      "a prompt or messages: indexed data has no place for what "
                                      "counts in the loss; train on the .jsonl itself"};
    for (size_t i = 0; i < o->files.n; ++i) {
        j->path = o->files.paths[i];
        DS_TRY(dsi_source_read(ctx, &params, j->path, &sink));
    }
    return DS_OK;
}

/* Also by way of links. */
static ds_status check_outputs(ds_ctx *ctx, const options *o)
{
    static const char *const ends_of[] = {".bin", ".idx"};
    ds_status status = DS_OK;
    for (size_t i = 0; i < 2 && status >= 0; ++i) {
        char *path = NULL;
        if (asprintf(&path, "%s%s", o->output, ends_of[i]) < 0) {
            return ds_fail(ctx, DS_ERR_NOMEM, "no memory to write %s", o->output);
        }
        status = hub_flag_spare(ctx, o->tokenizer_found, "output", path);
        status = status < 0
                     ? status
                     : output_not_input(ctx, path, (const char *const *)o->files.paths, o->files.n);
        status = status < 0 ? status : output_free(ctx, path, NULL, o->overwrite);
        free(path);
    }
    return status;
}

static ds_status tokenize(ds_ctx *ctx, options *o)
{
    ds_tokenizer *tokenizer = NULL;
    job j = {.ctx = ctx, .started = dsi_clock_seconds(), .live = isatty(STDERR_FILENO) != 0};
    if (o->words.n < 2 || o->tokenizer == NULL || o->output == NULL) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "tokenize needs files, --tokenizer and --output; see --help");
    }
    DS_TRY(dsi_data_files_list(ctx, o->words.items + 1, o->words.n - 1, &o->files));
    DS_TRY(check_outputs(ctx, o));
    DS_TRY(ds_tokenizer_open(ctx, o->tokenizer, &tokenizer));
    ds_status status =
        dsi_indexed_create(ctx, o->output, ds_tokenizer_vocab_size(tokenizer), &j.writer);
    if (status >= 0) {
        (void)signal(SIGXFSZ, SIG_IGN); /* a file that may not grow is an error of the write */
        take_signals(j.writer);
        status = read_all(ctx, o, tokenizer, &j);
    }
    if (status >= 0 && j.n_tokens == 0) {
        status =
            ds_fail(ctx, DS_ERR_FORMAT, "%s: no text in it: nothing is written", o->words.items[1]);
    }
    if (status >= 0) {
        status = commit(&j.writer);
    }
    leave_signals();
    dsi_indexed_abort(&j.writer);
    ds_tokenizer_close(&tokenizer);
    if (status < 0 && j.drawn > 0.0) {
        (void)fputc('\n', stderr); /* the bar's line stays */
    }
    if (status >= 0) {
        const double seconds = dsi_clock_seconds() - j.started;
        (void)printf("%s.bin, %s.idx: %llu documents, %llu tokens in %.2f s\n", o->output,
                     o->output, (unsigned long long)j.n_documents, (unsigned long long)j.n_tokens,
                     seconds);
        if (j.n_bad > 0) {
            (void)printf("%llu bad rows were left out\n", (unsigned long long)j.n_bad);
        }
    }
    return status;
}

/* ---- inspect ---- */

static ds_status print_document(ds_ctx *ctx, const ds_dataset *dataset, uint64_t d,
                                const ds_tokenizer *tokenizer)
{
    enum { SHOWN = 64 };
    uint32_t ids[SHOWN];
    const uint64_t begin = dsi_dataset_begin(dataset, d);
    const uint64_t n = dsi_dataset_begin(dataset, d + 1) - begin;
    const size_t shown = n < SHOWN ? (size_t)n : SHOWN;
    (void)printf("document %llu, %llu tokens:", (unsigned long long)d, (unsigned long long)n);
    for (size_t i = 0; i < shown; ++i) {
        ids[i] = (uint32_t)dsi_store_get(dataset->tokens, begin + i);
        if (tokenizer == NULL) {
            (void)printf(" %u", ids[i]);
        }
    }
    if (tokenizer != NULL) {
        char *text = NULL;
        size_t size = 0;
        DS_TRY(ds_tokenizer_decode(tokenizer, ids, shown, DS_DECODE_REPAIR, &text, &size));
        (void)printf("\n%.*s", (int)size, text);
        free(text);
    }
    (void)printf("%s\n", shown < n ? " …" : "");
    (void)ctx;
    return DS_OK;
}

/* path may also be the prefix that --output took. */
static ds_status indexed_path(ds_ctx *ctx, const char *path, char **idx_out)
{
    const bool whole = dsi_path_ends(path, ".bin") || dsi_path_ends(path, ".idx");
    if (dsi_path_ends(path, ".txt") || dsi_rows_knows(path)) {
        return ds_fail(ctx, DS_ERR_ARG, "%s: inspect reads indexed data: a .bin or .idx", path);
    }
    if (asprintf(idx_out, "%s%s", path, whole ? "" : ".idx") < 0) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to read %s", path);
    }
    return DS_OK;
}

static ds_status inspect_file(ds_ctx *ctx, const options *o, const char *path,
                              const ds_tokenizer *tokenizer)
{
    const ds_dataset_params params = {.files = &path, .n_files = 1};
    ds_dataset *dataset = NULL;
    ds_status status = DS_OK;
    DS_TRY(ds_dataset_open(ctx, &params, &dataset));
    uint64_t shortest = UINT64_MAX;
    uint64_t longest = 0;
    for (uint64_t d = 0; d < dataset->n_docs; ++d) {
        const uint64_t n = dsi_dataset_begin(dataset, d + 1) - dsi_dataset_begin(dataset, d);
        shortest = n < shortest ? n : shortest;
        longest = n > longest ? n : longest;
    }
    (void)printf("%s: %llu documents, %llu tokens of %u bytes; a document has %llu to %llu\n", path,
                 (unsigned long long)dataset->n_docs, (unsigned long long)dataset->info.n_tokens,
                 dataset->tokens->mapped_bytes, (unsigned long long)shortest,
                 (unsigned long long)longest);
    for (uint64_t d = 0; d < dataset->n_docs && d < (uint64_t)o->documents && status >= 0; ++d) {
        status = print_document(ctx, dataset, d, tokenizer);
    }
    ds_dataset_close(&dataset);
    return status;
}

static ds_status inspect(ds_ctx *ctx, const options *o)
{
    ds_tokenizer *tokenizer = NULL;
    ds_status status = DS_OK;
    if (o->words.n < 2) {
        return ds_fail(ctx, DS_ERR_ARG, "inspect needs a .bin or .idx file; see --help");
    }
    if (o->tokenizer != NULL) {
        DS_TRY(ds_tokenizer_open(ctx, o->tokenizer, &tokenizer));
    }
    for (size_t i = 1; i < o->words.n && status >= 0; ++i) {
        char *path = NULL;
        status = indexed_path(ctx, o->words.items[i], &path);
        if (status >= 0) {
            status = inspect_file(ctx, o, path, tokenizer);
        }
        free(path);
    }
    ds_tokenizer_close(&tokenizer);
    return status;
}

/* ---- the commands ---- */

static ds_status check(ds_ctx *ctx, options *o)
{
    if (o->words.n < 2 || o->tokenizer == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "check needs files and --tokenizer; see --help");
    }
    DS_TRY(dsi_data_files_list(ctx, o->words.items + 1, o->words.n - 1, &o->files));
    const data_check_options what = {.files = &o->files,
                                     .tokenizer = o->tokenizer,
                                     .chat_template = o->chat_template,
                                     .alpaca = o->alpaca,
                                     .column_map = o->column_map,
                                     .skip_bad = (uint64_t)o->skip_bad,
                                     .append_eos = o->append_eos};
    return data_check(ctx, &what);
}

static ds_status run(ds_ctx *ctx, options *o)
{
    const char *command = o->words.n > 0 ? o->words.items[0] : "";
    DS_TRY(hub_flag_find(ctx, "tokenizer", &o->tokenizer, o->tokenizer_revision, DS_HUB_TOKENIZER,
                         &o->tokenizer_found));
    if (strcmp(command, "tokenize") == 0) {
        return tokenize(ctx, o);
    }
    if (strcmp(command, "inspect") == 0) {
        return inspect(ctx, o);
    }
    if (strcmp(command, "check") == 0) {
        return check(ctx, o);
    }
    return ds_fail(ctx, DS_ERR_ARG, "expected the command tokenize, inspect or check, got \"%s\"",
                   command);
}

int main(int argc, char **argv)
{
    output_guard("ds_data");
    options o = {0};
    const dsi_arg rows[] = {
        {.name = "tokenizer",
         .type = DSI_ARG_TEXT,
         .out = &o.tokenizer,
         .value = "DIR|FILE|ORG/NAME|bytes",
         .doc = "Tokenizer: a model folder, tokenizer.json, vocab.json, the name of a model in the "
                "Hugging Face cache, or the word bytes."},
        {.name = "tokenizer_revision",
         .type = DSI_ARG_TEXT,
         .out = &o.tokenizer_revision,
         .value = "REV",
         .doc = "Of a --tokenizer by its name: branch, tag or commit; default: main."},
        {.name = "output",
         .type = DSI_ARG_TEXT,
         .out = &o.output,
         .value = "PREFIX",
         .doc = "Writes PREFIX.bin and PREFIX.idx."},
        {.name = "overwrite",
         .type = DSI_ARG_SWITCH,
         .out = &o.overwrite,
         .doc = "Replace them where they are there."},
        {.name = "chat_template",
         .type = DSI_ARG_TEXT,
         .out = &o.chat_template,
         .value = "NAME",
         .doc = "Chat template for messages that check reads, as ds_train's."},
        {.name = "column_map",
         .type = DSI_ARG_TEXT,
         .out = &o.column_map,
         .value = "FIELD=COLUMN,…",
         .doc = "Columns of the rows that stand for fields: text=content,messages=conv. Of two "
                "schemas that fit a row, the one with a mapped field is read."},
        {.name = "alpaca",
         .type = DSI_ARG_TEXT,
         .out = &o.alpaca,
         .value = "auto|template|stanford",
         .def = "auto",
         .choices = "auto|template|stanford",
         .doc = "check: what rows of instruction, input and output become: messages in the chat "
                "template, "
                "or Stanford's prompt (\"### Instruction:\"). auto: the template where there is "
                "one."},
        {.name = "skip_bad",
         .type = DSI_ARG_INT,
         .out = &o.skip_bad,
         .value = "N",
         .def = "0",
         .max = 1e15,
         .doc = "Leave out up to N rows that cannot be read, each with a warning; one more is an "
                "error."},
        {.name = "append_eos",
         .type = DSI_ARG_SWITCH,
         .out = &o.append_eos,
         .doc = "End each document with the end token."},
        {.name = "documents",
         .type = DSI_ARG_INT,
         .out = &o.documents,
         .value = "N",
         .def = "2",
         .max = 1e15,
         .doc = "Documents that inspect prints."},
        {.name = "threads",
         .type = DSI_ARG_INT,
         .out = &o.threads,
         .value = "N",
         .def = "0",
         .max = 4096,
         .doc = "Threads; default: the cores that this process may use."},
    };
    const dsi_args_spec spec = {.usage = "ds_data tokenize|inspect|check FILE… [FLAGS]",
                                .about = about,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0],
                                .after = after};
    ds_ctx *ctx = NULL;
    dsi_args args = {0};
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return EXIT_FAILURE;
    }
    ds_status status = dsi_args_parse(ctx, &spec, argc, argv, &args);
    o.words = args.words;
    if (status >= 0 && args.help) {
        dsi_args_help(&spec, stdout);
    } else if (status >= 0) {
        if (o.threads > 0) {
            ds_ctx_params params = ds_ctx_params_default();
            params.n_threads = (uint32_t)o.threads;
            ds_ctx_destroy(&ctx);
            if (ds_ctx_create(&params, &ctx) < 0) {
                return EXIT_FAILURE;
            }
        }
        status = run(ctx, &o);
    }
    if (status < 0) {
        (void)fprintf(stderr, "ds_data: %s\n", ds_ctx_error(ctx));
    }
    dsi_data_files_free(&o.files);
    free(o.tokenizer_found);
    dsi_args_free(&args);
    ds_ctx_destroy(&ctx);
    return status >= 0 ? EXIT_SUCCESS : status == DS_ERR_ARG ? EXIT_USE : EXIT_FAILURE;
}
