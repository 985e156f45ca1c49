/* SPDX-License-Identifier: Apache-2.0 */
/* Reading members of a tokenizer.json: each of the kind that it must be, or an error that names it.
 *
 * Called by what reads its components: tokenizer_components.c, tokenizer_model.c,
 * tokenizer_after.c.
 */
#include "data/tokenizer_form.h"

#include <string.h>

bool dsi_form_text(const json_t *object, const char *key, const char **text_out, size_t *n_out)
{
    const json_t *value = json_object_get(object, key);
    if (!json_is_string(value)) {
        return false;
    }
    *text_out = json_string_value(value);
    *n_out = json_string_length(value);
    return true;
}

ds_status dsi_form_list(ds_tokenizer *tok, const char *path, const json_t *object, const char *key)
{
    const json_t *list = json_object_get(object, key);
    bool whole = json_is_array(list);
    for (size_t i = 0; whole && i < json_array_size(list); ++i) {
        whole = json_is_object(json_array_get(list, i));
    }
    return whole ? DS_OK
                 : ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: \"%s\" must be a list of objects", path,
                           key);
}

const char *dsi_form_type(const json_t *component)
{
    const char *type = json_string_value(json_object_get(component, "type"));
    return type != NULL ? type : "";
}

/* A member that must be there, true or false. */
ds_status dsi_form_flag(ds_tokenizer *tok, const char *path, const json_t *object, const char *key,
                        bool *out)
{
    const json_t *value = json_object_get(object, key);
    *out = json_is_true(value);
    if (!json_is_boolean(value)) {
        const char *name = json_string_value(json_object_get(object, "content"));
        return ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: \"%s\" of %s%.60s must be true or false", path,
                       key, name != NULL ? "the added token " : "",
                       name != NULL ? name : dsi_form_type(object));
    }
    return DS_OK;
}

/* A member that may be absent. */
ds_status dsi_form_flag_or(ds_tokenizer *tok, const char *path, const json_t *object,
                           const char *key, bool otherwise, bool *out)
{
    if (json_object_get(object, key) == NULL) {
        *out = otherwise;
        return DS_OK;
    }
    return dsi_form_flag(tok, path, object, key, out);
}

/* A member that may be absent or null. */
ds_status dsi_form_option(ds_tokenizer *tok, const char *path, const json_t *object,
                          const char *key, bool otherwise, bool *out)
{
    if (json_is_null(json_object_get(object, key))) {
        *out = otherwise;
        return DS_OK;
    }
    return dsi_form_flag_or(tok, path, object, key, otherwise, out);
}

/* A string of the file, kept in the arena. */
ds_status dsi_form_keep(ds_tokenizer *tok, const char *path, const char *text, size_t n,
                        const char **kept_out)
{
    *kept_out = dsi_arena_strndup(tok->arena, text, n);
    return *kept_out != NULL ? DS_OK : ds_fail(tok->ctx, DS_ERR_NOMEM, "%s: no memory", path);
}

ds_status dsi_form_keep_member(ds_tokenizer *tok, const char *path, const json_t *object,
                               const char *key, const char **text_out, size_t *n_out)
{
    const char *text;
    if (!dsi_form_text(object, key, &text, n_out)) {
        return ds_fail(tok->ctx, DS_ERR_FORMAT, "%s: %s lacks the text \"%s\"", path,
                       dsi_form_type(object), key);
    }
    return dsi_form_keep(tok, path, text, *n_out, text_out);
}

ds_status dsi_form_unsupported(ds_tokenizer *tok, const char *path, const char *part,
                               const char *name, const char *known)
{
    return ds_fail(tok->ctx, DS_ERR_UNSUPPORTED, "%s: the %s \"%.80s\" is not supported; known: %s",
                   path, part, name, known);
}
