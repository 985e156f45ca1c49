/* SPDX-License-Identifier: Apache-2.0 */
/* embedding, a block a token; embedding_dw, a thread a column of some of the table's rows, which
 * adds the tokens in their order. An id that no row has is reported, and left out. Of a part of the
 * table other parts' tokens are -0: the sum of the parts is the row. */
#include "accel/cuda/cuda_device.h"
#include "accel/cuda/kernels/embedding.h"

DSC_INLINE bool is_row(const dsc_embedding_args *a, int64_t at, int64_t id, int64_t n)
{
    const bool fits = id >= 0 && id < n;
    if (!fits && threadIdx.x == 0) {
        dsc_report(a->fault, a->call, at, id, n);
    }
    return fits;
}

DSC_INLINE void embedding_body(const dsc_embedding_args *a, int act)
{
    for (int64_t token = blockIdx.x; token < a->n; token += gridDim.x) {
        const int64_t id = a->ids[token];
        const int64_t place = a->places != NULL ? a->positions[token] : 0;
        const int64_t row = id - (a->first != NULL ? *a->first : 0);
        const bool here = row >= 0 && row < a->n_rows;
        const bool fits = is_row(a, token, id, a->all_rows) &&
                          (a->places == NULL || is_row(a, token, place, a->n_places));
        for (int64_t j = threadIdx.x; j < a->columns && fits; j += blockDim.x) {
            float x = here ? dsc_get(a->table, act, row * a->columns + j) : -0.0f;
            if (a->places != NULL) {
                x += dsc_get(a->places, act, place * a->columns + j);
            }
            dsc_set(a->y, act, token * a->columns + j, x);
        }
    }
}

DSC_INLINE void embedding_dw_body(const dsc_embedding_args *a, int act)
{
    const int64_t column = dsc_index();
    const int64_t first = a->first != NULL ? *a->first : 0;
    const int64_t begin = (int64_t)blockIdx.y * a->part;
    const int64_t end = begin + a->part < a->n_rows ? begin + a->part : a->n_rows;
    for (int64_t row = begin; row < end && column < a->columns; ++row) {
        const int64_t at = row * a->columns + column;
        a->dtable[at] = a->dtable_in != NULL ? a->dtable_in[at] : 0.0f;
    }
    for (int64_t token = 0; token < a->n && column < a->columns; ++token) {
        const int64_t id = a->ids[token];
        const int64_t row = id - first;
        if (column == 0 && begin == 0 && (id < 0 || id >= a->all_rows)) {
            dsc_report(a->fault, a->call, token, id, a->all_rows);
        }
        if (row >= begin && row < end) {
            a->dtable[row * a->columns + column] +=
                dsc_get(a->dy, act, token * a->columns + column);
        }
    }
}

DSC_KERNEL_ACT(embedding, dsc_embedding_args)
DSC_KERNEL_ACT(embedding_dw, dsc_embedding_args)
