/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers: text to ids and back, with the ids that the `tokenizers` package gives.
 *
 * Read from a model folder or a file: tokenizer.json (byte-level BPE as GPT-2, Llama 3 and Qwen use
 * it; SentencePiece-style BPE with byte fallback as Llama 2 and Mistral use it; BERT's WordPiece),
 * GPT-2's vocab.json with merges.txt beside it, SentencePiece's tokenizer.model or spiece.model, or
 * the word "bytes" (256 ids, one a byte). A component of a file that is not supported is an error
 * that names it.
 *
 * Thread rule: an open tokenizer is const and may be used by many threads at once, each with its
 * own ds_tokenizer_scratch (encoding) or ds_detokenizer (streamed decoding).
 *
 * Text is UTF-8. Bytes that are not are kept: byte-level vocabularies and byte fallback give them
 * back unchanged.
 */
#ifndef DEEPSPEED_TOKENIZER_H
#define DEEPSPEED_TOKENIZER_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_tokenizer ds_tokenizer;
typedef struct ds_tokenizer_scratch ds_tokenizer_scratch;
typedef struct ds_detokenizer ds_detokenizer;

/* Flags of ds_tokenizer_encode. */
enum {
    DS_ENCODE_ADD_SPECIAL = 1,      /* what the file's post-processor adds: <s> and the like */
    DS_ENCODE_NO_SPECIAL_PARSE = 2, /* "<|endoftext|>" in the text is text, not that token */
    DS_ENCODE_RANGES = 4            /* also fill ds_tokens.ranges */
};

/* Flags of ds_tokenizer_decode and ds_detokenizer_create. */
enum {
    DS_DECODE_SKIP_SPECIAL = 1, /* leave special tokens out */
    DS_DECODE_REPAIR = 2        /* bytes that are not UTF-8 become U+FFFD; otherwise they stay */
};

/* Bytes [begin,end) of the text that a token stands for. A token that was added by the
 * post-processor has begin == end. Where normalization changed the text, the range is that of the
 * whole changed sequence. */
typedef struct ds_token_range {
    size_t begin, end;
} ds_token_range;

/* The result of an encode. The arrays belong to the scratch and last until its next use. */
typedef struct ds_tokens {
    const uint32_t *ids;
    const ds_token_range *ranges; /* NULL without DS_ENCODE_RANGES */
    size_t n;
    const uint8_t *types; /* of ds_tokenizer_encode_pair, transformers' token_type_ids; else NULL */
    DS_RESERVED(3);
} ds_tokens;

/* Two texts that are read together. */
typedef struct ds_two_texts {
    const char *text[2];
    size_t n[2];       /* bytes */
    size_t max_length; /* most tokens, special ones included: ends are cut off as transformers'
                          "longest_first" does; default 0: any number */
    DS_RESERVED(2);
} ds_two_texts;

/* Opens a tokenizer. path: a model folder (tokenizer.json, else vocab.json and merges.txt, else
 * tokenizer.model or spiece.model; with the small files beside them, as transformers' AutoTokenizer
 * reads the folder), one of these files but merges.txt (with the same files beside it), or "bytes".
 * The caller owns *tok_out; ctx must outlive it. Errors: ERR_NOT_FOUND, ERR_IO, ERR_FORMAT (names
 * file and place), ERR_UNSUPPORTED (names the component), ERR_LIMIT, ERR_NOMEM. */
DS_API ds_status ds_tokenizer_open(ds_ctx *ctx, const char *path, ds_tokenizer **tok_out);

/* Frees and nulls *tok. Accepts NULL and *tok == NULL. Its scratches must be gone. */
DS_API void ds_tokenizer_close(ds_tokenizer **tok);

/* Working memory of one encoding thread. max_tokens is the most tokens that one call may give
 * (0: 2^31-1). The caller owns *scratch_out; tok must outlive it. Errors: ERR_NOMEM. */
DS_API ds_status ds_tokenizer_scratch_create(const ds_tokenizer *tok, size_t max_tokens,
                                             ds_tokenizer_scratch **scratch_out);
DS_API void ds_tokenizer_scratch_destroy(ds_tokenizer_scratch **scratch);

/* Encodes n bytes of text. flags: DS_ENCODE_*. *tokens_out is borrowed from scratch until its next
 * use. Errors: ERR_LIMIT (more than max_tokens; a text of 2 GiB or more; a pattern that goes back
 * over the text too often, a normalizer that makes too much of it), ERR_NOMEM. */
DS_API ds_status ds_tokenizer_encode(const ds_tokenizer *tok, ds_tokenizer_scratch *scratch,
                                     const char *text, size_t n, uint32_t flags,
                                     ds_tokens *tokens_out);

/* Encodes a pair as transformers' tokenizer(a, b): ids and types as the file's post-processor has
 * pairs (BERT: [CLS] a [SEP] b [SEP], the second of type 1). flags: not DS_ENCODE_RANGES. Errors:
 * as above for each text; ERR_ARG (max_length has no room for the special tokens). */
DS_API ds_status ds_tokenizer_encode_pair(const ds_tokenizer *tok, ds_tokenizer_scratch *scratch,
                                          const ds_two_texts *pair, uint32_t flags,
                                          ds_tokens *tokens_out);

/* Decodes n ids; one below the vocabulary's size that no token has gives no text. With byte
 * fallback and DS_DECODE_REPAIR, bytes that follow each other and are no UTF-8 as a whole become
 * U+FFFD, one a byte. flags: DS_DECODE_*. *text_out has a zero byte after its *size_out bytes; the
 * caller frees it with free(). Errors: ERR_ARG (an id outside the vocabulary), ERR_NOMEM. */
DS_API ds_status ds_tokenizer_decode(const ds_tokenizer *tok, const uint32_t *ids, size_t n,
                                     uint32_t flags, char **text_out, size_t *size_out);

/* A decoder that takes ids one by one and gives text as soon as whole UTF-8 characters are there.
 * The pieces joined equal ds_tokenizer_decode with DS_DECODE_REPAIR, but that of bytes that are no
 * UTF-8 under byte fallback the good characters are given. One thread at a time. */
DS_API ds_status ds_detokenizer_create(const ds_tokenizer *tok, uint32_t flags,
                                       ds_detokenizer **decoder_out);
DS_API void ds_detokenizer_destroy(ds_detokenizer **decoder);

/* Takes one id. *text_out (*size_out bytes, may be 0, zero byte after it) is borrowed until the
 * next call. Errors: ERR_ARG (an id outside the vocabulary), ERR_NOMEM. */
DS_API ds_status ds_detokenizer_push(ds_detokenizer *decoder, uint32_t id, const char **text_out,
                                     size_t *size_out);

/* Gives what is held back, an unfinished character as U+FFFD, and starts anew. */
DS_API ds_status ds_detokenizer_flush(ds_detokenizer *decoder, const char **text_out,
                                      size_t *size_out);

/* Largest id + 1, added tokens included. Any thread, as all below. */
DS_API uint32_t ds_tokenizer_vocab_size(const ds_tokenizer *tok);

/* Ids, or -1 where the files name none. A model may have several eos ids: the first is given here,
 * ds_tokenizer_is_eos knows all. */
DS_API int64_t ds_tokenizer_bos_id(const ds_tokenizer *tok);
DS_API int64_t ds_tokenizer_eos_id(const ds_tokenizer *tok);
DS_API int64_t ds_tokenizer_pad_id(const ds_tokenizer *tok);
DS_API int64_t ds_tokenizer_unk_id(const ds_tokenizer *tok);
DS_API int64_t ds_tokenizer_mask_id(const ds_tokenizer *tok);
DS_API bool ds_tokenizer_is_eos(const ds_tokenizer *tok, uint32_t id);

/* Whether the id is a special token (one that DS_DECODE_SKIP_SPECIAL leaves out). */
DS_API bool ds_tokenizer_is_special(const ds_tokenizer *tok, uint32_t id);

/* The vocabulary's spelling of an id ("Ġthe", "<0x0A>"), zero-terminated, borrowed from tok; NULL
 * when no token has the id. size_out may be NULL. */
DS_API const char *ds_tokenizer_piece(const ds_tokenizer *tok, uint32_t id, size_t *size_out);

/* The id of a token by the vocabulary's spelling, -1 when there is none. */
DS_API int64_t ds_tokenizer_id(const ds_tokenizer *tok, const char *piece, size_t n);

/* The model's chat template (Jinja text): of several the default, or the first; NULL when its files
 * have none. Borrowed from tok. See chat.h. */
DS_API const char *ds_tokenizer_chat_template(const ds_tokenizer *tok);

/* Writes the tokenizer's files into a folder, such that a model folder there is complete: copies of
 * the files it was read from; for "bytes" a tokenizer.json with the same ids. Errors: ERR_NOT_FOUND
 * (no such folder), ERR_IO. */
DS_API ds_status ds_tokenizer_save(ds_ctx *ctx, const ds_tokenizer *tok, const char *folder);

#ifdef __cplusplus
}
#endif
#endif
