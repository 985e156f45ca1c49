/* SPDX-License-Identifier: Apache-2.0 */
/* ds_encode: what an encoder makes of texts, as lines of JSON: a vector, the classes of the text,
 * or those of its tokens. A main over include/deepspeed/encoder.h. */
#include "common/args.h"
#include "common/environment.h"
#include "common/output.h"
#include "common/sentence_folder.h"
#include "data/schema/schema.h"
#include "model/adapter_problem.h"

#include <deepspeed/adapter.h>
#include <deepspeed/encoder.h>
#include <deepspeed/tokenizer.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { EXIT_USE = 2, PATH_BYTES = 4096, MOST_CLASSES = 255 };

typedef struct options {
    const char *model, *adapter, *file, *pooling, *task, *dtype, *accelerator;
    int64_t max_length, threads;
    bool normalize;
} options;

/* What all texts are read with. */
typedef struct session {
    ds_ctx *ctx;
    const options *o;
    ds_model *model;
    ds_tokenizer *tokenizer;
    ds_tokenizer_scratch *scratch;
    ds_adapter *adapter; /* NULL: none */
    ds_encoder *encoder;
    json_t *config; /* config.json */
    uint32_t task, n_classes;
    uint32_t problem; /* a ds_problem, of classes of texts */
    sentence_form form;
    uint32_t *ids; /* [max_length] */
} session;

static const char about[] =
    "Reads texts with an encoder (BERT, RoBERTa, ModernBERT, that of T5) and prints a line of JSON "
    "for each: a vector of it, "
    "the probabilities of its classes, its numbers, or the class of each token. What a folder was "
    "trained for "
    "is "
    "said by \"architectures\" in its config.json; --task embedding takes any.";

static const char after[] =
    "Examples:\n"
    "  ds_encode --model tuned \"A fine film.\" \"A waste of time.\"\n"
    "  ds_encode --model bert --task embedding --normalize --file texts.txt\n\n"
    "Exit codes: 0 done, 1 failed, 2 wrong use.";

/* ---- opening ---- */

static uint32_t task_of(const session *s)
{
    const json_t *list = json_object_get(s->config, "architectures");
    const char *name = json_string_value(json_array_get(list, 0));
    const char *task = s->o->task;
    if (strcmp(task, "auto") != 0 || name == NULL) {
        return strcmp(task, "classes") == 0         ? DS_TASK_SEQUENCE_CLASSES
               : strcmp(task, "token_classes") == 0 ? DS_TASK_TOKEN_CLASSES
                                                    : DS_TASK_HIDDEN;
    }
    return strstr(name, "ForSequenceClassification") != NULL ? DS_TASK_SEQUENCE_CLASSES
           : strstr(name, "ForTokenClassification") != NULL  ? DS_TASK_TOKEN_CLASSES
                                                             : DS_TASK_HIDDEN;
}

/* transformers' number where config.json does not say another. */
static uint32_t count_classes(const json_t *config)
{
    const size_t n = json_object_size(json_object_get(config, "id2label"));
    const json_int_t said = json_integer_value(json_object_get(config, "num_labels"));
    return n > 0 ? (uint32_t)n : said > 0 && said <= MOST_CLASSES ? (uint32_t)said : 2;
}

/* As transformers takes it. */
static uint32_t problem_of(const session *s)
{
    const char *name = json_string_value(json_object_get(s->config, "problem_type"));
    if (s->task != DS_TASK_SEQUENCE_CLASSES) {
        return DS_PROBLEM_CLASSES;
    }
    return name == NULL                                      ? s->n_classes == 1
           : strcmp(name, "regression") == 0                 ? DS_PROBLEM_REGRESSION
           : strcmp(name, "multi_label_classification") == 0 ? DS_PROBLEM_MULTI_LABEL
                                                             : DS_PROBLEM_CLASSES;
}

/* Its classes, whatever head config.json says the model has. */
static ds_status open_adapter(session *s)
{
    uint32_t task = 0;
    uint32_t n_classes = 0;
    DS_TRY(ds_adapter_open(s->ctx, s->o->adapter, &s->adapter));
    DS_TRY(ds_adapter_task(s->adapter, &task, &n_classes));
    if (task != DS_TASK_TOKENS && strcmp(s->o->task, "auto") == 0) {
        s->task = task;
        s->n_classes = n_classes;
    }
    return task == DS_TASK_SEQUENCE_CLASSES
               ? dsi_adapter_problem_read(s->ctx, s->o->adapter, s->config)
               : DS_OK;
}

static ds_status open_session(session *s)
{
    const options *o = s->o;
    char path[PATH_BYTES];
    json_error_t error;
    (void)snprintf(path, sizeof path, "%s/config.json", o->model);
    DS_TRY(ds_model_from_config(s->ctx, path, &s->model));
    if (!ds_model_get_info(s->model)->encoder) {
        return ds_fail(s->ctx, DS_ERR_ARG, "%s: %s is no encoder; ds_generate runs it", o->model,
                       ds_model_get_info(s->model)->architecture);
    }
    if (o->max_length == 0 && ds_model_get_info(s->model)->max_positions == 0) {
        return ds_fail(s->ctx, DS_ERR_ARG, "%s: %s has no most positions: give --max_length",
                       o->model, ds_model_get_info(s->model)->architecture);
    }
    s->config = json_loads(ds_model_config_text(s->model), 0, &error);
    s->task = task_of(s);
    s->n_classes = s->task == DS_TASK_HIDDEN ? 0 : count_classes(s->config);
    DS_TRY(o->adapter != NULL ? open_adapter(s) : DS_OK);
    s->problem = problem_of(s);
    s->form.pool = DS_POOL_MEAN;
    if (s->task == DS_TASK_HIDDEN) {
        DS_TRY(sentence_folder(s->ctx, o->model, o->pooling, &s->form));
        DS_TRY(sentence_form_check(s->ctx, &s->form, ds_model_get_info(s->model)->hidden_size));
    }
    s->form.normalize = s->form.normalize || o->normalize;
    DS_TRY(ds_tokenizer_open(s->ctx, o->model, &s->tokenizer));
    DS_TRY(ds_tokenizer_scratch_create(s->tokenizer, 0, &s->scratch));
    const ds_encoder_params params = {
        .model = s->model,
        .weights = o->model,
        .dtype = ds_dtype_from_name(o->dtype),
        .max_length = sentence_length(&s->form, o->max_length, ds_model_get_info(s->model)),
        .task = s->task,
        .n_classes = s->n_classes,
        .accelerator = o->accelerator,
        .adapter = s->adapter};
    DS_TRY(ds_encoder_create(s->ctx, &params, &s->encoder));
    s->ids = malloc((size_t)ds_encoder_max_length(s->encoder) * sizeof *s->ids);
    return s->ids != NULL ? DS_OK : ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for tokens");
}

static void close_session(session *s)
{
    free(s->ids);
    sentence_form_close(&s->form);
    ds_encoder_destroy(&s->encoder);
    ds_adapter_destroy(&s->adapter);
    ds_tokenizer_scratch_destroy(&s->scratch);
    ds_tokenizer_close(&s->tokenizer);
    ds_model_destroy(&s->model);
    json_decref(s->config);
}

/* ---- a text ---- */

static json_t *name_of(const session *s, size_t class)
{
    char key[24];
    (void)snprintf(key, sizeof key, "%zu", class);
    const char *name =
        json_string_value(json_object_get(json_object_get(s->config, "id2label"), key));
    return name != NULL ? json_string(name) : json_sprintf("LABEL_%zu", class);
}

static size_t largest(const float *z, size_t n)
{
    size_t at = 0;
    for (size_t i = 1; i < n; ++i) {
        at = z[i] > z[at] ? i : at;
    }
    return at;
}

/* The probability of class i. */
static double chance(const float *z, size_t n, size_t i)
{
    double sum = 0.0;
    for (size_t k = 0; k < n; ++k) {
        sum += exp((double)z[k] - (double)z[i]);
    }
    return 1.0 / sum;
}

static json_t *vector_of(const session *s, size_t hidden)
{
    float *pooled = malloc(hidden * sizeof *pooled);
    const bool made = pooled != NULL && ds_encoder_pool(s->encoder, s->form.pool, pooled) >= 0;
    float *vector = made ? sentence_vector(&s->form, pooled, (int64_t)hidden) : NULL;
    const size_t width = (size_t)sentence_width(&s->form, (int64_t)hidden);
    json_t *list = json_array();
    double norm = 0.0;
    free(pooled);
    if (vector == NULL) {
        json_decref(list);
        return NULL;
    }
    for (size_t i = 0; i < width; ++i) {
        norm += (double)vector[i] * (double)vector[i];
    }
    const double scale = s->form.normalize && norm > 0.0 ? 1.0 / sqrt(norm) : 1.0;
    for (size_t i = 0; i < width; ++i) {
        (void)json_array_append_new(list, json_real((double)vector[i] * scale));
    }
    free(vector);
    return json_pack("{s:o}", "embedding", list);
}

static json_t *class_of(const session *s, const float *z, size_t n)
{
    const size_t best = largest(z, n);
    json_t *scores = json_object();
    for (size_t i = 0; i < n; ++i) {
        json_t *name = name_of(s, i);
        (void)json_object_set_new(scores, json_string_value(name), json_real(chance(z, n, i)));
        json_decref(name);
    }
    return json_pack("{s:o, s:f, s:o}", "label", name_of(s, best), "score", chance(z, n, best),
                     "scores", scores);
}

/* Of each class by itself: its number, or the chance that it holds. */
static json_t *values_of(const session *s, const float *z, size_t n)
{
    json_t *labels = json_array();
    json_t *scores = json_object();
    const bool chances = s->problem == DS_PROBLEM_MULTI_LABEL;
    for (size_t i = 0; i < n; ++i) {
        json_t *name = name_of(s, i);
        const double value = chances ? 1.0 / (1.0 + exp(-(double)z[i])) : (double)z[i];
        (void)json_object_set_new(scores, json_string_value(name), json_real(value));
        if (chances && value >= 0.5) {
            (void)json_array_append(labels, name);
        }
        json_decref(name);
    }
    if (chances) {
        return json_pack("{s:o, s:o}", "labels", labels, "scores", scores);
    }
    json_decref(labels);
    return json_pack("{s:o}", "values", scores);
}

/* Of tokens that are no special ones. */
static json_t *classes_of(const session *s, const float *z, size_t n_tokens, size_t n)
{
    json_t *tokens = json_array();
    json_t *labels = json_array();
    for (size_t i = 0; i < n_tokens; ++i) {
        size_t bytes = 0;
        const char *piece = ds_tokenizer_piece(s->tokenizer, s->ids[i], &bytes);
        if (piece != NULL && !ds_tokenizer_is_special(s->tokenizer, s->ids[i])) {
            (void)json_array_append_new(tokens, json_stringn_nocheck(piece, bytes));
            (void)json_array_append_new(labels, name_of(s, largest(z + i * n, n)));
        }
    }
    return json_pack("{s:o, s:o}", "tokens", tokens, "labels", labels);
}

/* The text's tokens into s->ids; of one too long the beginning, and the last, which ends it. */
static ds_status tokenize(session *s, const char *text, size_t n, size_t *n_out)
{
    const size_t most = (size_t)ds_encoder_max_length(s->encoder);
    ds_tokens tokens;
    DS_TRY(ds_tokenizer_encode(s->tokenizer, s->scratch, text, n, DS_ENCODE_ADD_SPECIAL, &tokens));
    if (tokens.n == 0) {
        return ds_fail(s->ctx, DS_ERR_ARG, "a text without any token");
    }
    *n_out = tokens.n < most ? tokens.n : most;
    memcpy(s->ids, tokens.ids, *n_out * sizeof *s->ids);
    s->ids[*n_out - 1] = tokens.ids[tokens.n - 1];
    if (tokens.n > most) {
        ds_log(s->ctx, DS_LOG_WARN, "a text of %zu tokens is read as far as the first %zu",
               tokens.n, most);
    }
    return DS_OK;
}

/* n tokens of s->ids to a line. */
static ds_status put_line(session *s, const uint8_t *types, size_t n_tokens)
{
    ds_tensor rows;
    DS_TRY(ds_encoder_run_typed(s->encoder, s->ids, types, n_tokens, &rows));
    const size_t width = (size_t)rows.meta.shape.dims[1];
    json_t *line = s->task == DS_TASK_HIDDEN          ? vector_of(s, width)
                   : s->problem != DS_PROBLEM_CLASSES ? values_of(s, rows.data, width)
                   : s->task == DS_TASK_SEQUENCE_CLASSES
                       ? class_of(s, rows.data, width)
                       : classes_of(s, rows.data, n_tokens, width);
    char *out = json_dumps(line, JSON_COMPACT | JSON_REAL_PRECISION(9));
    json_decref(line);
    if (out == NULL) {
        return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for a result");
    }
    (void)puts(out);
    free(out);
    return DS_OK;
}

static ds_status encode(session *s, const char *text, size_t n)
{
    size_t n_tokens = 0;
    DS_TRY(tokenize(s, text, n, &n_tokens));
    return put_line(s, NULL, n_tokens);
}

static ds_status encode_pair(session *s, const dsi_text_columns *texts)
{
    const ds_two_texts pair = {
        .text = {json_string_value(texts->first), json_string_value(texts->second)},
        .n = {json_string_length(texts->first), json_string_length(texts->second)},
        .max_length = (size_t)ds_encoder_max_length(s->encoder)};
    ds_tokens tokens;
    DS_TRY(
        ds_tokenizer_encode_pair(s->tokenizer, s->scratch, &pair, DS_ENCODE_ADD_SPECIAL, &tokens));
    if (tokens.n == 0) {
        return ds_fail(s->ctx, DS_ERR_ARG, "a pair of texts without any token");
    }
    memcpy(s->ids, tokens.ids, tokens.n * sizeof *s->ids);
    return put_line(s, tokens.types, tokens.n);
}

static ds_status encode_row(session *s, json_t *row, const char *line)
{
    const ds_dataset_params params = {0};
    dsi_line read = {0};
    dsi_text_columns texts;
    const dsi_schema_row r = {.params = &params, .columns = row, .row = row, .line = &read};
    if (!json_is_object(row) || !dsi_schema_texts(&r, &texts)) {
        return ds_fail(s->ctx, DS_ERR_FORMAT, "%s: %s: %.60s", s->o->file,
                       json_is_object(row) ? read.message : "a row must be a JSON object", line);
    }
    return texts.second != NULL
               ? encode_pair(s, &texts)
               : encode(s, json_string_value(texts.first), json_string_length(texts.first));
}

/* A line of a file: a text, or of .jsonl a row with one. */
static ds_status encode_line(session *s, const char *line, size_t n, bool rows)
{
    json_error_t error;
    if (!rows) {
        return n > 0 ? encode(s, line, n) : DS_OK;
    }
    json_t *row = json_loadb(line, n, 0, &error);
    const ds_status status = encode_row(s, row, line);
    json_decref(row);
    return status;
}

static ds_status encode_file(session *s)
{
    const char *path = s->o->file;
    const size_t n_path = strlen(path);
    const bool rows = n_path > 6 && strcmp(path + n_path - 6, ".jsonl") == 0;
    FILE *file = strcmp(path, "-") == 0 ? stdin : fopen(path, "r");
    char *line = NULL;
    size_t room = 0;
    ds_status status = DS_OK;
    if (file == NULL) {
        return ds_fail(s->ctx, DS_ERR_NOT_FOUND, "cannot open %s", path);
    }
    for (ssize_t n = getline(&line, &room, file); n >= 0 && status >= 0;
         n = getline(&line, &room, file)) {
        n -= n > 0 && line[n - 1] == '\n';
        n -= n > 0 && line[n - 1] == '\r';
        status = encode_line(s, line, (size_t)n, rows);
    }
    if (status >= 0 && ferror(file)) {
        status = ds_fail(s->ctx, DS_ERR_IO, "cannot read %s", path);
    }
    free(line);
    if (file != stdin) {
        (void)fclose(file);
    }
    return status;
}

static ds_status run(ds_ctx *ctx, const options *o, const dsi_arg_list *texts)
{
    session s = {.ctx = ctx, .o = o};
    ds_status status = open_session(&s);
    for (size_t i = 0; i < texts->n && status >= 0; ++i) {
        status = encode(&s, texts->items[i], strlen(texts->items[i]));
    }
    status = status >= 0 && o->file != NULL ? encode_file(&s) : status;
    close_session(&s);
    return status;
}

static ds_status parse(ds_ctx *ctx, int argc, char **argv, options *o, dsi_args *args)
{
    const dsi_arg rows[] = {
        {.name = "model",
         .type = DSI_ARG_TEXT,
         .out = &o->model,
         .value = "DIR",
         .doc = "Model folder of an encoder, with its tokenizer."},
        {.name = "adapter",
         .type = DSI_ARG_TEXT,
         .out = &o->adapter,
         .value = "DIR",
         .doc = "A folder of PEFT's (SEQ_CLS, TOKEN_CLS), or of ds_train --lora --objective "
                "classes: the adapter of --model, with its head."},
        {.name = "file",
         .type = DSI_ARG_TEXT,
         .out = &o->file,
         .value = "FILE",
         .doc =
             "A text a line, or of .jsonl rows with \"text\", or two texts that are read "
             "together: \"text\" and \"text_pair\", \"sentence1\" and \"sentence2\", \"premise\" "
             "and \"hypothesis\"; - is standard input."},
        {.name = "task",
         .type = DSI_ARG_TEXT,
         .out = &o->task,
         .value = "NAME",
         .def = "auto",
         .choices = "auto|embedding|classes|token_classes",
         .doc = "What is wanted: auto is what the folder was trained for."},
        {.name = "pooling",
         .type = DSI_ARG_TEXT,
         .out = &o->pooling,
         .value = "NAME",
         .def = "auto",
         .choices = SENTENCE_POOLINGS,
         .doc = SENTENCE_POOLING_DOC},
        {.name = "normalize",
         .type = DSI_ARG_SWITCH,
         .out = &o->normalize,
         .doc = "Scale vectors to length 1; also where the folder's modules.json says so."},
        {.name = "max_length",
         .type = DSI_ARG_INT,
         .out = &o->max_length,
         .value = "N",
         .def = "0",
         .max = 1e9,
         .doc = "Most tokens of a text, the rest is left out; default: the model's, "
                "needed where it has none (T5)."},
        {.name = "dtype",
         .type = DSI_ARG_TEXT,
         .out = &o->dtype,
         .value = "TYPE",
         .def = "f32",
         .choices = "f32|bf16|f16",
         .doc = "To compute in."},
        {.name = "accelerator",
         .type = DSI_ARG_TEXT,
         .out = &o->accelerator,
         .value = "NAME",
         .doc = "What computes; default: the best that there is. ds_report lists them."},
        {.name = "threads",
         .type = DSI_ARG_INT,
         .out = &o->threads,
         .value = "N",
         .def = "0",
         .max = 4096,
         .doc = "Threads; default: the machine's cores."},
    };
    const dsi_args_spec spec = {.usage = "ds_encode --model DIR [FLAGS] [TEXT…]",
                                .about = about,
                                .after = after,
                                .rows = rows,
                                .n_rows = sizeof rows / sizeof rows[0]};
    DS_TRY(dsi_args_parse(ctx, &spec, argc, argv, args));
    if (args->help) {
        dsi_args_help(&spec, stdout);
        return DS_OK;
    }
    if (o->model == NULL || (args->words.n == 0) == (o->file == NULL)) {
        return ds_fail(ctx, DS_ERR_ARG,
                       "expected --model DIR with texts or --file FILE; --help says more");
    }
    return DS_OK;
}

int main(int argc, char **argv)
{
    output_guard("ds_encode");
    ds_ctx *ctx = NULL;
    ds_ctx_params params;
    options o = {0};
    dsi_args args = {0};
    int code = EXIT_USE;
    if (ds_ctx_create(NULL, &ctx) < 0) {
        return EXIT_FAILURE;
    }
    ds_status status = parse(ctx, argc, argv, &o, &args);
    status = status < 0 || args.help ? status : environment_context(ctx, o.threads, &params, NULL);
    if (status >= 0 && !args.help) {
        ds_ctx_destroy(&ctx);
        params.level = DS_LOG_WARN; /* standard output is the results' */
        code = EXIT_FAILURE;
        status = ds_ctx_create(&params, &ctx) < 0 ? DS_ERR_NOMEM : run(ctx, &o, &args.words);
    }
    if (status < 0) {
        (void)fprintf(stderr, "ds_encode: %s\n", ctx != NULL ? ds_ctx_error(ctx) : "no memory");
    } else {
        code = EXIT_SUCCESS;
    }
    dsi_args_free(&args);
    ds_ctx_destroy(&ctx);
    return code;
}
