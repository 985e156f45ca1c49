/* SPDX-License-Identifier: Apache-2.0 */
/* Memory of model states by ZeRO's formula (MiCS: over its groups; hpZ: with the second copy), and
 * activations that grow with the micro-batch: for programs that no planner knows. Parameters and
 * activations come from autotuning.model_info or from one run of the program. See tune_impl.h.
 */
#include "tune/tune_impl.h"

#include <stdlib.h>
#include <string.h>

/* A number of the configuration; 0: not there, or no number ("auto"). */
static double number(const dsi_tune *t, const char *key)
{
    const ds_config_item *item = ds_config_find(t->options_config, key);
    return item != NULL ? strtod(item->value, NULL) : 0.0;
}

bool dsi_tune_formula(const dsi_tune *t, const dsi_tune_candidate *c, dsi_prediction *out)
{
    const ds_config_item *halves[] = {ds_config_find(t->options_config, "bf16.enabled"),
                                      ds_config_find(t->options_config, "fp16.enabled")};
    const double shard = number(t, "zero_optimization.mics_shard_size");
    const double second = number(t, "zero_optimization.zero_hpz_partition_size");
    const double n = c->stage >= 3 && shard >= 1.0 ? shard : (double)t->n_data_ranks;
    bool half = false;
    if (t->n_params <= 0.0) {
        return false;
    }
    for (size_t i = 0; i < 2; ++i) {
        half = half || (halves[i] != NULL && strcmp(halves[i]->value, "true") == 0);
    }
    const double whole = half ? 2.0 : 4.0;
    const double params = c->stage >= 3 ? whole / n + (second > 1.0 ? whole / second : 0.0) : whole;
    const double grads = (half ? 2.0 : 4.0) / (c->stage >= 2 ? n : 1.0);
    const double states = (half ? 12.0 : 8.0) / (c->stage >= 1 ? n : 1.0);
    const double accumulator = c->accumulation > 1 ? 4.0 / (c->stage >= 2 ? n : 1.0) : 0.0;
    *out = (dsi_prediction){.need = (size_t)(t->n_params * (params + grads + states + accumulator) +
                                             t->activation_bytes * (double)c->micro_batch)};
    return true;
}
