/* SPDX-License-Identifier: Apache-2.0 */
/* The merges of a GGUF file's tokenizer. See gguf_model.h.
 *
 * Byte-level BPE has them in the file. SentencePiece's BPE has scores, of which piece_merges.c
 * makes them (`transformers` converts such models so).
 */
#include "ckpt/gguf_model.h"

#include "io/piece_merges.h"

#include <stdlib.h>
#include <string.h>

static void append(json_t *list, dsi_gguf_text left, dsi_gguf_text right)
{
    json_t *both = json_array();
    (void)json_array_append_new(both, json_stringn(left.data, left.n));
    (void)json_array_append_new(both, json_stringn(right.data, right.n));
    (void)json_array_append_new(list, both);
}

ds_status dsi_gguf_merges_of_scores(const dsi_gguf_tokens *of, json_t *list)
{
    const dsi_gguf_text *texts = of->tokens->texts;
    const size_t n = of->tokens->n;
    dsi_piece_merge *merges = NULL;
    size_t n_merges = 0;
    dsi_scored_piece *pieces = malloc((n + 1) * sizeof *pieces);
    if (pieces == NULL) {
        return ds_fail(of->ctx, DS_ERR_NOMEM, "no memory for a tokenizer");
    }
    for (size_t i = 0; i < n; ++i) {
        pieces[i] = (dsi_scored_piece){.text = texts[i].data,
                                       .n = texts[i].n,
                                       .score = (float)dsi_gguf_number(of->scores, i),
                                       .merges = true};
    }
    const ds_status status = dsi_piece_merges(of->ctx, pieces, n, &merges, &n_merges);
    for (size_t i = 0; i < n_merges; ++i) {
        append(list, texts[merges[i].left], texts[merges[i].right]);
    }
    free(merges);
    free(pieces);
    return status;
}

/* "a b": cut at the space, of which byte-level tokens have none. */
ds_status dsi_gguf_merges_of_file(const dsi_gguf_tokens *of, json_t *list)
{
    if (of->merges == NULL || of->merges->of != DSI_GGUF_TEXT) {
        return ds_fail(of->ctx, DS_ERR_FORMAT, "%s: tokenizer: merges are missing",
                       dsi_gguf_path(of->gguf));
    }
    for (size_t i = 0; i < of->merges->n; ++i) {
        const dsi_gguf_text m = of->merges->texts[i];
        const char *space = m.n > 1 ? memchr(m.data + 1, ' ', m.n - 1) : NULL;
        if (space == NULL) {
            return ds_fail(of->ctx, DS_ERR_FORMAT,
                           "%s: tokenizer: merge %zu is not two tokens with a space between",
                           dsi_gguf_path(of->gguf), i);
        }
        const size_t left = (size_t)(space - m.data);
        append(list, (dsi_gguf_text){m.data, left}, (dsi_gguf_text){space + 1, m.n - left - 1});
    }
    return DS_OK;
}
