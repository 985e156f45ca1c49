/* SPDX-License-Identifier: Apache-2.0 */
/* See bnb_state.h. */
#include "ckpt/bnb_state.h"

#include "io/json_load.h"

#include <math.h>
#include <string.h>

enum { MOST_BYTES = 1 << 16, MOST_NESTED_BLOCK = 1 << 24 };

typedef struct reader {
    ds_ctx *ctx;
    const ds_safetensor *tensor;
    const json_t *root;
} reader;

static ds_status bad(const reader *r, ds_status status, const char *key, const char *expected)
{
    return ds_fail(r->ctx, status, "%s: tensor %s: \"%s\" must be %s", r->tensor->path,
                   r->tensor->name, key, expected);
}

static const json_t *get(const reader *r, const char *key)
{
    return json_object_get(r->root, key);
}

static bool is_text(const reader *r, const char *key, const char *text)
{
    const char *found = json_string_value(get(r, key));
    return found != NULL && strcmp(found, text) == 0;
}

static ds_status read_shape(const reader *r, dsi_bnb_state *out)
{
    const json_t *shape = get(r, "shape");
    const json_t *rows = json_array_get(shape, 0), *columns = json_array_get(shape, 1);
    out->n_out = json_integer_value(rows);
    out->n_in = json_integer_value(columns);
    return json_array_size(shape) == 2 && out->n_out >= 1 && out->n_out <= INT32_MAX &&
                   out->n_in >= 1 && out->n_in <= INT32_MAX
               ? DS_OK
               : bad(r, DS_ERR_FORMAT, "shape", "a pair of sizes");
}

static ds_status read_dtype(const reader *r, dsi_bnb_state *out)
{
    static const struct {
        const char *name;
        ds_dtype dtype;
    } names[] = {{"float32", DS_DTYPE_F32}, {"bfloat16", DS_DTYPE_BF16}, {"float16", DS_DTYPE_F16}};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; ++i) {
        if (is_text(r, "dtype", names[i].name)) {
            out->dtype = names[i].dtype;
            return DS_OK;
        }
    }
    return bad(r, DS_ERR_UNSUPPORTED, "dtype", "\"float32\", \"bfloat16\" or \"float16\"");
}

/* The sizes that the package reads. */
static ds_status read_block(const reader *r, dsi_bnb_state *out)
{
    const json_int_t n = json_integer_value(get(r, "blocksize"));
    out->block = n;
    return n >= 32 && n <= 4096 && (n & (n - 1)) == 0
               ? DS_OK
               : bad(r, DS_ERR_UNSUPPORTED, "blocksize", "a power of two from 32 to 4096");
}

static ds_status read_nested(const reader *r, bool nested, dsi_bnb_state *out)
{
    static const char *const keys[] = {"nested_blocksize", "nested_dtype", "nested_offset"};
    for (size_t i = 0; i < sizeof keys / sizeof keys[0] && !nested; ++i) {
        if (get(r, keys[i]) != NULL) {
            return bad(r, DS_ERR_FORMAT, keys[i], "absent without nested_absmax beside it");
        }
    }
    if (!nested) {
        return DS_OK;
    }
    const json_t *offset = get(r, "nested_offset");
    out->nested_block = json_integer_value(get(r, "nested_blocksize"));
    out->nested_offset = (float)json_number_value(offset);
    if (out->nested_block < 1 || out->nested_block > MOST_NESTED_BLOCK) {
        return bad(r, DS_ERR_FORMAT, "nested_blocksize", "a size, as nested_absmax lies beside it");
    }
    if (!is_text(r, "nested_dtype", "float32")) {
        return bad(r, DS_ERR_UNSUPPORTED, "nested_dtype", "\"float32\"");
    }
    return json_is_number(offset) && isfinite(out->nested_offset)
               ? DS_OK
               : bad(r, DS_ERR_FORMAT, "nested_offset", "a number");
}

ds_status dsi_bnb_state_read(ds_ctx *ctx, const ds_safetensor *tensor, const char *type,
                             bool nested, dsi_bnb_state *state_out)
{
    json_error_t error;
    json_t *root = NULL;
    *state_out = (dsi_bnb_state){0};
    if (tensor->meta.dtype == DS_DTYPE_U8 && tensor->bytes <= MOST_BYTES) {
        root = dsi_json_parse(tensor->data, tensor->bytes, JSON_REJECT_DUPLICATES, &error);
    }
    const reader r = {ctx, tensor, root};
    ds_status status = json_is_object(root)
                           ? DS_OK
                           : ds_fail(ctx, DS_ERR_FORMAT, "%s: tensor %s is no JSON object in bytes",
                                     tensor->path, tensor->name);
    if (status >= 0 && !is_text(&r, "quant_type", type)) {
        status = bad(&r, DS_ERR_FORMAT, "quant_type", "what the tensor's name ends with");
    }
    status = status < 0 ? status : read_shape(&r, state_out);
    status = status < 0 ? status : read_dtype(&r, state_out);
    status = status < 0 ? status : read_block(&r, state_out);
    status = status < 0 ? status : read_nested(&r, nested, state_out);
    json_decref(root);
    return status;
}
