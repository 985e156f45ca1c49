/* SPDX-License-Identifier: Apache-2.0 */
/* Text files as tokenized documents, in file order. Used by datasets and by ds_data.
 *
 * Kinds, known by the ending: .txt, one document a file; rows (rows/rows.h), one object each:
 * of a schema (schema/schema.h): {"text"}, or a sample whose loss counts only in the answer. Rows,
 * and parts of a large text, are tokenized on all threads of the context; documents arrive in order
 * on the caller's thread, a large one in pieces.
 */
#ifndef DSI_DATA_SOURCE_H
#define DSI_DATA_SOURCE_H

#include "io/file.h"
#include <deepspeed/data.h>

/* What a row is (schema/schema.h); from PREFERENCE on it is for preference losses. */
typedef enum dsi_schema {
    DSI_SCHEMA_TEXT,
    DSI_SCHEMA_PAIR,
    DSI_SCHEMA_CHAT,
    DSI_SCHEMA_ALPACA,
    DSI_SCHEMA_PREFERENCE,
    DSI_SCHEMA_UNPAIRED,
    DSI_SCHEMA_CLASSES, /* read where params->rows asks for it alone */
    DSI_N_SCHEMAS
} dsi_schema;
/* "prompt-completion". */
const char *dsi_schema_name(dsi_schema schema);

/* One document, or the next piece of the one given before (joins). counted: per token, NULL when
 * all count; sample: not plain text, always whole. */
typedef struct dsi_document {
    const uint32_t *ids;
    const uint8_t *counted;
    uint64_t n;
    bool sample, joins;
    bool cut;               /* its end was cut off, to params->seq_length */
    bool ends;              /* of classes: the last token stands behind the text, as [SEP] */
    dsi_schema schema;      /* of a row */
    uint64_t n_chosen;      /* of a preference: tokens of the chosen answer's document, which the
                               rejected one's follows */
    bool label;             /* of an unpaired preference */
    const float *reference; /* of a preference: its two log-probabilities; NULL: the row has none */
} dsi_document;

typedef struct dsi_source_sink {
    ds_status (*document)(void *user, const dsi_document *document);
    void (*progress)(void *user, uint64_t bytes_done, uint64_t bytes_all); /* NULL: none */
    void *user;
    const char *no_samples; /* why a sample is an error; NULL: it is none */
    bool any_schema;        /* all rows are taken; else those of params->rows alone */
    uint64_t
        *n_bad; /* counts bad rows that are left out, params->skip_bad at most; NULL: none is */
} dsi_source_sink;

ds_status dsi_source_read(ds_ctx *ctx, const ds_dataset_params *params, const char *path,
                          const dsi_source_sink *sink);

/* One text as one document (source_text.c): cut into parts of about part_bytes where the tokenizer
 * allows it, else whole. The ids do not depend on part_bytes or the number of threads. */
enum { DSI_PART_BYTES = 256 << 10 };
ds_status dsi_text_read(ds_ctx *ctx, const ds_dataset_params *params, const char *path,
                        const dsi_map *text, size_t part_bytes, const dsi_source_sink *sink);

/* One row, tokenized: what jsonl_line.c makes, freed by its caller. */
enum { DSI_UNREAD_KEYS = 8 };
typedef struct dsi_line {
    uint32_t *ids; /* malloc; NULL for an empty line */
    uint8_t *counted;
    uint64_t n;
    uint64_t n_chosen; /* of a preference: prompt and chosen answer, then prompt and rejected one */
    dsi_schema schema;
    bool sample;
    bool cut;           /* its end was cut off, to params->seq_length */
    bool ends;          /* of classes: the last token is what the tokenizer puts behind a text */
    bool label;         /* of an unpaired preference */
    bool has_reference; /* of a preference: */
    float reference[2]; /* log-probabilities of the chosen and the rejected answer, as columns */
    uint32_t columns;   /* a bit a mapping of --column_map: its column is there */
    ds_status status;
    char message[320];                /* of an error */
    char unread[DSI_UNREAD_KEYS][56]; /* keys that nothing reads, the first few of them */
    uint32_t n_unread;
} dsi_line;

void dsi_line_tokenize(const ds_dataset_params *params, ds_tokenizer_scratch *scratch,
                       const char *text, size_t n, dsi_line *line_out);
void dsi_line_free(dsi_line *line);

/* Errors: ERR_ARG, what is wrong in a --column_map (NULL: none); that no row of a file had one of
 * its columns (`columns`: the lines' together). schema/schema_columns.c. */
ds_status dsi_columns_check(ds_ctx *ctx, const char *column_map);
ds_status dsi_columns_seen(ds_ctx *ctx, const char *path, const char *column_map, uint32_t columns);

/* Entries before the tokens of a document of VALUES; 0: other rows. */
static inline uint64_t dsi_values_head(const ds_dataset_params *params)
{
    return params->rows == DS_ROWS_VALUES ? params->n_classes * sizeof(float) : 0;
}

enum { DSI_MOST_NEGATIVES = 64 };

bool dsi_path_ends(const char *path, const char *end);

#endif
