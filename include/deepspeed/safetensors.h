/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors files and folders of them: reading by memory map, writing as a stream.
 *
 * A file is an 8-byte little-endian header size, a JSON header {"name": {"dtype", "shape",
 * "data_offsets"}, "__metadata__": {...}}, and the data (github.com/huggingface/safetensors, its
 * README). Reading trusts nothing: the header must be well-formed, names and keys unique, every
 * range must have exactly the bytes of its shape and dtype, and the ranges must cover the data
 * without gap or overlap. Writing gives the bytes that the safetensors package gives for the same
 * tensors: dtypes in its order, then names, header padded to 8.
 *
 * Thread rule: an open ds_safetensors is const; any number of threads may read it.
 */
#ifndef DEEPSPEED_SAFETENSORS_H
#define DEEPSPEED_SAFETENSORS_H

#include <deepspeed/tensor.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_safetensors ds_safetensors;

/* One stored tensor. Everything is borrowed from the ds_safetensors. */
typedef struct ds_safetensor {
    const char *name;
    ds_meta meta;
    const void *data; /* into the map, row-major, little-endian; aligned to the element size in
                         files of present-day writers, not promised for others: see
                         ds_safetensors_read. NULL when bytes is 0 */
    size_t bytes;
    const char *path;     /* the file it stands in */
    uint64_t file_offset; /* of its first byte */
} ds_safetensor;

/* ---- reading ---- */

/* Opens one file. Data is mapped, never read whole. The caller owns *st_out; ctx must outlive it.
 * Errors: ERR_NOT_FOUND, ERR_IO, ERR_FORMAT (names file and tensor), ERR_UNSUPPORTED (a dtype that
 * this library has not), ERR_LIMIT (a header above 100 MB), ERR_NOMEM. */
DS_API ds_status ds_safetensors_open(ds_ctx *ctx, const char *path, ds_safetensors **st_out);

/* Opens the weights of a model folder: model.safetensors, else the shards that
 * model.safetensors.index.json lists, else pytorch_model.bin or the shards of its index (files of
 * torch.save, of which nothing is run: a tensor there is a view into the map). A missing shard, a
 * tensor that the index lists but no shard has, one that a shard has but the index does not list,
 * one that is in two shards: each an error that names it. In the place of a folder also a file that
 * describes a checkpoint as init_inference's `checkpoint` does. Errors: as above. */
DS_API ds_status ds_safetensors_open_folder(ds_ctx *ctx, const char *folder,
                                            ds_safetensors **st_out);

/* Unmaps, frees, and nulls *st. Accepts NULL and *st == NULL. */
DS_API void ds_safetensors_close(ds_safetensors **st);

/* Number of tensors. */
DS_API size_t ds_safetensors_count(const ds_safetensors *st);
/* Tensor i in the order of the data; shards by their file name. NULL for i out of range. */
DS_API const ds_safetensor *ds_safetensors_at(const ds_safetensors *st, size_t i);
/* By name, NULL when there is none. */
DS_API const ds_safetensor *ds_safetensors_find(const ds_safetensors *st, const char *name);

/* The free-form texts of the header's "__metadata__", in the file's order (of a folder: those of
 * its first shard). false for i out of range. Both texts are borrowed. */
DS_API bool ds_safetensors_metadata(const ds_safetensors *st, size_t i, const char **key_out,
                                    const char **value_out);

/* Copies a tensor to `data`, converting between f32, f64, bf16 and f16 (round to nearest even);
 * other dtypes only to themselves. data has room for the elements in `dtype`. Errors: ERR_SHAPE (no
 * such conversion), ERR_NUMERIC (a finite value became infinite: data is filled, the message names
 * tensor and count). */
DS_API ds_status ds_safetensors_read(ds_ctx *ctx, const ds_safetensor *tensor, ds_dtype dtype,
                                     void *data);

/* ---- writing ---- */

/* Gives n bytes of a tensor from byte offset on, both multiples of the element size. Called in
 * ascending order, on the thread of the write. */
typedef ds_status (*ds_tensor_fill_fn)(void *user, size_t offset, void *data, size_t n);

/* A tensor to be written. Its data stands in memory, or comes block by block from a function. */
typedef struct ds_tensor_source {
    const char *name;
    ds_meta meta;           /* of what data or fill gives */
    ds_dtype stored;        /* dtype in the file, NONE: as meta; conversions as in
                               ds_safetensors_read, an overflow is ERR_NUMERIC */
    const void *data;       /* row-major; NULL: use fill */
    ds_tensor_fill_fn fill; /* used when data is NULL */
    void *user;             /* for fill */
    DS_RESERVED(8);
} ds_tensor_source;

typedef struct ds_text_pair {
    const char *key;
    const char *value;
} ds_text_pair;

typedef struct ds_safetensors_params {
    const ds_text_pair *metadata; /* "__metadata__", in this order; default: none */
    size_t n_metadata;
    bool keep_order; /* default false: the package's order; true: data in the order of sources */
    DS_RESERVED(8);
} ds_safetensors_params;

/* Writes one file, staged and renamed: it is there whole or not at all, an old one stays until
 * then. Memory is bounded, whatever the sizes. params NULL: defaults. Errors: ERR_ARG (a name
 * twice, no UTF-8, or "__metadata__"), ERR_IO (with the system's reason), ERR_NUMERIC, what fill
 * returns. */
DS_API ds_status ds_safetensors_write(ds_ctx *ctx, const char *path,
                                      const ds_tensor_source *sources, size_t n,
                                      const ds_safetensors_params *params);

/* Writes model.safetensors into an existing folder; above max_shard_bytes of data (0: no limit)
 * model-00001-of-0000N.safetensors … and model.safetensors.index.json, cut as huggingface_hub cuts:
 * in the order of sources, a tensor larger than the limit by itself. Weight files of an earlier
 * write that are not part of this one are removed last. Errors: as above. */
DS_API ds_status ds_safetensors_write_folder(ds_ctx *ctx, const char *folder,
                                             const ds_tensor_source *sources, size_t n,
                                             uint64_t max_shard_bytes,
                                             const ds_safetensors_params *params);

#ifdef __cplusplus
}
#endif
#endif
