/* SPDX-License-Identifier: Apache-2.0 */
/* Weights by the description of a checkpoint, as DeepSpeed's init_inference takes one: an object
 * with the list `checkpoints` of files and their `base_dir`, or a file with it as `checkpoint`,
 * whose own base_dir is the default. `checkpoint` may also name the file that has the object. Files
 * are of torch.save or safetensors, with the model's own names, each tensor once. */
#include "io/safetensors_internal.h"

#include "io/json_load.h"
#include <stdlib.h>
#include <string.h>

static ds_status load(ds_ctx *ctx, const char *path, json_t **root_out)
{
    enum { CEILING = 16 << 20 };
    dsi_map text;
    DS_TRY(dsi_map_open(ctx, path, 0, &text));
    const ds_status status =
        text.size > CEILING
            ? ds_fail(ctx, DS_ERR_LIMIT, "%s is larger than %d bytes", path, CEILING)
            : dsi_json_load(ctx, path, text.size > 0 ? (const char *)text.data : "", text.size, 0,
                            DS_ERR_FORMAT, root_out);
    dsi_map_close(&text);
    return status;
}

static const char *text_of(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text != NULL && text[0] != '\0' ? text : NULL;
}

static ds_status open_files(ds_ctx *ctx, const char *path, const json_t *files, const char *base,
                            ds_safetensors **st_out)
{
    ds_safetensors *st = NULL;
    ds_status status = DS_OK;
    if (!json_is_array(files) || json_array_size(files) == 0) {
        return ds_fail(
            ctx, DS_ERR_FORMAT,
            "%s: checkpoints is missing or no list of files; files cut by ranks (\"tp\") "
            "hold PyTorch's injected modules: use the model's own",
            path);
    }
    DS_TRY(dsi_safetensors_create(ctx, json_array_size(files), &st));
    for (size_t i = 0; i < json_array_size(files) && status >= 0; ++i) {
        const char *name = json_string_value(json_array_get(files, i));
        const bool joins = name != NULL && base != NULL && name[0] != '/';
        char *file = joins ? dsi_path_join(base, name) : name != NULL ? strdup(name) : NULL;
        status = name == NULL
                     ? ds_fail(ctx, DS_ERR_FORMAT, "%s: checkpoints[%zu] is no text", path, i)
                 : file == NULL ? ds_fail(ctx, DS_ERR_NOMEM, "out of memory opening %s", path)
                                : dsi_safetensors_add_any(st, file);
        free(file);
    }
    status = status < 0 ? status : dsi_safetensors_index(st);
    if (status < 0) {
        ds_safetensors_close(&st);
        return status;
    }
    *st_out = st;
    return DS_OK;
}

ds_status dsi_safetensors_described(ds_ctx *ctx, const char *path, ds_safetensors **st_out)
{
    json_t *root = NULL;
    json_t *other = NULL;
    DS_TRY(load(ctx, path, &root));
    const json_t *place = json_object_get(root, "checkpoint_config");
    const char *base = text_of(root, "base_dir");
    base = base == NULL
               ? text_of(place != NULL ? place : json_object_get(root, "ckpt_config"), "base_dir")
               : base;
    const json_t *own = json_object_get(root, "checkpoint");
    const char *elsewhere = json_string_value(own);
    ds_status status = elsewhere != NULL ? load(ctx, elsewhere, &other) : DS_OK;
    if (status >= 0) {
        const json_t *described = elsewhere != NULL ? other : own != NULL ? own : root;
        const char *inner = text_of(described, "base_dir");
        status = open_files(ctx, elsewhere != NULL ? elsewhere : path,
                            json_object_get(described, "checkpoints"), inner != NULL ? inner : base,
                            st_out);
    }
    json_decref(other);
    json_decref(root);
    return status;
}
