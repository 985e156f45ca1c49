/* SPDX-License-Identifier: Apache-2.0 */
/* Reference kernel of bmm: items are rows of the products, each sum in fp32 from the first k on. */
#include "accel/cpu/ref/ref_real.h"
#include "op/ops.h"

/* A matrix of the batch as the product reads it: element (i, j) is at base + i·down + j·right. */
typedef struct matrix {
    int64_t base, down, right;
} matrix;

static matrix matrix_of(const ds_tensor *t, int64_t transposed, int64_t item)
{
    const int64_t columns = ds_shape_last(t->meta.shape);
    const int64_t rows = t->meta.shape.dims[t->meta.shape.n_dims - 2];
    const int64_t base = item * rows * columns;
    return transposed != 0 ? (matrix){base, 1, columns} : (matrix){base, columns, 1};
}

static void bmm_range(const ds_kernel_call *call, int64_t begin, int64_t end, uint32_t slot)
{
    const dsi_bmm_attrs *t = call->sig->attrs;
    const ds_shape a_shape = call->in[0].meta.shape;
    const ds_shape y_shape = call->out[0].meta.shape;
    const int64_t k = a_shape.dims[a_shape.n_dims - (t->a_transposed != 0 ? 2 : 1)];
    const int64_t rows = y_shape.dims[y_shape.n_dims - 2];
    const int64_t columns = ds_shape_last(y_shape);
    (void)slot;
    for (int64_t row = begin; row < end; ++row) {
        const matrix a = matrix_of(&call->in[0], t->a_transposed, row / rows);
        const matrix b = matrix_of(&call->in[1], t->b_transposed, row / rows);
        const int64_t a_row = a.base + row % rows * a.down;
        for (int64_t column = 0; column < columns; ++column) {
            real sum = R(0.0);
            for (int64_t i = 0; i < k; ++i) {
                sum += ref_get(&call->in[0], a_row + i * a.right) *
                       ref_get(&call->in[1], b.base + i * b.down + column * b.right);
            }
            ref_set(&call->out[0], row * columns + column, sum);
        }
    }
}

static ds_status bmm_run(const ds_kernel_call *call)
{
    dsi_ref_for(call, ds_shape_rows(call->out[0].meta.shape), bmm_range);
    return DS_OK;
}

REF_KERNEL(bmm, bmm_run, NULL);
const ds_kernel *const DSI_REF(bmm)[] = {&bmm_kernel, NULL};
