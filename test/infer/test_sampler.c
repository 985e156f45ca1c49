/* SPDX-License-Identifier: Apache-2.0 */
/* The sampler refuses logits of which any is not finite, wherever it stands and however it draws.
 */
#include "common/check.h"
#include "infer/sampler.h"

#include <math.h>

enum { N = 37 };

static void refuses_what_is_not_finite(void **state)
{
    static const float wrong[] = {NAN, INFINITY, -INFINITY};
    static const ds_sampling ways[] = {{.temperature = 0.0},
                                       {.temperature = 1.0, .seed = 3},
                                       {.temperature = 0.7, .top_k = 5, .seed = 3},
                                       {.temperature = 0.7, .top_p = 0.5, .seed = 3}};
    float logits[N];
    uint32_t order[N];
    float weight[N];
    for (int i = 0; i < N; ++i) {
        logits[i] = (float)((i * 17) % N) / 4.0f;
    }
    for (size_t way = 0; way < sizeof ways / sizeof ways[0]; ++way) {
        uint32_t id = N;
        CHECK_OK(*state, dsi_sample(*state, logits, N, &ways[way], 9, order, weight, &id));
        assert_true(id < N);
        for (int i = 0; i < N; ++i) {
            for (size_t k = 0; k < sizeof wrong / sizeof wrong[0]; ++k) {
                const float kept = logits[i];
                logits[i] = wrong[k];
                CHECK_FAILS(*state,
                            dsi_sample(*state, logits, N, &ways[way], 9, order, weight, &id),
                            DS_ERR_NUMERIC, "logits are not finite");
                logits[i] = kept;
            }
        }
    }
}

static int set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.level = DS_LOG_ERROR;
    params.n_threads = 1;
    return ds_ctx_create(&params, (ds_ctx **)state) < 0;
}

static int tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(refuses_what_is_not_finite)};
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
