/* SPDX-License-Identifier: Apache-2.0 */
/* The largest singular values of a matrix and their vectors, by Golub and Kahan's bidiagonalization
 * with every vector kept orthogonal to all before it (Golub and Kahan, 1965; Simon, 1984), until
 * the residuals of those that are wanted are below 1e-7 of the largest value, or the basis is
 * whole. In double, serial, from a fixed start: the same bits wherever it runs.
 */
#ifndef DSI_BASE_TOP_SVD_H
#define DSI_BASE_TOP_SVD_H

#include <deepspeed/context.h>

/* w (m,n) ~ u·diag(s)·vᵀ. u: (r,m), v: (r,n), a vector a row; s: (r), the largest first. Pre: r is
 * at most m and n. Errors: ERR_NOMEM, ERR_NUMERIC (an element that is not finite). */
ds_status dsi_top_svd(ds_ctx *ctx, const float *w, int64_t m, int64_t n, int64_t r, double *u,
                      double *s, double *v);

#endif
