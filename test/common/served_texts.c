/* SPDX-License-Identifier: Apache-2.0 */
/* See served_texts.h. */
#include "common/served_texts.h"

#include "common/check.h"

#include <math.h>

size_t served_ids(const json_t *row, const char *name, uint32_t *ids)
{
    const json_t *list = json_object_get(row, name);
    assert_true(json_array_size(list) > 0 && json_array_size(list) <= SERVED_IDS);
    for (size_t i = 0; i < json_array_size(list); ++i) {
        ids[i] = (uint32_t)json_integer_value(json_array_get(list, i));
    }
    return json_array_size(list);
}

static void expect(const json_t *text, size_t at, const ds_serve_event *e, const char *key,
                   double most)
{
    const json_t *ids = json_object_get(text, "ids");
    const double want = json_number_value(json_array_get(json_object_get(text, key), at));
    const json_int_t id = json_integer_value(json_array_get(ids, at));
    if ((json_int_t)e->id != id || !(fabs((double)e->logprob - want) < most)) {
        fail_msg("id %zu: %u with %f, expected %lld with %f", at, e->id, (double)e->logprob,
                 (long long)id, want);
    }
}

void served_texts_expect(ds_ctx *ctx, ds_server *server, const served_text *texts, size_t n,
                         const char *key, double most)
{
    uint64_t uids[SERVED_TEXTS];
    size_t at[SERVED_TEXTS] = {0};
    ds_serve_event events[4 * SERVED_TEXTS];
    ds_serve_stats stats;
    size_t n_events = 0;
    assert_true(n <= SERVED_TEXTS);
    for (size_t i = 0; i < n; ++i) {
        uint32_t source[SERVED_IDS];
        uint32_t made[SERVED_IDS];
        const ds_serve_request r = {.ids = source,
                                    .n = served_ids(texts[i].text, "source", source),
                                    .max_new_tokens =
                                        (int64_t)served_ids(texts[i].text, "ids", made),
                                    .logprobs = true,
                                    .adapter = texts[i].adapter};
        CHECK_OK(ctx, ds_serve_submit(server, &r, &uids[i]));
    }
    do {
        CHECK_OK(ctx, ds_serve_step(server, events, &n_events));
        assert_true(n_events <= sizeof events / sizeof *events);
        for (size_t e = 0; e < n_events; ++e) {
            size_t k = 0;
            while (k < n && uids[k] != events[e].uid) {
                ++k;
            }
            assert_true(k < n);
            expect(texts[k].text, at[k]++, &events[e], key, most);
        }
        ds_serve_get_stats(server, &stats);
    } while (stats.n_running + stats.n_waiting > 0);
    for (size_t i = 0; i < n; ++i) {
        assert_int_equal(at[i], json_array_size(json_object_get(texts[i].text, "ids")));
    }
    assert_int_equal(stats.n_free_blocks, stats.n_blocks);
}
