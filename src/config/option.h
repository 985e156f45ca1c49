/* SPDX-License-Identifier: Apache-2.0 */
/* The option tables: one row a key, one table a section.
 *
 * A row is everything that is known of a key. The tables check a file, fill ds_config_values, print
 * docs/config.md, the JSON Schema and `ds_config explain`. A new key is a new row and no code,
 * unless it depends on other keys: then also a rule in config_rules.c.
 */
#ifndef DSI_CONFIG_OPTION_H
#define DSI_CONFIG_OPTION_H

#include "config/config_node.h"
#include "config/config_values.h"

typedef enum dsi_option_type {
    DSI_OPT_BOOL,
    DSI_OPT_INT,
    DSI_OPT_REAL,
    DSI_OPT_TEXT,
    DSI_OPT_ENUM,     /* one of choices */
    DSI_OPT_DTYPE,    /* an element type in any of DeepSpeed's spellings */
    DSI_OPT_INTS,     /* a list of integers */
    DSI_OPT_REALS,    /* a list of numbers; choices NULL; min/max bound each element */
    DSI_OPT_TEXTS,    /* a list of strings */
    DSI_OPT_LIST,     /* a list of anything */
    DSI_OPT_ANY,      /* any value */
    DSI_OPT_OBJECT,   /* an object whose keys are free */
    DSI_OPT_SECTION,  /* an object with the keys of `section` */
    DSI_OPT_SECTIONS, /* an object of named objects with the keys of `section` */
    DSI_OPT_RECORDS,  /* a list of objects with the keys of `section` */
    DSI_OPT_VARIANT   /* an object whose section `choose` picks */
} dsi_option_type;

/* What a key does in this build. */
typedef enum dsi_force {
    DSI_IN_FORCE,  /* it does what its documentation says */
    DSI_NOT_BUILT, /* asking for it (a value that is not harmless) stops the run by name */
    DSI_ONE_RANK,  /* with one rank it has nothing to do; asking for it on several stops the run */
    DSI_NO_EFFECT, /* cannot matter here: accepted with one line of notice */
    DSI_PART       /* belongs to a feature that another key asks for, and is only checked */
} dsi_force;

enum {
    DSI_OPT_NULLABLE = 1,    /* null is accepted; same as absent */
    DSI_OPT_REQUIRED = 2,    /* its section must have it */
    DSI_OPT_TRAINER = 4,     /* "auto" is resolved by config_auto.c */
    DSI_OPT_AUTO = 8,        /* "auto" is a value of its own */
    DSI_OPT_ANY_CASE = 16,   /* an enumeration in any letter case */
    DSI_OPT_GROUPS = 32,     /* also a list with one value an optimizer group */
    DSI_OPT_ONE_TEXT = 64,   /* of TEXTS: also one string */
    DSI_OPT_ABOVE_MIN = 128, /* min itself is out of range */
    DSI_OPT_IGNORED = 256,   /* deprecated without a successor */
    DSI_OPT_OR_BOOL = 512,   /* of SECTION: also true or false */
    DSI_OPT_SECRET = 1024    /* of TEXT: its value is shown and written nowhere */
};

typedef struct dsi_section dsi_section;

typedef struct dsi_option {
    const char *key;
    dsi_option_type type;
    dsi_force force;
    uint32_t flags;
    const char *def; /* default as JSON; NULL: none */
    double min, max; /* bounds, when has_min, has_max */
    bool has_min, has_max;
    const char *choices;  /* of ENUM: "none|cpu|nvme", the order of its C enum */
    const char *aliases;  /* "a|b": equally good names, accepted silently */
    const char *old;      /* "a|b": deprecated names, accepted with a notice */
    const char *harmless; /* of NOT_BUILT: JSON values that ask for nothing, "1|null" */
    const dsi_section *section;
    const dsi_section *(*choose)(const dsi_node *parent); /* of VARIANT; NULL: nothing to check */
    size_t field; /* offset in ds_config_values + 1; 0: none. BOOL bool, INT int64_t, REAL double,
                     TEXT const char *, ENUM int, DTYPE ds_dtype */
    const char *note; /* why there is no effect; what is not built and what to do instead */
    const char *doc;  /* one or two sentences */
} dsi_option;

enum {
    DSI_SECTION_LAX = 1,      /* DeepSpeed coerces here ("500", "true") and drops "auto" */
    DSI_SECTION_OPEN = 2,     /* unknown keys are kept and not reported */
    DSI_SECTION_FEATURE = 4,  /* its presence asks for a feature: defaults are not listed without */
    DSI_SECTION_TRAINER = 16, /* a schedule of Hugging Face's Trainer, not of DeepSpeed */
    DSI_SECTION_GATED = 8     /* while its key `enabled` is false its keys give no notice */
};

struct dsi_section {
    const char *path;  /* where it stands: "zero_optimization.offload_param"; "" for the root */
    const char *title; /* heading in the docs; NULL: the path */
    const char *doc;
    const dsi_option *rows;
    uint32_t n_rows;
    uint32_t flags;
};

#define DSI_SECTION_ROWS(table) .rows = (table), .n_rows = sizeof(table) / sizeof((table)[0])

/* Rows: KEY, DEFAULT, FORCE, DOC, then .name = value pairs. */
#define DSI_ROW(opt_type, k, d, f, ...)                                                            \
    {                                                                                              \
        .key = (k), .type = DSI_OPT_##opt_type, .def = (d), .force = DSI_##f, .doc = __VA_ARGS__   \
    }
#define DSI_FIELD(member) .field = offsetof(ds_config_values, member) + 1
#define DSI_MIN(v)        .min = (v), .has_min = true
#define DSI_MAX(v)        .max = (v), .has_max = true
#define DSI_WITH(f)       .flags = (f)
#define DSI_NOTE(text)    .note = text

/* The roots: of a training configuration, of the two inference engines' files, and of MII's. */
extern const dsi_section dsi_section_root, dsi_section_inference, dsi_section_inference_v2,
    dsi_section_mii;

/* Sections, in the files table_*.c. */
extern const dsi_section dsi_section_optimizer, dsi_section_scheduler, dsi_section_zero,
    dsi_section_fp16, dsi_section_bf16, dsi_section_amp, dsi_section_autocast,
    dsi_section_data_types, dsi_section_activation, dsi_section_aio, dsi_section_comms_logger,
    dsi_section_tensorboard, dsi_section_csv, dsi_section_wandb, dsi_section_comet,
    dsi_section_flops, dsi_section_timers, dsi_section_checkpoint, dsi_section_nebula,
    dsi_section_eigenvalue, dsi_section_quantize_training, dsi_section_layer_drop,
    dsi_section_curriculum, dsi_section_data_efficiency, dsi_section_elasticity,
    dsi_section_pipeline, dsi_section_sequence, dsi_section_sparse_attention,
    dsi_section_compression, dsi_section_weight_quantization, dsi_section_tensor_parallel,
    dsi_section_expert_parallel, dsi_section_hybrid, dsi_section_compile, dsi_section_autotuning;

/* Variants that exist, for docs and schema: `parent.params` of each type. NULL at the end. */
typedef struct dsi_variant {
    const char *types; /* "adam|adamw" */
    const dsi_section *section;
} dsi_variant;
extern const dsi_variant dsi_optimizer_variants[], dsi_scheduler_variants[];

/* The variant of a type name in any letter case (optimizers) or exactly (schedulers); NULL when it
 * is unknown. */
const dsi_variant *dsi_optimizer_variant(const char *type);
const dsi_variant *dsi_scheduler_variant(const char *type);

/* Whether word is one of "a|b|c", and which one; any_case ignores letter case. -1: it is not. */
int dsi_choice_index(const char *choices, const char *word, bool any_case);
/* Copies choice `index` to text_out (size bytes); false past the last. */
bool dsi_choice_at(const char *choices, int index, char *text_out, size_t size);

/* Whether a row has this name, today's, an alias or an old one. */
bool dsi_option_has_name(const dsi_option *option, const char *name);

/* Whether a value asks for nothing: the default, or one of the harmless ones. */
bool dsi_option_is_harmless(dsi_arena *arena, const dsi_option *option, const dsi_node *node);

/* A row's default as a node of the arena; NULL when it has none. */
dsi_node *dsi_option_default(dsi_arena *arena, const dsi_option *option);

#endif
