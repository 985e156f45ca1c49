/* SPDX-License-Identifier: Apache-2.0 */
/* Keys that no row has. Called by the walk for each section of the file; see config_eval.h.
 *
 * Below a known section one is an error: DeepSpeed refuses it, or passes it to an optimizer or a
 * schedule that does. At the top level of a training configuration DeepSpeed does not read it: a
 * likely slip of the pen (near a known key, or the key of a section) is an error, else it is noted.
 */
#include "config/config_eval.h"

#include "base/nearest.h"
#include <string.h>

static const dsi_option *find_row(const dsi_section *section, const char *name)
{
    for (uint32_t i = 0; i < section->n_rows; ++i) {
        if (dsi_option_has_name(&section->rows[i], name)) {
            return &section->rows[i];
        }
    }
    return NULL;
}

/* The first section, in order of the tables, that has the key; NULL when none has. */
static const dsi_section *owner_of(const dsi_section *section, const char *name)
{
    for (uint32_t i = 0; i < section->n_rows; ++i) {
        const dsi_option *row = &section->rows[i];
        if (row->section == NULL) {
            continue;
        }
        if (find_row(row->section, name) != NULL) {
            return row->section;
        }
        const dsi_section *deeper = owner_of(row->section, name);
        if (deeper != NULL) {
            return deeper;
        }
    }
    return NULL;
}

static void offer_names(dsi_eval *eval, dsi_nearest *nearest, const dsi_option *row)
{
    char name[64];
    dsi_nearest_offer(nearest, row->key);
    for (int i = 0; row->aliases != NULL && dsi_choice_at(row->aliases, i, name, sizeof name);
         ++i) {
        const char *copy = dsi_arena_strdup(eval->arena, name);
        if (copy != NULL) {
            dsi_nearest_offer(nearest, copy);
        }
    }
}

/* What people call a remark is no slip, whatever it is near ("comet"). */
static bool is_remark(const char *key)
{
    return key[0] == '_' || key[0] == '/' || key[0] == '#' ||
           dsi_choice_index("comment|comments|description|note|notes", key, true) >= 0;
}

/* What to do about an unknown key; NULL: nothing is near it. *slip_out: it looks misspelt or
 * misplaced, and not merely like a longer name with a known one in it. */
static const char *remedy_of(dsi_eval *eval, const dsi_section *section, const char *key,
                             bool *slip_out)
{
    dsi_nearest nearest = {.word = key};
    for (uint32_t i = 0; i < section->n_rows; ++i) {
        offer_names(eval, &nearest, &section->rows[i]);
    }
    *slip_out = true;
    const dsi_section *owner = owner_of(eval->root, key);
    if (nearest.best == NULL || nearest.distance > 2) {
        if (owner != NULL) {
            return dsi_eval_text(eval, "it belongs in \"%s\"", owner->path);
        }
        if (find_row(eval->root, key) != NULL) {
            return "it belongs at the top level";
        }
    }
    *slip_out = dsi_nearest_is_slip(&nearest);
    return nearest.best != NULL ? dsi_eval_text(eval, "did you mean \"%s\"?", nearest.best) : NULL;
}

static void unknown_key(dsi_eval *eval, const dsi_section *section, const dsi_node *child,
                        const char *path)
{
    bool is_slip = false;
    const char *remedy = remedy_of(eval, section, child->key, &is_slip);
    const bool is_free =
        section == &dsi_section_root && !eval->strict && (!is_slip || is_remark(child->key));
    remedy = is_remark(child->key) ? NULL : remedy;
    const bool is_notice = eval->allow_unknown_keys || is_free;
    if (remedy == NULL) {
        remedy = is_free ? "DeepSpeed does not read it either"
                         : "no key is near it; remove it, or pass --allow_unknown_keys";
    }
    (is_notice ? dsi_notice_at : dsi_error_at)(
        eval->diags, child->key_line, child->key_column,
        dsi_eval_text(eval, "%s%s%s", path, path[0] != '\0' ? "." : "", child->key),
        "unknown key%s; %s", is_notice ? ", not read" : "", remedy);
}

void dsi_config_unknown(dsi_eval *eval, const dsi_section *section, const dsi_node *object,
                        const char *path)
{
    if (object == NULL || (section->flags & DSI_SECTION_OPEN) != 0) {
        return;
    }
    for (const dsi_node *child = object->first; child != NULL; child = child->next) {
        const bool is_flag =
            (section->flags & DSI_SECTION_LAX) != 0 && strcmp(child->key, "strict") == 0;
        if (find_row(section, child->key) == NULL && !is_flag) {
            unknown_key(eval, section, child, path);
        }
    }
}
