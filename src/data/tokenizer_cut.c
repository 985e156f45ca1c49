/* SPDX-License-Identifier: Apache-2.0 */
/* Where a text may be cut so that its parts, encoded one by one, give the ids of the whole.
 *
 * Called at load (which kinds of places are safe with this tokenizer) and by the reader of large
 * texts (where the next such place is). A place is safe when no stage of the encoder looks, joins
 * or changes anything across it; what cannot be shown to be so is taken as unsafe.
 *
 * Three kinds of places, p, are looked at. A solid character is a graphic one of ASCII, a letter or
 * a number that no normalizer changes.
 *   SPACE  a solid character, p, a space
 *   BREAK  a letter or number, p, a line break
 *   LINE   a solid character and one line feed, p, a solid character other than a slash
 * Added tokens, normalizers and splits may not reach across p, and either a step of the
 * pre-tokenizer ends a word at p whatever stands around, or no merge joins the two characters.
 */
#include "data/tokenizer.h"

#include <string.h>

enum { SPACE = 1, BREAK = 2, LINE = 4, ALL = 7 };

/* ---- what a pattern's alternatives allow ---- */

/* Alternatives of which no match reaches across a place of any kind: white space stands first in a
 * match, or follows only white space or what is neither letter nor number. covers: characters at
 * which the alternative is sure to match. */
enum { COVERS_LOWER = 1, COVERS_UPPER = 2, COVERS_NUMBER = 4, COVERS_OTHER = 8, COVERS_SPACE = 16 };
enum { COVERS_LETTER = 3, COVERS_ALL = 31 };

typedef struct alternative {
    const char *text;
    unsigned covers;
} alternative;

#define UPPER       "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}]"
#define LOWER       "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}]"
#define CONTRACTION "(?i:'s|'t|'re|'ve|'m|'ll|'d)"

static const alternative known[] = {
    {"'s", 0},
    {"'t", 0},
    {"'re", 0},
    {"'ve", 0},
    {"'m", 0},
    {"'ll", 0},
    {"'d", 0},
    {CONTRACTION, 0},
    {"'(?i:[sdmt]|ll|ve|re)", 0},
    {" ?\\p{L}+", COVERS_LETTER},
    {"\\p{L}+", COVERS_LETTER},
    {"[^\\r\\n\\p{L}\\p{N}]?\\p{L}+", COVERS_LETTER},
    {"[^\\r\\n\\p{L}\\p{N}]?+\\p{L}+", COVERS_LETTER},
    {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+", COVERS_LOWER},
    {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "*" LOWER "+" CONTRACTION "?", COVERS_LOWER},
    {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*", COVERS_UPPER},
    {"[^\\r\\n\\p{L}\\p{N}]?" UPPER "+" LOWER "*" CONTRACTION "?", COVERS_UPPER},
    {" ?\\p{N}+", COVERS_NUMBER},
    {"\\p{N}+", COVERS_NUMBER},
    {"\\p{N}", COVERS_NUMBER},
    {"\\p{N}{1,2}", COVERS_NUMBER},
    {"\\p{N}{1,3}", COVERS_NUMBER},
    {" ?[^\\s\\p{L}\\p{N}]+", COVERS_OTHER},
    {" ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*", COVERS_OTHER},
    {" ?[^\\s\\p{L}\\p{N}]++[\\r\\n]*", COVERS_OTHER},
    {" ?[^\\s\\p{L}\\p{N}]+[\\r\\n/]*", COVERS_OTHER},
    {"\\s*[\\r\\n]", 0},
    {"\\s*[\\r\\n]+", 0},
    {"\\s+(?!\\S)", 0},
    {"\\s+", COVERS_SPACE},
};

/* Bytes of the pattern's first alternative at the top level. */
static size_t first_alternative(const char *p, size_t n)
{
    int depth = 0;
    bool in_class = false;
    for (size_t i = 0; i < n; ++i) {
        if (p[i] == '\\') {
            ++i;
        } else if (in_class) {
            in_class = p[i] != ']';
        } else if (p[i] == '[') {
            in_class = true;
        } else if (p[i] == '(' || p[i] == ')') {
            depth += p[i] == '(' ? 1 : -1;
        } else if (p[i] == '|' && depth == 0) {
            return i;
        }
    }
    return n;
}

/* What the pattern is sure to match; false when some alternative is not a known one. */
static bool pattern_covers(const char *p, size_t n, unsigned *covers_out)
{
    *covers_out = 0;
    for (bool more = true; more;) {
        const size_t size = first_alternative(p, n);
        bool found = false;
        for (size_t i = 0; i < sizeof known / sizeof known[0] && !found; ++i) {
            found = strlen(known[i].text) == size && memcmp(known[i].text, p, size) == 0;
            *covers_out |= found ? known[i].covers : 0;
        }
        if (!found) {
            return false;
        }
        more = size < n;
        p += size + more;
        n -= size + more;
    }
    return true;
}

/* ---- which kinds are safe with a tokenizer ---- */

/* The kinds on their way through the stages. */
typedef struct analysis {
    dsi_cuts *cuts;
    unsigned kinds;      /* safe so far */
    unsigned ended;      /* of them: a word is sure to end there */
    const char *space;   /* what a space of the text has become */
    size_t n_space;      /* bytes of it, at least 1 */
    bool space_is_space; /* it is still U+0020 */
    bool lowered;        /* letters are no longer those of the text */
} analysis;

static bool set_has(const uint8_t *set, unsigned char byte)
{
    return (set[byte / 8] >> (byte % 8) & 1) != 0;
}

static void set_add(uint8_t *set, unsigned char byte)
{
    set[byte / 8] = (uint8_t)(set[byte / 8] | 1u << (byte % 8));
}

static bool contains(const char *text, size_t n, char byte)
{
    return n > 0 && memchr(text, byte, n) != NULL;
}

/* Takes away the kinds across which the string could lie. */
static void keep_off(analysis *a, const char *text, size_t n)
{
    if (n < 2) {
        return;
    }
    if (contains(text + 1, n - 1, a->space[0])) {
        a->kinds &= ~(unsigned)SPACE;
    }
    if (contains(text + 1, n - 1, '\n') || contains(text + 1, n - 1, '\r')) {
        a->kinds &= ~(unsigned)BREAK;
    }
    if (contains(text, n - 1, '\n')) {
        a->kinds &= ~(unsigned)LINE;
    }
}

/* A string that changes what is around it (an added token, a replacement) must not begin or end at
 * a place either. */
static void keep_apart(analysis *a, const char *text, size_t n)
{
    keep_off(a, text, n);
    if (n == 0) {
        return;
    }
    if (text[0] == a->space[0]) {
        a->kinds &= ~(unsigned)SPACE;
    }
    if (text[0] == '\n' || text[0] == '\r') {
        a->kinds &= ~(unsigned)BREAK;
    }
    if (text[n - 1] == '\n') {
        a->kinds &= ~(unsigned)LINE;
    }
    set_add(a->cuts->starts, (unsigned char)text[0]);
    set_add(a->cuts->ends, (unsigned char)text[n - 1]);
}

static void see_added(analysis *a, const ds_tokenizer *tok, bool normalized)
{
    for (uint32_t i = 0; i < tok->n_added; ++i) {
        const dsi_added_token *added = &tok->added[i];
        if (added->normalized == normalized) {
            keep_apart(a, added->pattern, added->n_pattern);
            a->kinds = added->rstrip ? 0 : a->kinds;            /* it takes in what follows */
            a->kinds = normalized && a->lowered ? 0 : a->kinds; /* the sets know no case */
        }
    }
}

static void see_norm(analysis *a, const dsi_norm *norm)
{
    switch (norm->kind) {
    case DSI_NORM_NFC:
        a->cuts->slow |= DSI_UC_NFC_SLOW;
        break;
    case DSI_NORM_NFKC:
        a->cuts->slow |= DSI_UC_NFKC_SLOW;
        break;
    case DSI_NORM_NFD:
    case DSI_NORM_NFKD:
        a->cuts->ascii_only = true;
        break;
    case DSI_NORM_REPLACE:
        if (a->space_is_space && norm->n_pattern == 1 && norm->pattern[0] == ' ' &&
            norm->n_content > 0) {
            a->space = norm->content;
            a->n_space = norm->n_content;
            a->space_is_space = false;
            return;
        }
        keep_apart(a, norm->pattern, norm->n_pattern);
        a->kinds = a->lowered ? 0 : a->kinds;
        break;
    case DSI_NORM_CLEAN: /* line breaks become spaces, which patterns behind it may have */
        a->kinds &= SPACE;
        break;
    case DSI_NORM_APART:
    case DSI_NORM_MARKS:
        a->cuts->ascii_only = true;
        break;
    case DSI_NORM_LOWER:
        a->lowered = true;
        break;
    case DSI_NORM_PREPEND:
        return; /* not in a part that continues a text */
    case DSI_NORM_REPLACE_REGEX:
    case DSI_NORM_STRIP:
    case DSI_NORM_CHARSMAP: /* it may change whatever is of a grapheme */
        a->kinds = 0;
        break;
    }
    if (!a->space_is_space) {
        a->kinds &= ~(unsigned)SPACE; /* what it has become might change again */
    }
}

static void see_regex(analysis *a, const dsi_pretok *step)
{
    unsigned covers = 0;
    if (!pattern_covers(step->text, step->n_text, &covers)) {
        a->kinds &= a->ended;
        return;
    }
    if (!a->space_is_space) {
        a->kinds &= ~(unsigned)SPACE | a->ended;
    }
    if (covers !=
        COVERS_ALL) { /* "\\s+(?!\\S)" without "\\s+" after it minds the end of the text */
        a->kinds &= ~(unsigned)LINE | a->ended;
    }
    const bool ends = step->behavior == DSI_SPLIT_ISOLATED ||
                      (step->behavior == DSI_SPLIT_REMOVED && step->invert);
    if (ends && covers == COVERS_ALL) {
        a->ended |= a->kinds;
    }
}

static void see_metaspace(analysis *a, const dsi_pretok *step)
{
    const bool same = a->n_space == step->n_text && memcmp(a->space, step->text, step->n_text) == 0;
    if (step->prepend == DSI_PREPEND_ALWAYS) {
        a->kinds &= SPACE | a->ended;
    }
    if (!a->space_is_space && !same) {
        a->kinds &= ~(unsigned)SPACE;
        return;
    }
    a->space = step->text;
    a->n_space = step->n_text;
    a->space_is_space = false;
    a->ended |= step->split ? a->kinds & SPACE : 0;
}

static void see_pretok(analysis *a, const dsi_pretok *step)
{
    switch (step->kind) {
    case DSI_PRETOK_SCAN: /* its text is NULL for ByteLevel's own pattern */
        a->kinds &= a->space_is_space ? (unsigned)ALL : ~(unsigned)SPACE | a->ended;
        a->ended |= a->kinds;
        break;
    case DSI_PRETOK_REGEX:
        see_regex(a, step);
        break;
    case DSI_PRETOK_STRING: {
        const unsigned ended = a->kinds & a->ended;
        keep_off(a, step->text, step->n_text);
        a->kinds |= ended;
        break;
    }
    case DSI_PRETOK_CLASS: /* a match is one character: a cut at most halves a piece */
        if ((step->class_flags & DSI_UC_SPACE) != 0 && step->behavior <= DSI_SPLIT_ISOLATED) {
            a->ended |= a->kinds & (a->space_is_space ? (unsigned)ALL : (unsigned)(BREAK | LINE));
        }
        break;
    case DSI_PRETOK_WORDS:
        a->ended |= a->kinds & (a->space_is_space ? (unsigned)ALL : (unsigned)(BREAK | LINE));
        break;
    case DSI_PRETOK_PREFIX_SPACE: /* a part that begins with a space is given none */
        a->kinds &= a->ended | (a->space_is_space ? (unsigned)SPACE : 0);
        break;
    case DSI_PRETOK_METASPACE:
        see_metaspace(a, step);
        break;
    }
}

static bool has_one_text(const ds_tokenizer *tok)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < tok->n_template; ++i) {
        n += tok->template_pieces[i].sequence;
    }
    return tok->n_template == 0 || n == 1;
}

void dsi_cuts_find(ds_tokenizer *tok)
{
    dsi_cuts *cuts = &tok->cuts;
    analysis a = {.cuts = cuts, .kinds = ALL, .space = " ", .n_space = 1, .space_is_space = true};
    *cuts = (dsi_cuts){0};
    if (!has_one_text(tok)) {
        return;
    }
    see_added(&a, tok, false);
    for (uint32_t i = 0; i < tok->n_norms; ++i) {
        see_norm(&a, &tok->norms[i]);
    }
    see_added(&a, tok, true);
    for (uint32_t i = 0; i < tok->n_pretoks; ++i) {
        see_pretok(&a, &tok->pretoks[i]);
    }
    a.ended &= a.kinds;
    cuts->ended = a.ended;
    cuts->kinds = tok->cut ? a.kinds : a.ended;
    cuts->space = a.space;
    uint32_t cp;
    cuts->n_space = dsi_utf8_decode((const unsigned char *)a.space,
                                    (const unsigned char *)a.space + a.n_space, &cp);
}

/* ---- finding a place ---- */

/* The character that ends at text[at], at > 0: its start and flags; false when it is not UTF-8. */
static bool character_before(const unsigned char *text, size_t at, size_t *begin_out,
                             uint32_t *cp_out)
{
    size_t i = at - 1;
    while (i > 0 && at - i < 4 && (text[i] & 0xC0) == 0x80) {
        --i;
    }
    *begin_out = i;
    return i + dsi_utf8_decode(text + i, text + at, cp_out) == at && *cp_out != DSI_UTF8_BAD;
}

static bool is_alnum(const dsi_cuts *cuts, uint32_t cp)
{
    const unsigned flags = dsi_uc_flags(cp);
    const bool plain = cp < 0x80 || (!cuts->ascii_only && (flags & cuts->slow) == 0 &&
                                     (flags & DSI_UC_INERT) == 0);
    return plain && (flags & (DSI_UC_L | DSI_UC_N)) != 0;
}

static bool is_solid(const dsi_cuts *cuts, uint32_t cp)
{
    return (cp > 0x20 && cp < 0x7F) || is_alnum(cuts, cp);
}

/* Whether the kind is safe here, where the characters [left,at) and [right,right+n) meet. */
static bool may_part(const ds_tokenizer *tok, unsigned kind, const unsigned char *left,
                     size_t n_left, const unsigned char *right, size_t n_right)
{
    return (tok->cuts.ended & kind) != 0 ||
           ((tok->cuts.kinds & kind) != 0 && !dsi_joins(tok->joins, left, n_left, right, n_right));
}

static bool is_cut(const ds_tokenizer *tok, const unsigned char *text, size_t n, size_t at)
{
    const dsi_cuts *cuts = &tok->cuts;
    const unsigned char c = text[at];
    size_t begin;
    uint32_t cp;
    if (set_has(cuts->ends, text[at - 1]) || !character_before(text, at, &begin, &cp)) {
        return false;
    }
    if (c == ' ') {
        return is_solid(cuts, cp) && may_part(tok, SPACE, text + begin, at - begin,
                                              (const unsigned char *)cuts->space, cuts->n_space);
    }
    if (c == '\n' || c == '\r') {
        return is_alnum(cuts, cp) && may_part(tok, BREAK, text + begin, at - begin, &c, 1);
    }
    if (cp != '\n' || at < 2 || c == '/' || set_has(cuts->starts, c) ||
        set_has(cuts->ends, text[at - 2])) {
        return false;
    }
    uint32_t next;
    const size_t size = dsi_utf8_decode(text + at, text + n, &next);
    return is_solid(cuts, next) && character_before(text, at - 1, &begin, &cp) &&
           is_solid(cuts, cp) && may_part(tok, LINE, text + at - 1, 1, text + at, size);
}

bool dsi_tok_can_cut(const ds_tokenizer *tok)
{
    return tok->bytes || tok->cuts.kinds != 0;
}

size_t dsi_tok_next_cut(const ds_tokenizer *tok, const char *text, size_t n, size_t from)
{
    const unsigned char *t = (const unsigned char *)text;
    size_t at = from > 0 ? from : 1;
    if (at >= n || !dsi_tok_can_cut(tok)) {
        return n;
    }
    while (!tok->bytes && at < n && !is_cut(tok, t, n, at)) {
        ++at;
    }
    return at;
}
