/* SPDX-License-Identifier: Apache-2.0 */
/* Packed weights from files. See packed_weight.h. */
#include "ckpt/packed_weight.h"

#include "base/half.h"

#include <stdlib.h>

typedef struct source {
    const ds_packed *packed;
    ds_dtype compute;
    dsi_packed_fn read;
    void *user;
    float *whole; /* as it is stored, where that is (columns,rows); else NULL */
} source;

static void round_to(ds_dtype dtype, float *x, int64_t n)
{
    for (int64_t i = 0; i < n && dtype == DS_DTYPE_BF16; ++i) {
        x[i] = dsi_bf16_to_f32(dsi_f32_to_bf16(x[i]));
    }
    for (int64_t i = 0; i < n && dtype == DS_DTYPE_F16; ++i) {
        x[i] = dsi_f16_to_f32(dsi_f32_to_f16(x[i]));
    }
}

/* Elements row by row of the matrix that is packed. */
static ds_status give(void *user, int64_t first, int64_t n, float *out)
{
    const source *s = user;
    const int64_t rows = s->packed->rows, columns = s->packed->columns;
    if (s->whole == NULL) {
        DS_TRY(s->read(s->user, first, n, out));
    }
    for (int64_t i = 0; i < n && s->whole != NULL; ++i) {
        out[i] = s->whole[(first + i) % columns * rows + (first + i) / columns];
    }
    round_to(s->compute, out, n);
    return DS_OK;
}

ds_status dsi_packed_fill(ds_ctx *ctx, const ds_cell_info *cell, ds_dtype compute,
                          dsi_packed_fn read, void *user, void *data)
{
    const int64_t n = cell->packed.rows * cell->packed.columns;
    source s = {.packed = &cell->packed, .compute = compute, .read = read, .user = user};
    ds_status status = DS_OK;
    if (cell->packed.transposed != 0) {
        s.whole = malloc((size_t)n * sizeof *s.whole);
        status = s.whole != NULL ? read(user, 0, n, s.whole)
                                 : ds_fail(ctx, DS_ERR_NOMEM, "no memory to pack %s", cell->name);
    }
    status = status < 0 ? status : dsi_packed_write(ctx, &cell->packed, give, &s, data);
    free(s.whole);
    return status == DS_ERR_NUMERIC
               ? ds_fail(ctx, status, "%s has an element that is not finite: it cannot be packed",
                         cell->name)
               : status;
}

ds_status dsi_packed_stored(void *user, int64_t first, int64_t n, float *out)
{
    const dsi_packed_source *s = user;
    return dsi_weight_read(s->ctx, s->weight, first, n, DS_DTYPE_F32, out);
}

ds_status dsi_packed_load(ds_ctx *ctx, const ds_cell_info *cell, ds_dtype compute,
                          const dsi_weight *weight, void *data)
{
    dsi_packed_source from = {ctx, weight};
    return dsi_packed_fill(ctx, cell, compute, dsi_packed_stored, &from, data);
}

ds_status dsi_packed_unpack(ds_ctx *ctx, const ds_cell_info *cell, const void *data, float *out)
{
    const ds_packed *p = &cell->packed;
    if (p->transposed == 0) {
        dsi_packed_read(p, data, 0, p->rows * p->columns, out);
        return DS_OK;
    }
    float *row = malloc((size_t)p->columns * sizeof *row);
    if (row == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory to unpack %s", cell->name);
    }
    for (int64_t r = 0; r < p->rows; ++r) {
        dsi_packed_read(p, data, r * p->columns, p->columns, row);
        for (int64_t c = 0; c < p->columns; ++c) {
            out[c * p->rows + r] = row[c];
        }
    }
    free(row);
    return DS_OK;
}
