/* SPDX-License-Identifier: Apache-2.0 */
/* Start and wait of collectives and swaps. See overlap.h. */
#include "pass/overlap.h"

#include "op/ops.h"
#include "pass/order.h"
#include <stdlib.h>
#include <string.h>

enum {
    MOST_UNDER_WAY = 2, /* reductions; as many buckets as DeepSpeed keeps */
    MOST_AHEAD = 8,     /* gathers */
    MOST_SWAPS = 256    /* on their way in one direction */
};

/* STATE_IN: a swap into memory of what an update reads; SWAP_IN: of what computation reads. HOST:
 * what the processor runs. */
typedef enum kind { REDUCTION, GATHER, HOST, SWAP_IN, STATE_IN, SWAP_OUT } kind;

/* A collective or swap, or a node of the host's: the members of a bucket, or one node; places
 * [begin,end) of the order. */
typedef struct group {
    uint32_t begin, end;
    uint32_t lead;  /* of a GATHER: place of what quantizes the parameter first; DS_NONE: nothing */
    uint32_t start; /* place before which it starts */
    uint32_t wait;  /* place before which it is waited for */
    ds_phase until; /* phase of that wait */
    bool deferred;  /* the wait is in the next step: its place is before the start */
    uint64_t room;  /* of a SWAP_OUT: bytes of writebacks in flight when it starts, at most */
    uint32_t next_start, next_wait; /* the next group that starts, is waited for, at its place */
    uint32_t before;                /* the last one of its kind before it */
    uint32_t of_cell;               /* of a swap: the last one of its cell before it, or DS_NONE */
    kind kind;                      /* GATHER: of a parameter, it may start ahead */
} group;

typedef struct spreader {
    const ds_graph *graph;
    const ds_node *order;
    uint32_t n;
    const ds_value *same;
    const dsi_overlap_limits *limits;
    group *groups;
    uint32_t n_groups;
    uint32_t *made_by;        /* per value: group + 1 of the collective that makes it, 0 for none */
    uint32_t *moved_last;     /* per cell: group + 1 of the last swap of it so far, 0 for none */
    uint32_t *starts, *waits; /* per place: the first group there, DS_NONE for none */
    bool *led;                /* per place: a gather's lead that ran before */
    uint64_t *states;         /* per place: bytes of states that wait there for their update */
    uint32_t first[DS_MAX_PHASES]; /* of a phase: its first place, and the one behind its last */
    uint32_t end[DS_MAX_PHASES];
} spreader;

static const dsi_node_info *node_at(const spreader *s, uint32_t place)
{
    return &s->graph->nodes[s->order[place]];
}

static bool overlaps(const spreader *s, const dsi_node_info *node)
{
    if (node->on_host || (node->op->flags & DS_OP_SWAP) != 0) {
        return true;
    }
    return s->limits->comm && node->op->op_class == DS_CLASS_COMM;
}

/* Version 0 of a cell: nothing of its phase comes before it. */
static bool reads_parameter(const spreader *s, const dsi_node_info *node)
{
    const dsi_value_info *value = &s->graph->values[dsi_node_in(s->graph, node)[0]];
    return value->cell != DS_NONE && value->version == 0;
}

/* What makes the input of a gather of a parameter from that alone; NULL: nothing. */
static const dsi_node_info *lead_of(const spreader *s, const dsi_node_info *node)
{
    const ds_node maker = s->graph->values[dsi_node_in(s->graph, node)[0]].producer;
    const dsi_node_info *lead = maker != DS_NONE ? &s->graph->nodes[maker] : NULL;
    const bool leads = lead != NULL && lead->op == &dsi_op_quantize_blocks &&
                       lead->phase == node->phase && reads_parameter(s, lead);
    return leads ? lead : NULL;
}

/* Whether a gather reads a parameter, as it is or quantized. */
static bool is_parameter_gather(const spreader *s, const dsi_node_info *node)
{
    return node->op->role == DS_ROLE_ALL_GATHER &&
           (reads_parameter(s, node) || lead_of(s, node) != NULL);
}

/* That a swap moves. */
static ds_cell cell_of(const spreader *s, const dsi_node_info *node)
{
    return s->graph->values[dsi_node_in(s->graph, node)[0]].cell;
}

static ds_cell_kind cell_kind(const spreader *s, const dsi_node_info *node)
{
    return ds_cells_get(s->graph->cells, cell_of(s, node))->kind;
}

/* Whether a swap moves a state of the optimizer. */
static bool is_of_state(const spreader *s, const dsi_node_info *node)
{
    switch (cell_kind(s, node)) {
    case DS_CELL_MASTER:
    case DS_CELL_EXP_AVG:
    case DS_CELL_EXP_AVG_SQ:
    case DS_CELL_MOMENTUM:
    case DS_CELL_EXP_AVG_SQ_ROW:
    case DS_CELL_EXP_AVG_SQ_COL:
    case DS_CELL_Z:
    case DS_CELL_ABSMAX:
    case DS_CELL_ABSMAX_SQ:
    case DS_CELL_ABSMAX_SLOW:
    case DS_CELL_EXP_AVG_SLOW:
        return true;
    default:
        return false;
    }
}

/* Whether a swap fetches something for an update: a state, or anything behind the backward phase.
 */
static bool is_for_update(const spreader *s, const dsi_node_info *node)
{
    return is_of_state(s, node) || !dsi_phase_is_micro(&s->graph->phases, node->phase);
}

static kind kind_of(const spreader *s, const dsi_node_info *node)
{
    if (node->on_host) {
        return HOST;
    }
    if ((node->op->flags & DS_OP_SWAP) != 0) {
        const kind in = is_for_update(s, node) ? STATE_IN : SWAP_IN;
        return node->op->role == DS_ROLE_SWAP_IN ? in : SWAP_OUT;
    }
    return is_parameter_gather(s, node) ? GATHER : REDUCTION;
}

/* The place of a gather's lead, which stands before it. */
static uint32_t find_lead(const spreader *s, uint32_t place)
{
    const dsi_node_info *node = node_at(s, place);
    const dsi_node_info *lead = is_parameter_gather(s, node) ? lead_of(s, node) : NULL;
    uint32_t at = place;
    while (lead != NULL && at > 0 && node_at(s, at) != lead) {
        --at;
    }
    return lead != NULL ? at : DS_NONE;
}

static void find_groups(spreader *s)
{
    for (uint32_t place = 0; place < s->n; ++place) {
        const dsi_node_info *node = node_at(s, place);
        if (!overlaps(s, node)) {
            continue;
        }
        group *last = s->n_groups > 0 ? &s->groups[s->n_groups - 1] : NULL;
        const int64_t bucket = dsi_order_bucket(node);
        const bool joins = last != NULL && last->end == place && bucket >= 0 &&
                           dsi_order_bucket(node_at(s, last->begin)) == bucket;
        if (!joins) {
            last = &s->groups[s->n_groups++];
            *last = (group){.begin = place,
                            .lead = find_lead(s, place),
                            .start = place,
                            .wait = UINT32_MAX,
                            .until = node->phase,
                            .kind = kind_of(s, node)};
        }
        last->end = place + 1;
        for (uint32_t i = 0; i < (node->on_host ? node->n_out : 1); ++i) {
            const ds_value v = dsi_node_out(s->graph, node)[i];
            if (v != DS_NONE) {
                s->made_by[v] = s->n_groups;
            }
        }
    }
}

/* Where a node begins to read: a bucket does all of that at its first node. */
static uint32_t reads_at(const spreader *s, uint32_t place)
{
    const dsi_node_info *node = node_at(s, place);
    const uint32_t g = overlaps(s, node) ? s->made_by[dsi_node_out(s->graph, node)[0]] : 0;
    return g > 0 ? s->groups[g - 1].begin : place;
}

/* Nodes are ordered by phase. */
static void find_phases(spreader *s)
{
    for (uint32_t place = 0; place < s->n; ++place) {
        const ds_phase phase = node_at(s, place)->phase;
        if (s->end[phase] == 0) {
            s->first[phase] = place;
        }
        s->end[phase] = place + 1;
    }
}

/* Where the phase of a place begins and ends. */
static uint32_t phase_start(const spreader *s, uint32_t place)
{
    return s->first[node_at(s, place)->phase];
}

static uint32_t phase_end(const spreader *s, uint32_t place)
{
    return s->end[node_at(s, place)->phase];
}

/* Whether what reads a group's results waits for them on a stream of its own, past the computing
 * one: what the host runs, and swaps of what it has made. */
static bool waits_itself(const dsi_node_info *reader, const group *g)
{
    return reader->on_host || (g->kind == HOST && reader->op->role == DS_ROLE_SWAP_IN);
}

/* The first reader, or the end of the phase. A state may be for an update of the next phase. */
static void find_waits(spreader *s)
{
    for (uint32_t place = 0; place < s->n; ++place) {
        const dsi_node_info *node = node_at(s, place);
        const uint32_t at = reads_at(s, place);
        for (uint32_t i = 0; i < node->n_in; ++i) {
            const ds_value v = dsi_node_in(s->graph, node)[i];
            const uint32_t g = v != DS_NONE ? s->made_by[s->same[v]] : 0;
            if (g > 0 && s->groups[g - 1].wait > at && !waits_itself(node, &s->groups[g - 1])) {
                s->groups[g - 1].wait = at;
            }
        }
    }
    for (uint32_t i = 0; i < s->n_groups; ++i) {
        group *g = &s->groups[i];
        const uint32_t end = phase_end(s, g->begin);
        if (g->kind == STATE_IN && g->wait < s->n) {
            g->until = node_at(s, g->wait)->phase;
        } else {
            g->wait = g->wait < end ? g->wait : end;
        }
    }
}

/* What is swapped out of a cell of the device has left it before it is written again. */
static void bound_sources(spreader *s)
{
    for (uint32_t i = 0; i < s->n_groups; ++i) {
        group *g = &s->groups[i];
        const dsi_node_info *swap = node_at(s, g->begin);
        const ds_cell from =
            g->kind == SWAP_OUT ? s->graph->values[dsi_node_in(s->graph, swap)[1]].cell : DS_NONE;
        for (uint32_t place = g->end; from != DS_NONE && place < g->wait && place < s->n; ++place) {
            const dsi_node_info *node = node_at(s, place);
            for (uint32_t k = 0; k < node->n_out; ++k) {
                const ds_value v = dsi_node_out(s->graph, node)[k];
                if (v != DS_NONE && s->graph->values[v].cell == from) {
                    g->wait = place;
                }
            }
        }
    }
}

/* No more than MOST_UNDER_WAY reductions at a time: the oldest is waited for. */
static void bound_reductions(spreader *s)
{
    for (uint32_t i = 0; i < s->n_groups; ++i) {
        uint32_t later = 0;
        for (uint32_t j = i + 1; j < s->n_groups && s->groups[i].kind == REDUCTION; ++j) {
            later += s->groups[j].kind == REDUCTION ? 1 : 0;
            if (later == MOST_UNDER_WAY && s->groups[j].begin < s->groups[i].wait) {
                s->groups[i].wait = s->groups[j].begin;
            }
            if (later == MOST_UNDER_WAY) {
                break;
            }
        }
    }
}

static ds_meta moved_by(const spreader *s, const group *g)
{
    const ds_value out = dsi_node_out(s->graph, node_at(s, g->begin))[0];
    return s->graph->values[out].meta;
}

/* Of a gather elements, of a swap bytes. */
static uint64_t amount_of(const spreader *s, const group *g)
{
    const ds_meta meta = moved_by(s, g);
    return g->kind == GATHER ? (uint64_t)ds_shape_count(meta.shape) : ds_meta_bytes(meta);
}

/* Reading and writing have one pool with deferred writebacks; three quarters of the room for
 * writing stay for that: while a long product runs, what is on its way in either direction is all
 * that the disk has to do. */
static uint64_t ahead_of_updates(const spreader *s)
{
    const uint64_t own = s->limits->update_ahead;
    const uint64_t more = own > 0 && s->limits->defer ? s->limits->write_behind / 4 : 0;
    return own < UINT64_MAX - more ? own + more : UINT64_MAX;
}

static uint64_t limit_of(const spreader *s, kind what)
{
    return what == GATHER     ? (uint64_t)s->limits->prefetch
           : what == STATE_IN ? ahead_of_updates(s)
                              : s->limits->read_ahead;
}

/* Whether the forward phase fetches it for the next one. */
static bool is_for_next_phase(const spreader *s, const group *g)
{
    return g->until != node_at(s, g->begin)->phase;
}

/* Behind half of what computation will leave in memory: the last step's writebacks have ended then,
 * and there is time for those of this one. */
static uint32_t middle_of(const spreader *s, uint32_t place)
{
    uint32_t middle = phase_start(s, place);
    uint32_t n = 0; /* nodes that compute */
    const uint32_t end = phase_end(s, place);
    for (uint32_t at = middle; at < end; ++at) {
        n += overlaps(s, node_at(s, at)) ? 0 : 1;
    }
    for (uint32_t seen = 0; seen < n / 2; ++middle) {
        seen += overlaps(s, node_at(s, middle)) ? 0 : 1;
    }
    return middle;
}

/* A gather, or a swap into memory, starts where an earlier one of its phase stands, as long as what
 * lies between the two fits; states of which all before them fit, where the phase starts. What the
 * phase before has fetched counts where it is used. */
static void start_ahead(spreader *s)
{
    uint32_t last[SWAP_OUT + 1];
    memset(last, 0xff, sizeof last); /* DS_NONE */
    for (uint32_t i = 0; i < s->n_groups; ++i) {
        group *g = &s->groups[i];
        g->before = last[g->kind];
        last[g->kind] = i;
        if (g->kind == REDUCTION || g->kind == SWAP_OUT || g->kind == HOST) {
            continue;
        }
        if (is_for_next_phase(s, g)) {
            g->start = middle_of(s, g->begin);
            continue;
        }
        const uint32_t most = g->kind == GATHER ? MOST_AHEAD : MOST_SWAPS;
        const uint64_t limit = limit_of(s, g->kind);
        const uint32_t first = phase_start(s, g->begin);
        uint64_t ahead = amount_of(s, g);
        uint32_t n = 0;
        for (uint32_t j = g->before; j != DS_NONE && n < most && ahead <= limit;
             j = s->groups[j].before) {
            const group *before = &s->groups[j];
            const uint32_t at = is_for_next_phase(s, before) ? before->wait : before->begin;
            if (at >= first) {
                g->start = at < g->begin ? at : g->begin; /* what an earlier phase fetched may be
                                                             used behind that */
                ahead += amount_of(s, before);
                ++n;
            }
        }
        if (g->kind == STATE_IN && n < most && ahead <= limit) {
            g->start = first;
        }
    }
}

/* A swap of a cell that this phase wrote starts behind the wait for that. What waits for its turn
 * (a state of no parameter) may start ahead: then that is waited for there. */
static void keep_versions(spreader *s)
{
    for (uint32_t i = 0; i < s->n_groups; ++i) {
        group *g = &s->groups[i];
        const ds_value in = dsi_node_in(s->graph, node_at(s, g->begin))[0];
        const ds_node maker = s->graph->values[in].producer;
        if ((g->kind == SWAP_IN || g->kind == STATE_IN) && maker != DS_NONE &&
            s->graph->nodes[maker].phase == node_at(s, g->begin)->phase) {
            const uint32_t by = s->made_by[in];
            const bool waits = by > 0 && s->groups[by - 1].kind != HOST &&
                               cell_kind(s, node_at(s, g->begin)) == DS_CELL_STATE;
            group *written = waits ? &s->groups[by - 1] : NULL;
            const uint32_t least = waits ? written->end : g->begin;
            g->start = g->start > least ? g->start : least;
            if (waits) {
                written->wait = written->wait < g->start ? written->wait : g->start;
            }
        }
    }
}

/* What swaps a cell ends before the next one writes it, whoever reads what it fetched. Before what
 * the host writes a cell is not swapped in its phase but for its sake. */
static void bound_swaps(spreader *s)
{
    for (uint32_t i = 0; i < s->n_groups; ++i) {
        group *g = &s->groups[i];
        if (g->kind < SWAP_IN) {
            continue;
        }
        uint32_t *last = &s->moved_last[cell_of(s, node_at(s, g->begin))];
        g->of_cell = *last - 1; /* of 0: DS_NONE */
        *last = i + 1;
        for (uint32_t j = g->of_cell; j != DS_NONE && g->kind == SWAP_OUT;
             j = s->groups[j].kind == SWAP_OUT ? DS_NONE : s->groups[j].of_cell) {
            if (s->groups[j].wait > g->begin) {
                s->groups[j].wait = g->begin;
                s->groups[j].until = node_at(s, g->begin)->phase;
            }
        }
    }
}

/* Bytes of states that have arrived, or are in flight, and wait at each place for their update:
 * first what is added there to those of the place before, then the sums (of numbers that wrap
 * around). */
static void find_states(spreader *s)
{
    for (uint32_t i = 0; i < s->n_groups; ++i) {
        const group *g = &s->groups[i];
        if (g->kind == STATE_IN && g->start < g->wait) {
            s->states[g->start] += amount_of(s, g);
            s->states[g->wait] -= amount_of(s, g);
        }
    }
    for (uint32_t place = 1; place <= s->n; ++place) {
        s->states[place] += s->states[place - 1];
    }
}

/* Bytes of writebacks in flight when a swap starts at a place, at most. With deferred writebacks
 * the results of updates have the room of states that have not arrived. */
static uint64_t room_at(const spreader *s, uint32_t place)
{
    const uint64_t own = s->limits->write_behind;
    const uint64_t ahead = s->limits->update_ahead;
    const uint64_t both = own < UINT64_MAX - ahead ? own + ahead : UINT64_MAX;
    const dsi_node_info *node = node_at(s, place);
    if (!s->limits->defer || !(is_of_state(s, node) || cell_kind(s, node) == DS_CELL_PARAM)) {
        return own;
    }
    const uint64_t taken = s->states[place];
    return taken < both ? both - taken : 0;
}

/* A writeback is waited for before one starts that exceeds the bytes in flight. */
static void bound_writes(spreader *s)
{
    find_states(s);
    for (uint32_t i = 0; i < s->n_groups; ++i) {
        group *g = &s->groups[i];
        g->room = g->kind == SWAP_OUT ? room_at(s, g->begin) : 0;
    }
    for (uint32_t i = 0; i < s->n_groups; ++i) {
        uint64_t bytes = ds_meta_bytes(moved_by(s, &s->groups[i]));
        uint32_t n = 0;
        for (uint32_t j = i + 1; j < s->n_groups && s->groups[i].kind == SWAP_OUT; ++j) {
            if (s->groups[j].begin >= s->groups[i].wait) {
                break;
            }
            if (s->groups[j].kind == SWAP_OUT) {
                bytes += ds_meta_bytes(moved_by(s, &s->groups[j]));
                if (bytes > s->groups[j].room || ++n == MOST_SWAPS) {
                    s->groups[i].wait = s->groups[j].begin;
                    break;
                }
            }
        }
    }
}

/* With write_first an update's writebacks, which stand side by side, are waited for behind them. */
static void drain_writes(spreader *s)
{
    for (uint32_t i = 0; i < s->n_groups && s->limits->write_first; ++i) {
        group *g = &s->groups[i];
        const dsi_node_info *node = node_at(s, g->begin);
        const uint32_t end = phase_end(s, g->begin);
        uint32_t place = g->end;
        if (g->kind != SWAP_OUT || !is_for_update(s, node)) {
            continue;
        }
        while (place < end && node_at(s, place)->op == node->op) {
            ++place;
        }
        g->wait = g->wait < place ? g->wait : place;
    }
}

/* Where the last state that a phase fetches is waited for. */
static uint32_t last_state_of(const spreader *s, ds_phase phase)
{
    uint32_t last = 0;
    for (uint32_t i = 0; i < s->n_groups; ++i) {
        const group *g = &s->groups[i];
        const bool counts = g->kind == STATE_IN && g->wait < s->n && g->until == phase;
        last = counts && g->wait > last ? g->wait : last;
    }
    return last;
}

/* Writebacks of states still in flight where the last phase that swaps ends are waited for in
 * the next step, before its forward phase prefetches any. They start when all that the last updates
 * read has arrived: that is waited for in this step. Not where steps differ in their phases. */
static void defer_writes(spreader *s)
{
    ds_phase last = DS_PHASE_FORWARD;
    const bool alike = s->limits->defer && dsi_phases_all_run(&s->graph->phases);
    for (uint32_t i = 0; i < s->n_groups; ++i) {
        const ds_phase phase = node_at(s, s->groups[i].begin)->phase;
        last = s->groups[i].kind >= SWAP_IN && phase > last ? phase : last;
    }
    if (!alike || dsi_phase_is_forward(&s->graph->phases, last) ||
        node_at(s, 0)->phase != DS_PHASE_FORWARD) {
        return;
    }
    const uint32_t read = last_state_of(s, last);
    for (uint32_t i = 0; i < s->n_groups; ++i) {
        group *g = &s->groups[i];
        const dsi_node_info *node = node_at(s, g->begin);
        if (g->kind == SWAP_OUT && node->phase == last && is_of_state(s, node) &&
            g->wait == phase_end(s, g->begin)) {
            g->start = g->start > read ? g->start : read;
            g->deferred = true;
            g->until = DS_PHASE_FORWARD;
            g->wait = middle_of(s, 0);
        }
    }
}

static void emit(const spreader *s, const group *g, dsi_step_kind role, dsi_slot *slots,
                 uint32_t *n)
{
    for (uint32_t place = g->begin; place < g->end; ++place) {
        const ds_phase phase = role == DSI_STEP_WAIT ? g->until : node_at(s, place)->phase;
        slots[(*n)++] = (dsi_slot){s->order[place], role, phase, (uint32_t)(g - s->groups) + 1};
    }
}

/* Lists of the groups of each place, in their order. */
static void list_places(spreader *s)
{
    for (uint32_t place = 0; place <= s->n; ++place) {
        s->starts[place] = s->waits[place] = DS_NONE;
    }
    for (uint32_t i = s->n_groups; i-- > 0;) {
        group *g = &s->groups[i];
        g->next_start = s->starts[g->start];
        s->starts[g->start] = i;
        g->next_wait = s->waits[g->wait];
        s->waits[g->wait] = i;
    }
}

/* Waits before a place, of the phases before that of the place, or of that. */
static void emit_waits(const spreader *s, uint32_t place, bool before, dsi_slot *slots, uint32_t *n)
{
    for (uint32_t i = s->waits[place]; i != DS_NONE; i = s->groups[i].next_wait) {
        const group *g = &s->groups[i];
        const bool ends = place == s->n || g->until < node_at(s, place)->phase;
        if ((g->begin < place || g->deferred) && ends == before) {
            emit(s, g, DSI_STEP_WAIT, slots, n);
        }
    }
}

static void run_at(const spreader *s, uint32_t place, dsi_slot *slots, uint32_t *n)
{
    slots[(*n)++] = (dsi_slot){s->order[place], DSI_STEP_RUN, node_at(s, place)->phase, 0};
}

/* What a gather sends is made where it starts. */
static void start(spreader *s, group *g, uint32_t place, dsi_slot *slots, uint32_t *n)
{
    if (g->lead != DS_NONE && g->lead >= place) {
        run_at(s, g->lead, slots, n);
        s->led[g->lead] = true;
    }
    emit(s, g, DSI_STEP_START, slots, n);
}

static void spread(spreader *s, dsi_slot *slots, uint32_t *n_out)
{
    uint32_t n = 0;
    list_places(s);
    for (uint32_t place = 0; place <= s->n; ++place) {
        emit_waits(s, place, true, slots, &n);
        emit_waits(s, place, false, slots, &n);
        for (uint32_t i = s->starts[place]; i != DS_NONE; i = s->groups[i].next_start) {
            start(s, &s->groups[i], place, slots, &n);
        }
        if (place < s->n && !overlaps(s, node_at(s, place)) && !s->led[place]) {
            run_at(s, place, slots, &n);
        }
    }
    *n_out = n;
}

ds_status dsi_overlap(const ds_graph *graph, const ds_node *order, uint32_t n, const ds_value *same,
                      const dsi_overlap_limits *limits, dsi_slot *slots, uint32_t *n_out)
{
    spreader s = {.graph = graph, .order = order, .n = n, .same = same, .limits = limits};
    s.groups = calloc((size_t)n + 1, sizeof *s.groups);
    s.made_by = calloc((size_t)graph->n_values + 1, sizeof *s.made_by);
    s.moved_last = calloc((size_t)ds_cells_count(graph->cells) + 1, sizeof *s.moved_last);
    s.starts = calloc((size_t)n + 1, sizeof *s.starts);
    s.waits = calloc((size_t)n + 1, sizeof *s.waits);
    s.states = calloc((size_t)n + 1, sizeof *s.states);
    s.led = calloc((size_t)n + 1, sizeof *s.led);
    ds_status status = DS_OK;
    if (s.groups == NULL || s.made_by == NULL || s.moved_last == NULL || s.starts == NULL ||
        s.waits == NULL || s.states == NULL || s.led == NULL) {
        status = ds_fail(graph->ctx, DS_ERR_NOMEM, "no memory to order collectives");
    } else {
        find_phases(&s);
        find_groups(&s);
        find_waits(&s);
        bound_sources(&s);
        bound_reductions(&s);
        start_ahead(&s);
        keep_versions(&s);
        bound_swaps(&s);
        bound_writes(&s);
        drain_writes(&s);
        defer_writes(&s);
        spread(&s, slots, n_out);
    }
    free(s.groups);
    free(s.made_by);
    free(s.moved_last);
    free(s.starts);
    free(s.waits);
    free(s.states);
    free(s.led);
    return status;
}
