/* SPDX-License-Identifier: Apache-2.0 */
/* Loading a tokenizer: what the files that read and build it share. Once open it is const, and
 * tokenizer.h is all that encoding and decoding need. */
#ifndef DSI_DATA_TOKENIZER_LOAD_H
#define DSI_DATA_TOKENIZER_LOAD_H

#include "data/tokenizer.h"

struct dsi_folder_files; /* tokenizer_special.h */
/* Reads a tokenizer.json with what the files beside it say. */
ds_status dsi_tokenizer_read_json(ds_tokenizer *tok, const char *path,
                                  struct dsi_folder_files *files);
/* The same of a text of UTF-8 that is there, its class found before. */
ds_status dsi_tokenizer_read_text(ds_tokenizer *tok, const char *path, const dsi_buf *text,
                                  struct dsi_folder_files *files);
/* Finds which class transformers would take; text: of tokenizer.json, NULL without. Errors:
 * ERR_UNSUPPORTED, ERR_FORMAT. */
ds_status dsi_tokenizer_find_class(ds_tokenizer *tok, struct dsi_folder_files *files,
                                   const dsi_buf *text);
/* Reads vocab.json and the merges.txt beside it. */
ds_status dsi_tokenizer_read_gpt2(ds_tokenizer *tok, const char *vocab_path,
                                  const char *merges_path, struct dsi_folder_files *files);
/* Fills what follows from vocabulary and components: raw spellings, byte ids, joins, tries. */
ds_status dsi_tokenizer_finish(ds_tokenizer *tok, const char *path);
/* Parses the members "normalizer", "pre_tokenizer", "post_processor", "decoder", "added_tokens". */
ds_status dsi_tokenizer_components(ds_tokenizer *tok, const char *path, const json_t *root);
ds_status dsi_tokenizer_decoder(ds_tokenizer *tok, const char *path, const json_t *decoder);
ds_status dsi_tokenizer_post(ds_tokenizer *tok, const char *path, const json_t *post);
/* The pair of BERT (type 1) or RoBERTa (type 0). around: the ids before and behind a text. */
ds_status dsi_tokenizer_pair_of_bert(ds_tokenizer *tok, const uint32_t *around, uint8_t type);
ds_status dsi_tokenizer_pretok(ds_tokenizer *tok, const char *path, const json_t *pretok);
ds_status dsi_tokenizer_norm(ds_tokenizer *tok, const char *path, const json_t *norm);
/* The trie of a Unigram model's pieces. */
ds_status dsi_unigram_build(ds_tokenizer *tok, const char *path);
/* The normalizer Precompiled: its map out of base64. */
ds_status dsi_charsmap_read(ds_tokenizer *tok, const char *path, const json_t *json,
                            dsi_norm *norm);
/* Refuses normalizers that Metaspace's "first" does not go with; behind both. */
ds_status dsi_tokenizer_check_first(ds_tokenizer *tok, const char *path);
/* Adding tokens (tokenizer_tokens.c): begin before each list of them, since a new token's id
 * follows those that were there. */
void dsi_tokens_begin(ds_tokenizer *tok);
ds_status dsi_tokens_add(ds_tokenizer *tok, const char *path, const dsi_added_token *token);
/* Index into added, DSI_NO_ID when no added token has this text. */
uint32_t dsi_tokens_find(const ds_tokenizer *tok, const char *content, size_t n);
/* Tries over the added tokens and added_of_id. */
ds_status dsi_added_build(ds_tokenizer *tok, const char *path);
void dsi_trie_free(dsi_trie *trie);

/* Reads the small files of a folder; dsi_folder_files_free also when it failed. */
ds_status dsi_folder_files_read(ds_tokenizer *tok, const char *folder,
                                struct dsi_folder_files *files);
void dsi_folder_files_free(struct dsi_folder_files *files);
/* Reads chat template and further ids of eos, bos and pad from the files beside a tokenizer's. */
ds_status dsi_tokenizer_read_side_files(ds_tokenizer *tok, const struct dsi_folder_files *files);

/* The chat templates of a folder: chat_template.jinja and additional_chat_templates/NAME.jinja, or
 * without any the ones of tokenizer_config.json (config, may be NULL). */
ds_status dsi_tokenizer_read_chat_templates(ds_tokenizer *tok, const char *folder,
                                            const json_t *config);

/* An error unless it is a regular file. */
struct stat;
ds_status dsi_tokenizer_check_file(ds_tokenizer *tok, const char *path, const struct stat *st);
/* Notes a file that was read, for ds_tokenizer_save. */
ds_status dsi_tokenizer_note_file(ds_tokenizer *tok, const char *path);

#endif
