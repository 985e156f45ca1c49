/* SPDX-License-Identifier: Apache-2.0 */
/* Making a server; batches by put, query and flush. See serve.h. */
#include "base/reserved.h"
#include "serve/serve_plan.h"
#include "serve/server.h"
#include "serve/turns.h"

#include <stdlib.h>
#include <string.h>

enum {
    BLOCK = 64,
    SEQUENCES = 16,
    TOKENS = 512,
    MOST_TOKENS = 1 << 16,
    MOST_SEQUENCES = 4096,
    MOST_SNAPSHOTS = 1 << 16
};

static int64_t or_default(int64_t value, int64_t otherwise)
{
    return value != 0 ? value : otherwise;
}

static ds_status bound(ds_ctx *ctx, const char *name, int64_t value, int64_t least, int64_t most)
{
    if (value < least || value > most) {
        return ds_fail(ctx, DS_ERR_ARG, "ds_serve_params: %s is %lld, expected %lld to %lld", name,
                       (long long)value, (long long)least, (long long)most);
    }
    return DS_OK;
}

int64_t dsi_serve_longest_text(const ds_model *model, int64_t max_length, int64_t block)
{
    const bool pairs = model != NULL && ds_model_get_info(model)->pairs;
    return (pairs ? 2 : 1) * ((max_length + block - 1) / block * block);
}

/* Fills the sizes; *tokens_out: positions of all sequences. */
static ds_status size_server(ds_server *s, const ds_serve_params *p, int64_t *tokens_out)
{
    const ds_model *model = p->source.model != NULL || p->source.engine == NULL
                                ? p->source.model
                                : p->source.engine->model;
    s->block = or_default(p->kv_block, BLOCK);
    s->max_sequences = or_default(p->max_sequences, SEQUENCES);
    s->max_batch_tokens = or_default(p->max_batch_tokens, TOKENS);
    s->max_length = model != NULL ? dsi_generator_longest(&p->source, ds_model_get_info(model))
                                  : p->source.max_length;
    s->max_draft = p->max_draft;
    s->carries = model != NULL && ds_model_get_info(model)->carries;
    s->pairs = model != NULL && ds_model_get_info(model)->pairs;
    /* blocks alone do not make up a begin of a source's text */
    s->cache = !p->no_prefix_cache && !s->pairs;
    DS_TRY(bound(s->ctx, "kv_block", s->block, BLOCK, 1 << 16));
    if (s->block % BLOCK != 0) {
        return ds_fail(s->ctx, DS_ERR_ARG,
                       "ds_serve_params: kv_block is %lld, expected a multiple "
                       "of %d",
                       (long long)s->block, BLOCK);
    }
    DS_TRY(bound(s->ctx, "max_sequences", s->max_sequences, 1, MOST_SEQUENCES));
    DS_TRY(bound(s->ctx, "max_draft", s->max_draft, 0, DS_SERVE_MOST_DRAFT));
    DS_TRY(bound(s->ctx, "state_snapshots", p->state_snapshots, 0, MOST_SNAPSHOTS));
    if (p->state_snapshots > 0 && (!s->carries || !s->cache)) {
        return ds_fail(s->ctx, DS_ERR_ARG, "ds_serve_params: state_snapshots is %lld, but %s",
                       (long long)p->state_snapshots,
                       s->carries ? "with no_prefix_cache no state is kept"
                                  : "the model's layers carry no state");
    }
    s->n_snapshots = s->carries && s->cache ? or_default(p->state_snapshots, s->max_sequences) : 0;
    DS_TRY(bound(s->ctx, "max_tracked", p->max_tracked, 0, INT64_MAX));
    DS_TRY(bound(s->ctx, "prompt_rows", p->prompt_rows, 0, MOST_TOKENS));
    s->max_tracked = or_default(p->max_tracked, INT64_MAX);
    if (!(p->rank_seconds >= 0.0 && p->rank_seconds <= 1e6)) {
        return ds_fail(s->ctx, DS_ERR_ARG, "ds_serve_params: rank_seconds is %g, expected 0 to 1e6",
                       p->rank_seconds);
    }
    DS_TRY(bound(s->ctx, "adapters", p->adapters, 0, 1024));
    DS_TRY(bound(s->ctx, "adapter_rank", p->adapter_rank, p->adapters > 0 ? 1 : 0, 4096));
    if (p->adapters > 0 && p->source.adapter != NULL) {
        return ds_fail(s->ctx, DS_ERR_UNSUPPORTED,
                       "ds_serve_params: adapters of requests (adapters) beside one of the model "
                       "(source.adapter), which each would be added to: merge that one into the "
                       "model first, or load it into a slot");
    }
    s->n_slots = p->adapters;
    if (p->kv_type != DS_DTYPE_NONE && p->kv_type != DS_DTYPE_F32 && p->kv_type != DS_DTYPE_BF16 &&
        p->kv_type != DS_DTYPE_F16 && p->kv_type != DS_DTYPE_I8) {
        return ds_fail(s->ctx, DS_ERR_ARG,
                       "ds_serve_params: kv_type is %s, expected f32, bf16, f16 or i8",
                       ds_dtype_name(p->kv_type));
    }
    DS_TRY(bound(s->ctx, "max_batch_tokens", s->max_batch_tokens, s->max_sequences, MOST_TOKENS));
    DS_TRY(bound(s->ctx, "source.max_length", s->max_length, 2, INT32_MAX / 4));
    const int64_t whole = dsi_serve_longest_text(model, s->max_length, s->block);
    *tokens_out = or_default(p->kv_tokens, 4 * whole);
    DS_TRY(bound(s->ctx, "kv_tokens", *tokens_out, whole, INT32_MAX / 2));
    if (*tokens_out % s->block != 0) {
        return ds_fail(s->ctx, DS_ERR_ARG,
                       "ds_serve_params: kv_tokens is %lld, expected a multiple of kv_block %lld",
                       (long long)*tokens_out, (long long)s->block);
    }
    return DS_OK;
}

static void count_bytes(ds_server *s, int64_t tokens)
{
    const ds_cells *cells = s->generator->local;
    for (ds_cell c = 0; c < ds_cells_count(cells); ++c) {
        const ds_cell_info *cell = ds_cells_get(cells, c);
        const double bytes = (double)ds_meta_bytes(cell->meta);
        s->stats.weight_bytes += cell->kind == DS_CELL_PARAM ? bytes : 0.0;
        s->stats.kv_token_bytes += cell->kind == DS_CELL_KV ? bytes / (double)tokens : 0.0;
    }
}

/* Rows of logits of a batch that ids are drawn from; `more`: with those of prompts. */
static int64_t most_rows(const ds_server *s, int64_t more)
{
    const int64_t rows = s->max_sequences * (1 + s->max_draft) + more;
    return rows < s->max_batch_tokens ? rows : s->max_batch_tokens;
}

/* A generator of the sizes that params say, or its plans alone. */
static ds_status make_generator(ds_server *s, const ds_serve_params *params, bool plans_only,
                                uint32_t plan_ranks)
{
    int64_t tokens = 0;
    DS_TRY(size_server(s, params, &tokens));
    ds_generator_params source = params->source;
    source.max_length = s->max_length;
    const dsi_many many = {.paged = {.blocks = tokens / s->block,
                                     .block = s->block,
                                     .sequences = s->max_sequences,
                                     .table = (s->max_length + s->block - 1) / s->block,
                                     .rows = most_rows(s, params->prompt_rows),
                                     .states = dsi_states_rows(s),
                                     .kv_type = params->kv_type},
                           .budget = s->max_batch_tokens,
                           .draws = most_rows(s, 0),
                           .embeds = params->embeddings,
                           .plan_ranks = plan_ranks,
                           .slots = params->adapters,
                           .slot_rank = params->adapter_rank};
    return (plans_only ? dsi_generator_plan : dsi_generator_create)(s->ctx, &source, &many,
                                                                    &s->generator);
}

ds_status dsi_serve_drafter(const ds_server *s, const ds_serve_params *params,
                            ds_serve_params *own_out)
{
    const ds_paged *paged = &s->generator->paged;
    ds_serve_params own = {.source = *params->draft,
                           .max_sequences = s->max_sequences,
                           .max_batch_tokens = s->max_batch_tokens,
                           .kv_tokens = paged->blocks * paged->block,
                           .kv_block = paged->block,
                           .kv_type = paged->kv_type,
                           .no_prefix_cache = true}; /* what was guessed wrong is overwritten */
    if (s->max_draft == 0 || own.source.model == NULL) {
        return ds_fail(s->ctx, DS_ERR_ARG,
                       "ds_serve_params: draft needs a model and max_draft of at least 1");
    }
    if (ds_model_get_info(own.source.model)->carries) {
        return ds_fail(s->ctx, DS_ERR_UNSUPPORTED,
                       "ds_serve_params: draft: the drafter has layers of linear attention, whose "
                       "state does not go back behind a wrong guess: not built; a model with them "
                       "may have a drafter without");
    }
    if (ds_model_get_info(own.source.model)->pairs != s->pairs) {
        return ds_fail(s->ctx, DS_ERR_UNSUPPORTED,
                       "ds_serve_params: draft: %s %s, unlike the model: both have to",
                       ds_model_get_info(own.source.model)->architecture,
                       s->pairs ? "reads no sources" : "reads sources");
    }
    const int64_t most = ds_model_get_info(own.source.model)->max_positions;
    own.source.max_length = most > 0 && most < s->max_length ? most : s->max_length;
    *own_out = own;
    return DS_OK;
}

static ds_status create_drafter(ds_server *s, const ds_serve_params *params)
{
    ds_serve_params own;
    DS_TRY(dsi_serve_drafter(s, params, &own));
    return ds_serve_create(s->ctx, &own, &s->drafter);
}

/* What a server has that is given requests. */
static ds_status create_lead(ds_server *s, const ds_serve_params *params)
{
    s->free_states = malloc((size_t)s->max_sequences * sizeof *s->free_states);
    if (s->free_states == NULL) {
        return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for rows of states");
    }
    while (s->n_free_states < s->max_sequences) { /* the first is taken first */
        s->free_states[s->n_free_states] = (int32_t)(s->max_sequences - 1 - s->n_free_states);
        s->n_free_states += 1;
    }
    if (s->pairs && !params->no_prefix_cache) {
        ds_log(s->ctx, DS_LOG_JOB,
               "the model reads sources: no prefix cache; texts of one source share it while one "
               "of them runs");
    }
    DS_TRY(dsi_states_create(s));
    DS_TRY(dsi_batch_create(s));
    DS_TRY(params->draft != NULL ? create_drafter(s, params) : DS_OK);
    return dsi_draw_create(s);
}

/* What this rank has for itself. */
static ds_status create_own(ds_server *s, const ds_serve_params *params)
{
    const ds_paged *paged = &s->generator->paged;
    s->follows = ds_comm_rank(params->source.comm) > 0;
    s->vocab_size = s->generator->vocab_size;
    s->width = dsi_embed_width(s->generator);
    DS_TRY(dsi_block_pool_create(s->ctx, paged->blocks, s->block, &s->pool));
    count_bytes(s, paged->blocks * s->block);
    s->slots = calloc((size_t)s->n_slots + 1, sizeof *s->slots);
    if (s->slots == NULL) {
        return ds_fail(s->ctx, DS_ERR_NOMEM, "no memory for slots of adapters");
    }
    for (int64_t i = 0; i < s->n_slots; ++i) {
        DS_TRY(dsi_generator_slot_clear(s->generator, i));
    }
    return s->follows ? DS_OK : create_lead(s, params);
}

static ds_status create(ds_server *s, const ds_serve_params *params)
{
    DS_TRY(make_generator(s, params, false, 0));
    /* Rank 0 may read a drafter for longer than the others have patience later. */
    const ds_status status = ds_comm_agree(params->source.comm, s->ctx, create_own(s, params));
    if (status < 0) {
        dsi_serve_part(s);
        return status;
    }
    dsi_generator_set_patience(s->generator, params->rank_seconds);
    return DS_OK;
}

ds_status dsi_serve_plan(ds_ctx *ctx, const ds_serve_params *params, uint32_t n_ranks, ds_server *s)
{
    *s = (ds_server){.ctx = ctx};
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_serve_params", params));
    return make_generator(s, params, true, n_ranks);
}

ds_status ds_serve_create(ds_ctx *ctx, const ds_serve_params *params, ds_server **server_out)
{
    DS_TRY(DSI_RESERVED_CHECK(ctx, "ds_serve_params", params));
    ds_server *s = calloc(1, sizeof *s);
    if (s == NULL) {
        return ds_fail(ctx, DS_ERR_NOMEM, "no memory for a server");
    }
    s->ctx = ctx;
    const ds_status status = create(s, params);
    if (status < 0) {
        ds_serve_destroy(&s);
        return status;
    }
    *server_out = s;
    return DS_OK;
}

ds_status ds_serve_update(ds_server *s)
{
    const int64_t n = s->waiting.n + s->running.n + s->put.n + s->embedding.n;
    if (n > 0) {
        return ds_fail(s->ctx, DS_ERR_STATE,
                       "ds_serve_update: %lld sequences are there, of the old weights: let them "
                       "end, cancel or flush them first",
                       (long long)n);
    }
    DS_TRY(ds_generator_update(s->generator));
    dsi_block_pool_forget(s->pool);
    return DS_OK;
}

void ds_serve_destroy(ds_server **server)
{
    ds_server *s = server != NULL ? *server : NULL;
    if (s == NULL) {
        return;
    }
    dsi_sequences_clear(&s->waiting);
    dsi_sequences_clear(&s->running);
    dsi_sequences_clear(&s->put);
    dsi_sequences_clear(&s->embedding);
    dsi_beams_clear(s, true);
    dsi_sequences_clear(&s->done);
    dsi_draw_destroy(s);
    dsi_batch_destroy(s);
    free(s->slots);
    free(s->free_states);
    dsi_states_destroy(s);
    dsi_block_pool_destroy(&s->pool);
    ds_generator_destroy(&s->generator);
    ds_serve_destroy(&s->drafter);
    free(s);
    *server = NULL;
}

ds_status dsi_serve_check_leads(const ds_server *s)
{
    return !s->follows ? DS_OK
                       : ds_fail(s->ctx, DS_ERR_STATE,
                                 "this rank shares its layers with rank 0, which alone is given "
                                 "requests: call ds_serve_follow here");
}

ds_status ds_serve_follow(ds_server *s)
{
    int32_t turn = 0;
    const char *text = NULL;
    DS_TRY(dsi_serve_follow_turn(s, &turn, &text));
    return turn == 0
               ? DS_OK
               : ds_fail(s->ctx, DS_ERR_STATE,
                         "rank 0 has more than this server: ds_serve_follow cannot follow it");
}

/* ---- a batch at a time -----------------------------------------------------------------------
 */
static ds_status check_put(const ds_server *s, size_t n, const uint64_t *uids, const uint32_t *ids,
                           const size_t *lengths)
{
    int64_t tokens = 0;
    int64_t blocks = 0;
    int64_t tracked = s->put.n;
    if (s->pairs) {
        return ds_fail(
            s->ctx, DS_ERR_UNSUPPORTED,
            "ds_serve_put: the model reads sources: put is not built with it, submit is");
    }
    if (n == 0 || n > (size_t)s->max_sequences) {
        return ds_fail(s->ctx, DS_ERR_LIMIT, "ds_serve_put: %zu sequences, 1 to %lld are possible",
                       n, (long long)s->max_sequences);
    }
    for (size_t i = 0; i < n; ++i) {
        const dsi_sequence fresh = {0};
        const dsi_sequence *q = dsi_sequences_find(&s->put, uids[i]);
        for (size_t j = 0; j < i; ++j) {
            if (uids[j] == uids[i]) {
                return ds_fail(s->ctx, DS_ERR_ARG, "ds_serve_put: uid %llu is there twice",
                               (unsigned long long)uids[i]);
            }
        }
        tracked += q == NULL ? 1 : 0;
        q = q != NULL ? q : &fresh;
        if (lengths[i] == 0 || lengths[i] > (size_t)(s->max_length - q->n_ids)) {
            return ds_fail(s->ctx, DS_ERR_LIMIT,
                           "ds_serve_put: sequence %llu has %lld ids; %zu more are not within 1 "
                           "and max_length %lld",
                           (unsigned long long)uids[i], (long long)q->n_ids, lengths[i],
                           (long long)s->max_length);
        }
        tokens += (int64_t)lengths[i];
        blocks += dsi_sequence_lacks(s, q, (int64_t)lengths[i]);
    }
    if (tracked > s->max_tracked) {
        return ds_fail(s->ctx, DS_ERR_LIMIT,
                       "ds_serve_put: %lld sequences would be tracked, max_tracked is %lld: flush "
                       "one first",
                       (long long)tracked, (long long)s->max_tracked);
    }
    if (s->carries && tracked - s->put.n > s->n_free_states) {
        return ds_fail(s->ctx, DS_ERR_LIMIT,
                       "ds_serve_put: %lld sequences would begin, but of the %lld states of the "
                       "model's layers (max_sequences) %lld are free: flush one first",
                       (long long)(tracked - s->put.n), (long long)s->max_sequences,
                       (long long)s->n_free_states);
    }
    if (tokens > s->max_batch_tokens || blocks > dsi_block_pool_n_free(s->pool)) {
        return ds_fail(s->ctx, DS_ERR_LIMIT,
                       "ds_serve_put: %lld ids that need %lld blocks, but there is room for %lld "
                       "ids and %lld blocks",
                       (long long)tokens, (long long)blocks, (long long)s->max_batch_tokens,
                       (long long)dsi_block_pool_n_free(s->pool));
    }
    for (int64_t i = 0; i < tokens; ++i) {
        if ((int64_t)ids[i] >= s->vocab_size) {
            return ds_fail(s->ctx, DS_ERR_ARG,
                           "ds_serve_put: token %u is outside of the vocabulary of %lld", ids[i],
                           (long long)s->vocab_size);
        }
    }
    return DS_OK;
}

static ds_status find_or_begin(ds_server *s, uint64_t uid, dsi_sequence **sequence_out)
{
    *sequence_out = dsi_sequences_find(&s->put, uid);
    if (*sequence_out == NULL) {
        DS_TRY(dsi_sequence_create(s, uid, NULL, 0, s->max_length, sequence_out));
        (*sequence_out)->of_put = true;
        dsi_sequences_append(&s->put, *sequence_out);
    }
    return DS_OK;
}

ds_status ds_serve_put(ds_server *s, size_t n, const uint64_t *uids, const uint32_t *ids,
                       const size_t *lengths, const float **logits_out)
{
    dsi_sequence *q = NULL;
    DS_TRY(dsi_serve_check_leads(s));
    DS_TRY(dsi_generator_check_live(s->generator));
    DS_TRY(check_put(s, n, uids, ids, lengths));
    for (size_t i = 0; i < n; ++i) {
        DS_TRY(find_or_begin(s, uids[i], &q));
        if (!dsi_sequence_take_state(s, q)) { /* it was begun by a call that failed */
            return ds_fail(s->ctx, DS_ERR_LIMIT,
                           "ds_serve_put: no state is left for sequence %llu; flush others",
                           (unsigned long long)uids[i]);
        }
    }
    dsi_batch_begin(s);
    for (size_t i = 0; i < n; ids += lengths[i], ++i) {
        DS_TRY(find_or_begin(s, uids[i], &q));
        memcpy(q->ids + q->n_ids, ids, lengths[i] * sizeof *ids);
        q->n_ids += (int64_t)lengths[i];
        (void)dsi_sequence_grow(s, q, (int64_t)lengths[i]);
        dsi_batch_add(s, q, (int64_t)lengths[i]);
    }
    return dsi_batch_run(s, false, logits_out);
}

void ds_serve_query(const ds_server *s, uint64_t uid, int64_t max_tokens, int64_t max_blocks,
                    int64_t *n_tokens_out, int64_t *n_blocks_out)
{
    const dsi_sequence fresh = {0};
    const dsi_sequence *q = dsi_sequences_find(&s->put, uid);
    if (s->pairs ||
        (q == NULL && (s->put.n >= s->max_tracked || (s->carries && s->n_free_states == 0)))) {
        *n_tokens_out = *n_blocks_out = 0;
        return;
    }
    q = q != NULL ? q : &fresh;
    const int64_t room = (q->n_blocks + max_blocks) * s->block - q->n_computed;
    int64_t n = max_tokens < s->max_length - q->n_ids ? max_tokens : s->max_length - q->n_ids;
    n = n < room ? n : room;
    *n_tokens_out = n > 0 ? n : 0;
    *n_blocks_out = n > 0 ? dsi_sequence_lacks(s, q, n) : 0;
}

ds_status ds_serve_flush(ds_server *s, uint64_t uid)
{
    dsi_sequence *q = dsi_sequences_find(&s->put, uid);
    if (q == NULL) {
        return ds_fail(s->ctx, DS_ERR_NOT_FOUND, "ds_serve_flush: there is no sequence %llu",
                       (unsigned long long)uid);
    }
    dsi_sequence_drop_blocks(s, q);
    dsi_sequences_remove(&s->put, q);
    dsi_sequence_destroy(&q);
    return DS_OK;
}

void ds_serve_get_stats(const ds_server *s, ds_serve_stats *stats_out)
{
    *stats_out = s->stats;
    stats_out->n_running = s->running.n + s->n_embedding;
    stats_out->n_waiting = s->waiting.n + s->embedding.n - s->n_embedding;
    stats_out->width = s->width;
    stats_out->block = s->block;
    stats_out->n_blocks = s->generator->paged.blocks;
    stats_out->n_free_blocks = dsi_block_pool_n_free(s->pool);
    stats_out->max_sequences = s->max_sequences;
    stats_out->max_batch_tokens = s->max_batch_tokens;
    stats_out->max_length = s->max_length;
    stats_out->vocab_size = s->vocab_size;
    stats_out->max_draft = s->max_draft;
}
