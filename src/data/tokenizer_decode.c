/* SPDX-License-Identifier: Apache-2.0 */
/* From ids back to text: the decoder steps, whole or streamed.
 *
 * Both run the same machine over one id at a time: a token's bytes, changed by the steps, go into a
 * buffer. Steps that look beyond one token (Strip after Fuse, Metaspace's first token) only concern
 * the start of the text, so that streaming needs no more than the bytes of an unfinished character.
 */
#include "data/tokenizer.h"

#include "base/escape.h"
#include <stdlib.h>
#include <string.h>

enum { DECODE_CEILING = 1 << 30 };

struct ds_detokenizer {
    const ds_tokenizer *tok;
    uint32_t flags;
    bool first;       /* no token has been taken yet */
    bool whole_runs;  /* bytes that follow each other are one text, good or bad as a whole */
    uint32_t strip;   /* characters that may still be taken off the front of the text */
    dsi_buf run;      /* such bytes, not decoded yet */
    dsi_buf piece[2]; /* a token's text while the steps change it */
    dsi_buf pending;  /* decoded bytes not given yet */
    dsi_buf out;      /* what the newest call gave */
};

/* What a Strip behind Fuse, the last step then, takes off the whole text. */
static uint32_t strip_of(const ds_tokenizer *tok)
{
    const uint32_t n = tok->n_decoders;
    const bool fused = n >= 2 && tok->decoders[n - 2].kind == DSI_DECODE_FUSE;
    return fused && tok->decoders[n - 1].kind == DSI_DECODE_STRIP ? tok->decoders[n - 1].start : 0;
}

static void machine_init(ds_detokenizer *d, const ds_tokenizer *tok, uint32_t flags)
{
    *d = (ds_detokenizer){.tok = tok, .flags = flags, .first = true};
    d->strip = strip_of(tok);
    d->run = dsi_buf_make(DECODE_CEILING);
    d->piece[0] = dsi_buf_make(DECODE_CEILING);
    d->piece[1] = dsi_buf_make(DECODE_CEILING);
    d->pending = dsi_buf_make(DECODE_CEILING);
    d->out = dsi_buf_make(DECODE_CEILING);
}

static void machine_free(ds_detokenizer *d)
{
    dsi_buf_free(&d->run);
    dsi_buf_free(&d->piece[0]);
    dsi_buf_free(&d->piece[1]);
    dsi_buf_free(&d->pending);
    dsi_buf_free(&d->out);
}

static void replace_all(dsi_buf *to, const dsi_buf *from, const dsi_decode_step *step)
{
    size_t done = 0;
    while (step->n_pattern > 0 && done < from->size) {
        const char *at =
            memmem(from->data + done, from->size - done, step->pattern, step->n_pattern);
        if (at == NULL) {
            break;
        }
        const size_t begin = (size_t)(at - from->data);
        dsi_buf_append(to, from->data + done, begin - done);
        dsi_buf_append(to, step->content, step->n_content);
        done = begin + step->n_pattern;
    }
    if (done < from->size) {
        dsi_buf_append(to, from->data + done, from->size - done);
    }
}

/* The byte of "<0xXX>", -1 for another text. */
int dsi_byte_of_piece(const char *text, size_t n)
{
    if (n != 6 || memcmp(text, "<0x", 3) != 0 || text[5] != '>') {
        return -1;
    }
    const int high = dsi_hex_digit(text[3]);
    const int low = dsi_hex_digit(text[4]);
    return high < 0 || low < 0 ? -1 : high * 16 + low;
}

/* Bytes at the front that a Strip takes off, `limit` at most. */
static size_t front(const char *text, size_t n, char byte, uint32_t limit)
{
    size_t taken = 0;
    while (taken < limit && taken < n && text[taken] == byte) {
        ++taken;
    }
    return taken;
}

/* Appends text behind the steps for one token; a Strip behind Fuse is for the whole text. */
static void emit(ds_detokenizer *d, const char *text, size_t n)
{
    const ds_tokenizer *tok = d->tok;
    if (d->strip > 0 && n > 0) {
        const size_t taken =
            front(text, n, tok->decoders[tok->n_decoders - 1].pattern[0], d->strip);
        d->strip = taken < n ? 0 : d->strip - (uint32_t)taken;
        text += taken;
        n -= taken;
    }
    dsi_buf_append(&d->pending, text, n);
}

static bool is_utf8(const unsigned char *p, size_t n)
{
    const unsigned char *end = p + n;
    while (p < end) {
        uint32_t cp;
        p += dsi_utf8_decode(p, end, &cp);
        if (cp == DSI_UTF8_BAD) {
            return false;
        }
    }
    return true;
}

/* Ends a run of bytes: when it is no UTF-8, each byte of it is U+FFFD where bytes are repaired. */
static void end_run(ds_detokenizer *d)
{
    const size_t n = d->run.size;
    if (n == 0) {
        return;
    }
    if ((d->flags & DS_DECODE_REPAIR) == 0 ||
        is_utf8((const unsigned char *)dsi_buf_text(&d->run), n)) {
        emit(d, dsi_buf_text(&d->run), n);
    } else {
        for (size_t i = 0; i < n; ++i) {
            emit(d, "\xEF\xBF\xBD", 3);
        }
    }
    dsi_buf_clear(&d->run);
}

/* The byte that a token stands for under ByteFallback, -1 for another token. */
static int byte_of(const ds_tokenizer *tok, uint32_t id)
{
    size_t n = 0;
    const uint32_t added = tok->added_of_id[id];
    const char *text = added == DSI_NO_ID ? ds_tokenizer_piece(tok, id, &n) : NULL;
    if (added != DSI_NO_ID) {
        text = tok->added[added].shown;
        n = tok->added[added].n_shown;
    }
    return text != NULL ? dsi_byte_of_piece(text, n) : -1;
}

/* Takes spaces before punctuation and short forms out of piece[turn]; the result's index. token: as
 * the decoder does with each, not as transformers with the whole text. */
static uint32_t tidy(ds_detokenizer *d, uint32_t turn, bool token)
{
    static const char *const rows[][2] = {
        {" .", "."},     {" ?", "?"},   {" !", "!"},   {" ,", ","},     {" ' ", "'"},
        {" n't", "n't"}, {" 'm", "'m"}, {" 's", "'s"}, {" 've", "'ve"}, {" 're", "'re"},
    };
    static const char *const not_row[2] = {" do not", " don't"}; /* of tokens, behind " 'm" */
    for (size_t i = 0; i < sizeof rows / sizeof rows[0] + 1; ++i) {
        if (i == 7 && !token) {
            continue;
        }
        const char *const *row = i == 7 ? not_row : rows[i - (i > 7)];
        const dsi_decode_step one = {.pattern = row[0],
                                     .content = row[1],
                                     .n_pattern = strlen(row[0]),
                                     .n_content = strlen(row[1])};
        dsi_buf_clear(&d->piece[1 - turn]);
        replace_all(&d->piece[1 - turn], &d->piece[turn], &one);
        turn = 1 - turn;
    }
    return turn;
}

/* With tok->tidy: the same for all that is pending. */
static void tidy_pending(ds_detokenizer *d)
{
    dsi_buf_clear(&d->piece[0]);
    dsi_buf_append(&d->piece[0], dsi_buf_text(&d->pending), d->pending.size);
    const dsi_buf *result = &d->piece[tidy(d, 0, false)];
    dsi_buf_clear(&d->pending);
    dsi_buf_append(&d->pending, dsi_buf_text(result), result->size);
    d->pending.failed = d->pending.failed || d->piece[0].failed || d->piece[1].failed;
}

/* A piece that continues a word loses its prefix, another gets a space before it; not the first. */
static uint32_t wordpiece_step(ds_detokenizer *d, const dsi_decode_step *step, uint32_t turn)
{
    if (!d->first) {
        const dsi_buf *from = &d->piece[turn];
        dsi_buf *to = &d->piece[1 - turn];
        const bool continues = from->size >= step->n_pattern &&
                               memcmp(dsi_buf_text(from), step->pattern, step->n_pattern) == 0;
        const size_t skip = continues ? step->n_pattern : 0;
        dsi_buf_clear(to);
        if (!continues) {
            dsi_buf_putc(to, ' ');
        }
        dsi_buf_append(to, dsi_buf_text(from) + skip, from->size - skip);
        turn = 1 - turn;
    }
    return step->cleanup ? tidy(d, turn, true) : turn;
}

/* The steps for one token, on what is in piece[0]; the result's index. */
static uint32_t run_steps(ds_detokenizer *d)
{
    const ds_tokenizer *tok = d->tok;
    uint32_t turn = 0;
    for (uint32_t i = 0; i < tok->n_decoders && tok->decoders[i].kind != DSI_DECODE_FUSE; ++i) {
        const dsi_decode_step *step = &tok->decoders[i];
        dsi_buf *piece = &d->piece[turn];
        if (step->kind == DSI_DECODE_WORDPIECE) {
            turn = wordpiece_step(d, step, turn);
        } else if (step->kind == DSI_DECODE_STRIP) {
            const size_t n = front(dsi_buf_text(piece), piece->size, step->pattern[0], step->start);
            turn = 1 - turn;
            dsi_buf_clear(&d->piece[turn]);
            dsi_buf_append(&d->piece[turn], dsi_buf_text(piece) + n, piece->size - n);
        } else if (step->kind == DSI_DECODE_REPLACE || step->kind == DSI_DECODE_METASPACE) {
            dsi_decode_step now = *step;
            now.n_content = step->drop_first && d->first ? 0 : step->n_content;
            turn = 1 - turn;
            dsi_buf_clear(&d->piece[turn]);
            replace_all(&d->piece[turn], piece, &now);
        }
    }
    return turn;
}

/* Appends the text of one token to pending. */
static void take(ds_detokenizer *d, uint32_t id)
{
    const ds_tokenizer *tok = d->tok;
    const char *raw = tok->raw_text + tok->raw_offset[id];
    if (tok->decode_bytes) {
        dsi_buf_append(&d->pending, raw, tok->raw_size[id]);
        return;
    }
    if (tok->join_with_space && !d->first) {
        dsi_buf_putc(&d->pending, ' ');
    }
    if (tok->falls_back && byte_of(tok, id) >= 0) {
        if (d->whole_runs) {
            dsi_buf_append(&d->run, raw, tok->raw_size[id]);
        } else {
            emit(d, raw, tok->raw_size[id]);
        }
        d->first = false;
        return;
    }
    end_run(d);
    dsi_buf_clear(&d->piece[0]);
    dsi_buf_append(&d->piece[0], raw, tok->raw_size[id]);
    const uint32_t turn = run_steps(d);
    emit(d, dsi_buf_text(&d->piece[turn]), d->piece[turn].size);
    d->first = false;
}

static ds_status push(ds_detokenizer *d, uint32_t id)
{
    const ds_tokenizer *tok = d->tok;
    if (id >= tok->n_ids) {
        return ds_fail(tok->ctx, DS_ERR_ARG, "no token has the id %u; the vocabulary has %u ids",
                       id, tok->n_ids);
    }
    if (tok->raw_offset[id] != DSI_NO_ID && /* a hole in the vocabulary is no text */
        ((d->flags & DS_DECODE_SKIP_SPECIAL) == 0 || !ds_tokenizer_is_special(tok, id))) {
        take(d, id);
    }
    if (d->pending.failed || d->run.failed || d->piece[0].failed || d->piece[1].failed) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory to decode with");
    }
    return DS_OK;
}

/* Bytes at the end of text that may be the start of a character: 0 to 3. */
static size_t unfinished(const unsigned char *text, size_t n)
{
    for (size_t back = 1; back <= 3 && back <= n; ++back) {
        const unsigned c = text[n - back];
        if ((c & 0xC0) == 0x80) {
            continue;
        }
        const size_t need = c >= 0xF0 ? 4 : c >= 0xE0 ? 3 : c >= 0xC2 ? 2 : 1;
        if (need <= back || c > 0xF4) {
            return 0;
        }
        if (back > 1) { /* the second byte already decides whether it can become valid */
            const unsigned b = text[n - back + 1];
            const bool bad = (c == 0xE0 && b < 0xA0) || (c == 0xED && b > 0x9F) ||
                             (c == 0xF0 && b < 0x90) || (c == 0xF4 && b > 0x8F);
            return bad ? 0 : back;
        }
        return back;
    }
    return 0;
}

/* Bytes at p that one U+FFFD stands for: the longest start of a valid character, or one byte. */
static size_t bad_bytes(const unsigned char *p, const unsigned char *end)
{
    const size_t n = (size_t)(end - p) < 3 ? (size_t)(end - p) : 3;
    for (size_t size = n; size > 1; --size) {
        if (unfinished(p, size) == size) {
            return size;
        }
    }
    return 1;
}

static void append_repaired(dsi_buf *to, const unsigned char *p, size_t n)
{
    const unsigned char *end = p + n;
    while (p < end) {
        uint32_t cp;
        const size_t size = dsi_utf8_decode(p, end, &cp);
        if (cp == DSI_UTF8_BAD) {
            dsi_buf_puts(to, "\xEF\xBF\xBD");
            p += bad_bytes(p, end);
        } else {
            dsi_buf_append(to, p, size);
            p += size;
        }
    }
}

ds_status ds_tokenizer_decode(const ds_tokenizer *tok, const uint32_t *ids, size_t n,
                              uint32_t flags, char **text_out, size_t *size_out)
{
    ds_detokenizer d;
    machine_init(&d, tok, flags);
    d.whole_runs = true;
    ds_status status = DS_OK;
    for (size_t i = 0; i < n; ++i) {
        DS_TRY_GOTO(status, push(&d, ids[i]), done);
    }
    end_run(&d);
    if (tok->tidy) {
        tidy_pending(&d);
    }
    if (d.pending.failed) {
        status = ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory to decode with");
        goto done;
    }
    dsi_buf *text = &d.pending;
    if (flags & DS_DECODE_REPAIR) {
        append_repaired(&d.out, (const unsigned char *)dsi_buf_text(&d.pending), d.pending.size);
        text = &d.out;
    }
    dsi_buf_append(text, "", 0);
    if (text->failed || text->data == NULL) {
        status = ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory to decode with");
        goto done;
    }
    *text_out = text->data;
    *size_out = text->size;
    *text = dsi_buf_make(0); /* moved to the caller */
done:
    machine_free(&d);
    return status;
}

ds_status ds_detokenizer_create(const ds_tokenizer *tok, uint32_t flags,
                                ds_detokenizer **decoder_out)
{
    ds_detokenizer *d = malloc(sizeof *d);
    if (d == NULL) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "no memory to decode with");
    }
    machine_init(d, tok, flags);
    *decoder_out = d;
    return DS_OK;
}

void ds_detokenizer_destroy(ds_detokenizer **decoder)
{
    if (decoder != NULL && *decoder != NULL) {
        machine_free(*decoder);
        free(*decoder);
        *decoder = NULL;
    }
}

/* Moves all but `keep` bytes from pending to out, repaired. */
static ds_status give(ds_detokenizer *d, size_t keep, const char **text_out, size_t *size_out)
{
    const size_t n = d->pending.size - keep;
    dsi_buf_clear(&d->out);
    append_repaired(&d->out, (const unsigned char *)dsi_buf_text(&d->pending), n);
    if (d->out.failed) {
        return ds_fail(d->tok->ctx, DS_ERR_NOMEM, "no memory to decode with");
    }
    char kept[4] = {0};
    memcpy(kept, dsi_buf_text(&d->pending) + n, keep);
    dsi_buf_clear(&d->pending);
    dsi_buf_append(&d->pending, kept, keep);
    *text_out = dsi_buf_text(&d->out);
    *size_out = d->out.size;
    return DS_OK;
}

ds_status ds_detokenizer_push(ds_detokenizer *d, uint32_t id, const char **text_out,
                              size_t *size_out)
{
    DS_TRY(push(d, id));
    if (d->tok->tidy) { /* what comes may yet change what is there */
        dsi_buf_clear(&d->out);
        *text_out = dsi_buf_text(&d->out);
        *size_out = 0;
        return DS_OK;
    }
    const unsigned char *pending = (const unsigned char *)dsi_buf_text(&d->pending);
    return give(d, unfinished(pending, d->pending.size), text_out, size_out);
}

ds_status ds_detokenizer_flush(ds_detokenizer *d, const char **text_out, size_t *size_out)
{
    if (d->tok->tidy) {
        tidy_pending(d);
        if (d->pending.failed) {
            return ds_fail(d->tok->ctx, DS_ERR_NOMEM, "no memory to decode with");
        }
    }
    DS_TRY(give(d, 0, text_out, size_out));
    dsi_buf_clear(&d->pending);
    d->first = true;
    d->strip = strip_of(d->tok);
    return DS_OK;
}
