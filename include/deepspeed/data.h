/* SPDX-License-Identifier: Apache-2.0 */
/* Training data: files to tokens, tokens to batches.
 *
 * A dataset is a list of documents, each a run of token ids with a flag a token: whether it counts
 * in the loss. Text comes from .txt, from rows in .jsonl, .json, .csv, .tsv (each also .gz, .zst)
 * or .parquet, or tokenized from .bin/.idx. A loader cuts it into batches of B rows of T tokens:
 * STREAM
 * (.txt, rows with "text", .bin/.idx): documents joined end to end, windows of T tokens; each epoch
 * starts the windows at another place and visits them in another order; SAMPLES (rows of other
 * schemas: messages, ShareGPT, prompt and completion, Alpaca; docs/internals/data.md): whole
 * samples packed into rows, never cut. A row knows its documents: `first` is the lowest position
 * that a query may see, positions restart at a document's start, and the last token of a document
 * has no target. Everything is a pure function of files, seed and cursor, so a run resumes exactly.
 */
#ifndef DEEPSPEED_DATA_H
#define DEEPSPEED_DATA_H

#include <deepspeed/chat.h>
#include <deepspeed/preference.h>
#include <deepspeed/tensor.h>
#include <deepspeed/tokenizer.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct ds_dataset ds_dataset;
typedef struct ds_loader ds_loader;

/* What happens to a sample longer than the sequence length (SAMPLES only): its beginning is kept,
 * it is left out, or, of preferences, its end is kept. A pair is left out whole. */
typedef enum ds_too_long {
    DS_TOO_LONG_TRUNCATE,
    DS_TOO_LONG_DROP,
    DS_TOO_LONG_KEEP_END
} ds_too_long;

/* What rows must be: text or answers to learn from; or preferences (deepspeed/preference.h), of
 * which a draw is a pair of documents, chosen and rejected, or one with a label. Pairs may be read
 * as labelled answers, the chosen one first. */
typedef enum ds_dataset_rows {
    DS_ROWS_TEXT,
    DS_ROWS_PAIRS,
    DS_ROWS_LABELLED,
    DS_ROWS_CLASSES,       /* of encoders: a text and its class, the target of its first token */
    DS_ROWS_TOKEN_CLASSES, /* words with a class each, the target of their first tokens */
    DS_ROWS_SOURCES, /* of ds_model_info.pairs: "prompt" and "completion", texts that are tokenized
                       apart. seq_length holds both; a row's input_ids have the source from the
                       document's beginning on, its targets the target, pad_id and -100 the rest */
    DS_ROWS_VALUES,  /* of encoders: a text and n_classes numbers, or the names of those of the
                        classes that hold; of ds_problem but CLASSES */
    DS_ROWS_CONTRAST /* "anchor", "positive" and n_negatives negatives, texts that are documents of
                        their own; a draw is all of them */
} ds_dataset_rows;

/* What rows of instruction, input and output become: Stanford's Alpaca prompt, whatever the
 * tokenizer, or a chat by the template (docs/internals/data.md). */
typedef enum ds_alpaca { DS_ALPACA_PROMPT, DS_ALPACA_CHAT } ds_alpaca;

/* What ds_dataset_open is at. */
typedef enum ds_dataset_stage {
    DS_DATASET_READS,  /* files, to tokens */
    DS_DATASET_HASHES, /* files, to know whether the cache has their tokens */
    DS_DATASET_WAITS   /* for another process that fills the cache with them */
} ds_dataset_stage;

typedef struct ds_dataset_progress {
    ds_dataset_stage stage;
    uint64_t done, all; /* bytes of the files, as they lie on the disk; 0 and 0: WAITS */
    uint64_t n_tokens;  /* READS: so far */
    DS_RESERVED(4);
} ds_dataset_progress;

typedef struct ds_dataset_params {
    const char *const *files; /* .txt, rows, or .bin/.idx (either name); all of one kind */
    uint32_t n_files;
    const ds_tokenizer *tokenizer; /* borrowed for the call; may be NULL for .bin/.idx */
    const ds_chat *chat;           /* borrowed for the call; needed for messages */
    int64_t seq_length;            /* T */
    ds_too_long too_long;          /* default TRUNCATE */
    bool append_eos; /* default false; true: each document of plain text ends with eos. A sample
                        ends with the tokenizer's eos, or its template's, in any case */
    const char *column_map; /* which columns of the rows stand for which fields: "text=content,
                               messages=conv"; default NULL: those of the same names. Of two schemas
                               that fit a row, the one with a mapped field is read */
    uint64_t skip_bad; /* default 0: a row that cannot be read is an error; so many are left out,
                          each with a warning of file, line and reason */
    const char *cache; /* a folder, made when missing, that keeps the tokens of large data as mapped
                          files, for this run and later ones; default NULL: they stay in memory.
                          One .bin/.idx alone is mapped itself */
    uint64_t cache_from_bytes; /* the size of all files from which the cache is used, compressed
                                  ones and .parquet counted eightfold; default 0: any */
    /* Called now and then on the caller's thread, several times a second but for a text that has no
     * place to be cut; a negative status ends the opening with it. Default NULL */
    ds_status (*progress)(void *user, const ds_dataset_progress *progress);
    void *progress_user;
    uint64_t alpaca;            /* a ds_alpaca, default PROMPT; CHAT needs `chat` */
    uint64_t rows;              /* a ds_dataset_rows, default TEXT */
    const char *const *classes; /* of rows with classes: their names, n_classes of them; default
                                   NULL: rows give numbers */
    uint64_t n_classes;         /* their number, 255 at most; default 0: not known */
    uint64_t n_negatives;       /* of DS_ROWS_CONTRAST, 64 at most; default 0 */
    uint64_t problem;           /* of DS_ROWS_VALUES: REGRESSION (a ds_problem) takes numbers alone,
                                   MULTI_LABEL names, or numbers of 0 to 1; default 0: any of them */
    DS_RESERVED(2);
} ds_dataset_params;

typedef struct ds_dataset_info {
    uint64_t n_documents, n_tokens;
    uint64_t n_truncated, n_dropped; /* over-long samples, cut to a row or left out */
    uint64_t n_uncounted; /* samples left out as no token of theirs, cut to a row, is a target */
    uint64_t n_bad;       /* rows left out, as skip_bad allows */
    bool samples;         /* SAMPLES; false: STREAM */
    uint8_t rows;         /* a ds_dataset_rows */
    uint32_t max_id;      /* largest token id; 0 for one mapped .bin, whose ids are checked as they
                             are read */
    DS_RESERVED(8);
} ds_dataset_info;

/* Reads and tokenizes the files on all threads of the context (.bin is mapped, not read). The
 * caller owns *dataset_out. Errors: ERR_NOT_FOUND, ERR_IO, ERR_FORMAT (file and line), ERR_ARG (no
 * data, mixed kinds, tokenizer, chat or end token missing), ERR_STATE (with a cache: a file changed
 * while it was read). */
DS_API ds_status ds_dataset_open(ds_ctx *ctx, const ds_dataset_params *params,
                                 ds_dataset **dataset_out);
DS_API void ds_dataset_close(ds_dataset **dataset);
DS_API ds_dataset_info ds_dataset_get_info(const ds_dataset *dataset);

/* Splits off the last `fraction` (0,1) of the tokens (STREAM) or samples (SAMPLES) as a dataset of
 * its own, for evaluation; `dataset` keeps the rest. Both share memory: close them in any order.
 * Errors: ERR_ARG when either part would hold less than one row. */
DS_API ds_status ds_dataset_split(ds_dataset *dataset, double fraction, ds_dataset **tail_out);

/* Of a data set of preferences: log-probabilities by the reference, two of each draw (count: all of
 * them): of a pair the chosen and the rejected answer's, of a labelled answer its own and its
 * mismatched one's. Copied; shared by a split. ds_engine_reference makes them; pairs may have them
 * as columns "ref_chosen_logps" and "ref_rejected_logps", not together with a cache. */
DS_API ds_status ds_dataset_set_reference(ds_dataset *dataset, const float *logps, size_t count);
/* Whether it has them. */
DS_API bool ds_dataset_has_reference(const ds_dataset *dataset);
/* Pairs, or labelled answers. */
DS_API uint64_t ds_dataset_n_draws(const ds_dataset *dataset);

/* Rows for a masked language model: some tokens are chosen, others stand in their place, and the
 * targets say what they were, at their own position; all others are -100. Which and what is a
 * function of the seed, the epoch and the token's place in the data. Special tokens are never
 * chosen, nor are those that do not count. Source: Devlin et al., "BERT", 2018, 3.1;
 * DataCollatorForLanguageModeling of transformers, whose shares these are. */
typedef struct ds_masking {
    const ds_tokenizer *tokenizer; /* whose mask token it is, and whose words; borrowed for the life
                                      of the loader */
    double chance;                 /* of a token to be chosen, above 0 and below 1: 0.15 */
    double mask, word; /* of chosen tokens, the share that is masked, 0.8, and that becomes any
                          word, 0.1; the others stay */
    DS_RESERVED(4);
} ds_masking;

/* Data-parallel ranks share one order of rows, R = n_ranks * B of them a call: rank r is given rows
 * r*B to r*B + B-1 of each R, and passes over the others. Files, seed and the sequence of calls are
 * the same on all ranks; then so are epoch, cursor and end, and a cursor resumes at the same row
 * with another batch or number of ranks. */
typedef struct ds_loader_params {
    int64_t batch;      /* B rows, of this rank */
    int64_t seq_length; /* T */
    uint64_t seed;
    bool shuffle;                    /* false: file order, windows from the start, for evaluation */
    uint32_t rank;                   /* default 0 */
    uint32_t n_ranks;                /* default 0, which means 1 */
    int64_t n_vocab;                 /* default 0: not known; ids must be below */
    const ds_preference *preference; /* of data sets of preferences: the loss that reads the
                                        batches; needed then. Borrowed for the call */
    const ds_masking *masking; /* default NULL: the target of a token is the next one. Copied; not
                                  together with preferences */
    int64_t pad_id;            /* of DS_ROWS_SOURCES: stands behind sources; default 0 */
    uint64_t alone;            /* default 0: samples are packed; 1: each has a row of its own, as in
                                  transformers without packing. Not of text */
    uint64_t pool; /* of DS_ROWS_CONTRAST: a ds_pool (deepspeed/encoder.h), but not MAX */
    DS_RESERVED(3);
} ds_loader_params;

struct ds_loader_preference;
struct ds_loader_task;

/* One batch of this rank, all i32 (B,T) owned by the loader until the next call; with masking the
 * targets are what an encoder's input `labels` takes. Of pairs (2B,T), the chosen ones first. A row
 * of a preference holds one document. */
typedef struct ds_loader_batch {
    ds_tensor input_ids, targets, positions, first;
    uint64_t n_tokens;                             /* not padding */
    const struct ds_loader_preference *preference; /* of preferences; else NULL */
    const struct ds_loader_task
        *task;                /* of rows of classes, of values and of contrast; else NULL */
    const ds_tensor *sources; /* of a mixture, but of preferences and contrast: the number of each
                                 token's data set, i32 (B,T), -1 of padding; else NULL */
    DS_RESERVED(5);
} ds_loader_batch;

/* What a batch of preferences has besides, under the names of deepspeed/preference.h; data NULL:
 * the loss does not read it. */
typedef struct ds_loader_preference {
    ds_tensor ref_logps;               /* of ds_dataset_set_reference; zeros before */
    ds_tensor labels;                  /* of labelled answers */
    ds_tensor completion;              /* of ORPO */
    const ds_loader_batch *mismatched; /* of KTO, else NULL: prompts with answers of others, for z:
                                          within each B samples in the order of the data, a prompt
                                          with the answer before, the first with the last; with its
                                          own `preference` */
    DS_RESERVED(8);
} ds_loader_preference;

/* What a batch has for an encoder's task, under the names of the engine's inputs; data NULL: the
 * rows have none. */
typedef struct ds_loader_task {
    ds_tensor token_type_ids;  /* i32 (B,T), of CLASSES and VALUES: 1 in the second of two texts */
    ds_tensor labels, counted; /* of VALUES: f32 (B,T,n_classes) and (B,T); of CONTRAST: labels i32
                                  (B), -100 of rows that are none */
    ds_tensor pool;            /* of CONTRAST: f32 (rows,T) */
    DS_RESERVED(8);
} ds_loader_task;

/* A reader over a dataset (borrowed). Errors: ERR_ARG when the dataset cannot fill one row, or the
 * rank is not below the number of ranks. */
DS_API ds_status ds_loader_create(ds_ctx *ctx, const ds_dataset *dataset,
                                  const ds_loader_params *params, ds_loader **loader_out);
DS_API void ds_loader_destroy(ds_loader **loader);

/* A reader over several datasets of one kind (borrowed), from which samples (SAMPLES) or rows
 * (STREAM) are drawn in proportion to their weights (NULL: equal ones): at any time each has been
 * drawn its share but for a few, and which comes next is a function of the seed and the number of
 * draws before. Each has its own order and epochs. An epoch of the mixture has as many draws as all
 * datasets hold together; a small dataset with a large weight is then repeated. Without shuffle
 * they are read one after another, once each. Errors: as ds_loader_create, with the number of the
 * dataset; ERR_ARG also for a weight that is not above 0, and for datasets of both kinds. */
DS_API ds_status ds_loader_create_mixed(ds_ctx *ctx, const ds_dataset *const *datasets,
                                        const double *weights, uint32_t n_datasets,
                                        const ds_loader_params *params, ds_loader **loader_out);

/* Next batch; goes on with the next epoch at the end. No allocation. Errors: ERR_FORMAT (a number
 * in indexed data that is no id of the vocabulary: names the document). */
DS_API ds_status ds_loader_next(ds_loader *loader, ds_loader_batch *batch_out);

/* For evaluation without shuffle: starts anew; ds_loader_next_once gives each row exactly once on
 * one of the ranks, the last batches filled up with rows without targets, and *done_out true, on
 * all ranks in the same call, when no rank has a row any more. */
DS_API void ds_loader_rewind(ds_loader *loader);
DS_API ds_status ds_loader_next_once(ds_loader *loader, ds_loader_batch *batch_out, bool *done_out);

/* Rows of the current epoch, of all ranks together. SAMPLES: packs the epoch to count them; of a
 * mixture, an epoch from here on. */
DS_API uint64_t ds_loader_epoch_rows(const ds_loader *loader);
DS_API uint64_t ds_loader_epoch(const ds_loader *loader);

/* The cursor as a JSON object, to store in a checkpoint (the caller frees with free()), and back. A
 * cursor of other data or settings is ERR_ARG naming what differs. */
DS_API ds_status ds_loader_save(const ds_loader *loader, char **json_out);
DS_API ds_status ds_loader_restore(ds_loader *loader, const char *json);

#ifdef __cplusplus
}
#endif
#endif
