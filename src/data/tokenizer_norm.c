/* SPDX-License-Identifier: Apache-2.0 */
/* The normalizers: from a segment of the input to the text that is split and merged.
 *
 * Called by the encoder for each segment, and at load for the patterns of added tokens. Unicode
 * forms are made by utf8proc, run by run: only characters that the form may change, with the one
 * before them, go through it; the rest is copied. The package knows Unicode 9; characters younger
 * than that (INERT) are left alone and end a run, as there.
 */
#include "data/tokenizer.h"

#include <stdlib.h>
#include <string.h>
#include <utf8proc.h>

typedef struct form {
    unsigned slow; /* flags of characters that the form may change */
    bool all_slow; /* NFD, NFKD: every character beyond ASCII may change */
    utf8proc_option_t options;
} form;

static form form_of(dsi_norm_kind kind)
{
    const utf8proc_option_t stable = UTF8PROC_STABLE;
    switch (kind) {
    case DSI_NORM_NFD:
        return (form){0, true, stable | UTF8PROC_DECOMPOSE};
    case DSI_NORM_NFKD:
        return (form){0, true, stable | UTF8PROC_DECOMPOSE | UTF8PROC_COMPAT};
    case DSI_NORM_NFKC:
        return (form){DSI_UC_NFKC_SLOW, false, stable | UTF8PROC_COMPOSE | UTF8PROC_COMPAT};
    default:
        return (form){DSI_UC_NFC_SLOW, false, stable | UTF8PROC_COMPOSE};
    }
}

static bool is_slow(form f, uint32_t cp)
{
    if (cp < 0x80 || cp == DSI_UTF8_BAD) {
        return false;
    }
    const unsigned flags = dsi_uc_flags(cp);
    return (flags & DSI_UC_INERT) == 0 && (f.all_slow || (flags & f.slow) != 0);
}

/* Normalizes one run and appends it. */
static bool append_run(ds_tokenizer_scratch *s, form f, dsi_made *made, dsi_view run)
{
    const utf8proc_uint8_t *text = run.text;
    utf8proc_ssize_t n = utf8proc_decompose(text, (utf8proc_ssize_t)run.n, s->points,
                                            (utf8proc_ssize_t)s->points_capacity, f.options);
    if (n > (utf8proc_ssize_t)s->points_capacity) {
        if (!dsi_tok_grow(s, (void **)&s->points, &s->points_capacity, (size_t)n,
                          sizeof *s->points)) {
            return false;
        }
        n = utf8proc_decompose(text, (utf8proc_ssize_t)run.n, s->points,
                               (utf8proc_ssize_t)s->points_capacity, f.options);
    }
    if (n >= 0) {
        n = utf8proc_normalize_utf32(s->points, n, f.options);
    }
    if (n < 0) {
        s->failed =
            ds_fail(s->tok->ctx, DS_ERR_INTERNAL, "normalization failed: %s", utf8proc_errmsg(n));
        return false;
    }
    const ds_token_range range = dsi_view_range(run);
    for (utf8proc_ssize_t i = 0; i < n; ++i) {
        char bytes[4];
        const size_t size = dsi_utf8_encode((uint32_t)s->points[i], bytes);
        if (!dsi_made_append(s, made, bytes, size, range)) {
            return false;
        }
    }
    return true;
}

static bool unicode_form(ds_tokenizer_scratch *s, dsi_norm_kind kind, dsi_made *made, dsi_view view)
{
    const form f = form_of(kind);
    const unsigned char *end = view.text + view.n;
    size_t copied = 0; /* the input before this is in made */
    size_t before = 0; /* start of the character before p, where a run may begin */
    for (const unsigned char *p = view.text; p < end;) {
        uint32_t cp;
        const size_t at = (size_t)(p - view.text);
        size_t size = dsi_utf8_decode(p, end, &cp);
        if (!is_slow(f, cp)) {
            before = cp == DSI_UTF8_BAD || (dsi_uc_flags(cp) & DSI_UC_INERT) ? at + size : at;
            p += size;
            continue;
        }
        const unsigned char *stop = p;
        while (stop < end) {
            size = dsi_utf8_decode(stop, end, &cp);
            if (!is_slow(f, cp)) {
                break;
            }
            stop += size;
        }
        const size_t stop_at = (size_t)(stop - view.text);
        if (!dsi_made_copy(s, made, view, copied, before - copied) ||
            !append_run(s, f, made, dsi_view_part(view, before, stop_at - before))) {
            return false;
        }
        copied = stop_at;
        before = stop_at;
        p = stop;
    }
    return dsi_made_copy(s, made, view, copied, view.n - copied);
}

/* Whether a form leaves the text as it is, by a look that never says yes wrongly. */
static bool is_ascii(dsi_view view)
{
    size_t i = 0;
    for (; i + 8 <= view.n; i += 8) {
        uint64_t v;
        memcpy(&v, view.text + i, 8);
        if (v & 0x8080808080808080ull) {
            return false;
        }
    }
    for (; i < view.n; ++i) {
        if (view.text[i] >= 0x80) {
            return false;
        }
    }
    return true;
}

static bool needs_form(dsi_norm_kind kind, dsi_view view)
{
    if (is_ascii(view)) {
        return false;
    }
    const form f = form_of(kind);
    const unsigned char *end = view.text + view.n;
    for (const unsigned char *p = view.text; p < end;) {
        uint32_t cp;
        const size_t size = dsi_utf8_decode(p, end, &cp);
        if (is_slow(f, cp)) {
            return true;
        }
        p += size;
    }
    return false;
}

static bool replace_string(ds_tokenizer_scratch *s, const dsi_norm *norm, dsi_made *made,
                           dsi_view view)
{
    size_t i = 0;
    while (i < view.n) {
        const unsigned char *at =
            norm->n_pattern == 0 ? NULL
            : norm->n_pattern == 1
                ? memchr(view.text + i, norm->pattern[0], view.n - i)
                : memmem(view.text + i, view.n - i, norm->pattern, norm->n_pattern);
        const size_t stop = at != NULL ? (size_t)(at - view.text) : view.n;
        if (!dsi_made_copy(s, made, view, i, stop - i)) {
            return false;
        }
        if (at == NULL) {
            return true;
        }
        const ds_token_range range = dsi_view_range(dsi_view_part(view, stop, norm->n_pattern));
        if (!dsi_made_append(s, made, norm->content, norm->n_content, range)) {
            return false;
        }
        i = stop + norm->n_pattern;
    }
    return true;
}

static bool replace_regex(ds_tokenizer_scratch *s, const dsi_norm *norm, dsi_made *made,
                          dsi_view view)
{
    const unsigned char *text = dsi_regex_text(s, &s->spelled, view);
    size_t done = 0;
    size_t from = 0;
    size_t begin = 0;
    size_t end = 0;
    while (text != NULL && from <= view.n) {
        const int found = dsi_regex_find(s, norm->regex, text, view, from, &begin, &end);
        if (found < 0) {
            return false;
        }
        if (found == 0) {
            break;
        }
        const ds_token_range range = dsi_view_range(dsi_view_part(view, begin, end - begin));
        if (!dsi_made_copy(s, made, view, done, begin - done) ||
            !dsi_made_append(s, made, norm->content, norm->n_content, range)) {
            return false;
        }
        done = end;
        uint32_t cp;
        from = end > begin    ? end
               : end < view.n ? end + dsi_utf8_decode(view.text + end, view.text + view.n, &cp)
                              : view.n + 1;
    }
    return text != NULL && dsi_made_copy(s, made, view, done, view.n - done);
}

static dsi_view strip(const dsi_norm *norm, dsi_view view)
{
    size_t begin = 0;
    size_t stop = 0; /* end of the last character that is no white space */
    bool seen = false;
    for (size_t i = 0; i < view.n;) {
        uint32_t cp;
        const size_t size = dsi_utf8_decode(view.text + i, view.text + view.n, &cp);
        if ((dsi_uc_flags(cp) & DSI_UC_SPACE) == 0) {
            begin = seen ? begin : i;
            stop = i + size;
            seen = true;
        }
        i += size;
    }
    begin = norm->strip_left ? (seen ? begin : view.n) : 0;
    stop = norm->strip_right ? (seen ? stop : begin) : view.n;
    return dsi_view_part(view, begin, stop - begin);
}

static bool run_norm(ds_tokenizer_scratch *s, const dsi_norm *norm, dsi_made *made, dsi_view view)
{
    switch (norm->kind) {
    case DSI_NORM_REPLACE:
        return replace_string(s, norm, made, view);
    case DSI_NORM_REPLACE_REGEX:
        return replace_regex(s, norm, made, view);
    case DSI_NORM_PREPEND: {
        const size_t begin = dsi_view_range(view).begin;
        return dsi_made_append(s, made, norm->content, norm->n_content,
                               (ds_token_range){begin, begin}) &&
               dsi_made_copy(s, made, view, 0, view.n);
    }
    case DSI_NORM_CLEAN:
    case DSI_NORM_APART:
    case DSI_NORM_MARKS:
    case DSI_NORM_LOWER:
        return dsi_bert_norm(s, norm->kind, made, view);
    case DSI_NORM_CHARSMAP:
        return dsi_charsmap_norm(s, norm, made, view);
    default:
        return unicode_form(s, norm->kind, made, view);
    }
}

/* Whether a normalizer changes this text at all. */
static bool is_needed(const dsi_norm *norm, dsi_view view)
{
    switch (norm->kind) {
    case DSI_NORM_NFC:
    case DSI_NORM_NFD:
    case DSI_NORM_NFKC:
    case DSI_NORM_NFKD:
        return needs_form(norm->kind, view);
    case DSI_NORM_APART:
    case DSI_NORM_MARKS:
        return !is_ascii(view);
    default:
        return true;
    }
}

dsi_view dsi_tok_normalize(ds_tokenizer_scratch *s, dsi_view view)
{
    const bool goes_on = s->continues && view.base == 0; /* the segment began in another part */
    const size_t base = view.base;
    uint32_t turn = 0;
    for (uint32_t i = 0; i < s->tok->n_norms && view.n > 0; ++i) {
        const dsi_norm *norm = &s->tok->norms[i];
        if (norm->kind == DSI_NORM_STRIP) {
            view = strip(norm, view);
            continue;
        }
        if (!is_needed(norm, view) || (goes_on && norm->kind == DSI_NORM_PREPEND)) {
            continue;
        }
        dsi_made *made = &s->made_norm[turn];
        turn = 1 - turn;
        made->n = 0;
        if (!run_norm(s, norm, made, view)) {
            return (dsi_view){.text = view.text};
        }
        view = (dsi_view){made->text, made->n, base, s->want_ranges ? made->map : NULL};
    }
    return view;
}
