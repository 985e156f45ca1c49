/* SPDX-License-Identifier: Apache-2.0 */
/* See job_name.h. */
#include "comm/job_name.h"

#include "comm/launcher_note.h"
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

static const char *const words[] = {"DS_JOB_SECRET", "DS_RESTART_COUNT", "MASTER_ADDR",
                                    "MASTER_PORT",   "PMIX_NAMESPACE",   "SLURM_JOB_ID",
                                    "SLURM_STEP_ID", "PMI_PORT",         "TORCHELASTIC_RUN_ID"};

enum { N_WORDS = sizeof words / sizeof words[0], SECRET = 0, RESTARTS = 1 };

/* Of ranks that nothing names the parent is the same. */
void dsi_job_name(char name[DSI_JOB_NAME_BYTES])
{
    const char *launcher = getenv(DSI_LAUNCHER_VARIABLE);
    const size_t n = DSI_JOB_NAME_BYTES;
    size_t used = (size_t)snprintf(name, n, "uid %u", (unsigned)geteuid());
    bool any = false;
    if (launcher != NULL && launcher[0] != '\0') {
        (void)snprintf(name + used, n - used, " launcher %.200s", launcher);
        return;
    }
    for (size_t i = 0; i < N_WORDS; ++i) {
        const char *text = getenv(words[i]);
        if (text != NULL && used < n) {
            used += (size_t)snprintf(name + used, n - used, " %s=%.200s", words[i], text);
            any = any || i != RESTARTS; /* it tells attempts apart, not jobs */
        }
    }
    if (!any && used < n) {
        (void)snprintf(name + used, n - used, " parent %d", (int)getppid());
    }
}

void dsi_job_card(char card[DSI_JOB_CARD_BYTES])
{
    size_t used = 0;
    for (size_t i = SECRET + 1; i < N_WORDS; ++i) { /* the secret is not shown */
        const char *text = getenv(words[i]);
        used += (size_t)snprintf(card + used, DSI_JOB_CARD_BYTES - used, "%s=%.80s\n", words[i],
                                 text != NULL ? text : "");
    }
}
