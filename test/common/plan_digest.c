/* SPDX-License-Identifier: Apache-2.0 */
/* See plan_digest.h. */
#include "common/plan_digest.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

ds_status plan_digest(const dsi_plan *plan, uint64_t *digest_out)
{
    char *text = NULL;
    DS_TRY(dsi_plan_print(plan, &text));
    *digest_out = XXH3_64bits(text, strlen(text));
    free(text);
    return DS_OK;
}
