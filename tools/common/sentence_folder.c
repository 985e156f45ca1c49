/* SPDX-License-Identifier: Apache-2.0 */
/* See sentence_folder.h. */
#include "common/sentence_folder.h"

#include "io/file.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096, FIRST_DENSE = 2 }; /* the module's number */

/* Our name; that of the older files, of which one is true; that of the newer ones, a value of
 * "pooling_mode". */
static const struct {
    const char *name, *key, *mode;
} poolings[DS_POOLS] = {
    [DS_POOL_FIRST] = {"cls", "pooling_mode_cls_token", "cls"},
    [DS_POOL_MEAN] = {"mean", "pooling_mode_mean_tokens", "mean"},
    [DS_POOL_LAST] = {"last", "pooling_mode_lasttoken", "lasttoken"},
    [DS_POOL_MAX] = {"max", "pooling_mode_max_tokens", "max"},
    [DS_POOL_MEAN_SQRT] = {"mean_sqrt", "pooling_mode_mean_sqrt_len_tokens",
                           "mean_sqrt_len_tokens"},
    [DS_POOL_WEIGHTED] = {"weighted", "pooling_mode_weightedmean_tokens", "weightedmean"},
};

#define ABOUT       "config_sentence_transformers.json"
#define MODULES     "modules.json"
#define TRANSFORMER "sentence_bert_config.json"
#define POOLING     "1_Pooling/config.json"
#define DENSE       "%d_Dense"

static ds_status load(ds_ctx *ctx, const char *folder, const char *name, json_t **json_out)
{
    char path[2 * PATH_BYTES];
    json_error_t error;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    *json_out = json_load_file(path, 0, &error);
    return *json_out != NULL ? DS_OK : ds_fail(ctx, DS_ERR_FORMAT, "%s: %s", path, error.text);
}

/* "pooling_mode": a name, or a list of one; sentence-transformers 5.3 and later. */
static ds_status read_mode(ds_ctx *ctx, const char *path, const json_t *mode, ds_pool *pool_out)
{
    const bool one = !json_is_array(mode) || json_array_size(mode) == 1;
    const char *name = json_string_value(json_is_array(mode) ? json_array_get(mode, 0) : mode);
    for (int i = 0; i < DS_POOLS && one && name != NULL; ++i) {
        if (strcmp(poolings[i].mode, name) == 0) {
            *pool_out = (ds_pool)i;
            return DS_OK;
        }
    }
    return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                   "%s/config.json: pooling_mode \"%s\" is not built; vectors of exactly one of "
                   "cls, mean, lasttoken, max, mean_sqrt_len_tokens and weightedmean are "
                   "(--pooling says another)",
                   path,
                   !one           ? "of several"
                   : name != NULL ? name
                                  : "?");
}

/* pooling_mode_*: one of them is true. */
static ds_status read_pooling(ds_ctx *ctx, const char *path, const json_t *config,
                              ds_pool *pool_out)
{
    int n = 0;
    const char *key = NULL;
    json_t *value = json_object_get(config, "pooling_mode");
    if (value != NULL) {
        return read_mode(ctx, path, value, pool_out);
    }
    json_object_foreach((json_t *)(uintptr_t)config, key, value)
    {
        if (strncmp(key, "pooling_mode", 12) != 0 || !json_is_true(value)) {
            continue;
        }
        int at = 0;
        while (at < DS_POOLS && strcmp(poolings[at].key, key) != 0) {
            ++at;
        }
        if (at == DS_POOLS) {
            return ds_fail(ctx, DS_ERR_UNSUPPORTED, "%s/config.json: %s is not built", path, key);
        }
        *pool_out = (ds_pool)at;
        n += 1;
    }
    if (n != 1) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s/config.json: %d of pooling_mode_* are true; vectors of exactly one are "
                       "built (--pooling says another)",
                       path, n);
    }
    return DS_OK;
}

/* The part of a class's name behind its last dot: "sentence_transformers.models.Pooling". */
static const char *kind_of(const json_t *module)
{
    const char *type = json_string_value(json_object_get(module, "type"));
    const char *dot = type != NULL ? strrchr(type, '.') : NULL;
    return dot != NULL ? dot + 1 : type != NULL ? type : "?";
}

/* Behind the pooling, where there is one vector of a text, and before its normalization. */
static ds_status read_dense(ds_ctx *ctx, const char *folder, const char *path, bool pooled,
                            sentence_form *form)
{
    if (!pooled || form->normalize || form->n_dense == SENTENCE_MOST_DENSE) {
        return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                       "%s/modules.json: the module Dense at \"%s\" is not built there; up to %d "
                       "behind Pooling and before Normalize are",
                       folder, path, SENTENCE_MOST_DENSE);
    }
    DS_TRY(sentence_dense_open(ctx, folder, path, &form->dense[form->n_dense]));
    form->n_dense += 1;
    return DS_OK;
}

static ds_status read_module(ds_ctx *ctx, const char *folder, const json_t *module, bool named,
                             bool *pooled, sentence_form *form)
{
    const char *kind = kind_of(module);
    const char *path = json_string_value(json_object_get(module, "path"));
    path = path != NULL ? path : "";
    if (strcmp(kind, "Transformer") == 0 && path[0] == '\0') {
        return DS_OK;
    }
    if (strcmp(kind, "Normalize") == 0) {
        form->normalize = true;
        return DS_OK;
    }
    if (strcmp(kind, "Dense") == 0) {
        return read_dense(ctx, folder, path, *pooled, form);
    }
    if (strcmp(kind, "Pooling") == 0) {
        *pooled = true;
        char name[PATH_BYTES];
        json_t *config = NULL;
        (void)snprintf(name, sizeof name, "%s/config.json", path);
        DS_TRY(load(ctx, folder, name, &config));
        const ds_status status = named ? DS_OK : read_pooling(ctx, path, config, &form->pool);
        json_decref(config);
        return status;
    }
    return ds_fail(ctx, DS_ERR_UNSUPPORTED,
                   "%s/modules.json: the module %s at \"%s\" is not built; Transformer (in the "
                   "folder itself), Pooling, Dense and Normalize are",
                   folder, kind, path);
}

/* Where a text ends that sentence_bert_config.json says nothing of: as the tokenizer has it. */
static int64_t tokenizer_length(const char *folder)
{
    char path[PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/tokenizer_config.json", folder);
    json_t *config = json_load_file(path, 0, NULL);
    const double length = json_number_value(json_object_get(config, "model_max_length"));
    json_decref(config);
    return length >= 1 && length <= (double)INT32_MAX ? (int64_t)length : 0;
}

/* What the Transformer does with a text: where it ends, and nothing else. */
static ds_status read_transformer(ds_ctx *ctx, const char *folder, sentence_form *form)
{
    static const char name[] = TRANSFORMER;
    char path[PATH_BYTES];
    json_t *config = NULL;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    form->max_length = tokenizer_length(folder);
    if (access(path, F_OK) != 0) {
        return DS_OK;
    }
    DS_TRY(load(ctx, folder, name, &config));
    const char *output = json_string_value(json_object_get(config, "module_output_name"));
    const char *task = json_string_value(json_object_get(config, "transformer_task"));
    const json_int_t length = json_integer_value(json_object_get(config, "max_seq_length"));
    ds_status status = DS_OK;
    if (json_is_true(json_object_get(config, "do_lower_case"))) {
        status = ds_fail(ctx, DS_ERR_UNSUPPORTED,
                         "%s: do_lower_case true is not built; let the tokenizer do it, or make "
                         "it false",
                         path);
    } else if (task != NULL && strcmp(task, "feature-extraction") != 0) {
        status =
            ds_fail(ctx, DS_ERR_UNSUPPORTED,
                    "%s: transformer_task \"%s\" is not built; feature-extraction is", path, task);
    } else if (output != NULL && strcmp(output, "token_embeddings") != 0) {
        status = ds_fail(ctx, DS_ERR_UNSUPPORTED,
                         "%s: module_output_name \"%s\" is not built; token_embeddings is", path,
                         output);
    } else if (length < 0 || length > INT32_MAX) {
        status = ds_fail(ctx, DS_ERR_FORMAT, "%s: max_seq_length is %lld", path, (long long)length);
    }
    form->max_length = length > 0 ? (int64_t)length : form->max_length;
    json_decref(config);
    return status;
}

int64_t sentence_length(const sentence_form *form, int64_t asked, const ds_model_info *info)
{
    const int64_t most = info->max_positions;
    return asked > 0 ? asked : most > 0 && form->max_length > most ? 0 : form->max_length;
}

/* A text that goes before each: its tokens would have to be there, too. */
static ds_status check_prompt(ds_ctx *ctx, const char *folder)
{
    char path[PATH_BYTES];
    json_t *config = NULL;
    (void)snprintf(path, sizeof path, "%s/" ABOUT, folder);
    if (access(path, F_OK) != 0) {
        return DS_OK;
    }
    DS_TRY(load(ctx, folder, ABOUT, &config));
    const char *name = json_string_value(json_object_get(config, "default_prompt_name"));
    const ds_status status =
        name == NULL ? DS_OK
                     : ds_fail(ctx, DS_ERR_UNSUPPORTED,
                               "%s: default_prompt_name \"%s\" is not built; make it null and put "
                               "the prompt before the texts",
                               path, name);
    json_decref(config);
    return status;
}

ds_status sentence_folder(ds_ctx *ctx, const char *folder, const char *pooling, sentence_form *form)
{
    char path[PATH_BYTES];
    json_t *modules = NULL;
    ds_status status = DS_OK;
    const bool named = strcmp(pooling, "auto") != 0;
    for (int i = 0; i < DS_POOLS; ++i) {
        form->pool = strcmp(poolings[i].name, pooling) == 0 ? (ds_pool)i : form->pool;
    }
    (void)snprintf(path, sizeof path, "%s/" MODULES, folder);
    if (access(path, F_OK) != 0) {
        return DS_OK;
    }
    DS_TRY(check_prompt(ctx, folder));
    DS_TRY(read_transformer(ctx, folder, form));
    DS_TRY(load(ctx, folder, MODULES, &modules));
    form->normalize = false;
    bool pooled = false;
    for (size_t i = 0; i < json_array_size(modules) && status >= 0; ++i) {
        status = read_module(ctx, folder, json_array_get(modules, i), named, &pooled, form);
    }
    json_decref(modules);
    if (status < 0) {
        sentence_form_close(form);
    }
    return status;
}

void sentence_form_close(sentence_form *form)
{
    for (uint32_t i = 0; i < form->n_dense; ++i) {
        sentence_dense_close(&form->dense[i]);
    }
    form->n_dense = 0;
}

int64_t sentence_width(const sentence_form *form, int64_t hidden_size)
{
    return form->n_dense > 0 ? form->dense[form->n_dense - 1].n_out : hidden_size;
}

ds_status sentence_form_check(ds_ctx *ctx, const sentence_form *form, int64_t hidden_size)
{
    int64_t width = hidden_size;
    for (uint32_t i = 0; i < form->n_dense; ++i) {
        if (form->dense[i].n_in != width) {
            return ds_fail(ctx, DS_ERR_SHAPE,
                           "modules.json: the module Dense %u has in_features %lld; vectors before "
                           "it have %lld numbers",
                           i + 1, (long long)form->dense[i].n_in, (long long)width);
        }
        width = form->dense[i].n_out;
    }
    return DS_OK;
}

float *sentence_vector(const sentence_form *form, const float *pooled, int64_t hidden_size)
{
    float *x = malloc((size_t)hidden_size * sizeof *x);
    if (x != NULL) {
        memcpy(x, pooled, (size_t)hidden_size * sizeof *x);
    }
    for (uint32_t i = 0; i < form->n_dense && x != NULL; ++i) {
        float *next = malloc((size_t)form->dense[i].n_out * sizeof *next);
        if (next != NULL) {
            sentence_dense_run(&form->dense[i], x, next);
        }
        free(x);
        x = next;
    }
    return x;
}

/* ---- written --------------------------------------------------------------------------------- */

/* "2_Dense"; of the transformer "". */
static json_t *module_path(int index, const char *kind)
{
    return index > 0 ? json_sprintf("%d_%s", index, kind) : json_string("");
}

static json_t *module_json(int index, const char *kind)
{
    return json_pack("{s:i, s:o, s:o, s:o}", "idx", index, "name", json_sprintf("%d", index),
                     "path", module_path(index, kind), "type",
                     json_sprintf("sentence_transformers.models.%s", kind));
}

static json_t *modules_json(const sentence_form *form)
{
    json_t *modules = json_array();
    (void)json_array_append_new(modules, module_json(0, "Transformer"));
    (void)json_array_append_new(modules, module_json(1, "Pooling"));
    for (uint32_t i = 0; i < form->n_dense; ++i) {
        (void)json_array_append_new(modules, module_json(FIRST_DENSE + (int)i, "Dense"));
    }
    if (form->normalize) {
        (void)json_array_append_new(modules,
                                    module_json(FIRST_DENSE + (int)form->n_dense, "Normalize"));
    }
    return modules;
}

static json_t *pooling_json(const sentence_form *form, int64_t width)
{
    json_t *root =
        json_pack("{s:I, s:b}", "word_embedding_dimension", (json_int_t)width, "include_prompt", 1);
    for (int i = 0; i < DS_POOLS; ++i) {
        (void)json_object_set_new(root, poolings[i].key, json_boolean(i == (int)form->pool));
    }
    return root;
}

/* config_sentence_transformers.json, with what the source's says of prompts and similarity. */
static ds_status make_about(ds_ctx *ctx, const char *source, json_t **about_out)
{
    static const char *const kept[] = {"prompts", "similarity_fn_name"};
    char path[PATH_BYTES];
    json_t *was = NULL;
    (void)snprintf(path, sizeof path, "%s/" ABOUT, source != NULL ? source : "");
    if (source != NULL && access(path, F_OK) == 0) {
        DS_TRY(load(ctx, source, ABOUT, &was));
    }
    json_t *about = json_pack("{s:{}, s:n, s:s}", "prompts", "default_prompt_name",
                              "similarity_fn_name", "cosine");
    for (size_t i = 0; i < sizeof kept / sizeof *kept; ++i) {
        json_t *value = json_object_get(was, kept[i]);
        if (value != NULL && !json_is_null(value)) {
            (void)json_object_set(about, kept[i], value);
        }
    }
    json_decref(was);
    *about_out = about;
    return DS_OK;
}

ds_status sentence_folder_describe(ds_ctx *ctx, const char *source, const sentence_form *form,
                                   int64_t width, char **text_out)
{
    json_t *about = NULL;
    DS_TRY(make_about(ctx, source, &about));
    json_t *transformer = json_pack("{s:b}", "do_lower_case", 0);
    if (form->max_length > 0) {
        (void)json_object_set_new(transformer, "max_seq_length", json_integer(form->max_length));
    }
    json_t *files = json_pack("{s:o, s:o, s:o, s:o}", POOLING, pooling_json(form, width),
                              TRANSFORMER, transformer, ABOUT, about, MODULES, modules_json(form));
    for (uint32_t i = 0; i < form->n_dense && files != NULL; ++i) {
        char name[32];
        (void)snprintf(name, sizeof name, DENSE, FIRST_DENSE + (int)i);
        (void)json_object_set_new(files, name, sentence_dense_config(&form->dense[i]));
    }
    *text_out = files != NULL ? json_dumps(files, JSON_COMPACT) : NULL;
    json_decref(files);
    return *text_out != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory for modules.json");
}

static ds_status put(ds_ctx *ctx, const char *folder, const char *name, const json_t *json)
{
    char path[2 * PATH_BYTES];
    char *text = json_dumps(json, JSON_INDENT(2));
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    const ds_status status = text != NULL ? dsi_file_replace(ctx, path, text, strlen(text))
                                          : ds_fail(ctx, DS_ERR_NOMEM, "no memory for %s", path);
    free(text);
    return status;
}

static ds_status make_folder(ds_ctx *ctx, const char *folder, const char *name)
{
    char path[2 * PATH_BYTES];
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    return dsi_folder_make(ctx, path);
}

/* The module Dense that the text describes, with weights that `read` gives. */
static ds_status write_dense(ds_ctx *ctx, const char *folder, const json_t *files, uint32_t which,
                             sentence_read_fn read, void *user)
{
    char name[32];
    char path[2 * PATH_BYTES];
    sentence_dense dense = {0};
    sentence_tensor t;
    (void)snprintf(name, sizeof name, DENSE, FIRST_DENSE + (int)which);
    const json_t *config = json_object_get(files, name);
    if (!json_is_object(config)) {
        return ds_fail(ctx, DS_ERR_FORMAT, "the vectors of the model lack %s", name);
    }
    DS_TRY(sentence_dense_like(ctx, config, &dense));
    ds_status status = make_folder(ctx, folder, name);
    for (int i = 0; status >= 0 && sentence_dense_tensor(&dense, i, &t); ++i) {
        const int64_t n = t.rows * (t.columns > 0 ? t.columns : 1);
        status = read(user, which, t.name, t.data, (size_t)n);
    }
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    status = status < 0 ? status : sentence_dense_write(ctx, path, &dense);
    sentence_dense_close(&dense);
    return status;
}

/* These files alone, whatever else the text names. */
static ds_status write_files(ds_ctx *ctx, const char *folder, const json_t *files,
                             sentence_read_fn read, void *user)
{
    static const char *const names[] = {POOLING, TRANSFORMER, ABOUT, MODULES};
    const json_t *modules = json_object_get(files, MODULES);
    uint32_t n_dense = 0;
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        if (json_object_get(files, names[i]) == NULL) {
            return ds_fail(ctx, DS_ERR_FORMAT, "the vectors of the model lack %s", names[i]);
        }
    }
    DS_TRY(make_folder(ctx, folder, "1_Pooling"));
    for (size_t i = 0; i < json_array_size(modules); ++i) {
        const char *kind = kind_of(json_array_get(modules, i));
        char name[32];
        (void)snprintf(name, sizeof name, "%zu_Normalize", i);
        if (strcmp(kind, "Normalize") == 0) {
            DS_TRY(make_folder(ctx, folder, name));
        } else if (strcmp(kind, "Dense") == 0 && n_dense < SENTENCE_MOST_DENSE) {
            DS_TRY(write_dense(ctx, folder, files, n_dense++, read, user));
        }
    }
    for (size_t i = 0; i < sizeof names / sizeof *names; ++i) {
        DS_TRY(put(ctx, folder, names[i], json_object_get(files, names[i])));
    }
    return DS_OK;
}

ds_status sentence_folder_write(ds_ctx *ctx, const char *folder, const char *text,
                                sentence_read_fn read, void *user)
{
    json_error_t error;
    json_t *files = json_loads(text, 0, &error);
    if (files == NULL) {
        return ds_fail(ctx, DS_ERR_FORMAT, "the vectors of the model: line %d: %s", error.line,
                       error.text);
    }
    const ds_status status = write_files(ctx, folder, files, read, user);
    json_decref(files);
    return status;
}
