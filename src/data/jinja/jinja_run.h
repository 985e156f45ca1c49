/* SPDX-License-Identifier: Apache-2.0 */
/* A rendering in progress, and what the files of the evaluator share. See jinja.h.
 *
 * Errors are sticky: after dsi_ji_fail every call returns at once with some value, every loop ends,
 * and nothing more is written. Invariants: steps only rise; depth is that of the C stack; what a
 * value points to lives in the arena of the rendering or of the template.
 */
#ifndef DSI_DATA_JINJA_RUN_H
#define DSI_DATA_JINJA_RUN_H

#include "base/arena.h"
#include "base/buf.h"
#include "data/jinja/jinja.h"
#include "data/jinja/jinja_node.h"
#include "data/jinja/jinja_value.h"

#include <jansson.h>

enum { DSI_JI_RUN_DEPTH_MAX = 500, DSI_JI_ARGS = 8 };

/* Variables of one scope; a name that is not here is looked for in the one around. */
typedef struct dsi_ji_scope {
    struct dsi_ji_scope *outer;
    const char **names;
    dsi_jv *values;
    uint32_t n, room;
} dsi_ji_scope;

struct dsi_jv_macro {
    const dsi_jn *node; /* MACRO, CALL_BLOCK */
    dsi_ji_scope *scope;
};

/* Where a loop stands; "loop" in its body. */
struct dsi_jv_loop {
    const dsi_jn *node;
    dsi_ji_scope *outer; /* around the loop: for calls of a recursive one */
    dsi_jv items;        /* what is walked through */
    const dsi_jv *at;    /* its items, */
    size_t n, next;      /* the next to look at; for an iterator, its own place counts */
    dsi_jv current, before;
    dsi_jv peeked;          /* MISSING: not looked at */
    dsi_jv changed;         /* what changed() saw last */
    int64_t index0, length; /* length < 0: not known */
    bool tested;            /* the items passed the loop's test already */
    uint32_t depth0;
};

typedef struct dsi_ji_turn {
    const dsi_jv_dict *message;
    size_t begin, end;
    bool seen;
} dsi_ji_turn;

struct dsi_ji {
    dsi_arena *arena;
    const dsi_jinja *template;
    dsi_ji_scope *globals;
    const dsi_jn *node;     /* evaluated now */
    const dsi_jn *wrong_at; /* when it failed */
    dsi_buf *out;           /* where text goes: the result, or a macro's */
    dsi_buf *result;        /* the outermost one */
    dsi_jv caught;          /* the text of a block that a filter without operand works on */
    uint64_t steps;
    uint32_t depth;
    ds_status status;
    char message[200];
    bool failed;
    dsi_ji_turn *turns;
    size_t n_turns, turn_hint; /* hint: where the next item of a loop is looked for first */
    bool turns_hidden;
    dsi_jinja_range *ranges; /* malloc */
    size_t n_ranges, room_ranges;
    bool ranges_hidden;
};

/* ---- errors and limits ---- */

DS_PRINTF(3, 4) dsi_jv dsi_ji_fail(dsi_ji *j, ds_status status, const char *format, ...);
/* A mistake that jinja2 makes an error of, too. */
#define dsi_ji_wrong(j, ...) dsi_ji_fail(j, DS_ERR_FORMAT, __VA_ARGS__)
/* Something that is fine there and not known here. */
#define dsi_ji_refuse(j, ...) dsi_ji_fail(j, DS_ERR_UNSUPPORTED, __VA_ARGS__)
/* Counts work; false when there was too much, or an error. */
bool dsi_ji_step(dsi_ji *j, size_t work);
/* Arena memory; NULL records the error. */
void *dsi_ji_alloc(dsi_ji *j, size_t n, size_t size);

/* ---- values: jinja_value.c ---- */

dsi_jv dsi_ji_string(dsi_ji *j, const char *text, size_t n);                 /* copies */
dsi_jv dsi_ji_literal(const char *text);                                     /* of a constant */
dsi_jv dsi_ji_buffer(dsi_ji *j, dsi_buf *buf);                               /* copies and frees */
dsi_jv dsi_ji_list(dsi_ji *j, const dsi_jv *at, size_t n, dsi_jv_kind kind); /* borrows at */
dsi_jv dsi_ji_pair(dsi_ji *j, dsi_jv a, dsi_jv b);
dsi_jv dsi_ji_iter(dsi_ji *j, const dsi_jv *at, size_t n);
dsi_jv dsi_ji_undefined(dsi_ji *j, const char *name, const char *of);
/* Records the error of using an undefined value. */
dsi_jv dsi_ji_use_undefined(dsi_ji *j, dsi_jv v);
dsi_jv dsi_ji_dict(dsi_ji *j);
void dsi_ji_dict_set(dsi_ji *j, dsi_jv_dict *dict, dsi_jv key, dsi_jv value);
/* NULL: not there. */
const dsi_jv *dsi_ji_dict_get(dsi_ji *j, const dsi_jv_dict *dict, dsi_jv key);
dsi_jv dsi_ji_from_json(dsi_ji *j, const json_t *json, uint32_t depth);
bool dsi_ji_truth(dsi_ji *j, dsi_jv v);
bool dsi_ji_equal(dsi_ji *j, dsi_jv a, dsi_jv b);
/* <0, 0, >0; an error when Python knows no order of them. */
int dsi_ji_compare(dsi_ji *j, dsi_jv a, dsi_jv b);
bool dsi_ji_hashable(dsi_jv v);
/* All items of what can be walked through; an iterator is used up. false: an error. */
bool dsi_ji_items(dsi_ji *j, dsi_jv v, const dsi_jv **at_out, size_t *n_out);
bool dsi_ji_iterable(dsi_jv v);
/* len(); -1: it has none. */
int64_t dsi_ji_length(dsi_ji *j, dsi_jv v);
const char *dsi_ji_type(dsi_jv v); /* "str", "dict" … */
bool dsi_ji_is(dsi_jv v, const char *text);

/* ---- texts: jinja_text.c ---- */

void dsi_ji_put(dsi_ji *j, dsi_buf *out, dsi_jv v);      /* str(v) */
void dsi_ji_put_repr(dsi_ji *j, dsi_buf *out, dsi_jv v); /* repr(v) */
dsi_jv dsi_ji_str(dsi_ji *j, dsi_jv v);

typedef struct dsi_ji_json {
    bool ascii, sorted;
    const char *indent; /* NULL: on one line */
    const char *between, *colon;
} dsi_ji_json;
void dsi_ji_put_json(dsi_ji *j, dsi_buf *out, dsi_jv v, const dsi_ji_json *how);

/* ---- members and operators ---- */

dsi_jv dsi_ji_getattr(dsi_ji *j, dsi_jv of, const char *name);
dsi_jv dsi_ji_getitem(dsi_ji *j, dsi_jv of, dsi_jv key);
dsi_jv dsi_ji_slice(dsi_ji *j, dsi_jv of, dsi_jv begin, dsi_jv end, dsi_jv step);
dsi_jv dsi_ji_binary(dsi_ji *j, const char *op, dsi_jv a, dsi_jv b);
bool dsi_ji_contains(dsi_ji *j, dsi_jv item, dsi_jv of);
bool dsi_ji_compares(dsi_ji *j, const char *op, dsi_jv a, dsi_jv b);
dsi_jv dsi_ji_format_percent(dsi_ji *j, dsi_jv format, dsi_jv values);
/* The item of the same member of each: "a.b.0", or an int; default_value MISSING: none. */
dsi_jv dsi_ji_path(dsi_ji *j, dsi_jv of, dsi_jv path, dsi_jv default_value);

/* ---- calls ---- */

typedef struct dsi_ji_args {
    const dsi_jv *at; /* positional */
    size_t n;
    const char *const *names; /* keywords */
    const dsi_jv *values;
    size_t n_names;
} dsi_ji_args;

/* Sorts arguments to the parameters "a b c" (names: one string, by blanks; "" for none). A name
 * that begins with '-' is positional only. Those not given are MISSING. */
bool dsi_ji_bind(dsi_ji *j, const dsi_ji_args *args, const char *what, const char *names,
                 dsi_jv out[DSI_JI_ARGS]);
dsi_jv dsi_ji_call(dsi_ji *j, dsi_jv function, const dsi_ji_args *args);
dsi_jv dsi_ji_call_method(dsi_ji *j, dsi_jv self, const char *name, const dsi_ji_args *args);
dsi_jv dsi_ji_str_format(dsi_ji *j, dsi_jv self, const dsi_ji_args *args);
/* An attribute that is a method of its type: DSI_JI_NO_METHOD when there is none. */
typedef enum dsi_ji_method_kind {
    DSI_JI_NO_METHOD,
    DSI_JI_METHOD,
    DSI_JI_UNSAFE_METHOD, /* the sandbox hides it */
    DSI_JI_UNKNOWN_METHOD /* Python has it, and it is not known here */
} dsi_ji_method_kind;
dsi_ji_method_kind dsi_ji_method_of(dsi_jv of, const char *name);

bool dsi_ji_filter_exists(const char *name);
bool dsi_ji_test_exists(const char *name);
dsi_jv dsi_ji_filter(dsi_ji *j, const char *name, dsi_jv value, const dsi_ji_args *args);
bool dsi_ji_test(dsi_ji *j, const char *name, dsi_jv value, const dsi_ji_args *args);

/* A filter's own arguments, sorted by its row in a table. */
typedef dsi_jv (*dsi_ji_filter_fn)(dsi_ji *j, dsi_jv value, const dsi_jv *args);
typedef struct dsi_ji_filter_row {
    const char *name;
    const char *parameters; /* as for dsi_ji_bind; NULL: raw */
    dsi_ji_filter_fn run;
    dsi_jv (*raw)(dsi_ji *j, dsi_jv value, const dsi_ji_args *args); /* in place of run */
} dsi_ji_filter_row;
const dsi_ji_filter_row *dsi_ji_seq_filters(size_t *n_out);

/* ---- the evaluator ---- */

dsi_jv dsi_ji_eval(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope);
/* Evaluates arguments; the arrays are the arena's. */
bool dsi_ji_eval_args(dsi_ji *j, dsi_jn_list list, dsi_ji_scope *scope, dsi_ji_args *args_out);
typedef enum dsi_ji_flow { DSI_JI_GO_ON, DSI_JI_BREAK, DSI_JI_CONTINUE } dsi_ji_flow;
dsi_ji_flow dsi_ji_exec(dsi_ji *j, dsi_jn_list body, dsi_ji_scope *scope);
/* What is written goes to text from now on; returns what j->out is to be again. All such texts that
 * are open at a time share the ceiling of the result. */
dsi_buf *dsi_ji_catch(dsi_ji *j, dsi_buf *text);
/* Runs a body with its text caught. */
dsi_jv dsi_ji_caught(dsi_ji *j, dsi_jn_list body, dsi_ji_scope *scope, dsi_ji_flow *flow_out);
void dsi_ji_exec_for(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope);
dsi_jv dsi_ji_call_loop(dsi_ji *j, dsi_jv_loop *loop, const dsi_ji_args *args);
dsi_jv dsi_ji_loop_member(dsi_ji *j, dsi_jv_loop *loop, const char *name);
dsi_ji_scope *dsi_ji_scope_in(dsi_ji *j, dsi_ji_scope *outer);
void dsi_ji_assign(dsi_ji *j, dsi_ji_scope *scope, const char *name, dsi_jv value);
const dsi_jv *dsi_ji_find(const dsi_ji_scope *scope, const char *name);
void dsi_ji_unpack(dsi_ji *j, dsi_ji_scope *scope, const dsi_jn *target, dsi_jv value);

#endif
