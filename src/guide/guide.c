/* SPDX-License-Identifier: Apache-2.0 */
/* Guides: grammar, position and vocabulary together. See guide.h. */
#include "guide/guide.h"

#include "guide/form_calls.h"
#include "guide/form_walk.h"
#include "guide/text_run.h"

#include <deepspeed/context.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { MASKS = 16, WORTH_ASKING = 32 /* nodes of a branch, else a walk is faster */ };

/* The tokens of a position. */
typedef struct mask {
    uint64_t *bits; /* [words] */
    uint32_t epoch;
    uint16_t position;
    bool valid;
} mask;

/* Of a walk, behind some bytes of a token. */
typedef struct depth {
    dsi_text_run text;
    dsi_utf8 state;
} depth;

struct dsi_guide {
    const dsi_vocabulary *words;
    dsi_grammar grammar;
    dsi_form_walk walk;
    pthread_mutex_t lock;
    mask masks[MASKS];
    uint32_t next_mask; /* to be used again */
    uint64_t *bits;     /* of all masks */
    uint16_t *path;     /* [longest + 1]: positions of a walk, */
    uint32_t *epochs;   /* and the epoch of each */
    uint8_t *bytes;     /* [longest] */
    depth *depths;      /* [longest + 1] */
    dsi_text_runs runs;
};

static ds_status compile(ds_ctx *ctx, dsi_guide *g, dsi_guide_kind kind, const char *form, size_t n)
{
    dsi_grammar *grammar = &g->grammar;
    uint32_t root = 0;
    if (kind == DSI_GUIDE_SCHEMA) {
        dsi_form_schema_read(grammar, form, n, &root);
    } else if (kind == DSI_GUIDE_GBNF) {
        dsi_form_gbnf(grammar, form, n, &root);
    } else {
        root = dsi_grammar_rule(grammar);
        const uint32_t start = grammar->failed ? 0 : grammar->rules[root];
        dsi_grammar_end(grammar, dsi_form_regex(grammar, start, form, n, true, false));
    }
    return dsi_grammar_finish(ctx, grammar, root);
}

static ds_status make_room(ds_ctx *ctx, dsi_guide *g)
{
    const size_t n = g->words != NULL ? (g->words->n + 63u) / 64 : 0;
    const size_t longest = g->words != NULL ? g->words->longest : 0;
    g->bits = malloc((MASKS * n + 1) * sizeof *g->bits);
    g->path = malloc((longest + 1) * sizeof *g->path);
    g->epochs = malloc((longest + 1) * sizeof *g->epochs);
    g->bytes = malloc(longest + 1);
    g->depths = malloc((longest + 1) * sizeof *g->depths);
    if (g->bits == NULL || g->path == NULL || g->epochs == NULL || g->bytes == NULL ||
        g->depths == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a guide");
    }
    for (uint32_t i = 0; i < MASKS; ++i) {
        g->masks[i].bits = g->bits + i * n;
    }
    return dsi_text_runs_create(ctx, &g->walk, &g->runs);
}

static ds_status finish(ds_ctx *ctx, dsi_guide *g, ds_status status, dsi_guide **guide_out)
{
    status = status < 0 ? status : dsi_form_walk_create(ctx, &g->grammar, &g->walk);
    status = status < 0 ? status : make_room(ctx, g);
    if (status >= 0 && dsi_form_walk_begin(&g->walk) == DSI_FORM_WALK_DEAD) {
        status = ds_fail(ctx, DS_ERR_ARG, "no text has this form, or too many things can begin it");
    }
    if (status < 0) {
        dsi_guide_destroy(&g);
        return status;
    }
    *guide_out = g;
    return DS_OK;
}

static ds_status make(ds_ctx *ctx, const dsi_vocabulary *words, dsi_guide **guide_out)
{
    dsi_guide *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a guide");
    }
    g->words = words;
    (void)pthread_mutex_init(&g->lock, NULL);
    *guide_out = g;
    return DS_OK;
}

ds_status dsi_guide_create(ds_ctx *ctx, const dsi_vocabulary *words, dsi_guide_kind kind,
                           const char *form, size_t n, dsi_guide **guide_out)
{
    dsi_guide *g = NULL;
    DS_TRY(make(ctx, words, &g));
    return finish(ctx, g, compile(ctx, g, kind, form, n), guide_out);
}

ds_status dsi_guide_of_texts(ds_ctx *ctx, const dsi_vocabulary *words, const char *const *texts,
                             const size_t *sizes, size_t n, dsi_guide **guide_out)
{
    dsi_guide *g = NULL;
    DS_TRY(make(ctx, words, &g));
    dsi_grammar *grammar = &g->grammar;
    const uint32_t root = dsi_grammar_rule(grammar);
    for (size_t i = 0; i < n && !grammar->failed; ++i) {
        dsi_grammar_end(grammar,
                        dsi_grammar_text(grammar, grammar->rules[root], texts[i], sizes[i]));
    }
    return finish(ctx, g, dsi_grammar_finish(ctx, grammar, root), guide_out);
}

ds_status dsi_guide_of_calls(ds_ctx *ctx, const dsi_vocabulary *words, const dsi_call_form *form,
                             const dsi_guide_tool *tools, size_t n, bool forced, bool several,
                             dsi_guide **guide_out)
{
    dsi_guide *g = NULL;
    uint32_t root = 0;
    DS_TRY(make(ctx, words, &g));
    dsi_form_calls(&g->grammar, form, tools, n, forced, several, &root);
    return finish(ctx, g, dsi_grammar_finish(ctx, &g->grammar, root), guide_out);
}

void dsi_guide_destroy(dsi_guide **guide)
{
    dsi_guide *g = *guide;
    if (g != NULL) {
        dsi_form_walk_free(&g->walk);
        dsi_grammar_free(&g->grammar);
        (void)pthread_mutex_destroy(&g->lock);
        free(g->bits);
        free(g->path);
        free(g->epochs);
        free(g->bytes);
        free(g->depths);
        dsi_text_runs_free(&g->runs);
        free(g);
        *guide = NULL;
    }
}

/* ---- where a text stands ---- */
static uint16_t take(dsi_form_walk *m, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n && m->root != DSI_FORM_WALK_DEAD; ++i) {
        m->root = dsi_form_walk_step(m, m->root, bytes[i]);
    }
    return m->root;
}

/* The root becomes the position behind the text. A token without bytes leaves the form. */
static uint16_t follow(dsi_guide *g, const uint32_t *text, size_t n)
{
    const dsi_vocabulary *w = g->words;
    uint16_t at = dsi_form_walk_begin(&g->walk);
    for (size_t i = 0; i < n && at != DSI_FORM_WALK_DEAD; ++i) {
        const bool begins = i == 0 && w->begun != NULL;
        const uint32_t *ends = begins ? w->begun : w->at;
        const uint8_t *bytes = begins ? w->begin_bytes : w->bytes;
        const uint32_t id = text[i];
        if (id >= w->n || ends[id] == ends[id + 1]) {
            return DSI_FORM_WALK_DEAD;
        }
        at = take(&g->walk, bytes + ends[id], ends[id + 1] - ends[id]);
    }
    return at;
}

static dsi_guide_state state_of(const dsi_form_walk *m, uint16_t at)
{
    const bool may_end = dsi_form_walk_may_end(m, at);
    return at == DSI_FORM_WALK_DEAD       ? DSI_GUIDE_BROKEN
           : !may_end                     ? DSI_GUIDE_GOES_ON
           : dsi_form_walk_goes_on(m, at) ? DSI_GUIDE_MAY_END
                                          : DSI_GUIDE_ENDS;
}

dsi_guide_state dsi_guide_where(dsi_guide *g, const uint32_t *text, size_t n)
{
    (void)pthread_mutex_lock(&g->lock);
    const dsi_guide_state state = state_of(&g->walk, follow(g, text, n));
    (void)pthread_mutex_unlock(&g->lock);
    return state;
}

dsi_guide_state dsi_guide_where_bytes(dsi_guide *g, const char *text, size_t n)
{
    (void)pthread_mutex_lock(&g->lock);
    (void)dsi_form_walk_begin(&g->walk);
    const dsi_guide_state state = state_of(&g->walk, take(&g->walk, (const uint8_t *)text, n));
    (void)pthread_mutex_unlock(&g->lock);
    return state;
}

/* ---- masks ---- */
/* The position at depth d of the walk; found again from the root when positions were dropped. */
static uint16_t position_at(dsi_guide *g, uint32_t d)
{
    dsi_form_walk *m = &g->walk;
    if (d == 0) {
        return m->root;
    }
    if (g->epochs[d] != m->epoch) {
        uint16_t at = m->root;
        for (uint32_t i = 0; i < d; ++i) {
            at = dsi_form_walk_step(m, at, g->bytes[i]);
        }
        g->path[d] = at;
        g->epochs[d] = m->epoch;
    }
    return g->path[d];
}

/* The tokens of a node. */
static void set_ids(const uint32_t *ids, const dsi_vocabulary_node *node, uint64_t *bits)
{
    for (uint32_t i = node->ids; i < node[1].ids; ++i) {
        bits[ids[i] / 64] |= 1ull << ids[i] % 64;
    }
}

static bool covers(dsi_text_run text, const dsi_vocabulary_node *node)
{
    return text.n == DSI_TEXT_ENDLESS || node->height <= text.n;
}

/* Of a branch of text the tokens that a run takes. */
static void set_short_ids(const dsi_vocabulary *w, const dsi_vocabulary_node *node,
                          dsi_text_run text, uint64_t *bits)
{
    const uint32_t d = node->depth - 1u;
    const bool all = covers(text, node);
    for (uint32_t i = node->ids; i < node[node->size].ids; ++i) {
        const uint32_t id = w->all.ids[i];
        int begun = 0;
        for (uint32_t at = w->at[id] + d; at < w->at[id + 1] && !all; ++at) {
            begun += dsi_utf8_begins(w->bytes[at]) ? 1 : 0;
        }
        if (all || begun <= text.n) {
            bits[id / 64] |= 1ull << id % 64;
        }
    }
}

/* The text that the root takes, where a run says of all tokens whether they are: else nothing. */
static bool set_texts(dsi_guide *g, uint64_t *bits)
{
    enum { ALL = DSI_VOCABULARY_TEXTS - 1 };
    const dsi_vocabulary *w = g->words;
    const size_t bytes = (w->n + 63u) / 64 * sizeof *bits;
    const dsi_text_run run = dsi_text_runs_at(&g->runs, g->walk.root, DSI_UTF8_WHOLE);
    const bool endless = run.n == DSI_TEXT_ENDLESS;
    const bool known = endless || (run.ends && run.n < ALL);
    memcpy(bits, w->texts[endless ? ALL : known ? run.n : 0], bytes);
    return known;
}

/* All tokens that the root takes. */
static void walk(dsi_guide *g, uint64_t *bits)
{
    const dsi_vocabulary *w = g->words;
    const dsi_vocabulary_tree *tree = set_texts(g, bits) ? &w->others : &w->all;
    dsi_form_walk *m = &g->walk;
    g->depths[0] = (depth){.text = {.n = -1}, .state = DSI_UTF8_WHOLE};
    for (uint32_t k = 0; k < tree->n_nodes;) {
        const dsi_vocabulary_node *node = &tree->nodes[k];
        const uint32_t d = node->depth - 1u;
        depth *before = &g->depths[d];
        if (node->text && node->size >= WORTH_ASKING && !covers(before->text, node) &&
            !before->text.known) {
            before->text = dsi_text_runs_at(&g->runs, position_at(g, d), before->state);
        }
        if (node->text && before->text.n >= 0 &&
            (covers(before->text, node) || before->text.ends)) {
            set_short_ids(w, node, before->text, bits);
            k += node->size;
            continue;
        }
        const uint16_t at = dsi_form_walk_step(m, position_at(g, d), node->byte);
        if (at == DSI_FORM_WALK_DEAD) {
            k += node->size;
            continue;
        }
        g->path[d + 1] = at;
        g->epochs[d + 1] = m->epoch;
        g->bytes[d] = node->byte;
        g->depths[d + 1] =
            (depth){dsi_text_run_behind(before->text, before->state, node->byte), node->state};
        set_ids(tree->ids, node, bits);
        ++k;
    }
}

/* At the begin of a text a token may have other bytes than in the tree: one after the other. */
static void try_all(dsi_guide *g, uint64_t *bits)
{
    const dsi_vocabulary *w = g->words;
    dsi_form_walk *m = &g->walk;
    memset(bits, 0, (w->n + 63u) / 64 * sizeof *bits);
    for (uint32_t id = 0; id < w->n; ++id) {
        uint16_t at = m->root;
        for (uint32_t i = w->begun[id]; i < w->begun[id + 1] && at != DSI_FORM_WALK_DEAD; ++i) {
            at = dsi_form_walk_step(m, at, w->begin_bytes[i]);
        }
        if (w->begun[id] < w->begun[id + 1] && at != DSI_FORM_WALK_DEAD) {
            bits[id / 64] |= 1ull << id % 64;
        }
    }
}

/* The mask of the root. */
static const uint64_t *find_mask(dsi_guide *g, bool begins)
{
    dsi_form_walk *m = &g->walk;
    for (uint32_t i = 0; i < MASKS && !begins; ++i) {
        const mask *one = &g->masks[i];
        if (one->valid && one->epoch == m->epoch && one->position == m->root) {
            return one->bits;
        }
    }
    mask *own = &g->masks[g->next_mask++ % MASKS];
    if (begins) {
        try_all(g, own->bits);
    } else {
        walk(g, own->bits);
    }
    own->epoch = m->epoch;
    own->position = m->root;
    own->valid = !begins;
    return own->bits;
}

static void apply(const uint64_t *bits, uint32_t n_words, float *logits, int64_t n)
{
    for (int64_t i = 0; i < n; i += 64) {
        const uint64_t word = i < n_words ? bits[i / 64] : 0;
        const int64_t end = i + 64 < n ? i + 64 : n;
        if (word == 0) {
            for (int64_t k = i; k < end; ++k) {
                logits[k] = DSI_GUIDE_NEVER;
            }
            continue;
        }
        for (int64_t k = i; k < end && word != UINT64_MAX; ++k) {
            logits[k] = (word >> (k - i) & 1) != 0 ? logits[k] : DSI_GUIDE_NEVER;
        }
    }
}

/* Keeps what the stop ids have, through the mask. */
enum { MOST_STOPS = 128 };

void dsi_guide_mask(dsi_guide *g, const uint32_t *text, size_t n, const uint32_t *stop_ids,
                    size_t n_stop_ids, float *logits, int64_t n_logits)
{
    float kept[MOST_STOPS];
    const size_t n_kept = n_stop_ids < MOST_STOPS ? n_stop_ids : MOST_STOPS;
    (void)pthread_mutex_lock(&g->lock);
    const uint16_t at = follow(g, text, n);
    const bool may_end = dsi_form_walk_may_end(&g->walk, at);
    const bool stops = may_end || !dsi_form_walk_goes_on(&g->walk, at);
    for (size_t i = 0; i < n_kept; ++i) {
        kept[i] = (int64_t)stop_ids[i] < n_logits ? logits[stop_ids[i]] : 0.0f;
    }
    if (dsi_form_walk_goes_on(&g->walk, at)) {
        apply(find_mask(g, n == 0 && g->words->begun != NULL), g->words->n, logits, n_logits);
    } else {
        apply(NULL, 0, logits, n_logits);
    }
    (void)pthread_mutex_unlock(&g->lock);
    for (size_t i = 0; i < n_kept && stops; ++i) {
        if ((int64_t)stop_ids[i] < n_logits) {
            logits[stop_ids[i]] = kept[i];
        }
    }
}
