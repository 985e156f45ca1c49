/* SPDX-License-Identifier: Apache-2.0 */
/* Pickles that DeepSpeed and torch wrote (test/golden/io/pickles), changed opcode by opcode: each
 * is a tree within its bounds or an error that says why, and under sanitizers nothing else.
 *
 * A change is of a list of opcodes and not of bytes, so that most of a pickle still runs: opcodes
 * are left out, said again, exchanged, turned into others of the same operands, given numbers at
 * the edges, other texts, other globals, and taken from other pickles. What cannot be read ends
 * early: so a test counts both kinds. DS_PICKLE_MUTATIONS says how many there are, DS_PICKLE_SEED
 * which. */
#include "base/arena.h"
#include "common/check.h"
#include "common/scratch.h"
#include "io/pickle.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SEEDS = 8,
    MOST_OPCODES = 8192,
    MOST_BYTES = 1 << 17,
    STORAGE_BYTES = 1 << 20,
    MOST_SIZES = 1024,
    FEW = 12000 /* changes of a quick run */
};

static const char *const names[SEEDS] = {"zero1_model",     "zero2_optim", "zero3_model",
                                         "zero3_optim",     "bf16_optim",  "tensor_model",
                                         "universal_optim", "distcp"};

/* Operands of an opcode: so many bytes, a length of so many bytes and its text, or two lines. */
typedef struct form {
    unsigned char code;
    signed char operand; /* >= 0: bytes; -1, -4, -8: a text with a length of so many; LINES */
} form;
enum { LINES = -100, UNKNOWN = -101 };

static const form forms[] = {{0x80, 1},
                             {'.', 0},
                             {'(', 0},
                             {'c', LINES},
                             {'q', 1},
                             {'r', 4},
                             {'h', 1},
                             {'j', 4},
                             {'N', 0},
                             {0x88, 0},
                             {0x89, 0},
                             {'J', 4},
                             {'K', 1},
                             {'M', 2},
                             {0x8a, -1},
                             {'G', 8},
                             {'X', -4},
                             {'U', -1},
                             {')', 0},
                             {'t', 0},
                             {0x85, 0},
                             {0x86, 0},
                             {0x87, 0},
                             {']', 0},
                             {0x8f, 0},
                             {'a', 0},
                             {'e', 0},
                             {'}', 0},
                             {'s', 0},
                             {'u', 0},
                             {'Q', 0},
                             {'R', 0},
                             {0x81, 0},
                             {'b', 0},
                             {0x95, 8},
                             {0x94, 0},
                             {0x8c, -1},
                             {0x93, 0},
                             /* that the machine refuses */
                             {'0', 0},
                             {'1', 0},
                             {'2', 0},
                             {'l', 0},
                             {'d', 0},
                             {'o', 0},
                             {'B', -4},
                             {'C', -1},
                             {0x8b, -4},
                             {0x8d, -8},
                             {0x8e, -8},
                             {0x96, -8},
                             {0x97, 0},
                             {0x98, 0},
                             {0x90, 0},
                             {0x91, 0},
                             {0x92, 0},
                             {0x82, 1},
                             {0x83, 2},
                             {0x84, 4}};
enum { FORMS = sizeof forms / sizeof *forms };

typedef struct piece {
    size_t at, n; /* of the bytes of a seed */
} piece;

typedef struct seed {
    char *bytes;
    size_t n;
    piece pieces[MOST_OPCODES];
    size_t n_pieces;
} seed;

typedef struct size_row {
    char name[32], key[24];
    size_t bytes;
} size_row;

static ds_ctx *ctx;
static seed seeds[SEEDS];
static size_row sizes[MOST_SIZES];
static size_t n_sizes;
static unsigned char storage[STORAGE_BYTES];
static uint64_t random_state;

static uint64_t draw(uint64_t below)
{
    uint64_t z = random_state += 0x9e3779b97f4a7c15u; /* splitmix64 */
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (z ^ (z >> 31)) % below;
}

/* ---- seeds ----------------------------------------------------------------------------------- */

static int operand_of(unsigned char code)
{
    for (size_t i = 0; i < FORMS; ++i) {
        if (forms[i].code == code) {
            return forms[i].operand;
        }
    }
    return UNKNOWN;
}

static uint64_t number_at(const char *bytes, int n)
{
    uint64_t value = 0;
    for (int i = n; i-- > 0;) {
        value = value << 8 | (unsigned char)bytes[i];
    }
    return value;
}

/* Bytes of the opcode at `at`, 0 where it is not whole. */
static size_t length_of(const char *bytes, size_t n, size_t at)
{
    const int operand = operand_of((unsigned char)bytes[at]);
    size_t length = 1;
    if (operand == LINES) {
        for (int lines = 0; lines < 2; ++lines) {
            const char *end =
                at + length < n ? memchr(bytes + at + length, '\n', n - at - length) : NULL;
            if (end == NULL) {
                return 0;
            }
            length = (size_t)(end - bytes) - at + 1;
        }
        return length;
    }
    if (operand >= 0) {
        return at + 1 + (size_t)operand <= n ? 1 + (size_t)operand : 0;
    }
    if (operand == UNKNOWN || at + 1 + (size_t)-operand > n) {
        return 0;
    }
    const uint64_t text = number_at(bytes + at + 1, -operand);
    length += (size_t)-operand;
    return text <= n - at - length ? length + (size_t)text : 0;
}

static void read_seed(size_t i)
{
    char path[512];
    seed *s = &seeds[i];
    (void)snprintf(path, sizeof path, DS_SOURCE_DIR "/test/golden/io/pickles/%s.pkl", names[i]);
    s->bytes = scratch_read(path, &s->n);
    for (size_t at = 0; at < s->n;) {
        const size_t n = length_of(s->bytes, s->n, at);
        assert_true(n > 0 && s->n_pieces < MOST_OPCODES);
        s->pieces[s->n_pieces++] = (piece){at, n};
        at += n;
    }
}

static void read_sizes(void)
{
    FILE *file = fopen(DS_SOURCE_DIR "/test/golden/io/pickles/sizes.txt", "r");
    assert_non_null(file);
    while (n_sizes < MOST_SIZES && fscanf(file, "%31s %23s %zu", sizes[n_sizes].name,
                                          sizes[n_sizes].key, &sizes[n_sizes].bytes) == 3) {
        assert_true(sizes[n_sizes++].bytes <= STORAGE_BYTES);
    }
    assert_int_equal(fclose(file), 0);
}

static bool find_storage(void *user, const char *key, const uint8_t **data_out, size_t *bytes_out)
{
    for (size_t i = 0; i < n_sizes; ++i) {
        if (strcmp(sizes[i].name, user) == 0 && strcmp(sizes[i].key, key) == 0) {
            *data_out = storage + STORAGE_BYTES - sizes[i].bytes; /* what lies behind is no one's */
            *bytes_out = sizes[i].bytes;
            return true;
        }
    }
    return false;
}

/* ---- changes --------------------------------------------------------------------------------- */

/* A pickle as a list of opcodes, each of its own bytes. */
typedef struct item {
    const char *bytes;
    size_t n;
} item;

typedef struct program {
    item items[MOST_OPCODES + 64];
    size_t n;
    char own[1 << 14]; /* bytes of changed opcodes */
    size_t used;
} program;

static void begin(program *p, const seed *s)
{
    p->n = s->n_pieces;
    p->used = 0;
    for (size_t i = 0; i < s->n_pieces; ++i) {
        p->items[i] = (item){s->bytes + s->pieces[i].at, s->pieces[i].n};
    }
}

static void put(program *p, size_t at, item what)
{
    if (p->n < sizeof p->items / sizeof *p->items) {
        memmove(&p->items[at + 1], &p->items[at], (p->n - at) * sizeof *p->items);
        p->items[at] = what;
        p->n += 1;
    }
}

static void drop(program *p, size_t at)
{
    memmove(&p->items[at], &p->items[at + 1], (p->n - at - 1) * sizeof *p->items);
    p->n -= 1;
}

/* Room for an opcode's bytes, NULL: there is none. */
static char *own(program *p, size_t n)
{
    if (n > sizeof p->own - p->used) {
        return NULL;
    }
    char *room = p->own + p->used;
    p->used += n;
    return room;
}

/* An opcode's operand of n bytes becomes a number at an edge, or one near to what it was. */
static void change_number(char *at, size_t n)
{
    static const uint64_t edges[] = {
        0,          1,          2,          3,         0x7f,
        0x80,       0xff,       0x7fff,     0x8000,    0xffff,
        0x7fffffff, 0x80000000, 0xffffffff, INT64_MAX, (uint64_t)INT64_MIN,
        UINT64_MAX};
    uint64_t value = number_at(at, n > 8 ? 8 : (int)n);
    switch (draw(4)) {
    case 0:
        value = edges[draw(sizeof edges / sizeof *edges)];
        break;
    case 1:
        value += draw(5) - 2;
        break;
    case 2:
        value ^= (uint64_t)1 << draw(8 * (n > 8 ? 8 : n));
        break;
    default:
        value = draw(UINT64_MAX);
        break;
    }
    for (size_t i = 0; i < n && i < 8; ++i) {
        at[i] = (char)(value >> (8 * i) & 0xff);
    }
}

/* Changes what stands behind an opcode, its number, length or text. */
static void change_operand(program *p, size_t at)
{
    const item was = p->items[at];
    const int operand = operand_of((unsigned char)was.bytes[0]);
    char *room = was.n > 1 && operand != UNKNOWN ? own(p, was.n) : NULL;
    if (room == NULL) {
        return;
    }
    memcpy(room, was.bytes, was.n);
    p->items[at].bytes = room;
    if (operand > 0) {
        change_number(room + 1, (size_t)operand);
    } else if (operand < 0 && operand != LINES && draw(2) == 0) {
        change_number(room + 1, (size_t)-operand);
    } else {
        const size_t first = operand == LINES ? 1 : 1 + (size_t)-operand;
        if (was.n > first) {
            room[first + draw(was.n - first)] = (char)draw(256);
        }
    }
}

/* An opcode with the same operands. */
static void change_code(program *p, size_t at)
{
    const item was = p->items[at];
    const int operand = operand_of((unsigned char)was.bytes[0]);
    char *room = own(p, was.n);
    for (size_t tries = 0; tries < 64 && room != NULL; ++tries) {
        const form *f = &forms[draw(FORMS)];
        if (f->operand == operand) {
            memcpy(room, was.bytes, was.n);
            room[0] = (char)f->code;
            p->items[at].bytes = room;
            return;
        }
    }
}

/* An opcode, or some in a row, of any pickle. */
static void splice(program *p, size_t at)
{
    const seed *s = &seeds[draw(SEEDS)];
    const size_t first = draw(s->n_pieces), n = draw(4) == 0 ? 1 + draw(12) : 1;
    for (size_t i = 0; i < n && first + i < s->n_pieces; ++i) {
        const piece *from = &s->pieces[first + i];
        put(p, at + i, (item){s->bytes + from->at, from->n});
    }
}

/* A global of the pickle becomes another one, or a text and a number trade places. */
static void trade(program *p, size_t at)
{
    const unsigned char code = (unsigned char)p->items[at].bytes[0];
    for (size_t tries = 0; tries < 256; ++tries) {
        const size_t other = draw(p->n);
        const unsigned char own_code = (unsigned char)p->items[other].bytes[0];
        if (own_code == code || tries > 200) {
            const item was = p->items[at];
            p->items[at] = p->items[other];
            p->items[other] = was;
            return;
        }
    }
}

/* One opcode many times: what it makes is deep, wide, or empty. */
static void repeat(program *p, size_t at)
{
    static const char *const codes[] = {"(", "]", "}", ")", "\x85", "t",
                                        "a", "R", "b", "N", "s",    "\x94"};
    const char *code = codes[draw(sizeof codes / sizeof *codes)];
    for (size_t n = 1 + draw(300); n > 0; --n) {
        put(p, at, (item){code, 1});
    }
}

static void change(program *p)
{
    for (uint64_t n = 1 + draw(4); n > 0 && p->n > 2; --n) {
        const size_t at = draw(p->n);
        switch (draw(12)) {
        case 0:
            drop(p, at);
            break;
        case 1:
            put(p, at, p->items[at]);
            break;
        case 2:
            trade(p, at);
            break;
        case 3:
            change_code(p, at);
            break;
        case 4:
            splice(p, at);
            break;
        case 5:
            p->n = draw(8) == 0 ? at + 1 : p->n;
            break;
        case 6:
            draw(16) == 0 ? repeat(p, at) : drop(p, at);
            break;
        default:
            change_operand(p, at);
            break;
        }
    }
}

static size_t write_program(const program *p, char *bytes)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n && n + p->items[i].n <= MOST_BYTES; ++i) {
        memcpy(bytes + n, p->items[i].bytes, p->items[i].n);
        n += p->items[i].n;
    }
    return n;
}

/* ---- what comes of it ------------------------------------------------------------------------ */

/* Reads all that a tree has, so that a sanitizer sees what lies outside. */
static void use(const dsi_pickle *value, unsigned depth, size_t *budget)
{
    assert_non_null(value);
    assert_true(depth <= DSI_PICKLE_DEPTH);
    if (*budget == 0) {
        return;
    }
    *budget -= 1;
    if (value->kind == DSI_PICKLE_TENSOR && dsi_pickle_bytes(value->tensor) < 1 << 20) {
        uint8_t *room = malloc(dsi_pickle_bytes(value->tensor) + 1);
        assert_non_null(room);
        dsi_pickle_copy(value->tensor, room);
        free(room);
    }
    if (value->kind == DSI_PICKLE_DICT || value->kind == DSI_PICKLE_LIST ||
        value->kind == DSI_PICKLE_TUPLE) {
        for (size_t i = 0; i < value->list.n; ++i) {
            use(value->list.items[i], depth + 1, budget);
        }
    }
}

/* Whether it is accepted. */
static bool load(size_t which, const char *bytes, size_t n)
{
    dsi_arena *arena = NULL;
    dsi_pickle *value = NULL;
    uint8_t *exact = malloc(n + 1); /* a byte behind the last is no one's but this one's */
    assert_non_null(exact);
    memcpy(exact, bytes, n);
    const dsi_pickle_source source = {"changed", exact, n, find_storage,
                                      (void *)(uintptr_t)names[which]};
    size_t budget = 20000;
    assert_int_equal(dsi_arena_create((size_t)1 << 26, &arena), DS_OK);
    const ds_status status = dsi_pickle_load(ctx, &source, arena, &value);
    if (status == DS_OK) {
        use(value, 0, &budget);
    } else {
        assert_true(status < 0);
        assert_true(ds_ctx_error(ctx)[0] != '\0');
    }
    dsi_arena_destroy(&arena);
    free(exact);
    return status == DS_OK;
}

static long number_of(const char *name, long usual)
{
    const char *text = getenv(name);
    return text != NULL ? strtol(text, NULL, 10) : usual;
}

static void changed_pickles(void **state)
{
    static program p;
    static char bytes[MOST_BYTES];
    const long n = number_of("DS_PICKLE_MUTATIONS", FEW);
    size_t accepted = 0;
    (void)state;
    random_state = (uint64_t)number_of("DS_PICKLE_SEED", 1);
    for (size_t i = 0; i < SEEDS; ++i) {
        assert_true(load(i, seeds[i].bytes, seeds[i].n));
    }
    for (long i = 0; i < n; ++i) {
        const size_t which = draw(SEEDS);
        begin(&p, &seeds[which]);
        change(&p);
        accepted += load(which, bytes, write_program(&p, bytes));
    }
    print_message("%ld changed pickles, %zu accepted\n", n, accepted);
    /* both ways are taken often: neither do all fail at once, nor does nothing matter */
    assert_true(accepted > (size_t)n / 20 && accepted < (size_t)(n - n / 5));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(changed_pickles)};
    ctx = check_ctx(1);
    read_sizes();
    for (size_t i = 0; i < SEEDS; ++i) {
        read_seed(i);
    }
    const int rc = cmocka_run_group_tests(tests, NULL, NULL);
    for (size_t i = 0; i < SEEDS; ++i) {
        free(seeds[i].bytes);
    }
    ds_ctx_destroy(&ctx);
    return rc;
}
