/* SPDX-License-Identifier: Apache-2.0 */
/* See sentence_folder.h. */
#include "common/sentence_folder.h"

#include <jansson.h>
#include <string.h>
#include <unistd.h>

enum { PATH_BYTES = 4096 };

static const struct {
    const char *name, *key;
} poolings[DS_POOLS] = {
    [DS_POOL_FIRST] = {"cls", "pooling_mode_cls_token"},
    [DS_POOL_MEAN] = {"mean", "pooling_mode_mean_tokens"},
    [DS_POOL_LAST] = {"last", "pooling_mode_lasttoken"},
    [DS_POOL_MAX] = {"max", "pooling_mode_max_tokens"},
    [DS_POOL_MEAN_SQRT] = {"mean_sqrt", "pooling_mode_mean_sqrt_len_tokens"},
    [DS_POOL_WEIGHTED] = {"weighted", "pooling_mode_weightedmean_tokens"},
};

static ds_status load(ds_ctx *ctx, const char *folder, const char *name, json_t **json_out)
{
    char path[2 * PATH_BYTES];
    json_error_t error;
    (void)snprintf(path, sizeof path, "%s/%s", folder, name);
    *json_out = json_load_file(path, 0, &error);
    return *json_out != NULL ? DS_OK : ds_fail(ctx, DS_ERR_FORMAT, "%s: %s", path, error.text);
}

/* pooling_mode_*: one of them is true. */
static ds_status read_pooling(ds_ctx *ctx, const char *path, const json_t *config,
                              ds_pool *pool_out)
{
    int n = 0;
    const char *key = NULL;
    json_t *value = NULL;
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

static ds_status read_module(ds_ctx *ctx, const char *folder, const json_t *module, bool named,
                             sentence_form *form)
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
    if (strcmp(kind, "Pooling") == 0) {
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
                   "folder itself), Pooling and Normalize are",
                   folder, kind, path);
}

/* A text that goes before each: its tokens would have to be there, too. */
static ds_status check_prompt(ds_ctx *ctx, const char *folder)
{
    char path[PATH_BYTES];
    json_t *config = NULL;
    (void)snprintf(path, sizeof path, "%s/config_sentence_transformers.json", folder);
    if (access(path, F_OK) != 0) {
        return DS_OK;
    }
    DS_TRY(load(ctx, folder, "config_sentence_transformers.json", &config));
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
    (void)snprintf(path, sizeof path, "%s/modules.json", folder);
    if (access(path, F_OK) != 0) {
        return DS_OK;
    }
    DS_TRY(check_prompt(ctx, folder));
    DS_TRY(load(ctx, folder, "modules.json", &modules));
    form->normalize = false;
    for (size_t i = 0; i < json_array_size(modules) && status >= 0; ++i) {
        status = read_module(ctx, folder, json_array_get(modules, i), named, form);
    }
    json_decref(modules);
    return status;
}
