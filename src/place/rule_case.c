/* SPDX-License-Identifier: Apache-2.0 */
/* A rule applied to shapes: labels of every dim, and the strategies of an axis. See rule.h. */
#include "place/rule.h"

#include <string.h>

static const char *or_empty(const char *text)
{
    return text != NULL ? text : "";
}

/* ---- reading a row --------------------------------------------------------------------------- */

/* The length of the word at text; blanks end it. */
static size_t word_length(const char *text)
{
    return strcspn(text, " ");
}

static const char *next_word(const char *text)
{
    text += word_length(text);
    return *text == ' ' ? text + 1 : text;
}

/* Writes a letter for each of n_dims dims. The pattern ends at a blank, a `<` or the end. */
static void label_dims(const char *pattern, uint32_t n_dims, char *label)
{
    const size_t n = strcspn(pattern, " <");
    uint32_t at = 0;
    for (size_t i = 0; i < n; ++i) {
        if (pattern[i] == '*') {
            const uint32_t lead = n_dims - (n_dims >= n - 1 ? (uint32_t)(n - 1) : n_dims);
            while (at < lead) {
                label[at] = (char)('A' + at);
                ++at;
            }
        } else if (pattern[i] != '.' && at < n_dims) {
            label[at++] = pattern[i];
        }
    }
    while (at < n_dims) { /* never cut what the row does not name */
        label[at++] = '_';
    }
    label[at] = '\0';
}

/* Hex digits, or "all". */
static uint32_t read_mask(const char *text, size_t n, uint32_t all)
{
    uint32_t mask = 0;
    if (n == 3 && memcmp(text, "all", 3) == 0) {
        return all;
    }
    for (size_t i = 0; i < n; ++i) {
        mask |= 1u << (text[i] <= '9' ? text[i] - '0' : text[i] - 'a' + 10);
    }
    return mask;
}

static void read_outputs(ds_place_case *c)
{
    const uint32_t all = (1u << c->n_in) - 1;
    const char *word = or_empty(c->op->place->out);
    for (uint32_t o = 0; o < c->n_out; ++o, word = next_word(word)) {
        if (c->out_meta[o].dtype == DS_DTYPE_NONE) {
            continue;
        }
        label_dims(word, c->out_meta[o].shape.n_dims, c->out[o]);
        const size_t end = word_length(word);
        const size_t less = strcspn(word, " <");
        const size_t plus = strcspn(word, " +");
        c->computed[o] = all;
        if (less < end) {
            c->computed[o] = read_mask(word + less + 1, plus - less - 1, all) & all;
            c->added[o] = plus < end ? read_mask(word + plus + 1, end - plus - 1, all) & all : 0;
        }
    }
}

/* Letters of a row, `*` replaced by the leading dims of the operands. */
static void read_letters(const ds_place_case *c, const char *text, char *letters)
{
    uint32_t n = 0;
    for (; *text != '\0'; ++text) {
        if (*text != '*') {
            letters[n++] = *text;
            continue;
        }
        for (char lead = 'A'; lead < 'A' + DS_MAX_DIMS; ++lead) {
            bool used = false;
            for (uint32_t i = 0; i < c->n_in; ++i) {
                used = used || strchr(c->in[i], lead) != NULL;
            }
            if (used) {
                letters[n++] = lead;
            }
        }
    }
    letters[n] = '\0';
}

static void read_groups(ds_place_case *c)
{
    for (const char *at = or_empty(c->op->place->linear);
         *at != '\0' && c->n_groups < DS_PLACE_GROUPS;) {
        const size_t n = strcspn(at, "|");
        c->group[c->n_groups++] = read_mask(at, n, (1u << c->n_in) - 1);
        at += n + (at[n] == '|' ? 1 : 0);
    }
}

void dsi_rule_case_make(const ds_op *op, const void *attrs, const ds_meta *in, uint32_t n_in,
                        const ds_meta *out, uint32_t n_out, ds_place_case *c_out)
{
    ds_place_case *c = c_out;
    const ds_place_rule *rule = op->place;
    *c = (ds_place_case){.op = op, .attrs = attrs, .n_in = n_in, .n_out = n_out};
    c->in_meta = in;
    c->out_meta = out;
    if (rule == NULL) {
        return;
    }
    c->flags = rule->flags;
    c->means = read_mask(or_empty(rule->means), strlen(or_empty(rule->means)), 0);
    const char *word = or_empty(rule->in);
    for (uint32_t i = 0; i < n_in; ++i) {
        if (in[i].dtype != DS_DTYPE_NONE) {
            label_dims(word, in[i].shape.n_dims, c->in[i]);
        }
        word = *next_word(word) != '\0' ? next_word(word) : word;
    }
    read_outputs(c);
    read_letters(c, or_empty(rule->split), c->split);
    read_letters(c, or_empty(rule->sums), c->sums);
    read_groups(c);
    if (rule->adapt != NULL) {
        rule->adapt(c);
    }
}

dsi_terms dsi_rule_terms(const ds_place_case *c)
{
    return (c->flags & DS_PLACE_MAX) != 0      ? DSI_TERMS_MAX
           : (c->flags & DSI_PLACE_EXACT) != 0 ? DSI_TERMS_EXACT
           : (c->flags & DSI_PLACE_SIDE) != 0  ? DSI_TERMS_SIDE
                                               : DSI_TERMS_SUM;
}

static dsi_place_on partial_of(const ds_place_case *c)
{
    return (dsi_place_on){.kind = DSI_PARTIAL, .dim = (uint8_t)dsi_rule_terms(c)};
}

/* ---- strategies ------------------------------------------------------------------------------ */

static bool in_is_there(const ds_place_case *c, uint32_t i)
{
    return c->in_meta[i].dtype != DS_DTYPE_NONE;
}

static bool out_is_there(const ds_place_case *c, uint32_t o)
{
    return c->out_meta[o].dtype != DS_DTYPE_NONE;
}

/* Blocks that operand i (inputs, then outputs) has of a letter; 1: it is one. */
static int64_t blocks_of(const ds_place_case *c, char letter, uint32_t i)
{
    const uint8_t n = i < c->n_in ? c->in_blocks[i] : c->out_blocks[i - c->n_in];
    return c->block_letter == letter && n > 0 ? n : 1;
}

/* Whether the letter's dims can be cut over `size` ranks more: heads evenly; different sizes (a
 * reshape, grouped heads) evenly; and no rank is left without any. */
static bool can_cut(const ds_place_case *c, char letter, uint32_t size, bool evenly)
{
    const bool has_blocks = c->block_letter == letter;
    const int64_t before = c->times[(int)letter] == 0 ? 1 : c->times[(int)letter];
    const int64_t total = before * (int64_t)size;
    int64_t first = -1;
    bool even = true;
    bool same = true;
    for (uint32_t i = 0; i < c->n_in + c->n_out; ++i) {
        const bool is_in = i < c->n_in;
        const char *label = is_in ? c->in[i] : c->out[i - c->n_in];
        const ds_meta *meta = is_in ? &c->in_meta[i] : &c->out_meta[i - c->n_in];
        for (uint32_t d = 0; label[d] != '\0'; ++d) {
            if (label[d] == letter) {
                const int64_t n = meta->shape.dims[d];
                const int64_t blocks = blocks_of(c, letter, i);
                /* parts are of the first operand; the others have as many */
                even = even && n % (total * blocks) == 0 &&
                       (c->part_letter != letter || first >= 0 || n / total % c->part == 0);
                same = same && (first < 0 || n == first);
                first = n;
            }
        }
    }
    if (c->unit_letter == letter) {
        even = even && c->units[0] % total == 0 && c->units[1] % total == 0;
        same = false;
    }
    if (even || evenly || !same || before > 1 || has_blocks || c->part_letter == letter) {
        return even && first > 0 && (!has_blocks || (before == 1 && !c->is_in_blocks));
    }
    return (first + total - 1) / total * (total - 1) < first;
}

bool dsi_rule_cuts_evenly(const ds_place_case *c, char letter, uint32_t n_parts)
{
    return can_cut(c, letter, n_parts, true);
}

static dsi_place_on cut_at(const char *label, char letter, uint8_t blocks)
{
    const char *at = strchr(label, letter);
    return at == NULL ? (dsi_place_on){0}
                      : (dsi_place_on){DSI_SHARD, (uint8_t)(at - label), blocks};
}

/* Cuts a letter; false where an output would depend on the cut in a way that is no sum. */
static bool cut_letter(const ds_place_case *c, char letter, dsi_strategy *s)
{
    uint32_t has = 0;
    *s = (dsi_strategy){.letter = letter};
    for (uint32_t i = 0; i < c->n_in; ++i) {
        s->in[i] = in_is_there(c, i)
                       ? cut_at(c->in[i], letter, c->block_letter == letter ? c->in_blocks[i] : 0)
                       : (dsi_place_on){0};
        has |= s->in[i].kind == DSI_SHARD ? 1u << i : 0;
    }
    uint32_t partial = 0;
    for (uint32_t o = 0; o < c->n_out; ++o) {
        s->out[o] = out_is_there(c, o) ? cut_at(c->out[o], letter,
                                                c->block_letter == letter ? c->out_blocks[o] : 0)
                                       : (dsi_place_on){0};
        const bool depends = (c->computed[o] & has) != 0;
        if (out_is_there(c, o) && s->out[o].kind != DSI_SHARD && depends) {
            if (strchr(c->sums, letter) == NULL) {
                return false;
            }
            s->out[o] = partial_of(c);
            partial |= c->added[o];
        } else if ((c->flags & DS_PLACE_MEAN_ROWS) != 0) {
            partial |= c->added[o]; /* the number of rows: each rank its own */
        }
    }
    for (uint32_t i = 0; i < c->n_in; ++i) {
        if (in_is_there(c, i) && (partial >> i & 1u) != 0 && s->in[i].kind != DSI_SHARD) {
            s->in[i] = partial_of(c);
        }
    }
    return has != 0;
}

/* Outputs of a mean over rows that then lack the division by the number of ranks: the loss, or the
 * gradients. Statistics of single rows and the number of rows are as they are. */
static uint32_t averaged_outputs(const ds_place_case *c)
{
    return (c->flags & (DS_PLACE_MEAN | DS_PLACE_MEAN_ROWS)) != 0 ? c->means : 0;
}

/* Inputs that are added to averaged outputs; the number of rows is no such thing. */
static uint32_t averaged_inputs(const ds_place_case *c, uint32_t averaged)
{
    uint32_t mask = 0;
    for (uint32_t o = 0; o < c->n_out; ++o) {
        mask |= (averaged >> o & 1u) != 0 ? c->added[o] : 0;
    }
    for (uint32_t i = 0; i < c->n_in; ++i) {
        mask &= in_is_there(c, i) && c->in_meta[i].shape.n_dims > 0 ? ~0u : ~(1u << i);
    }
    return mask;
}

static bool is_agreed(const ds_place_case *c, dsi_axis axis, char letter,
                      const dsi_place_policy *policy)
{
    const bool mean = (policy->mean >> axis & 1u) != 0;
    const bool own = (policy->own >> axis & 1u) != 0;
    const bool sample = letter == 'b' || letter == 'A';
    return ((c->flags & DS_PLACE_MEAN_ROWS) == 0 || mean) &&
           ((c->flags & DS_PLACE_SAMPLES) == 0 || (own && sample) ||
            strchr(c->numbered, letter) != NULL);
}

/* Passes Partial through a group of inputs. */
static void pass_group(const ds_place_case *c, uint32_t group, dsi_strategy *s)
{
    *s = (dsi_strategy){.linear = true};
    for (uint32_t i = 0; i < c->n_in; ++i) {
        if (in_is_there(c, i) && (group >> i & 1u) != 0) {
            s->in[i] = partial_of(c);
        }
    }
    for (uint32_t o = 0; o < c->n_out; ++o) {
        if (out_is_there(c, o) && ((c->computed[o] | c->added[o]) & group) != 0) {
            s->out[o] = partial_of(c);
        }
    }
}

/* Whether what a strategy cuts may be cut in blocks: wherever the rule is by letters alone, and the
 * dims are long enough for an equal share of each block. */
static bool may_be_in_blocks(const ds_place_case *c, const dsi_strategy *s, uint32_t size,
                             uint32_t blocks)
{
    bool may = blocks > 1 && blocks != DSI_PADDED && !c->is_in_blocks &&
               s->letter != c->block_letter && s->letter != c->unit_letter &&
               (c->flags & (DS_PLACE_SAMPLES | DSI_PLACE_COLUMNS | DSI_PLACE_PART)) == 0 &&
               c->times[(int)s->letter] <= 1;
    for (uint32_t i = 0; i < c->n_in + c->n_out && may; ++i) {
        const dsi_place_on on = i < c->n_in ? s->in[i] : s->out[i - c->n_in];
        const ds_meta *meta = i < c->n_in ? &c->in_meta[i] : &c->out_meta[i - c->n_in];
        may = on.kind != DSI_SHARD || meta->shape.dims[on.dim] % ((int64_t)size * blocks) == 0;
    }
    return may;
}

/* Whether what a strategy cuts unevenly may be in equal slices with zeros behind the last: where
 * zeros stay zeros and add nothing, or the operator knows its rows. */
static bool may_be_padded(const ds_place_case *c, const dsi_strategy *s, uint32_t size,
                          uint32_t blocks)
{
    const bool by_elements = (c->flags & (DS_PLACE_ELEMENTS | DS_PLACE_ADDS_ALL)) != 0;
    bool may = ((by_elements && blocks == DSI_PADDED) ||
                ((c->flags & DSI_PLACE_PART) != 0 && s->letter == 'v')) &&
               s->letter != c->block_letter && s->letter != c->unit_letter &&
               c->times[(int)s->letter] <= 1;
    bool uneven = false;
    for (uint32_t i = 0; i < c->n_in + c->n_out && may; ++i) {
        const dsi_place_on on = i < c->n_in ? s->in[i] : s->out[i - c->n_in];
        const ds_meta *meta = i < c->n_in ? &c->in_meta[i] : &c->out_meta[i - c->n_in];
        if (on.kind == DSI_SHARD) {
            may = on.dim == 0 && on.blocks == 0;
            uneven = uneven || meta->shape.dims[on.dim] % size != 0;
        }
    }
    return may && uneven;
}

static void cut_in_blocks(const ds_place_case *c, uint32_t blocks, dsi_strategy *s)
{
    for (uint32_t i = 0; i < c->n_in + c->n_out; ++i) {
        dsi_place_on *on = i < c->n_in ? &s->in[i] : &s->out[i - c->n_in];
        on->blocks = on->kind == DSI_SHARD ? (uint8_t)blocks : 0;
    }
}

uint32_t dsi_rule_strategies(const ds_place_case *c, const dsi_mesh *mesh, dsi_axis axis,
                             const dsi_place_policy *policy, uint32_t blocks,
                             dsi_strategy list_out[DSI_RULE_STRATEGIES])
{
    uint32_t n = 0;
    list_out[n++] = (dsi_strategy){0};
    const bool evenly = (c->flags & (DS_PLACE_MEAN | DS_PLACE_MEAN_ROWS)) != 0;
    for (const char *letter = c->split; *letter != '\0' && n < DSI_RULE_STRATEGIES; ++letter) {
        if (is_agreed(c, axis, *letter, policy) && can_cut(c, *letter, mesh->size[axis], evenly) &&
            cut_letter(c, *letter, &list_out[n])) {
            list_out[n].averaged = averaged_outputs(c);
            list_out[n].averaged_in = averaged_inputs(c, list_out[n].averaged);
            ++n;
            if (n < DSI_RULE_STRATEGIES &&
                may_be_in_blocks(c, &list_out[n - 1], mesh->size[axis], blocks)) {
                list_out[n] = list_out[n - 1];
                cut_in_blocks(c, blocks, &list_out[n++]);
            } else if (n < DSI_RULE_STRATEGIES &&
                       may_be_padded(c, &list_out[n - 1], mesh->size[axis], blocks)) {
                list_out[n] = list_out[n - 1];
                cut_in_blocks(c, DSI_PADDED, &list_out[n++]);
            }
        }
    }
    for (uint32_t g = 0; g < c->n_groups && n < DSI_RULE_STRATEGIES; ++g) {
        pass_group(c, c->group[g], &list_out[n++]);
    }
    return n;
}

void dsi_rule_case_take(ds_place_case *c, const dsi_mesh *mesh, dsi_axis axis,
                        const dsi_strategy *s)
{
    if (s->letter != '\0') {
        uint32_t *times = &c->times[(int)s->letter];
        *times = (*times == 0 ? 1 : *times) * mesh->size[axis];
        bool in_blocks = false;
        for (uint32_t i = 0; i < c->n_in + c->n_out; ++i) {
            const dsi_place_on on = i < c->n_in ? s->in[i] : s->out[i - c->n_in];
            in_blocks = in_blocks || on.blocks > 0;
        }
        if (in_blocks && !s->inside) { /* no other axis cuts such a dim */
            dsi_place_drop(c->split, s->letter);
            c->is_in_blocks = true;
        }
    }
}

dsi_place_policy dsi_place_policy_default(void)
{
    const dsi_axes data = dsi_axes_data();
    return (dsi_place_policy){
        .mean = dsi_axes_mask(&data),
        .own = dsi_axes_mask(&data),
        .exchange = 1u << DSI_AXIS_SP | 1u << DSI_AXIS_EP,
    };
}

/* ---- local attributes ------------------------------------------------------------------------ */

static ds_meta local_meta(const dsi_mesh *mesh, const dsi_placement *at, ds_meta whole,
                          uint32_t rank)
{
    if (whole.dtype == DS_DTYPE_NONE) {
        return whole;
    }
    const dsi_part part = dsi_placement_part(mesh, at, whole.shape, rank);
    return (ds_meta){whole.dtype, dsi_part_shape(&part)};
}

void dsi_rule_attrs_of(const ds_place_case *c, const ds_meta *in, ds_meta *out, void *attrs_out)
{
    const ds_infer local = {
        .op = c->op, .attrs = c->attrs, .n_in = c->n_in, .in = in, .n_out = c->n_out, .out = out};
    if (c->op->attrs_bytes > 0) {
        memcpy(attrs_out, c->attrs, c->op->attrs_bytes);
    }
    if (c->op->place != NULL && c->op->place->local != NULL) {
        c->op->place->local(&local, attrs_out);
    }
}

void dsi_rule_local_attrs(const ds_place_case *c, const dsi_mesh *mesh, const dsi_placement *need,
                          const dsi_placement *out, uint32_t rank, void *attrs_out)
{
    ds_meta in_meta[DS_MAX_IN];
    ds_meta out_meta[DS_MAX_OUT];
    for (uint32_t i = 0; i < c->n_in; ++i) {
        in_meta[i] = local_meta(mesh, &need[i], c->in_meta[i], rank);
    }
    for (uint32_t o = 0; o < c->n_out; ++o) {
        out_meta[o] = local_meta(mesh, &out[o], c->out_meta[o], rank);
    }
    dsi_rule_attrs_of(c, in_meta, out_meta, attrs_out);
}
