/* SPDX-License-Identifier: Apache-2.0 */
/* The pre-tokenizer steps: from a normalized segment to words.
 *
 * Called by the encoder for each segment. A step gives each of its pieces to the next step at once;
 * after the last step a piece is a word. Steps that change text write it into a buffer of their own
 * in the scratch. Depth is bounded by DSI_TOK_MAX_STEPS.
 */
#include "data/tokenizer.h"

#include <string.h>

static void next_step(ds_tokenizer_scratch *s, uint32_t step, dsi_view piece)
{
    if (piece.n == 0 || s->failed != DS_OK) {
        return;
    }
    if (step + 1 == s->tok->n_pretoks) {
        dsi_bpe_word(s, piece);
    } else {
        dsi_tok_pretokenize(s, step + 1, piece);
    }
}

/* ---- what becomes of matches and of what lies between them ---- */

typedef struct splitter {
    ds_tokenizer_scratch *s;
    uint32_t step;
    dsi_view view;
    dsi_behavior behavior;
    size_t begin, end; /* a piece that may still grow */
    bool held;         /* it is there */
    bool was_match;    /* the newest part was a match */
} splitter;

static void release(splitter *sp)
{
    if (sp->held) {
        sp->held = false;
        next_step(sp->s, sp->step, dsi_view_part(sp->view, sp->begin, sp->end - sp->begin));
    }
}

/* Takes the next part [begin,end) of the view; parts come in order and leave no gap. */
static void part(splitter *sp, size_t begin, size_t end, bool match)
{
    bool joins = false;
    switch (sp->behavior) {
    case DSI_SPLIT_REMOVED:
    case DSI_SPLIT_ISOLATED:
        break;
    case DSI_SPLIT_PREVIOUS:
        joins = match && !sp->was_match;
        break;
    case DSI_SPLIT_NEXT:
        joins = !match && sp->was_match;
        break;
    case DSI_SPLIT_CONTIGUOUS:
        joins = match == sp->was_match;
        break;
    }
    sp->was_match = match;
    if (joins && sp->held) {
        sp->end = end;
        return;
    }
    release(sp);
    sp->held = !(match && sp->behavior == DSI_SPLIT_REMOVED);
    sp->begin = begin;
    sp->end = end;
}

/* ---- finding matches ---- */

static size_t step_over(const unsigned char *text, size_t n, size_t at)
{
    uint32_t cp;
    return at < n ? at + dsi_utf8_decode(text + at, text + n, &cp) : n + 1;
}

static void split_regex(splitter *sp, const dsi_pretok *rule)
{
    const size_t n = sp->view.n;
    const unsigned char *text = dsi_regex_text(sp->s, &sp->s->made_step[sp->step], sp->view);
    size_t done = 0;
    size_t from = 0;
    size_t begin = 0;
    size_t end = 0;
    while (text != NULL && from <= n && sp->s->failed == DS_OK) {
        if (dsi_regex_find(sp->s, rule->regex, text, sp->view, from, &begin, &end) <= 0) {
            break;
        }
        if (begin > done) {
            part(sp, done, begin, rule->invert);
        }
        part(sp, begin, end, !rule->invert);
        done = end;
        from = end > begin ? end : step_over(text, n, end);
    }
    if (done < n) {
        part(sp, done, n, rule->invert);
    }
    release(sp);
}

static void split_string(splitter *sp, const dsi_pretok *rule)
{
    const unsigned char *text = sp->view.text;
    const size_t n = sp->view.n;
    size_t done = 0;
    while (rule->n_text > 0 && done < n) {
        const unsigned char *at = memmem(text + done, n - done, rule->text, rule->n_text);
        if (at == NULL) {
            break;
        }
        const size_t begin = (size_t)(at - text);
        if (begin > done) {
            part(sp, done, begin, rule->invert);
        }
        part(sp, begin, begin + rule->n_text, !rule->invert);
        done = begin + rule->n_text;
    }
    if (done < n) {
        part(sp, done, n, rule->invert);
    }
    release(sp);
}

/* Each character of the class is a match; what lies between is one part. */
static void split_class(splitter *sp, const dsi_pretok *rule)
{
    const unsigned char *text = sp->view.text;
    const size_t n = sp->view.n;
    size_t done = 0;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const size_t size = dsi_utf8_decode(text + i, text + n, &cp);
        if (dsi_uc_flags(cp) & rule->class_flags) {
            if (i > done) {
                part(sp, done, i, false);
            }
            part(sp, i, i + size, true);
            done = i + size;
        }
        i += size;
    }
    if (done < n) {
        part(sp, done, n, false);
    }
    release(sp);
}

/* Runs of word characters and runs of others that are no white space; white space is dropped. */
static void split_words(ds_tokenizer_scratch *s, uint32_t step, dsi_view view)
{
    enum { NONE, WORDS, OTHERS };
    size_t begin = 0;
    int kind = NONE;
    for (size_t i = 0; i < view.n;) {
        uint32_t cp;
        const size_t size = dsi_utf8_decode(view.text + i, view.text + view.n, &cp);
        const unsigned flags = dsi_uc_flags(cp);
        const int now = flags & DSI_UC_WORD ? WORDS : flags & DSI_UC_SPACE ? NONE : OTHERS;
        if (now != kind) {
            if (kind != NONE) {
                next_step(s, step, dsi_view_part(view, begin, i - begin));
            }
            begin = i;
            kind = now;
        }
        i += size;
    }
    if (kind != NONE) {
        next_step(s, step, dsi_view_part(view, begin, view.n - begin));
    }
}

static void scan(ds_tokenizer_scratch *s, uint32_t step, dsi_scan_fn next, dsi_view view)
{
    const unsigned char *end = view.text + view.n;
    for (const unsigned char *p = view.text; p < end && s->failed == DS_OK;) {
        const size_t n = next(p, end);
        next_step(s, step, dsi_view_part(view, (size_t)(p - view.text), n));
        p += n;
    }
}

/* ---- steps that change text ---- */

/* base: of the view that it was made of. */
static dsi_view made_view(const ds_tokenizer_scratch *s, const dsi_made *made, size_t base)
{
    return (dsi_view){made->text, made->n, base, s->want_ranges ? made->map : NULL};
}

static void prefix_space(ds_tokenizer_scratch *s, uint32_t step, dsi_view view)
{
    dsi_made *made = &s->made_step[step];
    if (view.text[0] == ' ') {
        next_step(s, step, view);
        return;
    }
    made->n = 0;
    const size_t begin = dsi_view_range(view).begin;
    if (dsi_made_append(s, made, " ", 1, (ds_token_range){begin, begin}) &&
        dsi_made_copy(s, made, view, 0, view.n)) {
        next_step(s, step, made_view(s, made, view.base));
    }
}

/* Spaces become the replacement; one is put in front where the scheme says so. */
static bool metaspace_text(ds_tokenizer_scratch *s, const dsi_pretok *rule, dsi_made *made,
                           dsi_view view)
{
    const bool starts = view.text[0] == ' ' || (view.n >= rule->n_text &&
                                                memcmp(view.text, rule->text, rule->n_text) == 0);
    const size_t first = dsi_view_range(view).begin;
    made->n = 0;
    if (!starts && (rule->prepend == DSI_PREPEND_ALWAYS ||
                    (rule->prepend == DSI_PREPEND_FIRST && first == 0 && !s->continues))) {
        const ds_token_range range = {first, first};
        if (!dsi_made_append(s, made, rule->text, rule->n_text, range)) {
            return false;
        }
    }
    for (size_t i = 0; i < view.n;) {
        const unsigned char *space = memchr(view.text + i, ' ', view.n - i);
        const size_t stop = space != NULL ? (size_t)(space - view.text) : view.n;
        if (!dsi_made_copy(s, made, view, i, stop - i)) {
            return false;
        }
        if (space != NULL && !dsi_made_append(s, made, rule->text, rule->n_text,
                                              dsi_view_range(dsi_view_part(view, stop, 1)))) {
            return false;
        }
        i = stop + 1;
    }
    return true;
}

static void metaspace(ds_tokenizer_scratch *s, uint32_t step, const dsi_pretok *rule, dsi_view view)
{
    dsi_made *made = &s->made_step[step];
    if (!metaspace_text(s, rule, made, view)) {
        return;
    }
    const dsi_view all = made_view(s, made, view.base);
    if (!rule->split) {
        next_step(s, step, all);
        return;
    }
    for (size_t i = 0; i < all.n;) {
        const size_t from = i + rule->n_text <= all.n ? i + rule->n_text : all.n;
        const bool starts =
            all.n - i >= rule->n_text && memcmp(all.text + i, rule->text, rule->n_text) == 0;
        const size_t search = starts ? from : i + 1;
        const unsigned char *at =
            memmem(all.text + search, all.n - search, rule->text, rule->n_text);
        const size_t stop = at != NULL ? (size_t)(at - all.text) : all.n;
        next_step(s, step, dsi_view_part(all, i, stop - i));
        i = stop;
    }
}

void dsi_tok_pretokenize(ds_tokenizer_scratch *s, uint32_t step, dsi_view view)
{
    if (view.n == 0 || s->failed != DS_OK) {
        return;
    }
    if (step >= s->tok->n_pretoks) {
        dsi_bpe_word(s, view);
        return;
    }
    const dsi_pretok *rule = &s->tok->pretoks[step];
    splitter sp = {.s = s, .step = step, .view = view, .behavior = rule->behavior};
    switch (rule->kind) {
    case DSI_PRETOK_SCAN:
        scan(s, step, rule->scan, view);
        break;
    case DSI_PRETOK_REGEX:
        split_regex(&sp, rule);
        break;
    case DSI_PRETOK_STRING:
        split_string(&sp, rule);
        break;
    case DSI_PRETOK_CLASS:
        split_class(&sp, rule);
        break;
    case DSI_PRETOK_WORDS:
        split_words(s, step, view);
        break;
    case DSI_PRETOK_PREFIX_SPACE:
        prefix_space(s, step, view);
        break;
    case DSI_PRETOK_METASPACE:
        metaspace(s, step, rule, view);
        break;
    }
}
