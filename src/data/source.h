/* Text files as tokenized documents, in file order. Used by datasets and by ds_data.
 *
 * Kinds, told by the ending: .txt, one document a file; rows (rows/rows.h), one object each:
 * {"text"}, or a sample {"prompt","completion"} or {"messages"} whose loss counts only in the
 * answer. Rows, and parts of a large text, are tokenized on all threads of the context; documents
 * arrive in order on the caller's thread, a large one in pieces.
 */
#ifndef DSI_DATA_SOURCE_H
#define DSI_DATA_SOURCE_H

#include "io/file.h"
#include <deepspeed/data.h>

/* One document, or the next piece of the one given before (joins). counted: per token, NULL when
 * all count; sample: not plain text, always whole. */
typedef struct dsi_document {
    const uint32_t *ids;
    const uint8_t *counted;
    uint64_t n;
    bool sample, joins;
} dsi_document;

typedef struct dsi_source_sink {
    ds_status (*document)(void *user, const dsi_document *document);
    void (*progress)(void *user, uint64_t bytes_done, uint64_t bytes_all); /* NULL: none */
    void *user;
    const char *no_samples; /* why a sample is an error; NULL: it is none */
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
    bool sample;
    ds_status status;
    char message[320];                /* of an error */
    char unread[DSI_UNREAD_KEYS][56]; /* keys that nothing reads, the first few of them */
    uint32_t n_unread;
} dsi_line;

void dsi_line_tokenize(const ds_dataset_params *params, ds_tokenizer_scratch *scratch,
                       const char *text, size_t n, dsi_line *line_out);
void dsi_line_free(dsi_line *line);

bool dsi_path_ends(const char *path, const char *end);

#endif
