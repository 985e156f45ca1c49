/* SPDX-License-Identifier: Apache-2.0 */
/* A value that was read from one file of torch.save, written into another. See torch_write.h. */
#include "io/torch_write.h"

#include "io/pickle.h"

#include <string.h>

/* Of a tree that was small because parts of it were shared. */
enum { MOST_VALUES = 1000000 };

static ds_status fill(void *user, size_t offset, void *data, size_t n)
{
    const dsi_pickle_tensor *t = user;
    memcpy(data, dsi_pickle_dense(t) + offset, n);
    return DS_OK;
}

static bool copy_tensor(dsi_torch_out *out, const dsi_pickle_tensor *t)
{
    static const ds_dtype known[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_F16,
                                     DS_DTYPE_F64, DS_DTYPE_I64,  DS_DTYPE_I32,
                                     DS_DTYPE_I8,  DS_DTYPE_U8,   DS_DTYPE_BOOL};
    bool is_known = false;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; ++i) {
        is_known = is_known || dsi_pickle_dtype(t) == known[i];
    }
    if (!is_known || dsi_pickle_dense(t) == NULL) {
        return false;
    }
    const size_t storage = dsi_torch_storage(out, dsi_pickle_dtype(t), ds_shape_count(t->shape),
                                             fill, (void *)(uintptr_t)t);
    dsi_torch_tensor(out, storage, 0, t->shape);
    return true;
}

static bool copy(dsi_torch_out *out, const dsi_pickle *value, size_t *left);

static bool copy_items(dsi_torch_out *out, const dsi_pickle *value, size_t *left)
{
    for (size_t i = 0; i < value->list.n; ++i) {
        if (!copy(out, value->list.items[i], left)) {
            return false;
        }
    }
    return true;
}

static bool copy(dsi_torch_out *out, const dsi_pickle *value, size_t *left)
{
    bool whole = true;
    if (*left == 0) {
        return false;
    }
    --*left;
    switch (value->kind) {
    case DSI_PICKLE_NONE:
        dsi_torch_none(out);
        break;
    case DSI_PICKLE_BOOL:
        dsi_torch_bool(out, value->truth);
        break;
    case DSI_PICKLE_INT:
        dsi_torch_whole(out, value->whole);
        break;
    case DSI_PICKLE_REAL:
        dsi_torch_real(out, value->real);
        break;
    case DSI_PICKLE_TEXT:
        whole = dsi_pickle_text(value) != NULL;
        dsi_torch_text(out, whole ? dsi_pickle_text(value) : "");
        break;
    case DSI_PICKLE_TUPLE:
        dsi_torch_tuple(out);
        whole = copy_items(out, value, left);
        dsi_torch_tuple_end(out);
        break;
    case DSI_PICKLE_LIST:
        dsi_torch_list(out);
        whole = copy_items(out, value, left);
        dsi_torch_list_end(out);
        break;
    case DSI_PICKLE_DICT:
        dsi_torch_dict(out);
        whole = copy_items(out, value, left);
        dsi_torch_dict_end(out);
        break;
    case DSI_PICKLE_TENSOR:
        whole = copy_tensor(out, value->tensor);
        break;
    default:
        whole = false;
    }
    return whole;
}

bool dsi_torch_copy(dsi_torch_out *out, const dsi_pickle *value)
{
    size_t left = MOST_VALUES;
    return copy(out, value, &left);
}
