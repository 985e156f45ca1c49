/* SPDX-License-Identifier: Apache-2.0 */
/* Waiting for ranks that have not joined, with lines that name them. See rendezvous.h. */
#include "comm/rendezvous_client.h"

#include "comm/launcher_note.h"
#include "comm/meet_wait.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define SLICE_SECONDS 1.0

/* Who has not joined ("" when all have), the first of them, and the lowest other rank that has. */
static ds_status ask_missing(dsi_rdv *rdv, char *text, size_t n, uint32_t *first_out,
                             uint32_t *lowest_out)
{
    rdv_frame answer;
    uint8_t *value = NULL;
    const ds_status status =
        rdv_request(rdv, RDV_MISSING, NULL, (rdv_frame){0}, ASK_SECONDS, true, &answer, &value);
    if (status == DS_OK) {
        (void)snprintf(text, n, "%s", (const char *)value);
        *first_out = (uint32_t)answer.number;
        *lowest_out = answer.rank;
    }
    free(value);
    return status;
}

ds_status dsi_rdv_get_from(dsi_rdv *rdv, uint32_t from, const char *key, double timeout,
                           void **value_out, size_t *n_out)
{
    dsi_meet_wait wait = dsi_meet_wait_begin(timeout);
    for (;;) {
        rdv_frame answer;
        uint8_t *value = NULL;
        char who[4 * DSI_RDV_TEXT_BYTES] = "";
        uint32_t missing = from;
        uint32_t lowest = rdv->rank;
        const double left = dsi_meet_wait_left(&wait);
        const double slice = left < SLICE_SECONDS ? left : SLICE_SECONDS;
        const ds_status status =
            rdv_request(rdv, RDV_WAIT, key, (rdv_frame){0}, slice, true, &answer, &value);
        if (status == DS_OK) {
            *value_out = value;
            *n_out = answer.value_bytes;
        }
        if (status != DS_IN_PROGRESS) {
            return status;
        }
        const bool over = dsi_meet_wait_over(&wait);
        if (!over && !dsi_meet_wait_due(&wait)) {
            continue;
        }
        DS_TRY(ask_missing(rdv, who, sizeof who, &missing, &lowest));
        if (who[0] == '\0') {
            missing = from;
            (void)snprintf(who, sizeof who, "rank %u (it has joined, not more)", from);
        }
        if (over) {
            dsi_launcher_report_absent(missing, timeout);
            return ds_fail(rdv->ctx, DS_ERR_PEER,
                           "%s: did not join within %g s: is it started, does it get as far as the "
                           "others? DEEPSPEED_TIMEOUT (minutes) sets how long is waited",
                           who, timeout);
        }
        if (rdv->rank <= lowest) { /* one says it for all */
            dsi_meet_wait_say(rdv->ctx, &wait, rdv->rank, who);
        }
    }
}

ds_status dsi_rdv_wait_for_another(dsi_rdv *rdv)
{
    char who[4 * DSI_RDV_TEXT_BYTES];
    uint32_t missing = rdv->rank;
    uint32_t lowest = rdv->rank;
    for (;;) {
        const ds_status status = ask_missing(rdv, who, sizeof who, &missing, &lowest);
        if (status < 0 || lowest != rdv->rank) {
            return status < 0 ? status : DS_OK;
        }
        (void)nanosleep(&(struct timespec){.tv_nsec = 50000000}, NULL);
    }
}
