/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of pipelines. Called by config_rules.c as one of its rules, behind those of the sections
 * that they look at. */
#include "config/config_eval.h"

#include <inttypes.h>
#include <string.h>

enum { MOST_CHUNKS = 8 }; /* 2 ranks of a pipeline have 16 stages, which are the most */

static void refuse(dsi_eval *eval, const char *with, const char *why)
{
    dsi_item_error(eval, dsi_item_find(eval, "pipeline.stages"),
                   "expected 1 with %s, found %" PRIu32 ": %s; change one of them", with,
                   eval->values->pipeline_stages, why);
}

static void partition(dsi_eval *eval)
{
    const char *how = dsi_item_text(eval, "pipeline.partition");
    const bool uniform = how != NULL && strcmp(how, "uniform") == 0;
    eval->values->pipeline_uniform = uniform;
    if (how != NULL && !uniform && strcmp(how, "best") != 0 && strcmp(how, "parameters") != 0) {
        dsi_item_error(eval, dsi_item_find(eval, "pipeline.partition"),
                       "expected \"best\", \"parameters\" or \"uniform\", found \"%s\"", how);
    }
}

/* Chunks of layers are what "interleaved" is about. */
static void chunks(dsi_eval *eval)
{
    const char *schedule = dsi_item_text(eval, "pipeline.schedule");
    const bool interleaved = schedule != NULL && strcmp(schedule, "interleaved") == 0;
    const dsi_item *item = dsi_item_find(eval, "pipeline.chunks");
    const int64_t n = dsi_item_int(eval, "pipeline.chunks", interleaved ? 2 : 1);
    eval->values->pipeline_chunks = interleaved && n >= 2 && n <= MOST_CHUNKS ? (uint32_t)n : 1;
    if (interleaved ? n < 2 || n > MOST_CHUNKS : n != 1) {
        dsi_item_error(eval, item, "expected %s, found %" PRId64 "; change it or pipeline.schedule",
                       interleaved ? "2 to 8 with \"interleaved\""
                                   : "1 with a schedule that is not \"interleaved\"",
                       n);
    }
}

/* What stages do not go with. */
void dsi_config_pipeline(dsi_eval *eval)
{
    const ds_config_values *v = eval->values;
    partition(eval);
    chunks(eval);
    if (v->pipeline_stages < 2) {
        return;
    }
    if (v->activation_checkpointing.nvme_path != NULL ||
        (v->activation_checkpointing.cpu_checkpointing && v->device_memory > 0)) {
        refuse(eval, "offloaded activations",
               "they are stored for one micro-batch, and several are in flight");
    }
    if (v->zero.zenflow.enabled) {
        refuse(eval, "zero_optimization.zenflow", "its updates are not dealt to stages");
    }
    if (dsi_config_is_onebit(v->optimizer.kind)) {
        refuse(eval, ds_optimizer_kind_name(v->optimizer.kind),
               "its states are not dealt to stages");
    }
    if (v->compression != NULL) {
        refuse(eval, "compression_training", "its masks are not dealt to stages");
    }
    if (v->flops_profiler.enabled) {
        refuse(eval, "flops_profiler", "it would see the operations of one stage alone");
    }
}
