/* SPDX-License-Identifier: Apache-2.0 */
/* Megatron's and DeepSpeed's indexed data: tokens in NAME.bin, where they begin in NAME.idx.
 *
 * The MMIDIDX layout, little endian: magic "MMIDIDX\0\0", u64 version 1, u8 dtype, u64 items N, u64
 * document boundaries D, i32 sizes[N] (tokens), i64 pointers[N] (bytes), i64 documents[D] (items,
 * from 0). Type codes are DeepSpeed's: 1 u8, 2 i8, 3 i16, 4 i32, 5 i64, 6 u16, 7 u32, 8 u64;
 * Megatron's 8 is u16, known by the pointers, or by the size of the .bin when only one item has
 * tokens. Without document boundaries (a builder that never ended one) each item is a document.
 */
#ifndef DSI_DATA_INDEXED_H
#define DSI_DATA_INDEXED_H

#include "io/file.h"
#include <deepspeed/data.h>

typedef struct dsi_indexed {
    dsi_map bin, idx;
    uint32_t width; /* bytes of a token: 1, 2, 4, 8 */
    bool is_signed;
    uint64_t n_items, n_boundaries, n_tokens;
    const unsigned char *sizes, *pointers, *boundaries; /* in idx, unaligned */
} dsi_indexed;

/* The other file of the pair: of "a.bin" "a.idx", and the other way round. The caller frees it.
 * NULL: the path has neither ending, or there is no memory. */
char *dsi_indexed_other(const char *path);

/* path: either file, or their common part. Checks every size and offset; bytes of the .bin behind
 * the last item are left alone, with a warning. Errors: ERR_NOT_FOUND,
 * ERR_FORMAT (what is wrong), ERR_UNSUPPORTED (items that are not back to back, a type). */
ds_status dsi_indexed_open(ds_ctx *ctx, const char *path, dsi_indexed *indexed_out);
void dsi_indexed_close(dsi_indexed *indexed);
/* First token of document d, d <= number of documents. */
uint64_t dsi_indexed_begin(const dsi_indexed *indexed, uint64_t d);
uint64_t dsi_indexed_n_documents(const dsi_indexed *indexed);

/* Writing: documents one by one. At commit an old .idx goes first and the new one comes last: a
 * writer that is killed leaves the old pair, the new one, or a .bin without .idx, which nobody
 * reads; never two files that do not belong together. */
typedef struct dsi_indexed_writer dsi_indexed_writer;
/* prefix: without ending. n_vocab below 65500 stores u16, more i32, as DeepSpeed does. */
ds_status dsi_indexed_create(ds_ctx *ctx, const char *prefix, uint32_t n_vocab,
                             dsi_indexed_writer **writer_out);
ds_status dsi_indexed_add(dsi_indexed_writer *writer, const uint32_t *ids, uint64_t n);
/* Adds to the newest document. An item holds at most `n_item` tokens: beyond, the document has
 * another one. */
ds_status dsi_indexed_extend(dsi_indexed_writer *writer, const uint32_t *ids, uint64_t n);
/* Sets n_item, for tests; the format's limit is 2^31 - 1. */
void dsi_indexed_limit(dsi_indexed_writer *writer, uint64_t n_item);
/* Writes the index and brings both files to the disk, still under their staged names: the long part
 * of a commit. Nothing can be added afterwards. */
ds_status dsi_indexed_seal(dsi_indexed_writer *writer);
/* The staged names of both files, which last as long as the writer. */
void dsi_indexed_staged(const dsi_indexed_writer *writer, const char *names[2]);
/* Seals unless it is sealed; puts both files in their place. Frees *writer whatever the outcome. */
ds_status dsi_indexed_commit(dsi_indexed_writer **writer);
void dsi_indexed_abort(dsi_indexed_writer **writer);

#endif
