/* SPDX-License-Identifier: Apache-2.0 */
/* response_format json_object: only ids that keep the text the begin of a JSON object (RFC 8259).
 *
 * A machine reads the text byte by byte; an id may come next when the machine takes all its bytes.
 * Depth is bounded, and so is a run of white space, which else could go on forever.
 */
#include "front.h"

#include <stdlib.h>
#include <string.h>

enum { MOST_DEPTH = 64, MOST_SPACE = 12 };

typedef enum json_mode {
    AT_OBJECT, /* before the object itself */
    AT_VALUE,
    AT_FIRST_KEY,  /* or the end of the object */
    AT_KEY,        /* behind a comma */
    AT_COLON,      /* behind a key */
    AT_FIRST_ITEM, /* a value, or the end of the array */
    BEHIND_VALUE,  /* a comma, or the end of what holds it */
    IN_STRING,     /* left: bytes of the character that are still to come */
    IN_ESCAPE,     /* behind a backslash */
    IN_HEX,        /* left: digits to come */
    IN_WORD,       /* true, false, null; left: letters to come */
    BEHIND_MINUS,  /* a digit */
    BEHIND_ZERO,   /* of a whole part: no digit */
    IN_WHOLE,      /* digits */
    BEHIND_POINT,  /* a digit */
    IN_FRACTION,   /* digits */
    BEHIND_E,      /* a sign or a digit */
    BEHIND_SIGN,   /* a digit */
    IN_EXPONENT,   /* digits */
    AT_END
} json_mode;

typedef struct json_machine {
    uint8_t mode, left, space, depth;
    bool key;          /* the string is one */
    uint8_t low, high; /* bounds of the next byte of a character */
    const char *word;  /* of IN_WORD: what is to come */
    bool array[MOST_DEPTH];
} json_machine;

static bool go(json_machine *m, json_mode mode)
{
    m->mode = (uint8_t)mode;
    return true;
}

static bool open_one(json_machine *m, bool array)
{
    if (m->depth == MOST_DEPTH) {
        return false;
    }
    m->array[m->depth++] = array;
    return go(m, array ? AT_FIRST_ITEM : AT_FIRST_KEY);
}

static bool close_one(json_machine *m, bool array)
{
    if (m->array[m->depth - 1] != array) {
        return false;
    }
    return go(m, --m->depth == 0 ? AT_END : BEHIND_VALUE);
}

static bool begin_string(json_machine *m, bool key)
{
    m->key = key;
    m->left = 0;
    return go(m, IN_STRING);
}

static bool begin_word(json_machine *m, const char *rest)
{
    m->word = rest;
    return go(m, IN_WORD);
}

static bool begin_value(json_machine *m, uint8_t c)
{
    switch (c) {
    case '{':
        return open_one(m, false);
    case '[':
        return open_one(m, true);
    case '"':
        return begin_string(m, false);
    case '-':
        return go(m, BEHIND_MINUS);
    case '0':
        return go(m, BEHIND_ZERO);
    case 't':
        return begin_word(m, "rue");
    case 'f':
        return begin_word(m, "alse");
    case 'n':
        return begin_word(m, "ull");
    default:
        return c >= '1' && c <= '9' && go(m, IN_WHOLE);
    }
}

static bool behind_value(json_machine *m, uint8_t c)
{
    if (c == ',') {
        return go(m, m->array[m->depth - 1] ? AT_VALUE : AT_KEY);
    }
    return (c == '}' || c == ']') && close_one(m, c == ']');
}

/* The first byte of a character of several bytes. Source: RFC 3629. */
static bool begin_character(json_machine *m, uint8_t c)
{
    m->left = c < 0xE0 ? 1 : c < 0xF0 ? 2 : 3;
    m->low = c == 0xE0 ? 0xA0 : c == 0xF0 ? 0x90 : 0x80;
    m->high = c == 0xED ? 0x9F : c == 0xF4 ? 0x8F : 0xBF;
    return c >= 0xC2 && c <= 0xF4;
}

static bool in_string(json_machine *m, uint8_t c)
{
    if (m->left > 0) {
        const bool fits = c >= m->low && c <= m->high;
        m->left -= 1;
        m->low = 0x80;
        m->high = 0xBF;
        return fits;
    }
    if (c == '"') {
        return go(m, m->key ? AT_COLON : BEHIND_VALUE);
    }
    if (c == '\\') {
        return go(m, IN_ESCAPE);
    }
    return c >= 0x80 ? begin_character(m, c) : c >= 0x20;
}

static bool in_escape(json_machine *m, uint8_t c)
{
    if (c == 'u') {
        m->left = 4;
        return go(m, IN_HEX);
    }
    m->left = 0;
    return c != 0 && strchr("\"\\/bfnrt", c) != NULL && go(m, IN_STRING);
}

static bool is_hex(uint8_t c)
{
    return (c >= '0' && c <= '9') || ((c | 32) >= 'a' && (c | 32) <= 'f');
}

static bool in_hex(json_machine *m, uint8_t c)
{
    m->left -= 1;
    return is_hex(c) && go(m, m->left == 0 ? IN_STRING : IN_HEX);
}

static bool in_number(json_machine *m, uint8_t c)
{
    const bool digit = c >= '0' && c <= '9';
    switch (m->mode) {
    case BEHIND_MINUS:
        return digit && go(m, c == '0' ? BEHIND_ZERO : IN_WHOLE);
    case BEHIND_POINT:
        return digit && go(m, IN_FRACTION);
    case BEHIND_E:
        return digit ? go(m, IN_EXPONENT) : (c == '+' || c == '-') && go(m, BEHIND_SIGN);
    case BEHIND_SIGN:
        return digit && go(m, IN_EXPONENT);
    default:
        break;
    }
    if (digit && m->mode != BEHIND_ZERO) {
        return true;
    }
    if (c == '.' && (m->mode == BEHIND_ZERO || m->mode == IN_WHOLE)) {
        return go(m, BEHIND_POINT);
    }
    if ((c == 'e' || c == 'E') && m->mode != IN_EXPONENT) {
        return go(m, BEHIND_E);
    }
    (void)go(m, BEHIND_VALUE); /* the number ended before c */
    return behind_value(m, c);
}

static bool is_space(uint8_t c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

/* Takes one byte; false: it cannot come here. */
static bool take(json_machine *m, uint8_t c)
{
    const bool between = m->mode <= BEHIND_VALUE;
    const bool number_ends = m->mode == BEHIND_ZERO || m->mode == IN_WHOLE ||
                             m->mode == IN_FRACTION || m->mode == IN_EXPONENT;
    if ((between || number_ends) && is_space(c)) {
        m->mode = number_ends ? BEHIND_VALUE : m->mode;
        return ++m->space <= MOST_SPACE;
    }
    m->space = 0;
    switch (m->mode) {
    case AT_OBJECT:
        return c == '{' && open_one(m, false);
    case AT_VALUE:
        return begin_value(m, c);
    case AT_FIRST_KEY:
        return c == '"' ? begin_string(m, true) : c == '}' && close_one(m, false);
    case AT_KEY:
        return c == '"' && begin_string(m, true);
    case AT_COLON:
        return c == ':' && go(m, AT_VALUE);
    case AT_FIRST_ITEM:
        return c == ']' ? close_one(m, true) : begin_value(m, c);
    case BEHIND_VALUE:
        return behind_value(m, c);
    case IN_STRING:
        return in_string(m, c);
    case IN_ESCAPE:
        return in_escape(m, c);
    case IN_HEX:
        return in_hex(m, c);
    case IN_WORD:
        return c == (uint8_t)*m->word && (*++m->word != '\0' || go(m, BEHIND_VALUE));
    case AT_END:
        return false;
    default:
        return in_number(m, c);
    }
}

static bool take_all(json_machine *m, const guide_words *words, uint32_t id)
{
    for (uint32_t i = words->at[id]; i < words->at[id + 1]; ++i) {
        if (!take(m, words->bytes[i])) {
            return false;
        }
    }
    return words->at[id] < words->at[id + 1];
}

void json_guide(void *opaque, const uint32_t *text, size_t n, float *logits, int64_t n_logits)
{
    const front *f = opaque;
    const guide_words *words = &f->words;
    json_machine now = {.mode = AT_OBJECT};
    bool begins[256];
    int64_t n_allowed = 0;
    for (size_t i = 0; i < n; ++i) {
        (void)take_all(&now, words, text[i]);
    }
    for (int c = 0; c < 256; ++c) {
        json_machine m = now;
        begins[c] = take(&m, (uint8_t)c);
    }
    for (int64_t id = 0; id < n_logits; ++id) {
        json_machine m = now;
        const bool has = id < words->n && words->at[id] < words->at[id + 1];
        const bool may =
            has && begins[words->bytes[words->at[id]]] && take_all(&m, words, (uint32_t)id);
        n_allowed += may;
        logits[id] = may ? logits[id] : GUIDE_NEVER;
    }
    for (size_t i = 0; i < f->n_stop_ids && n_allowed == 0; ++i) {
        logits[f->stop_ids[i]] = 0.0f; /* no token of this vocabulary goes on */
    }
}

bool json_complete(const dsi_buf *text, const dsi_buf *pending)
{
    const dsi_buf *parts[2] = {text, pending};
    json_machine m = {.mode = AT_OBJECT};
    for (int k = 0; k < 2; ++k) {
        for (size_t i = 0; i < parts[k]->size; ++i) {
            (void)take(&m, (uint8_t)parts[k]->data[i]);
        }
    }
    return m.mode == AT_END;
}

/* Special tokens stand for nothing. */
static void append_word(front *f, uint32_t id, dsi_buf *all)
{
    char *one = NULL;
    char *two = NULL;
    size_t n_one = 0;
    size_t n_two = 0;
    const uint32_t ids[2] = {id, id};
    if (!ds_tokenizer_is_special(f->tokenizer, id) &&
        ds_tokenizer_decode(f->tokenizer, ids, 1, 0, &one, &n_one) >= 0 &&
        ds_tokenizer_decode(f->tokenizer, ids, 2, 0, &two, &n_two) >= 0) {
        dsi_buf_append(all, two + n_one, n_two - n_one);
    }
    free(one);
    free(two);
}

bool guide_prepare(front *f)
{
    guide_words *w = &f->words;
    dsi_buf all = dsi_buf_make(1u << 30);
    if (w->at != NULL) {
        return true;
    }
    const uint32_t n = ds_tokenizer_vocab_size(f->tokenizer);
    uint32_t *at = calloc((size_t)n + 1, sizeof *at);
    for (uint32_t id = 0; at != NULL && id < n; ++id) {
        append_word(f, id, &all);
        at[id + 1] = (uint32_t)all.size;
    }
    if (at == NULL || all.failed) {
        free(at);
        dsi_buf_free(&all);
        return false;
    }
    w->n = n;
    w->bytes = (uint8_t *)all.data;
    w->at = at;
    return true;
}

void guide_drop(front *f)
{
    free(f->words.at);
    free(f->words.bytes);
}
