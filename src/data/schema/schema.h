/* SPDX-License-Identifier: Apache-2.0 */
/* Rows of training data, whatever names and forms they have, as one normal form.
 *
 * A row passes through: columns under the names of fields (schema_columns.c), which schema it is of
 * (schema_recognise.c), the schema's reader (schema_chat.c with schema_message.c,
 * schema_pair.c, schema_alpaca.c with schema_instruction.c), what
 * the chat template would leave out (schema_lost.c), tokens with loss flags (schema_tokens.c).
 * jsonl_line.c calls them. All run on any thread: an error is a text in the line.
 *
 *   text              {"text"}: all of it counts
 *   prompt-completion {"prompt","completion"}: strings, or lists of messages; the completion counts
 *   messages          {"messages"} or {"conversations"}, messages of role and content or of from
 *                     and value (ShareGPT); the assistant's turns count
 *   Alpaca            {"instruction","input","output"} in Alpaca's prompt, or as a chat; the output
 *                     counts
 *   preference        {"prompt","chosen","rejected"}, the prompt may be within both
 *   unpaired          {"prompt","completion","label"}, label true or false
 *   prompt-completion of sources: texts alone, tokenized apart, where these are asked for
 *   classes           {"text","label"} or {"tokens","tags"}, where these are asked for
 */
#ifndef DSI_DATA_SCHEMA_H
#define DSI_DATA_SCHEMA_H

#include "data/chat_template.h"
#include "data/source.h"

#include <jansson.h>

/* A row in normal form; the JSON is owned. Texts are strings, chats lists of messages of role and
 * content as chat templates read them. */
typedef struct dsi_form {
    dsi_schema schema;
    json_t *prompt;   /* text or chat that does not count; NULL: none */
    json_t *answer;   /* what counts: a text, or a chat (without prompt: its assistant's turns). Of
                         Alpaca with a history a list of texts, of which every second counts */
    json_t *rejected; /* of a preference: the other answer */
    json_t *context;  /* "tools", "documents", "chat_template_kwargs" for the template */
    uint8_t *counts;  /* of a chat without prompt, a message each: whether it counts */
} dsi_form;

/* What a row is read with. */
typedef struct dsi_schema_row {
    const ds_dataset_params *params;
    const json_t *columns; /* the row as its file has it */
    const json_t *row;     /* its fields */
    dsi_line *line;
} dsi_schema_row;

/* ---- the line's error and notices: schema_recognise.c ---- */

/* Records an error; false, for the caller to return. */
bool dsi_schema_refuse(const dsi_schema_row *r, ds_status status, const char *format, ...)
    DS_PRINTF(3, 4);
bool dsi_schema_no_memory(const dsi_schema_row *r);
/* A key that nothing reads: WHOSE"key". */
void dsi_schema_note(const dsi_schema_row *r, const char *whose, const char *key);
/* "a list", "nothing", … */
const char *dsi_schema_kind(const json_t *json);
bool dsi_schema_is_one_of(const char *key, const char *const *names);
/* null, a list or a text without anything in it. */
bool dsi_schema_is_empty(const json_t *value);
/* The value of a field; NULL when it is not there or null. */
json_t *dsi_schema_field(const dsi_schema_row *r, const char *field);

/* Reads r->row into *form_out, to be freed in any case. */
bool dsi_schema_read(const dsi_schema_row *r, dsi_form *form_out);
void dsi_form_free(dsi_form *form);

/* ---- columns ---- */

/* The row with its columns under the names of fields, as params->column_map says; the caller
 * releases it. NULL: no memory. */
json_t *dsi_columns_apply(const dsi_schema_row *r, json_t *row);
bool dsi_columns_maps(const ds_dataset_params *params, const char *field);
/* The column that stands for a field, for messages. */
enum { DSI_COLUMN_NAME = 64, DSI_MOST_COLUMNS = 32 /* bits of dsi_line.columns */ };
const char *dsi_columns_name(const ds_dataset_params *params, const char *field,
                             char name[DSI_COLUMN_NAME]);

/* ---- readers of one schema each; they fill what the form lacks ---- */

bool dsi_schema_chat(const dsi_schema_row *r, dsi_form *form);
bool dsi_schema_pair(const dsi_schema_row *r, dsi_form *form);
bool dsi_schema_preference(const dsi_schema_row *r, dsi_form *form);
bool dsi_schema_alpaca(const dsi_schema_row *r, dsi_form *form);

/* An Alpaca row's texts, each NULL when it is not there, as a chat. history: pairs of texts. */
typedef struct dsi_instruction {
    const json_t *system, *history, *instruction, *input, *output;
} dsi_instruction;
bool dsi_schema_instruction(const dsi_schema_row *r, const dsi_instruction *texts, dsi_form *form);

/* Fills form->context; a chat template must be there. Before messages are read: which template it
 * is depends on the tools. */
bool dsi_schema_context(const dsi_schema_row *r, dsi_form *form);
/* One message in the normal form, NAME[i] in errors; the caller's. template NULL: none is the
 * default, an error of the rendering. */
json_t *dsi_schema_message(const dsi_schema_row *r, const dsi_jinja *template, const char *name,
                           size_t i, const json_t *message, uint8_t *counts_out);
/* The messages of a field in the normal form. counts_out is malloc's; NULL: a turn that says
 * whether it counts is refused. The list is the caller's; NULL on an error. */
json_t *dsi_schema_messages(const dsi_schema_row *r, const dsi_form *form, const char *field,
                            uint8_t **counts_out);
/* A list or object that may also be given as JSON text; the caller releases *value_out. NULL there:
 * it is absent, null, or an empty text. name: what it is, for an error. */
bool dsi_schema_nested(const dsi_schema_row *r, const char *name, const json_t *value,
                       json_t **value_out);

/* ---- what the chat template does not read ---- */

bool dsi_schema_lost_message(const dsi_schema_row *r, const dsi_jinja *template, const char *where,
                             const json_t *message);
bool dsi_schema_lost_context(const dsi_schema_row *r, const dsi_jinja *template,
                             const json_t *context);

/* ---- tokens ---- */

enum { DSI_ROW_TEXT_MAX = 1 << 30 }; /* bytes of a text put together */

/* Two texts that are read together, in any of the columns that data sets have: "text" and
 * "text_pair", "sentence1" and "sentence2", "premise" and "hypothesis", "question1" and
 * "question2". second NULL: one text. */
typedef struct dsi_text_columns {
    const json_t *first, *second;
} dsi_text_columns;
bool dsi_schema_texts(const dsi_schema_row *r, dsi_text_columns *out);
/* Whether a column of this name is such a text. */
bool dsi_schema_is_text(const char *key);
/* What a row's texts become: ids, the type of each as its flag. schema_texts.c */
bool dsi_schema_encode(const dsi_schema_row *r, ds_tokenizer_scratch *scratch, const char *text,
                       size_t n, uint32_t flags, ds_tokens *tokens);
bool dsi_schema_append(const dsi_schema_row *r, const ds_tokens *tokens);
bool dsi_schema_append_texts(const dsi_schema_row *r, ds_tokenizer_scratch *scratch);
/* Appends the numbers of a row of VALUES, before its tokens: of each the bytes of its float, as the
 * flags of entries of id 0. */
bool dsi_schema_values(const dsi_schema_row *r, const json_t *label);
/* The class of a name; -1: none has it. */
int64_t dsi_schema_class(const dsi_schema_row *r, const char *name);
/* Reads and tokenizes a row of contrast (schema_texts.c). */
bool dsi_schema_contrast(const dsi_schema_row *r, ds_tokenizer_scratch *scratch);
/* Reads and tokenizes a row of classes (schema_classes.c). */
bool dsi_schema_classes(const dsi_schema_row *r, ds_tokenizer_scratch *scratch);

/* Likewise of a source and its target (schema_sources.c). */
bool dsi_schema_sources(const dsi_schema_row *r, ds_tokenizer_scratch *scratch);

bool dsi_form_tokenize(const dsi_schema_row *r, ds_tokenizer_scratch *scratch,
                       const dsi_form *form);

#endif
