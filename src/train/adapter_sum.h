/* SPDX-License-Identifier: Apache-2.0 */
/* One weight with the adapters that are merged into it: W + scale·B·A, of DoRA with its rows at
 * their trained lengths, an adapter after the other, as PEFT merges a list of them. In fp32,
 * element by element, so that nothing but A and B is held. Called by adapter_merge.c alone.
 */
#ifndef DSI_TRAIN_ADAPTER_SUM_H
#define DSI_TRAIN_ADAPTER_SUM_H

#include <deepspeed/safetensors.h>
#include <stdbool.h>

/* What one adapter adds. */
typedef struct dsi_adapter_term dsi_adapter_term;
struct dsi_adapter_term {
    float *a,
        *b; /* (rank,columns) and (rows,rank) of the stored weight: swapped where transposed */
    int64_t rank;
    double scale;
    float *lengths; /* DoRA: what each output is scaled by then; NULL: nothing */
    uint32_t part;  /* which of the adapters */
    dsi_adapter_term *next;
};

typedef struct dsi_adapter_sum {
    const ds_safetensor *weight; /* NULL: it stays as it is */
    int64_t rows, columns;
    int64_t experts; /* rows are of so many matrices one under the other, each with its A */
    bool turned;     /* outputs are the columns of the stored weight */
    dsi_adapter_term *first, *last;
} dsi_adapter_sum;

/* A term behind the others, with nothing in it; NULL: no memory. */
dsi_adapter_term *dsi_adapter_sum_add(dsi_adapter_sum *sum);
/* lengths: of the last adapter's rows; becomes what outputs are scaled by, lengths / |W +
 * scale·B·A| of that adapter alone, as in PEFT: the sum takes it over. Errors: ERR_NOMEM. */
ds_status dsi_adapter_sum_lengths(ds_ctx *ctx, dsi_adapter_sum *sum, float *lengths);
/* n bytes of the sum in fp32: a ds_tensor_source's fill. */
ds_status dsi_adapter_sum_fill(void *sum, size_t offset, void *data, size_t n);
void dsi_adapter_sum_free(dsi_adapter_sum *sum);

#endif
