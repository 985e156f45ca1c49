/* SPDX-License-Identifier: Apache-2.0 */
#include "common/check.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

void check_fails(ds_ctx *ctx, ds_status got, ds_status want, const char *text, const char *call)
{
    if (got != want) {
        fail_msg("%s: got %s, want %s (%s)", call, ds_status_name(got), ds_status_name(want),
                 ds_ctx_error(ctx));
    }
    if (strstr(ds_ctx_error(ctx), text) == NULL) {
        fail_msg("%s: message lacks \"%s\": %s", call, text, ds_ctx_error(ctx));
    }
}

int check_set_up(void **state)
{
    return ds_ctx_create(NULL, (ds_ctx **)state) < 0 ? -1 : 0;
}

int check_tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

ds_ctx *check_ctx(uint32_t n_threads)
{
    ds_ctx_params params = ds_ctx_params_default();
    ds_ctx *ctx = NULL;
    params.n_threads = n_threads;
    assert_int_equal(ds_ctx_create(&params, &ctx), DS_OK);
    return ctx;
}

bool check_long_row(size_t i)
{
    const char *text = getenv("DS_TEST_BRIEF");
    const unsigned long every = text != NULL ? strtoul(text, NULL, 10) : 1;
    return every <= 1 || i % every == 0;
}

double check_relative_difference(const float *got, const float *want, size_t n)
{
    double difference = 0.0;
    double reference = 0.0;
    for (size_t i = 0; i < n; ++i) {
        const double d = fabs((double)got[i] - (double)want[i]);
        difference = d > difference || isnan(d) ? d : difference;
        const double r = fabs((double)want[i]);
        reference = r > reference ? r : reference;
    }
    return reference > 0.0 ? difference / reference : difference;
}
