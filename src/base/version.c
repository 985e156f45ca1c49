/* SPDX-License-Identifier: Apache-2.0 */
/* The version of this library, and the check of reserved words. See include/deepspeed/version.h. */
#include "base/reserved.h"

uint32_t ds_version(void)
{
    return DS_VERSION;
}

const char *ds_version_text(void)
{
    return DS_VERSION_TEXT;
}

ds_status dsi_reserved_check(ds_ctx *ctx, const char *type, const uint64_t *words, size_t n)
{
    for (size_t i = 0; i < n; ++i) {
        if (words[i] != 0) {
            return ds_fail(
                ctx, DS_ERR_ARG,
                "%s: its reserved words are not zero: it has a field of a newer version "
                "than this library's, %s, or was not initialised; update the library, or "
                "set the struct to {0} first",
                type, DS_VERSION_TEXT);
        }
    }
    return DS_OK;
}
