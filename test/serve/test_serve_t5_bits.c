/* SPDX-License-Identifier: Apache-2.0 */
/* T5's server has the same bits alone and in a crowd, whatever the sizes, threads, preemption and
 * order, and allocates nothing in a step (LAW 6), in each dtype, with weights in blocks and
 * adapters of requests, too.
 *
 * labels: threads slow long */
#include "common/check.h"
#include "common/count_allocations.h"
#include "common/golden.h"
#include "common/serve_crowd.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ASKED = 40, NEW = 90, PATH = 1024, LONGEST = 160, TIGHT = 2 * 192, ADAPTERS = 2 };

/* What is served, and how. */
typedef struct served {
    const char *name; /* of a folder of test/golden/t5 */
    ds_dtype dtype, blocks, cells;
    const char *adapters[ADAPTERS]; /* of two requests of three, in turn; NULL: none */
} served;

/* A model that is open. */
typedef struct opened {
    const served *how;
    char folder[PATH];
    ds_model *model;
} opened;

static void open_model(ds_ctx *ctx, const served *how, opened *o)
{
    char path[PATH + 16];
    o->how = how;
    golden_path(o->folder, sizeof o->folder, "t5/%s", how->name);
    (void)snprintf(path, sizeof path, "%s/config.json", o->folder);
    CHECK_OK(ctx, ds_model_from_config(ctx, path, &o->model));
}

static ds_server *open_server(ds_ctx *ctx, const opened *o, ds_serve_params params)
{
    ds_server *server = NULL;
    params.source = (ds_generator_params){.model = o->model,
                                          .weights = o->folder,
                                          .max_length = LONGEST,
                                          .dtype = o->how->dtype,
                                          .quantize = o->how->blocks};
    params.kv_type = o->how->cells;
    params.no_prefix_cache = true; /* they have none */
    params.adapters = o->how->adapters[0] != NULL ? ADAPTERS : 0;
    params.adapter_rank = o->how->adapters[0] != NULL ? 5 : 0;
    CHECK_OK(ctx, ds_serve_create(ctx, &params, &server));
    return server;
}

/* Loads them, the last one first where the way goes backwards: into other slots. */
static void load_adapters(ds_ctx *ctx, ds_server *server, const served *how, bool backwards,
                          uint64_t ids[1 + ADAPTERS])
{
    memset(ids, 0, (1 + ADAPTERS) * sizeof *ids);
    for (int i = 0; i < ADAPTERS && how->adapters[0] != NULL; ++i) {
        char folder[PATH];
        const int k = backwards ? ADAPTERS - 1 - i : i;
        golden_path(folder, sizeof folder, "%s", how->adapters[k]);
        CHECK_OK(ctx, ds_serve_adapter_load(server, folder, &ids[1 + k]));
    }
}

typedef struct made {
    uint32_t ids[NEW];
    float logprobs[NEW], top[NEW];
    int64_t n;
    ds_serve_finish finish;
} made;

/* Texts long enough to need a second block, some of one source. */
static void ask(asked *a, int64_t vocab, uint64_t seed)
{
    crowd_ask(a + ASKED - CROWD_REQUESTS, vocab, seed + 100);
    crowd_ask(a, vocab, seed);
    for (int k = 0; k < ASKED; ++k) {
        ds_serve_request *r = &a[k].request;
        r->max_new_tokens = 1 + crowd_below(&seed, NEW);
        r->prompt_logprobs = false;
        r->min_new_tokens = r->min_new_tokens < r->max_new_tokens ? r->min_new_tokens : 0;
        if (k % 6 == 4) {
            r->ids = a[k - 1].ids;
            r->n = a[k - 1].n;
        }
    }
}

static void take(made *got, const ds_serve_event *e)
{
    assert_int_equal(got->finish, DS_SERVE_GOES_ON);
    assert_true(got->n < NEW);
    got->ids[got->n] = e->id;
    got->logprobs[got->n] = e->logprob;
    got->top[got->n] = e->top_logprobs[2];
    got->finish = e->finish;
    got->n += 1;
}

/* LAW 6: it allocates nothing, sources that it reads and preemption included. */
static void step_once(ds_ctx *ctx, ds_server *server, ds_serve_event *events, size_t *n_out)
{
#if CAN_COUNT_ALLOCATIONS
    count_begin();
    const ds_status status = ds_serve_step(server, events, n_out);
    const unsigned calls = count_end();
    CHECK_OK(ctx, status);
    if (calls != 0) {
        fail_msg("a step made %u allocating calls, the first from %p", calls,
                 atomic_load(&first_caller));
    }
#else
    CHECK_OK(ctx, ds_serve_step(server, events, n_out));
#endif
}

/* All requests, some steps apart, and where the way says so others that are cancelled. */
static void serve_all(const opened *o, const way *w, const asked *a, made *got)
{
    ds_ctx *ctx = check_ctx(w->threads);
    ds_serve_event events[CROWD_EVENTS];
    ds_serve_stats stats;
    uint64_t uids[ASKED] = {0};
    uint64_t stray = 0;
    size_t n = 0;
    uint64_t adapters[1 + ADAPTERS];
    const ds_generator_params draft = {
        .model = o->model, .weights = o->folder, .dtype = DS_DTYPE_BF16};
    ds_serve_params sizes = w->sizes;
    sizes.draft = strncmp(w->name, "draft model", 11) == 0 ? &draft : NULL;
    ds_server *server = open_server(ctx, o, sizes);
    load_adapters(ctx, server, o->how, w->backwards, adapters);
    memset(got, 0, ASKED * sizeof *got);
    for (int step = 0, begun = 0;; ++step) {
        if (begun < ASKED && step % 2 == 0) {
            const int k = w->backwards ? ASKED - 1 - begun : begun;
            ds_serve_request r = a[k].request;
            r.adapter = adapters[k % (1 + ADAPTERS)];
            CHECK_OK(ctx, ds_serve_submit(server, &r, &uids[k]));
            ++begun;
        }
        if (w->cancels && step % 5 == 0) {
            CHECK_OK(ctx, ds_serve_submit(server, &a[step % ASKED].request, &stray));
        }
        step_once(ctx, server, events, &n);
        for (size_t e = 0; e < n; ++e) {
            int k = 0;
            while (k < ASKED && uids[k] != events[e].uid) {
                ++k;
            }
            if (k < ASKED) {
                take(&got[k], &events[e]);
            }
        }
        if (stray != 0 && step % 5 == 3) {
            (void)ds_serve_cancel(server, stray); /* it may have ended */
            stray = 0;
        }
        ds_serve_get_stats(server, &stats);
        if (begun == ASKED && stats.n_running + stats.n_waiting == 0) {
            break;
        }
        assert_true(step < 20000);
    }
    assert_int_equal(stats.n_free_blocks, stats.n_blocks);
    assert_true(w->sizes.kv_tokens != TIGHT || o->how->adapters[0] != NULL || sizes.draft != NULL ||
                stats.n_preemptions > 0);
    assert_true((w->sizes.max_draft > 0) == (stats.n_drafted > 0));
    ds_serve_destroy(&server);
    ds_ctx_destroy(&ctx);
}

/* Of the ways one in `every`. */
static void same_bits_in(ds_ctx *ctx, const served *how, size_t every)
{
    static const way ways[] = {
        {"alone", {.max_sequences = 1, .max_batch_tokens = 120}, 1, 0, 0},
        {"budget 8", {.max_sequences = 1, .max_batch_tokens = 8}, 1, 0, 0},
        {"16 together", {.max_sequences = 16, .max_batch_tokens = 120}, 3, 0, 0},
        {"8 of a small budget", {.max_sequences = 8, .max_batch_tokens = 8}, 2, 1, 0},
        {"preemption", {.max_sequences = 16, .max_batch_tokens = 64, .kv_tokens = TIGHT}, 2, 1, 0},
        {"larger blocks", {.max_sequences = 7, .max_batch_tokens = 130, .kv_block = 128}, 1, 1, 0},
        {"cancelled", {.max_sequences = 8, .max_batch_tokens = 100, .kv_tokens = 640}, 2, 0, 1},
        {"drafts, preemption",
         {.max_sequences = 16, .max_batch_tokens = 64, .kv_tokens = TIGHT, .max_draft = 3},
         1,
         1,
         1},
        {"draft model, preemption",
         {.max_sequences = 9, .max_batch_tokens = 40, .kv_tokens = TIGHT, .max_draft = 3},
         2,
         1,
         1},
    };
    opened o;
    open_model(ctx, how, &o);
    const int64_t vocab = ds_model_get_info(o.model)->vocab_size;
    asked *a = calloc(ASKED, sizeof *a);
    made *want = calloc(2 * ASKED, sizeof *want);
    assert_non_null(a);
    assert_non_null(want);
    made *got = want + ASKED;
    ask(a, vocab, 7 + every);
    serve_all(&o, &ways[0], a, want);
    for (size_t i = every; i < sizeof ways / sizeof *ways; i += every) {
        if (!check_long_row(i)) {
            continue;
        }
        serve_all(&o, &ways[i], a, got);
        for (int k = 0; k < ASKED; ++k) {
            if (memcmp(&want[k], &got[k], sizeof *want) != 0) {
                fail_msg("%s in %s, %s, cells %s: request %d differs between \"alone\" and \"%s\"",
                         how->name, ds_dtype_name(how->dtype), ds_dtype_name(how->blocks),
                         ds_dtype_name(how->cells), k, ways[i].name);
            }
        }
    }
    free(a);
    free(want);
    ds_model_destroy(&o.model);
}

static void same_bits(void **state)
{
    static const struct {
        served how;
        size_t every;
    } cases[] = {
        {{.name = "t5", .dtype = DS_DTYPE_F32}, 1},
        {{.name = "t5_untied", .dtype = DS_DTYPE_F32}, 7},
        {{.name = "t5_untied", .dtype = DS_DTYPE_BF16}, 4},
        {{.name = "t5_start", .dtype = DS_DTYPE_F32, .cells = DS_DTYPE_I8}, 7},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        same_bits_in(*state, &cases[i].how, cases[i].every);
    }
}

static void same_bits_in_blocks(void **state)
{
    static const struct {
        served how;
        size_t every;
    } cases[] = {
        {{.name = "blocks_untied", .dtype = DS_DTYPE_F32, .blocks = DS_DTYPE_Q8_0}, 7},
        {{.name = "blocks_tied", .dtype = DS_DTYPE_BF16, .blocks = DS_DTYPE_Q4_0}, 7},
        {{.name = "blocks_untied", .dtype = DS_DTYPE_BF16, .blocks = DS_DTYPE_Q5_1}, 7},
        {{.name = "blocks_tied",
          .dtype = DS_DTYPE_F32,
          .blocks = DS_DTYPE_Q4_K, /* q5_0: rows are short */
          .cells = DS_DTYPE_I8},
         5},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        same_bits_in(*state, &cases[i].how, cases[i].every);
    }
}

/* Requests 4, 10 … have the source of the one before them, and another adapter. */
static void same_bits_with_adapters(void **state)
{
    static const struct {
        served how;
        size_t every;
    } cases[] = {
        {{.name = "t5",
          .dtype = DS_DTYPE_F32,
          .adapters = {"t5/adapters/encoder", "adapter/t5_lora/end"}},
         4},
        {{.name = "t5_untied",
          .dtype = DS_DTYPE_BF16,
          .adapters = {"adapter/t5_all/start", "adapter/t5_all/end"}},
         7},
        {{.name = "blocks_untied",
          .dtype = DS_DTYPE_F32,
          .blocks = DS_DTYPE_Q8_0,
          .adapters = {"t5/adapters/blocks", "t5/adapters/blocks"}},
         7},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; ++i) {
        same_bits_in(*state, &cases[i].how, cases[i].every);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(same_bits),
                                       cmocka_unit_test(same_bits_in_blocks),
                                       cmocka_unit_test(same_bits_with_adapters)};
    return cmocka_run_group_tests(tests, check_set_up, check_tear_down);
}
