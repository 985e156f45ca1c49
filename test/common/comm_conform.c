/* SPDX-License-Identifier: Apache-2.0 */
/* See comm_conform.h. */
#include "common/comm_conform.h"

#include "base/half.h"
#include "base/rng.h"
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SHARED_BYTES = 24 << 20 };

/* The random word of an element of a rank's input (splitmix64). */
static uint32_t word_of(const conform *t, uint64_t salt, uint32_t rank, uint32_t part, size_t i)
{
    uint64_t z = t->seed ^ (salt << 40) ^ ((uint64_t)(rank * 64 + part) << 24);
    z += (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (uint32_t)(z >> 32 ^ z);
}

/* Numbers of very different size, so that another order of additions gives other bits; sometimes
 * an infinity, a NaN, a zero of either sign, a subnormal. */
static float real_of(uint32_t word)
{
    const uint32_t odd = word % 4099;
    if (odd < 6) {
        const float special[6] = {INFINITY, -INFINITY, NAN, -0.0f, 0.0f, 0x1p-140f};
        return special[odd];
    }
    const float mantissa = 1.0f + (float)(word >> 9 & 0x3fff) / 16384.0f;
    const float value = ldexpf(mantissa, (int)(word >> 3 & 15) - 9);
    return word >> 31 != 0 ? -value : value;
}

static void set_value(ds_dtype dtype, void *to, size_t i, uint32_t word)
{
    switch (dtype) {
    case DS_DTYPE_F32:
        ((float *)to)[i] = real_of(word);
        break;
    case DS_DTYPE_F64:
        ((double *)to)[i] = (double)real_of(word) * 1.000000123;
        break;
    case DS_DTYPE_BF16:
        ((uint16_t *)to)[i] = dsi_f32_to_bf16(real_of(word));
        break;
    case DS_DTYPE_F16:
        ((uint16_t *)to)[i] = dsi_f32_to_f16(real_of(word));
        break;
    case DS_DTYPE_I64:
        ((int64_t *)to)[i] = (int64_t)((uint64_t)word << 31 ^ word);
        break;
    case DS_DTYPE_I32:
        ((int32_t *)to)[i] = (int32_t)word;
        break;
    case DS_DTYPE_BOOL:
        ((uint8_t *)to)[i] = word & 1u;
        break;
    default:
        ((uint8_t *)to)[i] = (uint8_t)word;
        break;
    }
}

static float f32_at(ds_dtype dtype, uint32_t word)
{
    uint16_t half;
    if (dtype == DS_DTYPE_F32) {
        return real_of(word);
    }
    set_value(dtype, &half, 0, word);
    return dtype == DS_DTYPE_BF16 ? dsi_bf16_to_f32(half) : dsi_f16_to_f32(half);
}

/* The canonical tree over ranks [low, low + n): the left side is the largest power of two. */
static double tree(const double *x, uint32_t low, uint32_t n, bool wide)
{
    if (n == 1) {
        return x[low];
    }
    uint32_t left = 1;
    while (left * 2 < n) {
        left *= 2;
    }
    const double a = tree(x, low, left, wide);
    const double b = tree(x, low + left, n - left, wide);
    return wide ? a + b : (double)((float)a + (float)b);
}

static double left_fold(const double *x, uint32_t n, bool wide)
{
    double sum = x[0];
    for (uint32_t r = 1; r < n; ++r) {
        sum = wide ? sum + x[r] : (double)((float)sum + (float)x[r]);
    }
    return sum;
}

static void expect_real(const conform *t, const conform_case *c, const uint32_t *words, void *to)
{
    const uint32_t size = t->comm->size;
    const bool wide = c->dtype == DS_DTYPE_F64;
    double x[256];
    x[0] = 0.0;
    for (uint32_t r = 0; r < size; ++r) {
        if (wide) {
            set_value(c->dtype, &x[r], 0, words[r]);
        } else {
            x[r] = (double)f32_at(c->dtype, words[r]);
        }
    }
    double value = x[0];
    if (c->reduction == DSI_REDUCE_MAX) {
        for (uint32_t r = 1; r < size; ++r) {
            value = isnan(value) || isnan(x[r]) ? NAN : x[r] > value ? x[r] : value;
        }
    } else {
        value = t->planted ? left_fold(x, size, wide) : tree(x, 0, size, wide);
        value = wide ? value * (double)c->factor : (double)((float)value * c->factor);
    }
    const float narrow = isnan(value) ? dsi_bits_f32(0x7fc00000u) : (float)value;
    const uint64_t nan_bits = UINT64_C(0x7ff8000000000000);
    const uint16_t half =
        c->dtype == DS_DTYPE_BF16 ? dsi_f32_to_bf16(narrow) : dsi_f32_to_f16(narrow);
    if (wide) {
        memcpy(to, isnan(value) ? (const void *)&nan_bits : (const void *)&value, 8);
    } else if (c->dtype == DS_DTYPE_F32) {
        memcpy(to, &narrow, 4);
    } else {
        memcpy(to, &half, 2);
    }
}

static void expect_integer(const conform *t, const conform_case *c, const uint32_t *words, void *to)
{
    const size_t width = ds_dtype_bytes(c->dtype);
    uint64_t sum = 0;
    int64_t most = INT64_MIN;
    for (uint32_t r = 0; r < t->comm->size; ++r) {
        uint64_t bits = 0;
        set_value(c->dtype, &bits, 0, words[r]);
        const int64_t value = c->dtype == DS_DTYPE_I8    ? (int8_t)bits
                              : c->dtype == DS_DTYPE_I32 ? (int32_t)bits
                                                         : (int64_t)bits;
        sum += (uint64_t)value;
        most = value > most ? value : most;
    }
    const uint64_t result = c->reduction == DSI_REDUCE_MAX ? (uint64_t)most : sum;
    memcpy(to, &result, width); /* little endian */
}

/* Element i of the reduction of all ranks. */
static void expect_reduced(const conform *t, const conform_case *c, uint32_t part, size_t i,
                           void *to)
{
    uint32_t words[256];
    for (uint32_t r = 0; r < t->comm->size; ++r) {
        words[r] = word_of(t, c->salt, r, part, i);
    }
    const bool real = c->dtype == DS_DTYPE_F32 || c->dtype == DS_DTYPE_BF16 ||
                      c->dtype == DS_DTYPE_F16 || c->dtype == DS_DTYPE_F64;
    if (real) {
        expect_real(t, c, words, to);
    } else {
        expect_integer(t, c, words, to);
    }
}

/* Elements that rank a sends to rank b in an all-to-all: uneven, sometimes none. */
static size_t pair_count(const conform *t, const conform_case *c, uint32_t part, uint32_t a,
                         uint32_t b)
{
    const size_t most = c->counts[part] / t->comm->size + 2;
    const uint32_t word = word_of(t, c->salt + 99, a * 16 + b, part, 3);
    return word % 5 == 0 ? 0 : word / 5 % most;
}

static void *take(conform *t, conform_case *c, bool symmetric, size_t bytes)
{
    if (!symmetric) {
        return c->owned[c->n_owned++] = calloc(1, bytes + 64);
    }
    t->shared_used = (t->shared_used + 63) / 64 * 64;
    char *memory = t->shared + t->shared_used;
    t->shared_used += bytes + 64;
    if (t->shared_used > t->shared_bytes) {
        (void)fprintf(stderr, "the test's symmetric memory is too small\n");
        abort();
    }
    return memory;
}

static void begin_part(conform *t, conform_case *c, uint32_t p)
{
    const uint32_t size = t->comm->size;
    const uint32_t rank = t->comm->rank;
    const size_t width = ds_dtype_bytes(c->dtype);
    const size_t count = c->counts[p];
    const size_t slice = dsi_comm_slice(count, size);
    size_t n_in = count;
    size_t n_out = count;
    size_t first = 0; /* of the own input, as an element of the whole */
    if (c->kind == DS_COMM_ALL_TO_ALL) {
        c->pair_counts[p] = calloc(2 * (size_t)size, sizeof(size_t));
        n_in = n_out = 0;
        for (uint32_t r = 0; r < size; ++r) {
            n_in += c->pair_counts[p][r] = pair_count(t, c, p, rank, r);
            n_out += c->pair_counts[p][size + r] = pair_count(t, c, p, r, rank);
        }
    } else if (c->kind == DS_COMM_ALL_GATHER) {
        first = slice * rank < count ? slice * rank : count;
        n_in = count - first < slice ? count - first : slice;
    } else if (c->kind == DS_COMM_REDUCE_SCATTER) {
        n_out = slice;
    }
    /* the same offsets on each rank: room for the largest */
    const size_t room = (count + slice * 2 + (size_t)size * 4 + 8) * width;
    char *in =
        take(t, c, c->symmetric, c->kind == DS_COMM_ALL_TO_ALL ? room + count * width : room);
    char *out = in;
    if (!c->in_place) {
        out = take(t, c, c->symmetric && p % 2 == 0, room + count * width);
        memset(out, 0xa5, n_out * width);
    } else if (c->kind == DS_COMM_ALL_GATHER) {
        memset(out, 0xa5, n_out * width);
        in = out + first * width;
    } else if (c->kind == DS_COMM_REDUCE_SCATTER) {
        out = in + slice * rank * width;
    }
    const bool sends = c->kind != DS_COMM_RECV && (c->kind != DS_COMM_BROADCAST || rank == c->peer);
    for (size_t i = 0; i < n_in && sends; ++i) {
        set_value(c->dtype, in, i, word_of(t, c->salt, rank, p, first + i));
    }
    c->parts[p] = (dsi_comm_part){.in = in,
                                  .out = out,
                                  .count = count,
                                  .counts_in = c->pair_counts[p],
                                  .counts_out = c->pair_counts[p] + size};
    if (c->kind != DS_COMM_ALL_TO_ALL) {
        c->parts[p].counts_in = c->parts[p].counts_out = NULL;
    }
    if (c->kind == DS_COMM_RECV) {
        c->parts[p].in = NULL;
    } else if (c->kind == DS_COMM_SEND) {
        c->parts[p].out = NULL;
    }
}

static void failed(conform *t, const conform_case *c, const char *text)
{
    if (++t->n_failed <= 5) {
        (void)fprintf(stderr, "rank %u of %u (%s): %s %s of %s%s%s, %u parts: %s\n", t->comm->rank,
                      t->comm->size, t->comm->transport->name, c->what, dsi_coll_name(c->kind),
                      ds_dtype_name(c->dtype), c->symmetric ? ", symmetric" : "",
                      c->in_place ? ", in place" : "", c->n_parts, text);
    }
}

void conform_begin(conform *t, conform_case *c, uint64_t salt)
{
    c->salt = salt;
    c->symmetric = c->symmetric && t->shared != NULL;
    (void)snprintf(c->what, sizeof c->what, "case %" PRIu64, salt);
    for (uint32_t p = 0; p < c->n_parts; ++p) {
        begin_part(t, c, p);
    }
    const dsi_comm_call call = {.kind = c->kind,
                                .dtype = c->dtype,
                                .reduction = c->reduction,
                                .factor = c->factor,
                                .peer = c->peer,
                                .parts = c->parts,
                                .n_parts = c->n_parts,
                                .symmetric = c->symmetric,
                                .what = c->what};
    c->ticket = 0;
    if (dsi_comm_start(t->comm, &call, &c->ticket) < 0) {
        failed(t, c, ds_ctx_error(t->comm->ctx));
    }
}

/* What element i of the output of part p must be. */
static void expect(const conform *t, const conform_case *c, uint32_t p, size_t i, void *to)
{
    const uint32_t rank = t->comm->rank;
    const uint32_t size = t->comm->size;
    const size_t slice = dsi_comm_slice(c->counts[p], size);
    uint32_t from = c->peer;
    switch (c->kind) {
    case DS_COMM_ALL_REDUCE:
        expect_reduced(t, c, p, i, to);
        return;
    case DS_COMM_REDUCE_SCATTER:
        memset(to, 0, 8);
        if (slice * rank + i < c->counts[p]) {
            expect_reduced(t, c, p, slice * rank + i, to);
        }
        return;
    case DS_COMM_ALL_GATHER:
        from = (uint32_t)(i / slice);
        break;
    case DS_COMM_ALL_TO_ALL:
        for (from = 0; i >= pair_count(t, c, p, from, rank); ++from) {
            i -= pair_count(t, c, p, from, rank);
        }
        for (uint32_t r = 0; r < rank; ++r) {
            i += pair_count(t, c, p, from, r);
        }
        break;
    default:
        break;
    }
    set_value(c->dtype, to, 0, word_of(t, c->salt, from, p, i));
}

void conform_end(conform *t, conform_case *c)
{
    dsi_comm_times times = {-1.0, -1.0};
    const size_t width = ds_dtype_bytes(c->dtype);
    if (c->ticket == 0 || dsi_comm_wait(t->comm, c->ticket, &times) < 0) {
        failed(t, c, ds_ctx_error(t->comm->ctx));
    } else if (times.seconds < 0.0 || times.waited < 0.0 || times.waited > times.seconds + 1e-3) {
        failed(t, c, "times make no sense");
    }
    for (uint32_t p = 0; p < c->n_parts; ++p) {
        size_t n = c->kind == DS_COMM_REDUCE_SCATTER ? dsi_comm_slice(c->counts[p], t->comm->size)
                   : c->kind == DS_COMM_SEND         ? 0
                                                     : c->counts[p];
        if (c->kind == DS_COMM_ALL_TO_ALL) {
            n = 0;
            for (uint32_t r = 0; r < t->comm->size; ++r) {
                n += c->parts[p].counts_out[r];
            }
        }
        for (size_t i = 0; i < n; ++i) {
            uint64_t want = 0;
            expect(t, c, p, i, &want);
            if (memcmp(&want, (const char *)c->parts[p].out + i * width, width) != 0) {
                uint64_t got = 0;
                char text[120];
                memcpy(&got, (const char *)c->parts[p].out + i * width, width);
                (void)snprintf(text, sizeof text,
                               "part %u of %zu, element %zu: %" PRIx64 ", expected %" PRIx64, p,
                               c->counts[p], i, got, want);
                failed(t, c, text);
                break;
            }
        }
    }
    for (uint32_t p = 0; p < c->n_parts; ++p) {
        free(c->pair_counts[p]);
        c->pair_counts[p] = NULL;
    }
    for (; c->n_owned > 0; --c->n_owned) {
        free(c->owned[c->n_owned - 1]);
    }
}

void conform_one(conform *t, conform_case c, uint64_t salt)
{
    const size_t used = t->shared_used;
    conform_begin(t, &c, salt);
    conform_end(t, &c);
    t->shared_used = used;
}

static const ds_comm_op group_kinds[5] = {DS_COMM_ALL_REDUCE, DS_COMM_REDUCE_SCATTER,
                                          DS_COMM_ALL_GATHER, DS_COMM_BROADCAST,
                                          DS_COMM_ALL_TO_ALL};

static conform_case make_case(const conform *t, ds_comm_op kind, ds_dtype dtype, uint32_t variant)
{
    conform_case c = {.kind = kind,
                      .dtype = dtype,
                      .factor = 1.0f,
                      .peer = variant % t->comm->size,
                      .symmetric = variant / 2 % 2 == 1,
                      .in_place = variant % 2 == 1 && kind != DS_COMM_ALL_TO_ALL};
    const bool real = dtype == DS_DTYPE_F32 || dtype == DS_DTYPE_BF16 || dtype == DS_DTYPE_F16 ||
                      dtype == DS_DTYPE_F64;
    if (real) {
        c.factor = variant % 3 == 0 ? 1.0f : 1.0f / (float)t->comm->size;
    }
    if (dtype == DS_DTYPE_BOOL || variant % 7 == 6) {
        c.reduction = DSI_REDUCE_MAX;
    }
    return c;
}

void conform_collectives(conform *t)
{
    static const size_t sizes[] = {0, 1, 2, 3, 7, 8, 9, 63, 65, 1000, 4099, 20011};
    uint64_t salt = 1000;
    for (uint32_t k = 0; k < 5; ++k) {
        for (uint32_t d = DS_DTYPE_F32; d < DS_DTYPE_COUNT; ++d) {
            for (uint32_t s = 0; s < sizeof sizes / sizeof sizes[0]; ++s) {
                conform_case c = make_case(t, group_kinds[k], (ds_dtype)d, s + d + k);
                if (sizes[s] > 5000 && c.dtype != DS_DTYPE_F32 && c.dtype != DS_DTYPE_BF16) {
                    continue;
                }
                c.counts[0] = sizes[s];
                c.n_parts = 1;
                conform_one(t, c, salt++);
            }
            conform_case many = make_case(t, group_kinds[k], (ds_dtype)d, d + 2 * k);
            for (; many.n_parts < CONFORM_MAX_PARTS; ++many.n_parts) {
                many.counts[many.n_parts] = many.n_parts % 5 == 0 ? 0 : sizes[many.n_parts] + 5;
            }
            conform_one(t, many, salt++);
        }
    }
    if (dsi_comm_barrier(t->comm, "after the collectives") < 0) {
        failed(t, &(conform_case){.what = "barrier"}, ds_ctx_error(t->comm->ctx));
    }
}

void conform_large(conform *t, size_t count)
{
    uint64_t salt = 5000;
    for (uint32_t k = 0; k < 5; ++k) {
        for (uint32_t v = 0; v < 4; ++v) {
            conform_case c = make_case(t, group_kinds[k], v < 2 ? DS_DTYPE_F32 : DS_DTYPE_BF16, v);
            c.symmetric = v % 2 == 1;
            c.in_place = v / 2 % 2 == 1 && group_kinds[k] != DS_COMM_ALL_TO_ALL;
            c.counts[0] = 13;
            c.counts[1] = count + v;
            c.counts[2] = 77;
            c.n_parts = 3;
            conform_one(t, c, salt++);
        }
    }
}

/* Waits for n started cases in an order of this rank's own. */
static void end_in_any_order(conform *t, conform_case *cases, uint32_t n, uint64_t salt)
{
    bool done[64] = {false};
    for (uint32_t left = n; left > 0; --left) {
        uint64_t nth = dsi_rng_below(t->seed + salt, t->comm->rank, left, left);
        for (uint32_t i = 0; i < n; ++i) {
            if (!done[i] && nth-- == 0) {
                conform_end(t, &cases[i]);
                done[i] = true;
                break;
            }
        }
    }
}

void conform_async(conform *t, uint32_t rounds)
{
    uint64_t salt = 20000;
    conform_case cases[20];
    for (uint32_t round = 0; round < rounds; ++round) {
        t->shared_used = 0;
        for (uint32_t i = 0; i < 20; ++i) {
            cases[i] = make_case(t, group_kinds[(round + i) % 5],
                                 i % 3 == 0 ? DS_DTYPE_BF16 : DS_DTYPE_F32, round + i * 3);
            cases[i].counts[0] = 1 + (round * 37 + i * 101) % 3000;
            cases[i].counts[1] = i % 4 == 0 ? 30000 : 5;
            cases[i].n_parts = 2;
            conform_begin(t, &cases[i], salt++);
        }
        end_in_any_order(t, cases, 20, salt);
    }
    t->shared_used = 0;
}

void conform_pairs(conform *t)
{
    const uint32_t size = t->comm->size;
    const uint32_t rank = t->comm->rank;
    const size_t sizes[5] = {1, 0, 100, 5000, 70001};
    for (uint32_t s = 0; s < 5 && size > 1; ++s) {
        for (uint32_t step = 1; step < size; ++step) {
            conform_case send = make_case(t, DS_COMM_SEND, DS_DTYPE_BF16, 2 * (s % 2));
            send.peer = (rank + step) % size;
            send.counts[0] = sizes[s];
            send.counts[1] = 3;
            send.n_parts = 2;
            conform_case recv = send;
            recv.kind = DS_COMM_RECV;
            recv.symmetric = false;
            recv.peer = (rank + size - step) % size;
            conform_case between = make_case(t, DS_COMM_ALL_REDUCE, DS_DTYPE_F32, 0);
            between.counts[0] = 64;
            between.n_parts = 1;
            t->shared_used = 0;
            if (rank % 2 == 0) { /* the order of messages and collectives is free */
                conform_begin(t, &send, 30000 + s * 64 + step);
                conform_begin(t, &between, 31000 + s * 64 + step);
                conform_begin(t, &recv, 30000 + s * 64 + step);
            } else {
                conform_begin(t, &recv, 30000 + s * 64 + step);
                conform_begin(t, &send, 30000 + s * 64 + step);
                conform_begin(t, &between, 31000 + s * 64 + step);
            }
            conform_end(t, &recv);
            conform_end(t, &between);
            conform_end(t, &send);
        }
    }
    t->shared_used = 0;
}

void conform_splits(conform *t)
{
    const uint32_t rank = t->comm->rank;
    for (uint32_t form = 0; form < 3; ++form) {
        const uint32_t color = form == 0   ? rank % 2
                               : form == 1 ? (rank == 0 ? DSI_COLOR_NONE : 5)
                                           : rank / 2;
        const uint32_t key = form == 2 ? 100 - rank : 0; /* reversed */
        dsi_comm *group;
        if (dsi_comm_split(t->comm, color, key, &group) < 0) {
            failed(t, &(conform_case){.what = "split"}, ds_ctx_error(t->comm->ctx));
            return;
        }
        if ((group == NULL) != (color == DSI_COLOR_NONE)) {
            failed(t, &(conform_case){.what = "split"}, "a group too many or too few");
        }
        if (group == NULL) {
            continue;
        }
        if (form == 2 && group->size == 2 && group->rank != 1 - rank % 2) {
            failed(t, &(conform_case){.what = "split"}, "the key does not order the group");
        }
        conform inside = {.comm = group, .seed = t->seed + color, .planted = t->planted};
        for (uint32_t k = 0; k < 5; ++k) {
            conform_case c = make_case(&inside, group_kinds[k], DS_DTYPE_F32, k);
            c.symmetric = false;
            c.counts[0] = 999;
            c.n_parts = 1;
            conform_one(&inside, c, 40000 + k);
        }
        conform_async(&inside, 1);
        /* the parent's symmetric memory serves its groups */
        inside.shared = t->shared;
        inside.shared_bytes = t->shared_bytes;
        conform_async(&inside, 1);
        t->n_failed += inside.n_failed;
        dsi_comm_destroy(&group);
    }
}

void conform_random(conform *t, uint32_t n_groups)
{
    conform_case cases[8];
    for (uint32_t g = 0; g < n_groups; ++g) {
        t->shared_used = 0;
        const uint32_t n = 1 + dsi_rng_u32(t->seed, 1, 0, g) % 8;
        for (uint32_t i = 0; i < n; ++i) {
            const uint32_t word = dsi_rng_u32(t->seed, 2, i, g);
            cases[i] = make_case(t, group_kinds[word % 5], (ds_dtype)(DS_DTYPE_F32 + word / 5 % 9),
                                 word / 64);
            cases[i].n_parts = 1 + word / 4096 % 3;
            for (uint32_t p = 0; p < cases[i].n_parts; ++p) {
                cases[i].counts[p] = dsi_rng_u32(t->seed, 3 + p, i, g) % 40;
            }
            conform_begin(t, &cases[i], (uint64_t)g * 8 + i);
        }
        end_in_any_order(t, cases, n, g);
    }
    t->shared_used = 0;
}

uint32_t conform_all(dsi_comm *comm, uint64_t seed, bool planted)
{
    conform t = {.comm = comm, .seed = seed, .shared_bytes = SHARED_BYTES, .planted = planted};
    void *shared = NULL;
    if (dsi_comm_symmetric(comm, SHARED_BYTES, &shared) < 0) {
        failed(&t, &(conform_case){.what = "symmetric"}, ds_ctx_error(comm->ctx));
        return t.n_failed;
    }
    t.shared = shared;
    conform_collectives(&t);
    conform_pairs(&t);
    conform_async(&t, 3);
    conform_splits(&t);
    return t.n_failed;
}
