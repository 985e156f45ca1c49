/* SPDX-License-Identifier: Apache-2.0 */
/* config.json beside an adapter of classes. See adapter_problem.h. */
#include "model/adapter_problem.h"

#include "base/buf.h"
#include "io/file.h"
#include "io/json_load.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MOST_BYTES = 1 << 26 };

static const char *const fields[] = {"problem_type", "id2label", "label2id"};

/* *root_out: NULL where there is none. */
static ds_status load(ds_ctx *ctx, const char *path, json_t **root_out)
{
    dsi_buf text = dsi_buf_make(MOST_BYTES);
    json_error_t error;
    *root_out = NULL;
    if (access(path, F_OK) != 0) {
        return DS_OK;
    }
    ds_status status = dsi_buf_read_file(ctx, path, &text);
    if (status >= 0) {
        *root_out = dsi_json_parse(dsi_buf_text(&text), text.size, 0, &error);
        status =
            *root_out != NULL ? DS_OK : ds_fail(ctx, DS_ERR_FORMAT, "%s: %s", path, error.text);
    }
    dsi_buf_free(&text);
    return status;
}

ds_status dsi_adapter_problem_read(ds_ctx *ctx, const char *folder, json_t *config)
{
    char *path = folder != NULL ? dsi_path_join(folder, "config.json") : NULL;
    json_t *root = NULL;
    if (path == NULL) {
        return folder == NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory for a path");
    }
    const ds_status status = load(ctx, path, &root);
    const bool says = json_is_string(json_object_get(root, "problem_type"));
    for (size_t i = 0; i < sizeof fields / sizeof fields[0] && says; ++i) {
        json_t *value = json_object_get(root, fields[i]);
        if (value != NULL) {
            (void)json_object_set(config, fields[i], value);
        }
    }
    json_decref(root);
    free(path);
    return status;
}

ds_status dsi_adapter_problem_write(ds_ctx *ctx, const char *folder, const char *config_json)
{
    char *path = dsi_path_join(folder, "config.json");
    json_t *root = json_loads(config_json, 0, NULL);
    const bool needed = json_is_string(json_object_get(root, "problem_type"));
    json_decref(root);
    if (path == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a path");
    }
    const ds_status status = needed || access(path, F_OK) == 0
                                 ? dsi_file_replace(ctx, path, config_json, strlen(config_json))
                                 : DS_OK;
    free(path);
    return status;
}
