/* SPDX-License-Identifier: Apache-2.0 */
/* Configurations of tests, from their text; the context is the test's state. */
#ifndef DS_TEST_CONFIG_CASE_H
#define DS_TEST_CONFIG_CASE_H

#include <deepspeed/config.h>

int config_set_up(void **state);
int config_tear_down(void **state);

ds_status config_load(ds_ctx *ctx, const char *text, ds_config **config_out);
/* Loads and resolves; *config_out is NULL after an error. */
ds_status config_resolve(ds_ctx *ctx, const char *text, uint32_t world,
                         const ds_trainer_values *trainer, ds_config **config_out);

/* How many notices have the text in them. */
size_t config_n_notices_with(const ds_config *config, const char *text);
bool config_has_notice(const ds_config *config, const char *text);

#endif
