/* SPDX-License-Identifier: Apache-2.0 */
/* Rules about memory: what lives on the host or on disk between its uses, what is computed again.
 * Called by config_rules.c as one of its rules. */
#include "config/config_eval.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* The accelerator is chosen later. */
#define IN_HOST_MEMORY                                                                             \
    "in force beside an accelerator with memory of its own; on others (cpu) it is in host memory " \
    "already, and device_memory sets a limit to what is not"

/* DeepSpeed passes over offload below the stage that it needs. */
static void offload_to(dsi_eval *eval, const char *section, ds_config_offload *given,
                       int64_t least_stage)
{
    char path[128];
    const int64_t stage = eval->values->zero.stage;
    (void)snprintf(path, sizeof path, "zero_optimization.%s.device", section);
    const dsi_item *item = dsi_item_find(eval, path);
    if (given->device == DS_OFFLOAD_NONE || item == NULL) {
        return;
    }
    if (stage < least_stage && given->device == DS_OFFLOAD_CPU) {
        given->device = DS_OFFLOAD_NONE;
        dsi_item_notice(eval, item, "no effect below zero_optimization.stage %" PRId64,
                        least_stage);
    } else if (stage < least_stage) {
        dsi_item_error(eval, item,
                       "expected zero_optimization.stage %" PRId64
                       " or above with it, found stage %" PRId64 "; change one of them",
                       least_stage, stage);
    } else if (given->device == DS_OFFLOAD_NVME && given->nvme_path == NULL) {
        dsi_item_error(eval, item, "expected nvme_path with nvme, a folder on the disk to use");
    } else if (given->device == DS_OFFLOAD_CPU && eval->values->device_memory <= 0) {
        dsi_item_notice(eval, item, IN_HOST_MEMORY);
    }
}

static bool has_empty_name(const char *folders)
{
    const size_t n = strlen(folders);
    return n == 0 || folders[0] == ',' || folders[n - 1] == ',' || strstr(folders, ",,") != NULL;
}

/* Lists of folders, which a scratch file is striped over. */
static void disk_folders(dsi_eval *eval)
{
    const ds_config_values *v = eval->values;
    const struct {
        const char *path;
        const char *given;
        bool used;
    } places[] = {
        {"zero_optimization.offload_optimizer.nvme_path", v->zero.offload_optimizer.nvme_path,
         v->zero.offload_optimizer.device == DS_OFFLOAD_NVME},
        {"zero_optimization.offload_param.nvme_path", v->zero.offload_param.nvme_path,
         v->zero.offload_param.device == DS_OFFLOAD_NVME},
        {"activation_checkpointing.nvme_path", v->activation_checkpointing.nvme_path, true},
        {"sequence_parallel.nvme_path", v->sequence_path, true},
    };
    for (size_t i = 0; i < sizeof places / sizeof places[0]; ++i) {
        if (!places[i].used || places[i].given == NULL) {
            continue;
        }
        const dsi_item *item = dsi_item_find(eval, places[i].path);
        uint32_t n = 1;
        for (const char *at = places[i].given; *at != '\0'; ++at) {
            n += *at == ',';
        }
        if (has_empty_name(places[i].given)) {
            dsi_item_error(eval, item, "expected folders with commas between them, found \"%s\"",
                           places[i].given);
        } else if (n > DS_CONFIG_MAX_FOLDERS) {
            dsi_item_error(eval, item, "expected at most %d folders, found %" PRIu32,
                           DS_CONFIG_MAX_FOLDERS, n);
        }
    }
}

static void offload(dsi_eval *eval)
{
    offload_to(eval, "offload_param", &eval->values->zero.offload_param, 3);
    offload_to(eval, "offload_optimizer", &eval->values->zero.offload_optimizer, 1);
    const dsi_item *ratio = dsi_item_find(eval, "zero_optimization.offload_optimizer.ratio");
    eval->values->zero.offload_optimizer.ratio_given = dsi_item_given(ratio);
    if (dsi_item_given(ratio) && dsi_node_real(ratio->node) < 1 && eval->values->zero.stage != 3) {
        dsi_item_error(eval, ratio,
                       "expected zero_optimization.stage 3 with a ratio below 1, found stage "
                       "%" PRId64 "; change one of them",
                       eval->values->zero.stage);
    }
}

/* DeepSpeed's own has stage 3 alone. Updates of a micro-batch that is not the last would have to
 * be undone for sure. */
static void super_offload(dsi_eval *eval)
{
    const ds_config_values *v = eval->values;
    const ds_config_offload *states = &v->zero.offload_optimizer;
    const dsi_item *item = dsi_item_find(eval, "zero_optimization.offload_optimizer.super_offload");
    if (!states->super_offload) {
        return;
    }
    if (v->zero.stage != 3) {
        dsi_item_error(eval, item,
                       "expected zero_optimization.stage 3 with it, found stage %" PRId64
                       "; change one of them",
                       v->zero.stage);
    } else if (states->device != DS_OFFLOAD_CPU) {
        dsi_item_error(eval, item,
                       "expected offload_optimizer.device cpu with it: it updates what lives in "
                       "host memory");
    } else if (states->cpuadam_cores <= 0.0) {
        dsi_item_error(eval, item, "expected cpuadam_cores_perc above 0 with it");
    } else if (v->batch.gradient_accumulation_steps > 1) {
        dsi_item_error(eval, item,
                       "expected gradient_accumulation_steps 1 with it, found %" PRId64
                       ": an update ahead of the last micro-batch is not built; without it updates "
                       "run on the host behind the norm",
                       v->batch.gradient_accumulation_steps);
    } else if (v->zero.zenflow.enabled) {
        dsi_item_error(eval, item, "expected no zero_optimization.zenflow with it; leave one away");
    }
}

static const dsi_item *kept_item(dsi_eval *eval, const char *key)
{
    char path[128];
    (void)snprintf(path, sizeof path, "activation_checkpointing.%s", key);
    return dsi_item_find(eval, path);
}

/* Keys of one way of recomputing beside another, and two keys for one thing. number_checkpoints is
 * DeepSpeed's, whose models ask for recomputation in their code. */
static void recompute_keys(dsi_eval *eval)
{
    const ds_config_activation_checkpointing *a = &eval->values->activation_checkpointing;
    const bool full = a->recompute == DS_RECOMPUTE_FULL || a->recompute == DS_RECOMPUTE_AUTO;
    const bool some = a->recompute == DS_RECOMPUTE_SELECTIVE || a->recompute == DS_RECOMPUTE_AUTO;
    const dsi_item *interval = kept_item(eval, "interval");
    const dsi_item *number = kept_item(eval, "number_checkpoints");
    if (a->interval > 1 && a->number_checkpoints > 0) {
        dsi_item_error(eval, interval,
                       "expected one of interval and number_checkpoints, found both; remove one");
    } else if (a->interval > 1 && !full) {
        dsi_item_notice(eval, interval, "no effect without recompute full");
    } else if (a->number_checkpoints > 0 && !full) {
        dsi_item_notice(eval, number, "no effect without recompute full");
    }
    if (a->operators != NULL && !some) {
        dsi_item_notice(eval, kept_item(eval, "operators"),
                        "no effect without recompute selective");
    } else if (a->operators != NULL && a->operators[0] == '\0') {
        dsi_item_error(eval, kept_item(eval, "operators"),
                       "expected names of operators with commas between them, found none");
    }
    if (a->cpu_checkpointing && a->nvme_path != NULL) {
        dsi_item_error(eval, kept_item(eval, "nvme_path"),
                       "expected one of nvme_path and cpu_checkpointing, found both; remove one");
    }
}

/* DeepSpeed asserts it once a model asks for recomputation, not when it reads the file. */
static void activation_checkpointing(dsi_eval *eval)
{
    const ds_config_activation_checkpointing *a = &eval->values->activation_checkpointing;
    recompute_keys(eval);
    if (a->recompute == DS_RECOMPUTE_AUTO && eval->values->device_memory <= 0 && !eval->for_plan) {
        dsi_item_error(
            eval, dsi_item_find(eval, "activation_checkpointing.recompute"),
            "expected device_memory with auto, the bytes that a rank may use; set it, or "
            "say none, selective or full");
    }
    if (a->cpu_checkpointing && a->nvme_path == NULL && eval->values->device_memory <= 0) {
        dsi_item_notice(eval, dsi_item_find(eval, "activation_checkpointing.cpu_checkpointing"),
                        IN_HOST_MEMORY);
    }
    if (a->contiguous_memory_optimization &&
        (!a->partition_activations || a->number_checkpoints < 0)) {
        dsi_item_notice(
            eval, dsi_item_find(eval, "activation_checkpointing.contiguous_memory_optimization"),
            "DeepSpeed wants partition_activations true and number_checkpoints with it; here "
            "memory is planned either way");
    }
}

void dsi_config_memory(dsi_eval *eval)
{
    offload(eval);
    super_offload(eval);
    disk_folders(eval);
    activation_checkpointing(eval);
}
