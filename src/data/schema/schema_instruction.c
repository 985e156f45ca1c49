/* SPDX-License-Identifier: Apache-2.0 */
/* Alpaca's rows as chats, for the model's own template. See schema.h.
 *
 * Instruction and input, one below the other, are the user's message, the output is the answer, a
 * "system" the system message; pairs of a "history" come before as turns, and their answers count:
 * as LLaMA-Factory reads such rows. A row without history is a prompt with its completion, one with
 * history a chat; the readers of those do the rest.
 */
#include "data/schema/schema.h"

#include <string.h>

static bool add_message(json_t *list, const char *role, json_t *content)
{
    return json_array_append_new(list, json_pack("{s:s, s:o}", "role", role, "content", content)) ==
           0;
}

static json_t *question(const json_t *instruction, const json_t *input)
{
    dsi_buf text = dsi_buf_make(DSI_ROW_TEXT_MAX);
    dsi_buf_append(&text, json_string_value(instruction), json_string_length(instruction));
    if (json_string_length(input) > 0) {
        dsi_buf_puts(&text, text.size > 0 ? "\n" : "");
        dsi_buf_append(&text, json_string_value(input), json_string_length(input));
    }
    json_t *content = text.failed ? NULL : json_stringn_nocheck(dsi_buf_text(&text), text.size);
    dsi_buf_free(&text);
    return content;
}

/* The turns of a history whose form is right, behind the system message. */
static bool add_turns(json_t *list, const json_t *system, const json_t *history)
{
    bool fine = json_string_length(system) == 0 ||
                add_message(list, "system", json_incref((json_t *)(uintptr_t)system));
    for (size_t i = 0; i < json_array_size(history) && fine; ++i) {
        const json_t *turn = json_array_get(history, i);
        fine = add_message(list, "user", json_incref(json_array_get(turn, 0))) &&
               add_message(list, "assistant", json_incref(json_array_get(turn, 1)));
    }
    return fine;
}

bool dsi_schema_instruction(const dsi_schema_row *r, const dsi_instruction *texts, dsi_form *form)
{
    const bool turns = json_array_size(texts->history) > 0;
    json_t *prompt = json_array();
    json_t *answer = turns ? json_incref(prompt) : json_array();
    json_t *row = turns ? json_pack("{s:O}", "messages", prompt)
                        : json_pack("{s:O, s:O}", "prompt", prompt, "completion", answer);
    bool fine = prompt != NULL && answer != NULL && row != NULL &&
                add_turns(prompt, texts->system, texts->history) &&
                add_message(prompt, "user", question(texts->instruction, texts->input)) &&
                add_message(answer, "assistant", json_incref((json_t *)(uintptr_t)texts->output));
    if (!fine) {
        (void)dsi_schema_no_memory(r);
    } else {
        dsi_schema_row chat = *r;
        chat.row = row;
        fine = turns ? dsi_schema_chat(&chat, form) : dsi_schema_pair(&chat, form);
    }
    json_decref(prompt);
    json_decref(answer);
    json_decref(row);
    return fine;
}
