/* SPDX-License-Identifier: Apache-2.0 */
/* A model of SentencePiece as the text of a tokenizer.json: what transformers makes of it for the
 * general class. The classes of Llama and T5 take vocabulary, merges and map out of it
 * (tokenizer_class.c). See spiece.h.
 *
 * SentencePiece's BPE merges by score, of equal scores the leftmost pair. The form has a rank of
 * its own for each merge, in which ways to make the same piece differ; so the ranks go beside it.
 */
#include "data/spiece.h"
#include "io/piece_merges.h"

#include <stdlib.h>
#include <string.h>

#define MARK "\\u2581"

static void put_text(dsi_buf *out, dsi_spiece_text text)
{
    dsi_buf_putc(out, '"');
    dsi_buf_json(out, text.data, text.n);
    dsi_buf_putc(out, '"');
}

static void put_base64(dsi_buf *out, dsi_spiece_text bytes)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < bytes.n; i += 3) {
        const size_t n = bytes.n - i < 3 ? bytes.n - i : 3;
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; ++k) {
            bits = bits << 8 | (k < n ? (unsigned char)bytes.data[i + k] : 0);
        }
        for (size_t k = 0; k < 4; ++k) {
            dsi_buf_putc(out, k <= n ? letters[bits >> (18 - 6 * k) & 63] : '=');
        }
    }
}

/* ---- the model ---- */

static ds_status put_merges(ds_ctx *ctx, const dsi_spiece *s, dsi_buf *out, uint32_t **ranks_out)
{
    dsi_piece_merge *merges = NULL;
    size_t n = 0;
    dsi_scored_piece *pieces = malloc(s->n * sizeof *pieces);
    if (pieces == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a tokenizer");
    }
    for (size_t i = 0; i < s->n; ++i) {
        const dsi_spiece_piece *piece = &s->pieces[i];
        pieces[i] = (dsi_scored_piece){.text = piece->text.data,
                                       .n = piece->text.n,
                                       .score = piece->score,
                                       .merges = piece->kind == DSI_PIECE_NORMAL};
    }
    const ds_status status = dsi_piece_merges(ctx, pieces, s->n, &merges, &n);
    free(pieces);
    DS_TRY(status);
    uint32_t *ranks = malloc((n + 1) * sizeof *ranks);
    for (size_t i = 0; ranks != NULL && i < n; ++i) {
        const bool joins = i > 0 && !(merges[i].score < merges[i - 1].score);
        ranks[i] = i == 0 ? 0 : ranks[i - 1] + (joins ? 0 : 1);
        dsi_buf_puts(out, i == 0 ? "[" : ",[");
        put_text(out, s->pieces[merges[i].left].text);
        dsi_buf_putc(out, ',');
        put_text(out, s->pieces[merges[i].right].text);
        dsi_buf_putc(out, ']');
    }
    free(merges);
    *ranks_out = ranks;
    return ranks != NULL ? DS_OK : ds_fail(ctx, DS_ERR_NOMEM, "no memory for a tokenizer");
}

static bool has_user_pieces(const dsi_spiece *s)
{
    bool has = false;
    for (size_t i = 0; !has && i < s->n; ++i) {
        has = s->pieces[i].kind == DSI_PIECE_USER;
    }
    return has;
}

static ds_status put_bpe(ds_ctx *ctx, const dsi_spiece *s, dsi_buf *out, uint32_t **ranks_out)
{
    dsi_buf_puts(out, "{\"type\":\"BPE\",\"dropout\":null,\"unk_token\":");
    put_text(out, s->pieces[s->unk_id].text);
    dsi_buf_printf(out,
                   ",\"continuing_subword_prefix\":null,\"end_of_word_suffix\":null,"
                   "\"fuse_unk\":true,\"byte_fallback\":%s,\"ignore_merges\":%s,\"vocab\":{",
                   s->byte_fallback ? "true" : "false", has_user_pieces(s) ? "true" : "false");
    for (size_t i = 0; i < s->n; ++i) {
        dsi_buf_puts(out, i == 0 ? "" : ",");
        put_text(out, s->pieces[i].text);
        dsi_buf_printf(out, ":%zu", i);
    }
    dsi_buf_puts(out, "},\"merges\":[");
    DS_TRY(put_merges(ctx, s, out, ranks_out));
    dsi_buf_puts(out, "]}");
    return DS_OK;
}

static void put_unigram(const dsi_spiece *s, size_t n_gaps, dsi_buf *out)
{
    dsi_buf_printf(out, "{\"type\":\"Unigram\",\"unk_id\":%lld,\"byte_fallback\":%s,\"vocab\":[",
                   (long long)s->unk_id, s->byte_fallback ? "true" : "false");
    for (size_t i = 0; i < s->n; ++i) {
        dsi_buf_puts(out, i == 0 ? "[" : ",[");
        put_text(out, s->pieces[i].text);
        dsi_buf_printf(out, ",%.17g]", (double)s->pieces[i].score);
    }
    for (size_t i = n_gaps; i > 0; --i) { /* the last has the lowest id */
        dsi_buf_printf(out, ",[\"<extra_id_%zu>\",0.0]", i - 1);
    }
    dsi_buf_puts(out, "]}");
}

/* ---- the components ---- */

static void put_normalizer(const dsi_spiece *s, bool always, dsi_buf *out)
{
    const char *between = "";
    dsi_buf_puts(out, "{\"type\":\"Sequence\",\"normalizers\":[");
    if (s->charsmap.n > 0) {
        dsi_buf_puts(out, "{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"");
        put_base64(out, s->charsmap);
        dsi_buf_puts(out, "\"}");
        between = ",";
    }
    if (s->remove_extra_whitespaces) {
        dsi_buf_printf(out,
                       "%s{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\A +| +\\\\z\"},"
                       "\"content\":\"\"},{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},"
                       "\"content\":\" \"}",
                       between);
        between = ",";
    }
    if (s->escape_whitespaces) {
        dsi_buf_printf(
            out, "%s{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"" MARK "\"}",
            between);
        between = ",";
    }
    if (s->add_dummy_prefix && always) { /* Metaspace leaves it out before a mark */
        dsi_buf_printf(out,
                       "%s{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"\\\\A" MARK
                       "\"},\"content\":\"" MARK MARK "\"}",
                       between);
    }
    dsi_buf_puts(out, "]}");
}

static int longer_first(const void *a, const void *b)
{
    const dsi_spiece_piece *x = *(const dsi_spiece_piece *const *)a;
    const dsi_spiece_piece *y = *(const dsi_spiece_piece *const *)b;
    return x->text.n != y->text.n ? (x->text.n < y->text.n ? 1 : -1) : (x > y) - (x < y);
}

/* A pattern of the pieces that stand whole, the longest first. */
static ds_status put_user_pieces(ds_ctx *ctx, const dsi_spiece *s, dsi_buf *out)
{
    static const char special[] = "()[]{}?*+-|^$\\.&~# \t\n\r\v\f";
    const dsi_spiece_piece **list = malloc(s->n * sizeof *list);
    size_t n = 0;
    if (list == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a tokenizer");
    }
    for (size_t i = 0; i < s->n; ++i) {
        if (s->pieces[i].kind == DSI_PIECE_USER) {
            list[n++] = &s->pieces[i];
        }
    }
    qsort(list, n, sizeof *list, longer_first);
    dsi_buf_puts(out, "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"");
    for (size_t i = 0; i < n; ++i) {
        dsi_buf_puts(out, i == 0 ? "" : "|");
        for (size_t k = 0; k < list[i]->text.n; ++k) {
            const char *c = &list[i]->text.data[k];
            if (*c != '\0' && strchr(special, *c) != NULL) {
                dsi_buf_puts(out, "\\\\");
            }
            dsi_buf_json(out, c, 1);
        }
    }
    dsi_buf_puts(out, "\"},\"behavior\":\"Isolated\",\"invert\":false}");
    free(list);
    return DS_OK;
}

static ds_status put_pre_tokenizer(ds_ctx *ctx, const dsi_spiece *s, bool always, dsi_buf *out)
{
    const bool whole = has_user_pieces(s);
    if (!s->add_dummy_prefix && !whole) {
        dsi_buf_puts(out, "null");
        return DS_OK;
    }
    dsi_buf_puts(out, "{\"type\":\"Sequence\",\"pretokenizers\":[");
    if (s->add_dummy_prefix) {
        dsi_buf_printf(out,
                       "{\"type\":\"Metaspace\",\"replacement\":\"" MARK
                       "\",\"prepend_scheme\":\"%s\",\"split\":false}%s",
                       always ? "always" : "first", whole ? "," : "");
    }
    DS_TRY(whole ? put_user_pieces(ctx, s, out) : DS_OK);
    dsi_buf_puts(out, "]}");
    return DS_OK;
}

static void put_decoder(const dsi_spiece *s, dsi_buf *out)
{
    dsi_buf_printf(out,
                   "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":"
                   "{\"String\":\"" MARK "\"},\"content\":\" \"}%s%s%s]}",
                   s->byte_fallback ? ",{\"type\":\"ByteFallback\"}" : "",
                   s->byte_fallback || s->add_dummy_prefix ? ",{\"type\":\"Fuse\"}" : "",
                   s->add_dummy_prefix
                       ? ",{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}"
                       : "");
}

ds_status dsi_spiece_json(ds_ctx *ctx, const char *path, const dsi_spiece *s, size_t n_gaps,
                          bool always, dsi_buf *text, uint32_t **ranks_out)
{
    *ranks_out = NULL;
    dsi_buf_puts(text, "{\"version\":\"1.0\",\"added_tokens\":[],\"normalizer\":");
    put_normalizer(s, always, text);
    dsi_buf_puts(text, ",\"pre_tokenizer\":");
    DS_TRY(put_pre_tokenizer(ctx, s, always, text));
    dsi_buf_puts(text, ",\"post_processor\":null,\"decoder\":");
    put_decoder(s, text);
    dsi_buf_puts(text, ",\"model\":");
    if (s->model_type == DSI_SPIECE_BPE) {
        DS_TRY(put_bpe(ctx, s, text, ranks_out));
    } else {
        put_unigram(s, n_gaps, text);
    }
    dsi_buf_putc(text, '}');
    return text->failed ? ds_fail(ctx, DS_ERR_NOMEM, "%s: no memory for its tokenizer", path)
                        : DS_OK;
}
