/* SPDX-License-Identifier: Apache-2.0 */
/* See stored_head.h. */
#include "model/stored_head.h"

#include <deepspeed/safetensors.h>
#include <stdlib.h>
#include <string.h>

/* The folder of a config.json; NULL: it has another name, or no memory. */
static char *folder_of(const char *config_path)
{
    const char *slash = strrchr(config_path, '/');
    const char *name = slash != NULL ? slash + 1 : config_path;
    return strcmp(name, "config.json") != 0 ? NULL
           : slash == NULL                  ? strdup(".")
           : slash == config_path           ? strdup("/")
                                            : strndup(config_path, (size_t)(slash - config_path));
}

static bool is_same(const ds_safetensor *a, const ds_safetensor *b)
{
    return a->meta.dtype == b->meta.dtype && ds_shape_equal(a->meta.shape, b->meta.shape) &&
           memcmp(a->data, b->data, a->bytes) == 0;
}

void dsi_stored_head(ds_ctx *ctx, const ds_model_info *info, const char *config_path,
                     bool *tied_inout)
{
    char *folder = folder_of(config_path);
    ds_safetensors *st = NULL;
    if (folder != NULL && ds_safetensors_open_folder(ctx, folder, &st) >= 0) {
        const ds_safetensor *head = ds_safetensors_find(st, info->head);
        const ds_safetensor *embedding = ds_safetensors_find(st, info->embedding);
        *tied_inout = head == NULL || embedding == NULL || is_same(head, embedding);
    }
    ds_safetensors_close(&st);
    free(folder);
}
