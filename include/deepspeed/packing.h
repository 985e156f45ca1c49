/* SPDX-License-Identifier: Apache-2.0 */
/* Weights in few bits: how a frozen matrix is held in memory, to be unpacked in each product.
 *
 * A packed matrix W (rows,columns), rows being outputs, is one cell of bytes. Its elements are
 * numbered row by row; "block" means so many of them in a row, whatever row they are in.
 *
 *   nf4         4 bits an element, an index into 16 quantiles of the normal distribution; the
 *               largest magnitude of each block of 64 in fp32. 4.5 bits an element
 *   nf4_double  those magnitudes, less their mean, in 8 bits, with the largest of each block of 256
 *               in fp32. 4.127 bits an element
 *   int8        whole numbers from -127 to 127, 127 being the largest magnitude of the row, in fp32
 *   fp8         8-bit reals (e4m3); the largest magnitude of each row over 448 in fp32
 *
 * Sources: Dettmers et al., "QLoRA", 2023, and bitsandbytes, whose bytes nf4 has; Micikevicius et
 * al., "FP8 Formats for Deep Learning", 2022.
 */
#ifndef DEEPSPEED_PACKING_H
#define DEEPSPEED_PACKING_H

#include <deepspeed/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

/* enum suffix, name */
#define DS_PACKING_LIST(X)                                                                         \
    X(NF4, "nf4")                                                                                  \
    X(NF4_DOUBLE, "nf4_double")                                                                    \
    X(INT8, "int8")                                                                                \
    X(FP8, "fp8")

typedef enum ds_packing {
    DS_PACKING_NONE = 0, /* not packed */
#define X(id, text) DS_PACKING_##id,
    DS_PACKING_LIST(X)
#undef X
        DS_PACKING_COUNT
} ds_packing;

/* A packed matrix. */
typedef struct ds_packed {
    ds_packing format;
    uint32_t transposed; /* 1: the model's files store it as (columns,rows) */
    int64_t rows, columns;
} ds_packed;

DS_API const char *ds_packing_name(ds_packing format);    /* "nf4"; "none" for NONE */
DS_API ds_packing ds_packing_from_name(const char *name); /* NONE when unknown */
DS_API size_t ds_packed_bytes(const ds_packed *packed);   /* saturating at SIZE_MAX */

#ifdef __cplusplus
}
#endif
#endif
