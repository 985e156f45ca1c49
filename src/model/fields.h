/* SPDX-License-Identifier: Apache-2.0 */
/* config.json by tables: one row a key says what types it may hold, where its value goes and what
 * the key does. A family has a table of the keys that its class in transformers knows
 * (configuration_*.py of transformers 5); common_fields.c has those of all classes. A key without
 * row has no effect, there and here. Internal to models/. */
#ifndef DSI_MODEL_FIELDS_H
#define DSI_MODEL_FIELDS_H

#include <deepspeed/nn.h>
#include <jansson.h>
#include <stdio.h>

typedef struct ds_reader {
    ds_ctx *ctx;
    const json_t *json;   /* an object */
    bool integers_vanish; /* they were read as reals: a whole real may be one, 1.0 or 1 */
    bool encoder;         /* the family's own table has what common[] has of decoders */
} ds_reader;

/* Types of a value, to be or-ed. */
enum {
    DS_FIELD_NULL = 1 << 0,
    DS_FIELD_BOOL = 1 << 1,
    DS_FIELD_INT = 1 << 2,
    DS_FIELD_REAL = 1 << 3, /* written with a point or an exponent: 1 is none, as in Python */
    DS_FIELD_TEXT = 1 << 4,
    DS_FIELD_INTS = 1 << 5, /* a list of integers */
    DS_FIELD_LIST = 1 << 6,
    DS_FIELD_OBJECT = 1 << 7,
    DS_FIELD_NUMBER = DS_FIELD_INT | DS_FIELD_REAL,
};

typedef enum ds_field_use {
    DS_FIELD_APPLIED, /* stored: bool, double where REAL is possible, else int64_t */
    DS_FIELD_ALIAS,   /* the same, over what a row before stored; nothing where it is absent */
    DS_FIELD_CHECKED, /* type checked, no effect on results */
    DS_FIELD_REFUSED, /* any value but null, or but `words` */
} ds_field_use;

typedef struct ds_field {
    const char *key;
    unsigned types;
    ds_field_use use;
    size_t offset;    /* APPLIED, ALIAS: in the family's config */
    double value;     /* when absent */
    double min, max;  /* of numbers */
    const char *why;  /* REFUSED */
    const char *only; /* REFUSED: values that are not, as compact JSON, space-separated */
} ds_field;

#define DS_NO_INT ((int64_t)INT32_MIN * 4) /* a stored null */

#define DS_FIELD_APPLY(config, key, types, member, value, min, max)                                \
    {                                                                                              \
        key, types, DS_FIELD_APPLIED, offsetof(config, member), value, min, max, NULL, NULL        \
    }
#define DS_FIELD_CHECK(key, types)                                                                 \
    {                                                                                              \
        key, types, DS_FIELD_CHECKED, 0, 0, 0, 0, NULL, NULL                                       \
    }
#define DS_FIELD_REFUSE(key, only, why)                                                            \
    {                                                                                              \
        key, 0, DS_FIELD_REFUSED, 0, 0, 0, 0, why, only                                            \
    }
#define DS_BELOW_ONE 0.99999999999999989 /* most that a dropout may be: 1 leaves nothing */

/* Reads the rows into config; the first that does not hold is the error. */
ds_status ds_fields_read(const ds_reader *reader, const ds_field *rows, size_t n, void *config);
/* Writes the stored values, a line "key: value" each, as they are resolved. */
void ds_fields_print(const ds_field *rows, size_t n, const void *config, FILE *out);
/* One key outside of a table, by the same rules; absent: value_out is left. */
ds_status ds_field_number(const ds_reader *reader, const char *key, double *value_out);
ds_status ds_field_int(const ds_reader *reader, const char *key, int64_t min, int64_t *value_out);
ds_status ds_field_text(const ds_reader *reader, const char *key, const char **value_out);
/* ERR_FORMAT: "key" must be `expected`, with the value that was found. */
ds_status ds_field_bad(const ds_reader *reader, const char *key, const char *expected);
/* What Python's `if value` takes for false: absent, null, false, 0, "", [] and {}. */
bool ds_field_is_falsy(const json_t *value);

/* Whether the file asks for eager attention; UNCLEAR: its two keys differ. */
typedef enum ds_eager { DS_EAGER_NOT, DS_EAGER, DS_EAGER_UNCLEAR } ds_eager;
ds_eager ds_field_eager(const ds_reader *reader);

/* What every class knows: keys that are refused, dtypes, labels, layer_types. other: the type
 * of layer that the family has beside full_attention, or NULL. quantized: the quant_method of
 * weights that the family reads, or NULL. */
ds_status ds_fields_read_common(const ds_reader *reader, int64_t n_layers, const char *other,
                                const char *quantized, ds_dtype *dtype_out);
/* An activation by transformers' name; absent: `fallback`. */
ds_status ds_field_activation(const ds_reader *reader, const char *key, const char *fallback,
                              ds_activation *value_out);
/* The name of a layer's type, legacy names resolved; NULL where layer_types is absent. To be asked
 * after ds_fields_read_common, which checks the list. */
const char *ds_field_layer_type(const ds_reader *reader, int64_t layer);

/* Of longrope, the numbers for sequences of at most max_positions, as the model was trained with at
 * first; those for longer ones are checked alone. transformers chooses by the longest of a batch,
 * so that a document would depend on its neighbours: longer sequences are refused. */
typedef struct ds_longrope {
    int64_t max_positions; /* 0: not of this type */
    double divisors[128];  /* of frequencies */
} ds_longrope;
ds_status ds_longrope_read(const ds_reader *outer, const ds_reader *inner, int64_t max_positions,
                           ds_rope_params *rope, ds_longrope *longrope);

/* What a family's class does with its rotary positions. */
typedef struct ds_rope_rules {
    double theta;       /* when absent */
    double partial;     /* share of a head that is rotated, when absent; 0: always all of it */
    bool null_is_all;   /* partial_rotary_factor null outside of rope_parameters is 1; else bad */
    bool plain;         /* no scaling but longrope, which yarn and su are too */
    const char *absent; /* rope_parameters where there are none, as JSON; NULL: none */
    const char *local_theta_key; /* of layers with a window; NULL: rope_local_base_freq */
    const char *theta_key;       /* outside of rope_parameters; NULL: rope_theta */
    const char *partial_key;     /* likewise; NULL: partial_rotary_factor */
} ds_rope_rules;

/* Parameters of each type of layer, nested in rope_parameters: those of full_attention, with
 * rope_scaling and rope_theta of the older layout, and those of sliding_attention, with
 * local_theta_key (10000 when absent). */
ds_status ds_rope_read_typed(const ds_reader *reader, const ds_rope_rules *rules, int64_t head_dim,
                             int64_t max_positions, ds_rope_params *full, ds_rope_params *sliding);

/* rope_parameters, rope_scaling, rope_theta and the rest, by the family's rules. See
 * rope_config.c. */
ds_status ds_rope_read(const ds_reader *reader, const ds_rope_rules *rules, int64_t head_dim,
                       int64_t max_positions, ds_rope_params *rope, ds_longrope *longrope);
/* Of DeepSeek, after ds_rope_read: what attention's scores are times, the square of yarn's factor
 * for mscale_all_dim, of any type but default. */
ds_status ds_rope_score_factor(const ds_reader *reader, double *factor_out);
void ds_rope_print(const ds_rope_params *rope, FILE *out);

#endif
