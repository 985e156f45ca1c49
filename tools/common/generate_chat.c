/* SPDX-License-Identifier: Apache-2.0 */
/* ds_generate --chat. See generate.h. */
#include "common/chat_talk.h"
#include "common/generate.h"

#include <stdlib.h>

enum { TALK_LENGTH = 4096, MESSAGE_CEILING = 64 << 20 };

/* Positions of a conversation, whose length nobody knows. */
static int64_t talk_positions(const generate_options *o, const ds_model *model)
{
    const int64_t limit = ds_model_get_info(model)->max_positions;
    const int64_t usual = limit > 0 && limit < TALK_LENGTH ? limit : TALK_LENGTH;
    return o->max_length > 0 ? o->max_length : usual;
}

/* One message, one answer: the context is as long as they are. */
static ds_status answer_once(ds_ctx *ctx, generate_options *o, const generate_parts *all,
                             chat_talk *talk)
{
    ds_tokens tokens;
    dsi_buf prompt = dsi_buf_make(MESSAGE_CEILING);
    talk->form.length = INT64_MAX;
    ds_status status = generate_prompt(ctx, o, &prompt);
    if (status >= 0) {
        status = chat_turns_add(ctx, &talk->turns, "user", dsi_buf_text(&prompt), prompt.size);
    }
    dsi_buf_free(&prompt);
    status = status < 0 ? status : chat_turns_encode(ctx, &talk->turns, &talk->form, &tokens);
    if (status >= 0) {
        status = generate_open(ctx, o, all, generate_positions(o, all->model, tokens.n),
                               &talk->generator);
    }
    if (status >= 0) {
        status =
            chat_answer_draw(ctx, talk->generator, all->tokenizer, &tokens, stdout, &talk->answer);
        (void)fputc('\n', stdout);
    }
    if (status >= 0 && o->stats) {
        chat_talk_stats(talk);
    }
    return status;
}

static ds_status converse(ds_ctx *ctx, generate_options *o, const generate_parts *all,
                          chat_talk *talk, bool *interrupted)
{
    DS_TRY(generate_check_input(ctx, o));
    DS_TRY(generate_open(ctx, o, all, talk_positions(o, all->model), &talk->generator));
    const int64_t length = ds_generator_max_length(talk->generator);
    const int64_t quarter = length / 4;
    talk->form.length = length;
    talk->form.room = o->max_new_tokens < quarter ? o->max_new_tokens : quarter;
    return chat_talk_run(ctx, talk, interrupted);
}

ds_status generate_chat(ds_ctx *ctx, generate_options *o, const generate_parts *all,
                        bool *interrupted)
{
    ds_chat *chat = NULL;
    DS_TRY(ds_chat_create(ctx, all->tokenizer, o->chat_template, &chat));
    chat_talk talk = {.form = {.chat = chat, .tokenizer = all->tokenizer, .scratch = all->scratch},
                      .answer = {.max_new_tokens = o->max_new_tokens,
                                 .sampling = generate_sampling(o),
                                 .text = dsi_buf_make(MESSAGE_CEILING)},
                      .found = o->model_found,
                      .stats = o->stats};
    talk.answer.end_id = chat_end_of_turn(&talk.form);
    ds_status status = chat_turns_system(ctx, &talk.turns, o->system);
    if (status >= 0) {
        status = o->prompt != NULL || o->prompt_file != NULL
                     ? answer_once(ctx, o, all, &talk)
                     : converse(ctx, o, all, &talk, interrupted);
    }
    ds_generator_destroy(&talk.generator);
    chat_turns_free(&talk.turns);
    dsi_buf_free(&talk.answer.text);
    free(talk.saved);
    ds_chat_destroy(&chat);
    return status;
}
