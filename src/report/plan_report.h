/* SPDX-License-Identifier: Apache-2.0 */
/* What a run will cost a rank, from its plan alone: memory, communication, operations. ds_plan
 * prints it (plan_text.c, plan_json.c, …); nothing here allocates cells or talks to a rank.
 */
#ifndef DSI_REPORT_PLAN_REPORT_H
#define DSI_REPORT_PLAN_REPORT_H

#include "compile/rank_ledger.h"
#include "cost/simulate.h"

#define DSI_STAGE_LARGEST UINT32_MAX
enum { DSI_REPORT_LARGEST = 10, DSI_REPORT_MOST_COLLECTIVES = 300 };

/* What to plan. Everything is borrowed and must outlive the report. */
typedef struct dsi_report_request {
    const ds_model *model;
    const ds_config *config; /* resolved for n_ranks */
    int64_t seq_length;
    uint32_t n_ranks, n_nodes, n_threads;
    uint32_t stage; /* of a pipeline, from 0: whose rank is planned; DSI_STAGE_LARGEST: that which
                       needs most memory */
    const char *const *frozen;
    uint32_t n_frozen;
    const dsi_device *device; /* of a node, as loaded; NULL: this processor, times unknown */
    size_t memory;            /* bytes that a rank may use; 0: unknown */
    const char *memory_of;    /* whose memory that is, for messages */
    const char *accelerator;  /* whose kernels; NULL: null for another device, else the best; of
                                another device it need not be here */
    bool as_run; /* where super_offload leaves the ratio open: what a run does that does not find
                    the profile by its device's name, not the cost model's choice */
    const ds_preference *preference;     /* NULL: cross entropy */
    const ds_adapter *adapter;           /* NULL: none */
    const ds_distillation *distillation; /* NULL: none */
} dsi_report_request;

/* One sort of collective in one phase. */
typedef struct dsi_report_comm {
    const char *op;
    int64_t axes; /* of the mesh, as a number */
    ds_phase phase;
    uint64_t calls; /* an optimizer step */
    double carried; /* bytes of the whole tensors, an optimizer step */
    double sent;    /* bytes that a rank must send at least */
} dsi_report_comm;

typedef struct dsi_plan_report {
    dsi_report_request request;
    dsi_engine_spec spec;
    dsi_rank_plan plan;
    dsi_ledger *ledger;
    double seconds; /* that planning took */
    uint64_t n_parameters, n_trainable;
    uint64_t n_active; /* of n_parameters, those that one token meets: not all experts */
    uint32_t peak_step;
    size_t peak[DSI_RESIDENCY_COUNT][DSI_MEMORY_KIND_COUNT];
    size_t total[DSI_RESIDENCY_COUNT];    /* at the peak */
    uint32_t largest[DSI_REPORT_LARGEST]; /* entries of the ledger */
    uint32_t n_largest;
    dsi_report_comm comm[DSI_REPORT_MOST_COLLECTIVES];
    uint32_t n_comm;
    double model_flops, hardware_flops; /* an optimizer step of a rank */
    double step_time; /* of a step: seconds, without a device operations; of a pipeline of which all
                         stages were planned, by what each of them takes */
    ds_config *chosen; /* request.config with what "auto" of a pipeline became; owned; NULL: none */
    char why[512];     /* the choice in words */
    dsi_device device; /* of a rank */
    dsi_sim_step *sim_steps;
    dsi_timeline *timeline; /* NULL without a device */
} dsi_plan_report;

/* Whether only steps of an optimizer's warm-up run a phase. It counts for nothing but
 * communication, where it has rows of its own. */
bool dsi_report_is_warm_up(const dsi_plan_report *report, ds_phase phase);

/* Plans and counts; of DSI_STAGE_LARGEST all stages, or of more than four the first two, the last
 * and the one with most parameters, and report_out->request.stage says which it is. The caller
 * frees the report with dsi_report_free. Errors: those of
 * dsi_engine_read_config and dsi_rank_plan_build. */
ds_status dsi_report_make(ds_ctx *ctx, const dsi_report_request *request,
                          dsi_plan_report *report_out);
void dsi_report_free(dsi_plan_report *report);

/* Bytes that count against the memory of a rank: of the device, and, where that is the host's
 * memory, of the host. */
size_t dsi_report_need(const dsi_plan_report *report);
/* What a plan lacks: the memory of the request, the configuration's device_memory, or memory of the
 * host. */
typedef struct dsi_shortage {
    size_t need, have;
    const char *of; /* whose memory that is */
} dsi_shortage;
/* Whether the plan needs more than there is; *shortage_out is the first of what it lacks. NULL: not
 * wanted. What is not known is no shortage. */
bool dsi_report_lacks(const dsi_plan_report *report, dsi_shortage *shortage_out);
/* What of a step counts for MFU: products, attention and the output projection of the forward and
 * backward passes, done once. */
double dsi_step_model_flops(const dsi_plan *plan, const dsi_step *step);
const char *dsi_report_phase(const dsi_plan_report *report, ds_phase phase);

/* Memory over time, at most `room` points: the largest sum of each run of *run_out steps. */
ds_status dsi_report_curve(const dsi_plan_report *report, size_t (*points)[DSI_MEMORY_KIND_COUNT],
                           uint32_t room, uint32_t *n_out, uint32_t *run_out);

#endif
