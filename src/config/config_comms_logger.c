/* SPDX-License-Identifier: Apache-2.0 */
/* Rules of the section comms_logger. Called by config_rules.c as one of its rules. */
#include "config/config_eval.h"

#include "base/nearest.h"
#include <deepspeed/comm.h>
#include <string.h>

/* comms_logger.prof_ops: DeepSpeed's names of operations. Those that none of ours answers to are
 * never called here. */
void dsi_config_comms_logger(dsi_eval *eval)
{
    static const struct {
        const char *name;
        uint32_t op;
    } names[] = {{"all_reduce", DS_COMM_ALL_REDUCE},
                 {"all_reduce_coalesced", DS_COMM_ALL_REDUCE},
                 {"inference_all_reduce", DS_COMM_ALL_REDUCE},
                 {"reduce_scatter", DS_COMM_REDUCE_SCATTER},
                 {"reduce_scatter_tensor", DS_COMM_REDUCE_SCATTER},
                 {"all_gather", DS_COMM_ALL_GATHER},
                 {"all_gather_into_tensor", DS_COMM_ALL_GATHER},
                 {"all_gather_coalesced", DS_COMM_ALL_GATHER},
                 {"broadcast", DS_COMM_BROADCAST},
                 {"all_to_all", DS_COMM_ALL_TO_ALL},
                 {"all_to_all_single", DS_COMM_ALL_TO_ALL},
                 {"send", DS_COMM_SEND},
                 {"isend", DS_COMM_SEND},
                 {"recv", DS_COMM_RECV},
                 {"irecv", DS_COMM_RECV},
                 {"barrier", DS_COMM_BARRIER},
                 {"monitored_barrier", DS_COMM_BARRIER},
                 {"reduce", DS_COMM_OP_COUNT},
                 {"gather", DS_COMM_OP_COUNT},
                 {"scatter", DS_COMM_OP_COUNT},
                 {"all_gather_object", DS_COMM_OP_COUNT},
                 {"broadcast_object_list", DS_COMM_OP_COUNT}};
    const size_t n = sizeof names / sizeof names[0];
    const dsi_item *item = dsi_item_find(eval, "comms_logger.prof_ops");
    const dsi_node *list = item != NULL ? item->node : NULL;
    ds_config_comms_logger *log = &eval->values->comms_logger;
    bool right = true;
    log->prof_ops = 0;
    for (const dsi_node *node = list != NULL ? list->first : NULL; node != NULL;
         node = node->next) {
        dsi_nearest nearest = {.word = node->as.text};
        size_t i = 0;
        while (i < n && strcmp(names[i].name, node->as.text) != 0) {
            dsi_nearest_offer(&nearest, names[i++].name);
        }
        right = right && i < n;
        if (i == n) {
            dsi_item_error(eval, item, "expected names of operations, found \"%.40s\"%s%s%s",
                           node->as.text, nearest.best != NULL ? "; did you mean \"" : "",
                           nearest.best != NULL ? nearest.best : "",
                           nearest.best != NULL ? "\"?" : "");
        } else if (names[i].op == DS_COMM_OP_COUNT) {
            dsi_item_notice(eval, item, "%s is never called here", names[i].name);
        } else {
            log->prof_ops |= 1u << names[i].op;
        }
    }
    if (right && log->enabled && !log->prof_all && log->prof_ops == 0) {
        dsi_item_error(eval, item,
                       "expected an operation to log, or comms_logger.prof_all true, found "
                       "neither; add one");
    }
}
