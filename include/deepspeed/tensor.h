/* SPDX-License-Identifier: Apache-2.0 */
/* Element types, shapes and borrowed views of dense row-major tensors. */
#ifndef DEEPSPEED_TENSOR_H
#define DEEPSPEED_TENSOR_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define DS_MAX_DIMS 8 /* law: no tensor has more */

/* enum suffix, text name, safetensors name, bytes an element */
#define DS_DTYPE_LIST(X)                                                                           \
    X(F32, "f32", "F32", 4)                                                                        \
    X(BF16, "bf16", "BF16", 2)                                                                     \
    X(F16, "f16", "F16", 2)                                                                        \
    X(F64, "f64", "F64", 8)                                                                        \
    X(I8, "i8", "I8", 1)                                                                           \
    X(U8, "u8", "U8", 1)                                                                           \
    X(I32, "i32", "I32", 4)                                                                        \
    X(I64, "i64", "I64", 8)                                                                        \
    X(BOOL, "bool", "BOOL", 1)

typedef enum ds_dtype {
    DS_DTYPE_NONE = 0, /* an absent tensor */
#define X(name, text, st, bytes) DS_DTYPE_##name,
    DS_DTYPE_LIST(X)
#undef X
        DS_DTYPE_COUNT,
    /* Of whole matrices: 32 values of a row share a scale (docs/internals/serve.md). They have no
     * elements of their own: ds_dtype_bytes is 0. */
    DS_DTYPE_Q8_0 = DS_DTYPE_COUNT, /* ggml's: f16 scale, 32 bytes */
    DS_DTYPE_Q4_0,                  /* f16 scale, 32 half bytes */
    DS_DTYPE_Q4_1,                  /* f16 scale and minimum, 32 half bytes */
    DS_DTYPE_Q5_0,                  /* f16 scale, 32 values of five bits */
    DS_DTYPE_Q5_1,                  /* f16 scale and minimum, 32 values of five bits */
    DS_DTYPE_Q4_K,                  /* 256 values of four bits; scales and minima of 32 are six-bit
                                       numbers times an f16 */
    DS_DTYPE_Q5_K,                  /* the same of five bits */
    DS_DTYPE_Q6_K, /* 256 values of six bits; scales of 16 are bytes times an f16 */
    DS_DTYPE_ALL
} ds_dtype;

typedef struct ds_shape {
    uint32_t n_dims; /* 0 is a scalar */
    int64_t dims[DS_MAX_DIMS];
} ds_shape;

/* What is known of a tensor without its data. */
typedef struct ds_meta {
    ds_dtype dtype;
    ds_shape shape;
} ds_meta;

/* A borrowed view: contiguous, row-major. dtype NONE and data NULL mean "absent". */
typedef struct ds_tensor {
    void *data;
    ds_meta meta;
} ds_tensor;

DS_API const char *ds_dtype_name(ds_dtype dtype);        /* "bf16"; "none" for NONE */
DS_API size_t ds_dtype_bytes(ds_dtype dtype);            /* 0 for NONE and blocks */
DS_API ds_dtype ds_dtype_from_name(const char *name);    /* also "bfloat16", "float16", "half",
                                                            "fp16", "fp32", "float32"; NONE when
                                                            unknown */
DS_API const char *ds_dtype_safetensors(ds_dtype dtype); /* "BF16" */
DS_API ds_dtype ds_dtype_from_safetensors(const char *name);

/* Builds a shape from n dimensions. Pre: n <= DS_MAX_DIMS. */
DS_API ds_shape ds_shape_of(uint32_t n_dims, const int64_t *dims);
DS_API ds_shape ds_shape_1d(int64_t a);
DS_API ds_shape ds_shape_2d(int64_t a, int64_t b);
DS_API ds_shape ds_shape_3d(int64_t a, int64_t b, int64_t c);
DS_API ds_shape ds_shape_4d(int64_t a, int64_t b, int64_t c, int64_t d);
DS_API bool ds_shape_equal(ds_shape a, ds_shape b);
/* Number of elements, saturating at INT64_MAX; a negative dimension gives 0. */
DS_API int64_t ds_shape_count(ds_shape shape);
/* Product of the dimensions before the last; 1 for a scalar. */
DS_API int64_t ds_shape_rows(ds_shape shape);
/* Last dimension; 1 for a scalar. */
DS_API int64_t ds_shape_last(ds_shape shape);
/* Elements times element size, saturating at SIZE_MAX; of blocks those of whole panels of 16 rows.
 */
DS_API size_t ds_meta_bytes(ds_meta meta);
/* Writes "bf16[4,1024,768]" to text (n bytes, always terminated); returns text. */
DS_API char *ds_meta_text(ds_meta meta, char *text, size_t n);

#ifdef __cplusplus
}
#endif
#endif
