/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a model's family by config.json and holds its hyperparameters. */
#include "model/custom.h"
#include "model/family.h"
#include "model/stored_head.h"

#include "base/half.h"
#include "base/reserved.h"
#include "nn/nn.h"
#include "op/ops.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_STEP = 1 << 16, TYPES_BYTES = 1024 };

struct ds_model {
    ds_ctx *ctx;
    const ds_families *families;
    const ds_family *family; /* NULL for a custom model */
    ds_model_info info;
    ds_model_fn trace;
    const void *config; /* own_config, or the caller's */
    void *own_config;
    char *text;
    char *architecture;
};

/* Whether `word` is in a space-separated list. */
static bool in_list(const char *list, const char *word, size_t n)
{
    const bool is_word = n > 0 && strchr(word, ' ') == NULL;
    for (const char *at = is_word ? strstr(list, word) : NULL; at != NULL;
         at = strstr(at + 1, word)) {
        const bool starts = at == list || at[-1] == ' ';
        if (starts && (at[n] == '\0' || at[n] == ' ')) {
            return true;
        }
    }
    return false;
}

/* "gpt2 llama mistral". */
static void list_types(const ds_families *families, char *text, size_t n)
{
    size_t at = 0;
    text[0] = '\0';
    for (size_t i = 0; i < families->n && at < n; ++i) {
        at += (size_t)snprintf(text + at, n - at, "%s%s", i > 0 ? " " : "",
                               families->items[i]->model_types);
    }
}

static ds_status find_family(ds_model *model, const ds_reader *reader)
{
    const ds_families *families = model->families;
    const char *type = NULL;
    DS_TRY(ds_field_text(reader, "model_type", &type));
    if (type == NULL) {
        return ds_fail(model->ctx, DS_ERR_FORMAT, "config.json: \"model_type\" is missing");
    }
    for (size_t i = 0; i < families->n; ++i) {
        if (in_list(families->items[i]->model_types, type, strlen(type))) {
            model->family = families->items[i];
        }
    }
    if (model->family == NULL) {
        char known[TYPES_BYTES];
        list_types(families, known, sizeof known);
        return ds_fail(model->ctx, DS_ERR_UNSUPPORTED,
                       "config.json: model_type \"%s\" is not known; known are: %s", type, known);
    }
    model->architecture = strdup(type);
    model->info.architecture = model->architecture;
    return model->architecture != NULL ? DS_OK : DS_ERR_NOMEM;
}

static ds_status read_config(ds_model *model, const ds_reader *reader)
{
    if (!json_is_object(reader->json)) {
        return ds_fail(model->ctx, DS_ERR_FORMAT, "config.json must hold an object");
    }
    DS_TRY(find_family(model, reader));
    model->own_config = calloc(1, model->family->config_bytes);
    if (model->own_config == NULL) {
        return ds_fail(model->ctx, DS_ERR_NOMEM, "no memory for a model");
    }
    model->config = model->own_config;
    model->trace = model->family->trace;
    return model->family->read(reader, model->own_config, &model->info);
}

/* A whole file that json_load_file() has just accepted. */
static ds_status read_text(ds_ctx *ctx, const char *path, char **text_out)
{
    FILE *file = fopen(path, "rb");
    size_t n = 0;
    char *text = NULL;
    while (file != NULL && !feof(file) && !ferror(file)) {
        char *grown = realloc(text, n + TEXT_STEP + 1);
        if (grown == NULL) {
            break;
        }
        text = grown;
        n += fread(text + n, 1, TEXT_STEP, file);
        text[n] = '\0';
    }
    const bool whole = file != NULL && text != NULL && feof(file);
    if (file != NULL) {
        (void)fclose(file);
    }
    if (!whole) {
        free(text);
        return ds_fail(ctx, DS_ERR_IO, "cannot read %s again", path);
    }
    *text_out = text;
    return DS_OK;
}

/* What to do where a config.json cannot be opened; "": nothing to add. */
static void say_remedy(const char *path, char *text, size_t n)
{
    const char *slash = strrchr(path, '/');
    const int length = slash != NULL ? (int)(slash - path) : 0;
    char other[4096];
    text[0] = '\0';
    if (length == 0 || strcmp(slash, "/config.json") != 0) {
        return;
    }
    (void)snprintf(other, sizeof other, "%.*s/ds_manifest.json", length, path);
    if (access(other, F_OK) == 0) {
        (void)snprintf(text, n,
                       "; that is a checkpoint: give the folder that holds it, with --checkpoint "
                       "and --tag where there are such flags, or make a model folder of it with "
                       "ds_checkpoint export");
        return;
    }
    (void)snprintf(other, sizeof other, "%.*s", length, path);
    (void)snprintf(text, n, "%s",
                   access(other, F_OK) != 0
                       ? "; there is no such folder, and a name in the Hugging Face cache is "
                         "ORGANIZATION/NAME"
                       : "; a model folder has one");
}

/* The text's tree and the text that is kept of it. Where a whole number is beyond 64 bits, which
 * transformers writes for "no limit", all whole numbers are read as reals and the text is kept as
 * it is. */
static ds_status load_config(ds_ctx *ctx, const char *path, json_t **json_out, bool *vanish_out,
                             char **text_out)
{
    json_error_t error;
    *vanish_out = false;
    *json_out = json_load_file(path, JSON_REJECT_DUPLICATES, &error);
    if (*json_out != NULL) {
        *text_out = json_dumps(*json_out, JSON_INDENT(2));
        return DS_OK;
    }
    if (json_error_code(&error) == json_error_numeric_overflow) {
        *vanish_out = true;
        *json_out = json_load_file(path, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
    }
    if (*json_out == NULL && error.line < 0) { /* the text names the file */
        char remedy[256];
        say_remedy(path, remedy, sizeof remedy);
        return ds_fail(ctx, DS_ERR_NOT_FOUND, "%s%s", error.text, remedy);
    }
    if (*json_out == NULL) {
        return ds_fail(ctx, DS_ERR_FORMAT, "%s:%d: %s", path, error.line, error.text);
    }
    return read_text(ctx, path, text_out);
}

/* Takes over json and text, both NULL when out of memory. */
static ds_status make(ds_ctx *ctx, const ds_families *families, json_t *json, bool integers_vanish,
                      char *text, ds_model **model_out)
{
    ds_model *model = calloc(1, sizeof *model);
    ds_status status = DS_OK;
    if (model == NULL || text == NULL) {
        free(text);
        status = ds_fail(ctx, DS_ERR_NOMEM, "no memory for a model");
    } else {
        const ds_reader reader = {.ctx = ctx, .json = json, .integers_vanish = integers_vanish};
        *model = (ds_model){.ctx = ctx, .families = families, .text = text};
        status = read_config(model, &reader);
    }
    json_decref(json);
    if (status < 0) {
        ds_model_destroy(&model);
        return status;
    }
    *model_out = model;
    return DS_OK;
}

/* The model as the weights beside its config.json have it. */
static ds_status fit_head(const char *path, ds_model **model)
{
    const ds_model *from = *model;
    ds_model *made = NULL;
    bool tied = from->info.tied_embeddings;
    if (from->family->set_tied == NULL) {
        return DS_OK;
    }
    dsi_stored_head(from->ctx, &from->info, path, &tied);
    if (tied == from->info.tied_embeddings) {
        return DS_OK;
    }
    json_t *json = json_loads(from->text, JSON_REJECT_DUPLICATES, NULL);
    if (json == NULL) {
        return ds_fail(
            from->ctx, DS_ERR_UNSUPPORTED,
            "%s has whole numbers beyond 64 bits, and is to be changed: "
            "\"tie_word_embeddings\" is %s, the weights have it otherwise; take them out",
            path, tied ? "false" : "true");
    }
    from->family->set_tied(from->config, json, tied);
    char *text = json_dumps(json, JSON_INDENT(2));
    const ds_status status = make(from->ctx, from->families, json, false, text, &made);
    if (status < 0) {
        return status;
    }
    ds_model_destroy(model);
    *model = made;
    return DS_OK;
}

ds_status dsi_model_read(ds_ctx *ctx, const ds_families *families, const char *path,
                         ds_model **model_out)
{
    json_t *json = NULL;
    char *text = NULL;
    bool integers_vanish = false;
    const ds_status status = load_config(ctx, path, &json, &integers_vanish, &text);
    if (status < 0) {
        json_decref(json);
        return status;
    }
    ds_model *model = NULL;
    DS_TRY(make(ctx, families, json, integers_vanish, text, &model));
    const ds_status fitted = fit_head(path, &model);
    if (fitted < 0) {
        ds_model_destroy(&model);
        return fitted;
    }
    *model_out = model;
    return DS_OK;
}

ds_status dsi_model_parse(ds_ctx *ctx, const ds_families *families, const char *text,
                          ds_model **model_out)
{
    json_error_t error;
    json_t *json = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    bool integers_vanish = false;
    if (json == NULL && json_error_code(&error) == json_error_numeric_overflow) {
        integers_vanish = true;
        json = json_loads(text, JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL, &error);
    }
    if (json == NULL) {
        return ds_fail(ctx, DS_ERR_FORMAT, "config.json: line %d: %s", error.line, error.text);
    }
    return make(ctx, families, json, integers_vanish, strdup(text), model_out);
}

/* config.json with what is asked for. */
static ds_status change_text(const ds_model *model, const ds_model_changes *changes,
                             char **text_out)
{
    json_t *json = json_loads(model->text, JSON_REJECT_DUPLICATES, NULL);
    if (json == NULL) {
        return ds_fail(model->ctx, DS_ERR_UNSUPPORTED,
                       "ds_model_change: config.json has whole numbers beyond 64 bits, which would "
                       "not be written as they are; change it there");
    }
    if (changes->vocab_size > 0) {
        (void)json_object_set_new(json, "vocab_size", json_integer(changes->vocab_size));
    }
    if (changes->untie && model->family->set_tied != NULL) {
        model->family->set_tied(model->config, json, false);
    } else if (changes->untie) {
        (void)json_object_set_new(json, "tie_word_embeddings", json_false());
    }
    *text_out = json_dumps(json, JSON_INDENT(2));
    json_decref(json);
    return *text_out != NULL ? DS_OK : ds_fail(model->ctx, DS_ERR_NOMEM, "no memory for a model");
}

ds_status ds_model_change(const ds_model *model, const ds_model_changes *changes,
                          ds_model **model_out)
{
    const ds_model_info *from = &model->info;
    const int64_t wanted = changes->vocab_size > 0 ? changes->vocab_size : from->vocab_size;
    const bool tied = from->tied_embeddings && !changes->untie;
    ds_model *made = NULL;
    char *text = NULL;
    DS_TRY(DSI_RESERVED_CHECK(model->ctx, "ds_model_changes", changes));
    if (model->family == NULL || from->vocab_size == 0 || from->embedding == NULL) {
        return ds_fail(model->ctx, DS_ERR_UNSUPPORTED,
                       "ds_model_change: %s is no language model that config.json describes",
                       from->architecture);
    }
    if (wanted < from->vocab_size) {
        return ds_fail(model->ctx, DS_ERR_ARG,
                       "resize_vocab %lld: the model has %lld tokens, which are not taken away",
                       (long long)wanted, (long long)from->vocab_size);
    }
    DS_TRY(change_text(model, changes, &text));
    const ds_status status = dsi_model_parse(model->ctx, model->families, text, &made);
    free(text);
    DS_TRY(status);
    if (made->info.vocab_size != wanted || made->info.tied_embeddings != tied) {
        ds_model_destroy(&made);
        return ds_fail(model->ctx, DS_ERR_UNSUPPORTED,
                       "ds_model_change: the config.json of %s says its vocab_size and "
                       "tie_word_embeddings elsewhere",
                       from->architecture);
    }
    made->info.stored_vocab = from->stored_vocab > 0 ? from->stored_vocab : from->vocab_size;
    made->info.stored_tied = from->stored_tied || (from->tied_embeddings && changes->untie);
    *model_out = made;
    return DS_OK;
}

/* Constants of a config that is like the model's own. */
static ds_status print_constants(const ds_model *model, const void *config, char **text_out)
{
    char *text = NULL;
    size_t n = 0;
    FILE *out = open_memstream(&text, &n);
    if (out != NULL) {
        (void)fprintf(out, "model_type: %s\n", model->info.architecture);
        if (model->family != NULL) {
            model->family->print(model->info.architecture, config, out);
        } else {
            ds_custom_print(&model->info, config, out);
        }
    }
    if (out == NULL || fclose(out) != 0) {
        free(text);
        return ds_fail(model->ctx, DS_ERR_NOMEM, "no memory to print a model");
    }
    *text_out = text;
    return DS_OK;
}

ds_status ds_model_print(const ds_model *model, char **text_out)
{
    return print_constants(model, model->config, text_out);
}

ds_status ds_model_print_config(const ds_model *model, const char *config_json, char **text_out)
{
    if (model->family == NULL) {
        void *config = NULL;
        DS_TRY(ds_custom_parse(model->ctx, &model->info, config_json, &config));
        const ds_status status = print_constants(model, config, text_out);
        free(config);
        return status;
    }
    ds_model *other = NULL;
    DS_TRY(dsi_model_parse(model->ctx, model->families, config_json, &other));
    const ds_status status = ds_model_print(other, text_out);
    ds_model_destroy(&other);
    return status;
}

/* Logits (B,V) of which ranks that share the head have made those of their rows of it: all get all.
 * The middle dim keeps the last one whole behind that. */
static ds_value whole_logits(ds_nn *nn, ds_value logits)
{
    const ds_shape shape = ds_nn_meta(nn, logits).shape;
    logits = ds_nn_reshape(nn, logits, ds_shape_3d(shape.dims[0], 1, shape.dims[1]));
    logits = ds_nn_apply(nn, &dsi_op_whole, NULL, &logits, 1);
    return ds_nn_reshape(nn, logits, shape);
}

double ds_model_rounded(ds_dtype dtype, double factor)
{
    return dtype == DS_DTYPE_BF16  ? (double)dsi_bf16_to_f32(dsi_f32_to_bf16((float)factor))
           : dtype == DS_DTYPE_F16 ? (double)dsi_f16_to_f32(dsi_f32_to_f16((float)factor))
                                   : factor;
}

static bool is_reward(const ds_trace *t)
{
    return t->mode != DS_TRACE_GENERATE && t->preference != NULL &&
           t->preference->loss == DS_PREFERENCE_REWARD;
}

static ds_value head_weight(ds_nn *nn, const ds_head_params *p, int64_t width)
{
    const ds_init init = {DS_INIT_NORMAL, p->init_std};
    return is_reward(ds_nn_trace(nn))
               ? ds_nn_param_at(nn, "score.weight", ds_shape_2d(1, width), init, false)
           : p->embedding != DS_NONE
               ? p->embedding
               : dsi_nn_matrix_at(nn, p->name, ds_shape_2d(p->vocab_size, width), init);
}

/* The rows of x (B,T,C) whose logits are wanted: one of each sample, or any of tokens in a row. */
static ds_value wanted_rows(ds_nn *nn, ds_value x)
{
    const ds_trace *t = ds_nn_trace(nn);
    if (t->paged == NULL) {
        return ds_nn_take_rows(nn, x, ds_nn_input(nn, "last", DS_DTYPE_I32, ds_shape_1d(t->batch)));
    }
    const ds_shape rows = ds_shape_2d(t->seq_length, ds_shape_last(ds_nn_meta(nn, x).shape));
    const ds_value last = ds_nn_input(nn, "last", DS_DTYPE_I32, ds_shape_1d(t->paged->rows));
    return ds_nn_embedding_sum(nn, ds_nn_reshape(nn, x, rows), last, DS_NONE, DS_NONE);
}

/* fp32 whatever the precision. */
static ds_value logits_of(ds_nn *nn, const ds_head_params *p, ds_value x, ds_value weight)
{
    const ds_trace *t = ds_nn_trace(nn);
    ds_value z = ds_nn_matmul(nn, x, weight, false, DS_DTYPE_F32);
    z = t->mode == DS_TRACE_GENERATE && t->head_ranks > 1 ? whole_logits(nn, z) : z;
    if (p->bias != NULL) {
        const ds_value bias = ds_nn_param_at(nn, p->bias, ds_shape_1d(p->vocab_size),
                                             (ds_init){.kind = DS_INIT_ZEROS}, true);
        z = ds_nn_add(nn, z, ds_nn_cast(nn, bias, DS_DTYPE_F32));
    }
    return p->cap == 0.0
               ? z
               : ds_nn_scale(nn, ds_nn_tanh(nn, ds_nn_scale(nn, z, 1.0 / p->cap)), p->cap);
}

/* Whether what this head has is built beside the rest of the trace. */
static bool head_is_built(ds_nn *nn, const ds_head_params *p)
{
    const ds_trace *t = ds_nn_trace(nn);
    if (p->extra != DS_NONE && (t->preference != NULL || p->cap != 0.0 || p->bias != NULL)) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "config.json: \"output_router_logits\" is true: the loss that balances routers "
                   "is not built beside %s; set it to false",
                   t->preference != NULL ? "a preference loss" : "a bias or soft cap of logits");
        return false;
    }
    if ((p->cap != 0.0 || p->bias != NULL) && t->preference != NULL && !is_reward(t)) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "config.json: preference losses of logits with a %s are not built (%s)",
                   p->cap != 0.0 ? "soft cap" : "bias",
                   p->cap != 0.0 ? "\"final_logit_softcapping\"" : p->bias);
        return false;
    }
    return true;
}

/* Traces the teacher on the same inputs; its logits are nn->lesson. */
static bool listen(ds_nn *nn, const ds_head_params *p)
{
    const ds_model *teacher = ds_nn_trace(nn)->distillation->teacher;
    nn->lesson = DS_NONE;
    nn->teaches = true;
    (void)ds_model_trace(teacher, nn);
    nn->teaches = false;
    const int64_t vocab = ds_shape_last(ds_nn_meta(nn, nn->lesson).shape);
    if (ds_nn_status(nn) >= 0 && vocab != p->vocab_size) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "the teacher has a vocabulary of %lld tokens, the model of %lld; distillation "
                   "compares their chances token by token: take a teacher with the same one",
                   (long long)vocab, (long long)p->vocab_size);
    }
    return ds_nn_status(nn) >= 0;
}

void ds_model_head(ds_nn *nn, ds_value x, const ds_head_params *p)
{
    const ds_trace *t = ds_nn_trace(nn);
    if (t->task == DS_TASK_HIDDEN && t->paged != NULL) {
        ds_nn_output(nn, "hidden", ds_nn_cast(nn, wanted_rows(nn, x), DS_DTYPE_F32));
        return;
    }
    if (t->task == DS_TASK_CONTRAST) {
        ds_model_contrast(nn, x);
        return;
    }
    if (t->task != DS_TASK_TOKENS) {
        ds_nn_fail(nn, DS_ERR_UNSUPPORTED,
                   "classes are of encoders, and hidden states of those and of batches of "
                   "sequences (ds_serve); this is a decoder");
        return;
    }
    const ds_value weight = head_weight(nn, p, ds_shape_last(ds_nn_meta(nn, x).shape));
    if (t->mode == DS_TRACE_GENERATE) {
        ds_nn_output(nn, "logits", logits_of(nn, p, p->unshifted ? x : wanted_rows(nn, x), weight));
        return;
    }
    if (nn->teaches) {
        nn->lesson = logits_of(nn, p, x, weight);
        return;
    }
    const ds_value targets = ds_nn_input(nn, p->unshifted ? "labels" : "targets", DS_DTYPE_I32,
                                         ds_shape_2d(t->batch, t->seq_length));
    if (!head_is_built(nn, p)) {
        return;
    }
    if (t->distillation != NULL) {
        if (listen(nn, p)) {
            (void)dsi_nn_distillation(nn, logits_of(nn, p, x, weight), targets, p->extra);
        }
    } else if ((p->cap != 0.0 || p->bias != NULL) && !is_reward(t)) {
        (void)ds_nn_cross_entropy(nn, logits_of(nn, p, x, weight), targets);
    } else {
        (void)dsi_nn_linear_cross_entropy(nn, x, weight, targets, p->extra);
    }
}

static ds_status check_reserved(ds_ctx *ctx, const ds_model_info *info)
{
    for (size_t i = 0; i < sizeof info->reserved / sizeof info->reserved[0]; ++i) {
        if (info->reserved[i] != 0) {
            return ds_fail(ctx, DS_ERR_ARG, "ds_model_info: its reserved words are not zero");
        }
    }
    return DS_OK;
}

ds_status ds_model_custom(ds_ctx *ctx, const ds_model_info *info, ds_model_fn trace,
                          const void *config, ds_model **model_out)
{
    char *text = NULL;
    DS_TRY(check_reserved(ctx, info));
    DS_TRY(ds_custom_write(ctx, info, config, &text));
    ds_model *model = calloc(1, sizeof *model);
    if (model == NULL) {
        free(text);
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a model");
    }
    *model = (ds_model){.ctx = ctx, .info = *info, .trace = trace, .config = config, .text = text};
    if (model->info.base_prefix == NULL) {
        model->info.base_prefix = "";
    }
    *model_out = model;
    return DS_OK;
}

void ds_model_destroy(ds_model **model)
{
    if (model != NULL && *model != NULL) {
        free((*model)->own_config);
        free((*model)->text);
        free((*model)->architecture);
        free(*model);
        *model = NULL;
    }
}

const ds_model_info *ds_model_get_info(const ds_model *model)
{
    return &model->info;
}

const char *ds_model_config_text(const ds_model *model)
{
    return model->text;
}

ds_status ds_model_trace(const ds_model *model, ds_nn *nn)
{
    const ds_task_params *p = ds_nn_trace(nn)->task_params;
    ds_model_check_task(nn);
    if (ds_nn_status(nn) < 0) {
        return ds_nn_status(nn);
    }
    if (ds_nn_trace(nn)->task == DS_TASK_CONTRAST && p != NULL && p->contrast.mini_batch > 0 &&
        (uint64_t)ds_nn_trace(nn)->batch > p->contrast.mini_batch) {
        ds_model_mini_batches(nn, model->trace, model->config);
    } else {
        model->trace(nn, model->config);
    }
    return ds_nn_status(nn);
}

bool ds_model_ignores(const ds_model *model, const char *tensor_name)
{
    const size_t n = strlen(tensor_name);
    const char *list = model->family != NULL ? model->family->ignored : "";
    while (*list != '\0') {
        const size_t length = strcspn(list, " ");
        if (length <= n && strncmp(tensor_name + n - length, list, length) == 0) {
            return true;
        }
        list += length;
        list += strspn(list, " ");
    }
    return model->family != NULL && model->family->ignores != NULL &&
           model->family->ignores(model->config, tensor_name);
}
