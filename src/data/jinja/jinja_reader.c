/* SPDX-License-Identifier: Apache-2.0 */
/* Reading of tokens, which statements and expressions share: the token in hand, nodes, and failing.
 * See jinja_node.h. */
#include "data/jinja/jinja_node.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const dsi_jt the_end = {.kind = DSI_JT_EOF, .text = ""};

void dsi_jp_fail(dsi_jp *p, ds_status status, const char *format, ...)
{
    if (p->failed) {
        return;
    }
    va_list args;
    va_start(args, format);
    (void)vsnprintf(p->fault->text, sizeof p->fault->text, format, args);
    va_end(args);
    p->fault->status = status;
    p->fault->line = p->token->line;
    p->fault->column = p->token->column;
    p->failed = true;
    p->token = &the_end;
}

bool dsi_jp_is(const dsi_jp *p, dsi_jt_kind kind, const char *text)
{
    return p->token->kind == kind && (text == NULL || strcmp(p->token->text, text) == 0);
}

void dsi_jp_next(dsi_jp *p)
{
    if (p->token->kind != DSI_JT_EOF) {
        ++p->token;
    }
}

bool dsi_jp_skip_if(dsi_jp *p, dsi_jt_kind kind, const char *text)
{
    if (!dsi_jp_is(p, kind, text)) {
        return false;
    }
    dsi_jp_next(p);
    return true;
}

const char *dsi_jt_kind_name(dsi_jt_kind kind)
{
    static const char *const names[] = {"the end of the template",
                                        "text",
                                        "{{",
                                        "}}",
                                        "{%",
                                        "%}",
                                        "a name",
                                        "a string",
                                        "a number",
                                        "a number",
                                        "an operator"};
    return names[kind];
}

const dsi_jt *dsi_jp_expect(dsi_jp *p, dsi_jt_kind kind, const char *text)
{
    const dsi_jt *token = p->token;
    if (!dsi_jp_is(p, kind, text)) {
        dsi_jp_fail(p, DS_ERR_FORMAT, "expected %s, found %s%s%.40s",
                    text != NULL ? text : dsi_jt_kind_name(kind), dsi_jt_kind_name(token->kind),
                    token->n > 0 ? " " : "", token->kind == DSI_JT_DATA ? "" : token->text);
        return &the_end;
    }
    dsi_jp_next(p);
    return token;
}

dsi_jn *dsi_jp_node(dsi_jp *p, dsi_jn_kind kind)
{
    static dsi_jn nothing = {.kind = DSI_JN_CONST, .value = {.kind = DSI_JV_NONE}};
    dsi_jn *node = dsi_arena_alloc(p->arena, sizeof *node);
    if (node == NULL) {
        dsi_jp_fail(p, DS_ERR_NOMEM, "no memory for the template");
        node = &nothing;
        return node;
    }
    *node = (dsi_jn){.kind = kind, .line = p->token->line, .column = p->token->column};
    return node;
}

void dsi_jp_add(dsi_jp *p, dsi_jn_list *list, dsi_jn *node)
{
    if ((list->n & (list->n - 1)) == 0) { /* a power of two is full */
        dsi_jn **grown = dsi_arena_array(p->arena, list->n == 0 ? 1 : list->n * 2, sizeof *grown);
        if (grown == NULL) {
            dsi_jp_fail(p, DS_ERR_NOMEM, "no memory for the template");
            return;
        }
        if (list->n > 0) {
            memcpy(grown, list->at, list->n * sizeof *grown);
        }
        list->at = grown;
    }
    list->at[list->n++] = node;
}
