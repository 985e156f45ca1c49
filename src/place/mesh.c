/* SPDX-License-Identifier: Apache-2.0 */
/* The mesh: sizes, coordinates, groups. See mesh.h. */
#include "place/mesh.h"

#include <stdio.h>
#include <string.h>

static const char *const names[] = {
#define X(id, text, doc) text,
    DSI_AXIS_LIST(X)
#undef X
};

const char *dsi_axis_name(dsi_axis axis)
{
    return axis < DSI_AXIS_COUNT ? names[axis] : "?";
}

dsi_axis dsi_axis_from_name(const char *name, size_t n)
{
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (strlen(names[a]) == n && memcmp(names[a], name, n) == 0) {
            return (dsi_axis)a;
        }
    }
    return DSI_AXIS_COUNT;
}

/* ---- making -------------------------------------------------------------------------------- */

int64_t dsi_axes_code(const dsi_mesh *mesh, const dsi_axes *axes)
{
    bool ordered = true;
    int64_t code = 0;
    for (uint32_t i = 0; i < axes->n; ++i) {
        ordered = ordered && (i == 0 || axes->axis[i] > axes->axis[i - 1]);
        if (mesh->size[axes->axis[i]] > 1) {
            code = code * 10 + axes->axis[i] + 1;
        }
    }
    const bool world = ordered && dsi_axes_size(mesh, axes) == mesh->n_ranks;
    return world && dsi_mesh_data_size(mesh) == mesh->n_ranks ? 0 : code;
}

dsi_axes dsi_axes_decode(int64_t code)
{
    dsi_axes axes = {0};
    int64_t digits[DSI_AXIS_COUNT];
    uint32_t n = 0;
    for (; code > 0 && n < DSI_AXIS_COUNT; code /= 10) {
        digits[n++] = code % 10;
    }
    while (n > 0) {
        dsi_axes_add(&axes, (dsi_axis)(digits[--n] - 1));
    }
    return axes.n > 0 ? axes : dsi_axes_of((1u << DSI_AXIS_COUNT) - 1);
}

const char *dsi_axes_label(int64_t code, char text[DSI_AXES_LABEL])
{
    const dsi_axes axes = dsi_axes_decode(code);
    size_t used = 0;
    (void)snprintf(text, DSI_AXES_LABEL, "dp");
    for (uint32_t i = 0; code != 0 && i < axes.n; ++i) {
        used += (size_t)snprintf(text + used, DSI_AXES_LABEL - used, "%s%s", i > 0 ? "," : "",
                                 dsi_axis_name((dsi_axis)axes.axis[i]));
    }
    return text;
}

dsi_mesh dsi_mesh_data(uint32_t n_ranks)
{
    dsi_mesh mesh = {.n_ranks = n_ranks};
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        mesh.size[a] = a == DSI_AXIS_DPS ? n_ranks : 1;
    }
    return mesh;
}

ds_status dsi_mesh_of(ds_ctx *ctx, const uint32_t size[DSI_AXIS_COUNT], dsi_mesh *mesh_out)
{
    dsi_mesh mesh = {.n_ranks = 1};
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (size[a] == 0 || size[a] > DSI_MESH_MOST / mesh.n_ranks) {
            return ds_fail(ctx, DS_ERR_ARG,
                           "mesh: axis %s has size %u, expected at least 1 and at most %d ranks in "
                           "all",
                           names[a], size[a], DSI_MESH_MOST);
        }
        mesh.size[a] = size[a];
        mesh.n_ranks *= size[a];
    }
    *mesh_out = mesh;
    return DS_OK;
}

ds_status dsi_mesh_check(ds_ctx *ctx, const dsi_mesh *mesh)
{
    dsi_mesh again = *mesh;
    DS_TRY(dsi_mesh_of(ctx, mesh->size, &again));
    if (again.n_ranks != mesh->n_ranks) {
        return ds_fail(ctx, DS_ERR_ARG, "mesh: n_ranks is %u, but its axes have %u", mesh->n_ranks,
                       again.n_ranks);
    }
    return DS_OK;
}

static uint32_t or_one(uint32_t n)
{
    return n == 0 ? 1 : n;
}

/* Ranks left for data parallelism. */
static ds_status data_size(ds_ctx *ctx, const dsi_mesh_params *p, uint32_t *data_out)
{
    const uint64_t others = (uint64_t)or_one(p->pp) * or_one(p->sp) * or_one(p->tp);
    if (p->world_size == 0 || p->world_size > DSI_MESH_MOST) {
        return ds_fail(ctx, DS_ERR_CONFIG, "world size is %u, expected 1 to %d", p->world_size,
                       DSI_MESH_MOST);
    }
    if (p->world_size % others != 0) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "the world size %u is not divisible by %llu = pipeline.stages %u x "
                       "sequence_parallel_size %u x tensor_parallel.autotp_size %u; change one of "
                       "them or the number of ranks",
                       p->world_size, (unsigned long long)others, or_one(p->pp), or_one(p->sp),
                       or_one(p->tp));
    }
    const uint32_t data = (uint32_t)(p->world_size / others);
    if (p->data_parallel != 0 && p->data_parallel != data) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "data_parallel_size is %u, but %u ranks leave %u for data parallelism "
                       "(pipeline.stages %u, sequence_parallel_size %u, "
                       "tensor_parallel.autotp_size %u); set it to %u or leave it out",
                       p->data_parallel, p->world_size, data, or_one(p->pp), or_one(p->sp),
                       or_one(p->tp), data);
    }
    if (data % or_one(p->ep) != 0) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "expert_parallel.autoep_size is %u, which does not divide the %u ranks of "
                       "data parallelism (world size %u)",
                       p->ep, data, p->world_size);
    }
    *data_out = data;
    return DS_OK;
}

/* Ranks along dps × ep × sp that share one copy of the parameters. */
static ds_status shard_size(ds_ctx *ctx, const dsi_mesh_params *p, uint32_t data,
                            uint32_t *shard_out)
{
    const uint32_t most = data * or_one(p->sp);
    const bool mics = p->mics > 1;
    const char *key =
        mics ? "zero_optimization.mics_shard_size" : "zero_optimization.zero_hpz_partition_size";
    if (mics && p->hpz > 1) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "zero_optimization.mics_shard_size %u and "
                       "zero_optimization.zero_hpz_partition_size %u: set at most one of them",
                       p->mics, p->hpz);
    }
    uint32_t shard = most;
    if (p->mics == 1 && p->hpz <= 1) { /* every rank keeps a whole copy */
        key = "zero_optimization.mics_shard_size";
        shard = 1;
    } else if (mics || p->hpz > 1) {
        shard = mics ? p->mics : p->hpz;
    }
    if (!mics && shard > most) {
        shard = most; /* DeepSpeed's reading of a zero_hpz_partition_size above the world size */
    }
    const uint32_t unit = or_one(p->ep) * or_one(p->sp);
    if (most % shard != 0 || shard % unit != 0) {
        return ds_fail(ctx, DS_ERR_CONFIG,
                       "%s is %u, expected a divisor of %u (the data-parallel ranks times "
                       "sequence_parallel_size) that is a multiple of %u "
                       "(expert_parallel.autoep_size %u x sequence_parallel_size %u)",
                       key, shard, most, unit, or_one(p->ep), or_one(p->sp));
    }
    *shard_out = shard;
    return DS_OK;
}

ds_status dsi_mesh_make(ds_ctx *ctx, const dsi_mesh_params *params, dsi_mesh *mesh_out)
{
    uint32_t data = 1;
    uint32_t shard = 1;
    DS_TRY(data_size(ctx, params, &data));
    DS_TRY(shard_size(ctx, params, data, &shard));
    const uint32_t ep = or_one(params->ep);
    const uint32_t sp = or_one(params->sp);
    const uint32_t size[DSI_AXIS_COUNT] = {
        [DSI_AXIS_PP] = or_one(params->pp),
        [DSI_AXIS_DPR] = data * sp / shard,
        [DSI_AXIS_DPS] = shard / (ep * sp),
        [DSI_AXIS_EP] = ep,
        [DSI_AXIS_SP] = sp,
        [DSI_AXIS_TP] = or_one(params->tp),
    };
    return dsi_mesh_of(ctx, size, mesh_out);
}

/* ---- coordinates and groups ------------------------------------------------------------------ */

dsi_coords dsi_mesh_coords(const dsi_mesh *mesh, uint32_t rank)
{
    dsi_coords coords;
    for (uint32_t a = DSI_AXIS_COUNT; a-- > 0;) {
        coords.at[a] = 0;
        if (mesh->size[a] > 1) { /* most are 1, and divisions take long */
            coords.at[a] = rank % mesh->size[a];
            rank /= mesh->size[a];
        }
    }
    return coords;
}

uint32_t dsi_mesh_rank(const dsi_mesh *mesh, const dsi_coords *coords)
{
    uint32_t rank = 0;
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        rank = rank * mesh->size[a] + coords->at[a];
    }
    return rank;
}

dsi_rank_group dsi_mesh_group(const dsi_mesh *mesh, const dsi_axes *axes, uint32_t rank)
{
    dsi_coords coords = dsi_mesh_coords(mesh, rank);
    dsi_rank_group group = {.axes = *axes, .size = 1};
    for (uint32_t i = 0; i < axes->n; ++i) {
        const uint32_t a = axes->axis[i];
        group.index = group.index * mesh->size[a] + coords.at[a];
        group.size *= mesh->size[a];
        coords.at[a] = 0;
    }
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (!dsi_axes_has(axes, (dsi_axis)a)) {
            group.color = group.color * mesh->size[a] + coords.at[a];
        }
    }
    return group;
}

uint32_t dsi_mesh_peer(const dsi_mesh *mesh, const dsi_axes *axes, uint32_t rank, uint32_t i)
{
    dsi_coords coords = dsi_mesh_coords(mesh, rank);
    for (uint32_t k = axes->n; k-- > 0;) {
        const uint32_t a = axes->axis[k];
        coords.at[a] = i % mesh->size[a];
        i /= mesh->size[a];
    }
    return dsi_mesh_rank(mesh, &coords);
}

bool dsi_mesh_is_block(const dsi_mesh *mesh, const dsi_axes *axes)
{
    const uint32_t n = dsi_axes_size(mesh, axes);
    for (uint32_t i = 0; i < n; ++i) {
        if (dsi_mesh_peer(mesh, axes, 0, i) != i * dsi_mesh_peer(mesh, axes, 0, n > 1 ? 1 : 0)) {
            return false;
        }
    }
    return n == 1 || dsi_mesh_peer(mesh, axes, 0, 1) == 1;
}

/* ---- tuples ---------------------------------------------------------------------------------- */

bool dsi_axes_has(const dsi_axes *axes, dsi_axis axis)
{
    for (uint32_t i = 0; i < axes->n; ++i) {
        if (axes->axis[i] == axis) {
            return true;
        }
    }
    return false;
}

void dsi_axes_add(dsi_axes *axes, dsi_axis axis)
{
    if (!dsi_axes_has(axes, axis)) {
        axes->axis[axes->n++] = (uint8_t)axis;
    }
}

bool dsi_axes_begin(const dsi_axes *a, const dsi_axes *b)
{
    return a->n <= b->n && memcmp(a->axis, b->axis, a->n * sizeof a->axis[0]) == 0;
}

dsi_axes dsi_axes_behind(const dsi_axes *b, uint32_t n)
{
    dsi_axes rest = {0};
    for (uint32_t i = n; i < b->n; ++i) {
        dsi_axes_add(&rest, (dsi_axis)b->axis[i]);
    }
    return rest;
}

bool dsi_axes_equal(const dsi_axes *a, const dsi_axes *b)
{
    return a->n == b->n && memcmp(a->axis, b->axis, a->n) == 0;
}

dsi_axes dsi_axes_of(uint32_t mask)
{
    dsi_axes axes = {0};
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if ((mask >> a & 1u) != 0) {
            axes.axis[axes.n++] = (uint8_t)a;
        }
    }
    return axes;
}

uint32_t dsi_axes_mask(const dsi_axes *axes)
{
    uint32_t mask = 0;
    for (uint32_t i = 0; i < axes->n; ++i) {
        mask |= 1u << axes->axis[i];
    }
    return mask;
}

uint32_t dsi_axes_size(const dsi_mesh *mesh, const dsi_axes *axes)
{
    uint32_t n = 1;
    for (uint32_t i = 0; i < axes->n; ++i) {
        n *= mesh->size[axes->axis[i]];
    }
    return n;
}

dsi_axes dsi_axes_data(void)
{
    return dsi_axes_of(1u << DSI_AXIS_DPR | 1u << DSI_AXIS_DPS | 1u << DSI_AXIS_EP);
}

uint32_t dsi_mesh_data_size(const dsi_mesh *mesh)
{
    const dsi_axes data = dsi_axes_data();
    return dsi_axes_size(mesh, &data);
}

uint32_t dsi_mesh_data_rank(const dsi_mesh *mesh, uint32_t rank)
{
    const dsi_axes data = dsi_axes_data();
    return dsi_mesh_group(mesh, &data, rank).index;
}

int64_t dsi_mesh_first_sample(const dsi_mesh *mesh, uint32_t rank, int64_t micro_step,
                              int64_t batch)
{
    return (micro_step * dsi_mesh_data_size(mesh) + dsi_mesh_data_rank(mesh, rank)) * batch;
}

dsi_axes dsi_axes_zero(bool whole)
{
    return dsi_axes_of((whole ? 1u << DSI_AXIS_DPR : 0u) | 1u << DSI_AXIS_DPS | 1u << DSI_AXIS_EP |
                       1u << DSI_AXIS_SP);
}

/* ---- text ------------------------------------------------------------------------------------ */

void dsi_mesh_text(const dsi_mesh *mesh, dsi_buf *buf)
{
    const char *comma = "";
    dsi_buf_puts(buf, "mesh(");
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (mesh->size[a] != 1) {
            dsi_buf_printf(buf, "%s%s=%u", comma, names[a], mesh->size[a]);
            comma = ",";
        }
    }
    dsi_buf_putc(buf, ')');
}

void dsi_mesh_coords_text(const dsi_mesh *mesh, uint32_t rank, dsi_buf *buf)
{
    const dsi_axes data = dsi_axes_data();
    const dsi_coords coords = dsi_mesh_coords(mesh, rank);
    if (dsi_mesh_data_size(mesh) == mesh->n_ranks && mesh->size[DSI_AXIS_EP] == 1) {
        return;
    }
    dsi_buf_printf(buf, "dp %u", dsi_mesh_data_rank(mesh, rank));
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        if (mesh->size[a] > 1 && (a == DSI_AXIS_EP || !dsi_axes_has(&data, (dsi_axis)a))) {
            dsi_buf_printf(buf, ", %s %u", names[a], coords.at[a]);
        }
    }
}

void dsi_axes_text(const dsi_axes *axes, dsi_buf *buf)
{
    dsi_buf_putc(buf, '(');
    for (uint32_t i = 0; i < axes->n; ++i) {
        dsi_buf_printf(buf, "%s%s", i == 0 ? "" : ",", dsi_axis_name((dsi_axis)axes->axis[i]));
    }
    dsi_buf_putc(buf, ')');
}

/* One "name=size"; the text after it, NULL when there is none such. */
static const char *parse_axis(const char *at, uint32_t size[DSI_AXIS_COUNT])
{
    const size_t n = strspn(at, "abcdefghijklmnopqrstuvwxyz");
    const dsi_axis axis = dsi_axis_from_name(at, n);
    if (axis == DSI_AXIS_COUNT || at[n] != '=' || size[axis] != 0) {
        return NULL;
    }
    at += n + 1;
    uint32_t value = 0;
    while (*at >= '0' && *at <= '9' && value <= DSI_MESH_MOST) {
        value = value * 10 + (uint32_t)(*at++ - '0');
    }
    size[axis] = value;
    return value > 0 ? at : NULL;
}

ds_status dsi_mesh_parse(ds_ctx *ctx, const char *text, dsi_mesh *mesh_out)
{
    uint32_t size[DSI_AXIS_COUNT] = {0};
    const bool opens = strncmp(text, "mesh(", 5) == 0;
    const char *at = opens ? text + 5 : text;
    while (opens && *at != ')') {
        const char *next = parse_axis(at, size);
        if (next == NULL || (*next != ',' && *next != ')') || (*next == ',' && next[1] == ')')) {
            break;
        }
        at = *next == ',' ? next + 1 : next;
    }
    if (!opens || strcmp(at, ")") != 0) {
        return ds_fail(ctx, DS_ERR_FORMAT,
                       "mesh: \"%.100s\", expected mesh(axis=size,…) with each of pp, dpr, dps, "
                       "ep, sp, tp at most once; wrong at \"%.20s\"",
                       text, at);
    }
    for (uint32_t a = 0; a < DSI_AXIS_COUNT; ++a) {
        size[a] = or_one(size[a]);
    }
    return dsi_mesh_of(ctx, size, mesh_out);
}
