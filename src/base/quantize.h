/* SPDX-License-Identifier: Apache-2.0 */
/* The arithmetic of fake quantization and of masks of the largest, stated once: the kernels of
 * fake_quant and top_mask use it, and so does what writes a compressed model. Formulas are those of
 * DeepSpeed's compression library (docs/internals/compress.md), in fp32.
 *
 * A group of n numbers is measured block by block, the blocks' parts are joined in order, a scale
 * is made of the whole, and it is applied block by block. Sums are in double, in eight lanes by
 * index, so that their bits do not depend on how blocks are spread over threads.
 */
#ifndef DSI_BASE_QUANTIZE_H
#define DSI_BASE_QUANTIZE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DSI_QUANT_BLOCK = 4096 };

typedef struct dsi_quant_part {
    float low, high;     /* smallest, largest */
    double sum;          /* of magnitudes */
    double kept, n_kept; /* sum and number of magnitudes above a threshold */
} dsi_quant_part;

typedef struct dsi_quant_scale {
    int bits;
    float step;      /* of the grid, from 3 bits on; 0: all stay as they are */
    float zero;      /* an element of the grid that stands for index 0 */
    float low, high; /* indices of the grid's ends */
    float threshold; /* of 2 bits: what is below counts as 0 */
    float level;     /* of 1 and 2 bits: the magnitude of what does not */
} dsi_quant_scale;

/* Nothing yet: what is joined with it stays. */
dsi_quant_part dsi_quant_nothing(void);
/* low, high and sum of a block. */
dsi_quant_part dsi_quant_measure(const float *x, size_t n);
/* kept and n_kept of a block. */
dsi_quant_part dsi_quant_measure_kept(const float *x, size_t n, float threshold);
void dsi_quant_join(dsi_quant_part *part, const dsi_quant_part *next);
/* Of 2 bits the level waits for what is kept above the threshold. */
dsi_quant_scale dsi_quant_scale_of(const dsi_quant_part *part, size_t n, int bits, bool asymmetric);
/* noise: NULL, or in [-0.5,0.5) for each, added before a number is rounded to the grid. x and out
 * may be the same. */
void dsi_quant_apply(const dsi_quant_scale *scale, const float *x, const float *noise, float *out,
                     size_t n);

/* How many of n a share keeps: ceil(ratio·n). */
size_t dsi_top_count(double ratio, size_t n);
/* mask[i] = 1 for the `count` largest of n, the first of equal ones, else 0. NaN counts as largest.
 */
void dsi_top_mask(const float *x, size_t n, size_t count, unsigned char *mask);

#endif
