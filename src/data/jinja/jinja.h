/* SPDX-License-Identifier: Apache-2.0 */
/* Jinja templates as transformers' apply_chat_template renders them: an immutable sandbox with
 * trim_blocks, lstrip_blocks, loop controls and {% generation %}.
 *
 * Called by data/chat*.c. A text is the text that transformers gives, or an error: what is not
 * known here is refused with line and column, never rendered in another way. Not trusted: steps,
 * memory, depth and output are bounded.
 *
 *   jinja_lex*.c     text to tokens                     jinja_reader.c   the token in hand, nodes
 *   jinja_primary.c  literals, members, calls           jinja_expr.c     operators
 *   jinja_parse.c    statements                         jinja_check.c    what a compiler refuses
 *   jinja_self.c     the name "self"                    jinja_exec.c     runs statements
 *   jinja_loop.c     runs for                           jinja_eval.c     runs expressions
 *   jinja_call.c     macros, globals, arguments         jinja_value.c    values, walks of them
 *   jinja_compare.c  equality and order                 jinja_arith.c    arithmetic, "in"
 *   jinja_member.c   attributes, items, slices          jinja_text.c     str, repr, json.dumps
 *   jinja_filter.c   filters; _seq.c: of sequences      jinja_test.c     tests
 *   jinja_method.c   methods; _str.c: those of str      jinja_strings.c  texts, for both
 *   jinja_format.c   %, str.format                      jinja_unicode.c  case, white space
 */
#ifndef DSI_DATA_JINJA_H
#define DSI_DATA_JINJA_H

#include "base/arena.h"
#include "base/buf.h"
#include "data/jinja/jinja_value.h"

#include <jansson.h>

enum { DSI_JINJA_ERROR = 256 };

/* Parses n bytes. *template_out is owned by the caller. Errors, with line and column in `error`:
 * ERR_FORMAT (jinja2 refuses it, too), ERR_UNSUPPORTED (ours does not know it), ERR_LIMIT,
 * ERR_NOMEM. */
ds_status dsi_jinja_parse(const char *text, size_t n, dsi_jinja **template_out, char *error,
                          size_t error_size);
void dsi_jinja_destroy(dsi_jinja **template_inout);

/* Whether the template marks by {% generation %} what the model says. */
bool dsi_jinja_has_generation(const dsi_jinja *template);

/* Whether a name or a text of the template's code is `word`: what is not there is not read. */
bool dsi_jinja_mentions(const dsi_jinja *template, const char *word);

typedef struct dsi_jinja_range {
    size_t begin, end; /* bytes of the output */
} dsi_jinja_range;

/* What a rendering gives: out is the caller's, made with the ceiling of the text. */
typedef struct dsi_jinja_result {
    dsi_buf out;
    dsi_jinja_range *generated; /* n_generated of {% generation %}, ascending; free() */
    size_t n_generated;
    bool generated_hidden;  /* a generation block stood in a macro or the like: no place is known */
    dsi_jinja_range *turns; /* [n messages] what a loop over messages wrote for each; free() */
    bool turns_hidden;      /* one wrote for a message twice, or in a macro */
} dsi_jinja_result;

/* Renders with the variables of `variables` (an object, borrowed); `messages`, when it is a list
 * there, is what turns belong to. Errors as for parsing, and ERR_FORMAT for what the template
 * raises itself. A template is const: any thread. */
ds_status dsi_jinja_render(const dsi_jinja *template, const json_t *variables,
                           dsi_jinja_result *result_out, char *error, size_t error_size);
void dsi_jinja_result_free(dsi_jinja_result *result);

#endif
