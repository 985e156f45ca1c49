/* SPDX-License-Identifier: Apache-2.0 */
/* A parsed template: tokens, nodes, and the calls of the reader of templates. See jinja.h.
 *
 * Nodes live in the template's arena and are const after parsing, so any number of threads may
 * render one template. Invariants: a node's depth is below DSI_JI_DEPTH_MAX; every name that a node
 * holds is terminated by a zero byte.
 */
#ifndef DSI_DATA_JINJA_NODE_H
#define DSI_DATA_JINJA_NODE_H

#include "base/arena.h"
#include "data/jinja/jinja_value.h"

#include <stdint.h>

enum { DSI_JI_DEPTH_MAX = 96, DSI_JI_FOR_MAX = 18 };

typedef enum dsi_jt_kind {
    DSI_JT_EOF,
    DSI_JT_DATA,
    DSI_JT_VARIABLE_BEGIN,
    DSI_JT_VARIABLE_END,
    DSI_JT_BLOCK_BEGIN,
    DSI_JT_BLOCK_END,
    DSI_JT_NAME,
    DSI_JT_STRING,
    DSI_JT_INTEGER,
    DSI_JT_FLOAT,
    DSI_JT_OPERATOR /* text: "+" … */
} dsi_jt_kind;

typedef struct dsi_jt {
    dsi_jt_kind kind;
    uint32_t line, column; /* from 1 */
    const char *text;      /* n bytes and a zero byte: the data, name, operator, unescaped string */
    uint32_t n;
    int64_t integer;
    double real;
} dsi_jt;

typedef enum dsi_jn_kind {
    /* expressions */
    DSI_JN_CONST,   /* value */
    DSI_JN_NAME,    /* name */
    DSI_JN_LIST,    /* list */
    DSI_JN_TUPLE,   /* list; as a target, too */
    DSI_JN_DICT,    /* list: key, value, key, value */
    DSI_JN_COND,    /* a if b else c; c may be NULL */
    DSI_JN_OR,      /* a, b */
    DSI_JN_AND,     /* a, b */
    DSI_JN_NOT,     /* a */
    DSI_JN_COMPARE, /* a, list of OPERAND */
    DSI_JN_OPERAND, /* name: the operator, a */
    DSI_JN_BINARY,  /* name: the operator, a, b */
    DSI_JN_CONCAT,  /* list */
    DSI_JN_NEG,     /* a */
    DSI_JN_POS,     /* a */
    DSI_JN_GETATTR, /* a, name */
    DSI_JN_GETITEM, /* a, b */
    DSI_JN_SLICE,   /* a, b, c; each may be NULL */
    DSI_JN_CALL,    /* a, list of ARG */
    DSI_JN_FILTER,  /* a (NULL: the text of the block around it), name, list of ARG */
    DSI_JN_TEST,    /* a, name, list of ARG */
    DSI_JN_ARG,     /* a; name: a keyword's, "*", "**" or NULL */
    DSI_JN_NSREF,   /* name, text: a target only */
    /* statements */
    DSI_JN_DATA,         /* value */
    DSI_JN_OUTPUT,       /* a */
    DSI_JN_FOR,          /* a: target, b: iterable, c: test or NULL, body, other; recursive */
    DSI_JN_IF,           /* a, body, other (an elif is an IF in it) */
    DSI_JN_SET,          /* a: target, b */
    DSI_JN_SET_BLOCK,    /* a: target, b: filter or NULL, body */
    DSI_JN_MACRO,        /* name, list of PARAMETER, body */
    DSI_JN_PARAMETER,    /* name, a: its default or NULL */
    DSI_JN_CALL_BLOCK,   /* a: the call, list of PARAMETER, body */
    DSI_JN_FILTER_BLOCK, /* a: the filter, body */
    DSI_JN_WITH,         /* list of SET, body */
    DSI_JN_GENERATION,   /* body */
    DSI_JN_BREAK,
    DSI_JN_CONTINUE
} dsi_jn_kind;

typedef struct dsi_jn dsi_jn;
typedef struct dsi_jn_list {
    dsi_jn **at;
    uint32_t n;
} dsi_jn_list;

struct dsi_jn {
    dsi_jn_kind kind;
    uint32_t line, column;
    const char *name, *text;
    dsi_jn *a, *b, *c;
    dsi_jn_list list, body, other;
    bool recursive;
    bool takes_caller, takes_kwargs, takes_varargs; /* MACRO, CALL_BLOCK: its body reads them */
    dsi_jv value;
};

struct dsi_jinja {
    dsi_arena *arena;
    const dsi_jt *tokens;
    dsi_jn_list body;
    bool has_generation;
};

/* What is wrong with a template, where. */
typedef struct dsi_ji_fault {
    ds_status status;
    uint32_t line, column;
    char text[200];
} dsi_ji_fault;

/* Cuts n bytes of a template into tokens, an EOF at the end; NULL: fault says why. The arena owns
 * them. */
dsi_jt *dsi_ji_lex(dsi_arena *arena, const char *text, size_t n, dsi_ji_fault *fault);

/* The reader of tokens that statements (jinja_parse.c) and expressions (jinja_expr.c) share. After
 * a failure the token in hand is the EOF, so that every loop ends. */
typedef struct dsi_jp {
    dsi_arena *arena;
    const dsi_jt *token; /* the one in hand */
    dsi_ji_fault *fault;
    uint32_t depth;
    bool failed;
} dsi_jp;

DS_PRINTF(3, 4)
void dsi_jp_fail(dsi_jp *p, ds_status status, const char *format, ...);
void dsi_jp_next(dsi_jp *p);
const char *dsi_jt_kind_name(dsi_jt_kind kind);
bool dsi_jp_is(const dsi_jp *p, dsi_jt_kind kind, const char *text);
bool dsi_jp_skip_if(dsi_jp *p, dsi_jt_kind kind, const char *text);
const dsi_jt *dsi_jp_expect(dsi_jp *p, dsi_jt_kind kind, const char *text);
dsi_jn *dsi_jp_node(dsi_jp *p, dsi_jn_kind kind);
void dsi_jp_add(dsi_jp *p, dsi_jn_list *list, dsi_jn *node);

typedef struct dsi_jp_tuple {
    bool names_only;    /* names, literals and namespace attributes: a target */
    bool no_condition;  /* an "if" ends it */
    bool parentheses;   /* may be empty */
    bool no_namespaces; /* a target without namespace attributes */
} dsi_jp_tuple;

dsi_jn *dsi_jp_expression(dsi_jp *p);
dsi_jn *dsi_jp_primary(dsi_jp *p, bool namespaces);
/* One with its sign, members and calls; filters: with its filters and tests, too. */
dsi_jn *dsi_jp_unary(dsi_jp *p, bool filters);
dsi_jn *dsi_jp_negated(dsi_jp *p, dsi_jn *of);
dsi_jn *dsi_jp_tuple_of(dsi_jp *p, dsi_jp_tuple how);
/* A chain of filters on node; begun: the first one comes without "|". */
dsi_jn *dsi_jp_filters(dsi_jp *p, dsi_jn *node, bool begun);

/* What jinja2's compiler refuses: unknown filters and tests where they would be reached in any
 * case, break outside of a loop, targets that shadow "loop". Fills takes_*. */
bool dsi_ji_check(dsi_jinja *template, dsi_ji_fault *fault);

/* Gives "self" its meaning, behind dsi_ji_check, which bounds the depth. */
bool dsi_ji_settle_self(dsi_jinja *template, dsi_ji_fault *fault);

#endif
