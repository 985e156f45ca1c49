/* SPDX-License-Identifier: Apache-2.0 */
/* The machine: opcodes of protocol 2 as torch.save writes them, on a stack of values. See pickle.h;
 * the opcodes are those of CPython's pickletools.py. */
#include "io/pickle_internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { PROTOCOL = 2, PROTOCOL_FRAMED = 4 /* of torch.distributed.checkpoint */ };

/* name, code: those that are run */
#define OPCODES(X)                                                                                 \
    X(PROTO, 0x80)                                                                                 \
    X(STOP, '.')                                                                                   \
    X(MARK, '(')                                                                                   \
    X(GLOBAL, 'c')                                                                                 \
    X(BINPUT, 'q')                                                                                 \
    X(LONG_BINPUT, 'r')                                                                            \
    X(BINGET, 'h')                                                                                 \
    X(LONG_BINGET, 'j')                                                                            \
    X(NONE, 'N')                                                                                   \
    X(NEWTRUE, 0x88)                                                                               \
    X(NEWFALSE, 0x89)                                                                              \
    X(BININT, 'J')                                                                                 \
    X(BININT1, 'K')                                                                                \
    X(BININT2, 'M')                                                                                \
    X(LONG1, 0x8a)                                                                                 \
    X(BINFLOAT, 'G')                                                                               \
    X(BINUNICODE, 'X')                                                                             \
    X(SHORT_BINSTRING, 'U')                                                                        \
    X(EMPTY_TUPLE, ')')                                                                            \
    X(TUPLE, 't')                                                                                  \
    X(TUPLE1, 0x85)                                                                                \
    X(TUPLE2, 0x86)                                                                                \
    X(TUPLE3, 0x87)                                                                                \
    X(EMPTY_LIST, ']')                                                                             \
    X(EMPTY_SET, 0x8f)                                                                             \
    X(APPEND, 'a')                                                                                 \
    X(APPENDS, 'e')                                                                                \
    X(EMPTY_DICT, '}')                                                                             \
    X(SETITEM, 's')                                                                                \
    X(SETITEMS, 'u')                                                                               \
    X(BINPERSID, 'Q')                                                                              \
    X(REDUCE, 'R')                                                                                 \
    X(NEWOBJ, 0x81)                                                                                \
    X(BUILD, 'b')                                                                                  \
    X(FRAME, 0x95)                                                                                 \
    X(MEMOIZE, 0x94)                                                                               \
    X(SHORT_BINUNICODE, 0x8c)                                                                      \
    X(STACK_GLOBAL, 0x93)

enum {
#define X(name, code) OP_##name = (code),
    OPCODES(X)
#undef X
};

/* Marks the begin of items on the stack. */
static dsi_pickle mark;

ds_status dsi_pickle_fail(const dsi_pickle_machine *m, ds_status status, const char *what)
{
    return ds_fail(m->ctx, status, "%s: byte %zu: %s", m->source->path, m->opcode, what);
}

static ds_status cut(const dsi_pickle_machine *m)
{
    return dsi_pickle_fail(m, DS_ERR_FORMAT, "the pickle ends in the middle of an opcode");
}

static ds_status no_memory(const dsi_pickle_machine *m)
{
    return dsi_pickle_fail(m, DS_ERR_NOMEM, "no memory for the values of the pickle");
}

dsi_pickle *dsi_pickle_make(dsi_pickle_machine *m, dsi_pickle_kind kind)
{
    dsi_pickle *value = dsi_arena_alloc(m->arena, sizeof *value);
    if (value == NULL) {
        (void)no_memory(m);
        return NULL;
    }
    value->kind = kind;
    return value;
}

ds_status dsi_pickle_append(dsi_pickle_machine *m, dsi_pickle *list, dsi_pickle *item)
{
    if (list->list.n == list->list.room) {
        const size_t room = list->list.room > 0 ? 2 * list->list.room : 4;
        dsi_pickle **items = dsi_arena_array(m->arena, room, sizeof *items);
        if (items == NULL) {
            return no_memory(m);
        }
        if (list->list.n > 0) {
            memcpy(items, list->list.items, list->list.n * sizeof *items);
        }
        list->list.items = items;
        list->list.room = room;
    }
    list->list.items[list->list.n++] = item;
    return DS_OK;
}

/* ---- bytes ---- */

static ds_status take(dsi_pickle_machine *m, size_t n, const uint8_t **at_out)
{
    if (n > m->source->n - m->at) {
        return cut(m);
    }
    *at_out = m->source->data + m->at;
    m->at += n;
    return DS_OK;
}

/* A whole number of n bytes, low byte first. */
static ds_status take_number(dsi_pickle_machine *m, size_t n, uint64_t *value_out)
{
    const uint8_t *at = NULL;
    uint64_t value = 0;
    DS_TRY(take(m, n, &at));
    for (size_t i = n; i-- > 0;) {
        value = value << 8 | at[i];
    }
    *value_out = value;
    return DS_OK;
}

/* A line without its end. */
static ds_status take_line(dsi_pickle_machine *m, const char **line_out, size_t *n_out)
{
    const uint8_t *at = m->source->data + m->at;
    const uint8_t *end = memchr(at, '\n', m->source->n - m->at);
    if (end == NULL) {
        return cut(m);
    }
    *line_out = (const char *)at;
    *n_out = (size_t)(end - at);
    m->at += *n_out + 1;
    return DS_OK;
}

/* ---- the stack ---- */

static ds_status push(dsi_pickle_machine *m, dsi_pickle *value)
{
    if (value == NULL) {
        return DS_ERR_NOMEM; /* recorded where it was made */
    }
    if (m->n == m->room) {
        const size_t room = m->room > 0 ? 2 * m->room : 64;
        dsi_pickle **stack = realloc(m->stack, room * sizeof *stack);
        if (stack == NULL) {
            return no_memory(m);
        }
        m->stack = stack;
        m->room = room;
    }
    m->stack[m->n++] = value;
    return DS_OK;
}

/* The topmost value stays. */
static ds_status top(const dsi_pickle_machine *m, dsi_pickle **value_out)
{
    if (m->n == 0 || m->stack[m->n - 1] == &mark) {
        return dsi_pickle_fail(m, DS_ERR_FORMAT, "an opcode needs a value and the stack has none");
    }
    *value_out = m->stack[m->n - 1];
    return DS_OK;
}

static ds_status pop(dsi_pickle_machine *m, dsi_pickle **value_out)
{
    DS_TRY(top(m, value_out));
    --m->n;
    return DS_OK;
}

/* Where the items behind the last mark begin; the mark is at the place before. */
static ds_status find_mark(const dsi_pickle_machine *m, size_t *first_out)
{
    for (size_t i = m->n; i-- > 0;) {
        if (m->stack[i] == &mark) {
            *first_out = i + 1;
            return DS_OK;
        }
    }
    return dsi_pickle_fail(m, DS_ERR_FORMAT, "an opcode needs a mark and the stack has none");
}

/* Moves the values from place `first` on into a list that stands elsewhere. */
static ds_status move_items(dsi_pickle_machine *m, size_t first, dsi_pickle *list)
{
    for (size_t i = first; i < m->n; ++i) {
        DS_TRY(dsi_pickle_append(m, list, m->stack[i]));
    }
    m->n = first;
    return DS_OK;
}

/* ---- opcodes ---- */

static ds_status push_whole(dsi_pickle_machine *m, int64_t whole)
{
    dsi_pickle *value = dsi_pickle_make(m, DSI_PICKLE_INT);
    if (value != NULL) {
        value->whole = whole;
    }
    return push(m, value);
}

static ds_status push_truth(dsi_pickle_machine *m, bool truth)
{
    dsi_pickle *value = dsi_pickle_make(m, DSI_PICKLE_BOOL);
    if (value != NULL) {
        value->truth = truth;
    }
    return push(m, value);
}

/* A whole number of n bytes, unsigned, or signed in all of its 4 bytes. */
static ds_status run_int(dsi_pickle_machine *m, size_t n)
{
    uint64_t bits = 0;
    DS_TRY(take_number(m, n, &bits));
    return push_whole(m, n == 4 ? (int64_t)(int32_t)(uint32_t)bits : (int64_t)bits);
}

/* Two's complement of as many bytes as are needed. */
static ds_status run_long(dsi_pickle_machine *m)
{
    uint64_t n = 0;
    uint64_t bits = 0;
    DS_TRY(take_number(m, 1, &n));
    if (n > 8) {
        return dsi_pickle_fail(m, DS_ERR_LIMIT, "a whole number needs more than 64 bits");
    }
    DS_TRY(take_number(m, (size_t)n, &bits));
    if (n > 0 && n < 8 && (bits >> (8 * n - 1) & 1) != 0) {
        bits |= ~UINT64_C(0) << (8 * n);
    }
    return push_whole(m, (int64_t)bits);
}

/* Eight bytes, high byte first. */
static ds_status run_float(dsi_pickle_machine *m)
{
    const uint8_t *at = NULL;
    uint64_t bits = 0;
    DS_TRY(take(m, 8, &at));
    for (size_t i = 0; i < 8; ++i) {
        bits = bits << 8 | at[i];
    }
    dsi_pickle *value = dsi_pickle_make(m, DSI_PICKLE_REAL);
    if (value != NULL) {
        memcpy(&value->real, &bits, sizeof bits);
    }
    return push(m, value);
}

static ds_status run_text(dsi_pickle_machine *m, size_t n_length)
{
    const uint8_t *at = NULL;
    uint64_t n = 0;
    DS_TRY(take_number(m, n_length, &n));
    DS_TRY(take(m, (size_t)n, &at));
    dsi_pickle *value = dsi_pickle_make(m, DSI_PICKLE_TEXT);
    char *text = dsi_arena_alloc(m->arena, (size_t)n + 1);
    if (value == NULL || text == NULL) {
        return no_memory(m);
    }
    if (n > 0) {
        memcpy(text, at, (size_t)n);
    }
    value->text.data = text;
    value->text.n = (size_t)n;
    return push(m, value);
}

static ds_status push_global(dsi_pickle_machine *m, const char *module, size_t n_module,
                             const char *name, size_t n_name)
{
    const dsi_pickle_global *global = dsi_pickle_global_find(module, n_module, name, n_name);
    if (global == NULL) {
        return ds_fail(m->ctx, DS_ERR_UNSUPPORTED,
                       "%s: byte %zu: the pickle names the global '%.*s %.*s', which is not one of "
                       "those that are read; nothing of the file was run",
                       m->source->path, m->opcode, n_module < 100 ? (int)n_module : 100, module,
                       n_name < 100 ? (int)n_name : 100, name);
    }
    dsi_pickle *value = dsi_pickle_make(m, DSI_PICKLE_GLOBAL);
    if (value != NULL) {
        value->global = global;
    }
    return push(m, value);
}

static ds_status run_global(dsi_pickle_machine *m)
{
    const char *module = NULL;
    const char *name = NULL;
    size_t n_module = 0;
    size_t n_name = 0;
    DS_TRY(take_line(m, &module, &n_module));
    DS_TRY(take_line(m, &name, &n_name));
    return push_global(m, module, n_module, name, n_name);
}

/* The same by two texts of the stack. */
static ds_status run_stack_global(dsi_pickle_machine *m)
{
    dsi_pickle *name = NULL;
    dsi_pickle *module = NULL;
    DS_TRY(pop(m, &name));
    DS_TRY(pop(m, &module));
    if (name->kind != DSI_PICKLE_TEXT || module->kind != DSI_PICKLE_TEXT) {
        return dsi_pickle_fail(m, DS_ERR_FORMAT, "a global is named by something that is no text");
    }
    return push_global(m, module->text.data, module->text.n, name->text.data, name->text.n);
}

/* What follows, up to a length that says nothing new. */
static ds_status run_frame(dsi_pickle_machine *m)
{
    uint64_t n = 0;
    DS_TRY(take_number(m, 8, &n));
    return n <= m->source->n - m->at ? DS_OK : cut(m);
}

static ds_status put_at(dsi_pickle_machine *m, uint64_t index)
{
    dsi_pickle *value = NULL;
    DS_TRY(top(m, &value));
    if (index >= m->at) { /* writers count puts, and each takes two bytes or more */
        return dsi_pickle_fail(m, DS_ERR_LIMIT, "the index of a put is larger than any writer's");
    }
    if (index >= m->n_memo) {
        size_t n = m->n_memo > 0 ? m->n_memo : 64;
        while (n <= index) {
            n *= 2;
        }
        dsi_pickle **memo = realloc(m->memo, n * sizeof *memo);
        if (memo == NULL) {
            return no_memory(m);
        }
        memset(memo + m->n_memo, 0, (n - m->n_memo) * sizeof *memo);
        m->memo = memo;
        m->n_memo = n;
    }
    m->memo[index] = value;
    return DS_OK;
}

static ds_status run_put(dsi_pickle_machine *m, size_t n_bytes)
{
    uint64_t index = 0;
    DS_TRY(take_number(m, n_bytes, &index));
    return put_at(m, index);
}

static ds_status run_get(dsi_pickle_machine *m, size_t n_bytes)
{
    uint64_t index = 0;
    DS_TRY(take_number(m, n_bytes, &index));
    if (index >= m->n_memo || m->memo[index] == NULL) {
        return dsi_pickle_fail(m, DS_ERR_FORMAT, "a get of a value that was never put");
    }
    return push(m, m->memo[index]);
}

/* The n topmost values. */
static ds_status run_short_tuple(dsi_pickle_machine *m, size_t n)
{
    dsi_pickle *tuple = dsi_pickle_make(m, DSI_PICKLE_TUPLE);
    dsi_pickle *items[3] = {NULL};
    for (size_t i = n; i-- > 0;) {
        DS_TRY(pop(m, &items[i]));
    }
    for (size_t i = 0; i < n && tuple != NULL; ++i) {
        DS_TRY(dsi_pickle_append(m, tuple, items[i]));
    }
    return push(m, tuple);
}

static ds_status run_marked_tuple(dsi_pickle_machine *m)
{
    size_t first = 0;
    dsi_pickle *tuple = dsi_pickle_make(m, DSI_PICKLE_TUPLE);
    if (tuple == NULL) {
        return DS_ERR_NOMEM;
    }
    DS_TRY(find_mark(m, &first));
    DS_TRY(move_items(m, first, tuple));
    --m->n; /* the mark */
    return push(m, tuple);
}

/* Items from place `first` on go into the list or dict below; `marks` stand between. */
static ds_status run_extend(dsi_pickle_machine *m, size_t first, size_t marks, dsi_pickle_kind kind)
{
    dsi_pickle *list = first > marks ? m->stack[first - marks - 1] : NULL;
    const bool is_dict = kind == DSI_PICKLE_DICT;
    if (list == NULL || list == &mark || list->kind != kind) {
        return dsi_pickle_fail(m, DS_ERR_FORMAT,
                               is_dict ? "items are set in something that is no dict"
                                       : "items are appended to something that is no list");
    }
    if (is_dict && (m->n - first) % 2 != 0) {
        return dsi_pickle_fail(m, DS_ERR_FORMAT, "a key of a dict has no value");
    }
    DS_TRY(move_items(m, first, list));
    m->n -= marks;
    return DS_OK;
}

static ds_status run_extend_marked(dsi_pickle_machine *m, dsi_pickle_kind kind)
{
    size_t first = 0;
    DS_TRY(find_mark(m, &first));
    return run_extend(m, first, 1, kind);
}

/* The n topmost values, none of them a mark. */
static ds_status run_extend_top(dsi_pickle_machine *m, size_t n, dsi_pickle_kind kind)
{
    for (size_t i = 0; i < n; ++i) {
        if (m->n < n + 1 || m->stack[m->n - 1 - i] == &mark) {
            return dsi_pickle_fail(m, DS_ERR_FORMAT,
                                   "an opcode needs a value and the stack has none");
        }
    }
    return run_extend(m, m->n - n, 0, kind);
}

static ds_status run_persistent(dsi_pickle_machine *m)
{
    dsi_pickle *id = NULL;
    dsi_pickle *value = NULL;
    DS_TRY(pop(m, &id));
    DS_TRY(dsi_pickle_persistent(m, id, &value));
    return push(m, value);
}

static ds_status run_call(dsi_pickle_machine *m, bool is_new)
{
    dsi_pickle *args = NULL;
    dsi_pickle *callee = NULL;
    dsi_pickle *value = NULL;
    DS_TRY(pop(m, &args));
    DS_TRY(pop(m, &callee));
    if (args->kind != DSI_PICKLE_TUPLE || callee->kind != DSI_PICKLE_GLOBAL) {
        return dsi_pickle_fail(m, DS_ERR_FORMAT, "a call of something that is no global");
    }
    DS_TRY(is_new ? dsi_pickle_new(m, callee, args, &value)
                  : dsi_pickle_reduce(m, callee, args, &value));
    return push(m, value);
}

static ds_status run_build(dsi_pickle_machine *m)
{
    dsi_pickle *state = NULL;
    dsi_pickle *object = NULL;
    DS_TRY(pop(m, &state));
    DS_TRY(top(m, &object));
    return dsi_pickle_set_state(m, object, state);
}

static ds_status run_proto(dsi_pickle_machine *m)
{
    uint64_t version = 0;
    DS_TRY(take_number(m, 1, &version));
    m->framed = version == PROTOCOL_FRAMED;
    return version == PROTOCOL || version == PROTOCOL_FRAMED
               ? DS_OK
               : dsi_pickle_fail(m, DS_ERR_UNSUPPORTED,
                                 "the pickle has another protocol than 2, which torch.save writes, "
                                 "and 4");
}

static ds_status unknown(const dsi_pickle_machine *m, unsigned code)
{
    char what[160];
    (void)snprintf(what, sizeof what,
                   "the pickle has the opcode 0x%02x%s, which is not one of those that are read",
                   code,
                   code == 'i' || code == 'o' ? " (a call)"
                   : code == 0x95             ? " (a frame of protocol 4)"
                                              : "");
    return dsi_pickle_fail(m, DS_ERR_UNSUPPORTED, what);
}

/* What protocol 4 has besides. */
static ds_status run_framed(dsi_pickle_machine *m, unsigned code)
{
    switch (code) {
    case OP_FRAME:
        return run_frame(m);
    case OP_MEMOIZE:
        return put_at(m, m->n_memoized++);
    case OP_SHORT_BINUNICODE:
        return run_text(m, 1);
    case OP_STACK_GLOBAL:
        return run_stack_global(m);
    default:
        return unknown(m, code);
    }
}

static ds_status run_opcode(dsi_pickle_machine *m, unsigned code)
{
    switch (code) {
    case OP_PROTO:
        return run_proto(m);
    case OP_MARK:
        return push(m, &mark);
    case OP_GLOBAL:
        return run_global(m);
    case OP_BINPUT:
        return run_put(m, 1);
    case OP_LONG_BINPUT:
        return run_put(m, 4);
    case OP_BINGET:
        return run_get(m, 1);
    case OP_LONG_BINGET:
        return run_get(m, 4);
    case OP_NONE:
        return push(m, dsi_pickle_make(m, DSI_PICKLE_NONE));
    case OP_NEWTRUE:
        return push_truth(m, true);
    case OP_NEWFALSE:
        return push_truth(m, false);
    case OP_BININT:
        return run_int(m, 4);
    case OP_BININT1:
        return run_int(m, 1);
    case OP_BININT2:
        return run_int(m, 2);
    case OP_LONG1:
        return run_long(m);
    case OP_BINFLOAT:
        return run_float(m);
    case OP_BINUNICODE:
        return run_text(m, 4);
    case OP_SHORT_BINSTRING:
        return run_text(m, 1);
    case OP_EMPTY_TUPLE:
        return push(m, dsi_pickle_make(m, DSI_PICKLE_TUPLE));
    case OP_TUPLE:
        return run_marked_tuple(m);
    case OP_TUPLE1:
        return run_short_tuple(m, 1);
    case OP_TUPLE2:
        return run_short_tuple(m, 2);
    case OP_TUPLE3:
        return run_short_tuple(m, 3);
    case OP_EMPTY_LIST:
    case OP_EMPTY_SET:
        return push(m, dsi_pickle_make(m, DSI_PICKLE_LIST));
    case OP_APPEND:
        return run_extend_top(m, 1, DSI_PICKLE_LIST);
    case OP_APPENDS:
        return run_extend_marked(m, DSI_PICKLE_LIST);
    case OP_EMPTY_DICT:
        return push(m, dsi_pickle_make(m, DSI_PICKLE_DICT));
    case OP_SETITEM:
        return run_extend_top(m, 2, DSI_PICKLE_DICT);
    case OP_SETITEMS:
        return run_extend_marked(m, DSI_PICKLE_DICT);
    case OP_BINPERSID:
        return run_persistent(m);
    case OP_REDUCE:
        return run_call(m, false);
    case OP_NEWOBJ:
        return run_call(m, true);
    case OP_BUILD:
        return run_build(m);
    default:
        return m->framed ? run_framed(m, code) : unknown(m, code);
    }
}

static ds_status run(dsi_pickle_machine *m, dsi_pickle **value_out)
{
    for (;;) {
        const uint8_t *code = NULL;
        m->opcode = m->at;
        DS_TRY(take(m, 1, &code));
        if (*code == OP_STOP) {
            break;
        }
        DS_TRY(run_opcode(m, *code));
    }
    DS_TRY(pop(m, value_out));
    return m->n == 0 && m->at == m->source->n
               ? DS_OK
               : dsi_pickle_fail(m, DS_ERR_FORMAT, "the pickle does not end with its one value");
}

ds_status dsi_pickle_load(ds_ctx *ctx, const dsi_pickle_source *source, dsi_arena *arena,
                          dsi_pickle **value_out)
{
    dsi_pickle_machine m = {.ctx = ctx, .source = source, .arena = arena};
    dsi_pickle *value = NULL;
    if (source->n > DSI_PICKLE_BYTES) {
        return ds_fail(ctx, DS_ERR_LIMIT, "%s has %zu bytes; at most %zu are read", source->path,
                       source->n, DSI_PICKLE_BYTES);
    }
    ds_status status = run(&m, &value);
    free(m.stack);
    free(m.memo);
    DS_TRY(status);
    DS_TRY(dsi_pickle_check(ctx, source->path, value));
    *value_out = value;
    return DS_OK;
}
