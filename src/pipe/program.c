/* SPDX-License-Identifier: Apache-2.0 */
/* Builds and runs a program. See program.h. */
#include "pipe/program.h"

#include <stdlib.h>

static void add(dsi_program *p, dsi_instr instr)
{
    enum { FIRST = 64 };
    if (p->n == p->capacity && p->n < DSI_PROGRAM_INSTRS) {
        const uint32_t capacity = p->capacity > 0 ? 2 * p->capacity : FIRST;
        dsi_instr *instrs = realloc(p->instrs, capacity * sizeof *instrs);
        if (instrs != NULL) {
            p->instrs = instrs;
            p->capacity = capacity;
        }
    }
    if (p->n == p->capacity) {
        p->full = true;
    } else {
        p->instrs[p->n++] = instr;
    }
}

void dsi_program_free(dsi_program *p)
{
    free(p->instrs);
    p->instrs = NULL;
    p->n = p->capacity = 0;
}

void dsi_program_await(dsi_program *p, uint32_t call, const char *name)
{
    add(p, (dsi_instr){.kind = DSI_INSTR_AWAIT, .call = call, .name = name});
}

void dsi_program_await_once(dsi_program *p, uint32_t call, const char *name)
{
    add(p, (dsi_instr){.kind = DSI_INSTR_AWAIT, .call = call, .name = name, .once = true});
}

void dsi_program_do(dsi_program *p, const dsi_program_action *action)
{
    add(p, (dsi_instr){.kind = DSI_INSTR_DO, .action = action});
}

void dsi_program_run(dsi_program *p, uint32_t plan, ds_phase phase, uint32_t slot)
{
    add(p, (dsi_instr){.kind = DSI_INSTR_RUN, .plan = plan, .phase = phase, .slot = slot});
}

void dsi_program_start(dsi_program *p, uint32_t plan)
{
    const ds_phase side = plan < p->n_plans ? p->plans[plan].plan->side : DS_NONE;
    add(p, (dsi_instr){.kind = DSI_INSTR_START, .plan = plan, .phase = side});
}

void dsi_program_if(dsi_program *p, const dsi_program_test *test)
{
    add(p, (dsi_instr){.kind = DSI_INSTR_IF, .test = test});
}

void dsi_program_end(dsi_program *p)
{
    add(p, (dsi_instr){.kind = DSI_INSTR_END});
}

static void add_message(dsi_program *p, dsi_instr_kind kind, uint32_t message, uint32_t slot)
{
    add(p, (dsi_instr){.kind = kind, .message = message, .slot = slot});
}

void dsi_program_send(dsi_program *p, uint32_t message, uint32_t slot)
{
    add_message(p, DSI_INSTR_SEND, message, slot);
}

void dsi_program_sent(dsi_program *p, uint32_t message, uint32_t slot)
{
    add_message(p, DSI_INSTR_SENT, message, slot);
}

void dsi_program_receive(dsi_program *p, uint32_t message, uint32_t slot)
{
    add_message(p, DSI_INSTR_RECEIVE, message, slot);
}

static ds_status run_one(const dsi_instr *instr, const dsi_program_client *client)
{
    switch (instr->kind) {
    case DSI_INSTR_DO:
        return instr->action->run(client->user);
    case DSI_INSTR_RUN:
        return client->run(client->user, instr);
    case DSI_INSTR_START:
        return client->start(client->user, instr);
    case DSI_INSTR_SEND:
    case DSI_INSTR_SENT:
    case DSI_INSTR_RECEIVE:
        return client->message(client->user, instr);
    case DSI_INSTR_AWAIT:
    case DSI_INSTR_IF:
    case DSI_INSTR_END:
        break;
    }
    return DS_OK;
}

/* The AWAIT behind `at`. */
static dsi_program_at next_await(const dsi_program *p, dsi_program_at at)
{
    do {
        at = at + 1 < p->n ? at + 1 : 0;
    } while (p->instrs[at].kind != DSI_INSTR_AWAIT);
    return at;
}

ds_status dsi_program_call(ds_ctx *ctx, const dsi_program *p, const dsi_program_client *client,
                           uint32_t call, dsi_program_at *at_inout)
{
    const dsi_instr *await = &p->instrs[*at_inout];
    const dsi_program_at next = next_await(p, *at_inout);
    if (await->call != call) {
        return ds_fail(ctx, DS_ERR_STATE, "not allowed now: %s expected", await->name);
    }
    for (uint32_t i = *at_inout + 1; i < p->n && p->instrs[i].kind != DSI_INSTR_AWAIT; ++i) {
        const dsi_instr *instr = &p->instrs[i];
        if (instr->kind == DSI_INSTR_IF && !instr->test->holds(client->user)) {
            i = instr->end;
            continue;
        }
        const ds_status status = run_one(instr, client);
        if (status < 0) {
            *at_inout = await->once ? next : *at_inout;
            return status;
        }
    }
    *at_inout = next;
    return DS_OK;
}
