/* SPDX-License-Identifier: Apache-2.0 */
/* Fuzzer of the configuration: any bytes are read, checked, and resolved when they are right. Build
 * with clang -fsanitize=fuzzer,address,undefined; seeds: test/golden/config/. */
#include "config/config_values.h"

#include <deepspeed/context.h>
#include <stdlib.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void drop_line(void *user, ds_log_level level, const char *line)
{
    (void)user;
    (void)level;
    (void)line;
}

static ds_trainer_values all_known(void)
{
    return (ds_trainer_values){
        .micro_batch = ds_known(2),
        .gradient_accumulation_steps = ds_known(1),
        .learning_rate = ds_known(1e-3),
        .weight_decay = ds_known(0.1),
        .adam_beta1 = ds_known(0.9),
        .adam_beta2 = ds_known(0.95),
        .adam_epsilon = ds_known(1e-8),
        .max_grad_norm = ds_known(1),
        .warmup_steps = ds_known(10),
        .total_steps = ds_known(100),
        .fp16 = ds_known(0),
        .bf16 = ds_known(1),
        .hidden_size = ds_known(64),
    };
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ds_ctx_params params = ds_ctx_params_default();
    params.n_threads = 1;
    params.log = drop_line;
    ds_ctx *ctx = NULL;
    if (ds_ctx_create(&params, &ctx) < 0) {
        return 0;
    }
    const ds_config_params load = {.allow_unknown_keys = size % 2 == 0};
    const ds_trainer_values trainer = all_known();
    ds_config *config = NULL;
    if (ds_config_load_text(ctx, "fuzz", (const char *)data, size, &load, &config) >= 0 &&
        ds_config_resolve(config, 1 + (uint32_t)(size % 3), &trainer) >= 0) {
        const ds_config_values *values = dsi_config_values(config);
        for (int64_t updates = 0; updates < 20; updates += 7) {
            (void)ds_schedule_at(&values->scheduler, values->optimizer.lr, updates);
        }
        char *text = NULL;
        if (ds_config_print(config, size % 2 == 0, &text) >= 0) {
            free(text);
        }
    }
    ds_config_destroy(&config);
    ds_ctx_destroy(&ctx);
    return 0;
}
