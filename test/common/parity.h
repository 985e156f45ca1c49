/* SPDX-License-Identifier: Apache-2.0 */
/* The parity goldens through the library's own engine. For tests. */
#ifndef DS_TEST_PARITY_H
#define DS_TEST_PARITY_H

#include "common/check.h"
#include "common/golden.h"
#include "train/engine.h"

enum { PARITY_N = 17, PARITY_PATH = 1024 };
extern const char *const parity_variants[PARITY_N];

/* One variant, opened. */
typedef struct parity_case {
    const char *name;
    char folder[PARITY_PATH]; /* model folder */
    golden_file golden;
    json_t *scalars;
    ds_model *model;
    ds_named_tensor tensors[4];
    ds_batch batch;
    int64_t n_batch, n_seq, vocab; /* vocab: width of the logits */
    uint32_t task, n_classes;      /* of ds_trace; encoders whose name ends so have classes */
} parity_case;

void parity_open(ds_ctx *ctx, const char *name, parity_case *p);
/* One of encoders, of test/golden/encoder; its targets are the input `labels`. */
void parity_open_encoder(ds_ctx *ctx, const char *name, parity_case *p);
/* One of sources and what is made of them, of test/golden/t5. */
void parity_open_pairs(ds_ctx *ctx, const char *name, parity_case *p);
void parity_close(parity_case *p);

/* AdamW as the goldens were made: lr 1e-3, decay 0.01 on everything, no clipping. */
dsi_engine_spec parity_spec(const parity_case *p, ds_dtype dtype, ds_isa isa);
/* An engine with the variant's weights. */
ds_engine *parity_engine(ds_ctx *ctx, const parity_case *p, const dsi_engine_spec *spec);

/* Logits (B,T,V) in fp32 through an evaluation graph in dtype; the caller frees. */
float *parity_logits(ds_ctx *ctx, const parity_case *p, ds_dtype dtype, ds_isa isa);

#endif
