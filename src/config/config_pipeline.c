/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of pipelines. Called by config_rules.c as one of its rules, behind those of the sections
 * that they look at. */
#include "config/config_eval.h"

#include <inttypes.h>
#include <string.h>
#include <strings.h>

enum { MOST_CHUNKS = 8 }; /* 2 ranks of a pipeline have 16 stages, which are the most */

static void refuse(dsi_eval *eval, const char *with, const char *why)
{
    dsi_item_error(eval, dsi_item_find(eval, "pipeline.stages"),
                   "expected 1 with %s, found %" PRIu32 ": %s; change one of them", with,
                   eval->values->pipeline_stages, why);
}

/* In the order of dsi_stage_partition, the last of which is a type. */
static void partition(dsi_eval *eval)
{
    static const char *const names[] = {"parameters", "uniform", "profile"};
    enum { N = sizeof names / sizeof *names, TYPE = sizeof "type:" - 1 };
    const char *how = dsi_item_text(eval, "pipeline.partition");
    how = how == NULL || strcmp(how, "best") == 0 ? names[0] : how;
    if (strncasecmp(how, "type:", TYPE) == 0 && how[TYPE] != '\0') {
        eval->values->pipeline_partition = N;
        eval->values->pipeline_type = how + TYPE;
        return;
    }
    for (int i = 0; i < N; ++i) {
        if (strcasecmp(how, names[i]) == 0) {
            eval->values->pipeline_partition = i;
            return;
        }
    }
    dsi_item_error(eval, dsi_item_find(eval, "pipeline.partition"),
                   "expected \"best\", \"parameters\", \"uniform\", \"profile\" or "
                   "\"type:REGEX\", found \"%s\"",
                   how);
}

/* How many chunks of layers a rank has is the schedule's business. */
static void chunks(dsi_eval *eval)
{
    static const struct {
        const char *schedule;
        int64_t least, most;
        const char *expected;
    } rows[] = {
        {"interleaved", 2, MOST_CHUNKS, "2 to 8 with \"interleaved\""},
        {"auto", 1, MOST_CHUNKS, "\"auto\" or 1 to 8 with \"auto\""},
        {"zb-v", 2, 2, "2 with \"zb-v\", a rank's layers on the way down and on the way back"},
        {NULL, 1, 1, "1 with a schedule that is not \"interleaved\""}};
    const char *schedule = dsi_item_text(eval, "pipeline.schedule");
    uint32_t i = 0;
    while (rows[i].schedule != NULL &&
           (schedule == NULL || strcmp(rows[i].schedule, schedule) != 0)) {
        ++i;
    }
    const int64_t n = dsi_item_int(eval, "pipeline.chunks", rows[i].least);
    const bool right = n >= rows[i].least && n <= rows[i].most;
    eval->values->pipeline_chunks = right ? (uint32_t)n : 1;
    if (!right) {
        dsi_item_error(eval, dsi_item_find(eval, "pipeline.chunks"),
                       "expected %s, found %" PRId64 "; change it or pipeline.schedule",
                       rows[i].expected, n);
    }
}

/* What is left to a planner. */
static void open_keys(dsi_eval *eval)
{
    const dsi_item *stages = dsi_item_find(eval, "pipeline.stages");
    const char *schedule = dsi_item_text(eval, "pipeline.schedule");
    const bool by_stages = stages != NULL && stages->given != NULL &&
                           dsi_node_is_text(stages->given, "auto") && eval->world_size > 1;
    const bool by_schedule = schedule != NULL && strcmp(schedule, "auto") == 0;
    eval->values->pipeline_open = by_stages || (by_schedule && eval->values->pipeline_stages > 1);
    if (by_schedule) {
        eval->values->pipeline_schedule = 0; /* 1f1b */
    }
}

/* What stages do not go with. */
void dsi_config_pipeline(dsi_eval *eval)
{
    const ds_config_values *v = eval->values;
    open_keys(eval);
    partition(eval);
    chunks(eval);
    if (v->pipeline_stages < 2) {
        return;
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
