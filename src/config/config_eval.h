/* SPDX-License-Identifier: Apache-2.0 */
/* One evaluation of a file: from its tree and the option tables to effective values.
 *
 * The stages, in order, each in a file of its own; all add to the same errors and go on:
 *   migrate  old forms of whole sections are rewritten in the tree
 *   sections those that the file lacks and the Trainer has are added to it
 *   walk     each row meets its key: names, types, bounds, what is not built; makes the items
 *   auto     "auto" and the trainer's values
 *   store    items with a field go into ds_config_values
 *   batch    the three batch sizes
 *   rules    what depends on several keys; derived values
 * At loading world_size is 0: "auto" then stays open, and what needs the world size is left out.
 */
#ifndef DSI_CONFIG_EVAL_H
#define DSI_CONFIG_EVAL_H

#include "config/config_diag.h"
#include "config/option.h"

enum { DSI_EVAL_MAX_ITEMS = 20000, DSI_PATH_BYTES = 512 };

/* The effective value of one row at one place. */
typedef struct dsi_item {
    const dsi_option *option;
    const char *path;
    const dsi_node *node;  /* effective value; NULL: the key has none */
    const dsi_node *given; /* what the file says; NULL: nothing, or null */
    ds_config_origin_kind origin;
    const char *detail; /* for people; NULL: by origin */
    bool open;          /* "auto" that is not resolved */
} dsi_item;

typedef struct dsi_eval {
    dsi_arena *arena;
    dsi_diags *diags;
    bool allow_unknown_keys, strict;
    bool for_plan;
    const dsi_section *root;          /* of the kind of file */
    uint32_t world_size;              /* 0 at loading */
    const ds_trainer_values *trainer; /* never NULL */
    dsi_item *items;                  /* room for DSI_EVAL_MAX_ITEMS */
    size_t n_items;
    ds_config_values *values;
    bool trainer_optimizer; /* the file has none, the Trainer's is used */
    dsi_buf usual;          /* flags with the Trainer's defaults that are in force */
    bool no_memory;         /* sticky */
} dsi_eval;

/* The stages. */
void dsi_config_migrate(dsi_eval *eval, dsi_node *root);
void dsi_config_sections(dsi_eval *eval, dsi_node *root);
void dsi_config_walk(dsi_eval *eval, const dsi_node *root);
/* Of walk: reports the keys of an object (NULL: none) that its section has not. */
void dsi_config_unknown(dsi_eval *eval, const dsi_section *section, const dsi_node *object,
                        const char *path);
void dsi_config_auto(dsi_eval *eval);
void dsi_config_auto_flags(dsi_eval *eval);      /* of auto: flags that no key can take */
void dsi_config_sections_origin(dsi_eval *eval); /* of auto: where added values come from */
void dsi_config_sections_flags(dsi_eval *eval);  /* of auto: flags beside sections of the file */
/* Adds a flag and the Trainer's default that it has to the notice of them. */
void dsi_config_say_usual(dsi_eval *eval, const char *flag, const char *value);
void dsi_config_store(dsi_eval *eval);
/* Of store: how many ranks have samples of their own, which batch and ZeRO count by; and those in
 * words, "the world size" where they are all. */
void dsi_config_data_ranks(dsi_eval *eval);
const char *dsi_config_data_text(const dsi_eval *eval);
void dsi_config_batch(dsi_eval *eval);
/* Of batch: what elasticity.enabled makes of the triple. True: nothing is left to derive. */
bool dsi_config_elastic(dsi_eval *eval);
void dsi_config_rules(dsi_eval *eval);
void dsi_config_optimizer(dsi_eval *eval); /* of rules, as the next ones: scheduler too */
void dsi_config_ranks(dsi_eval *eval);     /* ZeRO's communication, sub-groups */
void dsi_config_routing(dsi_eval *eval);   /* routers of experts */
void dsi_config_memory(dsi_eval *eval);    /* offload, recomputation */
void dsi_config_comms_logger(dsi_eval *eval);
void dsi_config_autotuning(dsi_eval *eval);
void dsi_config_zenflow(dsi_eval *eval);
void dsi_config_onebit(dsi_eval *eval);
void dsi_config_autocast(dsi_eval *eval);
/* Whether weights and gradients travel between ranks in the compute dtype by it. */
bool dsi_config_autocast_travels(const dsi_eval *eval);
void dsi_config_pipeline(dsi_eval *eval);
void dsi_config_compression(dsi_eval *eval);
void dsi_config_tensor(dsi_eval *eval);
/* In place of batch and rules. */
void dsi_config_inference_rules(dsi_eval *eval, const dsi_node *root);
/* The table of each kind of file, and the kind that most of a file's keys are of. */
extern const dsi_section *const dsi_config_roots[];
ds_config_kind dsi_config_guess(const dsi_node *root);

/* Checks a value against its row; gives the node to use (the same, or a converted one), or NULL
 * after an error. lax: DeepSpeed coerces in this section. Called by walk. */
const dsi_node *dsi_option_check(dsi_eval *eval, const dsi_option *option, const dsi_node *given,
                                 bool lax, const char *path);
/* The same without words, for a value that is not from the file; NULL: the row does not take it. */
const dsi_node *dsi_option_value(dsi_eval *eval, const dsi_option *option, const dsi_node *given);
/* Appends what a row accepts: "a whole number from 0 to 3". */
void dsi_option_expected(dsi_buf *buf, const dsi_option *option);

/* The item of a path, NULL when no row has it here. */
dsi_item *dsi_item_find(const dsi_eval *eval, const char *path);
/* Whether the file gives the item a value (not null, not an open "auto"). */
bool dsi_item_given(const dsi_item *item);
/* The effective value of a path, where it is of this kind; else false, absent, NULL. */
bool dsi_item_true(const dsi_eval *eval, const char *path);
int64_t dsi_item_int(const dsi_eval *eval, const char *path, int64_t absent);
const char *dsi_item_text(const dsi_eval *eval, const char *path);
/* Sets the effective value. node NULL counts as out of memory. detail is borrowed. */
void dsi_item_set(dsi_eval *eval, dsi_item *item, const dsi_node *node,
                  ds_config_origin_kind origin, const char *detail);
/* Adds an error at the item's place; item may be NULL (then about the file as a whole). */
void dsi_item_error(dsi_eval *eval, const dsi_item *item, const char *format, ...) DS_PRINTF(3, 4);
void dsi_item_notice(dsi_eval *eval, const dsi_item *item, const char *format, ...) DS_PRINTF(3, 4);
/* printf into the arena; "" without memory. */
const char *dsi_eval_text(dsi_eval *eval, const char *format, ...) DS_PRINTF(2, 3);

/* A dtype by any of DeepSpeed's names; false when it is none. */
bool dsi_dtype_parse(const char *text, ds_dtype *dtype_out);

#endif
