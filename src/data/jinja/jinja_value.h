/* SPDX-License-Identifier: Apache-2.0 */
/* Values of templates: Python's, as far as templates can have them.
 *
 * A value is 16 bytes and immutable, as the sandbox allows no change of lists and dicts; what it
 * points to lives in the arena of a rendering (or of the template). The exceptions are namespaces
 * and iterators that are used up.
 */
#ifndef DSI_DATA_JINJA_VALUE_H
#define DSI_DATA_JINJA_VALUE_H

#include <deepspeed/status.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct dsi_jinja dsi_jinja;
typedef struct dsi_ji dsi_ji;

typedef enum dsi_jv_kind {
    DSI_JV_MISSING, /* no value: an argument that was not given */
    DSI_JV_UNDEFINED,
    DSI_JV_NONE,
    DSI_JV_BOOL,
    DSI_JV_INT,
    DSI_JV_FLOAT,
    DSI_JV_STR,
    DSI_JV_LIST,
    DSI_JV_TUPLE,
    DSI_JV_DICT,
    DSI_JV_VIEW, /* of a dict: keys(), values(), items() */
    DSI_JV_RANGE,
    DSI_JV_ITER, /* a generator: used up by reading */
    DSI_JV_NAMESPACE,
    DSI_JV_LOOP,
    DSI_JV_MACRO,
    DSI_JV_FUNCTION, /* a global */
    DSI_JV_METHOD,   /* bound to its object */
    DSI_JV_GROUP     /* a tuple (grouper, list) of groupby */
} dsi_jv_kind;

typedef struct dsi_jv_list dsi_jv_list;
typedef struct dsi_jv_dict dsi_jv_dict;
typedef struct dsi_jv_view dsi_jv_view;
typedef struct dsi_jv_range dsi_jv_range;
typedef struct dsi_jv_iter dsi_jv_iter;
typedef struct dsi_jv_macro dsi_jv_macro;
typedef struct dsi_jv_method dsi_jv_method;
typedef struct dsi_jv_loop dsi_jv_loop;
typedef struct dsi_jv_hint dsi_jv_hint;

typedef struct dsi_jv {
    uint8_t kind;
    bool safe;  /* STR: marked as HTML that needs no escape */
    uint32_t n; /* STR: bytes */
    union {
        bool flag;
        int64_t i;
        double f;
        const char *text; /* STR: n bytes of UTF-8 */
        const dsi_jv_list *list;
        dsi_jv_dict *dict; /* DICT, NAMESPACE */
        const dsi_jv_view *view;
        const dsi_jv_range *range;
        dsi_jv_iter *iter;
        const dsi_jv_macro *macro;
        const dsi_jv_method *method;
        dsi_jv_loop *loop;
        const dsi_jv_hint *hint; /* UNDEFINED */
        const char *name;        /* FUNCTION */
    };
} dsi_jv;

struct dsi_jv_list {
    const dsi_jv *at;
    size_t n;
};

struct dsi_jv_dict {
    dsi_jv *keys, *values; /* in order of insertion */
    size_t n, room;
};

typedef enum dsi_jv_part { DSI_JV_KEYS, DSI_JV_VALUES, DSI_JV_ITEMS } dsi_jv_part;

struct dsi_jv_view {
    const dsi_jv_dict *dict;
    dsi_jv_part part;
};

struct dsi_jv_range {
    int64_t start, step;
    int64_t stop; /* as given, for printing */
    size_t n;
};

/* The items are known, but a mistake that stands at the end of them shows only when it is reached.
 */
struct dsi_jv_iter {
    const dsi_jv *at;
    size_t n, used;
    ds_status fault; /* of what comes behind the items; DS_OK: nothing */
    const char *fault_text;
};

struct dsi_jv_method {
    dsi_jv self;
    const char *name;
};

/* What was looked for and not found, for the message. */
struct dsi_jv_hint {
    const char *name; /* NULL: text is all */
    const char *text; /* what has no such member; NULL: a variable is undefined */
    bool item;        /* by [], not a string */
};

/* Also what a call gives that failed: its text can be read. */
static inline dsi_jv dsi_jv_none(void)
{
    return (dsi_jv){.kind = DSI_JV_NONE, .text = ""};
}

static inline dsi_jv dsi_jv_missing(void)
{
    return (dsi_jv){.kind = DSI_JV_MISSING};
}

static inline dsi_jv dsi_jv_bool(bool flag)
{
    return (dsi_jv){.kind = DSI_JV_BOOL, .flag = flag};
}

static inline dsi_jv dsi_jv_int(int64_t i)
{
    return (dsi_jv){.kind = DSI_JV_INT, .i = i};
}

static inline dsi_jv dsi_jv_float(double f)
{
    return (dsi_jv){.kind = DSI_JV_FLOAT, .f = f};
}

static inline dsi_jv dsi_jv_str(const char *text, size_t n)
{
    return (dsi_jv){.kind = DSI_JV_STR, .n = (uint32_t)n, .text = text};
}

/* Python's int, which bool is one of. */
static inline bool dsi_jv_is_int(dsi_jv v)
{
    return v.kind == DSI_JV_INT || v.kind == DSI_JV_BOOL;
}

static inline int64_t dsi_jv_int_of(dsi_jv v)
{
    return v.kind == DSI_JV_BOOL ? v.flag : v.i;
}

static inline bool dsi_jv_is_number(dsi_jv v)
{
    return dsi_jv_is_int(v) || v.kind == DSI_JV_FLOAT;
}

static inline double dsi_jv_float_of(dsi_jv v)
{
    return v.kind == DSI_JV_FLOAT ? v.f : (double)dsi_jv_int_of(v);
}

#endif
