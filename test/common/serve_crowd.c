/* SPDX-License-Identifier: Apache-2.0 */
/* See serve_crowd.h. */
#include "common/serve_crowd.h"

#include "common/check.h"

#include <string.h>

uint32_t crowd_below(uint64_t *seed, uint32_t n)
{
    *seed = *seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)((*seed >> 33) % n);
}

void crowd_ask(asked *a, int64_t vocab, uint64_t seed)
{
    uint32_t shared[CROWD_IDS];
    for (int i = 0; i < CROWD_IDS; ++i) {
        shared[i] = crowd_below(&seed, (uint32_t)vocab);
    }
    for (int k = 0; k < CROWD_REQUESTS; ++k) {
        asked *q = &a[k];
        const size_t same = k % 3 == 0 ? 0 : crowd_below(&seed, CROWD_IDS);
        const bool later = k % 6 == 5; /* the same ids behind another begin */
        q->n = later ? CROWD_IDS : 1 + crowd_below(&seed, CROWD_IDS);
        for (size_t i = 0; i < q->n; ++i) {
            q->ids[i] =
                (later ? i >= 64 : i < same) ? shared[i] : crowd_below(&seed, (uint32_t)vocab);
        }
        q->bias = (ds_serve_bias){crowd_below(&seed, (uint32_t)vocab), 3.0f};
        q->dry = (ds_dry){.multiplier = 0.9,
                          .base = 1.5,
                          .allowed_length = 1,
                          .breakers = &q->bias.id,
                          .n_breakers = 1};
        const bool mirostat = k % 12 == 1;
        q->request = (ds_serve_request){.ids = q->ids,
                                        .n = q->n,
                                        .max_new_tokens = 1 + crowd_below(&seed, CROWD_NEW),
                                        .stop_ids = &q->bias.id,
                                        .n_stop_ids = k % 4 == 0,
                                        .min_new_tokens = k % 8 == 0 ? 9 : 0,
                                        .sampling = {.temperature = k % 2 == 0 ? 0.0 : 0.9,
                                                     .top_p = k % 5 == 0 && !mirostat ? 0.8 : 1.0,
                                                     .top_k = k % 7 == 0 && !mirostat ? 11 : 0,
                                                     .min_p = k % 6 == 5 ? 0.05 : 0.0,
                                                     .typical_p = k % 12 == 9 ? 0.7 : 0.0,
                                                     .mirostat = mirostat ? 1 + k / 12 : 0,
                                                     .tau = 3.0,
                                                     .eta = 0.2,
                                                     .seed = seed},
                                        .repetition = k % 9 == 4 ? 1.3 : 0.0,
                                        .presence = k % 10 == 3 ? 0.5 : 0.0,
                                        .frequency = k % 10 == 7 ? 0.4 : 0.0,
                                        .bias = &q->bias,
                                        .n_bias = k % 3 == 1,
                                        .dry = k % 4 == 2 ? &q->dry : NULL,
                                        .logprobs = true,
                                        .n_top = 3,
                                        .prompt_logprobs = k % 4 == 3,
                                        .n_prompt_top = 2};
    }
}

static int index_of(const uint64_t *uids, uint64_t uid)
{
    int k = 0;
    while (k < CROWD_REQUESTS && uids[k] != uid) {
        ++k;
    }
    return k;
}

static void take(answer *got, const ds_serve_event *e)
{
    assert_true(got->n == 0 || e->prompt == NULL);
    for (int64_t i = 0; e->prompt != NULL && i < e->n_prompt; ++i) {
        const ds_prompt_score *s = &e->prompt[i];
        assert_true(i == 0 ? s->rank == 0 : s->rank >= 1 && s->n_top == 2 && s->logprob < 0.0f);
        got->prompt[i] = s->logprob;
        got->prompt_top[i] = s->top_logprobs[1];
        got->ranks[i] = s->rank;
    }
    assert_true(got->n < CROWD_NEW);
    assert_int_equal(got->finish, DS_SERVE_GOES_ON);
    got->ids[got->n] = e->id;
    got->logprobs[got->n] = e->logprob;
    got->top[got->n] = e->top_logprobs[2];
    got->finish = e->finish;
    got->n += 1;
}

void crowd_serve(ds_ctx *ctx, ds_server *server, const way *w, const asked *a, answer *got)
{
    ds_serve_event events[CROWD_EVENTS];
    uint64_t uids[CROWD_REQUESTS] = {0};
    ds_serve_stats stats;
    int begun = 0;
    size_t n = 0;
    memset(got, 0, CROWD_REQUESTS * sizeof *got);
    for (int step = 0; step < 20000; ++step) {
        if (begun < CROWD_REQUESTS && (step % 3 == 0 || w->backwards)) {
            const int k = w->backwards ? CROWD_REQUESTS - 1 - begun : begun;
            uint64_t stray = 0;
            if (w->cancels) {
                CHECK_OK(ctx,
                         ds_serve_submit(server, &a[(k * 7) % CROWD_REQUESTS].request, &stray));
            }
            CHECK_OK(ctx, ds_serve_submit(server, &a[k].request, &uids[k]));
            if (w->cancels) {
                size_t n_stray = 0;
                CHECK_OK(ctx, ds_serve_step(server, events, &n_stray));
                for (size_t e = 0; e < n_stray; ++e) {
                    const int of = index_of(uids, events[e].uid);
                    if (of < CROWD_REQUESTS) {
                        take(&got[of], &events[e]);
                    }
                    stray = events[e].uid == stray && events[e].finish ? 0 : stray;
                }
                if (stray != 0) {
                    CHECK_OK(ctx, ds_serve_cancel(server, stray));
                    CHECK_FAILS(ctx, ds_serve_cancel(server, stray), DS_ERR_NOT_FOUND, "request");
                }
            }
            ++begun;
        }
        CHECK_OK(ctx, ds_serve_step(server, events, &n));
        for (size_t e = 0; e < n; ++e) {
            const int k = index_of(uids, events[e].uid);
            assert_true(k < CROWD_REQUESTS);
            assert_true(got[k].n > 0 ||
                        a[k].request.prompt_logprobs == (events[e].n_prompt == (int64_t)a[k].n));
            take(&got[k], &events[e]);
        }
        ds_serve_get_stats(server, &stats);
        if (begun == CROWD_REQUESTS && stats.n_running + stats.n_waiting == 0) {
            break;
        }
    }
    assert_int_equal(stats.n_running + stats.n_waiting, 0);
    assert_int_equal(stats.n_free_blocks, stats.n_blocks);
    assert_true(stats.n_accepted <= stats.n_drafted);
    assert_true((w->sizes.max_draft > 0) == (stats.n_drafted > 0));
    const bool tight = w->sizes.kv_tokens == 256;
    assert_true(!tight || stats.n_preemptions > 0);
    if (w->sizes.kv_tokens == 0 && w->sizes.kv_block == 0) {
        assert_true(w->sizes.no_prefix_cache == (stats.n_cached_tokens == 0));
    }
}
