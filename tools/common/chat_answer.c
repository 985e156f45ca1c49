/* SPDX-License-Identifier: Apache-2.0 */
/* See chat_answer.h. */
#include "common/chat_answer.h"

#include "base/clock.h"

#include <signal.h>
#include <unistd.h>

enum { EXIT_INTERRUPTED = 130 };

static volatile sig_atomic_t interrupts; /* a handler can reach nothing else */

static void interrupt(int number)
{
    (void)number;
    if (interrupts > 0) { /* the model does not come to an end, or nobody asks it */
        const ssize_t wrote = write(STDOUT_FILENO, "\n", 1);
        (void)wrote;
        _exit(EXIT_INTERRUPTED);
    }
    interrupts = 1;
}

void chat_interrupts_take(void)
{
    struct sigaction action = {0};
    struct sigaction old;
    action.sa_handler = interrupt; /* without SA_RESTART: reading a line ends */
    if (sigaction(SIGINT, NULL, &old) == 0 && old.sa_handler != SIG_IGN) {
        (void)sigaction(SIGINT, &action, NULL);
    }
}

int chat_interrupts(void)
{
    const int n = interrupts;
    interrupts = 0;
    return n;
}

static ds_status put(ds_ctx *ctx, chat_answer *answer, const char *text, size_t n, FILE *stream)
{
    dsi_buf_append(&answer->text, text, n);
    if (answer->text.failed) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for the answer");
    }
    if (fwrite(text, 1, n, stream) != n || fflush(stream) != 0) {
        return ds_fail(ctx, DS_ERR_IO, "cannot write the generated text");
    }
    return DS_OK;
}

/* Draws one id; *ended_out: it, or something else, ends the answer. */
static ds_status draw_one(ds_ctx *ctx, ds_generator *generator, const ds_tokenizer *tokenizer,
                          chat_answer *a, uint32_t *id_out, bool *ended_out)
{
    *ended_out = true;
    if (interrupts > 0) {
        a->end = CHAT_END_INTERRUPTED;
        return DS_OK;
    }
    if (a->n_drawn >= a->max_new_tokens) {
        a->end = CHAT_END_TOKENS;
        return DS_OK;
    }
    if (ds_generator_length(generator) >= ds_generator_max_length(generator)) {
        a->end = CHAT_END_CONTEXT;
        return DS_OK;
    }
    (void)ctx;
    DS_TRY(ds_generator_next(generator, &a->sampling, id_out));
    a->n_drawn += 1;
    a->end = CHAT_END_TURN;
    *ended_out = ds_tokenizer_is_eos(tokenizer, *id_out) || (int64_t)*id_out == a->end_id;
    return DS_OK;
}

static ds_status draw(ds_ctx *ctx, ds_generator *generator, const ds_tokenizer *tokenizer,
                      ds_detokenizer *decoder, FILE *stream, chat_answer *a)
{
    const char *text = NULL;
    size_t size = 0;
    for (;;) {
        uint32_t id = 0;
        bool ended = false;
        DS_TRY(draw_one(ctx, generator, tokenizer, a, &id, &ended));
        if (ended) {
            break;
        }
        if (id < ds_tokenizer_vocab_size(tokenizer)) { /* a model may have padding ids */
            DS_TRY(ds_detokenizer_push(decoder, id, &text, &size));
            DS_TRY(put(ctx, a, text, size, stream));
        }
    }
    DS_TRY(ds_detokenizer_flush(decoder, &text, &size));
    return put(ctx, a, text, size, stream);
}

ds_status chat_answer_draw(ds_ctx *ctx, ds_generator *generator, const ds_tokenizer *tokenizer,
                           const ds_tokens *prompt, FILE *stream, chat_answer *a)
{
    ds_detokenizer *decoder = NULL;
    double at = dsi_clock_seconds();
    dsi_buf_clear(&a->text);
    a->n_drawn = 0;
    a->n_prompt = prompt->n;
    DS_TRY(ds_detokenizer_create(tokenizer, DS_DECODE_SKIP_SPECIAL, &decoder));
    ds_status status = ds_generator_prompt_on(generator, prompt->ids, prompt->n, &a->n_kept);
    a->prompt_seconds = dsi_clock_seconds() - at;
    at += a->prompt_seconds;
    if (status >= 0) {
        status = draw(ctx, generator, tokenizer, decoder, stream, a);
    }
    a->seconds = dsi_clock_seconds() - at;
    ds_detokenizer_destroy(&decoder);
    return status;
}
