/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of the files of inference engines. Called by config.c in place of those of training. */
#include "config/config_eval.h"

#include <inttypes.h>

/* Of the inference engines' files; in a file of the other kind the items are absent. */
static void inference_ragged(dsi_eval *eval)
{
    static const char *const limits[] = {"state_manager.max_tracked_sequences",
                                         "state_manager.max_ragged_batch_size"};
    const int64_t count = dsi_item_int(eval, "state_manager.max_ragged_sequence_count", 0);
    for (size_t i = 0; i < 2; ++i) {
        const int64_t limit = dsi_item_int(eval, limits[i], INT64_MAX);
        if (count > limit) {
            dsi_item_error(eval, dsi_item_find(eval, "state_manager.max_ragged_sequence_count"),
                           "expected at most %s = %" PRId64 ", found %" PRId64, limits[i], limit,
                           count);
        }
    }
}

static void inference_injection(dsi_eval *eval)
{
    const dsi_item *policy = dsi_item_find(eval, "injection_policy");
    if (dsi_item_given(policy) && dsi_item_true(eval, "replace_with_kernel_inject")) {
        dsi_item_error(eval, policy,
                       "expected none with replace_with_kernel_inject true, found an object; "
                       "remove one of them");
    }
}

void dsi_config_inference_rules(dsi_eval *eval)
{
    inference_ragged(eval);
    inference_injection(eval);
}
