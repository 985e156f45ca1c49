/* SPDX-License-Identifier: Apache-2.0 */
/* What a row holds and the chat template does not read: calls, reasoning, tools and documents that
 * would be lost are errors, other members are noted. See schema.h. */
#include "data/schema/schema.h"

#define REMEDY                                                                                     \
    "is not read by the chat template and would be lost: take it out of the row, or choose "       \
    "another template by --chat_template"

/* The names under which templates read a member of a message. */
static bool template_reads(const dsi_jinja *template, const char *key)
{
    static const char *const reasoning[] = {"reasoning_content", "thinking", "reasoning", NULL};
    if (!dsi_schema_is_one_of(key, reasoning)) {
        return dsi_jinja_mentions(template, key);
    }
    return dsi_jinja_mentions(template, "reasoning_content") ||
           dsi_jinja_mentions(template, "thinking") || dsi_jinja_mentions(template, "reasoning");
}

bool dsi_schema_lost_message(const dsi_schema_row *r, const dsi_jinja *template, const char *where,
                             const json_t *message)
{
    static const char *const always[] = {"role", "content", NULL};
    static const char *const lost[] = {"tool_calls", "function_call", "reasoning_content",
                                       "reasoning",  "thinking",      "prefix",
                                       NULL};
    const char *key;
    json_t *value;
    json_object_foreach((json_t *)(uintptr_t)message, key, value)
    {
        if (template == NULL || dsi_schema_is_empty(value) || dsi_schema_is_one_of(key, always) ||
            template_reads(template, key)) {
            continue;
        }
        if (dsi_schema_is_one_of(key, lost)) {
            return dsi_schema_refuse(r, DS_ERR_UNSUPPORTED, "%s\"%s\" " REMEDY, where, key);
        }
        dsi_schema_note(r, "a message's ", key);
    }
    return true;
}

bool dsi_schema_lost_context(const dsi_schema_row *r, const dsi_jinja *template,
                             const json_t *context)
{
    static const char *const lists[] = {"tools", "documents", NULL};
    const char *key;
    json_t *value;
    for (const char *const *name = lists; *name != NULL && template != NULL; ++name) {
        if (json_array_size(json_object_get(context, *name)) > 0 &&
            !dsi_jinja_mentions(template, *name)) {
            char column[DSI_COLUMN_NAME];
            return dsi_schema_refuse(r, DS_ERR_UNSUPPORTED, "\"%s\" " REMEDY,
                                     dsi_columns_name(r->params, *name, column));
        }
    }
    json_object_foreach(json_object_get(context, "chat_template_kwargs"), key, value)
    {
        if (template != NULL && !dsi_jinja_mentions(template, key)) {
            dsi_schema_note(r, "chat_template_kwargs' ", key);
        }
    }
    return true;
}
