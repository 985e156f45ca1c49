/* SPDX-License-Identifier: Apache-2.0 */
/* Beam search, as transformers' (ds_beams): a group of sequences that go on together.
 *
 * Each sequence ranks the ids behind it when its logits are there; when all have, the best of them
 * all are gone on with. The first child of a sequence is the sequence itself; another one shares
 * its full blocks and computes the last one again, to the same bits. All memory of a group is made
 * at submit: n sequences that run, and n more that they are exchanged for. What a sequence holds
 * may be taken from it (preemption): it is then ranked again, alike.
 *
 * Invariants: the live sequences have the same number of ids; those of a group are in running or
 * waiting while it goes on, spare ones in no list and without blocks.
 */
#include "serve/server.h"

#include "base/reserved.h"

#include <float.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

typedef struct dsi_beam_next {
    double value; /* of the text with it */
    uint32_t id;
    int32_t of; /* the sequence, among the live ones */
} next;

struct dsi_beam_group {
    dsi_beam_group *after; /* of the server's */
    uint64_t uid;
    ds_beams beams;
    int64_t n_prompt, n_live, n_keep; /* n_keep: ids that a sequence ranks */
    dsi_sequence **live, **spare;     /* [n], [n]: which of all are which */
    int64_t n_spare;
    next *merged, *chosen; /* [n · n_keep], [n] */
    ds_beam *ended;        /* [n + 1], the best first */
    uint32_t *texts;       /* [n + 1][max_new_tokens], of those */
    int64_t n_ended;
    bool hopeless; /* no running text can be better than those that ended */
    bool over;
};

ds_status dsi_beams_check(const ds_server *s, const ds_serve_request *r)
{
    const ds_beams *b = r->beams;
    DS_TRY(DSI_RESERVED_CHECK(s->ctx, "ds_beams", b));
    const int64_t most =
        s->max_sequences < DS_SERVE_MOST_BEAMS ? s->max_sequences : DS_SERVE_MOST_BEAMS;
    if (b->n < 2 || b->n > most || !isfinite(b->length_penalty) || b->end < DS_BEAM_LIKELY ||
        b->end > DS_BEAM_NEVER) {
        return ds_fail(
            s->ctx, DS_ERR_ARG,
            "ds_beams: n is %lld, expected 2 to %lld (max_sequences); length_penalty %g, "
            "expected a finite number; end %d, expected a ds_beam_end",
            (long long)b->n, (long long)most, b->length_penalty, (int)b->end);
    }
    const ds_sampling *g = &r->sampling;
    if (g->temperature > 0.0 || r->repetition > 0.0 || r->presence != 0.0 || r->frequency != 0.0 ||
        r->n_bias > 0 || r->logprobs || r->n_top > 0 || r->prompt_logprobs || r->guide != NULL ||
        r->dry != NULL) {
        return ds_fail(s->ctx, DS_ERR_ARG,
                       "ds_serve_request: a search by beams takes no temperature, penalties, "
                       "biases, log-probabilities, guide or dry");
    }
    const int64_t prompt = s->pairs ? 1 : (int64_t)r->n;
    const int64_t source = s->pairs ? ((int64_t)r->n + s->block - 1) / s->block : 0;
    const int64_t each = (prompt + r->max_new_tokens + s->block - 1) / s->block;
    if ((int64_t)(1 + r->n_stop_ids) * b->n > s->vocab_size ||
        each * b->n + source > s->generator->paged.blocks) {
        return ds_fail(s->ctx, DS_ERR_LIMIT,
                       "%lld beams of %lld positions need %lld blocks of the %lld that there are, "
                       "and %lld ids of the vocabulary of %lld",
                       (long long)b->n, (long long)prompt + (long long)r->max_new_tokens,
                       (long long)(each * b->n + source), (long long)s->generator->paged.blocks,
                       (long long)((int64_t)(1 + r->n_stop_ids) * b->n), (long long)s->vocab_size);
    }
    return DS_OK;
}

/* ---- its life ---- */
static void destroy_group(dsi_beam_group *g)
{
    for (int64_t i = 0; g->live != NULL && i < g->beams.n; ++i) {
        if (g->live[i] != NULL) {
            g->live[i]->group = NULL;
            dsi_sequence_destroy(&g->live[i]);
        }
    }
    for (int64_t i = 0; g->spare != NULL && i < 2 * g->beams.n; ++i) {
        if (g->spare[i] != NULL) {
            g->spare[i]->group = NULL;
            dsi_sequence_destroy(&g->spare[i]);
        }
    }
    free(g->live);
    free(g->spare);
    free(g->merged);
    free(g->chosen);
    free(g->ended);
    free(g->texts);
    free(g);
}

static ds_status make_sequence(ds_server *s, dsi_beam_group *g, const ds_serve_request *r,
                               dsi_sequence **to)
{
    DS_TRY(dsi_sequence_of_request(s, g->uid, r, to));
    dsi_sequence *q = *to;
    dsi_serve_adapter_begin(s, q, r->adapter);
    q->request.max_new_tokens = r->max_new_tokens;
    q->request.min_new_tokens = r->min_new_tokens;
    q->request.n_stop_ids = r->n_stop_ids;
    uint32_t *stops = malloc((r->n_stop_ids + 1) * sizeof *stops);
    q->request.stop_ids = stops;
    q->nexts = malloc((size_t)g->n_keep * sizeof *q->nexts);
    if (stops == NULL || q->nexts == NULL) {
        return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for a beam");
    }
    if (r->n_stop_ids > 0) {
        memcpy(stops, r->stop_ids, r->n_stop_ids * sizeof *stops);
    }
    return DS_OK;
}

static ds_status fill_group(ds_server *s, dsi_beam_group *g, const ds_serve_request *r)
{
    const size_t n = (size_t)g->beams.n;
    g->live = calloc(n, sizeof *g->live);
    g->spare = calloc(2 * n, sizeof(dsi_sequence *));
    g->merged = malloc(n * (size_t)g->n_keep * sizeof *g->merged);
    g->chosen = malloc(n * sizeof *g->chosen);
    g->ended = calloc(n + 1, sizeof *g->ended);
    g->texts = malloc((n + 1) * (size_t)r->max_new_tokens * sizeof *g->texts);
    if (g->live == NULL || g->spare == NULL || g->merged == NULL || g->chosen == NULL ||
        g->ended == NULL || g->texts == NULL) {
        return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for %zu beams", n);
    }
    for (size_t i = 0; i <= n; ++i) {
        g->ended[i].ids = g->texts + i * (size_t)r->max_new_tokens;
    }
    while (g->n_spare < (int64_t)(2 * n)) {
        DS_TRY(make_sequence(s, g, r, &g->spare[g->n_spare]));
        g->n_spare += 1;
    }
    for (size_t i = 0; i < 2 * n; ++i) {
        g->spare[i]->group = g;
    }
    return DS_OK;
}

static dsi_sequence *take_spare(dsi_beam_group *g)
{
    dsi_sequence *q = g->spare[--g->n_spare];
    g->spare[g->n_spare] = NULL;
    q->ranked = false;
    return q;
}

ds_status dsi_beams_submit(ds_server *s, const ds_serve_request *r)
{
    dsi_beam_group *g = calloc(1, sizeof *g);
    if (g == NULL) {
        return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for beams");
    }
    g->beams = *r->beams;
    g->uid = s->last_uid + 1;
    g->n_prompt = s->pairs ? 1 : (int64_t)r->n;
    g->n_keep = (r->n_stop_ids > 1 ? 1 + (int64_t)r->n_stop_ids : 2) * g->beams.n;
    g->n_keep = g->n_keep < s->vocab_size ? g->n_keep : s->vocab_size;
    const ds_status status = fill_group(s, g, r);
    if (status < 0) {
        destroy_group(g);
        return status;
    }
    s->last_uid += 1;
    g->after = s->groups;
    s->groups = g;
    g->live[0] = take_spare(g);
    g->live[0]->n_cached = -1;
    g->n_live = 1;
    dsi_sequences_append(&s->waiting, g->live[0]);
    return DS_OK;
}

static void leave(ds_server *s, dsi_sequence *q)
{
    dsi_sequences *list = dsi_sequences_has(&s->running, q) ? &s->running : &s->waiting;
    dsi_sequence_drop_blocks(s, q);
    dsi_sequences_remove(list, q);
}

static void end_group(ds_server *s, dsi_beam_group *g)
{
    for (int64_t i = 0; i < g->n_live; ++i) {
        leave(s, g->live[i]);
    }
    g->over = true;
}

void dsi_beams_clear(ds_server *s, bool all)
{
    for (dsi_beam_group **at = &s->groups; *at != NULL;) {
        dsi_beam_group *g = *at;
        if (all || g->over) {
            *at = g->after;
            destroy_group(g);
        } else {
            at = &g->after;
        }
    }
}

bool dsi_beams_cancel(ds_server *s, uint64_t uid)
{
    for (dsi_beam_group *g = s->groups; g != NULL; g = g->after) {
        if (g->uid == uid && !g->over) {
            end_group(s, g);
            return true;
        }
    }
    return false;
}

/* ---- ranking ---- */
static bool is_stop(const dsi_sequence *q, uint32_t id)
{
    for (size_t i = 0; i < q->request.n_stop_ids; ++i) {
        if (q->request.stop_ids[i] == id) {
            return true;
        }
    }
    return false;
}

/* Puts one among the n_keep best of *n; the earlier one first among equals. */
static void insert(next *list, int64_t n_keep, int64_t *n, next one)
{
    int64_t at = *n;
    while (at > 0 && one.value > list[at - 1].value) {
        --at;
    }
    if (at == n_keep) {
        return;
    }
    *n += *n < n_keep;
    memmove(list + at + 1, list + at, (size_t)(*n - 1 - at) * sizeof *list);
    list[at] = one;
}

void dsi_beams_rank(const ds_server *s, dsi_sequence *q, const float *logits)
{
    const int64_t n_keep = q->group->n_keep;
    const bool early = q->n_ids - q->n_prompt < q->request.min_new_tokens;
    double top = -DBL_MAX;
    double sum = 0.0;
    int64_t n = 0;
    for (int64_t id = 0; id < s->vocab_size; ++id) {
        top = logits[id] > top ? logits[id] : top;
    }
    for (int64_t id = 0; id < s->vocab_size; ++id) {
        sum += isfinite(logits[id]) ? exp((double)logits[id] - top) : (double)NAN;
    }
    const double less = q->score - top - log(sum);
    q->spoiled = !isfinite(less);
    for (int64_t id = 0; id < s->vocab_size; ++id) {
        const double value = (double)logits[id] + less;
        if ((n < n_keep || value > q->nexts[n - 1].value) && !(early && is_stop(q, (uint32_t)id))) {
            insert(q->nexts, n_keep, &n, (next){.value = value, .id = (uint32_t)id});
        }
    }
    while (n < n_keep) {
        q->nexts[n++] = (next){.value = -DBL_MAX};
    }
    q->ranked = true;
}

/* ---- going on ---- */
static void copy_text(const dsi_beam_group *g, const next *one, ds_beam *to)
{
    const dsi_sequence *q = g->live[one->of];
    uint32_t *ids = (uint32_t *)(uintptr_t)to->ids;
    to->n = q->n_ids - g->n_prompt + 1;
    memcpy(ids, q->ids + g->n_prompt, (size_t)(to->n - 1) * sizeof *ids);
    ids[to->n - 1] = one->id;
}

/* A text that ended, among the n best. */
static void add_ended(dsi_beam_group *g, const next *one, bool stopped)
{
    const int64_t n = g->beams.n;
    const double length = (double)(g->live[one->of]->n_ids - g->n_prompt + 1);
    const double score = one->value / pow(length, g->beams.length_penalty);
    if (g->n_ended == n && !(score > g->ended[n - 1].score)) {
        return;
    }
    ds_beam made = g->ended[g->n_ended]; /* its ids are nobody's */
    copy_text(g, one, &made);
    made.score = score;
    made.stopped = stopped;
    int64_t at = g->n_ended;
    while (at > 0 && score > g->ended[at - 1].score) {
        g->ended[at] = g->ended[at - 1];
        --at;
    }
    g->ended[at] = made;
    g->n_ended = g->n_ended < n ? g->n_ended + 1 : n;
}

/* Whether the best running text may be better than the worst that ended; none has to be. */
static bool has_hope(const dsi_beam_group *g, double best, int64_t length, int64_t longest)
{
    const double penalty = g->beams.length_penalty;
    const bool never = g->beams.end == DS_BEAM_NEVER && penalty > 0.0;
    return g->n_ended < g->beams.n ||
           best / pow((double)(never ? longest : length), penalty) > g->ended[g->n_ended - 1].score;
}

/* Makes q the text of `from` and one id: its full blocks are shared, unless the layers carry a
 * state, which goes on from a snapshot. */
static void fork_from(ds_server *s, const dsi_sequence *from, uint32_t id, dsi_sequence *q)
{
    const int64_t full = s->carries ? 0 : from->n_computed / s->block;
    memcpy(q->ids, from->ids, (size_t)from->n_ids * sizeof *q->ids);
    q->ids[from->n_ids] = id;
    q->n_ids = from->n_ids + 1;
    q->n_cached = from->n_cached;
    q->n_computed = full * s->block;
    q->n_blocks = full;
    for (int64_t i = 0; i < full; ++i) {
        q->blocks[i] = from->blocks[i];
        dsi_block_pool_share(s->pool, q->blocks[i]);
    }
    q->serial = s->carries ? q->begin : from->serial;
    q->n_registered = s->carries ? 0 : from->n_registered;
}

/* A place among those that run, or without its blocks among those that wait. */
static void enter(ds_server *s, dsi_sequence *q)
{
    if (s->running.n < s->max_sequences && dsi_sequence_take_state(s, q) && dsi_source_hold(s, q)) {
        int64_t n_free = 0;
        if (s->carries) {
            dsi_sequence_share(s, q, dsi_sequence_match(s, q, &n_free));
        }
        dsi_sequences_insert(&s->running, q);
    } else {
        dsi_sequence_drop_blocks(s, q);
        dsi_sequences_insert(&s->waiting, q);
    }
}

/* The chosen ones are the live ones. */
static void renew(ds_server *s, dsi_beam_group *g, int64_t n)
{
    dsi_sequence *made[DS_SERVE_MOST_BEAMS];
    bool goes_on[DS_SERVE_MOST_BEAMS] = {false};
    for (int64_t i = 0; i < n; ++i) { /* others before the sequence itself, which changes */
        const next *one = &g->chosen[i];
        made[i] = goes_on[one->of] ? take_spare(g) : g->live[one->of];
        if (goes_on[one->of]) {
            fork_from(s, g->live[one->of], one->id, made[i]);
        }
        goes_on[one->of] = true;
    }
    for (int64_t i = 0; i < g->n_live; ++i) {
        if (!goes_on[i]) {
            leave(s, g->live[i]);
            g->spare[g->n_spare++] = g->live[i];
        }
    }
    for (int64_t i = 0; i < n; ++i) {
        dsi_sequence *q = made[i];
        q->ranked = false;
        q->score = g->chosen[i].value;
        if (q == g->live[g->chosen[i].of]) {
            q->ids[q->n_ids++] = g->chosen[i].id;
        } else {
            enter(s, q);
        }
    }
    memset(g->live, 0, (size_t)g->beams.n * sizeof(dsi_sequence *));
    memcpy(g->live, made, (size_t)n * sizeof *made);
    g->n_live = n;
}

static void merge(dsi_beam_group *g)
{
    int64_t n = 0;
    for (int64_t k = 0; k < g->n_live; ++k) {
        for (int64_t i = 0; i < g->n_keep; ++i) {
            next one = g->live[k]->nexts[i];
            one.of = (int32_t)k;
            insert(g->merged, g->n_keep, &n, one);
        }
    }
}

bool dsi_beams_go_on(ds_server *s, dsi_beam_group *g, ds_serve_event *event)
{
    const dsi_sequence *any = g->live[0];
    if (g->over) {
        return false;
    }
    const int64_t longest = any->request.max_new_tokens;
    const int64_t length = any->n_ids - g->n_prompt + 1;
    const bool full = g->beams.end == DS_BEAM_EARLY && g->n_ended == g->beams.n;
    int64_t n = 0;
    for (int64_t i = 0; i < g->n_live; ++i) {
        if (!g->live[i]->ranked) {
            return false;
        }
    }
    for (int64_t i = 0; i < g->n_live; ++i) {
        if (g->live[i]->spoiled) {
            *event = (ds_serve_event){.uid = g->uid, .finish = DS_SERVE_ERROR};
            end_group(s, g);
            return true;
        }
    }
    merge(g);
    for (int64_t i = 0; i < g->n_keep; ++i) {
        const next *one = &g->merged[i];
        const bool stopped = is_stop(any, one->id);
        if (!stopped && length < longest && n < g->beams.n) {
            g->chosen[n++] = *one;
        } else if ((stopped || length == longest) && i < g->beams.n && !full && !g->hopeless) {
            add_ended(g, one, stopped);
        }
    }
    g->hopeless = g->hopeless || n == 0 || !has_hope(g, g->chosen[0].value, length, longest);
    if (!g->hopeless && !(g->beams.end == DS_BEAM_EARLY && g->n_ended == g->beams.n)) {
        renew(s, g, n);
        return false;
    }
    *event = (ds_serve_event){.uid = g->uid,
                              .finish = DS_SERVE_BEAMS,
                              .n_cached = any->n_cached,
                              .beams = g->ended,
                              .n_beams = g->n_ended};
    for (int64_t i = 0; i < g->n_ended; ++i) {
        s->stats.n_new_tokens += g->ended[i].n;
    }
    end_group(s, g);
    return true;
}
