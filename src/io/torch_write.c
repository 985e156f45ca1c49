/* SPDX-License-Identifier: Apache-2.0 */
/* See torch_write.h. Opcodes: Python's pickletools, protocol 2. */
#include "io/torch_write.h"

#include "io/zip_write.h"

#include <assert.h>
#include <deepspeed/context.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Data in flight. */
#define BLOCK_BYTES ((size_t)512 << 10)
/* Ceiling of the pickle. */
#define MOST_PICKLE ((size_t)256 << 20)

enum {
    OP_MARK = '(',
    OP_STOP = '.',
    OP_FLOAT = 'G',
    OP_INT = 'J',
    OP_NONE = 'N',
    OP_PERSISTENT = 'Q',
    OP_REDUCE = 'R',
    OP_TEXT = 'X',
    OP_BUILD = 'b',
    OP_GLOBAL = 'c',
    OP_APPENDS = 'e',
    OP_TUPLE = 't',
    OP_EMPTY_TUPLE = ')',
    OP_EMPTY_LIST = ']',
    OP_EMPTY_DICT = '}',
    OP_SETITEMS = 'u',
    OP_PROTOCOL = 0x80,
    OP_NEW_OBJECT = 0x81,
    OP_TRUE = 0x88,
    OP_FALSE = 0x89,
    OP_LONG = 0x8a
};

static void op(dsi_torch_out *out, int code)
{
    dsi_buf_putc(&out->pickle, (char)code);
}

static void low_first(dsi_torch_out *out, uint64_t value, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        op(out, (int)(value >> (8 * i) & 0xff));
    }
}

dsi_torch_out dsi_torch_out_make(ds_ctx *ctx)
{
    dsi_torch_out out = {.ctx = ctx, .pickle = dsi_buf_make(MOST_PICKLE)};
    op(&out, OP_PROTOCOL);
    op(&out, 2);
    return out;
}

void dsi_torch_out_free(dsi_torch_out *out)
{
    dsi_buf_free(&out->pickle);
    free(out->storages);
    out->storages = NULL;
}

void dsi_torch_none(dsi_torch_out *out)
{
    op(out, OP_NONE);
}

void dsi_torch_bool(dsi_torch_out *out, bool value)
{
    op(out, value ? OP_TRUE : OP_FALSE);
}

void dsi_torch_whole(dsi_torch_out *out, int64_t value)
{
    if (value >= INT32_MIN && value <= INT32_MAX) {
        op(out, OP_INT);
        low_first(out, (uint64_t)value, 4);
    } else {
        op(out, OP_LONG);
        op(out, 8);
        low_first(out, (uint64_t)value, 8);
    }
}

void dsi_torch_real(dsi_torch_out *out, double value)
{
    uint64_t bits;
    memcpy(&bits, &value, sizeof bits);
    op(out, OP_FLOAT);
    for (size_t i = sizeof bits; i-- > 0;) {
        op(out, (int)(bits >> (8 * i) & 0xff));
    }
}

void dsi_torch_text(dsi_torch_out *out, const char *text)
{
    const size_t n = strlen(text);
    out->failed = out->failed || n > UINT32_MAX;
    op(out, OP_TEXT);
    low_first(out, n, 4);
    dsi_buf_append(&out->pickle, text, n);
}

void dsi_torch_dict(dsi_torch_out *out)
{
    op(out, OP_EMPTY_DICT);
    op(out, OP_MARK);
}

void dsi_torch_ordered(dsi_torch_out *out)
{
    dsi_torch_global(out, "collections", "OrderedDict");
    op(out, OP_EMPTY_TUPLE);
    op(out, OP_REDUCE);
    op(out, OP_MARK);
}

void dsi_torch_dict_end(dsi_torch_out *out)
{
    op(out, OP_SETITEMS);
}

void dsi_torch_list(dsi_torch_out *out)
{
    op(out, OP_EMPTY_LIST);
    op(out, OP_MARK);
}

void dsi_torch_list_end(dsi_torch_out *out)
{
    op(out, OP_APPENDS);
}

void dsi_torch_tuple(dsi_torch_out *out)
{
    op(out, OP_MARK);
}

void dsi_torch_tuple_end(dsi_torch_out *out)
{
    op(out, OP_TUPLE);
}

void dsi_torch_global(dsi_torch_out *out, const char *module, const char *name)
{
    op(out, OP_GLOBAL);
    dsi_buf_puts(&out->pickle, module);
    dsi_buf_putc(&out->pickle, '\n');
    dsi_buf_puts(&out->pickle, name);
    dsi_buf_putc(&out->pickle, '\n');
}

void dsi_torch_object(dsi_torch_out *out, const char *module, const char *name)
{
    dsi_torch_global(out, module, name);
    op(out, OP_EMPTY_TUPLE);
    op(out, OP_NEW_OBJECT);
    dsi_torch_dict(out);
}

void dsi_torch_object_end(dsi_torch_out *out)
{
    dsi_torch_dict_end(out);
    op(out, OP_BUILD);
}

static void dims(dsi_torch_out *out, ds_shape shape)
{
    dsi_torch_tuple(out);
    for (uint32_t i = 0; i < shape.n_dims; ++i) {
        dsi_torch_whole(out, shape.dims[i]);
    }
    dsi_torch_tuple_end(out);
}

void dsi_torch_size(dsi_torch_out *out, ds_shape shape)
{
    dsi_torch_global(out, "torch", "Size");
    dsi_torch_tuple(out);
    dims(out, shape);
    dsi_torch_tuple_end(out);
    op(out, OP_REDUCE);
}

/* ---- tensors ---- */

static const char *storage_class(ds_dtype dtype)
{
    switch (dtype) {
    case DS_DTYPE_F32:
        return "FloatStorage";
    case DS_DTYPE_BF16:
        return "BFloat16Storage";
    case DS_DTYPE_F16:
        return "HalfStorage";
    case DS_DTYPE_F64:
        return "DoubleStorage";
    case DS_DTYPE_I64:
        return "LongStorage";
    case DS_DTYPE_I32:
        return "IntStorage";
    case DS_DTYPE_I8:
        return "CharStorage";
    case DS_DTYPE_U8:
        return "ByteStorage";
    case DS_DTYPE_BOOL:
        return "BoolStorage";
    default:
        return NULL;
    }
}

size_t dsi_torch_storage(dsi_torch_out *out, ds_dtype dtype, int64_t count, ds_tensor_fill_fn fill,
                         void *user)
{
    if (out->n == out->room) {
        const size_t room = out->room > 0 ? 2 * out->room : 16;
        dsi_torch_storage_out *grown = realloc(out->storages, room * sizeof *grown);
        if (grown == NULL) {
            out->failed = true;
            return 0;
        }
        out->storages = grown;
        out->room = room;
    }
    assert(storage_class(dtype) != NULL);
    out->storages[out->n] = (dsi_torch_storage_out){dtype, count, fill, user};
    return out->n++;
}

static void persistent_storage(dsi_torch_out *out, size_t storage)
{
    char key[24];
    const dsi_torch_storage_out *s = &out->storages[storage];
    (void)snprintf(key, sizeof key, "%zu", storage);
    dsi_torch_tuple(out);
    dsi_torch_text(out, "storage");
    dsi_torch_global(out, "torch", storage_class(s->dtype));
    dsi_torch_text(out, key);
    dsi_torch_text(out, "cpu");
    dsi_torch_whole(out, s->count);
    dsi_torch_tuple_end(out);
    op(out, OP_PERSISTENT);
}

void dsi_torch_tensor(dsi_torch_out *out, size_t storage, int64_t offset, ds_shape shape)
{
    ds_shape strides = shape;
    if (out->failed) {
        return;
    }
    for (uint32_t i = shape.n_dims; i-- > 0;) {
        const int64_t below = i + 1 < shape.n_dims ? shape.dims[i + 1] : 1;
        strides.dims[i] = i + 1 < shape.n_dims ? strides.dims[i + 1] * (below > 0 ? below : 1) : 1;
    }
    dsi_torch_global(out, "torch._utils", "_rebuild_tensor_v2");
    dsi_torch_tuple(out);
    persistent_storage(out, storage);
    dsi_torch_whole(out, offset);
    dims(out, shape);
    dims(out, strides);
    dsi_torch_bool(out, false); /* requires_grad */
    dsi_torch_ordered(out);     /* hooks: none */
    dsi_torch_dict_end(out);
    dsi_torch_tuple_end(out);
    op(out, OP_REDUCE);
}

/* ---- the file ---- */

static ds_status write_text(dsi_zip_out *zip, const char *name, const char *text, size_t n)
{
    DS_TRY(dsi_zip_out_begin(zip, name, n));
    DS_TRY(dsi_zip_out_give(zip, text, n));
    return dsi_zip_out_end(zip);
}

static ds_status write_storage(dsi_zip_out *zip, const dsi_torch_storage_out *s, size_t key,
                               uint8_t *block)
{
    char name[64];
    const uint64_t bytes = (uint64_t)s->count * ds_dtype_bytes(s->dtype);
    (void)snprintf(name, sizeof name, "archive/data/%zu", key);
    DS_TRY(dsi_zip_out_begin(zip, name, bytes));
    for (uint64_t at = 0; at < bytes;) {
        const size_t n = bytes - at < BLOCK_BYTES ? (size_t)(bytes - at) : BLOCK_BYTES;
        DS_TRY(s->fill(s->user, (size_t)at, block, n));
        DS_TRY(dsi_zip_out_give(zip, block, n));
        at += n;
    }
    return dsi_zip_out_end(zip);
}

static ds_status write_all(const dsi_torch_out *out, dsi_zip_out *zip, uint8_t *block)
{
    static const char stop = OP_STOP;
    DS_TRY(dsi_zip_out_begin(zip, "archive/data.pkl", out->pickle.size + 1));
    DS_TRY(dsi_zip_out_give(zip, out->pickle.data, out->pickle.size));
    DS_TRY(dsi_zip_out_give(zip, &stop, 1));
    DS_TRY(dsi_zip_out_end(zip));
    DS_TRY(write_text(zip, "archive/byteorder", "little", 6));
    for (size_t i = 0; i < out->n; ++i) {
        DS_TRY(write_storage(zip, &out->storages[i], i, block));
    }
    DS_TRY(write_text(zip, "archive/version", "3\n", 2));
    return dsi_zip_out_finish(zip);
}

ds_status dsi_torch_out_write(const dsi_torch_out *out, const char *path)
{
    dsi_file_out *file = NULL;
    uint8_t *block = malloc(BLOCK_BYTES);
    if (out->failed || out->pickle.failed || block == NULL) {
        free(block);
        return ds_fail(out->ctx, DS_ERR_NOMEM, "no memory to write %s", path);
    }
    ds_status status = dsi_file_create(out->ctx, path, &file);
    if (status >= 0) {
        dsi_zip_out zip = dsi_zip_out_make(out->ctx, file);
        status = write_all(out, &zip, block);
        dsi_zip_out_free(&zip);
    }
    status = status >= 0 ? dsi_file_commit(&file) : status;
    dsi_file_abort(&file);
    free(block);
    return status;
}
