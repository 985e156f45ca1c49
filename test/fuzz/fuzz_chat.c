/* Fuzzer: any text as a chat template, and any messages through every known template. */
#include "data/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { MESSAGES = 12 };

static void check_recognise(const char *text, size_t n)
{
    dsi_buf canonical = dsi_buf_make(1 << 24);
    dsi_chat_canonical(text, n, &canonical);
    dsi_chat_form form;
    if (!canonical.failed && dsi_chat_recognise(dsi_buf_text(&canonical), &form) &&
        form.name == NULL) {
        abort();
    }
    dsi_buf_free(&canonical);
}

/* A byte gives role and length of each message. */
static size_t messages_of(const char *text, size_t n, ds_chat_message *messages)
{
    static const char *const roles[] = {"system", "user",      "assistant", "tool",
                                        "user",   "assistant", "user",      "assistant"};
    size_t count = 0;
    for (size_t at = 0; at < n && count < MESSAGES;) {
        const unsigned char c = (unsigned char)text[at++];
        const size_t size = (size_t)(c >> 3) < n - at ? (size_t)(c >> 3) : n - at;
        messages[count++] = (ds_chat_message){roles[c & 7], text + at, size};
        at += size;
    }
    return count;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    check_recognise(text, size);
    ds_chat_message messages[MESSAGES];
    const size_t n = messages_of(text, size, messages);
    for (const char *const *name = ds_chat_names(); *name != NULL; ++name) {
        for (uint32_t flags = 0; flags < 4; ++flags) {
            char bos[] = "<s>";
            char eos[] = "</s>";
            const ds_chat chat = {.form = *dsi_chat_form_by_name(*name),
                                  .bos = bos,
                                  .eos = eos,
                                  .date = "26 Jul 2024"};
            ds_chat_text got;
            if (ds_chat_render(&chat, messages, n, flags, &got) < 0) {
                continue;
            }
            size_t at = 0;
            for (size_t i = 0; i < got.n_spans; ++i) {
                if (got.spans[i].begin < at || got.spans[i].end <= got.spans[i].begin ||
                    got.spans[i].end > got.size) {
                    abort();
                }
                at = got.spans[i].end;
            }
            ds_chat_text_free(&got);
        }
    }
    return 0;
}
