/* SPDX-License-Identifier: Apache-2.0 */
/* The one matrix product of the reference kernels: x·w for a panel of REF_PANEL columns, each sum
 * in fp32 from 0, from the first k to the last. Columns are computed side by side, so the order of
 * a sum never changes. */
#ifndef DSI_ACCEL_CPU_REF_DOT_H
#define DSI_ACCEL_CPU_REF_DOT_H

#include "accel/cpu/ref/ref_real.h"

enum { REF_PANEL = 32 }; /* wide enough that compilers keep the sums in vector registers */

/* A matrix of n_in by n_out, stored (in,out) when transposed, else (out,in). */
typedef struct ref_matrix {
    const ds_tensor *t;
    int64_t n_in, n_out;
    bool transposed;
} ref_matrix;

static inline ref_matrix ref_matrix_of(const ds_tensor *t, int64_t transposed)
{
    const int64_t *d = t->meta.shape.dims;
    return (ref_matrix){t, d[transposed != 0 ? 0 : 1], d[transposed != 0 ? 1 : 0], transposed != 0};
}

static inline int64_t ref_matrix_at(const ref_matrix *m, int64_t in, int64_t out)
{
    return m->transposed ? in * m->n_out + out : out * m->n_in + in;
}

/* panel[k·REF_PANEL + j] = m(k, column + j), 0 past the last column. */
static inline void ref_pack_panel(const ref_matrix *m, int64_t column, real *panel)
{
    for (int64_t j = 0; j < REF_PANEL; ++j) {
        for (int64_t k = 0; k < m->n_in; ++k) {
            panel[k * REF_PANEL + j] =
                column + j < m->n_out ? ref_get(m->t, ref_matrix_at(m, k, column + j)) : R(0.0);
        }
    }
}

static inline void ref_dot_panel(const real *x, const real *panel, int64_t n, real *sums)
{
    real s[REF_PANEL] = {0};
    for (int64_t k = 0; k < n; ++k) {
        for (int j = 0; j < REF_PANEL; ++j) {
            s[j] += x[k] * panel[k * REF_PANEL + j];
        }
    }
    for (int j = 0; j < REF_PANEL; ++j) {
        sums[j] = s[j];
    }
}

#endif
