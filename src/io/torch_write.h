/* SPDX-License-Identifier: Apache-2.0 */
/* Writes files that torch.load takes, weights_only where it knows the classes: one pickle of
 * protocol 2 (without a memo), and the bytes of its storages. What torch_file.h reads. Called by
 * the writers of DeepSpeed's checkpoints in src/ckpt.
 *
 *     dsi_torch_out out = dsi_torch_out_make(ctx);
 *     dsi_torch_dict(&out);
 *     dsi_torch_text(&out, "weight");                       key, then value
 *     dsi_torch_tensor(&out, dsi_torch_storage(&out, …), 0, shape);
 *     dsi_torch_dict_end(&out);
 *     status = dsi_torch_out_write(&out, path);
 *     dsi_torch_out_free(&out);
 *
 * Values are appended one after the other; a failure to allocate is kept and returned by write.
 */
#ifndef DSI_IO_TORCH_WRITE_H
#define DSI_IO_TORCH_WRITE_H

#include "base/buf.h"
#include "io/pickle.h"

#include <deepspeed/safetensors.h>

/* Elements side by side, which come block by block from fill, called while the file is written. */
typedef struct dsi_torch_storage_out {
    ds_dtype dtype;
    int64_t count;
    ds_tensor_fill_fn fill;
    void *user; /* borrowed until dsi_torch_out_free */
} dsi_torch_storage_out;

typedef struct dsi_torch_out {
    ds_ctx *ctx;
    dsi_buf pickle;
    dsi_torch_storage_out *storages;
    size_t n, room;
    bool failed;
} dsi_torch_out;

dsi_torch_out dsi_torch_out_make(ds_ctx *ctx);
void dsi_torch_out_free(dsi_torch_out *out);
/* Writes a new file of that name, and syncs it. Errors: ERR_NOMEM, as dsi_file_create, what fill
 * returns. */
ds_status dsi_torch_out_write(const dsi_torch_out *out, const char *path);

void dsi_torch_none(dsi_torch_out *out);
void dsi_torch_bool(dsi_torch_out *out, bool value);
void dsi_torch_whole(dsi_torch_out *out, int64_t value);
void dsi_torch_real(dsi_torch_out *out, double value);
void dsi_torch_text(dsi_torch_out *out, const char *text);
/* Keys and values until dsi_torch_dict_end; the second is a collections.OrderedDict. */
void dsi_torch_dict(dsi_torch_out *out);
void dsi_torch_ordered(dsi_torch_out *out);
void dsi_torch_dict_end(dsi_torch_out *out);
void dsi_torch_list(dsi_torch_out *out);
void dsi_torch_list_end(dsi_torch_out *out);
void dsi_torch_tuple(dsi_torch_out *out);
void dsi_torch_tuple_end(dsi_torch_out *out);
/* torch.Size */
void dsi_torch_size(dsi_torch_out *out, ds_shape shape);
/* A class or another name of a module. */
void dsi_torch_global(dsi_torch_out *out, const char *module, const char *name);
/* An instance: its attributes follow as keys and values until dsi_torch_object_end. */
void dsi_torch_object(dsi_torch_out *out, const char *module, const char *name);
void dsi_torch_object_end(dsi_torch_out *out);
/* A storage for tensors; its key. dtype: F32, BF16, F16, F64, I64, I32, I8, U8 or BOOL. */
size_t dsi_torch_storage(dsi_torch_out *out, ds_dtype dtype, int64_t count, ds_tensor_fill_fn fill,
                         void *user);
/* A tensor of row-major elements of the storage, from the element `offset` on. */
void dsi_torch_tensor(dsi_torch_out *out, size_t storage, int64_t offset, ds_shape shape);
/* A value of another file as the next one; it outlives the writing. false: it has a class, a tensor
 * that is not in row-major order, or too many values; then what was written is of no use. */
bool dsi_torch_copy(dsi_torch_out *out, const dsi_pickle *value);

#endif
