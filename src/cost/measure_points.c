/* SPDX-License-Identifier: Apache-2.0 */
/* The shapes on which operators are measured. See measure.h. */
#include "cost/measure.h"

#include <string.h>

/* Shapes of GPT-2 124M and of smaller models; see measure_ops.c for what variant means. */
static const dsi_measure_point points[DSI_MEASURE_POINTS] = {
    {DS_CLASS_LINEAR, 0, 4096, 768, 768},
    {DS_CLASS_LINEAR, 1, 4096, 768, 3072},
    {DS_CLASS_LINEAR, 3, 4096, 3072, 768},
    {DS_CLASS_LINEAR, 1, 1024, 2304, 768},
    {DS_CLASS_LINEAR, 0, 2048, 512, 512},
    {DS_CLASS_LINEAR, 0, 512, 1408, 512},
    {DS_CLASS_LINEAR, 1, 256, 768, 3072},
    {DS_CLASS_LINEAR, 3, 256, 3072, 768},
    {DS_CLASS_LINEAR, 0, 128, 2304, 768},
    {DS_CLASS_LINEAR, 0, 256, 256, 256},
    {DS_CLASS_LINEAR_DW, 3, 768, 3072, 4096},
    {DS_CLASS_LINEAR_DW, 3, 768, 768, 4096},
    {DS_CLASS_LINEAR_DW, 1, 3072, 768, 1024},
    {DS_CLASS_LINEAR_DW, 0, 512, 1408, 2048},
    {DS_CLASS_LINEAR_DW, 3, 768, 3072, 256},
    {DS_CLASS_LINEAR_DW, 1, 2304, 768, 256},
    {DS_CLASS_LINEAR_DW, 0, 256, 256, 512},
    {DS_CLASS_LOSS, 0, 2048, 50257, 768},
    {DS_CLASS_LOSS, 0, 256, 50257, 768},
    {DS_CLASS_LOSS, 0, 1024, 32000, 512},
    {DS_CLASS_LOSS, 0, 512, 8192, 512},
    {DS_CLASS_LOSS_BACKWARD, 0, 2048, 50257, 768},
    {DS_CLASS_LOSS_BACKWARD, 0, 256, 50257, 768},
    {DS_CLASS_LOSS_BACKWARD, 0, 1024, 32000, 512},
    {DS_CLASS_LOSS_BACKWARD, 0, 512, 8192, 512},
    {DS_CLASS_ATTENTION, 12, 12288, 1024, 64},
    {DS_CLASS_ATTENTION, 12, 12288, 256, 64},
    {DS_CLASS_ATTENTION, 12, 3072, 256, 64},
    {DS_CLASS_ATTENTION, 8, 16384, 2048, 64},
    {DS_CLASS_ATTENTION, 4, 4096, 512, 128},
    {DS_CLASS_ATTENTION_BACKWARD, 12, 12288, 1024, 64},
    {DS_CLASS_ATTENTION_BACKWARD, 12, 12288, 256, 64},
    {DS_CLASS_ATTENTION_BACKWARD, 12, 3072, 256, 64},
    {DS_CLASS_ATTENTION_BACKWARD, 8, 16384, 2048, 64},
    {DS_CLASS_ATTENTION_BACKWARD, 4, 4096, 512, 128},
    {DS_CLASS_NORM, 0, 4096, 768, 0},
    {DS_CLASS_NORM, 1, 2048, 512, 0},
    {DS_CLASS_NORM_BACKWARD, 0, 4096, 768, 0},
    {DS_CLASS_NORM_BACKWARD, 1, 2048, 512, 0},
    {DS_CLASS_ELEMENTWISE, 0, 4096, 3072, 0},
    {DS_CLASS_ELEMENTWISE, 1, 2048, 1408, 0},
    {DS_CLASS_ELEMENTWISE, 2, 2048, 1408, 0},
    {DS_CLASS_ELEMENTWISE, 3, 4096, 768, 0},
    {DS_CLASS_EMBEDDING, 0, 4096, 768, 50257},
    {DS_CLASS_EMBEDDING_BACKWARD, 0, 4096, 768, 50257},
    {DS_CLASS_REDUCE, 0, 32 << 20, 0, 0},
    {DS_CLASS_REDUCE, 1, 32 << 20, 0, 0},
    {DS_CLASS_OPTIMIZER, 0, 24 << 20, 0, 0},
    {DS_CLASS_COPY, 0, 24 << 20, 0, 0},
};

/* Seconds that products of a round may take on rows as many as training has; more is measured on
 * fewer: what takes that long is bound by arithmetic, which does not mind. */
#define MOST_SECONDS 2.0

static double flops_of(const dsi_measure_point *p)
{
    const double products = p->op_class == DS_CLASS_LOSS_BACKWARD ? 3.0 : 1.0;
    return dsi_op_class_is_model(p->op_class)
               ? products * 2.0 * (double)p->m * (double)p->n * (double)p->k
               : 0.0;
}

static void take_rows(dsi_measure_point *p)
{
    switch (p->op_class) {
    case DS_CLASS_LINEAR:
        p->m = p->m > 512 ? p->m / 4 : p->m;
        break;
    case DS_CLASS_LINEAR_DW:
        p->k = p->k > 512 ? p->k / 4 : p->k;
        break;
    case DS_CLASS_LOSS:
    case DS_CLASS_LOSS_BACKWARD:
        p->m /= 4;
        p->n /= 2;
        break;
    default:
        break;
    }
}

void dsi_measure_points(double rate, dsi_measure_point points_out[DSI_MEASURE_POINTS])
{
    double flops = 0.0;
    memcpy(points_out, points, sizeof points);
    for (int i = 0; i < DSI_MEASURE_POINTS; ++i) {
        flops += flops_of(&points[i]);
    }
    for (int i = 0; i < DSI_MEASURE_POINTS && flops > MOST_SECONDS * rate; ++i) {
        take_rows(&points_out[i]);
    }
}
