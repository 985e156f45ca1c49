/* SPDX-License-Identifier: Apache-2.0 */
/* Hugging Face model folders: staged beside (or inside) their place. See hf_export.h. */
#include <deepspeed/hf_export.h>

#include "base/reserved.h"
#include "ckpt/model_weights.h"
#include "ckpt/stacked.h"
#include "io/file.h"
#include "io/json_load.h"
#include "io/safetensors_write.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct ds_hf_export {
    ds_ctx *ctx;
    char *folder;
    char *parent;
    bool merges; /* the folder exists: files move into it */
    dsi_stage stage;
    ds_dtype dtype;
    uint64_t max_shard_bytes;
    uint32_t task;
    ds_tensor_source *sources;
    size_t n, capacity;
};

static ds_status no_memory(ds_ctx *ctx)
{
    return ds_fail(ctx, DS_ERR_NOMEM, "out of memory exporting a model folder");
}

void ds_hf_export_abort(ds_hf_export **export_)
{
    ds_hf_export *e = export_ != NULL ? *export_ : NULL;
    if (e == NULL) {
        return;
    }
    dsi_folder_unstage(&e->stage);
    free(e->folder);
    free(e->parent);
    free(e->sources);
    free(e);
    *export_ = NULL;
}

/* Name of a dtype in config.json; NULL for one that a model is not stored in. */
static const char *torch_name(ds_dtype dtype)
{
    switch (dtype) {
    case DS_DTYPE_F32:
        return "float32";
    case DS_DTYPE_BF16:
        return "bfloat16";
    case DS_DTYPE_F16:
        return "float16";
    default:
        return NULL;
    }
}

/* config.json with the dtype of the export; NULL when out of memory. */
static char *config_text(json_t *root, ds_dtype dtype)
{
    const char *keys[] = {"dtype", "torch_dtype"};
    bool had = false;
    for (size_t i = 0; i < 2; ++i) {
        if (json_object_get(root, keys[i]) != NULL) {
            had = true;
            (void)json_object_set_new(root, keys[i], json_string(torch_name(dtype)));
        }
    }
    if (!had) {
        (void)json_object_set_new(root, "torch_dtype", json_string(torch_name(dtype)));
    }
    (void)json_object_del(root, "quantization_config"); /* what is written is plain */
    return json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
}

static ds_status write_text(const ds_hf_export *e, const char *name, const char *text)
{
    char *path = dsi_path_join(e->stage.path, name);
    if (path == NULL) {
        return no_memory(e->ctx);
    }
    const ds_status status = dsi_file_replace(e->ctx, path, text, strlen(text));
    free(path);
    return status;
}

static ds_status write_config(const ds_hf_export *e, const char *json)
{
    json_t *root = NULL;
    char *wide = dsi_json_widen(json, strlen(json));
    if (wide == NULL) {
        return no_memory(e->ctx);
    }
    const ds_status loaded = dsi_json_load(e->ctx, "the model's config.json", wide, strlen(wide), 0,
                                           DS_ERR_FORMAT, &root);
    free(wide);
    DS_TRY(loaded);
    if (!json_is_object(root)) {
        json_decref(root);
        return ds_fail(e->ctx, DS_ERR_FORMAT, "the model's config.json is no object");
    }
    ds_status status;
    if (e->dtype == DS_DTYPE_NONE) {
        status = write_text(e, "config.json", json);
    } else {
        char *text = config_text(root, e->dtype);
        status = text != NULL ? write_text(e, "config.json", text) : no_memory(e->ctx);
        free(text);
    }
    json_decref(root);
    return status;
}

/* Templates beside the one of the tokenizer, a file each, as transformers keeps them. */
static ds_status copy_templates(const ds_hf_export *e, const char *from)
{
    static const char name[] = "additional_chat_templates";
    struct stat st;
    char **names = NULL;
    size_t n = 0;
    char *source = dsi_path_join(from, name);
    char *target = dsi_path_join(e->stage.path, name);
    ds_status status = source != NULL && target != NULL ? DS_OK : no_memory(e->ctx);
    if (status == DS_OK && stat(source, &st) == 0 && S_ISDIR(st.st_mode)) {
        status = dsi_folder_make(e->ctx, target);
        status = status < 0 ? status : dsi_folder_list(e->ctx, source, &names, &n);
    }
    for (size_t i = 0; i < n && status == DS_OK; ++i) {
        char *one = dsi_path_join(source, names[i]);
        char *other = dsi_path_join(target, names[i]);
        const bool file = one != NULL && stat(one, &st) == 0 && S_ISREG(st.st_mode);
        status = one == NULL || other == NULL ? no_memory(e->ctx)
                 : file                       ? dsi_file_copy(e->ctx, one, other)
                                              : DS_OK;
        free(one);
        free(other);
    }
    dsi_names_free(names, n);
    free(source);
    free(target);
    return status;
}

static ds_status copy_files(const ds_hf_export *e, const char *from)
{
    static const char *const names[] = {"tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "tokenizer.model",
                                        "spiece.model",
                                        "chat_template.jinja",
                                        "chat_template.json",
                                        "generation_config.json"};
    struct stat st;
    if (stat(from, &st) != 0 || !S_ISDIR(st.st_mode)) {
        return ds_fail(e->ctx, DS_ERR_NOT_FOUND, "%s is not a model folder", from);
    }
    ds_status status = DS_OK;
    for (size_t i = 0; i < sizeof names / sizeof names[0] && status == DS_OK; ++i) {
        char *source = dsi_path_join(from, names[i]);
        char *target = dsi_path_join(e->stage.path, names[i]);
        if (source == NULL || target == NULL) {
            status = no_memory(e->ctx);
        } else if (access(source, F_OK) == 0) {
            status = dsi_file_copy(e->ctx, source, target);
        }
        free(source);
        free(target);
    }
    return status == DS_OK ? copy_templates(e, from) : status;
}

/* Chooses where to stage: inside of a folder that exists, else beside it. What stands there in the
 * way is found now and not after the work; names of many shards are known later. */
static ds_status stage(ds_hf_export *e)
{
    static const char *const names[] = {"config.json", "model.safetensors",
                                        "model.safetensors.index.json"};
    struct stat st;
    size_t n = strlen(e->folder);
    while (n > 1 && e->folder[n - 1] == '/') {
        e->folder[--n] = '\0';
    }
    e->parent = dsi_path_folder(e->folder);
    if (e->parent == NULL) {
        return no_memory(e->ctx);
    }
    if (stat(e->folder, &st) == 0) {
        e->merges = true;
        if (!S_ISDIR(st.st_mode)) {
            return ds_fail(e->ctx, DS_ERR_IO, "cannot write the model folder %s: it is a file",
                           e->folder);
        }
        DS_TRY(dsi_folder_takes(e->ctx, e->folder, names, sizeof names / sizeof *names));
        dsi_folder_clean(e->folder, "model");
        return dsi_folder_stage(e->ctx, e->folder, "model", &e->stage);
    }
    if (!dsi_path_is_plain(dsi_path_name(e->folder))) {
        return ds_fail(e->ctx, DS_ERR_ARG, "'%s' cannot be the path of a model folder", e->folder);
    }
    DS_TRY(dsi_folder_make(e->ctx, e->parent));
    dsi_folder_clean(e->parent, dsi_path_name(e->folder));
    return dsi_folder_stage(e->ctx, e->parent, dsi_path_name(e->folder), &e->stage);
}

ds_status ds_hf_export_begin(ds_ctx *ctx, const ds_hf_export_params *params,
                             ds_hf_export **export_out)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_hf_export_params", params));
    if (params->dtype != DS_DTYPE_NONE && torch_name(params->dtype) == NULL) {
        return ds_fail(ctx, DS_ERR_ARG, "a model folder is stored in f32, bf16 or f16, not in %s",
                       ds_dtype_name(params->dtype));
    }
    ds_hf_export *e = calloc(1, sizeof *e);
    if (e == NULL) {
        return no_memory(ctx);
    }
    e->ctx = ctx;
    e->stage.lock = -1;
    e->dtype = params->dtype;
    e->max_shard_bytes = params->max_shard_bytes;
    e->task = params->task;
    e->folder = strdup(params->folder);
    ds_status status = e->folder != NULL ? stage(e) : no_memory(ctx);
    if (status == DS_OK) {
        status = write_config(e, params->config_json);
    }
    if (status == DS_OK && params->copy_from != NULL) {
        status = copy_files(e, params->copy_from);
    }
    if (status < 0) {
        ds_hf_export_abort(&e);
        return status;
    }
    *export_out = e;
    return DS_OK;
}

static bool is_real(ds_dtype dtype)
{
    return torch_name(dtype) != NULL || dtype == DS_DTYPE_F64;
}

ds_status ds_hf_export_add(ds_hf_export *e, const ds_tensor_source *source)
{
    DS_TRY(DSI_RESERVED_CHECK(e->ctx, "ds_tensor_source", source));
    if (e->n == e->capacity) {
        const size_t capacity = e->capacity > 0 ? 2 * e->capacity : 256;
        ds_tensor_source *grown = realloc(e->sources, capacity * sizeof *grown);
        if (grown == NULL) {
            return no_memory(e->ctx);
        }
        e->sources = grown;
        e->capacity = capacity;
    }
    e->sources[e->n] = *source;
    if (e->dtype != DS_DTYPE_NONE && source->stored == DS_DTYPE_NONE &&
        is_real(source->meta.dtype)) {
        e->sources[e->n].stored = e->dtype;
    }
    ++e->n;
    return DS_OK;
}

const char *ds_hf_export_folder(const ds_hf_export *e)
{
    return e->stage.path;
}

static ds_status merge(ds_hf_export *e)
{
    char **names = NULL;
    size_t n = 0;
    DS_TRY(dsi_folder_merge(e->ctx, &e->stage, e->folder, &names, &n));
    const ds_status status = dsi_safetensors_remove_stale(e->ctx, e->folder, names, n);
    dsi_names_free(names, n);
    return status;
}

/* "XForCausalLM", "XLMHeadModel" and "XForMaskedLM" become "XForSequenceClassification", or
 * "XForTokenClassification". */
static json_t *classifier_of(const char *architecture, bool of_tokens)
{
    static const char *const heads[] = {"ForCausalLM",
                                        "LMHeadModel",
                                        "ForMaskedLM",
                                        "ForPreTraining",
                                        "ForSequenceClassification",
                                        "ForTokenClassification"};
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; ++i) {
        const char *head = strstr(architecture, heads[i]);
        if (head != NULL) {
            return json_sprintf("%.*sFor%sClassification", (int)(head - architecture), architecture,
                                of_tokens ? "Token" : "Sequence");
        }
    }
    return json_string(architecture);
}

/* The head for scores or classes. */
typedef struct classifier {
    int64_t n; /* classes, 1 of scores; 0: there is no such head */
    bool of_tokens;
    bool of_either; /* names do not say which: ModernBERT's */
} classifier;

static classifier find_classifier(const ds_hf_export *e)
{
    classifier c = {0};
    bool pools = false;
    for (size_t i = 0; i < e->n; ++i) {
        const char *name = e->sources[i].name;
        const bool scores = strcmp(name, DSI_SCORE_HEAD) == 0;
        const bool classes = strcmp(name, "classifier.weight") == 0 ||
                             strcmp(name, "classifier.out_proj.weight") == 0;
        pools = pools || scores || strstr(name, ".pooler.dense.") != NULL ||
                strcmp(name, "classifier.out_proj.weight") == 0;
        c.n = scores || classes ? e->sources[i].meta.shape.dims[0] : c.n;
        c.of_either = c.of_either || strcmp(name, "head.dense.weight") == 0;
    }
    c.of_either = c.of_either && e->task == DS_TASK_TOKENS;
    c.of_tokens =
        e->task == DS_TASK_TOKENS ? !pools && !c.of_either : e->task == DS_TASK_TOKEN_CLASSES;
    return c;
}

static void number_labels(json_t *root, int64_t n)
{
    json_t *by_id = json_object();
    json_t *by_name = json_object();
    for (int64_t i = 0; i < n; ++i) {
        char id[24];
        char name[32];
        (void)snprintf(id, sizeof id, "%lld", (long long)i);
        (void)snprintf(name, sizeof name, "LABEL_%lld", (long long)i);
        (void)json_object_set_new(by_id, id, json_string(name));
        (void)json_object_set_new(by_name, name, json_integer(i));
    }
    (void)json_object_set_new(root, "id2label", by_id);
    (void)json_object_set_new(root, "label2id", by_name);
}

/* transformers takes config.json to be that of a classifier of so many labels. */
static ds_status write_classifier(const ds_hf_export *e, classifier c)
{
    char *path = dsi_path_join(e->stage.path, "config.json");
    json_t *root = path != NULL ? json_load_file(path, JSON_REJECT_DUPLICATES, NULL) : NULL;
    const char *name = json_string_value(json_array_get(json_object_get(root, "architectures"), 0));
    char *text = NULL;
    if (json_is_object(root)) {
        if (name != NULL) {
            const bool says_tokens = strstr(name, "ForTokenClassification") != NULL;
            (void)json_array_set_new(json_object_get(root, "architectures"), 0,
                                     classifier_of(name, c.of_either ? says_tokens : c.of_tokens));
        }
        if (c.n == 1 || (int64_t)json_object_size(json_object_get(root, "id2label")) != c.n) {
            number_labels(root, c.n);
        }
        text = json_dumps(root, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
    }
    const ds_status status = text != NULL ? write_text(e, "config.json", text) : no_memory(e->ctx);
    free(text);
    free(path);
    json_decref(root);
    return status;
}

static ds_status write_weights(const ds_hf_export *e)
{
    static const ds_text_pair format = {"format", "pt"};
    ds_safetensors_params params = {.metadata = &format, .n_metadata = 1};
    dsi_unstacked *stored = NULL;
    size_t n = 0;
    DS_TRY(dsi_unstacked_create(e->ctx, e->sources, e->n, &stored));
    const ds_tensor_source *sources = dsi_unstacked_sources(stored, &n);
    params.keep_order = dsi_unstacked_any(stored);
    const ds_status status =
        dsi_safetensors_write_set(e->ctx, e->stage.path, sources, n, e->max_shard_bytes, &params);
    dsi_unstacked_destroy(&stored);
    return status;
}

ds_status ds_hf_export_finish(ds_hf_export **export_)
{
    ds_hf_export *e = *export_;
    ds_status status = write_weights(e);
    const classifier head = find_classifier(e);
    if (status == DS_OK && head.n > 0) {
        status = write_classifier(e, head);
    }
    if (status == DS_OK) {
        status = e->merges ? merge(e)
                           : dsi_folder_publish(e->ctx, &e->stage, e->parent,
                                                dsi_path_name(e->folder), true);
    }
    ds_hf_export_abort(export_);
    return status;
}
