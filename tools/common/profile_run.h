/* SPDX-License-Identifier: Apache-2.0 */
/* ds_bench --profile: measures this machine, alone or with the ranks of a job, and writes the
 * device profile that ds_plan --device takes. */
#ifndef DS_TOOLS_PROFILE_RUN_H
#define DS_TOOLS_PROFILE_RUN_H

#include "comm/comm.h"

typedef struct profile_options {
    const char *file;   /* written by rank 0; NULL: no profile is asked for */
    const char *name;   /* of the profile; NULL: the host's name */
    const char *folder; /* where the disk is measured; NULL: it is not */
} profile_options;

/* Collective over the job when this process is one of several ranks (launched): all of them measure
 * at once, each with its share of the host's cores. */
ds_status profile_run(ds_ctx *ctx, const profile_options *options, bool launched);

#endif
