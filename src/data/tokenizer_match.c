/* SPDX-License-Identifier: Apache-2.0 */
/* Finds a pattern in a text, in steps whose number the size of the text bounds.
 *
 * Called for each word by Split and Replace. PCRE2 limits the steps of one place at which a match
 * may begin, not those of all, and a pattern such as "a*b" looks at all of a text from each of its
 * places. So it is shown a window of the text behind the place where it searches, which grows only
 * where a match reaches its end, and few steps, which grow only where they do not suffice. What is
 * spent beyond the first window and the first steps is paid from an account of the whole text.
 *
 * Invariants: the result is that of a search without window. Whether a text is too costly does not
 * depend on the clock.
 */
#include "data/tokenizer_regex.h"

#include <stdlib.h>
#include <string.h>

enum {
    JIT_STACK_BYTES = 16 << 20,
    HEAP_KIB = 64 << 10,
    WINDOW_BYTES = 1024,
    FIRST_STEPS = 4096,
    STEP_COST = 8,           /* bytes looked at in the time of a step */
    ACCOUNT_BYTES = 4 << 20, /* for any text */
    ACCOUNT_A_BYTE = 2048    /* more for each byte of it */
};

/* What each thread matches with. */
typedef struct matcher {
    pcre2_match_data *data;
    pcre2_match_context *context;
    pcre2_jit_stack *stack;
} matcher;

void dsi_matcher_free(void *match)
{
    matcher *m = match;
    if (m != NULL) {
        pcre2_match_data_free(m->data);
        pcre2_match_context_free(m->context);
        pcre2_jit_stack_free(m->stack);
        free(m);
    }
}

static matcher *matcher_of(ds_tokenizer_scratch *s)
{
    if (s->match != NULL) {
        return s->match;
    }
    matcher *m = calloc(1, sizeof *m);
    if (m == NULL) {
        return NULL;
    }
    m->data = pcre2_match_data_create(1, NULL);
    m->context = pcre2_match_context_create(NULL);
    m->stack = pcre2_jit_stack_create(32 << 10, JIT_STACK_BYTES, NULL);
    if (m->data == NULL || m->context == NULL || pcre2_set_heap_limit(m->context, HEAP_KIB) != 0) {
        dsi_matcher_free(m);
        return NULL;
    }
    pcre2_jit_stack_assign(m->context, NULL, m->stack);
    s->match = m;
    return m;
}

const unsigned char *dsi_regex_text(ds_tokenizer_scratch *s, dsi_made *room, dsi_view view)
{
    const unsigned char *end = view.text + view.n;
    unsigned char *copy = NULL;
    for (const unsigned char *p = view.text; p < end;) {
        uint32_t cp;
        const size_t size = dsi_utf8_decode(p, end, &cp);
        if (cp == DSI_UTF8_BAD) {
            if (copy == NULL) {
                if (!dsi_made_reserve(s, room, view.n, false)) {
                    return NULL;
                }
                copy = room->text;
                memcpy(copy, view.text, view.n);
            }
            copy[p - view.text] = 1;
        }
        p += size;
    }
    return copy != NULL ? copy : view.text;
}

size_t dsi_regex_account(size_t n)
{
    return (size_t)ACCOUNT_BYTES + (n < SIZE_MAX / ACCOUNT_A_BYTE / 2 ? n : 0) * ACCOUNT_A_BYTE;
}

/* How far one attempt may go. */
typedef struct attempt {
    size_t from;   /* where a match may begin */
    size_t window; /* bytes that it sees */
    uint32_t steps;
    bool single;    /* a match may begin at `from` alone */
    bool off_stack; /* interpreted, on the heap: JIT's stack did not suffice */
} attempt;

static attempt first_attempt(size_t from)
{
    return (attempt){.from = from, .window = WINDOW_BYTES, .steps = FIRST_STEPS};
}

/* The end of the window: at the start of a character. */
static size_t window_end(const unsigned char *text, size_t n, const attempt *a)
{
    size_t stop = n - a->from <= a->window ? n : a->from + a->window;
    while (stop < n && stop > a->from && (text[stop] & 0xC0) == 0x80) {
        --stop;
    }
    return stop;
}

static bool pay(ds_tokenizer_scratch *s, const attempt *a)
{
    size_t cost = a->window > WINDOW_BYTES ? a->window : 0;
    cost += a->steps > FIRST_STEPS || a->single ? (size_t)a->steps * STEP_COST : 0;
    if (cost > s->match_account) {
        return false;
    }
    s->match_account -= cost;
    return true;
}

static int fail(ds_tokenizer_scratch *s, const dsi_regex *regex, dsi_view view, size_t at,
                const char *why)
{
    s->failed = ds_fail(
        s->tok->ctx, DS_ERR_LIMIT, "%s: the pattern \"%.120s\" at byte %zu of the text: %s",
        regex->path, regex->text, dsi_view_range(dsi_view_part(view, at, view.n - at)).begin, why);
    return -1;
}

static size_t next_character(const unsigned char *text, size_t n, size_t at)
{
    uint32_t cp;
    return at < n ? at + dsi_utf8_decode(text + at, text + n, &cp) : n + 1;
}

/* Goes on behind an attempt that found nothing: false when that is the end. */
static bool go_on(const unsigned char *text, size_t n, size_t stop, attempt *a)
{
    const size_t next = a->single ? next_character(text, n, a->from) : stop;
    if (next > n || (stop == n && !a->single)) {
        return false;
    }
    *a = first_attempt(next);
    return true;
}

int dsi_regex_find(ds_tokenizer_scratch *s, const dsi_regex *regex, const unsigned char *text,
                   dsi_view view, size_t from, size_t *begin_out, size_t *end_out)
{
    matcher *m = matcher_of(s);
    if (m == NULL) {
        s->failed = ds_fail(s->tok->ctx, DS_ERR_NOMEM, "no memory to match a pattern");
        return -1;
    }
    const PCRE2_SIZE *range = pcre2_get_ovector_pointer(m->data);
    attempt a = first_attempt(from);
    for (;;) {
        const size_t stop = window_end(text, view.n, &a);
        const uint32_t partial = stop < view.n ? PCRE2_PARTIAL_HARD : 0;
        if (!pay(s, &a)) {
            return fail(s, regex, view, a.from,
                        "it goes back over the text too often; give shorter documents (a .jsonl "
                        "has one a line), or a tokenizer with a pattern that does not");
        }
        (void)pcre2_set_offset_limit(m->context, a.single ? a.from : PCRE2_UNSET);
        (void)pcre2_set_match_limit(m->context, a.steps);
        const uint32_t flags = PCRE2_NO_UTF_CHECK | partial | (a.off_stack ? PCRE2_NO_JIT : 0);
        const int found = pcre2_match(regex->code, text, stop, a.from, flags, m->data, m->context);
        if (found >= 0) {
            *begin_out = range[0];
            *end_out = range[1] >= range[0] ? range[1] : range[0];
            return 1;
        }
        if (found == PCRE2_ERROR_NOMATCH) {
            if (!go_on(text, view.n, stop, &a)) {
                return 0;
            }
        } else if (found == PCRE2_ERROR_PARTIAL) { /* none begins before range[0] */
            const bool same = range[0] == a.from;
            a.window = same && a.single ? a.window * 2 : 2 * WINDOW_BYTES;
            a.steps = same ? a.steps : FIRST_STEPS;
            a.from = range[0];
            a.single = true;
        } else if (found == PCRE2_ERROR_MATCHLIMIT && a.steps < UINT32_MAX / 2) {
            a.steps = a.single ? a.steps * 2 : a.steps;
            a.single = true;
        } else if (found == PCRE2_ERROR_JIT_STACKLIMIT && !a.off_stack) {
            a.off_stack = true;
            a.single = true;
        } else {
            char message[160];
            (void)pcre2_get_error_message(found, (PCRE2_UCHAR *)message, sizeof message);
            return fail(s, regex, view, a.from, message);
        }
    }
}
