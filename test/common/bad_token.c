/* SPDX-License-Identifier: Apache-2.0 */
#include "common/bad_token.h"
#include "common/check.h"
#include "common/engine_hash.h"
#include "common/small_run.h"

#include <string.h>

typedef struct bad_feed {
    int32_t step, bad; /* the batch with a token that has no row */
    small_batch data;
} bad_feed;

static ds_status next_bad(void *user, ds_batch *batch_out)
{
    bad_feed *feed = user;
    *batch_out = small_feed(feed->step, &feed->data);
    if (feed->step++ == feed->bad) {
        feed->data.data[0][5] = SMALL_VOCABULARY;
    }
    return DS_OK;
}

static ds_status train_split(ds_engine *engine, bad_feed *feed)
{
    for (int64_t i = 0; i < engine->spec.train.accumulation; ++i) {
        ds_batch batch;
        DS_TRY(next_bad(feed, &batch));
        DS_TRY(ds_engine_forward(engine, &batch));
        DS_TRY(ds_engine_backward(engine));
        DS_TRY(ds_engine_step(engine));
    }
    return DS_OK;
}

void bad_token_check(ds_ctx *ctx, const char *folder, const dsi_engine_spec *spec, bool split,
                     const char *what)
{
    uint64_t before = 0, after = 0;
    bad_feed feed = {.bad = -1};
    ds_model *model = small_model(ctx, folder, small_gpt2);
    ds_engine *engine = small_engine(ctx, model, spec);
    CHECK_OK(ctx, ds_engine_train_batch(engine, next_bad, &feed, NULL));
    CHECK_OK(ctx, engine_hash(ctx, engine, &before));
    feed.bad = feed.step;
    const ds_status status =
        split ? train_split(engine, &feed) : ds_engine_train_batch(engine, next_bad, &feed, NULL);
    if (status != DS_ERR_ARG || strstr(ds_ctx_error(ctx), "(embedding/") == NULL) {
        fail_msg("%s: %d, %s", what, (int)status, ds_ctx_error(ctx));
    }
    if (dsi_engine_check_whole(engine, "the test") == DS_OK) {
        CHECK_OK(ctx, engine_hash(ctx, engine, &after));
        if (before != after || engine->micro_step != 0) {
            fail_msg("%s: the engine is whole, and has trained", what);
        }
    }
    ds_engine_destroy(&engine);
    ds_model_destroy(&model);
}
