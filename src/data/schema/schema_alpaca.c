/* SPDX-License-Identifier: Apache-2.0 */
/* Instructions with an answer in Alpaca's prompt. See schema.h.
 *
 * The texts are those of Stanford's Alpaca, with the line break behind "### Response:" that
 * alpaca-lora, axolotl and LLaMA-Factory write. A "system" stands in place of the first sentence;
 * turns of a "history" come before in the same form, each answer with the end token, and count.
 */
#include "data/schema/schema.h"
#include "data/tokenizer.h"

#include <string.h>

#define WITH_INPUT                                                                                 \
    "Below is an instruction that describes a task, paired with an input that provides further "   \
    "context. Write a response that appropriately completes the request."
#define WITHOUT_INPUT                                                                              \
    "Below is an instruction that describes a task. Write a response that appropriately "          \
    "completes the request."

static bool read_text(const dsi_schema_row *r, const char *field, const json_t **text_out)
{
    char column[DSI_COLUMN_NAME];
    const json_t *value = dsi_schema_field(r, field);
    *text_out = value;
    return value == NULL || json_is_string(value) ||
           dsi_schema_refuse(r, DS_ERR_FORMAT, "\"%s\" must be a string; found %s",
                             dsi_columns_name(r->params, field, column), dsi_schema_kind(value));
}

static void add(dsi_buf *buf, const json_t *text)
{
    dsi_buf_append(buf, json_string_value(text), json_string_length(text));
}

static void add_instruction(dsi_buf *buf, const json_t *instruction, const json_t *input)
{
    dsi_buf_puts(buf, "### Instruction:\n");
    add(buf, instruction);
    if (json_string_length(input) > 0) {
        dsi_buf_puts(buf, "\n\n### Input:\n");
        add(buf, input);
    }
    dsi_buf_puts(buf, "\n\n### Response:\n");
}

/* What is in buf as a text of the list; buf is emptied. */
static bool end_piece(json_t *list, dsi_buf *buf)
{
    const int bad =
        buf->failed ||
        json_array_append_new(list, json_stringn_nocheck(dsi_buf_text(buf), buf->size)) != 0;
    dsi_buf_clear(buf);
    return bad == 0;
}

/* Earlier turns, [instruction, answer] each, become two texts each. */
static bool add_history(const dsi_schema_row *r, const json_t *history, json_t *list, dsi_buf *buf)
{
    const char *eos = r->params->tokenizer->eos_text;
    for (size_t i = 0; i < json_array_size(history); ++i) {
        const json_t *turn = json_array_get(history, i);
        const json_t *answer = json_array_get(turn, 1);
        add_instruction(buf, json_array_get(turn, 0), NULL);
        bool fine = end_piece(list, buf);
        add(buf, answer);
        dsi_buf_puts(buf, eos != NULL ? eos : "");
        fine = fine && end_piece(list, buf);
        if (!fine) {
            return dsi_schema_no_memory(r);
        }
        dsi_buf_puts(buf, "\n\n");
    }
    return true;
}

static bool read_history(const dsi_schema_row *r, json_t **history_out)
{
    char column[DSI_COLUMN_NAME];
    const char *name = dsi_columns_name(r->params, "history", column);
    if (!dsi_schema_nested(r, name, dsi_schema_field(r, "history"), history_out)) {
        return false;
    }
    if (*history_out != NULL && !json_is_array(*history_out)) {
        return dsi_schema_refuse(r, DS_ERR_FORMAT, "\"%s\" must be a list; found %s", name,
                                 dsi_schema_kind(*history_out));
    }
    for (size_t i = 0; i < json_array_size(*history_out); ++i) {
        const json_t *turn = json_array_get(*history_out, i);
        if (json_array_size(turn) != 2 || !json_is_string(json_array_get(turn, 0)) ||
            !json_is_string(json_array_get(turn, 1))) {
            return dsi_schema_refuse(r, DS_ERR_FORMAT,
                                     "history[%zu] must be [\"instruction\", \"answer\"]; found %s",
                                     i, dsi_schema_kind(turn));
        }
    }
    return true;
}

/* The texts of the row, the answers at odd places. */
static json_t *pieces_of(const dsi_schema_row *r, const dsi_instruction *texts)
{
    const json_t *input = texts->input;
    dsi_buf buf = dsi_buf_make(DSI_ROW_TEXT_MAX);
    json_t *list = json_array();
    if (json_string_length(texts->system) > 0) {
        add(&buf, texts->system);
    } else {
        dsi_buf_puts(&buf, json_string_length(input) > 0 ? WITH_INPUT : WITHOUT_INPUT);
    }
    dsi_buf_puts(&buf, "\n\n");
    bool fine = add_history(r, texts->history, list, &buf);
    if (fine) {
        add_instruction(&buf, texts->instruction, input);
        fine = (end_piece(list, &buf) &&
                json_array_append(list, (json_t *)(uintptr_t)texts->output) == 0) ||
               dsi_schema_no_memory(r);
    }
    dsi_buf_free(&buf);
    if (!fine) {
        json_decref(list);
        return NULL;
    }
    return list;
}

bool dsi_schema_alpaca(const dsi_schema_row *r, dsi_form *form)
{
    dsi_instruction texts = {0};
    json_t *history = NULL;
    if (!read_history(r, &history) || !read_text(r, "instruction", &texts.instruction) ||
        !read_text(r, "input", &texts.input) || !read_text(r, "output", &texts.output) ||
        !read_text(r, "system", &texts.system)) {
        json_decref(history);
        return false;
    }
    texts.history = history;
    if (r->params->alpaca == DS_ALPACA_CHAT) {
        const bool fine = dsi_schema_instruction(r, &texts, form);
        json_decref(history);
        return fine;
    }
    json_t *pieces = pieces_of(r, &texts);
    json_decref(history);
    if (pieces != NULL && json_array_size(pieces) == 2) {
        form->prompt = json_incref(json_array_get(pieces, 0));
        form->answer = json_incref(json_array_get(pieces, 1));
        json_decref(pieces);
    } else {
        form->answer = pieces;
    }
    return form->answer != NULL;
}
