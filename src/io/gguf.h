/* SPDX-License-Identifier: Apache-2.0 */
/* GGUF files (github.com/ggml-org/ggml, docs/gguf.md): metadata, and tensors whose elements stand
 * in blocks of a quantized type. Read by memory map.
 *
 * Reading trusts nothing: counts are bounded by the file's size, keys and names unique, every range
 * has the bytes of its shape and type and lies in the file. Version 2 and 3, little-endian.
 *
 * Thread rule: an open dsi_gguf is const; any number of threads may read it.
 */
#ifndef DSI_IO_GGUF_H
#define DSI_IO_GGUF_H

#include <deepspeed/tensor.h>

/* ---- types of elements ---- */

/* One type: `elements` of a row stand in `bytes`. */
typedef struct dsi_gguf_type {
    uint32_t id;
    const char *name; /* "Q4_K" */
    uint32_t elements, bytes;
    /* Values of n blocks, in fp32 without fused products: the order of operations is the format's
     * definition. NULL: not read here. */
    void (*read)(const uint8_t *blocks, size_t n, float *out);
} dsi_gguf_type;

/* NULL: no such type. */
const dsi_gguf_type *dsi_gguf_type_find(uint32_t id);
/* ggml's number of a dtype that has one: real numbers of up to 32 bits, and blocks; UINT32_MAX:
 * none. And the dtype of a number; NONE. */
uint32_t dsi_gguf_type_of(ds_dtype dtype);
ds_dtype dsi_gguf_dtype_of(uint32_t type);
/* ---- files ---- */

typedef enum dsi_gguf_kind {
    DSI_GGUF_U8,
    DSI_GGUF_I8,
    DSI_GGUF_U16,
    DSI_GGUF_I16,
    DSI_GGUF_U32,
    DSI_GGUF_I32,
    DSI_GGUF_F32,
    DSI_GGUF_BOOL,
    DSI_GGUF_TEXT,
    DSI_GGUF_ARRAY,
    DSI_GGUF_U64,
    DSI_GGUF_I64,
    DSI_GGUF_F64,
    DSI_GGUF_KINDS
} dsi_gguf_kind;

/* Text of the file: n bytes, not terminated. */
typedef struct dsi_gguf_text {
    const char *data;
    size_t n;
} dsi_gguf_text;

typedef struct dsi_gguf_entry {
    dsi_gguf_text key;
    dsi_gguf_kind kind;   /* of the value; of an array: ARRAY */
    dsi_gguf_kind of;     /* of an array's elements, else as kind */
    size_t n;             /* elements; 1 unless an array */
    const uint8_t *data;  /* numbers: side by side, little-endian, not aligned */
    dsi_gguf_text *texts; /* of TEXT: [n] */
} dsi_gguf_entry;

typedef struct dsi_gguf_tensor {
    dsi_gguf_text name;
    ds_shape shape; /* row-major as everywhere here: the file's dims in reverse */
    const dsi_gguf_type *type;
    const uint8_t *data;
    size_t bytes;
} dsi_gguf_tensor;

typedef struct dsi_gguf dsi_gguf;

/* The caller owns *gguf_out; ctx must outlive it. Errors: ERR_NOT_FOUND, ERR_IO, ERR_FORMAT (names
 * file and key or tensor), ERR_UNSUPPORTED (version, byte order, a type that was withdrawn),
 * ERR_LIMIT, ERR_NOMEM. */
ds_status dsi_gguf_open(ds_ctx *ctx, const char *path, dsi_gguf **gguf_out);
void dsi_gguf_close(dsi_gguf **gguf);
const char *dsi_gguf_path(const dsi_gguf *gguf);

size_t dsi_gguf_n_entries(const dsi_gguf *gguf);
const dsi_gguf_entry *dsi_gguf_entry_at(const dsi_gguf *gguf, size_t i);
const dsi_gguf_entry *dsi_gguf_find(const dsi_gguf *gguf, const char *key);
/* Element i of an entry as a number (booleans are 0 and 1); NaN for text. Pre: i < n. */
double dsi_gguf_number(const dsi_gguf_entry *entry, size_t i);
/* Whether the elements are whole numbers. */
bool dsi_gguf_is_whole(const dsi_gguf_entry *entry);
bool dsi_gguf_text_is(dsi_gguf_text text, const char *word);

size_t dsi_gguf_n_tensors(const dsi_gguf *gguf);
const dsi_gguf_tensor *dsi_gguf_tensor_at(const dsi_gguf *gguf, size_t i);
const dsi_gguf_tensor *dsi_gguf_tensor_find(const dsi_gguf *gguf, const char *name);
/* Values of rows [first, first + n) of the last dim; out has n rows. Errors: ERR_UNSUPPORTED names
 * tensor and type. */
ds_status dsi_gguf_read_rows(const dsi_gguf *gguf, const dsi_gguf_tensor *tensor, int64_t first,
                             int64_t n, float *out);

#endif
