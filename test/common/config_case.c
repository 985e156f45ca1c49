/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of tests. See config_case.h. */
#include "common/config_case.h"

#include "common/check.h"

#include <string.h>

int config_set_up(void **state)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    return ds_ctx_create(&params, (ds_ctx **)state);
}

int config_tear_down(void **state)
{
    ds_ctx_destroy((ds_ctx **)state);
    return 0;
}

ds_status config_load(ds_ctx *ctx, const char *text, ds_config **config_out)
{
    return ds_config_load_text(ctx, "ds.json", text, strlen(text), NULL, config_out);
}

ds_status config_resolve(ds_ctx *ctx, const char *text, uint32_t world,
                         const ds_trainer_values *trainer, ds_config **config_out)
{
    *config_out = NULL;
    DS_TRY(config_load(ctx, text, config_out));
    const ds_status status = ds_config_resolve(*config_out, world, trainer);
    if (status < 0) {
        ds_config_destroy(config_out);
    }
    return status;
}

size_t config_n_notices_with(const ds_config *config, const char *text)
{
    size_t n = 0;
    for (size_t i = 0; i < ds_config_n_notices(config); ++i) {
        n += strstr(ds_config_notice(config, i), text) != NULL;
    }
    return n;
}

bool config_has_notice(const ds_config *config, const char *text)
{
    return config_n_notices_with(config, text) > 0;
}
