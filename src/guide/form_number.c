/* SPDX-License-Identifier: Apache-2.0 */
/* Numbers: within bounds, as decimals. See form_schema.h.
 *
 * Bounds of k decimals are taken as whole multiples of 10^-k. A number is written with k decimals,
 * as one of those multiples, and may go on with more decimals where it stays below the next one.
 */
#include "guide/form_schema.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MOST_DECIMALS = 6, HAS_NUMBER = 4 };

static const int64_t MOST_WHOLE = 999999999999999999; /* 18 digits */
static const int64_t MOST_SCALED = 1000000000000;     /* of numbers with decimals */

/* ---- digits ---- */
typedef struct digits {
    dsi_grammar *g;
    uint32_t point_at; /* digits behind the point; 0: there is no point */
} digits;

/* A state behind one digit of low to high, and the point where the rest is what is behind it. */
static uint32_t put_digit(const digits *d, uint32_t at, char low, char high, size_t rest)
{
    const uint32_t behind = dsi_grammar_state(d->g);
    dsi_grammar_byte(d->g, at, behind, (uint8_t)low, (uint8_t)high);
    return rest > 0 && rest == d->point_at ? dsi_grammar_text(d->g, behind, ".", 1) : behind;
}

static uint32_t put_free_digits(const digits *d, uint32_t at, size_t n)
{
    while (n-- > 0) {
        at = put_digit(d, at, '0', '9', n);
    }
    return at;
}

static bool all_are(const char *text, size_t n, char c)
{
    while (n > 0 && text[n - 1] == c) {
        --n;
    }
    return n == 0;
}

/* All numbers of n digits from low to high. */
static void put_between(const digits *d, uint32_t at, uint32_t done, const char *low,
                        const char *high, size_t n)
{
    static const char zeros[] = "000000000000000000000000";
    static const char nines[] = "999999999999999999999999";
    if (all_are(low, n, '0') && all_are(high, n, '9')) {
        dsi_grammar_empty(d->g, put_free_digits(d, at, n), done);
        return;
    }
    if (low[0] == high[0]) {
        put_between(d, put_digit(d, at, low[0], low[0], n - 1), done, low + 1, high + 1, n - 1);
        return;
    }
    put_between(d, put_digit(d, at, low[0], low[0], n - 1), done, low + 1, nines, n - 1);
    if (low[0] + 1 < high[0]) {
        const uint32_t behind = put_digit(d, at, (char)(low[0] + 1), (char)(high[0] - 1), n - 1);
        dsi_grammar_empty(d->g, put_free_digits(d, behind, n - 1), done);
    }
    put_between(d, put_digit(d, at, high[0], high[0], n - 1), done, zeros, high + 1, n - 1);
}

/* Numbers from low to high, both at least 0, with no zero in front but one before the point. */
static uint32_t put_range(const digits *d, uint32_t at, int64_t low, int64_t high)
{
    const uint32_t done = dsi_grammar_state(d->g);
    const size_t least = d->point_at + 1u;
    int64_t first = 0; /* the smallest number of n digits */
    int64_t next = 1;  /* and of one more */
    for (size_t i = 0; i < least; ++i) {
        next *= 10;
    }
    for (size_t n = least; n <= 19 && first <= high; ++n) {
        char a[24];
        char b[24];
        const int64_t from = low > first ? low : first;
        const int64_t to = high < next - 1 ? high : next - 1;
        if (from <= to) {
            (void)snprintf(a, sizeof a, "%0*lld", (int)n, (long long)from);
            (void)snprintf(b, sizeof b, "%0*lld", (int)n, (long long)to);
            put_between(d, at, done, a, b, n);
        }
        first = next;
        if (next > INT64_MAX / 10) {
            break;
        }
        next *= 10;
    }
    return done;
}

/* ---- bounds ---- */
typedef struct bounds {
    int64_t low, high; /* in units of 10^-decimals */
    bool above, below; /* without the bound itself */
    uint32_t decimals;
} bounds;

static const char *const names[4] = {"minimum", "exclusiveMinimum", "maximum", "exclusiveMaximum"};

/* How many decimals the bound has; -1: more than MOST_DECIMALS. */
static int decimals_of(double x)
{
    double scale = 1.0;
    for (int k = 0; k <= MOST_DECIMALS; ++k, scale *= 10.0) {
        char text[400];
        (void)snprintf(text, sizeof text, "%.*f", k, x);
        double again = 0.0;
        if (sscanf(text, "%lf", &again) == 1 && again == x) {
            return k;
        }
    }
    return -1;
}

/* The four bounds; for whole numbers they are rounded inwards. */
static bool read_bounds(dsi_form_schema *s, json_t *node, bool whole, const dsi_place *place,
                        bounds *b)
{
    double found[4];
    *b = (bounds){.low = whole ? -MOST_WHOLE : -MOST_SCALED,
                  .high = whole ? MOST_WHOLE : MOST_SCALED};
    for (int i = 0; i < 4; ++i) {
        json_t *v = json_object_get(node, names[i]);
        found[i] = json_number_value(v);
        const int k = decimals_of(found[i]);
        if (v != NULL && (!json_is_number(v) || (!whole && k < 0))) {
            (void)dsi_form_schema_fail(s, place, names[i],
                                       "expected a number of at most 6 decimals");
            return false;
        }
        b->decimals = v != NULL && !whole && k > (int)b->decimals ? (uint32_t)k : b->decimals;
    }
    const double scale = pow(10.0, b->decimals);
    for (int i = 0; i < 4; ++i) {
        json_t *v = json_object_get(node, names[i]);
        const bool lower = i < 2;
        const bool without = i % 2 == 1;
        if (v == NULL) {
            continue;
        }
        double x = whole ? (lower ? ceil(found[i]) : floor(found[i])) : round(found[i] * scale);
        if (whole && without && x == found[i]) {
            x += lower ? 1.0 : -1.0;
        }
        const double most = whole ? (double)MOST_WHOLE : (double)MOST_SCALED;
        if (fabs(x) > (whole ? 1e17 : most)) { /* beyond what is made */
            if ((lower && x > 0) || (!lower && x < 0)) {
                (void)dsi_form_schema_fail(s, place, names[i], "it is too large");
                return false;
            }
            continue;
        }
        const int64_t n = (int64_t)x;
        if (lower ? n > b->low || (n == b->low && without)
                  : n < b->high || (n == b->high && without)) {
            *(lower ? &b->low : &b->high) = n;
            *(lower ? &b->above : &b->below) = without && !whole;
        }
    }
    return true;
}

/* More decimals, up to n; some: at least one that is not zero. */
static uint32_t put_decimals(dsi_grammar *g, uint32_t at, int n, bool point, bool some)
{
    char pattern[96];
    if (some) {
        (void)snprintf(pattern, sizeof pattern, "%s0{0,%d}[1-9][0-9]{0,%d}", point ? "\\." : "",
                       n / 2 - 1, n / 2 - 1);
    } else {
        (void)snprintf(pattern, sizeof pattern, point ? "(\\.[0-9]{1,%d})?" : "[0-9]{0,%d}", n);
    }
    return dsi_form_regex(g, at, pattern, strlen(pattern), true, false);
}

/* The number without its sign: from low to high, both at least 0; above, below: without them. */
static void put_absolute(dsi_form_schema *s, uint32_t at, uint32_t done, const bounds *b)
{
    dsi_grammar *g = s->g;
    const digits d = {g, b->decimals};
    const bool point = b->decimals == 0;
    char text[32];
    int n = 15 - (int)b->decimals; /* what a double tells apart */
    for (int64_t high = b->high; high >= 10 && n > 2; high /= 10) {
        --n;
    }
    const int64_t next = b->low + b->above;
    if (b->above && b->low < b->high) {
        const uint32_t behind = put_range(&d, at, b->low, b->low);
        dsi_grammar_empty(g, put_decimals(g, behind, n < 4 ? 4 : n, point, true), done);
    }
    if (next < b->high) {
        const uint32_t behind = put_range(&d, at, next, b->high - 1);
        dsi_grammar_empty(g, put_decimals(g, behind, n, point, false), done);
    }
    if (!b->below && next <= b->high) {
        const uint32_t behind = put_range(&d, at, b->high, b->high);
        (void)snprintf(text, sizeof text, "%s", point ? ".0" : "0");
        dsi_grammar_empty(g, behind, done);
        dsi_grammar_empty(g, dsi_grammar_text(g, behind, text, strlen(text)), done);
    }
}

static uint32_t put_bounded(dsi_form_schema *s, uint32_t at, const bounds *b)
{
    dsi_grammar *g = s->g;
    const uint32_t done = dsi_grammar_state(g);
    if (b->high > 0 || (b->high == 0 && !b->below)) {
        bounds one = *b;
        one.above = b->low >= 0 && b->above;
        one.low = b->low > 0 ? b->low : 0;
        if (one.low <= one.high) {
            put_absolute(s, at, done, &one);
        }
    }
    if (b->low < 0) {
        bounds one = {.low = b->high < 0 ? -b->high : 0,
                      .high = -b->low,
                      .above = b->high < 0 ? b->below : true, /* no -0 */
                      .below = b->above,
                      .decimals = b->decimals};
        if (one.low <= one.high) {
            put_absolute(s, dsi_grammar_text(g, at, "-", 1), done, &one);
        }
    }
    return done;
}

static uint32_t put_whole(dsi_form_schema *s, uint32_t at, const bounds *b)
{
    const digits d = {s->g, 0};
    const uint32_t done = dsi_grammar_state(s->g);
    if (b->high >= 0 && b->low <= b->high) {
        const int64_t low = b->low > 0 ? b->low : 0;
        dsi_grammar_empty(s->g, put_range(&d, at, low, b->high), done);
    }
    if (b->low < 0 && b->low <= b->high) {
        const uint32_t minus = dsi_grammar_text(s->g, at, "-", 1);
        const int64_t low = b->high < 0 ? -b->high : 1;
        dsi_grammar_empty(s->g, put_range(&d, minus, low, -b->low), done);
    }
    return done;
}

/* Any number, whatever reads it. */
static uint32_t put_free(dsi_form_schema *s, uint32_t at)
{
    static const char pattern[] = "-?(0|[1-9][0-9]{0,14})(\\.[0-9]{1,15})?([eE][+-]?[0-9]{1,2})?";
    if (!s->has[HAS_NUMBER]) {
        s->has[HAS_NUMBER] = true;
        s->number = dsi_grammar_rule(s->g);
        dsi_grammar_end(s->g, dsi_form_regex(s->g, s->g->failed ? 0 : s->g->rules[s->number],
                                             pattern, strlen(pattern), true, false));
    }
    return dsi_grammar_call(s->g, at, s->number);
}

uint32_t dsi_form_schema_number(dsi_form_schema *s, uint32_t at, json_t *node, bool whole,
                                const dsi_place *place)
{
    bool bounded = whole;
    bounds b = {0};
    for (int i = 0; i < 4; ++i) {
        bounded = bounded || json_object_get(node, names[i]) != NULL;
    }
    if (!bounded) {
        return put_free(s, at);
    }
    if (!read_bounds(s, node, whole, place, &b)) {
        return 0;
    }
    if (b.low > b.high || (b.low == b.high && (b.above || b.below))) {
        return dsi_form_schema_fail(s, place, "minimum", "no number is within the bounds");
    }
    return whole ? put_whole(s, at, &b) : put_bounded(s, at, &b);
}
