/* SPDX-License-Identifier: Apache-2.0 */
/* Sections that the file lacks and the Trainer has: `optimizer` as --optim says, `scheduler` as
 * --lr_scheduler_type does, with its defaults AdamW and a line to 0. Called by config.c before the
 * walk, which then meets them as if they stood in the file, each value "auto"; and by
 * config_auto_flags.c for flags that contradict a section of the file.
 *
 * What is added has no place (line 0). Names are those of transformers (training_args.py,
 * trainer_utils.py); only optimizers whose update is one of ours are mapped.
 */
#include "config/config_eval.h"
#include "config/config_read.h"

#include <stdio.h>
#include <string.h>

typedef struct trainer_optimizer {
    const char *names; /* of --optim */
    const char *type;  /* ours; NULL: none */
    const char *keys;  /* of params, that flags fill */
    const char *off;   /* switches of params that the Trainer sets to false; NULL: none */
    int64_t bits;      /* optim_bits of params; 0: none */
} trainer_optimizer;

static const trainer_optimizer optimizers[] = {
    {"adamw_torch|adamw_torch_fused|adamw_torch_xla|adamw_torch_npu_fused|adamw_apex_fused",
     "AdamW", "lr|betas|eps|weight_decay", NULL, 0},
    {"sgd", "SGD", "lr|weight_decay", NULL, 0},
    {"adagrad", "Adagrad", "lr|weight_decay", NULL, 0},
    {"lion_32bit|paged_lion_32bit", "Lion", "lr|betas|weight_decay", NULL, 0},
    {"adafactor", "Adafactor", "lr|weight_decay", "scale_parameter|relative_step", 0},
    {"schedule_free_adamw", "AdamWScheduleFree", "lr|betas|eps|weight_decay|warmup_steps", NULL, 0},
    {"adamw_8bit|adamw_bnb_8bit|paged_adamw_8bit", "AdamW8bit", "lr|betas|eps|weight_decay",
     "embeddings_8bit", 0},
    {"ademamix|paged_ademamix_32bit", "AdEMAMix", "lr|betas|eps|weight_decay", NULL, 0},
    {"ademamix_8bit|paged_ademamix_8bit", "AdEMAMix", "lr|betas|eps|weight_decay",
     "embeddings_8bit", 8},
    {"adamw_hf|adamw_anyprecision|adamw_torch_4bit|adamw_torch_8bit|"
     "lion_8bit|paged_adamw_32bit|paged_lion_8bit|"
     "rmsprop|rmsprop_bnb|rmsprop_bnb_8bit|rmsprop_bnb_32bit|galore_adamw|galore_adamw_8bit|"
     "galore_adafactor|galore_adamw_layerwise|galore_adamw_8bit_layerwise|"
     "galore_adafactor_layerwise|lomo|adalomo|grokadamw|schedule_free_radam|schedule_free_sgd|"
     "apollo_adamw|apollo_adamw_layerwise|stable_adamw",
     NULL, NULL, NULL, 0},
};
static const char built_optimizers[] = "adamw_torch, adamw_torch_fused, adamw_torch_xla, "
                                       "adamw_torch_npu_fused, adamw_apex_fused, sgd, adagrad, "
                                       "lion_32bit, paged_lion_32bit, adafactor, "
                                       "schedule_free_adamw, adamw_8bit, adamw_bnb_8bit, "
                                       "paged_adamw_8bit, ademamix, paged_ademamix_32bit, "
                                       "ademamix_8bit, paged_ademamix_8bit";

/* The Trainer's names are those of our table; "none" is no schedule. */
static const char built_schedules[] =
    "linear, cosine, cosine_with_restarts, cosine_with_min_lr, cosine_warmup_with_min_lr, "
    "polynomial, constant, constant_with_warmup, inverse_sqrt, warmup_stable_decay, none";

static const trainer_optimizer *find_optimizer(const char *name)
{
    for (size_t i = 0; i < sizeof optimizers / sizeof optimizers[0]; ++i) {
        if (dsi_choice_index(optimizers[i].names, name, false) >= 0) {
            return &optimizers[i];
        }
    }
    return NULL;
}

/* The flag's, AdamW without it, and after an error, which then is the only one. */
static const trainer_optimizer *chosen_optimizer(dsi_eval *eval)
{
    const char *name = eval->trainer->optim != NULL ? eval->trainer->optim : "adamw_torch";
    const trainer_optimizer *found = find_optimizer(name);
    if (found != NULL && found->type != NULL) {
        return found;
    }
    dsi_item_error(eval, NULL, "--optim: expected one of %s, found \"%.40s\"%s", built_optimizers,
                   name, found != NULL ? ", which is not built" : "");
    return &optimizers[0];
}

/* ---- sections that are added ----------------------------------------------------------------- */

static dsi_node *put(dsi_eval *eval, dsi_node *object, const char *key, dsi_node *value)
{
    if (value == NULL || object == NULL) {
        eval->no_memory = true;
        return NULL;
    }
    value->key = key;
    dsi_node_add(object, value);
    return value;
}

/* An empty params of a section with this type; NULL: no memory. */
static dsi_node *add_section(dsi_eval *eval, dsi_node *root, const char *key, const char *type)
{
    dsi_node *section = put(eval, root, key, dsi_node_make(eval->arena, DSI_NODE_OBJECT));
    (void)put(eval, section, "type", dsi_node_make_text(eval->arena, type));
    return put(eval, section, "params", dsi_node_make(eval->arena, DSI_NODE_OBJECT));
}

static void add_auto(dsi_eval *eval, dsi_node *params, const char *key)
{
    (void)put(eval, params, dsi_arena_strdup(eval->arena, key),
              dsi_node_make_text(eval->arena, "auto"));
}

static void add_optimizer(dsi_eval *eval, dsi_node *root)
{
    const trainer_optimizer *o = chosen_optimizer(eval);
    char key[32];
    dsi_node *params = add_section(eval, root, "optimizer", o->type);
    for (int i = 0; dsi_choice_at(o->keys, i, key, sizeof key); ++i) {
        add_auto(eval, params, key);
    }
    for (int i = 0; o->off != NULL && dsi_choice_at(o->off, i, key, sizeof key); ++i) {
        (void)put(eval, params, dsi_arena_strdup(eval->arena, key),
                  dsi_node_make_bool(eval->arena, false));
    }
    if (o->bits > 0) {
        (void)put(eval, params, "optim_bits", dsi_node_make_int(eval->arena, o->bits));
    }
    eval->trainer_optimizer = true;
}

/* A parameter that --lr_scheduler_kwargs may name: what no other flag fills. */
static bool takes(const dsi_section *section, const char *key)
{
    for (uint32_t i = 0; i < section->n_rows; ++i) {
        const dsi_option *row = &section->rows[i];
        if ((row->flags & DSI_OPT_TRAINER) == 0 && strcmp(row->key, key) == 0) {
            return true;
        }
    }
    return false;
}

/* The members of --lr_scheduler_kwargs become those of params. */
static void add_kwargs(dsi_eval *eval, const char *type, const dsi_section *section,
                       dsi_node *params)
{
    const char *text = eval->trainer->lr_scheduler_kwargs;
    dsi_diags own = {.name = "--lr_scheduler_kwargs", .arena = eval->arena};
    dsi_node *given = text != NULL ? dsi_config_read(&own, text, strlen(text)) : NULL;
    eval->no_memory = eval->no_memory || own.no_memory;
    if (own.n_errors > 0) {
        dsi_item_error(eval, NULL, "%s", own.errors[0].text);
        return;
    }
    for (dsi_node *child = given != NULL ? given->first : NULL, *next; child != NULL;
         child = next) {
        next = child->next;
        child->next = NULL;
        child->line = child->column = child->key_line = child->key_column = 0;
        if (takes(section, child->key)) {
            dsi_node_add(params, child);
        } else {
            dsi_item_error(eval, NULL, "--lr_scheduler_kwargs: \"%.40s\" is no parameter of %s",
                           child->key, type);
        }
    }
}

/* The section of one of the Trainer's types; that of linear after an error. */
static const dsi_section *schedule_section(dsi_eval *eval, const char **type)
{
    const dsi_variant *variant = dsi_scheduler_variant(*type);
    const bool known = variant != NULL && variant->section != NULL &&
                       (variant->section->flags & DSI_SECTION_TRAINER) != 0;
    if (!known) {
        dsi_item_error(eval, NULL, "--lr_scheduler_type: expected one of %s, found \"%.40s\"%s",
                       built_schedules, *type,
                       variant != NULL && variant->section == NULL ? ", which is not built" : "");
        *type = "linear";
        variant = dsi_scheduler_variant(*type);
    }
    return variant->section;
}

static void add_scheduler(dsi_eval *eval, dsi_node *root, const char *type)
{
    const char *given = type;
    const dsi_section *section = schedule_section(eval, &type);
    dsi_node *params = add_section(eval, root, "scheduler", type);
    for (uint32_t i = 0; i < section->n_rows && params != NULL; ++i) {
        if ((section->rows[i].flags & DSI_OPT_TRAINER) != 0) {
            add_auto(eval, params, section->rows[i].key);
        }
    }
    if (params != NULL && given == type) {
        add_kwargs(eval, type, section, params);
    }
}

/* The optimizer goes without a schedule. */
static bool goes_without(const dsi_node *root)
{
    const dsi_node *section = dsi_node_find(root, "optimizer");
    const bool is = section != NULL && section->kind == DSI_NODE_OBJECT;
    const dsi_node *type = is ? dsi_node_find(section, "type") : NULL;
    return type != NULL && type->kind == DSI_NODE_TEXT &&
           dsi_optimizer_variant(type->as.text) == dsi_optimizer_variant("AdamWScheduleFree");
}

/* The type that a missing section gets; NULL: none, and the rate is constant. */
static const char *chosen_schedule(dsi_eval *eval, const dsi_node *root)
{
    const ds_trainer_values *t = eval->trainer;
    const char *asked = t->lr_scheduler_type;
    if (goes_without(root) && (asked == NULL || strcmp(asked, "constant") == 0)) {
        if (asked == NULL && t->fill_sections && t->total_steps.known) {
            dsi_notice_at(eval->diags, 0, 0, "scheduler",
                          "AdamWScheduleFree goes without a schedule, and none is added; the "
                          "Trainer's default would be linear beside it, unless "
                          "--lr_scheduler_type constant is given");
        }
        return NULL;
    }
    if (t->lr_scheduler_type != NULL) {
        return strcmp(t->lr_scheduler_type, "none") != 0 ? t->lr_scheduler_type : NULL;
    }
    return t->fill_sections && t->total_steps.known ? "linear" : NULL;
}

/* Without a type nothing of params is in force, nor in DeepSpeed. */
static void notice_typeless(dsi_eval *eval, const dsi_node *root, const char *name)
{
    const dsi_node *section = dsi_node_find(root, name);
    const bool is = section != NULL && section->kind == DSI_NODE_OBJECT;
    const dsi_node *type = is ? dsi_node_find(section, "type") : NULL;
    const dsi_node *params = is ? dsi_node_find(section, "params") : NULL;
    char path[32];
    if (params != NULL && (type == NULL || type->kind == DSI_NODE_NULL)) {
        (void)snprintf(path, sizeof path, "%s.params", name);
        dsi_notice_at(eval->diags, params->key_line, params->key_column, path,
                      "without a \"type\" beside it nothing of it is in force");
    }
}

void dsi_config_sections(dsi_eval *eval, dsi_node *root)
{
    notice_typeless(eval, root, "optimizer");
    notice_typeless(eval, root, "scheduler");
    if (eval->world_size == 0) {
        return;
    }
    if ((eval->trainer->optim != NULL || eval->trainer->fill_sections) &&
        dsi_node_find(root, "optimizer") == NULL) {
        add_optimizer(eval, root);
    }
    const char *schedule =
        dsi_node_find(root, "scheduler") == NULL ? chosen_schedule(eval, root) : NULL;
    if (schedule != NULL) {
        add_scheduler(eval, root, schedule);
    }
}

/* ---- where their values come from ------------------------------------------------------------ */

static void explain(dsi_eval *eval, dsi_item *item)
{
    const ds_trainer_values *t = eval->trainer;
    const bool optim = strcmp(item->path, "optimizer.type") == 0;
    const bool type = strcmp(item->path, "scheduler.type") == 0;
    const bool of_optim = strncmp(item->path, "optimizer.", 10) == 0;
    const char *flag = of_optim ? "--optim"
                       : type   ? "--lr_scheduler_type"
                                : "--lr_scheduler_kwargs";
    item->origin = DS_ORIGIN_AUTO;
    item->detail = flag;
    if ((optim && t->optim == NULL) || (type && t->lr_scheduler_type == NULL)) {
        item->detail = "the Trainer's default";
        dsi_config_say_usual(eval, flag, optim ? "adamw_torch" : "linear");
    }
}

void dsi_config_sections_origin(dsi_eval *eval)
{
    for (size_t i = 0; i < eval->n_items; ++i) {
        dsi_item *item = &eval->items[i];
        const bool added = item->given != NULL && item->given->line == 0 && !item->open &&
                           item->origin == DS_ORIGIN_FILE;
        if (added && (strncmp(item->path, "optimizer.", 10) == 0 ||
                      strncmp(item->path, "scheduler.", 10) == 0)) {
            explain(eval, item);
        }
    }
}

/* ---- flags beside a section of the file ------------------------------------------------------ */

/* The file's own section wins; a flag that means the same is in force. */
static bool is_same_optimizer(const dsi_eval *eval, const char *type)
{
    const trainer_optimizer *o = find_optimizer(eval->trainer->optim);
    const bool same = o != NULL && o->type != NULL &&
                      dsi_optimizer_variant(o->type) == dsi_optimizer_variant(type);
    const bool decoupled =
        strcasecmp(type, "adamw") == 0 || dsi_item_true(eval, "optimizer.params.adam_w_mode");
    return same && (strcmp(o->type, "AdamW") != 0 || decoupled);
}

/* Pairs that mean the same, and equal names; transformers documents the first two. */
static bool is_same_schedule(const char *flag, const char *type)
{
    static const char *const pairs[][2] = {{"linear", "WarmupDecayLR"},
                                           {"constant_with_warmup", "WarmupLR"},
                                           {"cosine", "WarmupCosineLR"}};
    for (size_t i = 0; i < sizeof pairs / sizeof pairs[0]; ++i) {
        if (strcmp(flag, pairs[i][0]) == 0 && strcmp(type, pairs[i][1]) == 0) {
            return true;
        }
    }
    return strcmp(flag, type) == 0;
}

static void contradicts(dsi_eval *eval, const char *path, const char *flag, const char *value)
{
    const dsi_item *item = dsi_item_find(eval, path);
    dsi_item_error(
        eval, item,
        "the file and the flag %s disagree: \"%.40s\" here, %.100s by the flag; drop the "
        "flag, or the section",
        flag, item->node->as.text, value);
}

void dsi_config_sections_flags(dsi_eval *eval)
{
    const ds_trainer_values *t = eval->trainer;
    const char *optimizer = dsi_item_text(eval, "optimizer.type");
    const char *schedule = dsi_item_text(eval, "scheduler.type");
    const dsi_item *type = dsi_item_find(eval, "scheduler.type");
    const bool own_schedule = schedule != NULL && type->given->line != 0;
    if (t->optim != NULL && optimizer != NULL && !eval->trainer_optimizer &&
        !is_same_optimizer(eval, optimizer)) {
        contradicts(eval, "optimizer.type", "--optim", t->optim);
    }
    if (t->lr_scheduler_type != NULL && own_schedule &&
        !is_same_schedule(t->lr_scheduler_type, schedule)) {
        contradicts(eval, "scheduler.type", "--lr_scheduler_type", t->lr_scheduler_type);
    }
    if (t->lr_scheduler_kwargs == NULL) {
        return;
    }
    if (own_schedule) {
        contradicts(eval, "scheduler.type", "--lr_scheduler_kwargs", t->lr_scheduler_kwargs);
    } else if (schedule == NULL) {
        dsi_item_error(
            eval, NULL,
            "--lr_scheduler_kwargs is not in force: without a schedule the learning rate "
            "is constant; give --lr_scheduler_type, or drop the flag");
    }
}
