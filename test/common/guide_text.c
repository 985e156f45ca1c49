/* SPDX-License-Identifier: Apache-2.0 */
/* See guide_text.h. */
#include "common/guide_text.h"

#include "common/schema_valid.h"

#include <stdlib.h>
#include <string.h>

static const char *const pieces[] = {"\":",         "{\"",      "\", \"",
                                     "\": \"",      "true",     "false",
                                     "null",        "}}",       "]}",
                                     " \"",         "00",       "12",
                                     ".5",          "abc",      "the ",
                                     "\\n",         "\\\"",     "日本",
                                     "日",          "é",        "\n  ",
                                     "    ",        "id",       "ab",
                                     "list",        "kind",     "[[",
                                     "[]",          "{}",       "\\u00",
                                     "2024",        "-",        "e+",
                                     "\"}",         ", ",       "value",
                                     "children",    "foo",      "bar",
                                     "x y",         "://",      "@",
                                     "日本語",      "\xe6\x97", "\x97\xa5本",
                                     "é\"",         "ab日",     "\xf0\x9f\x98\x80",
                                     "\xf0\x9f",    "\xed\xa0", "a text of twenty characters",
                                     "日本語の文字"};
enum { PIECES = sizeof pieces / sizeof pieces[0], BYTES = 256, N = BYTES + PIECES + 1 };

ds_status guide_words_make(ds_ctx *ctx, dsi_vocabulary **words_out)
{
    static char bytes[BYTES];
    const char *texts[N];
    size_t sizes[N];
    for (int i = 0; i < BYTES; ++i) {
        bytes[i] = (char)i;
        texts[i] = &bytes[i];
        sizes[i] = 1;
    }
    for (int i = 0; i < (int)PIECES; ++i) {
        texts[BYTES + i] = pieces[i];
        sizes[BYTES + i] = strlen(pieces[i]);
    }
    texts[N - 1] = "";
    sizes[N - 1] = 0;
    return dsi_vocabulary_of(ctx, texts, sizes, N, words_out);
}

uint32_t guide_words_end(const dsi_vocabulary *words)
{
    return words->n - 1;
}

/* How much a token is liked behind n others: what closes the more, the longer the text is. */
static float like(const dsi_vocabulary *w, uint32_t id, size_t n, uint64_t *seed)
{
    const float noise = (float)schema_below(seed, 1000) * 0.01f;
    const uint8_t first = w->at[id] < w->at[id + 1] ? w->bytes[w->at[id]] : 0;
    const bool closes = first == '}' || first == ']' || first == '"' || first == 0;
    const bool spaces = first == ' ' || first == '\n' || first == '\t' || first == '\r';
    return noise + (closes ? (float)n * 0.15f : 0.0f) - (spaces ? 3.0f : 0.0f);
}

bool guide_text_draw(dsi_guide *guide, const dsi_vocabulary *w, uint64_t seed, size_t n,
                     dsi_buf *text)
{
    const uint32_t end = guide_words_end(w);
    uint32_t *ids = malloc((n + 1) * sizeof *ids);
    float logits[N];
    bool ended = false;
    for (size_t k = 0; k < n && !ended && ids != NULL; ++k) {
        uint32_t best = 0;
        for (uint32_t id = 0; id < w->n; ++id) {
            logits[id] = like(w, id, k, &seed);
        }
        dsi_guide_mask(guide, ids, k, &end, 1, logits, w->n);
        for (uint32_t id = 1; id < w->n; ++id) {
            best = logits[id] > logits[best] ? id : best;
        }
        if (logits[best] <= DSI_GUIDE_NEVER || best == end) {
            ended = best == end;
            break;
        }
        ids[k] = best;
        dsi_buf_append(text, w->bytes + w->at[best], w->at[best + 1] - w->at[best]);
        ended = dsi_guide_where(guide, ids, k + 1) == DSI_GUIDE_ENDS;
    }
    free(ids);
    return ended;
}
