/* SPDX-License-Identifier: Apache-2.0 */
/* Inside of ds_generator. */
#ifndef DSI_INFER_GENERATOR_H
#define DSI_INFER_GENERATOR_H

#include "exec/exec.h"
#include "train/engine.h"

#include <deepspeed/infer.h>

enum { DSI_GENERATOR_PIECES = 4 };

/* A plan for pieces of one length, and the addresses of its inputs and output. */
typedef struct dsi_piece {
    int64_t length;
    dsi_plan *plan;
    uint32_t id; /* in the executor */
    int32_t *input_ids, *positions, *kv_offset, *last;
    int32_t *sequence; /* its length so far; NULL: the model does not ask */
    const float *logits;
} dsi_piece;

struct ds_generator {
    ds_ctx *ctx;
    const ds_model *model;
    ds_engine *engine; /* whose weights it has; NULL: of a file */
    ds_dtype dtype;
    int64_t max_length;
    int64_t vocab_size;
    ds_cells *cells;
    dsi_exec *exec;
    dsi_piece pieces[DSI_GENERATOR_PIECES]; /* ascending; the first decodes: length 1 */
    uint32_t n_pieces;
    int64_t length;      /* ids in the KV cells */
    const float *logits; /* behind the newest id; NULL before a prompt */
    uint32_t *order;     /* scratch of the sampler: vocab_size each */
    float *weight;
    void *source; /* what the mapped weights live in; closed by weights.c */
};

/* Binds or remembers where each parameter comes from (before memory is allocated), and converts
 * those of another dtype (after). Closing frees the mapping. */
ds_status dsi_generator_bind_weights(ds_generator *generator, const ds_generator_params *params);
ds_status dsi_generator_convert_weights(ds_generator *generator);
void dsi_generator_close_weights(ds_generator *generator);
/* The same of a live engine, after everything else. own: how that went on this rank. Collective. */
ds_status dsi_generator_take_engine(ds_generator *generator, ds_status own);
/* The dtype of the stored weights, NONE when they cannot be found. */
ds_status dsi_generator_stored_dtype(ds_ctx *ctx, const ds_generator_params *params,
                                     ds_dtype *dtype_out);

#endif
