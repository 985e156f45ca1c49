/* SPDX-License-Identifier: Apache-2.0 */
/* SentencePiece's model files ("spiece.model", "tokenizer.model"): read by spiece_read.c, written
 * as the text of a tokenizer.json by spiece_json.c, for tokenizer_open.c. */
#ifndef DSI_DATA_SPIECE_H
#define DSI_DATA_SPIECE_H

#include "data/tokenizer_load.h"
#include "data/tokenizer_special.h"

/* As in SentencePiece's messages. */
enum { DSI_SPIECE_UNIGRAM = 1, DSI_SPIECE_BPE = 2 };
typedef enum dsi_spiece_kind {
    DSI_PIECE_NORMAL = 1,
    DSI_PIECE_UNKNOWN = 2,
    DSI_PIECE_CONTROL = 3,
    DSI_PIECE_USER = 4, /* stands whole wherever it is in a text */
    DSI_PIECE_UNUSED = 5,
    DSI_PIECE_BYTE = 6
} dsi_spiece_kind;

typedef struct dsi_spiece_text {
    const char *data;
    size_t n;
} dsi_spiece_text;

typedef struct dsi_spiece_piece {
    dsi_spiece_text text; /* UTF-8, not empty */
    float score;
    dsi_spiece_kind kind;
} dsi_spiece_piece;

/* Texts are borrowed from the file's bytes. */
typedef struct dsi_spiece {
    dsi_spiece_piece *pieces;
    size_t n, room;
    int64_t model_type, unk_id, bos_id, eos_id;
    dsi_spiece_text unk_piece, bos_piece, eos_piece;
    bool byte_fallback, marks_behind; /* the mark of a space stands behind a word */
    dsi_spiece_text charsmap;
    bool add_dummy_prefix, remove_extra_whitespaces, escape_whitespaces;
} dsi_spiece;

/* path is for messages. The caller frees pieces, also when it failed. Errors: ERR_FORMAT,
 * ERR_UNSUPPORTED, ERR_LIMIT, ERR_NOMEM. */
ds_status dsi_spiece_read(ds_ctx *ctx, const char *path, const char *data, size_t n,
                          dsi_spiece *spiece_out);

/* The text of a tokenizer.json; *ranks_out, which the caller frees, has the rank of each of its
 * merges (NULL without): of equal scores the leftmost merges first. n_gaps: T5's <extra_id_N>
 * behind the pieces. always: a space is put in front of each part of a text between added tokens,
 * not the first alone. Errors: ERR_NOMEM. */
ds_status dsi_spiece_json(ds_ctx *ctx, const char *path, const dsi_spiece *spiece, size_t n_gaps,
                          bool always, dsi_buf *text, uint32_t **ranks_out);

/* Reads such a file as the folder's tokenizer. */
ds_status dsi_tokenizer_read_spiece(ds_tokenizer *tok, const char *path, dsi_folder_files *files);

#endif
