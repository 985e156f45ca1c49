/* JSON texts. See json_load.h. */
#include "io/json_load.h"

ds_status dsi_json_load(ds_ctx *ctx, const char *label, const char *text, size_t n, size_t flags,
                        ds_status status, json_t **root_out)
{
    json_error_t error = {0};
    json_t *root = json_loadb(text, n, flags | JSON_REJECT_DUPLICATES, &error);
    if (root != NULL) {
        *root_out = root;
        return DS_OK;
    }
    /* jansson leaves the text empty when an allocation failed */
    if (error.text[0] == '\0' || json_error_code(&error) == json_error_out_of_memory) {
        return ds_fail(ctx, DS_ERR_NOMEM, "out of memory reading %s", label);
    }
    return ds_fail(ctx, status, "%s:%d:%d: %s", label, error.line, error.column, error.text);
}
