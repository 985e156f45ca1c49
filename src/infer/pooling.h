/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of a document's tokens into one (ds_pool), a row at a time in their order: so the bits do
 * not depend on the pieces that a document runs in. */
#ifndef DSI_INFER_POOLING_H
#define DSI_INFER_POOLING_H

#include <deepspeed/encoder.h>

/* Row i of the document; row 0 begins `pooled` anew. */
void dsi_pool_add(ds_pool pool, double *pooled, int64_t width, int64_t i, const float *row);
/* After all n rows. */
void dsi_pool_end(ds_pool pool, const double *pooled, int64_t width, int64_t n, float *out);

#endif
