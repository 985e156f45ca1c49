/* SPDX-License-Identifier: Apache-2.0 */
/* See job_name.h. */
#include "comm/job_name.h"

#include "comm/launcher_note.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <xxhash.h>

static const char *const words[] = {DSI_CARD_SECRET, "DS_RESTART_COUNT", "MASTER_ADDR",
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
    const char *launcher = getenv(DSI_LAUNCHER_VARIABLE);
    const char *secret = getenv(words[SECRET]);
    char digest[40] = "";
    if (secret != NULL && secret[0] != '\0') { /* it is not shown */
        (void)snprintf(digest, sizeof digest, "(digest %08x)",
                       (unsigned)XXH3_64bits_withSeed(secret, strlen(secret), 13));
    }
    size_t used =
        (size_t)snprintf(card, DSI_JOB_CARD_BYTES, "%s=%.80s\n%s=%s\n", DSI_LAUNCHER_VARIABLE,
                         launcher != NULL ? launcher : "", DSI_CARD_SECRET, digest);
    for (size_t i = SECRET + 1; i < N_WORDS; ++i) {
        const char *text = getenv(words[i]);
        used += (size_t)snprintf(card + used, DSI_JOB_CARD_BYTES - used, "%s=%.80s\n", words[i],
                                 text != NULL ? text : "");
    }
}

bool dsi_job_card_differs(const char *of_0, const char *of_rank, uint32_t rank, char *text_out,
                          size_t n)
{
    while (*of_0 != '\0' && *of_rank != '\0') {
        const size_t a = strcspn(of_0, "\n");
        const size_t b = strcspn(of_rank, "\n");
        if (a != b || memcmp(of_0, of_rank, a) != 0) {
            (void)snprintf(text_out, n,
                           "rank %u has %.*s in its environment, rank 0 has %.*s: the variables of "
                           "the launcher are the same on all ranks of a job",
                           rank, (int)b, of_rank, (int)a, of_0);
            return true;
        }
        of_0 += a + (of_0[a] == '\n');
        of_rank += b + (of_rank[b] == '\n');
    }
    return false;
}

void dsi_job_place(char place[DSI_JOB_PLACE_BYTES])
{
    const char *address = getenv("MASTER_ADDR");
    const char *port = getenv("MASTER_PORT");
    place[0] = '\0';
    if (port != NULL && port[0] != '\0') {
        (void)snprintf(place, DSI_JOB_PLACE_BYTES, "place uid %u %.200s port %.40s",
                       (unsigned)geteuid(), address != NULL ? address : "", port);
    }
}
