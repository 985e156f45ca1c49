/* SPDX-License-Identifier: Apache-2.0 */
/* Element types and shapes. See include/deepspeed/tensor.h. */
#include "base/blocks.h"
#include "base/file_dtype.h"

#include <stdio.h>
#include <string.h>

typedef struct dtype_row {
    const char *name;
    const char *safetensors;
    size_t bytes;
} dtype_row;

static const dtype_row dtype_rows[DSI_DTYPE_END] = {[DS_DTYPE_NONE] = {"none", "NONE", 0},
                                                    [DS_DTYPE_Q8_0] = {"q8_0", "", 0},
                                                    [DS_DTYPE_Q4_0] = {"q4_0", "", 0},
                                                    [DS_DTYPE_Q4_1] = {"q4_1", "", 0},
                                                    [DS_DTYPE_Q5_0] = {"q5_0", "", 0},
                                                    [DS_DTYPE_Q5_1] = {"q5_1", "", 0},
                                                    [DS_DTYPE_Q4_K] = {"q4_k", "", 0},
                                                    [DS_DTYPE_Q5_K] = {"q5_k", "", 0},
                                                    [DS_DTYPE_Q6_K] = {"q6_k", "", 0},
                                                    [DSI_DTYPE_F8_E4M3] = {"f8_e4m3", "F8_E4M3", 1},
                                                    [DSI_DTYPE_F8_E5M2] = {"f8_e5m2", "F8_E5M2", 1},
                                                    [DSI_DTYPE_F8_E8M0] = {"f8_e8m0", "F8_E8M0", 1},
#define X(id, text, st, n) [DS_DTYPE_##id] = {text, st, n},
                                                    DS_DTYPE_LIST(X)
#undef X
};

static const struct {
    const char *name;
    ds_dtype dtype;
} dtype_aliases[] = {
    {"float32", DS_DTYPE_F32},   {"fp32", DS_DTYPE_F32},    {"float", DS_DTYPE_F32},
    {"bfloat16", DS_DTYPE_BF16}, {"float16", DS_DTYPE_F16}, {"fp16", DS_DTYPE_F16},
    {"half", DS_DTYPE_F16},      {"float64", DS_DTYPE_F64}, {"double", DS_DTYPE_F64},
    {"int32", DS_DTYPE_I32},     {"int64", DS_DTYPE_I64},   {"uint8", DS_DTYPE_U8},
};

const char *ds_dtype_name(ds_dtype dtype)
{
    return dtype_rows[dtype].name;
}

size_t ds_dtype_bytes(ds_dtype dtype)
{
    return dtype_rows[dtype].bytes;
}

const char *ds_dtype_safetensors(ds_dtype dtype)
{
    return dtype_rows[dtype].safetensors;
}

ds_dtype ds_dtype_from_name(const char *name)
{
    for (int i = 1; i < DS_DTYPE_ALL; ++i) {
        if (strcmp(name, dtype_rows[i].name) == 0) {
            return (ds_dtype)i;
        }
    }
    for (size_t i = 0; i < sizeof dtype_aliases / sizeof dtype_aliases[0]; ++i) {
        if (strcmp(name, dtype_aliases[i].name) == 0) {
            return dtype_aliases[i].dtype;
        }
    }
    return DS_DTYPE_NONE;
}

ds_dtype ds_dtype_from_safetensors(const char *name)
{
    for (int i = 1; i < DSI_DTYPE_END; ++i) {
        if (dtype_rows[i].bytes > 0 && strcmp(name, dtype_rows[i].safetensors) == 0) {
            return (ds_dtype)i;
        }
    }
    return DS_DTYPE_NONE;
}

ds_shape ds_shape_of(uint32_t n_dims, const int64_t *dims)
{
    ds_shape shape = {.n_dims = n_dims};
    for (uint32_t i = 0; i < n_dims && i < DS_MAX_DIMS; ++i) {
        shape.dims[i] = dims[i];
    }
    return shape;
}

ds_shape ds_shape_1d(int64_t a)
{
    return (ds_shape){.n_dims = 1, .dims = {a}};
}

ds_shape ds_shape_2d(int64_t a, int64_t b)
{
    return (ds_shape){.n_dims = 2, .dims = {a, b}};
}

ds_shape ds_shape_3d(int64_t a, int64_t b, int64_t c)
{
    return (ds_shape){.n_dims = 3, .dims = {a, b, c}};
}

ds_shape ds_shape_4d(int64_t a, int64_t b, int64_t c, int64_t d)
{
    return (ds_shape){.n_dims = 4, .dims = {a, b, c, d}};
}

bool ds_shape_equal(ds_shape a, ds_shape b)
{
    if (a.n_dims != b.n_dims) {
        return false;
    }
    for (uint32_t i = 0; i < a.n_dims; ++i) {
        if (a.dims[i] != b.dims[i]) {
            return false;
        }
    }
    return true;
}

/* Product of dims[0..n), saturating. */
static int64_t product(const int64_t *dims, uint32_t n)
{
    int64_t count = 1;
    for (uint32_t i = 0; i < n; ++i) {
        if (dims[i] <= 0) {
            return 0;
        }
        count = count > INT64_MAX / dims[i] ? INT64_MAX : count * dims[i];
    }
    return count;
}

int64_t ds_shape_count(ds_shape shape)
{
    return product(shape.dims, shape.n_dims);
}

int64_t ds_shape_rows(ds_shape shape)
{
    return shape.n_dims == 0 ? 1 : product(shape.dims, shape.n_dims - 1);
}

int64_t ds_shape_last(ds_shape shape)
{
    return shape.n_dims == 0 ? 1 : shape.dims[shape.n_dims - 1];
}

/* Of a matrix in blocks; SIZE_MAX: its rows are no whole blocks, or it is too large. */
static size_t blocks_bytes(ds_meta meta)
{
    const int64_t last = ds_shape_last(meta.shape);
    const int64_t panels = (ds_shape_rows(meta.shape) + DSI_BLOCK_ROWS - 1) / DSI_BLOCK_ROWS;
    if (last % dsi_block_length(meta.dtype) != 0 || last > INT32_MAX || panels > INT32_MAX) {
        return SIZE_MAX;
    }
    return (size_t)panels * dsi_panel_bytes(meta.dtype, last);
}

size_t ds_meta_bytes(ds_meta meta)
{
    if (dsi_is_blocks(meta.dtype)) {
        return blocks_bytes(meta);
    }
    const uint64_t count = (uint64_t)ds_shape_count(meta.shape);
    const size_t bytes = ds_dtype_bytes(meta.dtype);
    return bytes != 0 && count > SIZE_MAX / bytes ? SIZE_MAX : (size_t)count * bytes;
}

char *ds_meta_text(ds_meta meta, char *text, size_t n)
{
    size_t at = (size_t)snprintf(text, n, "%s[", ds_dtype_name(meta.dtype));
    for (uint32_t i = 0; i < meta.shape.n_dims && at < n; ++i) {
        at += (size_t)snprintf(text + at, n - at, i == 0 ? "%lld" : ",%lld",
                               (long long)meta.shape.dims[i]);
    }
    if (at < n) {
        (void)snprintf(text + at, n - at, "]");
    }
    return text;
}
