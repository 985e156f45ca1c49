/* SPDX-License-Identifier: Apache-2.0 */
/* pytorch_model.bin as weights: a file of torch.save whose value is a dict of tensors by name.
 * Entries point into the map as those of safetensors do. A tensor that is not row-major (saved
 * transposed, say) is copied; several names for one storage are entries that share its bytes.
 * Called by safetensors_folder.c. */
#include "io/safetensors_internal.h"
#include "io/torch_file.h"

#include <string.h>

/* The entry of a pair of the dict. */
static ds_status make_entry(ds_safetensors *st, const dsi_st_file *file, const dsi_pickle *key,
                            const dsi_pickle *value, ds_safetensor *entry)
{
    const char *name = dsi_pickle_text(key);
    if (name == NULL || name[0] == '\0' || !dsi_pickle_is(value, DSI_PICKLE_TENSOR)) {
        return ds_fail(st->ctx, DS_ERR_FORMAT,
                       "%s: '%.120s' is no tensor: expected a dict of tensors by name, as "
                       "save_pretrained writes it",
                       file->path, name != NULL ? name : "a key that is no text");
    }
    const dsi_pickle_tensor *t = value->tensor;
    const ds_dtype dtype = dsi_pickle_dtype(t);
    const size_t bytes = dsi_pickle_bytes(t);
    const uint8_t *data = dsi_pickle_dense(t);
    if (dtype == DS_DTYPE_NONE) {
        return ds_fail(st->ctx, DS_ERR_UNSUPPORTED,
                       "%s: tensor '%.120s' is of %s, which is not supported; convert it to "
                       "float32, bfloat16 or float16",
                       file->path, name, t->storage->type->name);
    }
    const uint64_t offset = data != NULL ? (uint64_t)(data - file->map.data) : 0;
    if (data == NULL) {
        void *copy = dsi_arena_alloc(st->arena, bytes);
        if (copy == NULL) {
            return ds_fail(st->ctx, DS_ERR_NOMEM, "no memory to put tensor '%.120s' of %s in order",
                           name, file->path);
        }
        dsi_pickle_copy(t, copy);
        data = copy;
    }
    *entry = (ds_safetensor){.name = dsi_arena_strdup(st->arena, name),
                             .meta = {dtype, t->shape},
                             .data = bytes > 0 ? data : NULL,
                             .bytes = bytes,
                             .path = file->path,
                             .file_offset = offset};
    return entry->name != NULL
               ? DS_OK
               : ds_fail(st->ctx, DS_ERR_NOMEM, "out of memory opening %s", file->path);
}

static ds_status add_entries(ds_safetensors *st, const dsi_st_file *file, const dsi_pickle *root)
{
    const size_t n = dsi_pickle_count(root);
    if (!dsi_pickle_is(root, DSI_PICKLE_DICT)) {
        return ds_fail(st->ctx, DS_ERR_FORMAT,
                       "%s holds no dict of tensors by name, as save_pretrained writes it",
                       file->path);
    }
    DS_TRY(dsi_safetensors_grow(st, n));
    for (size_t i = 0; i < n; ++i) {
        DS_TRY(make_entry(st, file, root->list.items[2 * i], root->list.items[2 * i + 1],
                          &st->entries[st->n_entries]));
        ++st->n_entries;
    }
    return DS_OK;
}

ds_status dsi_safetensors_add_torch(ds_safetensors *st, const char *path, uint32_t map_flags)
{
    dsi_st_file *file = &st->files[st->n_files];
    dsi_torch_file torch = {0};
    file->path = dsi_arena_strdup(st->arena, path);
    if (file->path == NULL) {
        return ds_fail(st->ctx, DS_ERR_NOMEM, "out of memory opening %s", path);
    }
    DS_TRY(dsi_torch_open(st->ctx, path, map_flags, &torch));
    file->map = torch.map;
    ++st->n_files;
    const ds_status status = add_entries(st, file, torch.root);
    (void)dsi_torch_take_map(&torch); /* it is the file's now */
    return status;
}
