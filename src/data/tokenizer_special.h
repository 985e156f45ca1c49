/* SPDX-License-Identifier: Apache-2.0 */
/* What the small files beside a tokenizer say of its tokens; see tokenizer_special.c. */
#ifndef DSI_DATA_TOKENIZER_SPECIAL_H
#define DSI_DATA_TOKENIZER_SPECIAL_H

#include "data/tokenizer.h"
#include "data/tokenizer_class.h"

/* The files of a folder, as they stand; NULL where a file is absent. */
typedef struct dsi_folder_files {
    const char *folder;
    json_t *config;      /* tokenizer_config.json */
    json_t *special_map; /* special_tokens_map.json */
    json_t *added;       /* added_tokens.json */
    json_t *model;       /* config.json */
    dsi_class_kind kind; /* of the tokenizer that the folder stands for */
    const char *class_name;
    bool has_file;         /* tokenizer.json is there, not vocab.json with merges.txt */
    bool spiece;           /* it is a model of SentencePiece: */
    json_t *spiece_tokens; /* its special tokens, which count where no file has a list of further
                              ones; NULL: none */
    bool raw_table;        /* tokens of the table of added ones are found in the raw text */
} dsi_folder_files;

/* Refuses members of tokenizer_config.json that change how text is read and are not supported. */
ds_status dsi_special_check(ds_tokenizer *tok, const dsi_folder_files *files);

/* Adds the tokens that the files name to those that tok has, and notes bos, eos, pad and unk.
 * tree: of tokenizer.json as the file has it. */
ds_status dsi_special_apply(ds_tokenizer *tok, const dsi_folder_files *files, const json_t *tree);

#endif
