/* SPDX-License-Identifier: Apache-2.0 */
/* Whether the facts that an operator states are sound. See op_check.h. */
#include "ir/op_check.h"

#include "base/reserved.h"

#include <deepspeed/cuda_kernel.h>

#include <string.h>

static ds_status bad(ds_ctx *ctx, const ds_op *op, const char *field, const char *why)
{
    return ds_fail(ctx, DS_ERR_ARG, "operator %s: %s: %s", op->name, field, why);
}

static const char *or_empty(const char *text)
{
    return text != NULL ? text : "";
}

/* ---- place rule ------------------------------------------------------------------------------ */

/* Hex digits below `most`. */
static bool are_digits(const char *text, size_t n, uint32_t most)
{
    static const char digits[] = "0123456789abcdef";
    for (size_t i = 0; i < n; ++i) {
        const char *at = strchr(digits, text[i]);
        if (text[i] == '\0' || at == NULL || (uint32_t)(at - digits) >= most) {
            return false;
        }
    }
    return true;
}

/* `<01+2`, the end of a word of `out`. */
static bool is_source(const char *text, size_t n, uint32_t n_in)
{
    const char *plus = memchr(text, '+', n);
    const size_t first = plus != NULL ? (size_t)(plus - text) : n;
    const bool all = first == 4 && memcmp(text, "<all", 4) == 0;
    return (all || are_digits(text + 1, first - 1, n_in)) &&
           (plus == NULL || are_digits(plus + 1, n - first - 1, n_in));
}

/* A word: a letter for each dim, at most one `*`; `.` alone; in `out` with its source. */
static bool is_word(const char *word, size_t n, bool is_out, uint32_t n_in)
{
    const char *less = memchr(word, '<', n);
    const size_t dims = less != NULL ? (size_t)(less - word) : n;
    uint32_t stars = 0;
    for (size_t i = 0; i < dims; ++i) {
        const bool letter = word[i] >= 'a' && word[i] <= 'z';
        stars += word[i] == '*' ? 1 : 0;
        if (!letter && word[i] != '*' && word[i] != '_' && !(word[i] == '.' && dims == 1)) {
            return false;
        }
    }
    return dims > 0 && dims <= DS_MAX_DIMS + 1 && stars <= 1 &&
           (less == NULL || (is_out && is_source(less, n - dims, n_in)));
}

/* Counts words; 0 when one is malformed. */
static uint32_t count_words(const char *text, bool is_out, uint32_t n_in)
{
    uint32_t n = 0;
    for (;;) {
        const size_t length = strcspn(text, " ");
        if (!is_word(text, length, is_out, n_in)) {
            return 0;
        }
        ++n;
        if (text[length] == '\0') {
            return n;
        }
        text += length + 1;
    }
}

/* Each letter stands in `where`, and once in `letters`. */
static bool stand_in(const char *letters, const char *where)
{
    for (const char *at = letters; *at != '\0'; ++at) {
        const bool letter = (*at >= 'a' && *at <= 'z') || *at == '*';
        if (!letter || strchr(where, *at) == NULL || strchr(at + 1, *at) != NULL) {
            return false;
        }
    }
    return strlen(letters) + DS_MAX_DIMS < DS_PLACE_LETTERS; /* `*` becomes as many letters */
}

static bool are_groups(const char *text, uint32_t n_in)
{
    uint32_t n = 1;
    if (*text == '\0') {
        return true;
    }
    for (; n <= DS_PLACE_GROUPS; ++n) {
        const size_t length = strcspn(text, "|");
        if (length == 0 ||
            !((length == 3 && memcmp(text, "all", 3) == 0) || are_digits(text, length, n_in))) {
            return false;
        }
        if (text[length] == '\0') {
            return true;
        }
        text += length + 1;
    }
    return false;
}

static ds_status check_place(ds_ctx *ctx, const ds_op *op, bool custom)
{
    const ds_place_rule *rule = op->place;
    const uint32_t known = DS_PLACE_UPDATE * 2 - 1;
    const char *in = or_empty(rule->in);
    const char *out = or_empty(rule->out);
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_place_rule", rule));
    if ((rule->flags & ~(known | (custom ? 0 : (uint32_t)DS_PLACE_INTERNAL))) != 0) {
        return bad(ctx, op, "place.flags", "a bit that is not of DS_PLACE_*");
    }
    if (!custom && *in == '\0' && *out == '\0') {
        return DS_OK; /* not an operator of the logical graph */
    }
    const uint32_t n_words = count_words(in, false, op->n_in_max);
    if (op->n_in_max > 0 && (n_words == 0 || n_words > op->n_in_max)) {
        return bad(ctx, op, "place.in", "not a word of letters, *, _ or . for each input");
    }
    if (count_words(out, true, op->n_in_max) != op->n_out) {
        return bad(ctx, op, "place.out", "not a word of letters, *, _ or . for each output");
    }
    if (!stand_in(or_empty(rule->split), in)) {
        return bad(ctx, op, "place.split", "not letters of place.in, each once");
    }
    if (!stand_in(or_empty(rule->sums), or_empty(rule->split))) {
        return bad(ctx, op, "place.sums", "not letters of place.split, each once");
    }
    if (!are_groups(or_empty(rule->linear), op->n_in_max)) {
        return bad(ctx, op, "place.linear", "not up to three groups of inputs");
    }
    if (!are_digits(or_empty(rule->means), strlen(or_empty(rule->means)), op->n_out)) {
        return bad(ctx, op, "place.means", "not digits of outputs");
    }
    return DS_OK;
}

/* ---- kernels for cuda ------------------------------------------------------------------------ */

static bool is_identifier(const char *text)
{
    static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_0123456789";
    return text[0] != '\0' && !(text[0] >= '0' && text[0] <= '9') &&
           text[strspn(text, letters)] == '\0';
}

static ds_status check_cuda(ds_ctx *ctx, const ds_op *op, const ds_cuda_kernel *row)
{
    uint32_t n = 0;
    if (row->version != DS_OP_VERSION) {
        return bad(ctx, op, "cuda.version", "a kernel is built for another version");
    }
    if (row->name == NULL || row->name[0] == '\0') {
        return bad(ctx, op, "cuda.name", "a kernel has none");
    }
    if ((row->source == NULL) == (row->file == NULL)) {
        return bad(ctx, op, "cuda.source", "a kernel has either source or file");
    }
    while (row->functions != NULL && n <= DS_CUDA_FUNCTIONS && row->functions[n] != NULL) {
        if (!is_identifier(row->functions[n++])) {
            return bad(ctx, op, "cuda.functions", "not the name of a function");
        }
    }
    if (n == 0 || n > DS_CUDA_FUNCTIONS) {
        return bad(ctx, op, "cuda.functions", "a kernel has 1 to 8");
    }
    return row->launch != NULL ? DS_OK : bad(ctx, op, "cuda.launch", "a kernel has none");
}

/* ---- all facts ------------------------------------------------------------------------------- */

ds_status dsi_op_check(ds_ctx *ctx, const ds_op *op)
{
    const bool custom = op->kernels != NULL;
    const bool view = (op->flags & DS_OP_VIEW) != 0;
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_op", op));
    if ((uint32_t)op->op_class >= DS_CLASS_COUNT) {
        return bad(ctx, op, "op_class", "not a value of ds_op_class");
    }
    if ((op->op_class != DS_CLASS_UNSTATED && view != (op->op_class == DS_CLASS_VIEW)) ||
        (custom && op->op_class == DS_CLASS_COMM)) {
        return bad(ctx, op, "op_class",
                   "VIEW is that of operators with DS_OP_VIEW and of no "
                   "others, COMM that of collectives");
    }
    if ((uint32_t)op->role >= DS_ROLE_COUNT || (custom && op->role > DS_ROLE_COMPUTE)) {
        return bad(ctx, op, "role", "a custom operator computes: DS_ROLE_COMPUTE, or 0");
    }
    if ((uint32_t)op->again > DS_AGAIN_COSTLY) {
        return bad(ctx, op, "again", "not a value of ds_op_again");
    }
    for (uint32_t i = 0; op->cuda != NULL && op->cuda[i] != NULL; ++i) {
        DS_TRY(check_cuda(ctx, op, op->cuda[i]));
    }
    return op->place != NULL ? check_place(ctx, op, custom) : DS_OK;
}
