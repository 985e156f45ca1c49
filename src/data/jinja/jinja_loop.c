/* SPDX-License-Identifier: Apache-2.0 */
/* {% for %}: its items, taken one at a time as they are asked for, and "loop". See jinja_run.h.
 *
 * A loop looks one item ahead only when its body asks for loop.last or loop.nextitem, and at all of
 * them when it asks for a length that is not known, as jinja2's does: the test of a loop may read
 * what the body sets.
 */
#include "data/jinja/jinja_run.h"

#include <string.h>

static bool passes(dsi_ji *j, dsi_jv_loop *loop, dsi_jv item)
{
    if (loop->node->c == NULL || loop->tested) {
        return true;
    }
    dsi_ji_scope *scope = dsi_ji_scope_in(j, loop->outer);
    dsi_ji_unpack(j, scope, loop->node->a, item);
    return !j->failed && dsi_ji_truth(j, dsi_ji_eval(j, loop->node->c, scope));
}

/* The next item of what is walked through, whether it passes or not; MISSING at the end. */
static dsi_jv raw_next(dsi_ji *j, dsi_jv_loop *loop)
{
    if (loop->items.kind != DSI_JV_ITER) {
        return loop->next < loop->n ? loop->at[loop->next++] : dsi_jv_missing();
    }
    dsi_jv_iter *iter = loop->items.iter;
    if (iter->used < iter->n) {
        return iter->at[iter->used++];
    }
    if (iter->fault < 0) {
        (void)dsi_ji_fail(j, iter->fault, "%s", iter->fault_text);
    }
    return dsi_jv_missing();
}

static dsi_jv take(dsi_ji *j, dsi_jv_loop *loop)
{
    while (dsi_ji_step(j, 1)) {
        const dsi_jv v = raw_next(j, loop);
        if (v.kind == DSI_JV_MISSING || (passes(j, loop, v) && !j->failed)) {
            return v;
        }
    }
    return dsi_jv_missing();
}

/* The item behind the current one, kept for the next turn. */
static dsi_jv peek(dsi_ji *j, dsi_jv_loop *loop)
{
    if (loop->peeked.kind == DSI_JV_MISSING) {
        loop->peeked = take(j, loop);
    }
    return loop->peeked;
}

/* Reads what is left to know how much it is. */
static void count(dsi_ji *j, dsi_jv_loop *loop)
{
    size_t n = 0;
    size_t room = 16;
    dsi_jv *all = dsi_ji_alloc(j, room, sizeof *all);
    if (loop->items.kind != DSI_JV_ITER && (loop->node->c == NULL || loop->tested)) {
        loop->length = (int64_t)loop->n;
        return;
    }
    for (dsi_jv v = take(j, loop); v.kind != DSI_JV_MISSING && all != NULL; v = take(j, loop)) {
        if (n == room) {
            dsi_jv *grown = dsi_ji_alloc(j, room * 2, sizeof *grown);
            if (grown == NULL) {
                return;
            }
            memcpy(grown, all, n * sizeof *grown);
            all = grown;
            room *= 2;
        }
        all[n++] = v;
    }
    loop->length = (int64_t)n + loop->index0 + 1 + (loop->peeked.kind != DSI_JV_MISSING);
    loop->items = dsi_jv_none();
    loop->at = all;
    loop->n = n;
    loop->next = 0;
    loop->tested = true;
}

static int64_t length(dsi_ji *j, dsi_jv_loop *loop)
{
    if (loop->length < 0) {
        count(j, loop);
    }
    return loop->length;
}

dsi_jv dsi_ji_loop_member(dsi_ji *j, dsi_jv_loop *loop, const char *name)
{
    if (strcmp(name, "index") == 0) {
        return dsi_jv_int(loop->index0 + 1);
    }
    if (strcmp(name, "index0") == 0) {
        return dsi_jv_int(loop->index0);
    }
    if (strcmp(name, "first") == 0) {
        return dsi_jv_bool(loop->index0 == 0);
    }
    if (strcmp(name, "last") == 0) {
        return dsi_jv_bool(peek(j, loop).kind == DSI_JV_MISSING);
    }
    if (strcmp(name, "length") == 0) {
        return dsi_jv_int(length(j, loop));
    }
    if (strcmp(name, "revindex") == 0) {
        return dsi_jv_int(length(j, loop) - loop->index0);
    }
    if (strcmp(name, "revindex0") == 0) {
        return dsi_jv_int(length(j, loop) - loop->index0 - 1);
    }
    if (strcmp(name, "depth") == 0) {
        return dsi_jv_int(loop->depth0 + 1);
    }
    if (strcmp(name, "depth0") == 0) {
        return dsi_jv_int(loop->depth0);
    }
    if (strcmp(name, "previtem") == 0) {
        return loop->index0 == 0 ? dsi_ji_undefined(j, NULL, "there is no previous item")
                                 : loop->before;
    }
    if (strcmp(name, "nextitem") == 0) {
        const dsi_jv v = peek(j, loop);
        return v.kind == DSI_JV_MISSING ? dsi_ji_undefined(j, NULL, "there is no next item") : v;
    }
    if (strcmp(name, "cycle") == 0 || strcmp(name, "changed") == 0) {
        dsi_jv_method *m = dsi_ji_alloc(j, 1, sizeof *m);
        if (m != NULL) {
            *m = (dsi_jv_method){{.kind = DSI_JV_LOOP, .loop = loop}, name};
        }
        return (dsi_jv){.kind = DSI_JV_METHOD, .method = m};
    }
    return dsi_jv_missing();
}

static bool begin(dsi_ji *j, dsi_jv_loop *loop, dsi_jv items)
{
    loop->items = items;
    loop->index0 = -1;
    loop->length = -1;
    loop->current = loop->before = loop->peeked = loop->changed = dsi_jv_missing();
    return items.kind == DSI_JV_ITER || dsi_ji_items(j, items, &loop->at, &loop->n);
}

static bool advance(dsi_ji *j, dsi_jv_loop *loop)
{
    const dsi_jv v = loop->peeked.kind != DSI_JV_MISSING ? loop->peeked : take(j, loop);
    loop->peeked = dsi_jv_missing();
    if (v.kind == DSI_JV_MISSING || j->failed) {
        return false;
    }
    ++loop->index0;
    loop->before = loop->current;
    loop->current = v;
    return true;
}

/* What the loop wrote for a message. */
static void note_turn(dsi_ji *j, dsi_jv item, size_t from)
{
    const size_t to = j->out->size;
    if (item.kind != DSI_JV_DICT || j->out != j->result || to == from || j->failed) {
        return;
    }
    for (size_t k = 0; k < j->n_turns; ++k) { /* mostly the one behind the last */
        const size_t i = (j->turn_hint + k) % j->n_turns;
        if (j->turns[i].message == item.dict) {
            j->turns_hidden |= j->turns[i].seen;
            j->turns[i].seen = true;
            j->turns[i].begin = from;
            j->turns[i].end = to;
            j->turn_hint = i + 1;
            return;
        }
    }
    (void)dsi_ji_step(j, j->n_turns / 16); /* an object that is no message */
}

static void run(dsi_ji *j, dsi_jv_loop *loop)
{
    const dsi_jn *node = loop->node;
    bool any = false;
    dsi_ji_flow flow = DSI_JI_GO_ON;
    while (flow != DSI_JI_BREAK && advance(j, loop)) {
        dsi_ji_scope *scope = dsi_ji_scope_in(j, loop->outer);
        const size_t from = j->out->size;
        any = true;
        dsi_ji_assign(j, scope, "loop", (dsi_jv){.kind = DSI_JV_LOOP, .loop = loop});
        dsi_ji_unpack(j, scope, node->a, loop->current);
        flow = dsi_ji_exec(j, node->body, scope);
        note_turn(j, loop->current, from);
    }
    if (!any && node->other.n > 0 && !j->failed) {
        (void)dsi_ji_exec(j, node->other, dsi_ji_scope_in(j, loop->outer));
    }
}

static void start(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *outer, dsi_jv items, uint32_t depth0)
{
    dsi_jv_loop *loop = dsi_ji_alloc(j, 1, sizeof *loop);
    if (loop == NULL) {
        return;
    }
    *loop = (dsi_jv_loop){.node = node, .outer = outer, .depth0 = depth0};
    if (begin(j, loop, items)) {
        run(j, loop);
    }
}

void dsi_ji_exec_for(dsi_ji *j, const dsi_jn *node, dsi_ji_scope *scope)
{
    const dsi_jv items = dsi_ji_eval(j, node->b, scope);
    if (!j->failed) {
        start(j, node, scope, items, 0);
    }
}

dsi_jv dsi_ji_call_loop(dsi_ji *j, dsi_jv_loop *loop, const dsi_ji_args *args)
{
    dsi_jv items[DSI_JI_ARGS];
    if (!loop->node->recursive) {
        return dsi_ji_wrong(j, "only a loop that is marked \"recursive\" can be called");
    }
    if (!dsi_ji_bind(j, args, "loop", "iterable", items)) {
        return dsi_jv_none();
    }
    if (items[0].kind == DSI_JV_MISSING) {
        return dsi_ji_wrong(j, "loop() needs what it is to walk through");
    }
    dsi_buf text;
    dsi_buf *outer = dsi_ji_catch(j, &text);
    start(j, loop->node, loop->outer, items[0], loop->depth0 + 1);
    j->out = outer;
    return dsi_ji_buffer(j, &text);
}
