/* SPDX-License-Identifier: Apache-2.0 */
/* What the mesh of a specification says of a rank's plan. See rank_maker.h. */
#include "compile/rank_maker.h"

uint32_t dsi_rank_n_stages(const dsi_rank_maker *m)
{
    return m->spec.zero.mesh.size[DSI_AXIS_PP];
}

dsi_schedule dsi_rank_schedule(const dsi_engine_spec *spec)
{
    return (dsi_schedule){.kind = spec->schedule_kind,
                          .n_ranks = spec->zero.mesh.size[DSI_AXIS_PP],
                          .n_micro = (uint32_t)spec->train.accumulation,
                          .n_chunks = spec->stage_chunks > 1 ? spec->stage_chunks : 1};
}

uint32_t dsi_rank_n_chunks(const dsi_rank_maker *m)
{
    const dsi_schedule s = dsi_rank_schedule(&m->spec);
    return dsi_rank_n_stages(m) * s.n_chunks;
}

int64_t dsi_rank_sequence_ranks(const dsi_rank_maker *m)
{
    const uint32_t sp = m->spec.zero.mesh.size[DSI_AXIS_SP];
    return sp > 1 ? sp : 1;
}

int64_t dsi_rank_token_ranks(const dsi_rank_maker *m)
{
    const bool folded = (m->spec.zero.folded >> DSI_AXIS_TP & 1u) != 0;
    return folded ? m->spec.zero.mesh.size[DSI_AXIS_TP] : 1;
}

int64_t dsi_rank_expert_ranks(const dsi_rank_maker *m)
{
    return (int64_t)m->spec.zero.mesh.size[DSI_AXIS_EP] * dsi_rank_sequence_ranks(m) *
           dsi_rank_token_ranks(m);
}

bool dsi_rank_is_ring(const dsi_rank_maker *m)
{
    return dsi_rank_sequence_ranks(m) > 1 && m->spec.train.sequence_form != DS_SEQUENCE_HEADS;
}

bool dsi_rank_has_halves(const dsi_rank_maker *m)
{
    return dsi_rank_is_ring(m) && m->spec.train.sequence_form == DS_SEQUENCE_RING_HALVES;
}

dsi_chunks dsi_rank_chunks(const dsi_engine_spec *spec)
{
    const dsi_rank_maker m = {.spec = *spec};
    const int64_t chunk = spec->train.sequence_chunk;
    return (dsi_chunks){.seq_length = spec->train.seq_length,
                        .chunk = chunk < spec->train.seq_length ? chunk : 0,
                        .ranks = dsi_rank_sequence_ranks(&m),
                        .token_ranks = dsi_rank_token_ranks(&m),
                        .ring = dsi_rank_is_ring(&m)};
}

bool dsi_rank_has_chunks(const dsi_rank_maker *m)
{
    return dsi_rank_chunks(&m->spec).chunk > 0;
}

int64_t dsi_rank_tensor_ranks(const dsi_rank_maker *m)
{
    return m->spec.no_shards ? 1 : m->spec.zero.mesh.size[DSI_AXIS_TP];
}

int64_t dsi_rank_head_ranks(const dsi_rank_maker *m)
{
    const int64_t ranks =
        dsi_rank_tensor_ranks(m) * (dsi_rank_is_ring(m) ? 1 : dsi_rank_sequence_ranks(m));
    return ranks > 1 ? ranks : 0;
}
