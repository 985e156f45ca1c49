/* SPDX-License-Identifier: Apache-2.0 */
/* Redistribution executed on simulated ranks: every pair of placements, and random walks over
 * placements, against the logical value. Bits, padding included.
 * labels: threads long
 *
 * The oracle knows no moves: a value is a table of addends, one row for each index of the group
 * along its Partial axes; a change of placement adds rows up (a plain recursive tree) or adds rows
 * of identities; a rank's memory is read off the table element by element.
 */
#include "base/half.h"
#include "base/rng.h"
#include "common/check.h"
#include "common/sim_ranks.h"
#include "place/redistribute_run.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_ELEMENTS = 6 * 7 * 3, MOST_STOPS = 6, MOST_ROWS = 8, MOST_JOBS = 3000 };

/* A walk over placements; a pair has two stops. */
typedef struct job {
    ds_meta meta;
    uint32_t n_stops;
    dsi_placement stop[MOST_STOPS];
    dsi_moves moves[MOST_STOPS]; /* [i]: from stop i-1 to stop i */
    uint32_t mask[MOST_STOPS];   /* Partial axes of the stop */
    uint32_t *rows[MOST_STOPS];  /* the table, [row][element], as bits */
} job;

typedef struct suite {
    dsi_mesh mesh;
    job *jobs;
    uint32_t n_jobs;
    uint32_t n_refused;
} suite;

static uint64_t drawn;

static uint32_t draw(uint32_t n)
{
    return (uint32_t)dsi_rng_below(11, 0, drawn++, n);
}

/* ---- the oracle ------------------------------------------------------------------------------ */

static uint32_t random_bits(ds_dtype dtype)
{
    if (dtype == DS_DTYPE_I32) {
        return (uint32_t)((int32_t)draw(2001) - 1000);
    }
    const float scale = dsi_bits_f32((117 + draw(20)) << 23);
    const float value = draw(20) == 0 ? -0.0f : scale * dsi_rng_normal(5, 1, drawn++);
    return dtype == DS_DTYPE_BF16 ? dsi_f32_to_bf16(value) : dsi_f32_bits(value);
}

static float to_float(ds_dtype dtype, uint32_t bits)
{
    return dtype == DS_DTYPE_BF16 ? dsi_bf16_to_f32((uint16_t)bits) : dsi_bits_f32(bits);
}

/* The canonical tree: the left side is the largest power of two below n. */
static float tree(ds_dtype dtype, const uint32_t *bits, uint32_t n)
{
    if (n == 1) {
        return to_float(dtype, bits[0]);
    }
    uint32_t half = 1;
    while (half * 2 < n) {
        half *= 2;
    }
    return tree(dtype, bits, half) + tree(dtype, bits + half, n - half);
}

static uint32_t add_bits(ds_dtype dtype, const uint32_t *bits, uint32_t n)
{
    if (dtype == DS_DTYPE_I32) {
        uint32_t sum = 0;
        for (uint32_t i = 0; i < n; ++i) {
            sum += bits[i];
        }
        return sum;
    }
    const float sum = tree(dtype, bits, n);
    return dtype == DS_DTYPE_BF16 ? dsi_f32_to_bf16(sum) : dsi_f32_bits(sum);
}

static uint32_t identity(ds_dtype dtype)
{
    return dtype == DS_DTYPE_I32 ? 0 : dtype == DS_DTYPE_BF16 ? 0x8000u : 0x80000000u;
}

/* Row of a rank in the table of a mask. */
static uint32_t row_of(const dsi_mesh *mesh, uint32_t mask, uint32_t rank)
{
    const dsi_axes axes = dsi_axes_of(mask);
    return dsi_mesh_group(mesh, &axes, rank).index;
}

static uint32_t *make_rows(void)
{
    uint32_t *rows = calloc((size_t)MOST_ROWS * MOST_ELEMENTS, sizeof *rows);
    assert_non_null(rows);
    return rows;
}

/* Whether what stays of a sum would give another one later, so that all of it is made: masks of the
 * axes before and after. */
static bool is_made_whole(const dsi_mesh *mesh, ds_dtype dtype, uint32_t before, uint32_t after)
{
    uint32_t block = 1;
    bool inner = true;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        const bool ends = ((before & ~after) >> a & 1u) != 0;
        inner = inner && !(block > 1 && ((before & after) >> a & 1u) != 0);
        block *= ends ? mesh->size[a] : 1;
    }
    const bool keeps = inner && (block & (block - 1)) == 0 && dtype == DS_DTYPE_F32;
    return dtype != DS_DTYPE_I32 && (before & after) != 0 &&
           ((after & ~before) != 0 || (block > 1 && !keeps));
}

/* Table of the next stop from that of the last: sums along what is no longer Partial, then rows of
 * identities along what became so. */
static uint32_t *next_rows(const dsi_mesh *mesh, const job *j, uint32_t i)
{
    const uint32_t before = j->mask[i - 1];
    const uint32_t after = j->mask[i];
    const bool whole = is_made_whole(mesh, j->meta.dtype, before, after);
    const dsi_axes sum = dsi_axes_of(whole ? before : before & ~after);
    const dsi_axes made = dsi_axes_of(whole ? after : after & ~before);
    const uint32_t n = (uint32_t)ds_shape_count(j->meta.shape);
    uint32_t *rows = make_rows();
    for (uint32_t rank = 0; rank < mesh->n_ranks; ++rank) {
        uint32_t *row = rows + (size_t)row_of(mesh, after, rank) * n;
        for (uint32_t e = 0; e < n; ++e) {
            uint32_t bits[MOST_ROWS];
            const uint32_t size = dsi_axes_size(mesh, &sum);
            for (uint32_t k = 0; k < size; ++k) {
                const uint32_t peer = dsi_mesh_peer(mesh, &sum, rank, k);
                bits[k] = j->rows[i - 1][(size_t)row_of(mesh, before, peer) * n + e];
            }
            const bool keeps = dsi_mesh_group(mesh, &made, rank).index == 0;
            row[e] = keeps ? size == 1 ? bits[0] : add_bits(j->meta.dtype, bits, size)
                           : identity(j->meta.dtype);
        }
    }
    return rows;
}

static void put(ds_dtype dtype, void *memory, int64_t at, uint32_t bits)
{
    if (dtype == DS_DTYPE_BF16) {
        ((uint16_t *)memory)[at] = (uint16_t)bits;
    } else {
        ((uint32_t *)memory)[at] = bits;
    }
}

/* The memory of a rank at a stop. */
static void fill_memory(const suite *s, const job *j, uint32_t i, uint32_t rank, void *memory)
{
    const ds_shape shape = j->meta.shape;
    const dsi_part part = dsi_placement_part(&s->mesh, &j->stop[i], shape, rank);
    const uint32_t n = (uint32_t)ds_shape_count(shape);
    const uint32_t *row = j->rows[i] + (size_t)row_of(&s->mesh, j->mask[i], rank) * n;
    int64_t in_box = 0;
    memset(memory, 0, (size_t)part.slots * ds_dtype_bytes(j->meta.dtype));
    for (uint32_t e = 0; e < n; ++e) {
        bool inside = true;
        int64_t rest = e;
        for (uint32_t d = shape.n_dims; d-- > 0;) {
            const int64_t at = rest % shape.dims[d];
            rest /= shape.dims[d];
            const bool cut = part.blocks > 0 && part.block_dim == d;
            const int64_t each = part.lengths[d] / (cut ? part.blocks : 1);
            const int64_t from =
                cut ? part.offset[d] + (at - part.offset[d]) / part.block_stride * part.block_stride
                    : part.offset[d];
            inside = inside && at >= part.offset[d] && at >= from && at < from + each;
        }
        if (inside) {
            if (in_box >= part.begin && in_box < part.begin + part.count) {
                put(j->meta.dtype, memory, in_box - part.begin, row[e]);
            }
            ++in_box;
        }
    }
}

/* ---- ranks ----------------------------------------------------------------------------------- */

static uint32_t report(const suite *s, const job *j, uint32_t i, uint32_t rank, const char *why)
{
    char from[DSI_PLACEMENT_TEXT];
    char to[DSI_PLACEMENT_TEXT];
    char meta[128];
    dsi_buf buf = dsi_buf_make(4096);
    dsi_mesh_text(&s->mesh, &buf);
    dsi_buf_printf(&buf, " rank %u, stop %u: %s from %s to %s: %s\n", rank, i,
                   ds_meta_text(j->meta, meta, sizeof meta),
                   dsi_placement_str(&j->stop[i - 1], from), dsi_placement_str(&j->stop[i], to),
                   why);
    dsi_moves_text(&j->moves[i], &buf);
    (void)fprintf(stderr, "%s", dsi_buf_text(&buf));
    dsi_buf_free(&buf);
    return 1;
}

static uint32_t run_job(ds_ctx *ctx, const suite *s, const job *j, dsi_mesh_comms *comms)
{
    uint32_t in[MOST_ELEMENTS + 8];
    uint32_t out[MOST_ELEMENTS + 8];
    uint32_t want[MOST_ELEMENTS + 8];
    const uint32_t rank = comms->world->rank;
    fill_memory(s, j, 0, rank, in);
    for (uint32_t i = 1; i < j->n_stops; ++i) {
        const dsi_part part = dsi_placement_part(&s->mesh, &j->stop[i], j->meta.shape, rank);
        const size_t bytes = (size_t)part.slots * ds_dtype_bytes(j->meta.dtype);
        memset(out, 0x5a, sizeof out);
        memset(want, 0x5a, sizeof want);
        fill_memory(s, j, i, rank, want);
        if (dsi_moves_run(&j->moves[i], comms, "x", in, out) < 0) {
            return report(s, j, i, rank, ds_ctx_error(ctx));
        }
        if (memcmp(out, want, sizeof out) != 0) {
            return report(s, j, i, rank, "other bits than the logical value has");
        }
        memcpy(in, out, bytes);
    }
    return 0;
}

static uint32_t run_rank(ds_ctx *ctx, dsi_comm *world, void *arg)
{
    const suite *s = arg;
    dsi_mesh_comms comms;
    uint32_t n_failed = 0;
    if (dsi_mesh_comms_make(ctx, world, &s->mesh, &comms) < 0) {
        return 1;
    }
    for (uint32_t i = 0; i < s->n_jobs && n_failed < 5; ++i) {
        n_failed += run_job(ctx, s, &s->jobs[i], &comms);
    }
    dsi_mesh_comms_destroy(&comms);
    return n_failed;
}

/* ---- jobs ------------------------------------------------------------------------------------ */

static ds_ctx *ctx;

static int set_up(void **state)
{
    (void)state;
    const ds_ctx_params params = {.level = DS_LOG_ERROR, .n_threads = 1};
    return ds_ctx_create(&params, &ctx);
}

static int tear_down(void **state)
{
    (void)state;
    ds_ctx_destroy(&ctx);
    return 0;
}

/* Whether redistribution must refuse, from the header's words. */
static bool must_refuse(const dsi_mesh *mesh, const dsi_placement *from, const dsi_placement *to)
{
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        const bool after = to->on[a].kind == DSI_PARTIAL && mesh->size[a] > 1;
        if (after && (from->on[a].kind == DSI_SHARD || dsi_axes_has(&from->flat, a))) {
            return true;
        }
    }
    return false;
}

/* Adds a stop that may be reached; false when it is refused, and rightly so. */
static bool add_stop(suite *s, job *j, const dsi_placement *stop)
{
    const uint32_t i = j->n_stops;
    const dsi_placement p = dsi_placement_simplify(&s->mesh, stop);
    j->stop[i] = *stop;
    j->mask[i] = dsi_placement_partial_axes(&p);
    if (i == 0) {
        const uint32_t n = (uint32_t)ds_shape_count(j->meta.shape) * MOST_ROWS;
        j->rows[0] = make_rows();
        for (uint32_t e = 0; e < n; ++e) {
            j->rows[0][e] = random_bits(j->meta.dtype);
        }
        j->n_stops = 1;
        return true;
    }
    const dsi_redistribution r = {
        .name = "x", .mesh = s->mesh, .meta = j->meta, .from = j->stop[i - 1], .to = *stop};
    if (must_refuse(&s->mesh, &r.from, &r.to)) {
        CHECK_FAILS(ctx, dsi_redistribute(ctx, &r, &j->moves[i]), DS_ERR_UNSUPPORTED, "ambiguous");
        ++s->n_refused;
        return false;
    }
    CHECK_OK(ctx, dsi_redistribute(ctx, &r, &j->moves[i]));
    j->rows[i] = next_rows(&s->mesh, j, i);
    j->n_stops = i + 1;
    return true;
}

static ds_meta random_meta(uint32_t n_dims)
{
    static const ds_dtype dtypes[] = {DS_DTYPE_F32, DS_DTYPE_BF16, DS_DTYPE_I32};
    ds_meta meta = {.dtype = dtypes[draw(3)], .shape = {.n_dims = n_dims}};
    for (uint32_t d = 0; d < n_dims; ++d) {
        meta.shape.dims[d] = draw(20) == 0 ? 0 : 1 + draw(d == 0 ? 6 : d == 1 ? 7 : 3);
        if (d == 1 && draw(3) == 0) { /* as long as blocks need it */
            meta.shape.dims[0] = meta.shape.dims[0] > 3 ? 3 : meta.shape.dims[0];
            meta.shape.dims[1] = 12;
        }
    }
    return meta;
}

static suite make_suite(const char *mesh)
{
    suite s = {0};
    CHECK_OK(ctx, dsi_mesh_parse(ctx, mesh, &s.mesh));
    s.jobs = calloc(MOST_JOBS, sizeof *s.jobs);
    assert_non_null(s.jobs);
    return s;
}

static job *new_job(suite *s, ds_meta meta)
{
    assert_true(s->n_jobs < MOST_JOBS);
    job *j = &s->jobs[s->n_jobs++];
    j->meta = meta;
    return j;
}

static void run_suite(suite *s)
{
    const dsi_comm_sim_options options = {.seed = 3, .reorder = true};
    const uint32_t n_failed = sim_ranks_run(s->mesh.n_ranks, &options, run_rank, s);
    for (uint32_t i = 0; i < s->n_jobs; ++i) {
        for (uint32_t k = 0; k < s->jobs[i].n_stops; ++k) {
            free(s->jobs[i].rows[k]);
        }
    }
    free(s->jobs);
    assert_int_equal(n_failed, 0);
}

/* All placements of a matrix on the mesh's axes that are longer than 1 (or the first two). */
static uint32_t all_placements(const dsi_mesh *mesh, const dsi_axis *axes, uint32_t n_axes,
                               dsi_placement *list)
{
    enum { FLAT = 4, OWNED = 5, CHOICES = 6 };
    uint32_t n = 0;
    const uint32_t n_choices = n_axes == 1 ? CHOICES : CHOICES * CHOICES;
    for (uint32_t c = 0; c < n_choices; ++c) {
        dsi_placement p = {0};
        dsi_axes flat = {0};
        bool owned = false;
        for (uint32_t i = 0; i < n_axes; ++i) {
            const uint32_t choice = i == 0 ? c % CHOICES : c / CHOICES;
            if (choice == 1 || choice == 2) {
                p = dsi_shard(p, axes[i], choice - 1);
            } else if (choice == 3) {
                p = dsi_partial(p, axes[i]);
            } else if (choice >= FLAT) {
                dsi_axes_add(&flat, axes[i]);
                owned = owned || choice == OWNED;
            }
        }
        if (flat.n == 2 && c % CHOICES != c / CHOICES) { /* a mix stands for the other order */
            flat = (dsi_axes){2, {(uint8_t)axes[1], (uint8_t)axes[0]}};
            owned = false;
        }
        const uint32_t last = dsi_axes_size(mesh, &flat) - 1;
        list[n++] = owned ? dsi_flat_owner(p, flat, last) : dsi_flat(p, flat);
    }
    return n;
}

static void run_pairs(const char *mesh, const dsi_axis *axes, uint32_t n_axes, uint32_t times)
{
    suite s = make_suite(mesh);
    dsi_placement list[36];
    const uint32_t n = all_placements(&s.mesh, axes, n_axes, list);
    uint32_t n_pairs = 0;
    for (uint32_t k = 0; k < n * n * times; ++k) {
        job *j = new_job(&s, random_meta(2));
        add_stop(&s, j, &list[k / times / n]);
        n_pairs += add_stop(&s, j, &list[k / times % n]);
    }
    assert_int_equal(n_pairs + s.n_refused, n * n * times);
    assert_true(n_pairs > n * n * times / 2);
    run_suite(&s);
}

static const dsi_axis two_axes[2] = {DSI_AXIS_DPS, DSI_AXIS_TP};

static void test_one_axis(void **state)
{
    (void)state;
    static const char *const meshes[] = {"mesh()",     "mesh(tp=2)", "mesh(tp=3)",
                                         "mesh(tp=4)", "mesh(tp=6)", "mesh(tp=8)"};
    for (uint32_t i = 0; i < 6; ++i) {
        run_pairs(meshes[i], &two_axes[1], 1, 6);
    }
}

static void test_two_axes(void **state)
{
    (void)state;
    static const char *const meshes[] = {"mesh(dps=2,tp=2)", "mesh(dps=2,tp=3)", "mesh(dps=3,tp=2)",
                                         "mesh(dps=2,tp=4)", "mesh(dps=4,tp=2)"};
    for (uint32_t i = 0; i < 5; ++i) {
        run_pairs(meshes[i], two_axes, 2, 1);
    }
}

static dsi_placement random_placement(const dsi_mesh *mesh, ds_shape shape)
{
    dsi_placement p = {0};
    dsi_axes flat = {0};
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (mesh->size[a] > 1) {
            switch (draw(5)) {
            case 0:
            case 1:
                p = dsi_shard(p, (dsi_axis)a, draw(shape.n_dims));
                p.on[a].blocks = draw(2) == 0 ? 0 : (uint8_t)(2 + draw(2));
                if (p.on[a].dim == 0 && draw(2) == 0) {
                    p.on[a].blocks = DSI_PADDED;
                }
                break;
            case 2:
                dsi_axes_add(&flat, (dsi_axis)a);
                break;
            case 3:
                p = dsi_partial(p, (dsi_axis)a);
                break;
            default:
                break;
            }
        }
    }
    if (dsi_placement_check(ctx, mesh, &p, shape, "x") < 0) { /* blocks where there are none */
        for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
            p.on[a].blocks = 0;
        }
    }
    const uint32_t size = dsi_axes_size(mesh, &flat);
    return draw(4) == 0 ? dsi_flat_owner(p, flat, draw(size)) : dsi_flat(p, flat);
}

/* A to B to C … equals A to C: each stop has the bits of the logical value; and a sum that was
 * taken in several steps is the canonical sum over all of its addends. */
static void check_whole_sum(const suite *s, const job *j)
{
    const uint32_t n = (uint32_t)ds_shape_count(j->meta.shape);
    const uint32_t end = j->n_stops - 1;
    const dsi_axes axes = dsi_axes_of(j->mask[0]);
    for (uint32_t i = 1; i <= end; ++i) {
        if ((j->mask[i] & ~j->mask[i - 1]) != 0) {
            return; /* masked on the way */
        }
    }
    const uint32_t size = dsi_axes_size(&s->mesh, &axes);
    for (uint32_t e = 0; j->mask[end] == 0 && size > 1 && e < n; ++e) {
        uint32_t bits[MOST_ROWS];
        for (uint32_t k = 0; k < size; ++k) {
            bits[k] = j->rows[0][(size_t)k * n + e];
        }
        assert_int_equal(j->rows[end][e], add_bits(j->meta.dtype, bits, size));
    }
}

static void test_walks(void **state)
{
    (void)state;
    static const char *const meshes[] = {"mesh(dps=2,tp=4)", "mesh(dpr=2,dps=2,tp=2)",
                                         "mesh(sp=2,tp=3)", "mesh(dpr=2,ep=2,sp=2)"};
    for (uint32_t i = 0; i < 4; ++i) {
        suite s = make_suite(meshes[i]);
        uint32_t n_stops = 0;
        for (uint32_t k = 0; k < 250; ++k) {
            const uint32_t n_dims = 1 + draw(3);
            job *j = new_job(&s, random_meta(n_dims));
            while (j->n_stops < MOST_STOPS) {
                const dsi_placement p = random_placement(&s.mesh, j->meta.shape);
                add_stop(&s, j, &p);
            }
            n_stops += j->n_stops;
            check_whole_sum(&s, j);
        }
        assert_true(n_stops == 250 * MOST_STOPS);
        run_suite(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_one_axis),
        cmocka_unit_test(test_two_axes),
        cmocka_unit_test(test_walks),
    };
    return cmocka_run_group_tests(tests, set_up, tear_down);
}
