/* SPDX-License-Identifier: Apache-2.0 */
/* Reading the values of a pickle. See pickle.h. */
#include "io/pickle.h"

#include <string.h>

bool dsi_pickle_is(const dsi_pickle *value, dsi_pickle_kind kind)
{
    return value != NULL && value->kind == kind;
}

const char *dsi_pickle_text(const dsi_pickle *value)
{
    return dsi_pickle_is(value, DSI_PICKLE_TEXT) && strlen(value->text.data) == value->text.n
               ? value->text.data
               : NULL;
}

const dsi_pickle *dsi_pickle_get(const dsi_pickle *dict, const char *key)
{
    if (!dsi_pickle_is(dict, DSI_PICKLE_DICT)) {
        return NULL;
    }
    for (size_t i = dict->list.n; i >= 2; i -= 2) {
        const char *text = dsi_pickle_text(dict->list.items[i - 2]);
        if (text != NULL && strcmp(text, key) == 0) {
            return dict->list.items[i - 1];
        }
    }
    return NULL;
}

static bool is_list(const dsi_pickle *value)
{
    return dsi_pickle_is(value, DSI_PICKLE_LIST) || dsi_pickle_is(value, DSI_PICKLE_TUPLE);
}

const dsi_pickle *dsi_pickle_at(const dsi_pickle *list, size_t i)
{
    return is_list(list) && i < list->list.n ? list->list.items[i] : NULL;
}

size_t dsi_pickle_count(const dsi_pickle *value)
{
    return is_list(value)                          ? value->list.n
           : dsi_pickle_is(value, DSI_PICKLE_DICT) ? value->list.n / 2
                                                   : 0;
}

bool dsi_pickle_whole(const dsi_pickle *value, int64_t *whole_out)
{
    if (!dsi_pickle_is(value, DSI_PICKLE_INT)) {
        return false;
    }
    *whole_out = value->whole;
    return true;
}

/* The element of a tensor that has one. */
static bool element(const dsi_pickle_tensor *t, double *number_out)
{
    const uint8_t *data = dsi_pickle_dense(t);
    float single;
    int64_t whole;
    if (ds_shape_count(t->shape) != 1 || data == NULL) {
        return false;
    }
    switch (dsi_pickle_dtype(t)) {
    case DS_DTYPE_F32:
        memcpy(&single, data, sizeof single);
        *number_out = (double)single;
        return true;
    case DS_DTYPE_F64:
        memcpy(number_out, data, sizeof *number_out);
        return true;
    case DS_DTYPE_I64:
        memcpy(&whole, data, sizeof whole);
        *number_out = (double)whole;
        return true;
    default:
        return false;
    }
}

bool dsi_pickle_number(const dsi_pickle *value, double *number_out)
{
    if (dsi_pickle_is(value, DSI_PICKLE_INT)) {
        *number_out = (double)value->whole;
        return true;
    }
    if (dsi_pickle_is(value, DSI_PICKLE_REAL)) {
        *number_out = value->real;
        return true;
    }
    return dsi_pickle_is(value, DSI_PICKLE_TENSOR) && element(value->tensor, number_out);
}

/* ---- tensors ---- */

ds_dtype dsi_pickle_dtype(const dsi_pickle_tensor *tensor)
{
    return tensor->storage->type->dtype;
}

size_t dsi_pickle_bytes(const dsi_pickle_tensor *tensor)
{
    return (size_t)ds_shape_count(tensor->shape) * tensor->storage->type->bytes;
}

const uint8_t *dsi_pickle_dense(const dsi_pickle_tensor *t)
{
    int64_t stride = 1;
    for (uint32_t i = t->shape.n_dims; i-- > 0;) {
        if (t->shape.dims[i] > 1 && t->strides[i] != stride) {
            return NULL;
        }
        stride *= t->shape.dims[i];
    }
    return t->storage->data + (size_t)t->offset * t->storage->type->bytes;
}

void dsi_pickle_copy(const dsi_pickle_tensor *t, void *data)
{
    const size_t width = t->storage->type->bytes;
    const uint8_t *from = t->storage->data;
    uint8_t *to = data;
    int64_t index[DS_MAX_DIMS] = {0};
    int64_t at = t->offset;
    for (int64_t left = ds_shape_count(t->shape); left > 0; --left) {
        memcpy(to, from + (size_t)at * width, width);
        to += width;
        for (uint32_t i = t->shape.n_dims; i-- > 0;) {
            at += t->strides[i];
            if (++index[i] < t->shape.dims[i]) {
                break;
            }
            at -= t->strides[i] * t->shape.dims[i];
            index[i] = 0;
        }
    }
}
