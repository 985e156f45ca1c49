/* SPDX-License-Identifier: Apache-2.0 */
/* The normalizer Precompiled, SentencePiece's map of texts to texts: a trie in two arrays packed
 * into one (Aoe, "An Efficient Digital Search Algorithm by Using a Double-Array Structure", 1989;
 * the units are those of darts-clone) and the texts, each with a zero byte behind it.
 *
 * As in the package: of each grapheme of less than six bytes the shortest text of the map that it
 * begins with gives what stands for all of it; of others, and where there is none, the same of each
 * character. */
#include "data/tokenizer_form.h"
#include "data/tokenizer_load.h"

#include <string.h>
#include <utf8proc.h>

enum { SHORT_GRAPHEME = 6 };

/* ---- loading ---- */

static int value_of(char c)
{
    static const char letters[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c != '\0' ? strchr(letters, c) : NULL;
    return at != NULL ? (int)(at - letters) : -1;
}

/* Base64 (RFC 4648) of whole groups; false: it is none. */
static bool decode(const char *text, size_t n, unsigned char *out, size_t *n_out)
{
    size_t to = 0;
    for (size_t i = 0; i + 4 <= n; i += 4) {
        const size_t pads = i + 4 < n ? 0 : (size_t)(text[n - 1] == '=') + (text[n - 2] == '=');
        uint32_t bits = 0;
        for (size_t k = 0; k < 4; ++k) {
            const int value = k < 4 - pads ? value_of(text[i + k]) : 0;
            if (value < 0) {
                return false;
            }
            bits = bits << 6 | (uint32_t)value;
        }
        for (size_t k = 0; k < 3 - pads; ++k) {
            out[to++] = (unsigned char)(bits >> (16 - 8 * k));
        }
    }
    *n_out = to;
    return n % 4 == 0;
}

static uint32_t unit_at(const unsigned char *p)
{
    return p[0] | (uint32_t)p[1] << 8 | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24;
}

ds_status dsi_charsmap_read(ds_tokenizer *tok, const char *path, const json_t *json, dsi_norm *norm)
{
    const char *text;
    size_t n;
    size_t n_bytes = 0;
    if (!dsi_form_text(json, "precompiled_charsmap", &text, &n)) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: the normalizer Precompiled lacks the text \"precompiled_charsmap\"",
                       path);
    }
    unsigned char *bytes = dsi_arena_array(tok->arena, n / 4 * 3 + 1, 1);
    if (bytes == NULL) {
        return ds_fail(tok->ctx, DS_ERR_NOMEM, "%s: no memory for a normalizer", path);
    }
    const bool read = decode(text, n, bytes, &n_bytes);
    const size_t n_trie = read && n_bytes >= 4 ? unit_at(bytes) : 0;
    if (n_trie < 4 || n_trie % 4 != 0 || n_trie > n_bytes - 4 || n_bytes == n_trie + 4 ||
        bytes[n_bytes - 1] != 0) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT,
                       "%s: \"precompiled_charsmap\" is no map of SentencePiece in base64", path);
    }
    norm->kind = DSI_NORM_CHARSMAP;
    norm->pattern = (const char *)bytes + 4;
    norm->n_pattern = n_trie;
    norm->content = (const char *)bytes + 4 + n_trie;
    norm->n_content = n_bytes - 4 - n_trie;
    return DS_OK;
}

/* ---- a text ---- */

static uint32_t offset_of(uint32_t unit)
{
    return (unit >> 10) << ((unit & (1u << 9)) >> 6);
}

/* What stands for the text: that of its shortest beginning that the map has; NULL: none. */
static const char *find(const dsi_norm *norm, const unsigned char *text, size_t n)
{
    const unsigned char *units = (const unsigned char *)norm->pattern;
    const size_t n_units = norm->n_pattern / 4;
    size_t at = offset_of(unit_at(units));
    for (size_t i = 0; i < n && text[i] != 0; ++i) {
        at ^= text[i];
        const uint32_t unit = at < n_units ? unit_at(units + 4 * at) : 0;
        if (at >= n_units || (unit & (1u << 31 | 0xFFu)) != text[i]) {
            return NULL;
        }
        at ^= offset_of(unit);
        if ((unit >> 8 & 1) != 0) {
            const uint32_t value =
                at < n_units ? unit_at(units + 4 * at) & ~(1u << 31) : UINT32_MAX;
            return value < norm->n_content ? norm->content + value : NULL;
        }
    }
    return NULL;
}

static bool replace(ds_tokenizer_scratch *s, const dsi_norm *norm, dsi_made *made, dsi_view part,
                    bool *found_out)
{
    const char *made_of = find(norm, part.text, part.n);
    *found_out = made_of != NULL;
    return made_of == NULL ||
           dsi_made_append(s, made, made_of, strlen(made_of), dsi_view_range(part));
}

static bool map_grapheme(ds_tokenizer_scratch *s, const dsi_norm *norm, dsi_made *made,
                         dsi_view part)
{
    bool found = false;
    if (part.n < SHORT_GRAPHEME) {
        if (!replace(s, norm, made, part, &found)) {
            return false;
        }
        if (found) {
            return true;
        }
    }
    for (size_t i = 0; i < part.n;) {
        uint32_t cp;
        const size_t size = dsi_utf8_decode(part.text + i, part.text + part.n, &cp);
        if (!replace(s, norm, made, dsi_view_part(part, i, size), &found) ||
            (!found && !dsi_made_copy(s, made, part, i, size))) {
            return false;
        }
        i += size;
    }
    return true;
}

/* A mark that is younger than the library of graphemes counts as one that it knows. */
static uint32_t known_mark(uint32_t cp)
{
    enum { ACUTE = 0x301 };
    const unsigned flags = cp > 0x7F ? dsi_uc_flags(cp) : 0;
    const bool is_mark = (flags & DSI_UC_WORD) != 0 && (flags & (DSI_UC_L | DSI_UC_N)) == 0;
    return is_mark && utf8proc_category((utf8proc_int32_t)cp) == UTF8PROC_CATEGORY_CN ? ACUTE : cp;
}

bool dsi_charsmap_norm(ds_tokenizer_scratch *s, const dsi_norm *norm, dsi_made *made, dsi_view view)
{
    size_t begin = 0;
    uint32_t before = DSI_UTF8_BAD;
    utf8proc_int32_t state = 0;
    for (size_t i = 0; i < view.n;) {
        uint32_t cp;
        const size_t size = dsi_utf8_decode(view.text + i, view.text + view.n, &cp);
        cp = cp == DSI_UTF8_BAD ? cp : known_mark(cp);
        const bool bad = before == DSI_UTF8_BAD || cp == DSI_UTF8_BAD;
        const bool ends =
            i > 0 && (bad || utf8proc_grapheme_break_stateful((utf8proc_int32_t)before,
                                                              (utf8proc_int32_t)cp, &state));
        if (ends) {
            if (!map_grapheme(s, norm, made, dsi_view_part(view, begin, i - begin))) {
                return false;
            }
            begin = i;
        }
        state = bad ? 0 : state;
        before = cp;
        i += size;
    }
    return map_grapheme(s, norm, made, dsi_view_part(view, begin, view.n - begin));
}
