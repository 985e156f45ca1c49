/* SPDX-License-Identifier: Apache-2.0 */
/* One configuration beside the given one: the settings in which it differs, and, once it is
 * planned, what it needs and costs. A candidate that the configuration's rules or the planner
 * refuse stays without figures.
 */
#ifndef DSI_REPORT_PLAN_CANDIDATE_H
#define DSI_REPORT_PLAN_CANDIDATE_H

#include "report/plan_choice.h"
#include "report/plan_report.h"

enum { DSI_CANDIDATE_SETTINGS = 24, DSI_LARGEST_BATCH = 4096 };

typedef struct dsi_candidate {
    const char *paths[DSI_CANDIDATE_SETTINGS];
    char values[DSI_CANDIDATE_SETTINGS][32];   /* as JSON; "": the key is taken away */
    const char *texts[DSI_CANDIDATE_SETTINGS]; /* borrowed, in place of a value; NULL: none */
    uint32_t n_settings;
    ds_status refused; /* why it has no figures; ds_ctx_error says more until the next failure */
    bool planned, fits;
    uint32_t stage;
    uint32_t tp, sp, pp; /* ranks that share each layer, each sequence, the layers */
    uint32_t schedule;   /* of stages: a dsi_schedule_kind */
    bool domino;
    ds_recompute recompute;
    ds_offload_device states, params; /* where they live between their uses */
    int64_t micro_batch, accumulation;
    size_t need;                              /* bytes that count against the rank's memory */
    size_t host, disk;                        /* bytes there */
    size_t activations;                       /* of need, at the peak */
    double model_flops, hardware_flops, sent; /* a step of a rank */
    double seconds;                           /* of a step, 0 without a device profile */
    double row_cost; /* of a row of a step, all stages: seconds, or operations of a rank */
} dsi_candidate;

/* Its value number i, as JSON; "": the key is taken away. */
const char *dsi_candidate_value(const dsi_candidate *candidate, uint32_t i);
/* The settings of a candidate, for dsi_config_text_with; room for DSI_CANDIDATE_SETTINGS. */
uint32_t dsi_candidate_settings(const dsi_candidate *candidate, dsi_setting *settings);

/* Sets it, again where it was set; value: as JSON, "" takes the key away. */
void dsi_candidate_set(dsi_candidate *c, const char *path, const char *value);
void dsi_candidate_set_stage(dsi_candidate *c, int64_t stage);
void dsi_candidate_set_recompute(dsi_candidate *c, ds_recompute how);
/* rows: of a rank in a step, micro-batch times accumulation. */
void dsi_candidate_set_batch(dsi_candidate *c, int64_t micro, int64_t rows);
/* States, or parameters too, elsewhere, with so many elements (of dsi_in_hand) in memory at a time.
 * folder: as JSON, borrowed. had: where the configuration puts each already; what is there stays in
 * its own folder. */
void dsi_candidate_set_offload(dsi_candidate *c, ds_offload_device where, bool params,
                               int64_t elements, const char *folder,
                               const ds_offload_device had[2]);

/* Ranks that share layers, sequences, and the model's layers as stages of a pipeline, so many times
 * more than the configuration says. */
typedef struct dsi_share {
    uint32_t tp, sp, pp;
} dsi_share;
/* Shares that may be tried, fewest ranks first: powers of two that divide the job, of the axes of
 * which the configuration says nothing; layers and sequences are shared within a node. Returns how
 * many. */
enum { DSI_MOST_SHARED = 8, DSI_SHARES = 64 };
uint32_t dsi_shares(const dsi_report_request *request, dsi_share out[DSI_SHARES]);
uint32_t dsi_share_ranks(dsi_share share);
void dsi_candidate_set_share(dsi_candidate *c, dsi_share share);
/* Whether the configuration says nothing of how stages are run, of tensor_parallel.domino. */
bool dsi_is_silent_on_stages(const ds_config *config);
bool dsi_is_silent_on_domino(const ds_config *config);

/* Elements that are in memory at a time of what lives elsewhere, most first; 0: as the
 * configuration says. */
enum { DSI_N_IN_HAND = 3 };
extern const int64_t dsi_in_hand[DSI_N_IN_HAND];
/* Divisors of n that may be a micro-batch, largest first; room for DSI_LARGEST_BATCH. */
uint32_t dsi_micro_batches(int64_t n, int64_t *out);
/* Whether the device's memory is not the host's. */
bool dsi_has_own_memory(const dsi_device *device);

/* Plans it. Errors: ERR_NOMEM; refused: OK, and `refused` set. */
ds_status dsi_candidate_plan(ds_ctx *ctx, const dsi_report_request *request, dsi_candidate *c);
/* Less than 0: a comes first. By seconds for each row (operations where seconds are not known),
 * then bytes sent, then the larger micro-batch, then fewer settings. */
int dsi_candidate_by_cost(const dsi_candidate *a, const dsi_candidate *b);

#endif
